"""A weight as files hold it, and the part of it that a rank needs.

Files may hold it whole, or in pieces that follow each other along its rows or its columns; a rank may need it whole,
or a range of its rows or of its columns. Neither knows of the other: any files go into any number of ranks.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
GIT_LFS = b"version https://"  # how the small file begins that stands for a large one until it is fetched
POINTER = "it is a pointer that Git LFS left in its place; fetch the file with: git lfs pull"

Tensors = dict[str, torch.Tensor]


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message says which file, what was found and what was expected."""


@dataclass(frozen=True)
class Weight:
    """Pieces, mapped from files and not yet read, that put together along `dim` are one weight.

    halves: the numbers of a head, where its rows are in Hugging Face's order and not in Meta's (see `huggingface`).
    """

    pieces: list[torch.Tensor]
    dim: int = 0
    halves: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.pieces[0].shape)
        shape[self.dim] = sum(piece.shape[self.dim] for piece in self.pieces)
        return tuple(shape)

    def cut(self, dim: int, part: int, parts: int) -> list[torch.Tensor]:
        """Part `part` of `parts` equal ones along `dim`: views into the pieces that hold it, and into no others."""
        whole = self.shape[dim]
        start, end = part * whole // parts, (part + 1) * whole // parts
        if dim != self.dim:  # as Llama 3's embedding: files have some of its rows, ranks some of its columns
            return [piece.narrow(dim, start, end - start) for piece in self.pieces]
        views, at = [], 0  # `at`: where a piece begins in the whole
        for piece in self.pieces:
            size = piece.shape[dim]
            low, high = max(start - at, 0), min(end - at, size)
            if low < high:
                views.append(piece.narrow(dim, low, high - low))
            at += size
        return views


def assemble(
    weight: Weight,
    dim: int | None = None,
    part: int = 0,
    parts: int = 1,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Part `part` of `parts` of a weight along `dim` (None: all of it), in Meta's order.

    What lies in one file as it is wanted stays mapped: it is read when it is used. Otherwise views are copied straight
    to their place, in `dtype` and on `device`: beside the result there is never a second copy in memory.
    """
    views = weight.pieces if dim is None else weight.cut(dim, part, parts)
    first, dtype, device = views[0], dtype or views[0].dtype, torch.device(device)
    as_it_is = len(views) == 1 and not weight.halves and first.is_contiguous()
    if as_it_is and first.dtype == dtype and device.type == "cpu":
        return first
    shape = list(first.shape)
    shape[weight.dim] = sum(view.shape[weight.dim] for view in views)
    result, at = torch.empty(shape, dtype=dtype, device=device), 0
    for view in views:
        size = view.shape[weight.dim]
        target = result.narrow(weight.dim, at, size)
        if weight.halves:
            view, target = pairs_of_halves(view, weight.halves), target.unflatten(0, (-1, weight.halves // 2, 2))
        target.copy_(view)
        at += size
    return result


def pairs_of_halves(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows (n*h, in) of n heads, i beside i + h/2, as a view (n, h/2, 2, in) in Meta's order, 2i beside 2i + 1."""
    return rows.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2)


def check_keys(path: Path, tensors: Set[str], wanted: Set[str]) -> None:
    """Raise CheckpointError, naming the keys, where the two differ."""
    missing, unexpected = wanted - tensors, tensors - wanted
    if missing or unexpected:
        kinds = (("lacks", missing), ("has unexpected", unexpected))
        raise CheckpointError(f"{path} {' and '.join(f'{kind} {some(keys)}' for kind, keys in kinds if keys)}")


def first_bytes(path: Path) -> bytes:
    """How a file begins: a web page or a pointer of Git LFS in the place of weights is told by it."""
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError:
        return b""


def some(keys: Set[str]) -> str:
    """Names for a message, six at most."""
    names = sorted(keys)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
