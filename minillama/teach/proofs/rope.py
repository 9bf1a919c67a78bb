"""What shows that the promoted rotary embedding is right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from minillama.teach.receipts import Proof

HEADS = ((4, 4), (8, 2), (6, 1))  # H, K
HEAD_DIM, POSITIONS, THETA = 24, 512, 10000.0


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's functions beside the package's, and both beside rotation matrices in float64 and transformers."""
    worst = 0.0
    for dim, end, theta in ((HEAD_DIM, POSITIONS, THETA), (128, 4096, THETA), (128, 300, 500000.0), (2, 1, THETA)):
        a, b = theirs.precompute_freqs_cis(dim, end, theta), ours.precompute_freqs_cis(dim, end, theta)
        worst = max(worst, 0.0 if torch.equal(a, b) else float("inf"))
    yield Proof("the notebook's table is the package's, theta 10,000 and 500,000", worst, 0.0)

    for dtype in (torch.float32, torch.bfloat16):
        worst, oracle = 0.0, 0.0
        for xq, xk, positions in _inputs(dtype):
            freqs_cis = ours.precompute_freqs_cis(HEAD_DIM, POSITIONS, THETA)[positions]
            here, package = theirs.apply_rotary_emb(xq, xk, freqs_cis), ours.apply_rotary_emb(xq, xk, freqs_cis)
            for a, b, x in zip(here, package, (xq, xk)):
                worst = max(worst, 0.0 if torch.equal(a, b) and a.dtype == dtype else float("inf"))
                off = (b.double() - _by_matrices(x, positions)).abs().max() / x.double().abs().max()
                oracle = max(oracle, off.item())
        name = str(dtype).removeprefix("torch.")
        yield Proof(f"the notebook's rotation is the package's, {name}, H/K of 1, 4, 6, any start", worst, 0.0)
        # An fp32 angle of 511 radians is off by up to 3e-5, and rounding to bf16 costs half a unit in the last place.
        yield Proof(f"it is a product with rotation matrices in float64, {name}", oracle, _allowed(dtype))

    with contextlib.suppress(ImportError):
        yield Proof("it is transformers' rotation, once the pairs are halves, float32", _from_transformers(ours), 1e-4)


def _allowed(dtype: torch.dtype) -> float:
    return 1e-4 if dtype is torch.float32 else 1e-4 + torch.finfo(dtype).eps


def _inputs(dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Queries (B, T, H, h), keys (B, T, K, h) and positions: from 0, from further on, and another start in each row."""
    generator = torch.Generator().manual_seed(0)
    B, T = 3, 7
    starts = torch.tensor([0, 40, 500])
    for H, K in HEADS:
        for positions in (torch.arange(T), torch.arange(T) + 300, torch.arange(T) + starts[:, None]):
            xq, xk = (torch.randn(B, T, n, HEAD_DIM, generator=generator).to(dtype) for n in (H, K))
            yield xq, xk, positions


def _by_matrices(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """x (B, T, H, h) times a matrix (h, h) of 2 x 2 rotations for each position, in float64."""
    freqs = [THETA ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)]
    matrices = torch.stack([_matrix(m, freqs) for m in positions.flatten().tolist()]).view(
        *positions.shape, HEAD_DIM, -1
    )
    return torch.einsum("...ij,...Hj->...Hi", matrices, x.double())


def _matrix(m: int, freqs: list[float]) -> torch.Tensor:
    angles = torch.tensor([m * f for f in freqs], dtype=torch.float64)
    blocks = [torch.stack([torch.stack([c, -s]), torch.stack([s, c])]) for c, s in zip(angles.cos(), angles.sin())]
    return torch.block_diag(*blocks)


def _from_transformers(ours: Any) -> float:
    """Largest difference from transformers. Raises ImportError where it is not installed."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=8 * HEAD_DIM, num_attention_heads=8, max_position_embeddings=POSITIONS)
    rotary = LlamaRotaryEmbedding(config)
    order = torch.cat([torch.arange(0, HEAD_DIM, 2), torch.arange(1, HEAD_DIM, 2)])
    worst = 0.0
    for xq, xk, positions in _inputs(torch.float32):
        rows = positions.expand(len(xq), -1)  # (B, T)
        cos, sin = rotary(xq, rows)
        halves = [x[..., order].transpose(1, 2) for x in (xq, xk)]  # (B, H, T, h)
        turned = apply_rotary_pos_emb(*halves, cos, sin)
        freqs_cis = ours.precompute_freqs_cis(HEAD_DIM, POSITIONS, THETA)[positions]
        for a, b in zip(ours.apply_rotary_emb(xq, xk, freqs_cis), turned):
            worst = max(worst, (a[..., order] - b.transpose(1, 2)).abs().max().item())
    return worst
