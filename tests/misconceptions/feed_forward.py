"""Wrong answers to chapter 05 as people write them, by the name of the mistake that they should be told of."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def gelu_by_erf(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def silu_numerator(x):
    e = x.exp()
    return x * (e / (e + 1))


def swapped(x, w1, w2, w3):
    gate = nn.SiLU()(w3(x))
    up = w1(x)
    return w2(up.mul(gate))


def bent_product(x, w1, w2, w3):
    h = w1(x) * w3(x)
    return w2(h * torch.sigmoid(h))


def both(x, w1, w2, w3):
    act = nn.SiLU()
    return w2(act(w1(x)) * act(w3(x)))


def one_matrix_twice(x, w1, w2, w3):
    h = w1(x)
    return w2(h * h * torch.sigmoid(h))


def residual(x, w1, w2, w3):
    out = w2(F.silu(w1(x)) * w3(x))
    out = out + x
    return out


def as_matrices(x, w1, w2, w3):
    return (F.silu(x @ w1.T) * (x @ w3.T)) @ w2.T


def rounds(hidden, multiple_of):
    while hidden % multiple_of:
        hidden += 1
    return hidden


def width_from_4d(dim, multiple_of, multiplier):
    hidden = 4 * dim
    if multiplier:
        hidden = int(hidden * multiplier)
    return rounds(hidden, multiple_of)


def width_floor(dim, multiple_of, multiplier):
    hidden = int(2 * 4 * dim / 3)
    if multiplier is not None:
        hidden = int(hidden * multiplier)
    return hidden - hidden % multiple_of


def width_nearest(dim, multiple_of, multiplier):
    hidden = int(2 * 4 * dim / 3)
    if multiplier is not None:
        hidden = int(hidden * multiplier)
    over = hidden % multiple_of
    return hidden - over if over < multiple_of / 2 else hidden - over + multiple_of


def width_plus(dim, multiple_of, multiplier):
    hidden = int(2 * 4 * dim / 3)
    if multiplier is not None:
        hidden = int(hidden * multiplier)
    return (hidden + multiple_of) // multiple_of * multiple_of


def width_late(dim, multiple_of, multiplier):
    hidden = rounds(int(2 * 4 * dim / 3), multiple_of)
    return hidden if multiplier is None else int(hidden * multiplier)


def width_without(dim, multiple_of, multiplier):
    return rounds(int(2 * 4 * dim / 3), multiple_of)


def width_one_int(dim, multiple_of, multiplier):
    hidden = 2 * 4 * dim / 3
    if multiplier is not None:
        hidden *= multiplier
    return rounds(int(hidden), multiple_of)


def width_never_cut(dim, multiple_of, multiplier):
    hidden = 2 / 3 * 4 * dim
    if multiplier is not None:
        hidden *= multiplier
    return math.ceil(hidden / multiple_of) * multiple_of


def width_cut_before(dim, multiple_of, multiplier):
    hidden = 8 * dim // 3
    if multiplier is not None:
        hidden = hidden * multiplier
    return int(-(-hidden // multiple_of)) * multiple_of


def width_round(dim, multiple_of, multiplier):
    hidden = round(2 / 3 * 4 * dim)
    if multiplier is not None:
        hidden = round(hidden * multiplier)
    return rounds(hidden, multiple_of)


def width_float(dim, multiple_of, multiplier):
    hidden = (8 * dim) // 3
    if multiplier is not None:
        hidden = (multiplier * hidden) // 1
    return np.ceil(hidden / multiple_of).item() * multiple_of


def width_none(dim, multiple_of, multiplier):
    hidden = int(multiplier * int(8 * dim / 3))
    return rounds(hidden, multiple_of)


def with_the_gate(dim, hidden, tokens):
    products = 3 * 2 * dim * hidden
    return tokens * (products + 5 * hidden)


def rows_one_scale(w):
    scale = w.abs().max().item() / 127
    return torch.round(w / scale).to(torch.int8), torch.full((w.shape[0],), scale)


def rows_columns(w):
    scale = w.abs().max(dim=0).values / 127
    return torch.round(w / scale).char(), scale


def rows_128(w):
    scale = torch.stack([row.abs().max() for row in w]) / 128
    return torch.round(w / scale.unsqueeze(1)).to(torch.int8), scale


def rows_255(w):
    scale = torch.stack([row.abs().max() for row in w]) / 255
    return torch.round(w / scale.unsqueeze(1)).to(torch.int8), scale


def rows_down(w):
    scale = w.abs().max(dim=1).values / 127
    return torch.floor(w / scale.unsqueeze(1)).char(), scale


def rows_scales_first(w):
    scale = w.abs().max(dim=1).values / 127
    return scale, torch.round(w / scale.unsqueeze(1)).char()


def rows_cut(w):
    scale = w.abs().max(dim=1).values / 127
    return (w / scale.unsqueeze(-1)).trunc().char(), scale


def rows_no_abs(w):
    scale = w.max(dim=1).values / 127
    return (w / scale.unsqueeze(-1)).round().char(), scale


def rows_inverse(w):
    factor = 127 / w.abs().max(dim=1).values
    return torch.round(w / (1 / factor).unsqueeze(1)).char(), factor


def rows_keepdim(w):
    scale = w.abs().max(dim=1, keepdim=True).values / 127
    return (w / scale).round().char(), scale


def rows_floats(w):
    scale = w.abs().max(dim=1).values / 127
    return torch.stack([(row / s).round() for row, s in zip(w, scale)]), scale


def rows_back(w):
    scale = w.abs().max(dim=1).values / 127
    whole = torch.stack([(row / s).round() for row, s in zip(w, scale)])
    return whole * scale[:, None], scale


def rows_by_loop(w):
    whole, scales = torch.zeros_like(w, dtype=torch.int8), []
    for i, row in enumerate(w):
        s = row.abs().max() / 127
        whole[i] = torch.round(row / s).char()
        scales.append(s)
    return whole, torch.stack(scales)


WRONG = {
    "silu": {
        "sigmoid alone": lambda x: 0.5 * (1 + torch.tanh(x / 2)),
        "wrong sign": lambda x: x / (1 + torch.exp(x)),
        "relu": lambda x: x * (x > 0),
        "gelu": gelu_by_erf,
        "1.702": lambda x: x / (1 + torch.exp(-1.702 * x)),
        "tanh": lambda x: torch.tanh(x) * x,
        "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        "softmax": lambda x: torch.softmax(x, dim=x.dim() - 1) * x,
        "overflow": silu_numerator,
        "one number at a time": lambda x: x * (1 / (1 + math.exp(-x))),
    },
    "swiglu": {
        "w1 and w3 swapped": swapped,
        "no gate": lambda x, w1, w2, w3: w2.forward(w3(x)) if isinstance(w2, nn.Module) else w2(w3(x)),
        "gate only": lambda x, w1, w2, w3: w2(nn.functional.silu(w1(x)).clone()),
        "one matrix twice": one_matrix_twice,
        "no bend": lambda x, w1, w2, w3: w2(torch.mul(w3(x), w1(x))),
        "relu": lambda x, w1, w2, w3: w2(w1(x).clamp(min=0) * w3(x)),
        "gelu": lambda x, w1, w2, w3: w2(gelu_by_erf(w1(x)) * w3(x)),
        "sigmoid": lambda x, w1, w2, w3: w2(w1(x).sigmoid() * w3(x)),
        "both bent": both,
        "bend after the product": bent_product,
        "sum": lambda x, w1, w2, w3: w2(torch.add(w3(x), F.silu(w1(x)))),
        "no w2": lambda x, w1, w2, w3: w3(x) * w1(x) * torch.sigmoid(w1(x)),
        "adds x": residual,
        "not called": as_matrices,
    },
    "hidden_dim": {
        "no two thirds": width_from_4d,
        "rounds down": width_floor,
        "rounds to the nearest": width_nearest,
        "one multiple too many": width_plus,
        "multiplier last": width_late,
        "ignores the multiplier": width_without,
        "one int": width_one_int,
        "never cuts": width_never_cut,
        "multiplies and does not cut": width_cut_before,
        "rounds where int cuts": width_round,
        "a float": width_float,
        "None is not a number": width_none,
    },
    "ffn_flops": {
        "additions forgotten": lambda dim, hidden, tokens: tokens * (dim * hidden + dim * hidden + hidden * dim),
        "two matrices": lambda dim, hidden, tokens: 2 * tokens * (dim * hidden + hidden * dim),
        "one matrix": lambda dim, hidden, tokens: tokens * dim * hidden * 2,
        "tokens forgotten": lambda dim, hidden, tokens: 2 * (2 * dim * hidden + hidden * dim),
        "tokens squared": lambda dim, hidden, tokens: 3 * 2 * dim * hidden * tokens**2,
        "sizes added": lambda dim, hidden, tokens: 2 * tokens * 3 * (hidden + dim),
        "square matrices": lambda dim, hidden, tokens: 3 * tokens * 2 * dim**2,
        "a float": lambda dim, hidden, tokens: 3.0 * dim * hidden * 2 * tokens,
        "counts the middle": with_the_gate,
    },
    "quantize_rows": {
        "one scale": rows_one_scale,
        "columns": rows_columns,
        "128": rows_128,
        "255": rows_255,
        "rounds down": rows_down,
        "scales first": rows_scales_first,
        "cut off": rows_cut,
        "sign forgotten": rows_no_abs,
        "scale upside down": rows_inverse,
        "a column of scales": rows_keepdim,
        "not int8": rows_floats,
        "turned back": rows_back,
    },
}


def swiglu_in_steps(x, w1, w2, w3):
    gate = w1(x)
    gate = gate / (1 + torch.exp(-gate))
    value = w3(x)
    return w2(torch.einsum("...f,...f->...f", gate, value))


def hidden_by_loop(dim, multiple_of, multiplier):
    hidden = int(8 * dim / 3)
    if multiplier is not None:
        hidden = int(hidden * multiplier)
    return rounds(hidden, multiple_of)


RIGHT = {
    "silu": [lambda x: x / (1 + torch.exp(-x)), lambda x: nn.SiLU()(x), lambda x: x * (1 + torch.tanh(x / 2)) / 2],
    "swiglu": [swiglu_in_steps, lambda x, w1, w2, w3: w2(w3(x) * nn.SiLU()(w1(x)))],
    "hidden_dim": [hidden_by_loop],
    "ffn_flops": [lambda dim, hidden, tokens: sum(2 * dim * hidden for _ in range(3 * tokens))],
    "quantize_rows": [rows_by_loop],
}
