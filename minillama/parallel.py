"""Tensor parallelism: chapter 09, `notebooks/09_tensor_parallelism.ipynb`.

Shoeybi et al., "Megatron-LM" (2019), section 3, with fairscale's layers. The model is written for one process; here its
linears are replaced from outside. One process has plain layers and no process group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from fairscale.nn.model_parallel import initialize as mpu
from fairscale.nn.model_parallel import layers as fairscale_layers
from torch import nn

from minillama.transformer import Transformer

# Which dimension of a weight is cut. Columns of the matmul are rows of the stored (out, in) weight.
SPLIT_OUT = {"wq": 0, "wk": 0, "wv": 0, "w1": 0, "w3": 0, "output": 0}
SPLIT_IN = {"wo": 1, "w2": 1, "tok_embeddings": 1}
SPLIT_DIM = SPLIT_OUT | SPLIT_IN
KV = ("wk", "wv")


def split_dim(key: str) -> int | None:
    """The dimension along which ranks (and Meta's files) share the weight `key`; None: each has a copy (the norms)."""
    return SPLIT_DIM.get(key.split(".")[-2])


def part_of(key: str, kv_heads: int, rank: int, ranks: int) -> tuple[int, int]:
    """(part, parts): of how many equal parts of the weight `key` the rank holds which.

    As many as there are ranks; but kv heads are never cut. With more ranks than those, rank r of R holds head r*K//R:
    the one that its query heads look at, and R/K neighbours hold copies.

        8 ranks, 16 query heads   0 1 | 2 3 | 4 5 | 6 7 | 8 9 | 10 11 | 12 13 | 14 15
                  2 kv heads       0  |  0  |  0  |  0  |  1  |   1   |   1   |   1
    """
    if key.split(".")[-2] in KV and ranks > kv_heads:
        return rank * kv_heads // ranks, kv_heads
    return rank, ranks


def world_size() -> int:
    return mpu.get_model_parallel_world_size() if dist.is_initialized() and mpu.model_parallel_is_initialized() else 1


def rank() -> int:
    return mpu.get_model_parallel_rank() if world_size() > 1 else 0


def parallelize(model: Transformer) -> Transformer:
    """Give this rank its share: replace the linears and the embedding by fairscale's parallel ones, in place.

    Works on the meta device (each rank then loads only its slices) and on real weights (each keeps its slices). In a
    layer, wq wk wv and w1 w3 need nothing from the other ranks, wo and w2 end in an all-reduce: two a layer. Whoever
    trains with more ranks than kv heads has to add up the gradients of the copies (`part_of`).
    """
    n = world_size()
    if n == 1:
        return model
    model.args.check_ranks(n)
    with _no_initial_weights():
        # Names first: a list of modules would keep the whole weights alive until the last is cut.
        for name in [name for name, _ in model.named_modules() if name.rpartition(".")[2] in SPLIT_DIM]:
            parent, _, child = name.rpartition(".")
            dim, weight = SPLIT_DIM[child], model.get_parameter(f"{name}.weight").detach()
            rows, columns = weight.shape  # (out, in) of a linear, (V, D) of the embedding
            part, parts = part_of(f"{name}.weight", model.args.n_kv_heads, rank(), n)
            new: nn.Module
            if child == "tok_embeddings":
                new = fairscale_layers.ParallelEmbedding(rows, columns)
            elif dim == 0:
                gather = name == "output"  # every rank needs all logits
                together = rows // parts * n  # more than `rows` where kv heads are repeated
                new = fairscale_layers.ColumnParallelLinear(columns, together, bias=False, gather_output=gather)
            else:
                new = fairscale_layers.RowParallelLinear(columns, rows, bias=False, input_is_parallel=True)
            new.weight = nn.Parameter(shard(weight, dim, part, parts).clone())
            setattr(model.get_submodule(parent), child, new)
    return model


def shard(weight: torch.Tensor, dim: int, part: int, parts: int) -> torch.Tensor:
    """Part `part` of `parts` equal ones of `weight` along `dim`, contiguous; a view where it can be one."""
    return weight.chunk(parts, dim)[part].contiguous()


@contextlib.contextmanager
def _no_initial_weights() -> Iterator[None]:
    # fairscale builds the whole weight on every rank to cut a random slice from it: minutes for 70B, and impossible on
    # the meta device. The slice is about to be replaced, so the filling is left out.
    fill = fairscale_layers._initialize_affine_weight
    fairscale_layers._initialize_affine_weight = lambda *args, **kwargs: None
    try:
        yield
    finally:
        fairscale_layers._initialize_affine_weight = fill
