"""Chapter 05: SwiGLU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from minillama.teach.exercise import Attempt, Case, Exercise, Mistake

Layer = Callable[[torch.Tensor], torch.Tensor]


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def swiglu(x: torch.Tensor, w1: Layer, w2: Layer, w3: Layer) -> torch.Tensor:
    opened = F.silu(w1(x))  # (..., D) -> (..., F)
    return w2(opened * w3(x))  # (..., F) -> (..., D)


def hidden_dim(dim: int, multiple_of: int, multiplier: float | None) -> int:
    hidden = int(2 * (4 * dim) / 3)
    if multiplier is not None:
        hidden = int(multiplier * hidden)
    return multiple_of * ((hidden + multiple_of - 1) // multiple_of)


def ffn_flops(dim: int, hidden: int, tokens: int) -> int:
    return 2 * 3 * dim * hidden * tokens


def quantize_rows(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = w.abs().amax(1) / 127  # (out, in) -> (out,)
    return (w / scale[:, None]).round().to(torch.int8), scale


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _silu_cases() -> list[Case]:
    return [
        Case("0, 1 and -1", (torch.tensor([0.0, 1.0, -1.0]),)),
        Case("numbers from -6 to 6", (torch.linspace(-6, 6, 13),)),
        Case("two texts of three tokens", (_numbers(2, 3, 8),)),
        Case("numbers of 200", (torch.tensor([200.0, -200.0, 3.0]),)),
        Case("bf16", (_numbers(2, 8, seed=1).bfloat16(),)),
    ]


def _takes_a_tensor_for_a_number(attempt: Attempt) -> bool:
    return all("scalar" in str(attempt.outcomes[i].error).lower() for i in attempt.failed)


SILU = Exercise(
    number="5.1",
    hints=(
        "Two factors: the number itself, and a share between 0 and 1 that grows with it.",
        "The share is the sigmoid, 1 / (1 + exp(-x)). torch has it, and torch's survives large numbers.",
        "`torch.sigmoid(x)` is the share; what is it multiplied with?",
    ),
    answer=silu,
    expected=lambda x: (x.double() / (1 + torch.exp(-x.double()))).to(x.dtype),
    cases=_silu_cases,
    mistakes=[
        Mistake(
            "sigmoid alone",
            "That is the share by itself, a number between 0 and 1. SiLU is the number times its share: silu(0) is 0, "
            "not 0.5.",
            torch.sigmoid,
        ),
        Mistake(
            "wrong sign",
            "The share falls where it should grow: silu(6) is nearly 6 and silu(-6) nearly 0, and yours are the other "
            "way round. Look at the sign in the exponent.",
            lambda x: x * torch.sigmoid(-x),
        ),
        Mistake(
            "relu",
            "That is ReLU: everything below 0 became 0. SiLU lets a little of it through, silu(-1) is -0.27.",
            F.relu,
        ),
        Mistake(
            "gelu",
            "That is GELU, whose share is the normal distribution's. SiLU's is the sigmoid: silu(1) is 0.731, gelu(1) "
            "is 0.841.",
            F.gelu,
        ),
        Mistake(
            "gelu",
            "That is GELU, whose share is the normal distribution's. SiLU's is the sigmoid: silu(1) is 0.731, gelu(1) "
            "is 0.841.",
            lambda x: F.gelu(x, approximate="tanh"),
        ),
        Mistake(
            "1.702",
            "You have GELU's cheap stand-in, x sigmoid(1.702 x). SiLU has no factor inside the sigmoid.",
            lambda x: x * torch.sigmoid(1.702 * x),
        ),
        Mistake(
            "tanh",
            "Your share is tanh, which goes from -1 to 1, so that negative numbers come out positive. The sigmoid goes "
            "from 0 to 1.",
            lambda x: x * torch.tanh(x),
        ),
        Mistake(
            "softplus",
            "That is softplus, log(1 + exp(x)): the sigmoid's integral, never negative. SiLU is x times the sigmoid.",
            F.softplus,
        ),
        Mistake(
            "softmax",
            "Your shares add up to 1 along the vector: that is softmax. Here each number has a share of its own and "
            "knows nothing of its neighbours.",
            lambda x: x * x.softmax(-1),
        ),
        Mistake(
            "overflow",
            "exp(200) is more than fp32 can hold, and inf / inf is not a number. Written with exp(-x), or as "
            "`torch.sigmoid(x)`, it stays finite.",
            lambda x: x * torch.exp(x) / (1 + torch.exp(x)),
        ),
        Mistake(
            "one number at a time",
            "`math.exp` takes one number; `torch.exp` takes all that are in a tensor.",
            sees=_takes_a_tensor_for_a_number,
        ),
    ],
)


def _linears(dim: int, hidden: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, ...]:
    """w1, w2, w3 of a block, with weights that keep the size of what goes through them."""
    made = []
    for i, (rows, columns) in enumerate(((hidden, dim), (dim, hidden), (hidden, dim))):
        linear = nn.Linear(columns, rows, bias=False, device="cpu")
        linear.weight.data = (_numbers(rows, columns, seed=seed + i) * 1.5 / columns**0.5).to(dtype)
        made.append(linear.requires_grad_(False))
    return tuple(made)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _tenfold(x: torch.Tensor) -> torch.Tensor:
    return 10 * x


def _halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2 - 1


def _swiglu_cases() -> list[Case]:
    return [
        Case("w1 x = x, w3 x = 10 x, w2 x = x", (torch.tensor([[2.0, -1.0]]), _same, _same, _tenfold)),
        Case("w1 x = 10 x, w2 x = x/2 - 1, w3 x = x", (torch.tensor([[0.5, -0.3]]), _tenfold, _halved, _same)),
        Case("two texts of three tokens, D = 6, F = 10", (_numbers(2, 3, 6), *_linears(6, 10, 10))),
        Case("D = F = 8", (_numbers(4, 8, seed=1), *_linears(8, 8, 20))),
        Case("vectors five times as long", (5 * _numbers(3, 6, seed=2), *_linears(6, 16, 30))),
        Case(
            "bf16",
            (_numbers(2, 6, seed=3).bfloat16(), *_linears(6, 10, 40, torch.bfloat16)),
        ),
    ]


def _exact(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """`layer` on x, in float64 where it is a matrix."""
    return x @ layer.weight.double().T if isinstance(layer, nn.Linear) else layer(x)


def _swiglu_exact(x: torch.Tensor, w1: Any, w2: Any, w3: Any) -> torch.Tensor:
    gate, value = _exact(w1, x.double()), _exact(w3, x.double())
    return _exact(w2, gate / (1 + torch.exp(-gate)) * value).to(x.dtype)


def _takes_them_for_matrices(attempt: Attempt) -> bool:
    errors = [attempt.outcomes[i].error for i in attempt.failed]
    return all(isinstance(error, (TypeError, AttributeError)) for error in errors)


SWIGLU = Exercise(
    number="5.2",
    hints=(
        "w1, w2 and w3 are linear layers, to be called: `w1(x)` goes from D numbers to F.",
        "Two layers read x: the gate, bent by SiLU, and the value, which stays as it is. They meet number by number.",
        "`F.silu(w1(x))` is the bent gate, and `w3(x)` the value; w2 takes their product, F numbers, back to D.",
    ),
    answer=swiglu,
    expected=_swiglu_exact,
    cases=_swiglu_cases,
    mistakes=[
        Mistake(
            "w1 and w3 swapped",
            "The bend is on w3's side. w1 is the gate: its result goes through SiLU, and w3's passes as it is. Both "
            "have the same shape, so no error will ever tell you.",
            lambda x, w1, w2, w3: w2(w1(x) * F.silu(w3(x))),
        ),
        Mistake("no gate", "w1 has no part in it: the value passes, and no gate.", lambda x, w1, w2, w3: w2(w3(x))),
        Mistake(
            "gate only",
            "w3 has no part in it: this is the older block of two matrices. The gate has to be multiplied with w3(x).",
            lambda x, w1, w2, w3: w2(F.silu(w1(x))),
        ),
        Mistake(
            "one matrix twice",
            "Gate and value come from the same matrix. One factor is `F.silu(w1(x))`, the other `w3(x)`.",
            lambda x, w1, w2, w3: w2(F.silu(w1(x)) * w1(x)),
        ),
        Mistake(
            "one matrix twice",
            "Gate and value come from the same matrix. One factor is `F.silu(w1(x))`, the other `w3(x)`.",
            lambda x, w1, w2, w3: w2(F.silu(w3(x)) * w3(x)),
        ),
        Mistake(
            "no bend",
            "Neither side is bent. That is the bilinear layer; the gate needs SiLU.",
            lambda x, w1, w2, w3: w2(w1(x) * w3(x)),
        ),
        Mistake(
            "relu",
            "The bend of your gate is ReLU (a block called ReGLU). Llama's is SiLU, which leaves a little below 0.",
            lambda x, w1, w2, w3: w2(F.relu(w1(x)) * w3(x)),
        ),
        Mistake(
            "gelu",
            "The bend of your gate is GELU (a block called GEGLU, Gemma's). Llama's is SiLU.",
            lambda x, w1, w2, w3: w2(F.gelu(w1(x)) * w3(x)),
        ),
        Mistake(
            "sigmoid",
            "Your gate goes through the sigmoid alone, as in the first GLU (2016), and stays between 0 and 1. SiLU is "
            "x times the sigmoid, and grows with x.",
            lambda x, w1, w2, w3: w2(torch.sigmoid(w1(x)) * w3(x)),
        ),
        Mistake(
            "both bent",
            "Both sides go through SiLU. Only the gate does; the value stays free to be negative and large.",
            lambda x, w1, w2, w3: w2(F.silu(w1(x)) * F.silu(w3(x))),
        ),
        Mistake(
            "bend after the product",
            "You bend the product of gate and value. The bend comes first, on w1(x) alone.",
            lambda x, w1, w2, w3: w2(F.silu(w1(x) * w3(x))),
        ),
        Mistake(
            "sum",
            "You add gate and value. A gate multiplies: where it is 0, nothing passes, whatever the value.",
            lambda x, w1, w2, w3: w2(F.silu(w1(x)) + w3(x)),
        ),
        Mistake(
            "no w2",
            "You stop at the F numbers in the middle. w2 takes them back to D.",
            lambda x, w1, w2, w3: F.silu(w1(x)) * w3(x),
        ),
        Mistake(
            "adds x",
            "You add x to the result. The model does that too, but outside this block: chapter 06.",
            lambda x, w1, w2, w3: x + w2(F.silu(w1(x)) * w3(x)),
        ),
        Mistake(
            "not called",
            "w1, w2 and w3 are layers, not tensors: call them, `w1(x)`. In the model they may be packed, cut over "
            "ranks or in 4 bits, and only a call works with all.",
            sees=_takes_them_for_matrices,
        ),
    ],
)


def _hidden_dim_cases() -> list[Case]:
    return [
        Case("Llama 2 7B", (4096, 256, None)),
        Case("Llama 2 13B", (5120, 256, None)),
        Case("Llama 2 70B", (8192, 4096, 1.3)),
        Case("the demo model", (192, 64, 0.75)),
        Case("a width that needs no rounding", (96, 256, None)),
        Case("a model so small that the ints show", (100, 1, 1.3)),
        Case("another of that kind", (58, 1, 2.0)),
        Case("one of that kind without a multiplier", (56, 1, None)),
    ]


def _hidden_dim_expected(dim: int, multiple_of: int, multiplier: float | None) -> int:
    hidden = 8 * dim // 3
    if multiplier is not None:
        hidden = math.floor(multiplier * hidden)
    return -(-hidden // multiple_of) * multiple_of


def _up(hidden: float, multiple_of: int) -> Any:
    return multiple_of * ((hidden + multiple_of - 1) // multiple_of)


def _scaled(multiplier: float | None) -> float:
    return 1.0 if multiplier is None else multiplier


HIDDEN_DIM = Exercise(
    number="5.3",
    hints=(
        "Three steps, in this order: two thirds of 4 dim; the multiplier, if there is one; up to a multiple.",
        "`int()` cuts off what is behind the point, after the first step and again after the second.",
        "Up to a multiple of m: `m * ((n + m - 1) // m)`. A number that is a multiple already stays.",
    ),
    answer=hidden_dim,
    expected=_hidden_dim_expected,
    cases=_hidden_dim_cases,
    mistakes=[
        Mistake(
            "no two thirds",
            "You start from 4 dim, the width of a block of two matrices. With three, two thirds of it cost the same.",
            lambda d, m, k: _up(int(_scaled(k) * 4 * d), m),
        ),
        Mistake(
            "rounds to the nearest",
            "You round to the nearest multiple. The rule always rounds up.",
            lambda d, m, k: m * round(int(_scaled(k) * int(8 * d / 3)) / m),
        ),
        Mistake(
            "rounds down",
            "You round down to the multiple. The rule rounds up: 10922 becomes 11008, not 10752.",
            lambda d, m, k: m * (int(_scaled(k) * int(8 * d / 3)) // m),
        ),
        Mistake(
            "one int",
            "The rule takes two thirds first, cuts, then multiplies, and cuts again: int(1.3 * 266) = 345 for a dim of "
            "100. You cut once only, or multiply before.",
            lambda d, m, k: _up(int(_scaled(k) * 8 * d / 3), m),
        ),
        Mistake(
            "never cuts",
            "You keep the fraction until the end: two thirds of 400 are 266.67, and rounding up makes 267 of it. The "
            "rule cuts with `int()` first, and again after the multiplier.",
            lambda d, m, k: m * math.ceil(_scaled(k) * 8 * d / 3 / m),
        ),
        Mistake(
            "multiplies and does not cut",
            "You cut after the two thirds, and not after the multiplier: 1.3 * 266 is 345.8, and the rule makes 345 of "
            "it, `int()`, before it rounds up.",
            lambda d, m, k: m * math.ceil(_scaled(k) * int(8 * d / 3) / m),
        ),
        Mistake(
            "one multiple too many",
            "A width that is a multiple already gets another on top. That is why the rule adds multiple_of - 1, and "
            "not multiple_of, before it divides.",
            lambda d, m, k: m * (int(_scaled(k) * int(8 * d / 3)) // m + 1),
        ),
        Mistake(
            "multiplier last",
            "You round up first and multiply then, so the result is no multiple any more: 70B would be 31948 wide. "
            "Rounding up comes last.",
            lambda d, m, k: int(_scaled(k) * _up(int(8 * d / 3), m)),
        ),
        Mistake(
            "ignores the multiplier",
            "The multiplier has no part in it. 70B's is 1.3, the demo model's 0.75.",
            lambda d, m, k: _up(int(8 * d / 3), m),
        ),
        Mistake(
            "rounds where int cuts",
            "You use round() where the rule uses int(), which cuts: two thirds of 400 are 266 here, not 267.",
            lambda d, m, k: _up(round(_scaled(k) * round(8 * d / 3)), m),
        ),
        Mistake(
            "rounds where int cuts",
            "You use round() where the rule uses int(), which cuts: two thirds of 400 are 266 here, not 267.",
            lambda d, m, k: _up(round(_scaled(k) * 8 * d / 3), m),
        ),
        Mistake(
            "a float",
            "The number is right, but it is a float, and no matrix has 11008.0 rows: `int()` after each "
            "multiplication, `//` for the division.",
            lambda d, m, k: float(_hidden_dim_expected(d, m, k)),
        ),
        Mistake(
            "None is not a number",
            "Where there is no multiplier it is None, and None cannot be multiplied. Ask first: `if multiplier is not "
            "None:`.",
            lambda d, m, k: _up(int(k * int(8 * d / 3)), m),
        ),
    ],
)


def _flops_cases() -> list[Case]:
    return [
        Case("dim 2, hidden 3, one token", (2, 3, 1)),
        Case("the demo model, 100 tokens", (192, 384, 100)),
        Case("Llama 2 7B, one token", (4096, 11008, 1)),
        Case("Llama 2 70B, 2048 tokens", (8192, 28672, 2048)),
    ]


def _counts_the_middle(attempt: Attempt) -> bool:
    """A little more than the products, and that little the same for every token and neuron."""
    for i in attempt.failed:
        dim, hidden, tokens = attempt.cases[i].args
        got = attempt.outcomes[i].value
        if not isinstance(got, (int, float)) or got <= 6 * dim * hidden * tokens:
            return False
        extra = (got - 6 * dim * hidden * tokens) / (hidden * tokens)
        if extra > 12 or extra != int(extra):
            return False
    return True


FFN_FLOPS = Exercise(
    number="5.4",
    hints=(
        "How many weights has the block? What does one token do with each of them?",
        "Three matrices of dim x hidden. A token multiplies by each weight once and adds the result to a sum.",
        "Two operations for each weight and token, and 3 * dim * hidden weights.",
    ),
    answer=ffn_flops,
    expected=lambda dim, hidden, tokens: sum(2 * rows * columns * tokens for rows, columns in 3 * [(dim, hidden)]),
    cases=_flops_cases,
    mistakes=[
        Mistake(
            "additions forgotten",
            "You count the multiplications. Each product is also added to a sum, which makes two operations a weight.",
            lambda d, h, t: 3 * d * h * t,
        ),
        Mistake(
            "two matrices",
            "You count two matrices. SwiGLU has three: the gate, the value, and the way back.",
            lambda d, h, t: 4 * d * h * t,
        ),
        Mistake("one matrix", "You count one matrix of the three.", lambda d, h, t: 2 * d * h * t),
        Mistake(
            "tokens forgotten",
            "That is for one token. Every token goes through the matrices by itself.",
            lambda d, h, t: 6 * d * h,
        ),
        Mistake(
            "tokens squared",
            "You let the tokens meet each other. They do so in attention; here each is alone, so twice the tokens "
            "cost twice as much.",
            lambda d, h, t: 6 * d * h * t * t,
        ),
        Mistake(
            "sizes added",
            "You add the two sizes. A matrix of dim rows and hidden columns has dim * hidden weights.",
            lambda d, h, t: 6 * (d + h) * t,
        ),
        Mistake(
            "square matrices",
            "You count matrices of dim x dim. The middle of the block is hidden numbers wide.",
            lambda d, h, t: 6 * d * d * t,
        ),
        Mistake(
            "a float",
            "The number is right, but it is a float: a count is a whole number.",
            lambda d, h, t: float(6 * d * h * t),
        ),
        Mistake(
            "counts the middle",
            "You count SiLU and the product of gate and value as well. They are there, a handful for each neuron, but "
            "each neuron also has 3 * dim weights, so the custom is to count the matrices alone.",
            sees=_counts_the_middle,
        ),
    ],
)


def _rows_cases() -> list[Case]:
    outlier = _numbers(3, 8, seed=1)
    outlier[1] *= 100
    below = -_numbers(2, 6, seed=2).abs()
    return [
        Case("one row, of which the largest is 127", (torch.tensor([[127.0, -63.6, 1.4, 0.0]]),)),
        Case("four rows of six", (_numbers(4, 6),)),
        Case("a row a hundred times as large as the others", (outlier,)),
        Case("as many rows as columns", (_numbers(5, 5, seed=3) * torch.arange(1.0, 6.0)[:, None],)),
        Case("nothing above zero", (below,)),
    ]


def _rows_expected(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole, scales = [], []
    for row in w.double().tolist():
        scale = max(abs(number) for number in row) / 127
        scales.append(scale)
        whole.append([round(number / scale) for number in row])
    return torch.tensor(whole, dtype=torch.int8, device="cpu"), torch.tensor(scales, dtype=w.dtype, device="cpu")


def _with_scale(w: torch.Tensor, scale: torch.Tensor, returned: torch.Tensor | None = None) -> Any:
    whole = (w / scale).round().to(torch.int8)
    return whole, scale[:, 0] if returned is None else returned


def _top(w: torch.Tensor) -> torch.Tensor:
    return w.abs().amax(1, keepdim=True)


QUANTIZE_ROWS = Exercise(
    number="5.5",
    hints=(
        "int8 has whole numbers up to 127. What must a row be divided by, so that its largest becomes 127?",
        "`w.abs().amax(1)` is the largest size in each row, (out,). Divide it by 127: that is the scale.",
        "`(w / scale[:, None]).round().to(torch.int8)`, and return it with the scale.",
    ),
    answer=quantize_rows,
    expected=_rows_expected,
    cases=_rows_cases,
    mistakes=[
        Mistake(
            "one scale",
            "One scale serves the whole matrix. A large row then leaves few steps for the others: take the largest of "
            "each row, `w.abs().amax(1)`.",
            lambda w: _with_scale(w, w.abs().max() / 127, w.abs().max() / 127),
        ),
        Mistake(
            "one scale",
            "One scale serves the whole matrix. A large row then leaves few steps for the others: take the largest of "
            "each row, `w.abs().amax(1)`.",
            lambda w: _with_scale(w, (w.abs().max() / 127).expand(len(w), 1)),
        ),
        Mistake(
            "columns",
            "Your scales belong to the columns. A row of the matrix makes one output, and its scale can be multiplied "
            "in after the sum; a column's cannot.",
            lambda w: _with_scale(w, w.abs().amax(0) / 127, w.abs().amax(0) / 127),
        ),
        Mistake(
            "128",
            "You divide by 128, so the largest number of a row becomes 128, one more than int8 can hold: it wraps "
            "round to -128. Divide by 127.",
            lambda w: _with_scale(w, _top(w) / 128),
        ),
        Mistake(
            "255",
            "You divide by 255, the steps from end to end. int8 ends at 127 on either side of 0, and what lies beyond "
            "comes out as some other number. Divide by 127.",
            lambda w: _with_scale(w, _top(w) / 255),
        ),
        Mistake(
            "rounds down",
            "You round down, `floor()` or `//`, also where the whole number above is nearer. `.round()` halves the "
            "error.",
            lambda w: ((w / (_top(w) / 127)).floor().to(torch.int8), _top(w)[:, 0] / 127),
        ),
        Mistake(
            "rounds down",
            "You round down, `floor()` or `//`, also where the whole number above is nearer. `.round()` halves the "
            "error.",
            lambda w: ((w // (_top(w) / 127)).to(torch.int8), _top(w)[:, 0] / 127),
        ),
        Mistake(
            "scales first",
            "The numbers are right, in the other order: the whole numbers come first, and then the scales.",
            lambda w: _rows_expected(w)[::-1],
        ),
        Mistake(
            "cut off",
            "`.to(torch.int8)` cuts off what is behind the point. Rounding first, `.round()`, halves the error.",
            lambda w: ((w / (_top(w) / 127)).to(torch.int8), _top(w)[:, 0] / 127),
        ),
        Mistake(
            "sign forgotten",
            "You took the largest number, not the largest size: where a row's furthest number is negative, it does not "
            "fit. `w.abs()` first.",
            lambda w: _with_scale(w, w.amax(1, keepdim=True) / 127),
        ),
        Mistake(
            "scale upside down",
            "Your scale is 127 / largest. It should be what the whole numbers are multiplied with to give the weights "
            "back: largest / 127.",
            lambda w: _with_scale(w, _top(w) / 127, 127 / _top(w)[:, 0]),
        ),
        Mistake(
            "a column of scales",
            "The numbers are right, but the scales have the shape (out, 1); expected (out,). Add the axis where it is "
            "used, `scale[:, None]`.",
            lambda w: _with_scale(w, _top(w) / 127, _top(w) / 127),
        ),
        Mistake(
            "not int8",
            "The numbers are whole, but still kept as floats of four bytes each: `.to(torch.int8)` makes them one.",
            lambda w: ((w / (_top(w) / 127)).round(), _top(w)[:, 0] / 127),
        ),
        Mistake(
            "turned back",
            "You multiplied the scale back in. Return the whole numbers; whoever uses them multiplies.",
            lambda w: ((w / (_top(w) / 127)).round() * (_top(w) / 127), _top(w)[:, 0] / 127),
        ),
    ],
)


EXERCISES = [SILU, SWIGLU, HIDDEN_DIM, FFN_FLOPS, QUANTIZE_ROWS]
