"""The fast path by its structure: what a step reads, makes, keeps and leaves out. No test looks at a clock.

fp32 tolerance: 1e-5 of the largest value, as in test_parity.py: two right sums of the same products differ by
about 1e-6 of it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import fast_in_ranks, level, run_ranks
from torch import nn
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.compile_fx import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx
from toys import make_checkpoint
from watching import Op, Watch, difference, memory, readers

from minillama import KVCache, Llama, ModelArgs, SamplingParams, Transformer, packed
from minillama import generation as generation_module
from minillama.decode import Row, Step, close_ranks, decode, decode_step
from minillama.generation import compiled_step
from minillama.packed import FULL_ROWS, PackedLinear, PackedProduct, has_kernel, pack
from minillama.sampling import Sampler, distribution, draw, penalize
from minillama.storyteller import demo_dir
from minillama.transformer import causal_mask

ROOT = Path(__file__).resolve().parents[1]
FP32_TOLERANCE = 1e-5
LOGPROB_TOLERANCE = 1e-4  # logits of the random models here reach about 10
BF16 = 2**-8  # the most that rounding to bf16 moves a number, in parts of it
SYNCS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select")  # a GPU is waited for

needs_packing = pytest.mark.skipif(not has_kernel(torch.zeros(1)), reason="oneDNN's packed products are not here")
needs_bf16 = pytest.mark.skipif(
    not has_kernel(torch.zeros(1, dtype=torch.bfloat16)), reason="oneDNN has no bf16 on this processor"
)
KINDS = ["plain", pytest.param("packed", marks=needs_packing)]


# --- Looking on ------------------------------------------------------------------------------------------------------


def greedily(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    return logits.argmax(-1)


@torch.no_grad()
def watch_a_step(model: Transformer, lengths: Sequence[int]) -> list[Op]:
    """What the loop does for one token of each row, after prompts of these lengths; the cache has room for more."""
    loop = decode(model, [Row([7] * n, 50) for n in lengths], greedily, ())
    next(loop)  # the prefill
    with Watch() as watch:
        next(loop)
    return watch.ops


@torch.no_grad()
def watch_a_prefill(model: Transformer, lengths: Sequence[int]) -> list[Op]:
    with Watch() as watch:
        next(decode(model, [Row([7] * n, 1) for n in lengths], greedily, ()))
    return watch.ops


@pytest.fixture
def small(tiny_model: Callable[..., Transformer]) -> Callable[..., Transformer]:
    """`small()`: every weight matrix is larger than any activation of one row, packed rows filled up included."""
    return functools.partial(tiny_model, vocab_size=300, max_seq_len=1025)


@pytest.fixture
def pack_all(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module], nn.Module]:
    """`pack`, of small linears as well."""
    monkeypatch.setattr(packed, "WORTH_PACKING", 0)
    return pack


def made_of(kind: str, model: Transformer, pack_all: Callable[[nn.Module], Any]) -> Transformer:
    return model if kind == "plain" else pack_all(model)


def products_of(model: nn.Module) -> list[PackedProduct]:
    found = {id(m.shared): m.shared for m in model.modules() if isinstance(m, PackedLinear)}
    return list(found.values())


# --- A step reads each weight once -----------------------------------------------------------------------------------

LEVELS = [[9], [9] * 4, [9, 12, 10, 9]]


@pytest.mark.parametrize("lengths", LEVELS, ids=str)
def test_a_step_reads_each_weight_once_in_one_product(
    small: Callable[..., Transformer], lengths: Sequence[int]
) -> None:
    model = small()
    ops = watch_a_step(model, lengths)
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and name != "tok_embeddings.weight":
            assert readers(ops, weight) in (["mm"], ["addmm"]), name
    # Of the embedding, rows are picked: the operation that reads it makes those and no more.
    assert [op.made[0].numel() for op in ops if op.name == "embedding"] == [len(lengths) * model.args.dim]


@needs_packing
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bf16)], ids=str)
@pytest.mark.parametrize("lengths", LEVELS, ids=str)
def test_a_packed_step_makes_each_product_once_and_one_for_those_with_the_same_input(
    small: Callable[..., Transformer], pack_all: Callable[[nn.Module], Any], lengths: Sequence[int], dtype: torch.dtype
) -> None:
    model = pack_all(small().to(dtype))
    products = products_of(model)
    groups = [sorted(len(w) for w in product.weights) for product in products]
    one_layer = [[32, 32, 64], [64], [192, 192], [64]]  # wq wk wv, wo, w1 w3, w2
    assert sorted(groups) == sorted([*one_layer * 2, [300]])
    ops = watch_a_step(model, lengths)
    for product in products:
        assert readers(ops, product.packed) == ["_linear_pointwise"]
    for name, weight in model.named_parameters():  # the weights themselves are left alone
        if weight.dim() == 2 and name != "tok_embeddings.weight":
            assert readers(ops, weight) == [], name


# --- Memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_makes_as_little_far_along_as_at_the_beginning(
    small: Callable[..., Transformer], pack_all: Callable[[nn.Module], Any], kind: str
) -> None:
    model = made_of(kind, small(), pack_all)
    args = model.args
    early, late = ([t.nbytes for op in watch_a_step(model, [n]) for t in op.made] for n in (10, 400))
    assert early == late
    widest = 4 * max(args.vocab_size, args.hidden_dim)  # of one row, in fp32
    if kind == "packed":  # rows are filled up, and w1 and w3 come together
        widest = FULL_ROWS * 4 * max(args.vocab_size, 2 * args.hidden_dim)
    assert max(late) <= widest
    # So nothing of the size of a weight or of a layer's cache was made.
    assert widest < min(p.nbytes for p in model.parameters() if p.dim() == 2)
    assert widest < KVCache.for_model(model, 1, 10).layers[0].keys.nbytes * 10


def test_a_step_of_a_batch_makes_as_little_far_along_as_at_the_beginning(small: Callable[..., Transformer]) -> None:
    model = small()
    early, late = ([t.nbytes for op in watch_a_step(model, [n] * 4) for t in op.made] for n in (10, 400))
    assert early == late


@pytest.mark.parametrize("lengths", [(1,), (1, 0.75)], ids=["one row", "ragged rows"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prefill_takes_memory_in_proportion_to_its_length(
    small: Callable[..., Transformer],
    pack_all: Callable[[nn.Module], Any],
    kind: str,
    lengths: Sequence[float],
) -> None:
    model = made_of(kind, small(), pack_all)
    once, twice = (watch_a_prefill(model, [int(T * share) for share in lengths]) for T in (512, 1024))
    for ops, T in ((once, 512), (twice, 1024)):  # nothing holds a number for each pair of tokens, for any head
        assert max(t.numel() for op in ops for t in op.made) < len(lengths) * T * T
    once_bytes, twice_bytes = (sum(t.nbytes for op in ops for t in op.made) for ops in (once, twice))
    assert twice_bytes <= 2.1 * once_bytes


def test_a_prefill_makes_the_logits_of_last_tokens_only(small: Callable[..., Transformer]) -> None:
    ops = watch_a_prefill(small(), [20, 30])
    with_logits = [t.numel() for op in ops for t in op.made if t.shape[-1:] == (300,)]
    assert set(with_logits) == {2 * 300}


# --- Attention looks at filled slots only ----------------------------------------------------------------------------


@pytest.fixture
def key_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys every call of attention is given, from here on."""
    seen: list[int] = []
    attend = F.scaled_dot_product_attention

    def counted(q: torch.Tensor, k: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(k.shape[2])
        return attend(q, k, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    return seen


@pytest.mark.parametrize("lengths", [[5], [5, 5], [3, 8, 5]], ids=str)
@torch.no_grad()
def test_attention_is_given_the_filled_slots_of_the_longest_row_and_no_others(
    small: Callable[..., Transformer], key_lengths: list[int], lengths: Sequence[int]
) -> None:
    loop = decode(small(n_layers=1), [Row([7] * n, 200) for n in lengths], greedily, ())
    for _ in range(12):
        next(loop)
    assert key_lengths == [max(lengths), *range(max(lengths) + 1, max(lengths) + 12)]


@torch.no_grad()
def test_when_the_longest_row_ends_attention_looks_at_less(
    small: Callable[..., Transformer], key_lengths: list[int]
) -> None:
    for _ in decode(small(n_layers=1), [Row([7] * 4, 8), Row([7] * 40, 3)], greedily, ()):
        pass
    assert key_lengths == [40, 41, 42, 7, 8, 9, 10, 11]


@torch.no_grad()
def test_heads_of_a_group_share_their_keys_without_a_copy(
    small: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values reach attention as views of the cache, with as many heads as it holds."""
    model = small(n_kv_heads=1)
    given: list[tuple[int, ...]] = []
    homes: list[int] = []
    attend = F.scaled_dot_product_attention

    def looked_at(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        given.append((q.shape[1], k.shape[1], v.shape[1]))
        homes.extend(map(memory, (k, v)))
        return attend(q, k, v, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", looked_at)
    cache = KVCache.for_model(model, 1, 40)
    model(torch.tensor([[1, 2, 3]]), 0, cache)
    model(torch.tensor([[4]]), 3, cache)
    assert given == [(4, 1, 1)] * 2 + [(1, 1, 1)] * 2
    held = {memory(t) for layer in cache.layers for t in (layer.keys, layer.values)}
    assert set(homes) == held


# --- Finished rows leave the batch -----------------------------------------------------------------------------------

PROMPTS = [[1, 20, 21, 22, 23, 24, 25], [1, 29], [1, 30, 7, 31]]
V = 40  # of the model that continues them: few, so that tokens come again and penalties matter
CHOICES = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=0.9, top_p=0.95),
    "greedy with penalties": SamplingParams(0, repetition_penalty=1.3, frequency_penalty=1.0, presence_penalty=0.5),
    "sampled with penalties": SamplingParams(1.0, 0.95, repetition_penalty=1.3, frequency_penalty=1.0),
}


@pytest.fixture(scope="module")
def sayer() -> Transformer:
    """A random model whose logits reach about 10, so that rows say different things and greedy runs do not stick."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        args = ModelArgs(
            dim=48, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=V, multiple_of=16, max_seq_len=128
        )  # fmt: skip
        model = Transformer(args)
        with torch.no_grad():
            model.output.weight.mul_(6)
    return model.eval()


@torch.no_grad()
def run(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    seeds: Sequence[int],
    max_new: int | Sequence[int] = 16,
    stop_ids: Sequence[int] = (),
    between: Callable[[Sequence[Row], int], None] = lambda rows, n: None,
    step: Step | None = None,
) -> tuple[list[Row], list[int]]:
    """The rows, decoded together, and how many rows each forward was given. between: called after every token."""
    limits = [max_new] * len(prompts) if isinstance(max_new, int) else max_new
    rows = [Row(list(prompt), limit) for prompt, limit in zip(prompts, limits)]
    sampler = Sampler(params, prompts, max(limits), model.args.vocab_size, seeds)
    widths: list[int] = []
    hook = model.norm.register_forward_hook(lambda _, __, h: widths.append(len(h)))
    try:
        loop = decode(model, rows, sampler, set(stop_ids), logprobs=True, step=step)
        for n, _ in enumerate(loop, 1):
            between(rows, n)
    finally:
        hook.remove()
    return rows, widths


def alone(model: Transformer, prompts: Sequence[Sequence[int]], params: SamplingParams, **more: Any) -> list[Row]:
    """Each prompt in a run of its own; prompt i has the seed 50 + i."""
    return [run(model, [prompt], params, [50 + i], **more)[0][0] for i, prompt in enumerate(prompts)]


def widths_of(steps: Sequence[int]) -> list[int]:
    """Rows in each forward if row i takes steps[i] choices: all in the prefill, then those that go on."""
    return [len(steps)] + [sum(n > k for n in steps) for k in range(1, max(steps))]


def parting(free: Sequence[Row]) -> tuple[tuple[int, ...], list[int]]:
    """Two ids at which free runs would end after different numbers of choices, and those numbers."""
    for stops in itertools.combinations(sorted({t for row in free for t in row.tokens}), 2):
        steps = [next((n for n, t in enumerate(row.tokens, 1) if t in stops), len(row.tokens)) for row in free]
        if len(set(steps)) == len(free) and min(steps) > 1:
            return stops, steps
    raise AssertionError("no two ids end these runs at different steps")


def check_same(found: Sequence[Row], expected: Sequence[Row]) -> None:
    for one, other in zip(found, expected):
        assert (one.tokens, one.finish_reason) == (other.tokens, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=LOGPROB_TOLERANCE)


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_that_meet_a_stop_id_leave_in_any_order_and_the_others_do_not_notice(
    sayer: Transformer, choice: str
) -> None:
    params = CHOICES[choice]
    stop_ids, steps = parting(alone(sayer, PROMPTS, params))
    single = alone(sayer, PROMPTS, params, stop_ids=stop_ids)
    for order in itertools.permutations(range(3)):
        rows, widths = run(
            sayer, [PROMPTS[i] for i in order], params, [50 + i for i in order], stop_ids=stop_ids
        )  # fmt: skip
        check_same(rows, [single[i] for i in order])
        assert widths == widths_of([steps[i] for i in order])


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("limits", [(1, 4, 9), (9, 1, 4), (4, 9, 1), (5, 5, 2), (2, 5, 5), (1, 1, 6)], ids=str)
def test_rows_that_reach_their_length_leave_and_the_others_do_not_notice(
    sayer: Transformer, choice: str, limits: tuple[int, ...]
) -> None:
    rows, widths = run(sayer, PROMPTS, CHOICES[choice], [50, 51, 52], limits)
    single = alone(sayer, PROMPTS, CHOICES[choice])
    for row, other, limit in zip(rows, single, limits):
        assert (row.tokens, row.finish_reason) == (other.tokens[:limit], "length")
        assert row.logprobs == pytest.approx(other.logprobs[:limit], abs=LOGPROB_TOLERANCE)
    assert widths == widths_of(limits)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_row_that_its_reader_ends_between_steps_leaves_as_well(sayer: Transformer, choice: str) -> None:
    ends = {4: 0, 7: 2}  # after so many tokens: this row

    def reader(rows: Sequence[Row], n: int) -> None:
        if n in ends:
            rows[ends[n]].finish_reason = "stop"

    rows, widths = run(sayer, PROMPTS, CHOICES[choice], [50, 51, 52], 12, between=reader)
    single = alone(sayer, PROMPTS, CHOICES[choice], max_new=12)
    assert [row.tokens for row in rows] == [single[0].tokens[:4], single[1].tokens, single[2].tokens[:7]]
    assert [row.finish_reason for row in rows] == ["stop", "length", "stop"]
    assert widths == widths_of([4, 12, 7])


def test_a_reader_that_ends_all_rows_ends_the_loop(sayer: Transformer) -> None:
    def reader(rows: Sequence[Row], n: int) -> None:
        for row in rows if n == 2 else ():
            row.finish_reason = "stop"

    rows, widths = run(sayer, PROMPTS, CHOICES["greedy"], [0, 0, 0], between=reader)
    assert [len(row.tokens) for row in rows] == [2, 2, 2]
    assert widths == [3, 3]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("limits", [(0, 6, 3), (6, 0, 0), (3, 6, 0)], ids=str)
def test_a_row_without_room_for_a_token_is_beside_the_others_without_a_trace(
    sayer: Transformer, choice: str, limits: tuple[int, ...]
) -> None:
    rows, widths = run(sayer, PROMPTS, CHOICES[choice], [50, 51, 52], limits)
    single = alone(sayer, PROMPTS, CHOICES[choice], max_new=6)
    assert [row.tokens for row in rows] == [row.tokens[:limit] for row, limit in zip(single, limits)]
    assert all(row.finish_reason == "length" for row in rows)
    assert widths == widths_of(limits)


@pytest.mark.parametrize("kind", KINDS)
def test_no_room_for_any_token_is_an_answer(
    sayer: Transformer, pack_all: Callable[[nn.Module], Any], kind: str
) -> None:
    model = made_of(kind, copy.deepcopy(sayer), pack_all)
    rows, widths = run(model, PROMPTS, CHOICES["greedy"], [0, 0, 0], 0)
    assert [(row.tokens, row.finish_reason) for row in rows] == [([], "length")] * 3
    assert widths == [3]


@st.composite
def endings(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """Where each row of a batch stands, and which rows end before each step."""
    at = draw(st.lists(st.integers(1, 8), min_size=1, max_size=7))
    order = draw(st.permutations(range(len(at))))
    cuts = sorted(draw(st.lists(st.integers(0, len(at)), max_size=4)))
    return at, [list(order[a:b]) for a, b in zip([0, *cuts], cuts)]


@settings(deadline=None, max_examples=200)
@given(case=endings())
def test_after_closing_ranks_every_slot_holds_its_row_and_every_unfinished_row_has_one(
    case: tuple[list[int], list[list[int]]],
) -> None:
    at, rounds = case
    n = len(at)
    cache = KVCache(2, n, 9, 2, 4)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
    kept = [[t.clone() for layer in cache.layers for t in (layer.keys[r], layer.values[r])] for r in range(n)]
    rows = [Row([1], 9) for _ in at]
    which, place = list(range(n)), list(at)
    for ended in rounds:
        for r in ended:
            rows[r].finish_reason = "stop"
        keep = close_ranks(rows, which, place, cache)
        which, place = [which[s] for s in keep], [place[s] for s in keep]
        assert sorted(which) == [r for r, row in enumerate(rows) if row.finish_reason is None]
        assert place == [at[r] for r in which]
        for slot, r in enumerate(which):
            held = [t for layer in cache.window(len(which), 9) for t in (layer.keys[slot], layer.values[slot])]
            assert all(torch.equal(a[:, : at[r]], b[:, : at[r]]) for a, b in zip(held, kept[r]))


# --- A step is a function of tensors alone ---------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's code for the CPU is compiled with g++")
def test_the_compiled_demo_tells_the_same_story_from_one_graph(fresh_compiler: None) -> None:
    plain, compiled = (Llama.build(demo_dir(), device="cpu", compile=flag) for flag in (False, True))
    assert compiled._step is not None and plain._step is None
    ask = dict(max_gen_len=24, stop_ids=[])
    counters = torch._dynamo.utils.counters
    counters.clear()
    expected = plain.text_completion(["Once upon a time"], 0, **ask)
    assert compiled.text_completion(["Once upon a time"], 0, **ask) == expected
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert compiled.text_completion(["Once upon a time"], 0, **ask) == expected
        for options in (dict(temperature=0.8, seed=3), dict(temperature=0.8, seed=4, frequency_penalty=0.5)):
            found = compiled.text_completion(["Once upon a time"], **options, **ask)
            assert found == plain.text_completion(["Once upon a time"], **options, **ask)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_step_for_the_compiler_takes_few_shapes_and_says_the_same(sayer: Transformer, choice: str) -> None:
    shapes = set()

    def step(model: Any, tokens: Any, positions: Any, mask: Any, window: Any) -> torch.Tensor:
        shapes.add((tokens.shape, positions.shape, mask.shape, *(layer.keys.shape for layer in window)))
        return decode_step(model, tokens, positions, mask, window)

    limits = [30, 3, 12]
    rows, widths = run(sayer, PROMPTS, CHOICES[choice], [50, 51, 52], limits, step=step)
    check_same(rows, run(sayer, PROMPTS, CHOICES[choice], [50, 51, 52], limits)[0])
    assert len(shapes) == 1 and set(widths) == {3}


def test_a_step_for_the_compiler_reads_at_most_twice_what_is_filled_beyond_the_smallest_window(
    small: Callable[..., Transformer],
) -> None:
    ends = []

    def step(model: Any, tokens: Any, positions: Any, mask: Any, window: Any) -> torch.Tensor:
        ends.append((int(positions.max()), window[0].keys.shape[2]))
        return decode_step(model, tokens, positions, mask, window)

    run(small(n_layers=1), [[7] * 120], CHOICES["greedy"], [0], 150, step=step)
    assert [end for at, end in ends] == [128 if at < 128 else 256 if at < 256 else 512 for at, _ in ends]
    assert {end for _, end in ends} == {128, 256, 512}  # few shapes, whatever a request's length


def test_with_a_step_for_the_compiler_a_full_row_may_stand_beside_one_that_goes_on(sayer: Transformer) -> None:
    """A prompt as long as max_seq_len gets no token; the slot it is put off to must be one that exists."""
    prompts = [[5] * sayer.args.max_seq_len, [1, 9]]
    rows, _ = run(sayer, prompts, CHOICES["greedy"], [0, 0], [0, 5], step=decode_step)
    assert [row.tokens for row in rows] == [[], alone(sayer, prompts[1:], CHOICES["greedy"], max_new=5)[0].tokens]


def test_the_compiler_makes_one_graph_for_each_window(sayer: Transformer, fresh_compiler: None) -> None:
    """Traced and guarded as for a GPU, without a code generator behind it."""
    step = torch.compile(decode_step, fullgraph=True, backend="eager")
    counters = torch._dynamo.utils.counters
    counters.clear()
    model = Transformer(dataclasses.replace(sayer.args, max_seq_len=300)).eval()
    model.load_state_dict(sayer.state_dict())

    @torch.no_grad()
    def told(step: Step | None) -> list[int]:
        rows = [Row([7] * 120, 180)]  # windows of 128, 256 and 300
        for _ in decode(model, rows, greedily, (), step=step):
            pass
        return rows[0].tokens

    assert told(step) == told(None)
    assert 2 <= counters["stats"]["unique_graphs"] <= 3  # from the second on, a graph may stand for several
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert told(step) == told(None)


def test_what_a_compiled_step_writes_to_is_known_to_stay_where_it_is(
    sayer: Transformer, fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else torch records no CUDA graph of it. Looked at where inductor would decide; no code is made."""
    seen: list[tuple[set[int], set[int]]] = []

    def looked_at(gm: torch.fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        given = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
        written = {
            given[node.args[0]]
            for node in gm.graph.nodes
            if node.op == "call_function" and "copy_" in str(node.target) and node.args[0] in given
        }
        seen.append((written, set(how["static_input_idxs"])))
        return make_boxed_func(gm.forward)

    real = torch.compile
    backend = functools.partial(compile_fx, inner_compile=looked_at)
    monkeypatch.setattr(torch, "compile", lambda f, mode, **options: real(f, backend=backend, **options))
    step = compiled_step()
    with torch.no_grad():
        for _ in decode(sayer, [Row([7] * 5, 6), Row([3], 6)], greedily, (), step=step):
            pass
    [(written, static)] = seen
    assert len(written) == 2 * sayer.args.n_layers  # keys and values of each layer
    assert written <= static


@torch.no_grad()
def test_a_step_recorded_once_can_be_replayed_on_the_same_buffers_for_later_positions(sayer: Transformer) -> None:
    """What a CUDA graph does: the same operations on the same memory, with other contents."""
    texts = torch.randint(V, (2, 20), generator=torch.Generator().manual_seed(5))
    expected = sayer(texts)  # each row in one pass, without a cache
    cache = KVCache.for_model(sayer, 2, 32)
    lengths = torch.tensor([7, 4])
    sayer(texts[:, :7], 0, cache)  # the second row is filled up; its own tokens will take those slots
    window = cache.window(2, 16)
    tokens, positions = torch.zeros(2, 1, dtype=torch.long), lengths[:, None].clone()
    mask = causal_mask(positions, 16)
    tokens.copy_(texts.gather(1, positions))
    recorded = make_fx(lambda *inputs: decode_step(sayer, *inputs, window))(tokens, positions, mask)
    for n in range(9):
        now = lengths[:, None] + n
        tokens.copy_(texts.gather(1, now))
        positions.copy_(now)
        mask.copy_(causal_mask(now, 16))
        found = recorded(tokens, positions, mask)
        for r in range(2):
            assert difference(found[r], expected[r, now[r, 0]]) <= FP32_TOLERANCE, f"row {r}, position {now[r, 0]}"


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
def test_sampling_recorded_once_can_be_replayed_on_other_logits(choice: str) -> None:
    params = CHOICES[choice]

    def choose(logits: torch.Tensor, prompt: torch.Tensor, counts: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        if params.penalizes:
            logits = penalize(logits, prompt, counts, params)
        return logits.argmax(-1) if params.greedy else draw(*distribution(logits, params), u)

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        g = torch.Generator().manual_seed(seed)
        logits = torch.randn(3, 50, generator=g) * 4
        seen, counts = torch.rand(3, 50, generator=g) < 0.2, torch.randint(3, (3, 50), generator=g).float()
        return logits, seen, counts, torch.rand(3, generator=g, dtype=torch.float64)

    recorded = make_fx(choose)(*inputs(0))
    for seed in range(1, 20):
        assert torch.equal(recorded(*inputs(seed)), choose(*inputs(seed)))


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("rows", [None, [2, 0]], ids=["all rows", "some rows"])
def test_a_step_and_its_sampling_look_at_no_value(sayer: Transformer, choice: str, rows: list[int] | None) -> None:
    """On a GPU, every look would wait until all that was launched is done."""
    n = 3 if rows is None else len(rows)
    cache = KVCache.for_model(sayer, 3, 32)
    sampler = Sampler(CHOICES[choice], PROMPTS, 8, V, [1, 2, 3])
    positions = torch.tensor([[7], [2], [4]])[:n]
    inputs = (torch.full((n, 1), 5), positions, causal_mask(positions, 16), cache.window(n, 16))
    with Watch() as watch:
        for _ in range(2):
            sampler(decode_step(sayer, *inputs), rows)
    assert not {op.name for op in watch.ops} & set(SYNCS)


@torch.no_grad()
@pytest.mark.parametrize("choice", CHOICES)
def test_a_step_and_its_sampling_run_where_there_are_no_values(choice: str) -> None:
    """On the meta device a look at a value raises, by whatever road."""
    with torch.device("meta"):
        model = Transformer(ModelArgs(dim=48, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=V, multiple_of=16))
        model.freqs_cis = model.freqs_cis.to("meta")
        positions = torch.zeros(3, 1, dtype=torch.long)
        inputs = (torch.zeros(3, 1, dtype=torch.long), positions, causal_mask(positions, 16))
    sampler = Sampler(CHOICES[choice], PROMPTS, 8, V, [1, 2, 3], "meta")
    cache = KVCache.for_model(model, 3, 32)
    for rows in (None, [2, 0]):
        logits = decode_step(model, *inputs, cache.window(3, 16))
        assert sampler(logits[: len(rows or PROMPTS)], rows).shape == (len(rows or PROMPTS),)


# --- Packed linears --------------------------------------------------------------------------------------------------


class Group(nn.Module):
    """Linears as they are in a block: two with the same input, and one by itself."""

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name, out in (("w1", 70), ("w3", 45), ("w2", 33)):
            linear = nn.Linear(40, out, bias=False)
            linear.weight = nn.Parameter(torch.randn(out, 40, generator=generator).to(dtype))
            setattr(self, name, linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.w1(x), self.w3(x), self.w2(x)], -1)

    def by_torch(self, x: torch.Tensor) -> torch.Tensor:
        """By torch's own op, from the weights as they are now."""
        return torch.cat([F.linear(x, getattr(self, name).weight) for name in ("w1", "w3", "w2")], -1)

    def by_formula(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.double() @ getattr(self, name).weight.double().T for name in ("w1", "w3", "w2")], -1)


@pytest.fixture
def group(pack_all: Callable[[nn.Module], Any]) -> Group:
    group: Group = pack_all(Group())
    assert all(isinstance(linear, PackedLinear) for linear in group.children())
    assert len(products_of(group)) == 2
    return group


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def uses_packed(module: nn.Module) -> bool:
    with torch.no_grad(), Watch() as watch:
        module(numbers(1, 40))
    names = {op.name for op in watch.ops}
    assert names & {"_linear_pointwise", "mm", "addmm"}
    return not names & {"mm", "addmm"}


SHAPES = [(n, 40) for n in range(1, 10)] + [(1, 1, 40), (1, 3, 40), (2, 5, 40), (4, 1, 40), (40,)]


@needs_packing
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.no_grad()
def test_a_packed_product_is_the_product(group: Group, shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    found = group(x)
    assert difference(found, group.by_torch(x)) <= FP32_TOLERANCE
    assert difference(found, group.by_formula(x)) <= FP32_TOLERANCE


@needs_packing
@needs_bf16
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.no_grad()
def test_a_packed_product_in_bf16_is_off_by_its_own_rounding_only(
    pack_all: Callable[[nn.Module], Any], shape: tuple[int, ...]
) -> None:
    """Products of bf16 numbers are exact in fp32 and so, nearly, are their sums: what is left is one rounding to bf16,
    2^-8 of the value, and 1e-5 of the largest value for sums near zero.
    """
    group = pack_all(Group(torch.bfloat16))
    x = numbers(*shape).bfloat16()
    found, expected = group(x), group.by_formula(x)
    assert found.dtype == torch.bfloat16
    allowed = BF16 * expected.abs() + FP32_TOLERANCE * expected.abs().max()
    assert ((found.double() - expected).abs() <= allowed).all()


@needs_packing
@torch.no_grad()
def test_a_row_of_a_packed_product_does_not_depend_on_its_neighbours(group: Group) -> None:
    for n in range(1, 10):
        x = numbers(n, 40)
        first = group(x)
        others = x.clone()
        others[1:] = torch.nan
        assert torch.equal(group(others)[0], first[0])
        assert difference(first[:1], group(x[:1].clone())) <= FP32_TOLERANCE


@needs_packing
@torch.no_grad()
def test_no_rows_give_no_rows(group: Group) -> None:
    assert group(numbers(0, 40)).shape == group.by_torch(numbers(0, 40)).shape
    assert group(numbers(2, 0, 40)).shape == (2, 0, 70 + 45 + 33)


def replaced(linear: Any) -> None:
    linear.weight = nn.Parameter(numbers(*linear.weight.shape, seed=9))


def stepped(linear: Any) -> None:
    linear.weight.grad = torch.ones_like(linear.weight)
    torch.optim.SGD([linear.weight], lr=0.1).step()


def by_data_setter(linear: Any) -> None:
    linear.weight.data = numbers(*linear.weight.shape, seed=9)


def loaded(linear: Any, assign: bool) -> None:
    linear.load_state_dict({"weight": numbers(*linear.weight.shape, seed=9)}, assign=assign)


def in_inference_mode(linear: Any) -> None:
    with torch.inference_mode():
        linear.weight.mul_(2)


EDITS: dict[str, Callable[[Any], object]] = {
    "in place": lambda linear: linear.weight.mul_(2),
    "a row, through a view": lambda linear: linear.weight[0].zero_(),
    "by an index": lambda linear: linear.weight.__setitem__((slice(None), 3), 1.0),
    "through detach()": lambda linear: linear.weight.detach().mul_(2),
    "through state_dict()": lambda linear: linear.state_dict()["weight"].mul_(2),
    "through .data": lambda linear: linear.weight.data.mul_(2),
    ".data replaced": by_data_setter,
    "the Parameter replaced": replaced,
    "load_state_dict": lambda linear: loaded(linear, assign=False),
    "load_state_dict(assign=True)": lambda linear: loaded(linear, assign=True),
    "an optimizer's step": stepped,
    "in inference mode": in_inference_mode,
    "torch.nn.init": lambda linear: nn.init.normal_(linear.weight),
}


@needs_packing
@pytest.mark.parametrize("which", ["w1", "w3", "w2"])
@pytest.mark.parametrize("edit", EDITS)
@torch.no_grad()
def test_an_edited_weight_is_the_one_that_is_multiplied_by(group: Group, edit: str, which: str) -> None:
    x = numbers(2, 40)
    before = group(x)
    EDITS[edit](getattr(group, which))
    assert difference(group(x), group.by_torch(x)) <= FP32_TOLERANCE
    assert difference(group(x), before) > 1e-2  # the edit can be seen
    EDITS[edit](group.w3)  # and again, after the product was made anew
    assert difference(group(x), group.by_torch(x)) <= FP32_TOLERANCE


@needs_packing
@pytest.mark.parametrize("edit", ["in place", "a row, through a view", "load_state_dict", "an optimizer's step"])
@torch.no_grad()
def test_after_an_edit_in_place_the_product_is_a_packed_one_again(group: Group, edit: str) -> None:
    EDITS[edit](group.w1)
    assert uses_packed(group)


@needs_packing
@torch.no_grad()
def test_a_weight_held_since_before_packing_is_still_the_model_s(pack_all: Callable[[nn.Module], Any]) -> None:
    group = Group()
    held = group.w1.weight
    pack_all(group)
    held.zero_()
    assert not group.w1(numbers(1, 40)).any()


@needs_packing
@torch.no_grad()
def test_a_packed_model_can_be_cast_and_cast_back(group: Group) -> None:
    x = numbers(2, 40)
    group.to(torch.bfloat16)
    assert group(x.bfloat16()).dtype == torch.bfloat16
    assert torch.equal(group(x.bfloat16()), group.by_torch(x.bfloat16()))
    group.to(torch.float32)
    assert difference(group(x), group.by_torch(x)) <= FP32_TOLERANCE
    group.w1.weight.mul_(2)
    assert difference(group(x), group.by_torch(x)) <= FP32_TOLERANCE


def saved_and_loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@needs_packing
@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded])
@torch.no_grad()
def test_a_copy_of_a_packed_model_has_weights_of_its_own(group: Group, copied: Callable[[Any], Any]) -> None:
    x = numbers(2, 40)
    group(x)
    expected = group.by_torch(x)
    other = copied(group)
    assert difference(other(x), expected) <= FP32_TOLERANCE
    assert uses_packed(other)
    other.w1.weight.zero_()
    assert not other.w1(x).any()
    group.w3.weight.zero_()
    assert difference(group.w1(x), expected[:, :70]) <= FP32_TOLERANCE
    assert difference(other.w3(x), expected[:, 70:115]) <= FP32_TOLERANCE
    other.w2.weight.data.zero_()
    assert not other.w2(x).any()


NO_CHANGE: dict[str, Callable[[nn.Module], object]] = {
    "copied": copy.deepcopy,
    "saved": lambda module: torch.save(module, io.BytesIO()),
    "its state saved": lambda module: torch.save(module.state_dict(), io.BytesIO()),
    "printed": lambda module: repr([module, *module.parameters()]),
    "eval": lambda module: module.eval(),
    "requires_grad_": lambda module: module.requires_grad_(False),
    "to the dtype it has": lambda module: module.float(),
    "to the device it is on": lambda module: module.to("cpu"),
}


@needs_packing
@pytest.mark.parametrize("done", NO_CHANGE)
def test_what_changes_no_weight_takes_no_speed(group: Group, done: str) -> None:
    assert uses_packed(group)
    NO_CHANGE[done](group)
    assert uses_packed(group)


@needs_packing
def test_gradients_of_a_packed_model_are_those_of_the_plain_one(
    sayer: Transformer, pack_all: Callable[[nn.Module], Any]
) -> None:
    plain, fast = copy.deepcopy(sayer), pack_all(copy.deepcopy(sayer))
    tokens = torch.tensor([PROMPTS[0], PROMPTS[0][::-1]])
    for model in (plain, fast):
        F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    gradients = dict(plain.named_parameters())
    for name, p in fast.named_parameters():
        assert torch.equal(p.grad, gradients[name].grad), name


@needs_packing
def test_a_packed_model_has_the_parameters_of_the_plain_one(
    sayer: Transformer, pack_all: Callable[[nn.Module], Any]
) -> None:
    fast = pack_all(copy.deepcopy(sayer))
    assert list(fast.state_dict()) == list(sayer.state_dict())
    assert all(torch.equal(value, sayer.state_dict()[key]) for key, value in fast.state_dict().items())
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in sayer.named_parameters()]
    assert sum(p.numel() for p in fast.parameters()) == sayer.args.n_params
    assert all(p.requires_grad for p in fast.parameters())


@needs_packing
@torch.no_grad()
def test_linears_of_a_group_may_be_asked_in_any_order_and_any_number_of_times(group: Group) -> None:
    inputs = [numbers(2, 40, seed=s) for s in (1, 2)]
    asked = list(itertools.product(("w1", "w3"), inputs))
    for calls in itertools.product(asked, repeat=4):
        for name, x in calls:
            linear = getattr(group, name)
            assert difference(linear(x), F.linear(x, linear.weight)) <= FP32_TOLERANCE


@needs_packing
@pytest.mark.parametrize("order", list(itertools.product(("w1", "w3"), repeat=2)), ids=str)
@torch.no_grad()
def test_an_input_that_is_changed_between_two_linears_of_a_group_is_multiplied_as_it_is_now(
    group: Group, order: tuple[str, str]
) -> None:
    x = numbers(2, 40)
    for name in order:
        linear = getattr(group, name)
        assert difference(linear(x), F.linear(x, linear.weight)) <= FP32_TOLERANCE
        x.mul_(-3).add_(1)


@needs_packing
@pytest.mark.parametrize("order", list(itertools.product(("w1", "w3"), repeat=2)), ids=str)
@pytest.mark.parametrize("edit", EDITS)
@torch.no_grad()
def test_a_weight_that_is_changed_between_two_linears_of_a_group_is_multiplied_as_it_is_now(
    group: Group, edit: str, order: tuple[str, str]
) -> None:
    x = numbers(2, 40)
    first, second = (getattr(group, name) for name in order)
    first(x)
    EDITS[edit](second)
    assert difference(second(x), F.linear(x, second.weight)) <= FP32_TOLERANCE


@needs_packing
@torch.no_grad()
def test_a_result_that_is_changed_in_place_does_not_change_the_next_linear_s(group: Group) -> None:
    x = numbers(2, 40)
    expected = F.linear(x, group.w3.weight)
    group.w1(x).zero_()
    assert difference(group.w3(x), expected) <= FP32_TOLERANCE


@needs_packing
@torch.no_grad()
def test_after_a_group_has_answered_it_keeps_no_input_and_no_result_alive(group: Group) -> None:
    group(numbers(2, 40))
    assert all(product.last is None for product in products_of(group))


@needs_packing
def test_threads_that_share_a_packed_model_each_get_their_own_results(
    sayer: Transformer, pack_all: Callable[[nn.Module], Any]
) -> None:
    model = pack_all(copy.deepcopy(sayer))
    tokens = [torch.randint(V, (1, 6), generator=torch.Generator().manual_seed(s)) for s in range(4)]
    with torch.no_grad():
        expected = [sayer(one) for one in tokens]
    wrong: list[str] = []
    start = threading.Barrier(len(tokens))

    def work(i: int) -> None:
        start.wait()
        with torch.no_grad():  # of this thread
            for n in range(60):
                if difference(model(tokens[i]), expected[i]) > FP32_TOLERANCE:
                    wrong.append(f"thread {i}, pass {n}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # between any two instructions, if it can be
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(tokens))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


@needs_packing
@torch.no_grad()
def test_however_two_threads_interleave_they_share_no_result(group: Group) -> None:
    """The two calls of each thread, w1 then w3, in every order that keeps them so."""
    x, y = numbers(2, 40, seed=1), numbers(2, 40, seed=2)
    for mine in itertools.combinations(range(4), 2):
        names = {id(x): iter(("w1", "w3")), id(y): iter(("w1", "w3"))}
        for turn in range(4):
            given = x if turn in mine else y
            linear = getattr(group, next(names[id(given)]))
            assert difference(linear(given), F.linear(given, linear.weight)) <= FP32_TOLERANCE


@needs_packing
@torch.no_grad()
def test_a_model_may_be_made_and_packed_inside_inference_mode(pack_all: Callable[[nn.Module], Any]) -> None:
    with torch.inference_mode():
        group = pack_all(Group())
        x = numbers(2, 40)
        assert difference(group(x), group.by_torch(x)) <= FP32_TOLERANCE


# --- Llama.build -----------------------------------------------------------------------------------------------------


def write_large(folder: Path, dtype: torch.dtype) -> Path:
    """Random weights wide enough for packing, but for wo, with the demo's tokenizer."""
    shape = dict(dim=512, n_layers=1, n_heads=8, n_kv_heads=4, multiple_of=32, vocab_size=1536, max_seq_len=64)
    with torch.device("meta"):
        sizes = {key: value.shape for key, value in Transformer(ModelArgs(**shape)).state_dict().items()}
    generator = torch.Generator().manual_seed(2)
    weights = {
        key: (
            torch.randn(size, generator=generator) * (1 if key.startswith("tok") else 3 * size[1] ** -0.5)
            if len(size) == 2
            else 0.5 + torch.rand(size, generator=generator)
        ).to(dtype)
        for key, size in sizes.items()
    }
    folder.mkdir()
    torch.save(weights, folder / "consolidated.00.pth")
    (folder / "params.json").write_text(json.dumps(shape), encoding="utf-8")
    shutil.copy(demo_dir() / "tokenizer.model", folder)
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, Path]:
    folder = tmp_path_factory.mktemp("large")
    return {dtype: write_large(folder / str(dtype), dtype) for dtype in (torch.float32, torch.bfloat16)}


TEXTS = [[1, 700, 12, 900], [1, 33], [1, 1200, 1201, 5, 6, 7]]
PACKED_NAMES = {"attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"}


def packed_names(model: nn.Module) -> set[str]:
    return {name.removeprefix("layers.0.") for name, m in model.named_modules() if isinstance(m, PackedLinear)}


@needs_packing
def test_build_packs_the_large_linears_and_only_those(large: dict[torch.dtype, Path], tmp_path: Path) -> None:
    model = Llama.build(large[torch.float32], device="cpu").model
    assert packed_names(model) == PACKED_NAMES | {"output"}
    assert type(model.layers[0].attention.wo) is nn.Linear  # 512 x 512 by itself is too little
    toy = Llama.build(make_checkpoint(tmp_path / "toy"), device="cpu").model
    assert packed_names(toy) == packed_names(Llama.build(demo_dir(), device="cpu").model) == set()


@needs_packing
def test_in_fp32_packed_and_plain_generate_the_same(large: dict[torch.dtype, Path]) -> None:
    llama = Llama.build(large[torch.float32], device="cpu")
    plain = Llama(Transformer.from_checkpoint(large[torch.float32]), llama.tokenizer)
    assert packed_names(llama.model) and not packed_names(plain.model)
    tokens, logprobs = llama.generate(TEXTS, 12, 0, logprobs=True, stop_ids=[])
    expected, expected_logprobs = plain.generate(TEXTS, 12, 0, logprobs=True, stop_ids=[])
    assert tokens == expected
    for found, wanted in zip(logprobs, expected_logprobs):
        assert found == pytest.approx(wanted, abs=LOGPROB_TOLERANCE)
    for one, row in zip(tokens, TEXTS):
        assert llama.generate([row], 12, 0, stop_ids=[])[0] == [one]


@needs_packing
@needs_bf16
@torch.no_grad()
def test_in_bf16_packed_generates_what_the_plain_model_thinks_best_up_to_rounding(
    large: dict[torch.dtype, Path],
) -> None:
    """As in test_parity.py, eight bf16 roundings of the largest logit are allowed between two right orders of sums."""
    llama = Llama.build(large[torch.bfloat16], device="cpu")
    assert packed_names(llama.model) == PACKED_NAMES | {"output"}
    plain = Transformer.from_checkpoint(large[torch.bfloat16])
    tokens, _ = llama.generate(TEXTS, 12, 0, echo=True, stop_ids=[])
    for row, prompt in zip(tokens, TEXTS):
        logits = plain(torch.tensor([row]))[0]
        allowed = 8 * BF16 * logits.abs().max()
        assert (llama.model(torch.tensor([row]))[0] - logits).abs().max() <= allowed
        chosen = logits[:-1].gather(-1, torch.tensor(row[1:])[:, None])[:, 0]
        behind = (logits[:-1].amax(-1) - chosen)[len(prompt) - 1 :]
        assert behind.max() <= 2 * allowed


@needs_packing
def test_weights_of_a_built_model_are_the_file_s_and_can_be_edited(large: dict[torch.dtype, Path]) -> None:
    folder = large[torch.float32]
    before = (folder / "consolidated.00.pth").read_bytes()
    held = torch.load(folder / "consolidated.00.pth")
    llama = Llama.build(folder, device="cpu")
    for name, p in llama.model.named_parameters():
        assert torch.equal(p, held[name]), name
    first = llama.generate([[1, 5]], 6, 0, stop_ids=[])[0]
    with torch.no_grad():
        llama.model.output.weight[7:].zero_()
        assert not llama.model(torch.tensor([[1, 5]]))[..., 7:].any()
    assert llama.generate([[1, 5]], 6, 0, stop_ids=[])[0] != first
    assert (folder / "consolidated.00.pth").read_bytes() == before
    assert Llama.build(folder, device="cpu").generate([[1, 5]], 6, 0, stop_ids=[])[0] == first


@needs_packing
def test_a_packed_model_with_no_room_for_tokens_answers_with_none(large: dict[torch.dtype, Path]) -> None:
    llama = Llama.build(large[torch.float32], device="cpu")
    assert llama.generate([[1, 5]], 0) == ([[]], None)
    assert llama.generate([[1] * 64, [1] * 64]) == ([[], []], None)
    assert (
        llama.generate([[1] * 64, [1, 5]], 3, 0, stop_ids=[])[0][1] == llama.generate([[1, 5]], 3, 0, stop_ids=[])[0][0]
    )


@needs_packing
def test_build_inside_inference_mode_packs_as_well(large: dict[torch.dtype, Path]) -> None:
    expected = Llama.build(large[torch.float32], device="cpu").generate([[1, 5]], 4, 0)
    with torch.inference_mode():
        llama = Llama.build(large[torch.float32], device="cpu")
        assert packed_names(llama.model)
        assert llama.generate([[1, 5]], 4, 0) == expected
    assert llama.generate([[1, 5]], 4, 0) == expected


@needs_packing
def test_torchs_default_device_does_not_reach_packed_linears(large: dict[torch.dtype, Path]) -> None:
    expected = Llama.build(large[torch.float32], device="cpu").generate([[1, 5], [1, 7, 8]], 4, 0)
    with torch.device("meta"):
        llama = Llama.build(large[torch.float32], device="cpu")
        assert packed_names(llama.model)
        assert llama.generate([[1, 5], [1, 7, 8]], 4, 0) == expected


def test_a_model_for_the_compiler_or_of_a_dtype_without_a_kernel_stays_plain(large: dict[torch.dtype, Path]) -> None:
    for options in (dict(compile=True), dict(dtype="float16")):
        assert not packed_names(Llama.build(large[torch.float32], device="cpu", **options).model)


@needs_packing
def test_where_memory_is_short_the_model_stays_plain(
    large: dict[torch.dtype, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Llama.build(large[torch.float32], device="cpu").generate([[1, 5]], 4, 0)
    monkeypatch.setattr(generation_module, "fits", lambda model: False)
    llama = Llama.build(large[torch.float32], device="cpu")
    assert packed_names(llama.model) == set()
    assert llama.generate([[1, 5]], 4, 0) == expected


def test_a_packed_copy_has_to_fit_beside_what_is_in_use(
    small: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small()
    kilobytes = sum(p.nbytes for name, p in model.named_parameters() if p.dim() == 2 and "tok" not in name) / 1024
    for spare, fits in ((2.0, True), (1.0, False), (0.1, False)):
        meminfo = f"MemTotal: 99999999 kB\nMemAvailable:   {int(kilobytes * spare)} kB\nCached: 5 kB\n"
        monkeypatch.setattr(Path, "read_text", lambda self, meminfo=meminfo: meminfo)
        assert packed.fits(model) is fits
    monkeypatch.setattr(Path, "read_text", lambda self: "")  # a system that does not say
    assert packed.fits(model)


def test_packed_copies_of_all_ranks_of_a_machine_have_to_fit(
    small: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small()
    needed = sum(p.nbytes for name, p in model.named_parameters() if p.dim() == 2 and "tok" not in name)
    monkeypatch.setattr("minillama.memory.free_memory", lambda device: 2 * needed)
    assert packed.fits(model)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert not packed.fits(model)


@needs_packing
def test_a_packed_model_that_nobody_holds_is_gone_at_once(large: dict[torch.dtype, Path]) -> None:
    """Not when Python next looks for cycles: until then a second model might find no room."""
    llama = Llama.build(large[torch.float32], device="cpu")
    llama.generate([[1, 5]], 4, 0)
    assert packed_names(llama.model)
    rests = [weakref.ref(llama.model), *(weakref.ref(p) for p in llama.model.parameters())]
    rests += [weakref.ref(m.shared) for m in llama.model.modules() if isinstance(m, packed.PackedLinear)]
    gc.collect()
    gc.disable()
    try:
        del llama
        assert [rest() for rest in rests] == [None] * len(rests)
    finally:
        gc.enable()


@needs_packing
def test_two_ranks_of_packed_linears_give_one_process_s_logits(large: dict[torch.dtype, Path]) -> None:
    folder = large[torch.float32]
    plain = Transformer.from_checkpoint(folder)
    rows = [[1, 700, 12, 900, 4, 5, 6, 7], [1, 33, 9]]
    with torch.no_grad():
        expected = level(plain, rows, [5, 1, 2])
    for found in run_ranks(2, fast_in_ranks, str(folder), rows, [5, 1, 2], [None]):
        assert found["none"]["kinds"] == ["PackedLinear"]
        assert found["none"]["all_reduce"] == 2 * 3  # two a layer, in each of three forwards
        for one, other in zip(found["none"]["logits"], expected):
            assert difference(one, other) <= FP32_TOLERANCE


# --- Large pages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0"), ("", "")])
def test_importing_asks_for_large_pages_where_nobody_has_said_anything(before: str | None, after: str) -> None:
    env = {key: value for key, value in os.environ.items() if key != "THP_MEM_ALLOC_ENABLE"}
    env |= {} if before is None else {"THP_MEM_ALLOC_ENABLE": before}
    program = "import os, sys, minillama; print(os.environ['THP_MEM_ALLOC_ENABLE'], 'torch' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{after} False\n"


def test_every_weight_of_a_copied_model_is_its_own() -> None:
    """A copy that is answered from another weight's memory would depend on where objects happen to lie."""
    shape = dict(dim=64, n_layers=4, n_heads=4, n_kv_heads=2, vocab_size=96, multiple_of=32, max_seq_len=16)
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "WORTH_PACKING", 0)
        model = packed.pack(Transformer(ModelArgs(**shape)))
    for _ in range(8):
        again = dict(copy.deepcopy(model).named_parameters())
        assert len({weight.data_ptr() for weight in again.values()}) == len(again)
        for name, weight in model.named_parameters():
            assert torch.equal(again[name], weight), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_packed_model_in_a_dtype_that_is_not_packed_can_be_copied(dtype: torch.dtype) -> None:
    linear = nn.Linear(1024, 1024, bias=False)
    model = packed.pack(nn.Sequential(linear)).to(dtype)
    x = torch.randn(3, 1024, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(model)(x), nn.functional.linear(x, model[0].weight))
