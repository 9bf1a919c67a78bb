"""Chapter 09's slots: what a learner's own functions cut and compute on ranks, in `parts=` and `--mine`.

The right pieces here are other code than the package's and the worked answers'. Tolerance of logits: 1e-5 of the
largest, against one process that runs on the package's: sums are taken in another order, which moves fp32 by about 1e-6
of it. Weights are cut and not computed, so they are compared bit for bit. Ranks are forked, which saves their imports:
one launch answers for many cases.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from fairscale.nn.model_parallel import initialize as mpu
from ranks import run_ranks
from test_real_checkpoints import expected_share, write
from toys import make_checkpoint
from watching import difference

import minillama
from minillama import Llama, Transformer, launch, packed, parallel
from minillama.checkpoint import look_over
from minillama.convert import rewrite
from minillama.feed_forward import FeedForward
from minillama.quantize import QuantizedLinear
from minillama.teach import own
from minillama.teach.exercise import exercises
from minillama.teach.own import milestones, parts_of, promote_mine, whole_source
from minillama.teach.ranks import OwnEmbedding
from minillama.teach.slots import LOOP, RANKS, SLOTS, PartError
from minillama.teach.swap import swapped
from minillama.transformer import TransformerBlock

TOLERANCE = 1e-5
HANG = 900  # seconds: no limit on speed, only an end to waiting for ranks that hang; beside other work they are slow
Function = Callable[..., Any]
Parts = dict[str, Function]
TOKENS = torch.tensor([[1, 5, 9, 300, 17, 2, 44, 8], [1, 399, 0, 12, 80, 81, 82, 7]])
PROMPTS = ["once upon a time", "every day the boats and the birds"]
LAYERS = 2
WORKED: Parts = own.worked(ranks=True)
OF_RANKS: Parts = {name: WORKED[name] for name in RANKS}


# --- Right pieces, written in other ways ------------------------------------------------------------------------------


def column_shard(w: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    size = len(w) // ranks
    return w.narrow(0, rank * size, size)


def parallel_swiglu(x: torch.Tensor, shards: Iterable[Any]) -> torch.Tensor:
    parts = []
    for w1, w2, w3 in shards:
        gate, value = (torch.einsum("...d,fd->...f", x, w) for w in (w1, w3))
        parts.append(torch.einsum("...f,df->...d", gate * torch.sigmoid(gate) * value, w2))
    return torch.stack(parts).sum(0)


def vocab_lookup(tokens: torch.Tensor, part: torch.Tensor, first: int) -> torch.Tensor:
    others = (tokens < first) | (tokens >= first + len(part))
    return F.embedding((tokens - first).masked_fill(others, 0), part).masked_fill(others[..., None], 0)


def my_kv_heads(rank: int, ranks: int, n_kv_heads: int) -> Any:
    first = rank * n_kv_heads // ranks
    return np.arange(first, first + max(1, n_kv_heads // ranks))


def by_index(w: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return w[torch.arange(len(w)).view(ranks, -1)[rank]]


def in_place(x: torch.Tensor, shards: Iterable[Any]) -> torch.Tensor:
    total = torch.zeros(x.shape, dtype=x.dtype)
    for w1, w2, w3 in shards:
        total += F.linear(F.silu(F.linear(x, w1)).mul_(F.linear(x, w3)), w2)
    return total


def one_hot(tokens: torch.Tensor, part: torch.Tensor, first: int) -> torch.Tensor:
    return (tokens[..., None] == torch.arange(first, first + len(part))).to(part.dtype) @ part


def as_they_come(rank: int, ranks: int, n_kv_heads: int) -> Iterator[int]:
    for head in range(n_kv_heads):
        if head * ranks // n_kv_heads == rank or rank * n_kv_heads // ranks == head:
            yield head


def by_product(w: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return torch.eye(len(w)).chunk(ranks)[rank] @ w


def by_split(w: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return torch.split(w, len(w) // ranks)[rank]


def of_a_view(x: torch.Tensor, shards: Iterable[Any]) -> torch.Tensor:
    """Transposed in memory, and a part of something larger."""
    found = parallel_swiglu(x, shards)
    return torch.stack([found.mT, found.mT])[0].mT


def as_a_range(rank: int, ranks: int, n_kv_heads: int) -> range:
    first = rank * n_kv_heads // ranks
    return range(n_kv_heads)[first : first + max(1, n_kv_heads // ranks)]


def as_a_tensor(rank: int, ranks: int, n_kv_heads: int) -> torch.Tensor:
    return torch.arange(n_kv_heads).repeat_interleave(max(1, ranks // n_kv_heads)).view(ranks, -1)[rank]


WAYS: dict[str, Parts] = {
    "worked": OF_RANKS,
    "another way": dict(zip(RANKS, (column_shard, parallel_swiglu, vocab_lookup, my_kv_heads))),
    "a third": dict(zip(RANKS, (by_index, in_place, one_hot, as_they_come))),
    "a fourth": dict(zip(RANKS, (by_product, of_a_view, vocab_lookup, as_a_range))),
    "a fifth": dict(zip(RANKS, (by_split, parallel_swiglu, one_hot, as_a_tensor))),
}
EACH: dict[str, Parts] = {f"{name} alone": {name: piece} for name, piece in WAYS["another way"].items()}
EACH |= {f"all but {name}": {k: v for k, v in OF_RANKS.items() if k != name} for name in RANKS}
BESIDE: dict[str, Parts] = {
    "with chapters 01 to 06": WORKED,
    "with those and 08": own.worked(loop=True, ranks=True),
    "with chapter 05": {name: WORKED[name] for name in ("swiglu", "parallel_swiglu")},
}


# --- Wrong ones, of the right shapes ----------------------------------------------------------------------------------


def other_rows(w: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return column_shard(w, (rank + 1) % ranks, ranks)


def first_neurons_doubled(x: torch.Tensor, shards: Iterable[Any]) -> torch.Tensor:
    size = torch.ones(len(next(iter(shards))[0]))
    size[:4] = 2
    parts = [F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3) * size, w2) for w1, w2, w3 in shards]
    return torch.stack(parts).sum(0)


def gate_and_value_swapped(x: torch.Tensor, shards: Iterable[Any]) -> torch.Tensor:
    return parallel_swiglu(x, [(w3, w2, w1) for w1, w2, w3 in shards])


def zeros_for_words(tokens: torch.Tensor, part: torch.Tensor, first: int) -> torch.Tensor:
    return torch.zeros(*tokens.shape, part.shape[1])


def nearest_word(tokens: torch.Tensor, part: torch.Tensor, first: int) -> torch.Tensor:
    return part[(tokens - first).clamp(0, len(part) - 1)]


def other_heads(rank: int, ranks: int, n_kv_heads: int) -> list[int]:
    return as_a_range((rank + 1) % ranks, ranks, n_kv_heads)  # type: ignore[return-value]


WRONG: dict[str, Parts] = {
    "other rows": {"column_shard": other_rows},
    "doubled": {"parallel_swiglu": first_neurons_doubled},
    "swapped": {"parallel_swiglu": gate_and_value_swapped},
    "zeros": {"vocab_lookup": zeros_for_words},
    "nearest": {"vocab_lookup": nearest_word},
    "other heads": {"my_kv_heads": other_heads},
}


# --- What ranks are asked ---------------------------------------------------------------------------------------------


def counted(parts: Parts, calls: Counter[str]) -> Parts:
    """`parts`, each of which is counted whenever it is called."""

    def counting(name: str, piece: Function) -> Function:
        @functools.wraps(piece)
        def call(*args: Any) -> Any:
            calls[name] += 1
            return piece(*args)

        return call

    return {name: counting(name, piece) for name, piece in parts.items()}


@torch.no_grad()
def asked(
    folder: str, parts: Parts | None, weights: bool = False, drawn: bool = False, **options: Any
) -> dict[str, Any]:
    """What a model that is built on `parts` computes and tells, here or on this rank, and what was called for it."""
    calls: Counter[str] = Counter()
    made = Llama.build(folder, device="cpu", parts=None if parts is None else counted(parts, calls), **options)
    found: dict[str, Any] = {"at build": dict(calls)}
    calls.clear()
    found["logits"] = made.model(TOKENS)
    found["a forward"] = dict(calls)
    rows = [made.tokenizer.encode(text, bos=True, eos=False) for text in PROMPTS]
    found["greedy"] = made.generate(rows, 6, temperature=0.0, stop_ids=())[0]
    if drawn:
        found["drawn"] = made.generate(rows, 6, temperature=0.9, seed=7, stop_ids=())[0]
    if weights:
        found["weights"] = {key: p.detach().clone() for key, p in made.model.named_parameters()}
    return found


def many_asked(folders: dict[str, str], cases: dict[str, Parts], few: Iterable[str]) -> dict[str, Any]:
    """`asked` of every case in one folder, and of a few in each, on this rank. Ranks that outnumber cores are slow."""
    return {
        name: {
            case: asked(path, parts, weights=True, drawn="pick" in parts)
            for case, parts in cases.items()
            if case in few or name == "2"
        }
        for name, path in folders.items()
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Eight query heads, so that eight ranks can share them. Names begin with the number of kv heads."""
    home = tmp_path_factory.mktemp("rank slots")
    shape = dict(dim=64, n_layers=LAYERS, n_heads=8, multiple_of=32)
    for kv_heads in (8, 2, 1):
        make_checkpoint(home / f"{kv_heads}", seed=4, n_kv_heads=kv_heads, **shape)
    rewrite(home / "2", home / "2, two files", "meta", mp=2)
    rewrite(home / "2", home / "2, Hugging Face's", "hf", shard_bytes=60_000)
    weights = torch.load(home / "2" / "consolidated.00.pth")
    write(home / "2, two files as Llama 3's", look_over(home / "2").args, weights, 2, embedding=0)
    shutil.copy(home / "2" / "tokenizer.model", home / "2, two files as Llama 3's")
    return {path.name: str(path) for path in sorted(home.iterdir())}


@pytest.fixture(scope="module")
def alone(folders: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What one process says that runs on the package's."""
    return {name: asked(path, None, drawn=True) for name, path in folders.items()}


@pytest.fixture(scope="module")
def on_ranks(folders: dict[str, str]) -> Callable[[int], list[dict[str, Any]]]:
    """`on_ranks(n)`: what each of n ranks says, by folder and case; one launch for each n."""

    @functools.cache
    def ask(ranks: int) -> list[dict[str, Any]]:
        few = ["another way"]
        cases = {2: WAYS | EACH | BESIDE, 4: WAYS, 8: {name: WAYS[name] for name in (*few, "a third")}}[ranks]
        return run_ranks(ranks, many_asked, folders, cases, few, method="fork", timeout=HANG)

    return ask


def check_same(found: dict[str, Any], alone: dict[str, Any], said: str) -> None:
    assert difference(found["logits"], alone["logits"]) <= TOLERANCE, said
    for name in {"greedy", "drawn"} & found.keys():
        assert found[name] == alone[name], f"{name}, {said}"


# --- They run, and make no difference where they should not -----------------------------------------------------------


def test_every_slot_is_tried_here() -> None:
    assert all(parts.keys() == RANKS.keys() for parts in WAYS.values())
    assert {name for parts in WRONG.values() for name in parts} == RANKS.keys()
    assert WORKED.keys() == (SLOTS | RANKS).keys() and RANKS.keys().isdisjoint(own.worked(loop=True))
    assert own.worked(loop=True, ranks=True).keys() == (SLOTS | LOOP | RANKS).keys()


@pytest.mark.parametrize("case", WAYS)
def test_every_other_way_is_right_to_its_checker(case: str) -> None:
    for name, piece in WAYS[case].items():
        if name != "my_kv_heads":  # that one asks for a list; a model takes whatever holds numbers
            assert exercises()[name](piece).ok is True, name


def test_the_requests_differ_and_end_late(alone: dict[str, dict[str, Any]]) -> None:
    for found in alone.values():
        assert found["logits"].abs().max() > 3
        assert len({str(row) for row in (*found["greedy"], *found["drawn"])}) == 4
    for same in ("2, two files", "2, two files as Llama 3's", "2, Hugging Face's"):
        assert torch.equal(alone[same]["logits"], alone["2"]["logits"])
    assert not torch.allclose(alone["1"]["logits"], alone["8"]["logits"])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_right_functions_give_one_process_s_logits_and_texts(
    ranks: int, on_ranks: Callable[[int], list[dict[str, Any]]], alone: dict[str, dict[str, Any]]
) -> None:
    """Any kv heads, any files, each function alone, all together, and those of other chapters beside them."""
    for rank, of_rank in enumerate(on_ranks(ranks)):
        assert of_rank.keys() == alone.keys()
        for name, cases in of_rank.items():
            for case, found in cases.items():
                check_same(found, alone[name], f"{name}, {case}, rank {rank}")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_holds_its_part_of_every_matrix_and_nothing_twice(
    ranks: int, on_ranks: Callable[[int], list[dict[str, Any]]], folders: dict[str, str]
) -> None:
    for name, path in folders.items():
        whole = Transformer.from_checkpoint(path)
        wanted = dict(whole.named_parameters())
        for rank, of_rank in enumerate(on_ranks(ranks)):
            for case, found in of_rank[name].items():
                held = found["weights"]
                assert held.keys() == wanted.keys()
                for key, weight in wanted.items():
                    share = expected_share(key, weight, whole.args, rank, ranks)
                    if key == "tok_embeddings.weight" and "vocab_lookup" in (WAYS | EACH | BESIDE)[case]:
                        share = weight.chunk(ranks, 0)[rank]  # whole vectors of some words
                    assert torch.equal(held[key], share), f"{key}, {name}, {case}, rank {rank}"
                    if weight.dim() == 2 and not ("wk" in key or "wv" in key):
                        assert held[key].nbytes * ranks == weight.nbytes
                    elif weight.dim() == 2:  # kv heads are never cut
                        assert held[key].nbytes * min(ranks, whole.args.n_kv_heads) == weight.nbytes


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_each_rank_calls_the_functions_as_often_as_there_is_work_for_them(
    ranks: int, on_ranks: Callable[[int], list[dict[str, Any]]]
) -> None:
    for of_rank in on_ranks(ranks):
        for cases in of_rank.values():
            for case in WAYS.keys() & cases.keys():
                # wq, wo, w1, w2, w3 of each layer, the head and the embedding; which heads of wk, wv is the other's.
                assert cases[case]["at build"] == {"column_shard": 5 * LAYERS + 2, "my_kv_heads": 2 * LAYERS}
                assert cases[case]["a forward"] == {"parallel_swiglu": LAYERS, "vocab_lookup": 1}
        if ranks == 2:
            cases = of_rank["2"]
            assert cases["column_shard alone"]["at build"] == {"column_shard": 7 * LAYERS + 2}
            assert cases["all but column_shard"]["at build"] == {"my_kv_heads": 2 * LAYERS}
            for case in BESIDE:
                calls = cases[case]["a forward"]
                assert calls["parallel_swiglu"] == LAYERS and "swiglu" not in calls  # it takes that one's place


def test_in_one_process_they_change_nothing_and_are_not_called(
    folders: dict[str, str], alone: dict[str, dict[str, Any]]
) -> None:
    for name, path in folders.items():
        for parts in (OF_RANKS, *(WRONG.values() if name == "2" else ())):
            found = asked(path, parts)
            assert torch.equal(found["logits"], alone[name]["logits"])
            assert found["greedy"] == alone[name]["greedy"]
            assert found["at build"] == found["a forward"] == {}
    beside = asked(folders["2"], BESIDE["with those and 08"], drawn=True)
    check_same(beside, alone["2"], "with chapters 01 to 08")
    assert beside["a forward"]["swiglu"] == LAYERS and beside["a forward"].keys() <= SLOTS.keys()
    made = Llama.build(folders["2"], device="cpu", parts=OF_RANKS).model
    assert type(made.tok_embeddings) is torch.nn.Embedding


@torch.enable_grad()
def gradients(folder: str, parts: Parts | None) -> dict[str, torch.Tensor]:
    model = Llama.build(folder, device="cpu", parts=parts).model
    F.cross_entropy(model(TOKENS)[0], TOKENS[1]).backward()
    return {key: p.grad for key, p in model.named_parameters() if p.grad is not None}


@torch.no_grad()
def swapped_into(folder: str) -> dict[str, torch.Tensor]:
    """Logits of a model of this rank's functions, with other pieces swapped in, one after another."""
    made = Llama.build(folder, device="cpu", parts=WORKED).model
    pieces: dict[str, dict[str, Any]] = {
        "right": {"swiglu": own.worked()["swiglu"]},
        "wrong": {"swiglu": lambda x, w1, w2, w3: torch.zeros_like(x)},
        "a class": {"FeedForward": Silent},
        "another": {"rotate": lambda x, freqs_cis: x},
        "a block": {"TransformerBlock": Skipped},
    }
    found = {}
    for name, piece in pieces.items():
        with swapped(**piece):
            found[name] = made(TOKENS)
    return found | {"after": made(TOKENS)}


class Silent(FeedForward):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


class Skipped(TransformerBlock):
    def forward(self, x: torch.Tensor, *others: Any) -> torch.Tensor:
        return x


def others_asked(folder: str) -> dict[str, Any]:
    """Other kinds of models, other weights and wrong functions, on this rank."""
    found: dict[str, Any] = {name: asked(folder, parts) for name, parts in WRONG.items()}
    found["swapped into"] = swapped_into(folder)
    swiglu = {name: WORKED[name] for name in ("column_shard", "my_kv_heads", "parallel_swiglu")}
    found["gradients"] = [gradients(folder, parts) for parts in (None, swiglu)]
    found["bf16"] = asked(folder, WORKED, dtype="bfloat16")
    found["bf16, the package's"] = asked(folder, None, dtype="bfloat16")
    for case, parts in (("int8, the package's", None), ("int8", OF_RANKS), ("int8, all", WORKED)):
        if torch.backends.mkldnn.is_available():
            found[case] = asked(folder, parts, quantize="int8")
    if torch.backends.mkldnn.is_available():
        made = Llama.build(folder, device="cpu", parts=OF_RANKS, quantize="int8").model
        found["int8 is quantized"] = any(isinstance(module, QuantizedLinear) for module in made.modules())
        found["int8 words"] = type(made.tok_embeddings) is OwnEmbedding
    packed.WORTH_PACKING = 0
    found["packed"] = asked(folder, OF_RANKS)
    made = Llama.build(folder, device="cpu", parts=OF_RANKS).model
    found["packed is packed"] = any(isinstance(module, packed.PackedLinear) for module in made.modules())
    return found


@pytest.fixture(scope="module")
def others(folders: dict[str, str]) -> list[dict[str, Any]]:
    return run_ranks(2, others_asked, folders["2"], method="fork", timeout=HANG)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_function_of_the_right_shapes_changes_the_logits(
    case: str, others: list[dict[str, Any]], alone: dict[str, dict[str, Any]]
) -> None:
    for found in others:
        assert difference(found[case]["logits"], alone["2"]["logits"]) > 1e-2
        assert found[case]["greedy"] == others[0][case]["greedy"]  # ranks stay together all the same


def test_what_is_swapped_in_goes_before_them(
    others: list[dict[str, Any]], alone: dict[str, dict[str, Any]], folders: dict[str, str]
) -> None:
    for found in others:
        logits = found["swapped into"]
        for name in ("right", "after"):
            assert difference(logits[name], alone["2"]["logits"]) <= TOLERANCE, name
        for name in ("wrong", "a class", "another", "a block"):
            assert difference(logits[name], alone["2"]["logits"]) > 1e-2, name
        assert difference(logits["a class"], logits["wrong"]) <= TOLERANCE


def test_gradients_go_through_the_block(others: list[dict[str, Any]]) -> None:
    """As through the package's, whose own are tested in test_launch.py: x comes from all ranks' neurons."""
    for found in others:
        ours, theirs = found["gradients"]
        assert theirs.keys() == ours.keys() and len(ours) == 9 * LAYERS + 3
        for key in ours:
            assert difference(theirs[key], ours[key]) <= TOLERANCE, key


def test_half_precision_runs_on_them(others: list[dict[str, Any]], folders: dict[str, str]) -> None:
    """bf16 rounds by 2^-8, in each of a few layers, and roundings of other sums fall the other way."""
    one = asked(folders["2"], None, dtype="bfloat16")
    for found in others:
        for expected in (one, found["bf16, the package's"]):
            assert difference(found["bf16"]["logits"], expected["logits"]) <= 2**-5
        assert found["bf16"]["a forward"]["parallel_swiglu"] == LAYERS


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="quantized products are oneDNN's")
def test_quantized_blocks_stay_the_package_s_and_the_rest_is_the_learner_s(others: list[dict[str, Any]]) -> None:
    """An int8 block has no matrices to be given; rows were cut by the learner before they were quantized."""
    for found in others:
        ours = found["int8, the package's"]
        assert found["int8 is quantized"] and found["int8 words"]
        check_same(found["int8"], ours, "int8")
        assert found["int8"]["a forward"] == {"vocab_lookup": 1}
        assert found["int8"]["at build"]["column_shard"] == 5 * LAYERS + 2
        # Inputs are rounded to 127 steps, and one that was computed in another order may be rounded to the next.
        assert difference(found["int8, all"]["logits"], ours["logits"]) <= 2**-4
        assert found["int8, all"]["a forward"]["swiglu"] == LAYERS
        assert "parallel_swiglu" not in found["int8, all"]["a forward"]


@pytest.mark.skipif(not packed.has_kernel(torch.zeros(1)), reason="oneDNN's packed products are not here")
def test_packed_linears_give_their_matrices(others: list[dict[str, Any]], alone: dict[str, dict[str, Any]]) -> None:
    for found in others:
        assert found["packed is packed"] and found["packed"]["a forward"]["parallel_swiglu"] == LAYERS
        check_same(found["packed"], alone["2"], "packed")


# --- What a learner is told -------------------------------------------------------------------------------------------


def stops(w: Any, rank: int, ranks: int) -> torch.Tensor:
    return w.no_such_method()  # this line


def stops_on_the_last(w: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return column_shard(w, rank, ranks) if rank < ranks - 1 else w[len(w)]


def no_words_on_the_last(tokens: torch.Tensor, part: torch.Tensor, first: int) -> torch.Tensor:
    return vocab_lookup(tokens, part, first) if first == 0 else part[tokens]


SHARD, HEADS = "column_shard", "my_kv_heads"
TOLD: dict[str, tuple[str, Function, str]] = {
    "dealt": (
        SHARD, lambda w, rank, ranks: w[rank::ranks],
        "your column_shard gives rank RANK of 2 .*, ... of the .* of .*; expected neighbours, one of several equal",
    ),
    "backwards": (SHARD, lambda w, rank, ranks: column_shard(w, rank, ranks).flip(0), "your column_shard gives rank"),
    "between the parts": (
        SHARD, lambda w, rank, ranks: w[len(w) // 4 : len(w) // 4 + len(w) // ranks], "your column_shard gives rank",
    ),
    "the same row": (SHARD, lambda w, rank, ranks: w[:1].repeat(len(w) // ranks, 1), "your column_shard gives rank"),
    "too many rows": (
        SHARD, lambda w, rank, ranks: w, r"your column_shard returned the shape \(64, 1\); expected \(32, 1\)",
    ),
    "columns": (SHARD, lambda w, rank, ranks: w.chunk(ranks, 1)[rank], "your column_shard (returned the|stopped)"),
    "all parts": (SHARD, lambda w, rank, ranks: w.chunk(ranks), "your column_shard returned a tuple; expected"),
    "no rows": (SHARD, lambda w, rank, ranks: None, r"your column_shard returned nothing: is there a `return`\?"),
    "rows of another dtype": (
        SHARD, lambda w, rank, ranks: column_shard(w, rank, ranks).double(), "your column_shard returned torch.float64",
    ),
    "rows of numpy": (SHARD, lambda w, rank, ranks: w.numpy(), "your column_shard returned ndarray; expected a tensor"),
    "rows changed": (SHARD, lambda w, rank, ranks: w.mul_(2)[: len(w) // ranks], "your column_shard changes `w`"),
    "stops": (SHARD, stops, r"your column_shard stopped with AttributeError: .*`return w.no_such_method\(\)"),
    "no block": (
        "parallel_swiglu", lambda x, shards: None, r"your parallel_swiglu returned nothing: is there a `return`\?",
    ),
    "neurons": (
        "parallel_swiglu", lambda x, shards: x @ shards[0][0].mT,
        r"your parallel_swiglu returned the shape \(2, 8, 96\); expected \(2, 8, 64\)",
    ),
    "block of another dtype": (
        "parallel_swiglu", lambda x, shards: x.double(), "your parallel_swiglu returned torch.float64; expected",
    ),
    "stack of blocks": ("parallel_swiglu", lambda x, shards: [x, x], "your parallel_swiglu returned a list; expected"),
    "block in place": ("parallel_swiglu", lambda x, shards: x.mul_(2), "your parallel_swiglu changes `x`"),
    "second shard": (
        "parallel_swiglu", lambda x, shards: shards[1], "your parallel_swiglu stopped with IndexError",
    ),
    "no words": ("vocab_lookup", lambda tokens, part, first: None, "your vocab_lookup returned nothing"),
    "words of its own only": (
        "vocab_lookup", lambda tokens, part, first: part[tokens[(tokens >= first) & (tokens < first + 200)] - first],
        r"your vocab_lookup returned the shape \(.*\); expected \(2, 8, 64\)",
    ),
    "words of another dtype": (
        "vocab_lookup", lambda tokens, part, first: vocab_lookup(tokens, part, first).half(),
        "your vocab_lookup returned torch.float16; expected torch.float32",
    ),
    "looks outside": (
        "vocab_lookup", lambda tokens, part, first: part[tokens - first + 399], "your vocab_lookup stopped with Index",
    ),
    "heads out of range": (
        HEADS, lambda rank, ranks, n_kv_heads: [2], r"your my_kv_heads returned \[2\]; expected 1 of the heads 0 to 1",
    ),
    "heads below 0": (HEADS, lambda rank, ranks, n_kv_heads: [-1], r"your my_kv_heads returned \[-1\]; expected 1 of"),
    "too many heads": (HEADS, lambda rank, ranks, n_kv_heads: [0, 1], r"returned \[0, 1\]; expected 1 of the heads"),
    "no heads at all": (HEADS, lambda rank, ranks, n_kv_heads: [], r"your my_kv_heads returned \[\]; expected 1 of"),
    "no heads": (HEADS, lambda rank, ranks, n_kv_heads: None, "your my_kv_heads returned None; expected a list of"),
    "a head": (HEADS, lambda rank, ranks, n_kv_heads: rank, "your my_kv_heads returned RANK; expected a list of heads"),
    "names of heads": (HEADS, lambda rank, ranks, n_kv_heads: ["a"], r"returned \['a'\]; expected a list of heads"),
    "heads stop": (HEADS, lambda rank, ranks, n_kv_heads: 1 // 0, "your my_kv_heads stopped with ZeroDivisionError"),
}  # fmt: skip
# The same where more heads than one are a rank's.
TOLD_OF_EIGHT: dict[str, tuple[str, Function, str]] = {
    "dealt heads": (
        HEADS, lambda rank, ranks, n_kv_heads: range(n_kv_heads)[rank::ranks],
        r"your my_kv_heads gives rank RANK of 2 RANK, .*; expected neighbours, one of several equal parts",
    ),
    "heads between": (
        HEADS, lambda rank, ranks, n_kv_heads: [2, 3, 4, 5], "gives rank RANK of 2 2, 3, 4, 5 of the 8 of layers.0",
    ),
    "heads twice": (HEADS, lambda rank, ranks, n_kv_heads: [0, 0, 1, 1], "your my_kv_heads gives rank RANK of 2 0, 0"),
    "one head": (HEADS, lambda rank, ranks, n_kv_heads: [rank], r"\[RANK\]; expected 4 of the heads 0 to 7"),
}  # fmt: skip


def said_by(folder: str, parts: Parts) -> str:
    try:
        with torch.no_grad():
            Llama.build(folder, device="cpu", parts=parts).model(TOKENS)
    except PartError as error:
        return str(error)
    return "nothing was amiss"


def all_told(two: str, eight: str) -> dict[str, str]:
    """What this rank says to every wrong function. None of them costs the ranks their connection."""
    found = {case: said_by(two, {name: piece}) for case, (name, piece, _) in TOLD.items()}
    found |= {case: said_by(eight, {name: piece}) for case, (name, piece, _) in TOLD_OF_EIGHT.items()}
    return found | {"right": said_by(two, WORKED)}


@pytest.fixture(scope="module")
def told(folders: dict[str, str]) -> list[dict[str, str]]:
    return run_ranks(2, all_told, folders["2"], folders["8"], method="fork", timeout=HANG)


@pytest.mark.parametrize("case", TOLD | TOLD_OF_EIGHT)
def test_every_rank_says_what_is_wrong_in_the_learner_s_terms(case: str, told: list[dict[str, str]]) -> None:
    says = (TOLD | TOLD_OF_EIGHT)[case][2]
    for rank, found in enumerate(told):
        wanted = says.replace("RANK", str(rank))
        assert re.search(wanted, found[case]), found[case]
        assert found["right"] == "nothing was amiss"


def one_stops(folder: str, parts: Parts) -> str:
    """What this rank says where a function stops on the last rank only."""
    try:
        Llama.build(folder, device="cpu", parts=parts).generate([[1, 5, 9]], 4, temperature=0)
    except (PartError, launch.LostRanks) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was amiss"


@pytest.mark.parametrize("parts", [{"column_shard": stops_on_the_last}, {"vocab_lookup": no_words_on_the_last}])
def test_where_one_rank_s_stops_the_others_end(folders: dict[str, str], parts: Parts) -> None:
    first, last = run_ranks(2, one_stops, folders["2"], parts, method="fork", timeout=HANG)
    [name] = parts
    assert last.startswith(f"PartError: your {name} stopped with IndexError")
    assert first.startswith("LostRanks: rank 0 lost the others")


def one_goes(folder: str, parts: Parts) -> str:
    """Rank 1 ends in the middle of its loop, without a word. What rank 0 says."""
    llama = Llama.build(folder, device="cpu", parts=parts)
    try:
        for n, _ in enumerate(llama.stream_text("once upon a time", temperature=0, max_gen_len=40, stop_ids=())):
            if n == 3 and os.environ["RANK"] == "1":
                return ""
    except (PartError, launch.LostRanks) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was amiss"


def test_a_rank_that_is_gone_is_not_blamed_on_the_functions_that_waited_for_it(folders: dict[str, str]) -> None:
    for name in ("block", "stack", "tell_on"):
        first, _ = run_ranks(
            2, one_goes, folders["2"], {name: own.worked(loop=True)[name]}, method="fork", timeout=HANG
        )
        assert first.startswith("LostRanks: rank 0 lost the others"), name


def patient(seconds: str, folder: str) -> str:
    """Rank 1 is silent until rank 0, which waits in an exchange of the model's, has given it up. What rank 0 says."""
    os.environ["MINILLAMA_TIMEOUT"] = seconds
    launch.start(device="cpu")
    given_up = Path(folder) / "given up"
    dist.barrier()
    if os.environ["RANK"] == "1":
        end = time.monotonic() + HANG / 2
        while not given_up.exists() and time.monotonic() < end:
            time.sleep(0.05)
        return "given up" if given_up.exists() else "still waited for"
    try:
        with launch.explained():
            dist.all_reduce(torch.ones(1), group=mpu.get_model_parallel_group())
    except launch.LostRanks as error:
        given_up.touch()
        return str(error)
    return "it answered"


def test_ranks_wait_in_the_model_s_exchanges_no_longer_than_is_said(tmp_path: Path) -> None:
    first, second = run_ranks(2, patient, "1", str(tmp_path), method="fork", timeout=HANG)
    assert first.startswith("rank 0 lost the others") and "silent for 1 s" in first
    assert second == "given up"


@pytest.mark.parametrize("name", RANKS)
@pytest.mark.parametrize("piece", [5, int, lambda: 1, None])
def test_what_cannot_be_a_piece_is_refused_at_once(folders: dict[str, str], name: str, piece: Any) -> None:
    with pytest.raises(PartError, match=name):
        Llama.build(folders["2"], device="cpu", parts={name: piece})


@pytest.mark.parametrize("name", RANKS)
def test_a_swap_of_one_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(PartError, match=rf"{name} has work where.*promote_mine.*torchrun .*--mine"):
        with swapped(rms_norm=WORKED["rms_norm"], **{name: OF_RANKS[name]}):
            pytest.fail("the block began")


# --- Keeping them -----------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setenv("MY_MINILLAMA", str(folder))
    return folder


def keep(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(whole_source(exercises()[name].answer), encoding="utf-8")


MILESTONE = "under torchrun, what every rank holds is cut by you, and its parts are computed by you"


def test_what_is_kept_is_for_ranks_and_not_for_swapped(kept: Path) -> None:
    keep(kept, [*RANKS, "rms_norm"])
    assert own.mine().keys() == {"rms_norm"}
    assert own.mine(ranks=True).keys() == parts_of("mine").keys() == {*RANKS, "rms_norm"}
    assert MILESTONE in milestones({*RANKS}) and MILESTONE.capitalize() in repr(own.my_parts())
    for name in RANKS:
        assert f"{RANKS[name].place}" in repr(own.my_parts())


def test_promoting_the_last_tells_a_sentence_by_two_processes_and_the_milestone(kept: Path) -> None:
    *first, last = RANKS
    keep(kept, [*first, "rms_norm"])
    shown = repr(promote_mine(exercises()[last].answer))
    assert (kept / f"{last}.py").exists()
    assert f"{exercises()[last].number} {last} is yours now." in shown
    assert f"It is {RANKS[last].place}. The demo model, on 2 processes with your " in shown
    assert all(name in shown for name in (*RANKS, "rms_norm"))
    demo = minillama.demo(device="cpu").text_completion(["Once upon a time"], temperature=0, max_gen_len=24)
    told = f"Once upon a time{demo[0]['generation']}".rpartition(" ")[0]  # the last word may not be whole
    assert f"“{told} ...”" in shown and "Word for word what one process tells." in shown
    assert f"Milestone: {MILESTONE}." in shown


def test_each_is_promoted_with_its_place_and_the_milestone_comes_once(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes are those of the test above; here it is only noted which functions they would find."""
    alone = own._told({}, drawn=False)
    found: list[list[str]] = []
    monkeypatch.setattr(own, "_told_by_ranks", lambda: found.append([*parts_of("mine")]) or alone)
    for i, name in enumerate(RANKS):
        shown = repr(promote_mine(exercises()[name].answer))
        yours = [one for one in exercises() if one in [*RANKS][: i + 1]]
        assert f"It is {RANKS[name].place}. The demo model, on 2 processes with your {', '.join(yours)}:" in shown
        assert found[-1] == yours
        assert "Word for word what one process tells." in shown
        assert ("Milestone:" in shown) == (i == len(RANKS) - 1)


def test_another_text_than_one_process_s_is_no_milestone(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_told_by_ranks", lambda: "Once upon a time nobody")
    for name in RANKS:
        shown = promote_mine(exercises()[name].answer)
    assert "“Once upon a time ...”" in repr(shown)
    assert "On one process it goes “Once upon a time, " in repr(shown) and "so one of yours is amiss" in repr(shown)
    assert "Milestone:" not in repr(shown)
    assert "#cc6677" in shown._repr_html_()  # red


BROKEN = """
def column_shard(w, rank, ranks):
    return w.chunk(ranks)[rank] if len(w) < 100 else w[len(w)]
"""


def test_what_breaks_on_ranks_only_is_told_in_the_receipt(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checker looks at small matrices."""
    path = kept.parent / "learners_ranks.py"
    path.write_text(BROKEN, encoding="utf-8")
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    shown = repr(promote_mine(importlib.import_module(path.stem).column_shard))
    assert "column_shard is yours now." in shown and (kept / "column_shard.py").exists()
    assert "it stops there: " in shown and "your column_shard stopped with IndexError" in shown
    assert "`return w.chunk(ranks)[rank] if len(w) < 100 else w[len(w)]`" in shown
    assert "Traceback" not in shown and shown.count("\n") == 2


# --- Leaving ----------------------------------------------------------------------------------------------------------


def threads() -> list[str]:
    """Names of this process's threads that are gloo's."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def joins_and_leaves(folder: str) -> dict[str, Any]:
    made = Llama.build(folder, device="cpu", parts=WORKED)
    made.generate([[1, 5]], 2, temperature=0)
    before = threads()
    launch.leave()
    found = {"before": before, "after": threads(), "ranks": parallel.world_size()}
    launch.leave()  # nothing is left to leave
    return found


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are looked up in /proc")
def test_leaving_the_ranks_ends_gloo_s_threads(folders: dict[str, str]) -> None:
    for found in run_ranks(2, joins_and_leaves, folders["2"], method="fork", timeout=HANG):
        assert found["before"] and found["after"] == [] and found["ranks"] == 1


def test_one_process_has_nothing_to_leave() -> None:
    for _ in range(2):
        launch.leave()
    assert parallel.world_size() == 1 and not torch.distributed.is_initialized()
