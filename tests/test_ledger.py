"""The ledger of a forward pass against formulas, and against torch's own counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from minillama import KVCache, ModelArgs, Transformer
from minillama.memory import kv_cache_bytes, weight_bytes
from minillama.quantize import quantize
from minillama.teach.accounts import flops_formula, ledger

SHAPES = [
    dict(n_heads=4, n_kv_heads=4),
    dict(n_heads=4, n_kv_heads=2),
    dict(n_heads=4, n_kv_heads=1),
    dict(dim=48, n_heads=6, n_kv_heads=3, n_layers=3, multiple_of=8),
]
PASSES = [(1, 1, 0), (1, 8, 0), (3, 1, 9), (2, 5, 7)]
Maker = Callable[..., Transformer]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("B", "T", "start_pos"), PASSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_totals_are_the_formulas(
    tiny_model: Maker, shape: dict[str, int], B: int, T: int, start_pos: int, dtype: torch.dtype
) -> None:
    model = tiny_model(vocab_size=97, **shape).to(dtype)
    args = model.args
    costs = ledger(model, B, T, start_pos)
    assert costs.params == args.n_params
    assert costs.flops == flops_formula(args, B, T, start_pos)
    assert costs.weight_bytes == weight_bytes(args, dtype)
    assert costs.cache_bytes == kv_cache_bytes(args, B, start_pos + T, dtype) + kv_cache_bytes(args, B, T, dtype)
    assert costs["output"].after == (B, T, args.vocab_size)
    assert costs["layers.0.attention.scores"].after == (B, args.n_heads, T, start_pos + T)
    assert costs["layers.0.attention.wk"].letters == "(B, T, D) -> (B, T, K*h)"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("B", "T", "start_pos"), PASSES)
def test_flops_are_those_that_torch_counts(
    tiny_model: Maker, shape: dict[str, int], B: int, T: int, start_pos: int
) -> None:
    model = tiny_model(vocab_size=97, **shape)
    cache = KVCache.for_model(model, B, start_pos + T)
    tokens = torch.zeros(B, T, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(tokens, start_pos, cache)
    assert ledger(model, B, T, start_pos).flops == counter.get_total_flops()


@pytest.mark.parametrize("name", ["7B", "13B", "70B"])
def test_a_preset_is_counted_without_its_weights(name: str) -> None:
    args = ModelArgs.preset(name)
    costs = ledger(name, B=2, T=1, start_pos=4095)
    assert costs.params == args.n_params
    assert costs.flops == flops_formula(args, 2, 1, 4095)
    assert costs.weight_bytes == weight_bytes(args, torch.bfloat16)
    assert costs.cache_bytes == kv_cache_bytes(args, 2, 4096 + 1, torch.bfloat16)
    # A token of decoding reads all weights but the embedding's, of which it needs a row for each of the B.
    read = sum(row.times * row.weights for row in costs.rows)
    assert read == weight_bytes(args, 2) - 2 * args.vocab_size * args.dim + 2 * 2 * args.dim
    assert ledger(args, 1, 16, dtype=torch.float32).weight_bytes == weight_bytes(args, 4)


def test_rows_of_all_layers_add_up_to_the_folded_ones(tiny_model: Maker) -> None:
    model = tiny_model(n_layers=3)
    folded, whole = ledger(model, 2, 4), ledger(model, 2, 4, every_layer=True)
    assert {row.times for row in folded.rows} == {1, 3} and {row.times for row in whole.rows} == {1}
    assert len(whole.rows) == len(folded.rows) + 2 * sum(row.times == 3 for row in folded.rows)
    for total in ("params", "flops", "bytes", "weight_bytes", "cache_bytes"):
        assert getattr(folded, total) == getattr(whole, total)


def test_modules_are_told_in_the_order_of_the_pass(tiny_model: Maker) -> None:
    names = [row.name for row in ledger(tiny_model(n_layers=1), 1, 4).rows]
    modules = [
        "tok_embeddings", "layers.0.attention_norm", "layers.0.attention.wq", "layers.0.attention.wk",
        "layers.0.attention.wv", "layers.0.attention.wo", "layers.0.ffn_norm", "layers.0.feed_forward.w1",
        "layers.0.feed_forward.w3", "layers.0.feed_forward.w2", "norm", "output",
    ]  # fmt: skip
    assert [name for name in names if name in modules] == modules


def test_shapes_are_seen_not_derived(tiny_model: Maker) -> None:
    model = tiny_model(n_heads=4, n_kv_heads=2)
    for layer in model.layers:  # what one of two ranks holds
        attention: Any = layer.attention
        for name, width in (("wq", 32), ("wk", 16), ("wv", 16)):
            linear = getattr(attention, name)
            linear.weight = torch.nn.Parameter(linear.weight[:width].detach())
        attention.wo.weight = torch.nn.Parameter(attention.wo.weight[:, :32].detach())
    wq, scores = (ledger(model, 1, 4)[f"layers.0.attention.{name}"] for name in ("wq", "scores"))
    assert (wq.after, wq.letters, wq.params, wq.flops) == ((1, 4, 32), "", 32 * 64, 2 * 4 * 32 * 64)
    assert (scores.after, scores.letters) == ((1, 2, 4, 4), "")


def test_layers_that_differ_are_not_folded(tiny_model: Maker) -> None:
    model = tiny_model()
    block: Any = model.layers[1].feed_forward
    block.w1 = torch.nn.Linear(64, 16, bias=False)
    block.w3 = torch.nn.Linear(64, 16, bias=False)
    block.w2 = torch.nn.Linear(16, 64, bias=False)
    assert {row.times for row in ledger(model, 1, 2).rows} == {1}


def test_the_model_is_left_as_it_was(tiny_model: Maker) -> None:
    model, tokens = tiny_model(), torch.arange(6)[None]
    before = model(tokens)
    ledger(model, 1, 6)
    assert torch.equal(model(tokens), before)
    assert not any(module._forward_hooks for module in model.modules())


def test_quantized_weights_are_counted_as_they_lie(tiny_model: Maker) -> None:
    model = tiny_model()
    full = ledger(model, 1, 1)
    small = ledger(quantize(tiny_model(), "int8"), 1, 1)
    assert (small.params, small.flops) == (full.params, full.flops)
    assert small.bytes < 0.5 * full.bytes


def test_it_is_shown_as_text_and_as_a_table(tiny_model: Maker) -> None:
    costs = ledger(tiny_model(), 1, 3)
    text, page = repr(costs), costs._repr_html_()
    assert f"{costs.params:,}" in text and f"{costs.flops:,}" in text and "x 2" in text
    assert "0.feed_forward.w2" in page and "color:inherit" in page and "#" not in page


def test_what_cannot_be_is_said(tiny_model: Maker) -> None:
    model = tiny_model(max_seq_len=16)
    with pytest.raises(ValueError, match="17 positions, more than the model's max_seq_len 16"):
        ledger(model, 1, 8, 9)
    with pytest.raises(ValueError, match="no preset '8B'"):
        ledger("8B", 1, 1)
    with pytest.raises(ValueError, match="leave dtype out"):
        ledger(model, 1, 1, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="expected a Transformer"):
        ledger(7, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="B is 0"):
        ledger(model, 0, 1)
