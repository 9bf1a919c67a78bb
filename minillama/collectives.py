"""Exchanges between ranks that `torch.compile` takes into its graph: what `Llama.build` puts on for the compiler.

fairscale's are autograd functions, and the compiler breaks its graph at each: twice a layer. Here the same exchanges
are operations of torch's own, which a graph can hold and a CUDA graph can replay. Where gradients are wanted, the
layers remain fairscale's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fairscale.nn.model_parallel import initialize as mpu
from fairscale.nn.model_parallel import layers as fairscale_layers
from torch import nn

from minillama.parallel import world_size


def for_inference(model: nn.Module) -> nn.Module:
    """Give the parallel layers of `model`, in place, exchanges that a graph can hold; returns the model."""
    kinds: dict[type, type] = {
        fairscale_layers.ColumnParallelLinear: ColumnLinear,
        fairscale_layers.RowParallelLinear: RowLinear,
        fairscale_layers.ParallelEmbedding: Embedding,
    }
    for module in model.modules():
        if (kind := kinds.get(type(module))) is not None:
            # Only `forward` differs, so parameters, their names and whoever holds the module stay as they are.
            module.__class__ = kind
            module.__dict__["ranks"] = (world_size(), mpu.get_model_parallel_group().group_name)
    return model


class ColumnLinear(fairscale_layers.ColumnParallelLinear):
    """Each rank's columns of the product, (..., out / R); put together where all of them are needed."""

    ranks: tuple[int, str]  # how many, and the name of their group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return super().forward(x)
        y = F.linear(x, self.weight, self.bias)
        return all_parts(y, *self.ranks) if self.gather_output else y


class RowLinear(fairscale_layers.RowParallelLinear):
    """Each rank's share of every sum, and then the sum of the shares."""

    ranks: tuple[int, str]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return super().forward(x)
        return sum_of_parts(F.linear(x, self.weight), *self.ranks)


class Embedding(fairscale_layers.ParallelEmbedding):
    """Each rank's part of every token's vector, put together."""

    ranks: tuple[int, str]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return super().forward(tokens)
        return all_parts(F.embedding(tokens, self.weight), *self.ranks)


def sum_of_parts(x: torch.Tensor, n: int, group: str) -> torch.Tensor:
    """The sum of the n ranks' `x`."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(x, "sum", group))


def all_parts(x: torch.Tensor, n: int, group: str) -> torch.Tensor:
    """The n ranks' `x` (..., w) beside one another: (..., n * w)."""
    ops = torch.ops._c10d_functional
    together = ops.wait_tensor(ops.all_gather_into_tensor(x.contiguous(), n, group))  # (n * B, ..., w)
    return torch.cat(together.chunk(n), -1)
