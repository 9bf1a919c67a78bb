"""Weights in the order in which the CPU reads them: what `Llama.build` puts on large linears.

A step of decoding is one pass over all weights, so its speed is the speed of reading memory. torch's own product of one
row and a matrix reads at a half to three quarters of that speed, in bf16 at less; oneDNN's kernels for weights in their
own blocked order come near it, from one row to thousands. They are best from four rows on, so fewer are filled up.
wq, wk and wv read the same row, and so do w1 and w3: each group is one product. `docs/speed.md` has the measurements.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairscale.nn.model_parallel import layers as fairscale_layers
from fairscale.nn.model_parallel.mappings import gather_from_model_parallel_region as gather
from fairscale.nn.model_parallel.mappings import reduce_from_model_parallel_region as reduce
from torch import nn

from minillama.memory import share_of_free

WORTH_PACKING = 2**19  # weights of a group: below, the longer call costs more than the faster reading brings
FULL_ROWS = 4  # one to three rows take longer than four
GROUPS = (("wq", "wk", "wv"), ("w1", "w3"))  # linears of a block that are given the same input
MADV_PAGEOUT = 21  # Linux's number; Python 3.11's mmap does not name it

After = Callable[[torch.Tensor], torch.Tensor]


class Product:
    """One product for linears that are given the same input, each taking its part of the result.

    The last result is kept with its input: the second of the group asks with the very tensor that the first asked with.
    """

    def __init__(self, sizes: Sequence[int]):
        self.sizes = list(sizes)
        self.last: tuple[torch.Tensor, int, Sequence[torch.Tensor]] | None = None

    def part(self, x: torch.Tensor, i: int) -> torch.Tensor:
        """x (..., in) -> linear i's (..., out)."""
        if not x.numel():
            return x.new_empty(*x.shape[:-1], self.sizes[i])
        if len(self.sizes) == 1:
            return self.rows(x)
        version = 0 if x.is_inference() else x._version
        last = self.last  # read once: another thread may put its own there
        if i == 0 or last is None or last[0] is not x or last[1] != version or self.changed():
            last = (x, version, self.rows(x).split_with_sizes(self.sizes, -1))
        self.last = None if i == len(self.sizes) - 1 else last
        return last[2][i]

    def changed(self) -> bool:
        """Whether the weights are others than those of the last product."""
        return False

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in) -> (..., sum of out); a few rows are repeated until there are FULL_ROWS."""
        n = x.shape[0]
        if n >= FULL_ROWS or x.numel() >= FULL_ROWS * x.shape[-1]:
            return self.product(x)
        return self.product(torch.cat([x] * -(-FULL_ROWS // n)))[:n]

    def product(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class PackedProduct(Product):
    """Over a packed copy of weights (out, in), which stay the truth: what changes is packed anew before it is used."""

    def __init__(self, weights: Sequence[nn.Parameter]):
        super().__init__([len(weight) for weight in weights])
        for weight in weights:
            weight.__class__ = Watched
        self.weights: list[Watched] = list(weights)  # type: ignore[arg-type]
        self.dtype = weights[0].dtype
        for weight in self.weights:
            weight.product = weakref.ref(self)  # a cycle would keep a whole model until Python looks for cycles
        # By someone who may change a weight unseen (see Watched), or to a dtype or device that is not packed.
        self.opened = not all(has_kernel(weight) for weight in self.weights)
        if not self.opened:
            self.pack()

    def pack(self) -> None:
        # Packed for four rows: the order that is within a few percent of the best for any number.
        weights = [weight.detach() for weight in self.weights]
        joined = torch.cat(weights) if len(weights) > 1 else weights[0]
        self.packed = torch.ops.mkldnn._reorder_linear_weight(joined, FULL_ROWS)
        self.versions = [weight._version for weight in self.weights]

    def changed(self) -> bool:
        return self.versions != [weight._version for weight in self.weights]

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if self.changed():
            self.pack()
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, None, "none", [], "")

    def __getstate__(self) -> dict[str, Any]:  # oneDNN's order cannot be copied or saved
        return {"sizes": self.sizes, "weights": self.weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["weights"])  # type: ignore[misc]


class Watched(nn.Parameter):
    """A weight that tells its product when it is asked for `.data`: what is changed there, no version counter shows."""

    product: weakref.ref[PackedProduct] | None = None

    @property
    def data(self) -> torch.Tensor:
        self._open()
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        there = (self.data_ptr(), self.dtype, self.shape, self.stride())
        if there != (value.data_ptr(), value.dtype, value.shape, value.stride()):  # `model.to("cpu")` changes nothing
            self._open()
            torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]

    def _open(self) -> None:
        shared = None if self.product is None else self.product()
        if shared is not None:
            shared.opened = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:  # nn.Parameter's own, and its pickling, take `.data`
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(protocol)


class PackedLinear(nn.Module):
    """A linear layer without bias, part `index` of `shared`; after: what a parallel one does with its product.

    Where gradients are wanted, or the weight was replaced, opened through `.data` or taken to another device or dtype,
    the product is torch's ordinary one. A change that no counter shows, through `weight.detach().numpy()` say, is not
    seen: make it under `torch.no_grad()` on the weight itself.
    """

    def __init__(self, shared: PackedProduct, index: int, after: After | None = None):
        super().__init__()
        self.weight: nn.Parameter = shared.weights[index]
        self.shared, self.index, self.after = shared, index, after
        self.out_features, self.in_features = self.weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., in) -> (..., out)."""
        shared, weight = self.shared, self._parameters["weight"]
        if (
            torch.is_grad_enabled()
            or weight is not shared.weights[self.index]
            or shared.opened
            or x.dtype != shared.dtype
            or not x.is_cpu
            or x.dim() < 2
        ):
            y = F.linear(x, self.weight)
        else:
            y = shared.part(x, self.index)
        return y if self.after is None else self.after(y)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


@torch.inference_mode(False)  # see `load_model`
def pack(model: nn.Module, leave_file: bool = False) -> nn.Module:
    """Replace the large linears of `model`, in place, by packed ones where the machine gains by it.

    leave_file: the weights are mapped from a file; give their pages back, so that only the packed copy is in memory.
    """
    for owner, names in groups(model):
        linears = [getattr(owner, name) for name in names]
        if not has_kernel(linears[0].weight) or sum(linear.weight.numel() for linear in linears) < WORTH_PACKING:
            continue
        shared = PackedProduct([linear.weight for linear in linears])
        for i, (name, linear) in enumerate(zip(names, linears)):
            setattr(owner, name, PackedLinear(shared, i, after_of(linear)))
        if leave_file:
            for weight in shared.weights:
                page_out(weight)
    return model


def groups(model: nn.Module, packed: bool = False) -> Iterator[tuple[nn.Module, Sequence[str]]]:
    """The linear layers of `model`: who owns them and their names, those with the same input together.

    packed: those that are packed as well.
    """
    for owner in list(model.modules()):
        children = owner.named_children()
        names = [name for name, child in children if is_linear(child) or (packed and isinstance(child, PackedLinear))]
        joint = [group for group in GROUPS if set(group) <= set(names) and _alike(owner, group)]
        yield from ((owner, group) for group in joint)
        yield from ((owner, (name,)) for name in names if not any(name in group for group in joint))


def _alike(owner: nn.Module, names: Sequence[str]) -> bool:
    kinds = {(w.shape[1], w.dtype, w.device, w.requires_grad) for w in (getattr(owner, name).weight for name in names)}
    return len(kinds) == 1


def is_linear(module: nn.Module) -> bool:
    """Whether it is a linear layer without bias, plain or one of fairscale's."""
    parallel = (fairscale_layers.ColumnParallelLinear, fairscale_layers.RowParallelLinear)
    return (type(module) is nn.Linear or isinstance(module, parallel)) and module.bias is None


def after_of(linear: nn.Module) -> After | None:
    """What a parallel layer does with its product for the other ranks; None: nothing."""
    if isinstance(linear, PackedLinear):
        return linear.after
    if isinstance(linear, fairscale_layers.RowParallelLinear):
        return reduce
    return gather if getattr(linear, "gather_output", False) else None


def has_kernel(weight: torch.Tensor) -> bool:
    """Whether this machine multiplies by packed weights of this dtype, and can tell when this one is changed."""
    if weight.device.type != "cpu" or weight.is_inference() or not torch.backends.mkldnn.is_available():
        return False
    return weight.dtype == torch.float32 or (
        weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def fits(model: nn.Module) -> bool:
    """Whether there is memory for a packed copy of the linears beside what is in use; where nobody says, it is so."""
    needed = sum(getattr(owner, name).weight.nbytes for owner, names in groups(model) for name in names)
    available = share_of_free(torch.device("cpu"))
    return available is None or needed < 0.8 * available


def page_out(tensor: torch.Tensor) -> None:
    """Tell Linux that a mapped tensor's pages are not needed now. Nothing is lost: it reads them again if they are."""
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (tensor.data_ptr() + tensor.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0:
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), MADV_PAGEOUT)
