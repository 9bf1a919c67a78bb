"""What tests see of a run besides its result: which operations ran, what they read, and what memory they made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Op:
    """An operation that ran. made: results in memory of their own, not views of what was read."""

    name: str  # without namespace and overload: "mm"
    read: list[torch.Tensor]
    made: list[torch.Tensor]


class Watch(TorchDispatchMode):
    """Every operation that runs while it is open. Its tensors stay alive, so that no memory is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = tensors_in((args, kwargs))
        before = {memory(t) for t in read}
        made = [t for t in tensors_in(result) if memory(t) not in before]
        self.ops.append(Op(func._schema.name.partition("::")[2], read, made))
        return result


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def memory(t: torch.Tensor) -> int:
    """The same for views of the same memory. What oneDNN packed has no storage to ask, and no views."""
    return id(t) if t.layout == torch._mkldnn else t.untyped_storage()._cdata


def readers(ops: Sequence[Op], t: torch.Tensor) -> list[str]:
    """Names of the operations that made something out of `t`."""
    return [op.name for op in ops if op.made and memory(t) in map(memory, op.read)]


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, in parts of the largest expected number."""
    assert found.shape == expected.shape
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())
