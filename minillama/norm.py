"""Root-mean-square normalization: chapter 01, `notebooks/01_rmsnorm.ipynb`.

Zhang & Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4.
"""

import torch
from torch import nn


class RMSNorm(nn.Module):
    """Scale each vector to unit root-mean-square, then by a learned weight.

    x: (..., D) in any floating dtype; returns the same shape and dtype.
    """

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Squares of fp16 numbers above 255 overflow, so the mean square is taken in fp32.
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        # Cast first, scale second: the order Llama 2 was trained with; the other order differs in the last bit of bf16.
        return normed.type_as(x) * self.weight
