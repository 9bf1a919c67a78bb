"""The SwiGLU feed-forward block: chapter 05, `notebooks/05_swiglu.ipynb`.

Shazeer, "GLU Variants Improve Transformer" (2020), equation 6.
"""

import torch
import torch.nn.functional as F
from torch import nn


class FeedForward(nn.Module):
    """w2(silu(w1 x) * w3 x): w1 opens and closes the gate, w3 is what passes it, w2 brings it back.

    hidden_dim: F; `ModelArgs.hidden_dim` has the rule that gives 11008, 13824 and 28672.
    """

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, T, D) -> (B, T, D)."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # (B, T, D) -> (B, T, F) -> (B, T, D)
