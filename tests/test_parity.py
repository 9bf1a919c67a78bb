"""The model's numbers against independent oracles: Hugging Face transformers, Meta's reference, float64 formulas.

fp32 tolerance: 1e-5 of the largest logit. Two right programs sum the same products in different orders; over these
depths and widths that moves a logit by about 1e-6 of the largest one, and any real mistake by far more than 1e-5.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import (
    CountedCalls,
    Rows,
    every_way,
    generation_case,
    level,
    model_in_ranks,
    reference_and_stories,
    reference_case,
    run_ranks,
)
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from minillama import KVCache, Llama, ModelArgs, Transformer
from minillama.attention import Attention
from minillama.feed_forward import FeedForward
from minillama.kv_cache import LayerCache
from minillama.norm import RMSNorm
from minillama.rope import apply_rotary_emb, precompute_freqs_cis
from minillama.transformer import causal_mask

FP32_TOLERANCE = 1e-5

# name -> number of kv heads that 16 query heads share
KV_HEADS = {"MHA": 16, "GQA 2 to 1": 8, "GQA 4 to 1": 4, "GQA 8 to 1": 2, "MQA": 1}
IN_TWO_RANKS = ["MQA", *(name for name in KV_HEADS if name != "MQA")]  # the one kv head is on both; last: one on each
WEIGHTS_CUT = {"wq": 0, "wk": 0, "wv": 0, "w1": 0, "w3": 0, "output": 0, "wo": 1, "w2": 1, "tok_embeddings": 1}

ROWS: Rows = torch.randint(256, (3, 28), generator=torch.Generator().manual_seed(3)).tolist()
ROWS = [ROWS[0], ROWS[1][:19], ROWS[2][:11]]
BATCHES: dict[str, Rows] = {"one row": ROWS[:1], "ragged rows": ROWS}


def shape(kv_heads: int, **others: Any) -> ModelArgs:
    numbers = dict(dim=128, n_layers=2, n_heads=16, n_kv_heads=kv_heads, vocab_size=256, multiple_of=32, max_seq_len=64)
    return ModelArgs(**(numbers | others))


def random_weights(args: ModelArgs, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights at the scale of trained ones: logits reach several units, attention prefers some keys, norms differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in Transformer(args).state_dict().items()}
    weights = {}
    for key, size in shapes.items():
        gain = {"wq": 1.5, "wk": 1.5, "output": 2.0}.get(key.split(".")[-2], 1.0)
        if len(size) == 1:
            weights[key] = 0.5 + torch.rand(size, generator=generator)
        else:
            fan_in = 1 if key.startswith("tok_embeddings") else size[1]
            weights[key] = torch.randn(size, generator=generator) * gain * fan_in**-0.5
    return weights


def build(args: ModelArgs, seed: int = 0) -> Transformer:
    model = Transformer(args)
    model.load_state_dict(random_weights(args, seed))
    return model.eval()


def write_checkpoint(folder: Path, args: ModelArgs) -> Path:
    folder.mkdir()
    torch.save(random_weights(args), folder / "consolidated.00.pth")
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "multiple_of", "norm_eps", "rope_theta", "max_seq_len")
    (folder / "params.json").write_text(json.dumps({name: getattr(args, name) for name in names}))
    return folder


def halves_from_pairs(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Rows of wq or wk in Hugging Face's order: RoPE turns i with i + h/2 there, and 2i with 2i + 1 here."""
    return weight.view(n_heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def hugging_face_name(key: str) -> str:
    names = {
        "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head", "layers": "model.layers",
        "wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wo": "o_proj",
        "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj",
        "attention": "self_attn", "feed_forward": "mlp",
        "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    return ".".join(names.get(part, part) for part in key.split("."))


def to_hugging_face(args: ModelArgs, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    heads = {"wq": args.n_heads, "wk": args.n_kv_heads}
    return {
        hugging_face_name(key): halves_from_pairs(w, heads[kind]) if (kind := key.split(".")[-2]) in heads else w
        for key, w in weights.items()
    }


def hugging_face(args: ModelArgs) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.dim,
        intermediate_size=args.hidden_dim,
        num_hidden_layers=args.n_layers,
        num_attention_heads=args.n_heads,
        num_key_value_heads=args.n_kv_heads,
        rms_norm_eps=args.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": args.rope_theta},
        max_position_embeddings=args.max_seq_len,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(to_hugging_face(args, random_weights(args)), strict=True)
    return model.eval()


@functools.cache
def hugging_face_logits(name: str) -> list[torch.Tensor]:
    """Logits of each of ROWS, in a pass of its own."""
    model = hugging_face(shape(KV_HEADS[name]))
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0] for row in ROWS]


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, in parts of the largest expected number."""
    assert found.shape == expected.shape
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


def check_rows(found: list[torch.Tensor], expected: list[torch.Tensor], said: str) -> None:
    for r, (one, other) in enumerate(zip(found, expected)):
        assert difference(one, other) <= FP32_TOLERANCE, f"{said}, row {r}"


@pytest.fixture(scope="module")
def parity_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("parity")
    return {name: str(write_checkpoint(folder / name, shape(kv_heads))) for name, kv_heads in KV_HEADS.items()}


@pytest.fixture(scope="module")
def two_ranks(parity_folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two real ranks has to say; one start for all, for it takes seconds."""
    unfit = tmp_path_factory.mktemp("unfit")
    three_heads = write_checkpoint(unfit / "three heads", shape(3, dim=48, n_heads=3))
    three_kv_heads = write_checkpoint(unfit / "three kv heads", shape(3, dim=48, n_heads=6))
    fit = {name: parity_folders[name] for name in IN_TWO_RANKS}
    return run_ranks(2, model_in_ranks, fit, BATCHES, {"n_heads": str(three_heads), "n_kv_heads": str(three_kv_heads)})


# --- Hugging Face transformers


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", KV_HEADS)
def test_logits_equal_hugging_face_in_one_process(name: str, batch: str, parity_folders: dict[str, str]) -> None:
    expected = hugging_face_logits(name)
    assert all(logits.abs().max() > 5 for logits in expected)  # near zero anything would agree
    for way, found in every_way(Transformer.from_checkpoint(parity_folders[name]), BATCHES[batch]).items():
        check_rows(found, expected, way)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", IN_TWO_RANKS)
def test_logits_equal_hugging_face_in_two_ranks(name: str, batch: str, two_ranks: list[dict[str, Any]]) -> None:
    for rank, said in enumerate(two_ranks):
        ways = said["ways"][name][batch]
        assert len(ways) == 6
        for way, found in ways.items():
            assert len(found) == len(BATCHES[batch])
            check_rows(found, hugging_face_logits(name), f"{way}, rank {rank}")


def test_logits_equal_hugging_face_at_far_positions_with_code_llama_theta() -> None:
    args = shape(4, max_seq_len=1024, rope_theta=1e6, norm_eps=1e-6)
    tokens = torch.randint(256, (1, 1024), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = hugging_face(args)(tokens).logits
        model = build(args)
        cache = KVCache.for_model(model, 1, 1024)
        chunked = torch.cat([model(tokens[:, :700], 0, cache), model(tokens[:, 700:], 700, cache)], 1)
        assert difference(model(tokens), expected) <= FP32_TOLERANCE
        assert difference(chunked, expected) <= FP32_TOLERANCE


def test_gradients_equal_hugging_face() -> None:
    args = shape(4)
    theirs = hugging_face(args)
    ours = build(args)
    tokens = torch.tensor(ROWS[:1])
    for logits in (theirs(tokens).logits, ours(tokens)):
        F.cross_entropy(logits[0, :-1], tokens[0, 1:]).backward()
    found = to_hugging_face(args, {key: p.grad for key, p in ours.named_parameters() if p.grad is not None})
    for key, p in theirs.named_parameters():
        assert p.grad is not None
        assert difference(found[key], p.grad) <= FP32_TOLERANCE, key


# --- Meta's reference


@pytest.fixture(scope="module")
def reference(shared_data: Path) -> dict[str, Any]:
    return torch.load(shared_data / "cases" / "reference_tiny.pt")


@pytest.fixture(scope="module")
def shared_cases(shared_data: Path, reference: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Arguments of `reference_case` by the folder's name."""
    tokenizer = str(shared_data / "checkpoints" / "stories260K" / "tokenizer.model")
    return {
        name: (str(shared_data / "checkpoints" / name), tokenizer, reference["tokens"], reference["prompts"])
        for name in ("tiny_mp1", "tiny_mp2")
    }


PROMPTS = ["Once upon a time", "Lily and Tom went to the", "The"]
FULL_STOP = 426  # "." in stories260K's vocabulary; each of PROMPTS comes to it, at different steps
STOP_STRING = ". "  # begins in one token and ends in another


@pytest.fixture(scope="module")
def stories_case(shared_data: Path) -> tuple[Any, ...]:
    """Arguments of `generation_case`."""
    return str(shared_data / "checkpoints" / "stories260K"), PROMPTS, FULL_STOP, STOP_STRING


@pytest.fixture(scope="module")
def stories_alone(stories_case: tuple[Any, ...]) -> dict[str, Any]:
    return generation_case(*stories_case)


@pytest.fixture(scope="module")
def two_shared_ranks(shared_cases: dict[str, tuple[Any, ...]], stories_case: tuple[Any, ...]) -> list[dict[str, Any]]:
    return run_ranks(2, reference_and_stories, shared_cases, stories_case)


def check_reference(found: dict[str, Any], reference: dict[str, Any]) -> None:
    assert difference(found["logits"], reference["logits"]) <= FP32_TOLERANCE
    assert difference(found["chunked"], reference["logits_prefill16_steps16_chunk8"]) <= FP32_TOLERANCE
    assert found["greedy"] == reference["greedy24"]
    # A log-probability is a logit less the log of all: absolute, and wrong by some 1e-6 of the largest logit, 8.
    logprobs, expected = torch.tensor(found["logprobs"]), torch.tensor(reference["logprobs24"])
    assert logprobs.shape == (2, 24)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["tiny_mp1", "tiny_mp2"])
def test_one_process_gives_what_the_reference_gives(
    name: str, shared_cases: dict[str, tuple[Any, ...]], reference: dict[str, Any]
) -> None:
    check_reference(reference_case(*shared_cases[name]), reference)


@pytest.mark.parametrize("name", ["tiny_mp1", "tiny_mp2"])
def test_two_ranks_give_what_the_reference_gives(
    name: str, two_shared_ranks: list[dict[str, Any]], reference: dict[str, Any]
) -> None:
    for said in two_shared_ranks:
        check_reference(said[name], reference)


# --- Tensor parallelism


def test_a_forward_takes_two_all_reduces_a_layer(two_ranks: list[dict[str, Any]]) -> None:
    for said in two_ranks:
        for call in ("stateless", "prefill", "step"):
            # Two layers; the all-gathers are the embedding's and the logits'.
            assert {name: n for name, n in said["counts"][call].items() if n} == {"all_reduce": 4, "all_gather": 2}


def test_one_process_has_no_process_group_and_calls_no_collective(
    stories_case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with CountedCalls() as counts:
        llama = Llama.build(stories_case[0], model_parallel_size=1, device="cpu")
        llama.generate([[1]], 4)
    assert not any(counts.values()), counts
    assert not dist.is_initialized()


def test_parallelize_on_real_weights_gives_what_loading_gives(
    two_ranks: list[dict[str, Any]], parity_folders: dict[str, str]
) -> None:
    whole = torch.load(Path(parity_folders[IN_TWO_RANKS[-1]]) / "consolidated.00.pth")
    for said in two_ranks:
        assert said["cut"].keys() == said["loaded"].keys() == whole.keys()
        assert all(torch.equal(said["cut"][key], said["loaded"][key]) for key in whole)
        assert torch.equal(said["cut logits"], said["loaded logits"])
    for key, weight in whole.items():
        parts = [said["loaded"][key] for said in two_ranks]
        dim = WEIGHTS_CUT.get(key.split(".")[-2])
        assert torch.equal(torch.cat(parts, dim) if dim is not None else parts[0], weight), key


def test_parallelize_on_real_weights_lets_go_of_the_other_ranks_weights(two_ranks: list[dict[str, Any]]) -> None:
    for said in two_ranks:
        assert said["cut bytes held"] == said["cut bytes"]


def test_a_rank_caches_its_own_kv_heads(two_ranks: list[dict[str, Any]]) -> None:
    # The last model of the ranks has 2 kv heads of 8 numbers, so each rank 1; 2 layers, 8 slots, fp32.
    assert [said["cache nbytes"] for said in two_ranks] == [2 * 2 * 8 * 1 * 8 * 4] * 2


REQUESTS = [
    "greedy", "seed", "seeds that differ", "seeds of builds that differ", "greedy, stop id",
    "greedy, stop string", "sampled, stop string", "sampled, stop id", "stream",
]  # fmt: skip


@pytest.mark.parametrize("request_name", REQUESTS)
def test_ranks_give_the_tokens_of_one_process_in_as_many_steps(
    request_name: str, two_shared_ranks: list[dict[str, Any]], stories_alone: dict[str, Any]
) -> None:
    """Also where ranks are given different seeds, or different seeds to build with: rank 0's count."""
    for said in two_shared_ranks:
        assert said["stories"][request_name] == stories_alone[request_name]


def test_requests_of_the_rank_tests_stop_and_differ_as_they_should(stories_alone: dict[str, Any]) -> None:
    """The test above would pass on empty answers, or where seeds made no difference."""
    assert stories_alone.keys() == set(REQUESTS)
    assert all(len(row) == 16 for row in stories_alone["greedy"]["tokens"])
    for request_name in REQUESTS:
        assert stories_alone[request_name]["forwards"] < 16 or "stop" not in request_name
    for request_name in ("greedy, stop id", "greedy, stop string"):
        assert len({len(row) for row in stories_alone[request_name]["tokens"]}) == 3
    sampled = [str(stories_alone[name]["tokens"]) for name in REQUESTS[:4]]
    assert len(set(sampled)) == 4


@pytest.mark.parametrize(("name", "number"), [("n_heads", 3), ("n_kv_heads", 3)])
def test_heads_that_two_ranks_cannot_share_are_named_with_both_numbers(
    name: str, number: int, two_ranks: list[dict[str, Any]]
) -> None:
    for said in two_ranks:
        assert re.search(rf"\b{name} {number}\b.*\b2 ranks", said["errors"][name])


def test_ranks_that_nobody_started_are_an_error_that_mentions_torchrun(
    stories_case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(
        ValueError, match=r"model_parallel_size is 2, and 1 process started.*torchrun --nproc_per_node 2"
    ):
        Llama.build(stories_case[0], model_parallel_size=2, device="cpu")
    assert not dist.is_initialized()


# --- RMSNorm


def random(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_rmsnorm_equals_torch_and_the_formula() -> None:
    norm, theirs = RMSNorm(96, eps=1e-6), nn.RMSNorm(96, eps=1e-6)
    norm.weight.data = theirs.weight.data = random(96, seed=2)
    x = random(4, 5, 96) * 3
    formula = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight.double()
    # Each number passes through a mean, a root and two products: some units in the last place (2^-23) of itself.
    torch.testing.assert_close(norm(x), theirs(x), rtol=4 * 2**-23, atol=0)
    torch.testing.assert_close(norm(x).double(), formula, rtol=4 * 2**-23, atol=0)


def test_rmsnorm_eps_stands_inside_the_root() -> None:
    # (0.001)^2 = 1e-6 beside eps = 3e-6: the root is 0.002.
    torch.testing.assert_close(RMSNorm(8, eps=3e-6)(torch.full((8,), 0.001)), torch.full((8,), 0.5))
    assert RMSNorm(8)(torch.zeros(8)).eq(0).all()


@pytest.mark.parametrize("value", [300.0, 60000.0])
def test_rmsnorm_in_fp16_does_not_overflow_where_squares_do(value: float) -> None:
    out = RMSNorm(64).half()(torch.full((2, 64), value, dtype=torch.float16))
    assert out.dtype == torch.float16
    assert torch.equal(out, torch.ones_like(out))


def test_rmsnorm_in_bf16_rounds_before_it_scales() -> None:
    norm = RMSNorm(256).bfloat16()
    norm.weight.data = random(256, seed=2).bfloat16()
    x = random(8, 256).bfloat16()
    normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(norm(x), normed.bfloat16() * norm.weight)
    assert not torch.equal(norm(x), (normed * norm.weight.float()).bfloat16())  # the other order is another number


# --- RoPE


def rotation(position: float, h: int, theta: float = 10000.0) -> torch.Tensor:
    """The float64 matrix (h, h) that turns neighbours 2i, 2i + 1 by position * theta^(-2i/h)."""
    blocks = []
    for i in range(h // 2):
        angle = position * theta ** (-2 * i / h)
        blocks.append(torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double())
    return torch.block_diag(*blocks)


@pytest.mark.parametrize("theta", [10000.0, 1e6])
def test_rope_equals_a_rotation_matrix(theta: float) -> None:
    freqs_cis = precompute_freqs_cis(16, 4096, theta)
    q, k = random(1, 4, 3, 16), random(1, 4, 1, 16, seed=2)
    # An angle of m radians in fp32 is wrong by some 2^-24 of m, and a vector turned by it as much: near ones are held
    # to fp32's own rounding, far ones to their angle's.
    for positions in ([0, 1, 2, 3], [60, 61, 62, 63], [0, 4095, 7, 2048]):
        turned = apply_rotary_emb(q, k, freqs_cis[positions])
        matrices = torch.stack([rotation(m, 16, theta) for m in positions])
        for found, x in zip(turned, (q, k)):
            expected = torch.einsum("Tij,BTHj->BTHi", matrices, x.double())
            assert found.shape == x.shape
            for t, m in enumerate(positions):
                tolerance = 2**-22 * max(1, m) * float(x[:, t].norm(dim=-1).max())
                torch.testing.assert_close(found[:, t].double(), expected[:, t], rtol=0, atol=tolerance)
    assert torch.equal(apply_rotary_emb(q, k, freqs_cis[[0] * 4])[0], q)


def test_rope_scores_depend_on_distance_alone() -> None:
    q, k = random(1, 1, 1, 32), random(1, 1, 1, 32, seed=2)
    freqs_cis = precompute_freqs_cis(32, 512)

    def score(m: int, n: int) -> float:
        return float(
            (
                apply_rotary_emb(q, q, freqs_cis[[m]])[0].double() * apply_rotary_emb(k, k, freqs_cis[[n]])[0].double()
            ).sum()
        )

    # fp32 angles at position 500 are wrong by up to 3e-5, and scores of two vectors of length about 6 by 36 times that.
    for distance in (0, 1, 17):
        for n in (1, 30, 480):
            assert score(n + distance, n) == pytest.approx(score(distance, 0), abs=1e-3)
    assert abs(score(17, 0) - score(0, 17)) > 1e-2 and abs(score(17, 0) - score(1, 0)) > 1e-2


def test_rope_rows_turn_by_their_own_positions() -> None:
    freqs_cis = precompute_freqs_cis(8, 64)
    q, k = random(2, 3, 4, 8), random(2, 3, 2, 8, seed=2)
    positions = torch.tensor([[5, 6, 7], [40, 41, 42]])
    both = apply_rotary_emb(q, k, freqs_cis[positions])
    for r in range(2):
        alone = apply_rotary_emb(q[r : r + 1], k[r : r + 1], freqs_cis[positions[r]])
        assert all(torch.equal(x[r : r + 1], y) for x, y in zip(both, alone))


def test_rope_in_bf16_is_the_fp32_product_rounded_once() -> None:
    freqs_cis = precompute_freqs_cis(64, 2048)[1900:1910]
    q = random(2, 10, 4, 64).bfloat16()
    turned = apply_rotary_emb(q, q, freqs_cis)[0]
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, apply_rotary_emb(q.float(), q.float(), freqs_cis)[0].bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rope_angles_stay_fp32_in_a_model_that_does_not(dtype: torch.dtype) -> None:
    model = build(shape(4))
    before = model.freqs_cis.clone()
    model.to(dtype)
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 3]])).dtype == torch.float32
    assert model.freqs_cis.dtype == torch.complex64
    assert torch.equal(model.freqs_cis, before)


@pytest.mark.parametrize("surroundings", ["bf16 by default", "meta device"])
def test_rope_angles_are_the_same_wherever_a_model_is_built(surroundings: str) -> None:
    expected = precompute_freqs_cis(8, 64)
    if surroundings == "meta device":
        with torch.device("meta"):
            model = Transformer(shape(4))
    else:
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Transformer(shape(4))
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(model.freqs_cis, expected)


# --- Attention, feed-forward, cache


def naive_attention(attention: Attention, x: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Float64, one kv head copied out for each query head, softmax written out; positions from `first` on."""
    B, T, _ = x.shape
    h = attention.head_dim
    q, k, v = ((x.double() @ w.weight.double().T).view(B, T, -1, h) for w in (attention.wq, attention.wk, attention.wv))
    matrices = torch.stack([rotation(first + t, h) for t in range(T)])
    q, k = torch.einsum("Tij,BTHj->BTHi", matrices, q), torch.einsum("Tij,BTHj->BTHi", matrices, k)
    k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], dim=2) for each in (k, v))
    scores = torch.einsum("BTHh,BSHh->BHTS", q, k) / h**0.5
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return torch.einsum("BHTS,BSHh->BTHh", weights, v).reshape(B, T, -1) @ attention.wo.weight.double().T


def random_attention(kv_heads: int) -> tuple[Attention, ModelArgs]:
    args = shape(kv_heads)
    attention = Attention(args)
    for w in (attention.wq, attention.wk, attention.wv, attention.wo):
        w.weight.data = random(*w.weight.shape, seed=w.weight.shape[0]) * 1.5 * 128**-0.5
    return attention.requires_grad_(False), args


@pytest.mark.parametrize("name", KV_HEADS)
def test_attention_equals_the_naive_one_whole_and_in_cached_chunks(name: str) -> None:
    attention, args = random_attention(KV_HEADS[name])
    x = random(2, 12, 128)
    expected = naive_attention(attention, x)
    freqs_cis = precompute_freqs_cis(args.head_dim, 64)
    assert difference(attention(x, torch.arange(12), freqs_cis[:12], None), expected) <= FP32_TOLERANCE

    empty = torch.zeros(2, args.n_kv_heads, 12, args.head_dim)
    cache = LayerCache(empty.clone(), empty.clone())
    chunks = []
    for start, end in ((0, 5), (5, 6), (6, 12)):
        positions = torch.arange(start, end)
        mask = causal_mask(positions, end) if start and end - start > 1 else None
        window = cache.window(2, end)
        chunks.append(attention(x[:, start:end], positions, freqs_cis[start:end], mask, window))
    assert difference(torch.cat(chunks, 1), expected) <= FP32_TOLERANCE


def test_attention_rows_at_different_positions_equal_the_naive_one() -> None:
    attention, args = random_attention(4)
    freqs_cis = precompute_freqs_cis(args.head_dim, 64)
    rows = [random(1, 12, 128, seed=3), random(1, 7, 128, seed=4)]
    empty = torch.full((2, args.n_kv_heads, 12, args.head_dim), 1e3)  # what lies in unused slots must not matter
    cache = LayerCache(empty.clone(), empty.clone())
    starts = torch.tensor([9, 4])
    for r, row in enumerate(rows):
        n = int(starts[r])
        before = LayerCache(cache.keys[r : r + 1], cache.values[r : r + 1]).window(1, n)  # views of the same cache
        attention(row[:, :n], torch.arange(n), freqs_cis[:n], None, before)
    positions = starts[:, None] + torch.arange(3)
    x = torch.cat([row[:, start : start + 3] for row, start in zip(rows, starts.tolist())])
    out = attention(x, positions, freqs_cis[positions], causal_mask(positions, 12), cache)
    for r, row in enumerate(rows):
        assert difference(out[r], naive_attention(attention, row)[0, starts[r] : starts[r] + 3]) <= FP32_TOLERANCE


def test_feed_forward_equals_the_formula() -> None:
    block = FeedForward(96, 256).requires_grad_(False)
    x = random(2, 5, 96) * 3
    w1, w2, w3 = (w.weight.double() for w in (block.w1, block.w2, block.w3))
    gate = x.double() @ w1.T
    expected = (gate / (1 + (-gate).exp()) * (x.double() @ w3.T)) @ w2.T
    assert difference(block(x), expected) <= FP32_TOLERANCE


def test_hidden_dims_of_the_family_are_those_of_its_files() -> None:
    assert [ModelArgs.preset(name).hidden_dim for name in ("7B", "13B", "70B")] == [11008, 13824, 28672]


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)])
def test_cache_holds_what_the_formula_says_to_the_byte(dtype: torch.dtype, width: int) -> None:
    model = build(shape(4)).to(dtype)
    cache = KVCache.for_model(model, 3, 40)
    assert cache.nbytes == 2 * 2 * 3 * 40 * 4 * 8 * width  # keys and values, layers, rows, slots, kv heads, head_dim
    assert {layer.keys.dtype for layer in cache.layers} == {dtype}
    with torch.no_grad():
        model(torch.ones(3, 40, dtype=torch.long), 0, cache)
    assert cache.nbytes == 2 * 2 * 3 * 40 * 4 * 8 * width


def test_a_wrong_start_pos_changes_logits() -> None:
    """The tests above would pass if positions were ignored."""
    model = build(shape(4))
    with torch.no_grad():
        expected = level(model, ROWS[:1], [14, 14])[0]
        cache = KVCache.for_model(model, 1, 28)
        model(torch.tensor([ROWS[0][:14]]), 0, cache)
        wrong = model(torch.tensor([ROWS[0][14:]]), torch.tensor([13]), cache)[0]
    assert difference(wrong, expected[14:]) > 1e-2


# --- Autograd


def test_a_stateless_pass_gives_every_parameter_a_gradient() -> None:
    model = build(shape(4))
    tokens = torch.tensor(ROWS[:1])
    logits = model(tokens)
    F.cross_entropy(logits[0, :-1], tokens[0, 1:]).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().max() > 0, name
    with torch.no_grad():
        assert difference(logits.detach()[0], level(model, ROWS[:1], [13, 1, 14])[0]) <= FP32_TOLERANCE


def test_autograd_works_before_during_and_after_generation(shared_data: Path) -> None:
    llama = Llama.build(shared_data / "checkpoints" / "stories260K", device="cpu")
    llama.generate([[1, 2, 3]], 4, logprobs=True, echo=True)
    llama.score([[1, 2, 3]])
    for _ in llama.stream_text("Once", max_gen_len=2):
        assert torch.is_grad_enabled()
        loss = llama.model(torch.tensor([[1, 5, 6]])).logsumexp(-1).sum()
        loss.backward()
    llama.model(torch.tensor([[1, 5, 6]])).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in llama.model.parameters())


# --- Loading


def mapped_ranges(path: Path) -> list[range]:
    """Where in this process's memory the file is mapped (Linux)."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(f" {path}")]
    return [range(*(int(end, 16) for end in line.split()[0].split("-"))) for line in lines]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_loading_maps_the_file_and_copies_nothing(parity_folders: dict[str, str]) -> None:
    folder = Path(parity_folders["GQA 4 to 1"])
    model = Transformer.from_checkpoint(folder)
    ranges = mapped_ranges((folder / "consolidated.00.pth").resolve())
    for name, p in model.named_parameters():
        assert any(p.data_ptr() in one for one in ranges), name


def test_loading_leaves_the_global_random_state_alone(parity_folders: dict[str, str]) -> None:
    """Weights that are about to be replaced are not drawn first: at 7B that would take minutes."""
    torch.manual_seed(123)
    before = torch.get_rng_state()
    Transformer.from_checkpoint(parity_folders["MHA"])
    assert torch.equal(torch.get_rng_state(), before)


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("asked", "dtype"), [("bfloat16", BF16), ("bf16", BF16), (BF16, BF16), ("fp16", FP16), (FP16, FP16), (None, FP32)]
)
def test_loading_converts_to_the_dtype_that_is_asked_for(
    asked: str | torch.dtype | None, dtype: torch.dtype, parity_folders: dict[str, str]
) -> None:
    folder = parity_folders["MHA"]
    weights = torch.load(Path(folder) / "consolidated.00.pth")
    state = Transformer.from_checkpoint(folder, dtype=asked).state_dict()
    assert state.keys() == weights.keys()
    assert all(torch.equal(state[key], weights[key].to(dtype)) for key in weights)


def test_training_a_loaded_model_leaves_its_file_alone(parity_folders: dict[str, str]) -> None:
    folder = parity_folders["GQA 8 to 1"]
    file = Path(folder) / "consolidated.00.pth"
    before = file.read_bytes()
    model = Transformer.from_checkpoint(folder)
    model(torch.tensor([[1, 2, 3]])).logsumexp(-1).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    changed = model.output.weight.detach().clone()
    assert file.read_bytes() == before
    assert not torch.equal(Transformer.from_checkpoint(folder).output.weight, changed)


# --- bf16


@pytest.mark.parametrize("source", ["trained", "random"])
def test_in_bf16_a_row_gets_the_same_logits_in_any_company_up_to_rounding(
    source: str, parity_folders: dict[str, str], request: pytest.FixtureRequest
) -> None:
    if source == "trained":
        folder = request.getfixturevalue("shared_data") / "checkpoints" / "stories260K"
    else:
        folder = Path(parity_folders["GQA 4 to 1"])
    model = Transformer.from_checkpoint(folder, dtype="bf16")
    # A batch is summed in another order than one row, and every result is rounded to 8 bits: a sum that falls on the
    # other side moves by one unit in the last place, 2^-8 of itself, and the layers pass that on. Three such units of
    # the largest logit are seen, eight (3%) are allowed; standing one position aside moves logits by tens of percent.
    for way, found in every_way(model, ROWS).items():
        for r, row in enumerate(ROWS):
            with torch.no_grad():
                alone = model(torch.tensor([row]))[0]
            assert difference(found[r], alone) <= 8 * 2**-8, f"{way}, row {r}"
    full = Transformer.from_checkpoint(folder, dtype="fp32")
    with torch.no_grad():
        assert difference(model(torch.tensor(ROWS[:1])), full(torch.tensor(ROWS[:1]))) <= 8 * 2**-8
