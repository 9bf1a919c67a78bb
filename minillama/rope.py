"""Rotary position embedding: chapter 02, `notebooks/02_rope.ipynb`.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), section 3.2.2, in the layout of
Meta's files: neighbours (0, 1), (2, 3), ... form the pairs. Hugging Face files pair i with i + h/2 instead.
"""

import torch


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> torch.Tensor:
    """The unit complex numbers that turn each pair at each position: (end, dim/2) complex64.

    dim: head_dim h. Entry [m, i] is exp(1j * m * theta^(-2i/h)). Always fp32: bf16 cannot tell position 256 from 257.
    """
    # The CPU is named because models are built on the meta device, where a table of numbers would be lost.
    freqs = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)  # (h/2,)
    angles = torch.outer(torch.arange(end, dtype=torch.float32, device="cpu"), freqs)  # (end, h/2)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary_emb(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn queries and keys by the angle of their position.

    xq: (B, T, H, h), xk: (B, T, K, h); freqs_cis: (T, h/2), or (B, T, h/2) where rows are at different positions.
    Returns both in their own shape and dtype; the product is taken in fp32.
    """
    turn = freqs_cis.unsqueeze(-2)  # (..., T, h/2) -> (..., T, 1, h/2): the same turn for every head

    def rotate(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))  # (B, T, H, h) -> (B, T, H, h/2)
        return torch.view_as_real(pairs * turn).flatten(-2).type_as(x)  # (B, T, H, h/2, 2) -> (B, T, H, h)

    return rotate(xq), rotate(xk)
