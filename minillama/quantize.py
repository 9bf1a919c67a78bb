"""Linear layers in fewer bits: weights of 8 or 4 bits and, for each output or group, the scale that gives them meaning.

A step of decoding reads every weight, so a quarter of the bytes can be up to four times the speed. Only weights are
quantized, by rounding to the nearest; the embedding and the norms stay as they are.

int8: one scale for each output channel. oneDNN's kernel multiplies 8-bit weights by 8-bit inputs, so an input row is
cut in two: x = s * (128 * high + low), 13 bits and a sign, finer than bfloat16. One row of a product costs what four
do, so the second half is free where decoding happens. Sums are whole numbers, exact in any order: a row's result does
not depend on its neighbours to the last bit.
int4: a scale and a zero for each group of inputs of an output, through torch's kernel; the head stays at 8 bits.

Both kernels are torch's own. `docs/speed.md` has what others brought.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from minillama.args import shown
from minillama.packed import FULL_ROWS, After, Product, after_of, groups, page_out

FORMATS = ("int8", "int4")
GROUP = 32  # inputs that share a scale at 4 bits
HALF = 64  # inputs are cut into halves of 7 bits: pairs of products then fit in 16 bits, which older processors add in
LARGEST = 63 * 2 * HALF + 63  # of a cut input: high and low within -63 .. 63
OUT_MULTIPLE = 16  # rows that the 4-bit kernel works on together


def check_format(quantize: Any) -> str | None:
    """`quantize` if it is one of FORMATS or None. Raises ValueError otherwise."""
    if quantize is not None and (not isinstance(quantize, str) or quantize not in FORMATS):
        raise ValueError(
            f"quantize is {shown(quantize)}; expected {' or '.join(FORMATS)}, or None for the file's dtype"
        )
    return quantize


def named_format(quantize: Any) -> str:
    """`quantize`, one of FORMATS. Raises ValueError otherwise, for None too."""
    if check_format(quantize) is None:
        raise ValueError(f"quantize is None; expected {' or '.join(FORMATS)}")
    return quantize


def quantize_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight (out, in) -> int8 (out, in) and fp32 scale (out,): weight is about int8 * scale.

    A scale for each output: w1 and w3 have channels with weights many times the others', and one scale for all would
    leave those few steps.
    """
    w = weight.float()
    scale = w.abs().amax(1).clamp(min=1e-30) / 127
    return (w / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def quantize_int4(weight: torch.Tensor, group: int = GROUP) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight (out, in) -> int8 of 0 .. 15 (out, in), and bf16 scale and zero (out, in/group).

    weight is about (int4 - 8) * scale + zero. `in` has to be a multiple of `group`.
    """
    w = weight.float().unflatten(1, (-1, group))  # (out, in) -> (out, in/group, group)
    low, high = w.aminmax(dim=-1, keepdim=True)
    # Rounded to what the kernel is given before they are used, so that the integers make up for it.
    scale = ((high - low) / 15).clamp(min=1e-30).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    q = ((w - zero.float()) / scale.float()).round_().add_(8).clamp_(0, 15)
    return q.flatten(1).to(torch.int8), scale[..., 0], zero[..., 0]


class Unchanging(Product):
    """A product whose weights nobody can change: a copy of the model may share it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Unchanging:
        return self

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a quantized model cannot be pickled; `minillama convert --quantize` writes one to a folder")


class Int8Product(Unchanging):
    """x (..., in) by int8 weights (out, in) with a scale for each output."""

    def __init__(self, weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]):
        super().__init__([len(weight) for weight in weights])
        self.scale = torch.cat(list(scales))
        self.zero = torch.zeros(len(self.scale), dtype=torch.int32, device="cpu")
        weight = torch.cat(list(weights))
        self.nbytes = weight.nbytes + self.scale.nbytes
        self.packed = torch.ops.onednn.qlinear_prepack(weight, [FULL_ROWS, weight.shape[1]])

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])  # (n, in)
        n = len(flat)
        s = flat.abs().amax(-1, keepdim=True).float().clamp_(min=1e-30).div_(LARGEST)  # (n, 1)
        # Rounded, and moved up so that both halves, 0 .. 127, stand for -64 .. 63.
        whole = (flat / s).add_(HALF * 2 * HALF + HALF + 0.5).to(torch.int16)
        halves = torch.empty(max(2 * n, FULL_ROWS), flat.shape[1], dtype=torch.uint8, device="cpu")
        halves[:n] = whole >> 7
        halves[n : 2 * n] = whole & 127
        y = self.product(halves)  # (2n or FULL_ROWS, out)
        y = torch.add(y[n : 2 * n], y[:n], alpha=2 * HALF).mul_(s)  # (n, out)
        return y.type_as(x).view(*x.shape[:-1], -1)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.onednn.qlinear_pointwise.default(
            x, 1.0, HALF, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )


class Int4Product(Unchanging):
    """x (..., in) by 4-bit weights (out, in) with a scale and a zero for each group of inputs."""

    def __init__(self, weights: Sequence[torch.Tensor], scales: Sequence[torch.Tensor], zeros: Sequence[torch.Tensor]):
        super().__init__([len(weight) for weight in weights])
        weight, scale, zero = (torch.cat(list(ts)) for ts in (weights, scales, zeros))
        self.out, self.pad_in = len(weight), weight.shape[1]
        more = -self.out % OUT_MULTIPLE
        weight, scale, zero = (F.pad(t, (0, 0, 0, more)) for t in (weight, scale, zero))
        self.group = weight.shape[1] // scale.shape[1]
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.int(), 1)
        self.scales_zeros = torch.stack([scale.t(), zero.t()], -1).contiguous()  # (in/group, out, 2)
        self.nbytes = self.packed.nbytes + self.scales_zeros.nbytes

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1]).bfloat16()
        flat = F.pad(flat, (0, self.pad_in - flat.shape[1])) if flat.shape[1] < self.pad_in else flat.contiguous()
        return self.product(flat)[:, : self.out].type_as(x).reshape(*x.shape[:-1], -1)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu.default(x, self.packed, self.group, self.scales_zeros)


class QuantizedLinear(nn.Module):
    """A linear layer without bias whose weights are part `index` of `shared`; after: see `PackedLinear`."""

    def __init__(self, shared: Int8Product | Int4Product, index: int, after: After | None = None):
        super().__init__()
        self.shared, self.index, self.after = shared, index, after
        self.out_features = shared.sizes[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., in) -> (..., out), in x's dtype. Raises RuntimeError for an x that wants a gradient."""
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("no gradient goes through quantized weights; build the model without quantize to train")
        y = self.shared.part(x, self.index)
        return y if self.after is None else self.after(y)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the shared weights, told by the first of those who share: a sum over modules counts them once."""
        return self.shared.nbytes if self.index == 0 else 0


def quantize(model: nn.Module, format: str, leave_file: bool = False) -> nn.Module:
    """Replace every linear of `model`, in place, by one of `format` "int8" or "int4"; returns the model.

    What was quantized cannot be trained, and no longer has its weights in `parameters()`. leave_file: see `pack`.
    Raises ValueError for an unknown format, a model that is quantized already, or one that is not on the CPU: the
    kernels are the CPU's.
    """
    named_format(format)
    plain = list(groups(model, packed=True))
    if not plain:
        raise ValueError(f"the model is quantized already; {format} has to start from the full weights")
    for owner, names in plain:
        linears = [getattr(owner, name) for name in names]
        check_device(linears[0].weight.device)
        kind = format_of(names[0], format)
        tensors = [quantized(linear.weight.detach(), kind) for linear in linears]
        _put(owner, names, tensors, kind, [after_of(linear) for linear in linears])
        if leave_file:
            for linear in linears:
                page_out(linear.weight)
    return model.requires_grad_(False)


def format_of(name: str, format: str) -> str:
    """The format of the linear `name` in a model of `format`. Errors in the head fall on every token at once."""
    return "int8" if name == "output" else format


def check_device(device: torch.device | str) -> None:
    """Raise ValueError unless quantized layers run on `device` of this machine."""
    if torch.device(device).type != "cpu":
        raise ValueError(f"quantized weights run on the CPU, not on {device}: pass device='cpu', or leave quantize out")
    if not torch.backends.mkldnn.is_available():
        raise ValueError("quantized weights need oneDNN, and this build of torch is without it; leave quantize out")


def quantized(weight: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    """What a file keeps of a weight (out, in): "weight", "scale" and, at 4 bits (two to a byte), "zero"."""
    if kind == "int8":
        return dict(zip(("weight", "scale"), quantize_int8(weight)))
    q, scale, zero = quantize_int4(F.pad(weight, (0, -weight.shape[1] % GROUP)))
    return {"weight": (q[:, ::2] | q[:, 1::2] << 4).view(torch.uint8), "scale": scale, "zero": zero}


def quantized_shapes(out: int, in_: int, kind: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of `quantized` for a weight (out, in)."""
    if kind == "int8":
        return {"weight": ((out, in_), torch.int8), "scale": ((out,), torch.float32)}
    n = -(-in_ // GROUP)
    groups_of = ((out, n), torch.bfloat16)
    return {"weight": ((out, n * GROUP // 2), torch.uint8), "scale": groups_of, "zero": groups_of}


def put_quantized(model: nn.Module, format: str, take: Callable[[str], torch.Tensor]) -> nn.Module:
    """Give the linears of `model`, which may be on the meta device, the quantized tensors that take(key) returns."""
    prefixes = {id(module): name + "." if name else "" for name, module in model.named_modules()}
    for owner, names in groups(model):
        kind = format_of(names[0], format)
        fields = quantized_shapes(1, 1, kind)
        tensors = [{f: take(f"{prefixes[id(owner)]}{name}.{f}") for f in fields} for name in names]
        _put(owner, names, tensors, kind, [None] * len(names))
    return model.requires_grad_(False)


def _put(
    owner: nn.Module,
    names: Sequence[str],
    tensors: Sequence[dict[str, torch.Tensor]],
    kind: str,
    after: Sequence[After | None],
) -> None:
    weights, scales = [t["weight"] for t in tensors], [t["scale"] for t in tensors]
    shared: Int8Product | Int4Product
    if kind == "int8":
        shared = Int8Product(weights, scales)
    else:
        nibbles = [torch.stack([w & 15, w >> 4], -1).flatten(1).view(torch.int8) for w in weights]
        shared = Int4Product(nibbles, scales, [t["zero"] for t in tensors])
    for i, name in enumerate(names):
        setattr(owner, name, QuantizedLinear(shared, i, after[i]))
