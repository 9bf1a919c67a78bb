"""A learner's ranks, where slots of `slots.RANKS` are filled: what a rank takes of each weight, and its embedding.

The functions run wherever `torchrun` has started several processes. The files are read as ever, only what a rank needs
of them: a learner's function is asked for the numbers of rows, not for the rows.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import nn

from minillama import parallel
from minillama.args import ModelArgs
from minillama.parallel import KV, split_dim
from minillama.teach.slots import Function, PartError, Parts, put_on, ready, summed
from minillama.transformer import Transformer

EMBEDDING = "tok_embeddings.weight"


class OwnParts:
    """A learner's functions on their way into a model: how this rank loads it, and what it then runs on.

    Raises PartError for functions that do not fit.
    """

    def __init__(self, parts: Parts):
        self.parts = ready(parts)

    def share(self, key: str, shape: tuple[int, ...], args: ModelArgs) -> tuple[int | None, int, int]:
        """Of the weight `key`: the dimension that is cut, and of how many equal parts this rank takes which."""
        rank, ranks = parallel.rank(), parallel.world_size()
        dim = split_dim(key)
        if ranks == 1 or dim is None:
            return dim, 0, 1
        if key == EMBEDDING and "vocab_lookup" in self.parts:
            dim = 0  # whole vectors of some words
        if key.split(".")[-2] in KV and "my_kv_heads" in self.parts:
            heads = check_heads(self.parts["my_kv_heads"](rank, ranks, args.n_kv_heads), ranks, args.n_kv_heads)
            return (dim, *_part("my_kv_heads", key, heads, args.n_kv_heads))
        part, parts = parallel.part_of(key, args.n_kv_heads, rank, ranks)
        if "column_shard" in self.parts:
            numbers = torch.arange(float(shape[dim]))[:, None]  # (out, 1): the number of each row, or of each column
            rows = self.parts["column_shard"](numbers, part, parts)[:, 0].long().tolist()
            part, parts = _part("column_shard", key, rows, shape[dim])
        return dim, part, parts

    def put_on(self, model: Transformer) -> None:
        """Let `model`, loaded by `share`, run on the parts."""
        put_on(model, self.parts)
        if parallel.world_size() > 1 and "vocab_lookup" in self.parts:
            own = OwnEmbedding(model.get_parameter(EMBEDDING), self.parts["vocab_lookup"])
            model.set_submodule("tok_embeddings", own)


class OwnEmbedding(nn.Module):
    """The embedding cut by vocabulary: zeros for other ranks' words, and the sum of what the ranks have."""

    def __init__(self, weight: nn.Parameter, lookup: Function):
        super().__init__()
        self.weight, self.lookup = weight, lookup  # (V/R, D)
        self.embedding_dim = weight.shape[1]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mine = self.lookup(tokens, self.weight, parallel.rank() * len(self.weight))  # (B, T) -> (B, T, D)
        return summed(mine)


def check_heads(heads: Any, ranks: int, n_kv_heads: int) -> list[int]:
    """`heads` as a list of numbers. Raises PartError unless they are as many of the model's as a rank holds."""
    try:
        numbers = [operator.index(head) for head in heads]
    except (TypeError, ValueError):
        raise PartError(f"your my_kv_heads returned {heads!r}; expected a list of heads") from None
    wanted = max(1, n_kv_heads // ranks)
    if len(numbers) != wanted or not all(0 <= number < n_kv_heads for number in numbers):
        raise PartError(f"your my_kv_heads returned {numbers}; expected {wanted} of the heads 0 to {n_kv_heads - 1}")
    return numbers


def _part(name: str, key: str, numbers: list[int], whole: int) -> tuple[int, int]:
    """(part, parts) of `whole` that the neighbours `numbers` are."""
    size = len(numbers)
    first = numbers[0] if numbers else 0
    if not size or whole % size or first % size or numbers != list(range(first, first + size)):
        few = ", ".join(map(str, numbers[:4])) + ", ..." * (size > 4)
        raise PartError(
            f"your {name} gives rank {parallel.rank()} of {parallel.world_size()} {few} of the {whole} of {key}; "
            "expected neighbours, one of several equal parts"
        )
    return first // size, whole // size
