"""What shows that the promoted attention is right."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from minillama.args import ModelArgs
from minillama.kv_cache import LayerCache
from minillama.rope import precompute_freqs_cis
from minillama.teach.receipts import Proof

RATIOS = ((8, 8), (8, 4), (8, 2), (8, 1))  # query heads, kv heads
HEAD_DIM, END, THETA = 16, 12, 10000.0


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's class beside the package's, and both beside plain float64 arithmetic and Hugging Face's layer."""
    for dtype in (torch.float32, torch.bfloat16):
        worst, oracle = 0.0, 0.0
        for H, K in RATIOS:
            here, package = _twins(ours, theirs, H, K, dtype)
            for x, positions, mask, cached in _calls(H * HEAD_DIM, dtype):
                a, b = (_called(layer, x, positions, mask, cached, K) for layer in (here, package))
                worst = max(worst, 0.0 if torch.equal(a, b) else float("inf"))
                exact = _exact(here, x, positions, K)
                oracle = max(oracle, ((a.double() - exact).abs().max() / exact.abs().max()).item())
        name = str(dtype).removeprefix("torch.")
        yield Proof(
            f"the notebook's Attention is the package's, {name}, H/K of 1 to 8, whole, after others and one by one",
            worst, 0.0,
        )  # fmt: skip
        # bf16 rounds q, k, v, the mixture and wo's result, each to 8 bits.
        yield Proof(
            f"it is softmax(qk/√h)v on repeated heads, written out in float64, {name}",
            oracle, 1e-5 if dtype is torch.float32 else 4 * torch.finfo(dtype).eps,
        )  # fmt: skip
    if find_spec("transformers") is not None:
        yield Proof(
            "it is Hugging Face's LlamaAttention on the same weights, float32", _hugging_face(ours, theirs), 1e-5
        )


@torch.no_grad()
def _twins(ours: Any, theirs: Any, H: int, K: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """The two classes with the same weights."""
    args = ModelArgs(dim=H * HEAD_DIM, n_layers=1, n_heads=H, n_kv_heads=K, vocab_size=8)
    generator = torch.Generator().manual_seed(H + K)
    here, package = theirs.Attention(args).to(dtype), ours.Attention(args).to(dtype)
    for a, b in zip(here.parameters(), package.parameters(), strict=True):
        a.copy_(2 * torch.randn(a.shape, generator=generator) / a.shape[1] ** 0.5)
        b.copy_(a)
    return here, package


Call = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]


def _calls(dim: int, dtype: torch.dtype) -> Iterator[Call]:
    """Texts x (B, S, D), positions of the last T tokens, mask, and how many tokens before them are in the cache."""
    generator = torch.Generator().manual_seed(dim)
    for B in (1, 3):
        x = torch.randn(B, END, dim, generator=generator).to(dtype)
        level = torch.arange(END)
        yield x, level, None, 0  # the whole text at once
        yield x, level[5:], _mask(level[5:]), 5  # seven tokens after five others
        yield x, level[-1:], None, END - 1  # one token
        ragged = level[5:].expand(B, -1) - torch.arange(B)[:, None]
        yield x, ragged, _mask(ragged), 5  # rows at different places


def _mask(positions: torch.Tensor) -> torch.Tensor:
    looks = torch.arange(END) <= positions[..., None]
    return looks.view(-1, 1, *looks.shape[-2:])


@torch.no_grad()
def _called(
    layer: Any, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cached: int, K: int
) -> torch.Tensor:
    table = precompute_freqs_cis(HEAD_DIM, END, THETA)
    if not cached:
        return layer(x, positions, table[positions], mask)
    B = x.shape[0]
    cache = LayerCache(*(torch.zeros(B, K, END, HEAD_DIM, dtype=x.dtype) for _ in range(2)))
    layer(x[:, :cached], torch.arange(cached), table[:cached], None, cache.window(B, cached))
    return layer(_taken(x, positions), positions, table[positions], mask, cache)


def _taken(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The tokens of x (B, S, D) that stand at `positions`."""
    rows = positions.expand(x.shape[0], -1)
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))


@torch.no_grad()
def _exact(layer: Any, x: torch.Tensor, positions: torch.Tensor, K: int) -> torch.Tensor:
    """The whole text in float64, with heads repeated and softmax written out; the rows at `positions` of it."""
    x = x.double()
    q, k, v = (
        (x @ w.weight.double().T).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for w in (layer.wq, layer.wk, layer.wv)
    )
    q, k = _turned(q), _turned(k)
    heads = torch.arange(q.shape[1]) // (q.shape[1] // K)  # the kv head of each query head
    scores = torch.einsum("bhtd,bhsd->bhts", q, k[:, heads]) / HEAD_DIM**0.5
    e = (scores - scores.amax(-1, keepdim=True)).exp().tril()
    out = torch.einsum("bhts,bhsd->bthd", e / e.sum(-1, keepdim=True), v[:, heads]).flatten(2)
    return _taken(out @ layer.wo.weight.double().T, positions)


def _turned(x: torch.Tensor) -> torch.Tensor:
    place, pair = torch.arange(x.shape[2]).double(), torch.arange(0, HEAD_DIM, 2).double()
    angle = torch.outer(place, THETA ** (-pair / HEAD_DIM))
    a, b = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    return turned.flatten(-2)


@torch.no_grad()
def _hugging_face(ours: Any, theirs: Any) -> float:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    worst = 0.0
    for H, K in RATIOS:
        here, _ = _twins(ours, theirs, H, K, torch.float32)
        dim = H * HEAD_DIM
        config = LlamaConfig(hidden_size=dim, num_attention_heads=H, num_key_value_heads=K, vocab_size=8)
        config._attn_implementation = "eager"
        layer = LlamaAttention(config, layer_idx=0)
        for w in ("wq", "wk", "wv", "wo"):
            weight = getattr(here, w).weight
            if w in ("wq", "wk"):  # their pairs are (i, i + h/2)
                weight = weight.view(-1, HEAD_DIM // 2, 2, dim).transpose(1, 2).reshape(weight.shape)
            getattr(layer, f"{w[1]}_proj").weight.copy_(weight)
        x = torch.randn(2, END, dim, generator=torch.Generator().manual_seed(K))
        positions = torch.arange(END)
        mask = torch.zeros(END, END).masked_fill(~_mask(positions)[0, 0], -torch.inf)[None, None]
        turns = LlamaRotaryEmbedding(config)(x, positions[None])
        there = layer(x, position_embeddings=turns, attention_mask=mask)[0]
        mine = _called(here, x, positions, None, 0, K)
        worst = max(worst, ((mine - there).abs().max() / there.abs().max()).item())
    return worst
