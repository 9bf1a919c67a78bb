"""Chapter 02: rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from minillama.teach.exercise import Attempt, Case, Exercise, Mistake, equal


def rotate_pair(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    a, b = x[..., 0], x[..., 1]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)


def rotation_table(dim: int, end: int, theta: float) -> torch.Tensor:
    freqs = 1.0 / theta ** (torch.arange(0, dim, 2) / dim)  # (h/2,)
    angles = torch.outer(torch.arange(end), freqs)  # (end, h/2)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))  # (B, T, H, h) -> (B, T, H, h/2)
    turned = pairs * freqs_cis.unsqueeze(-2)  # (..., T, h/2) -> (..., T, 1, h/2)
    return torch.view_as_real(turned).flatten(-2).type_as(x)


def to_halves(w: torch.Tensor, n_heads: int) -> torch.Tensor:
    rows = w.view(n_heads, -1, 2, w.shape[-1])  # (H, h/2, 2, D): a pair is two neighbours
    return rows.transpose(1, 2).reshape(w.shape)  # (H, 2, h/2, D): all firsts, then all seconds


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _turned_exactly(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs x (..., 2) times 2 x 2 rotation matrices, in float64."""
    cos, sin = cos.double(), sin.double()
    matrix = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)  # (..., 2, 2)
    return (matrix @ x.double().unsqueeze(-1)).squeeze(-1)


def _pair_cases() -> list[Case]:
    return [
        Case("(1, 0) by 90 degrees", (torch.tensor([1.0, 0.0]), torch.tensor(math.pi / 2))),
        Case("(3, 1) by 30 degrees", (torch.tensor([3.0, 1.0]), torch.tensor(math.pi / 6))),
        Case("three pairs, each by its own angle", (_numbers(3, 2), torch.tensor([0.5, 1.0, 2.0]))),
        Case("two pairs, each by its own angle", (_numbers(2, 2, seed=1), torch.tensor([0.5, 2.0]))),
        Case(
            "two texts of three pairs", (_numbers(2, 3, 2, seed=2), torch.tensor([[0.0, 1.0, 2.5], [0.3, -1.0, 2.0]]))
        ),
    ]


def _used_too_early(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    first = x[..., 0] * angle.cos() - x[..., 1] * angle.sin()
    return torch.stack([first, first * angle.sin() + x[..., 1] * angle.cos()], -1)


ROTATE_PAIR = Exercise(
    number="2.1",
    hints=(
        "Where does (1, 0) go? To (cos, sin). And (0, 1)? To (-sin, cos). Every pair (a, b) is a mixture of these two.",
        "So the new first number is `a * cos - b * sin`, and the second is `a * sin + b * cos`.",
        "Take the pair apart along the last axis, `a, b = x[..., 0], x[..., 1]`, and put the results back there: "
        "`torch.stack([first, second], dim=-1)`.",
    ),
    answer=rotate_pair,
    expected=lambda x, angle: _turned_exactly(x, angle.cos(), angle.sin()).to(x.dtype),
    cases=_pair_cases,
    mistakes=[
        Mistake(
            "clockwise",
            "You turned clockwise: (1, 0) by 90 degrees gave (0, -1), an arrow down `↓`, and counter-clockwise is "
            "(0, 1), an arrow up `↑`. Look at the signs of the two sines.",
            lambda x, angle: rotate_pair(x, -angle),
        ),
        Mistake(
            "degrees",
            "You took the angle for degrees. It is in radians already, which is what `cos` and `sin` expect: 90 "
            "degrees come in as 1.5708, and your arrow hardly moved, `→`.",
            lambda x, angle: rotate_pair(x, torch.deg2rad(angle)),
        ),
        Mistake(
            "sine and cosine exchanged",
            "Sine and cosine have changed places. At angle 0 nothing may move: cos 0 = 1 must multiply the number that "
            "stays.",
            lambda x, angle: rotate_pair(x, math.pi / 2 - angle),
        ),
        Mistake(
            "no minus",
            "Both sines have a plus. That is no rotation: the pair changes its length. One of the two is subtracted, "
            "in the first number.",
            lambda x, angle: torch.stack(
                [x[..., 0] * angle.cos() + x[..., 1] * angle.sin(), x[..., 0] * angle.sin() + x[..., 1] * angle.cos()],
                -1,
            ),
        ),
        Mistake(
            "used too early",
            "The second number was made from the new first one, which had already been turned. Both need the old `a`: "
            "keep it until both are done.",
            _used_too_early,
        ),
        Mistake(
            "wrong axis",
            "You took `x[0]` and `x[1]`, the first two pairs, where the two numbers of each pair are wanted: "
            "`x[..., 0]` and `x[..., 1]`.",
            lambda x, angle: torch.stack(
                [x[0] * angle.cos() - x[1] * angle.sin(), x[0] * angle.sin() + x[1] * angle.cos()]
            ),
        ),
        Mistake(
            "stacked in front",
            "The numbers are right, and the axis of the pair went to the front: `torch.stack` puts it there unless it "
            "is told `dim=-1`.",
            lambda x, angle: rotate_pair(x, angle).movedim(-1, 0),
        ),
        Mistake(
            "two tensors",
            "You returned the two numbers as two tensors. One tensor `(..., 2)` is wanted: `torch.stack(..., dim=-1)`.",
            lambda x, angle: tuple(rotate_pair(x, angle).unbind(-1)),
        ),
        Mistake(
            "complex",
            "You returned complex numbers, and they are right. Come back to pairs of real ones: `torch.view_as_real`.",
            lambda x, angle: torch.view_as_complex(rotate_pair(x, angle)),
        ),
    ],
)


def _table_cases() -> list[Case]:
    return [
        Case("two pairs at positions 0 to 2", (4, 3, 10000.0)),
        Case("one pair", (2, 5, 10000.0)),
        Case("four pairs at positions 0 to 5", (8, 6, 10000.0)),
        Case("theta 500,000", (16, 40, 500000.0)),
        Case("positions up to 599", (24, 600, 10000.0)),
    ]


def _exact_table(dim: int, end: int, theta: float) -> torch.Tensor:
    rows = [
        [complex(math.cos(m * theta ** (-2 * i / dim)), math.sin(m * theta ** (-2 * i / dim))) for i in range(dim // 2)]
        for m in range(end)
    ]
    return torch.tensor(rows, dtype=torch.complex64)


def _table(exponents: Callable[[int], torch.Tensor], first: int = 0) -> Callable[[int, int, float], torch.Tensor]:
    """A table whose frequencies are theta ** -exponents, from position `first` on."""

    def wrong(dim: int, end: int, theta: float) -> torch.Tensor:
        angles = torch.outer(torch.arange(first, first + end).double(), theta ** -exponents(dim).double())
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)

    return wrong


def _angles(dim: int, end: int, theta: float) -> torch.Tensor:
    return torch.outer(torch.arange(end).float(), 1 / theta ** (torch.arange(0, dim, 2).float() / dim))


def _power_first(dim: int, end: int, theta: float) -> torch.Tensor:
    """1 / theta ** torch.arange(0, dim, 2) / dim, as Python reads it."""
    freqs = theta ** -torch.arange(0.0, dim, 2) / dim
    return torch.exp(1j * torch.outer(torch.arange(float(end)), freqs))


def _speeds_up(attempt: Attempt) -> bool:
    """theta to a positive power, looked for where its angles are not so large that every way of rounding differs."""
    for case, outcome in list(zip(attempt.cases, attempt.outcomes))[:3]:
        dim, end, theta = case.args
        wrong = _exact_table(dim, end, 1 / theta)
        if not isinstance(outcome.value, torch.Tensor) or not equal(outcome.value, wrong, 1e-2):
            return False
    return True


def _right_then_rots(attempt: Attempt) -> bool:
    """Right to three digits or so at the first positions, and wrong at the last ones."""
    for outcome, expected in zip(attempt.outcomes, attempt.expected):
        got, want = outcome.value, expected.value
        if not isinstance(got, torch.Tensor) or got.shape != want.shape or got.dtype != want.dtype:
            return False
        if (got[:5] - want[:5]).abs().max() > 0.05:
            return False
    return len(attempt.cases) - 1 in attempt.failed


ROTATION_TABLE = Exercise(
    number="2.2",
    hints=(
        "Three steps: one frequency for each pair, an angle for each position and pair, a unit complex number for each "
        "angle.",
        "The frequencies are `1.0 / theta ** (torch.arange(0, dim, 2) / dim)`. Every position times every frequency is "
        "an outer product: `torch.outer(positions, freqs)`.",
        "`torch.polar(torch.ones_like(angles), angles)` makes complex numbers of length 1 with these angles.",
    ),
    answer=rotation_table,
    expected=_exact_table,
    cases=_table_cases,
    tolerance=1e-3,  # an fp32 frequency is a little off, and position 599 multiplies that by 599
    mistakes=[
        Mistake(
            "one for each number",
            "Your table has `dim` columns. A pair is turned as one, so there are half as many: "
            "`torch.arange(0, dim, 2)` goes in steps of 2.",
            _table(lambda dim: torch.arange(dim) / dim),
        ),
        Mistake(
            "half the exponent",
            "Your exponents are i/h, and 2i/h is wanted: they should reach nearly 1 at the last pair, and stop at 1/2. "
            "`torch.arange(0, dim, 2)` has the 2 in it.",
            _table(lambda dim: torch.arange(dim // 2) / dim),
        ),
        Mistake(
            "twice the exponent",
            "Your exponents reach nearly 2: something was divided by h/2 that should be divided by h, the whole `dim`.",
            _table(lambda dim: torch.arange(0, dim, 2) / (dim // 2)),
        ),
        Mistake(
            "exponents up to 1",
            "Your exponents go from 0 to 1 inclusive. The first transformers had it so; here the last one is (h - "
            "2)/h, one step short of 1.",
            _table(lambda dim: torch.linspace(0, 1, dim // 2)),
        ),
        Mistake(
            "faster and faster",
            "Your clocks become faster from pair to pair: theta is raised to a positive power. The first pair is the "
            "fastest, with 1 radian a position: `1 / theta ** ...`.",
            sees=_speeds_up,
        ),
        Mistake(
            "power before division",
            "`**` comes before `/`: your exponents are not divided by `dim`, and the frequencies are. The first pair "
            "should turn by 1 radian a position. Parentheses: `theta ** (torch.arange(0, dim, 2) / dim)`.",
            _power_first,
        ),
        Mistake(
            "length and angle exchanged",
            "`torch.polar` takes the length first, then the angle. Yours all point the same way, at 1 radian, and the "
            "angles became their lengths: `torch.polar(torch.ones_like(angles), angles)`.",
            lambda dim, end, theta: torch.polar(_angles(dim, end, theta), torch.ones(end, dim // 2)),
        ),
        Mistake(
            "ignores theta",
            "Right for theta 10,000 only: it is written into your function. Use the argument `theta`, Llama 3 comes "
            "with 500,000.",
            lambda dim, end, theta: rotation_table(dim, end, 10000.0),
        ),
        Mistake(
            "from position 1",
            "Your first row is position 1. The first token stands at position 0 and is not turned at all: "
            "`torch.arange(end)`.",
            _table(lambda dim: torch.arange(0, dim, 2) / dim, first=1),
        ),
        Mistake(
            "transposed",
            "Your table is (h/2, end). A row for each position is wanted, so that `table[positions]` picks rows: the "
            "positions come first in `torch.outer`.",
            lambda dim, end, theta: rotation_table(dim, end, theta).T,
        ),
        Mistake(
            "clockwise",
            "Your angles are negative: everything would turn clockwise. The weights were trained with exp(+i m ω).",
            lambda dim, end, theta: rotation_table(dim, end, theta).conj().resolve_conj(),
        ),
        Mistake(
            "angles only",
            "These are the angles, and they are right. The unit complex numbers that point there are wanted: "
            "`torch.polar(torch.ones_like(angles), angles)`.",
            _angles,
        ),
        Mistake(
            "sine and cosine exchanged",
            "Sine and cosine have changed places: at position 0 every entry should be 1, and yours is 1j. The real "
            "part is the cosine.",
            lambda dim, end, theta: rotation_table(dim, end, theta).conj() * 1j,
        ),
        Mistake(
            "double precision",
            "The numbers are right, to more digits than are wanted: the table is complex64. Come back from float64.",
            lambda dim, end, theta: rotation_table(dim, end, theta).to(torch.complex128),
        ),
        Mistake(
            "too few digits",
            "Right at the first positions and wrong further on: position or angle was kept in 16 bits on the way, and "
            "bf16 cannot tell 256 from 257. Stay in fp32.",
            sees=_right_then_rots,
        ),
    ],
)


def _turns(positions: torch.Tensor, dim: int) -> torch.Tensor:
    """freqs_cis for positions (...,) and theta 100, which turns every pair of a small head well."""
    angles = positions.double()[..., None] * 100.0 ** (-torch.arange(0, dim, 2).double() / dim)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def _rotate_cases() -> list[Case]:
    two = torch.tensor([[0, 1, 2], [7, 8, 9]])  # (B, T)
    return [
        Case("(1, 0) by 90 degrees", (torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), torch.tensor([[1j]]))),
        Case("one head at positions 0 to 2", (_numbers(1, 3, 1, 8), _turns(torch.arange(3), 8))),
        Case("two texts, four heads", (_numbers(2, 3, 4, 8, seed=1), _turns(torch.arange(3), 8))),
        Case("as many heads as tokens", (_numbers(1, 4, 4, 8, seed=2), _turns(torch.arange(4), 8))),
        Case("positions 5 to 7", (_numbers(2, 3, 2, 8, seed=3), _turns(torch.arange(5, 8), 8))),
        Case("two texts at different positions", (_numbers(2, 3, 4, 8, seed=4), _turns(two, 8))),
        Case("bf16", (_numbers(2, 3, 2, 8, seed=6).bfloat16(), _turns(torch.arange(3), 8))),
    ]


def _rotate_exactly(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    turn = freqs_cis[..., None, :]
    return _turned_exactly(x.unflatten(-1, (-1, 2)), turn.real, turn.imag).flatten(-2).to(x.dtype)


def _product(
    x: torch.Tensor, turn: torch.Tensor, back: Callable[[torch.Tensor], torch.Tensor] = torch.view_as_real
) -> torch.Tensor:
    """The pairs of x times `turn`, as `back` has them."""
    return back(torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * turn)


def _by_halves(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    turned = torch.complex(*x.float().chunk(2, -1)) * freqs_cis.unsqueeze(-2)
    return torch.cat([turned.real, turned.imag], -1).type_as(x)


def _rounds_once(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> str | None:
    x, freqs_cis = _numbers(1, 64, 4, 16, seed=7).bfloat16(), _turns(torch.arange(64), 16)
    off = (function(x, freqs_cis) != _rotate_exactly(x, freqs_cis)).float().mean()
    if off < 0.05:
        return None
    return (
        f"Right but for rounding: in bf16, {100 * off:.0f}% of the numbers are not the nearest ones. Take the product "
        "in fp32, `x.float()`, and round once, at the end."
    )


ROTATE = Exercise(
    number="2.3",
    hints=(
        "Make neighbours complex numbers, multiply by the turns, make them real again. The shapes do the rest.",
        "`torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))` is (B, T, H, h/2). freqs_cis lacks the axis "
        "of the heads: `freqs_cis.unsqueeze(-2)`.",
        "Back: `torch.view_as_real(...)` is (B, T, H, h/2, 2), `.flatten(-2)` joins the pairs, `.type_as(x)` gives the "
        "dtype back.",
    ),
    answer=rotate,
    expected=_rotate_exactly,
    cases=_rotate_cases,
    also=_rounds_once,
    mistakes=[
        Mistake(
            "halves",
            "You rotated halves: number i with number i + h/2. That is Hugging Face's layout; in Meta's files the "
            "pairs are neighbours, 0 with 1, 2 with 3.",
            _by_halves,
        ),
        Mistake(
            "written as halves",
            "You read neighbours and wrote halves: all first numbers, then all second ones. Each pair goes back to "
            "where it came from: `torch.view_as_real(...).flatten(-2)`.",
            lambda x, freqs_cis: _product(
                x, freqs_cis.unsqueeze(-2), lambda z: torch.cat([z.real, z.imag], -1).type_as(x)
            ),
        ),
        Mistake(
            "read as halves",
            "You read halves and wrote neighbours: number i was turned with number i + h/2, and put back beside it. In "
            "Meta's files the pairs are neighbours, 0 with 1, 2 with 3, on both ways.",
            lambda x, freqs_cis: rotate(x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2), freqs_cis),
        ),
        Mistake(
            "clockwise",
            "You turned clockwise: (1, 0) by 90 degrees gave (0, -1) `↓`, and counter-clockwise is (0, 1) `↑`. "
            "Multiply by freqs_cis as it is, or look at the sign of the sine.",
            lambda x, freqs_cis: rotate(x, freqs_cis.conj()),
        ),
        Mistake(
            "bf16 cannot be complex",
            "torch has no complex numbers made of bf16. `x.float()` first; the product is wanted in fp32 anyway.",
            sees=lambda attempt: any("BFloat16" in str(attempt.outcomes[i].error) for i in attempt.failed),
        ),
        Mistake(
            "one position for all texts",
            "Fine while freqs_cis is (T, h/2). Where texts are at different positions it is (B, T, h/2): count the new "
            "axis from the back, `freqs_cis.unsqueeze(-2)`, and both fit.",
            sees=lambda attempt: all(attempt.cases[i].args[1].dim() == 3 for i in attempt.failed),
        ),
        Mistake(
            "no axis for the heads",
            "The turns were lined up with the heads, and should be lined up with the tokens: every head of a token "
            "turns alike. `freqs_cis.unsqueeze(-2)` puts the axis of the heads in between.",
            lambda x, freqs_cis: _product(x, freqs_cis).flatten(-2).type_as(x),
        ),
        Mistake(
            "stays in fp32",
            "The numbers are right, but bf16 comes back as fp32. The model goes on in the dtype of x: `.type_as(x)`.",
            lambda x, freqs_cis: rotate(x.float(), freqs_cis),
        ),
        Mistake(
            "pairs left apart",
            "The pairs are turned, and still have an axis of their own: (B, T, H, h/2, 2). `.flatten(-2)` joins them.",
            lambda x, freqs_cis: _product(x, freqs_cis.unsqueeze(-2)).type_as(x),
        ),
        Mistake(
            "still complex",
            "These are complex numbers, and they are right. `torch.view_as_real` makes pairs of them again.",
            lambda x, freqs_cis: _product(x, freqs_cis.unsqueeze(-2), lambda z: z),
        ),
        Mistake(
            "not turned",
            "x came back as it was: nothing was turned.",
            lambda x, freqs_cis: x,
        ),
        Mistake(
            "a size written in",
            "A size is written into your function: it fits the example above, or the demo model, and no other x. Take "
            "B, T, H and h from `x.shape`, or leave all but the last alone: `x.reshape(*x.shape[:-1], -1, 2)`.",
            sees=lambda attempt: all(
                "is invalid for input of size" in str(attempt.outcomes[i].error) for i in attempt.failed
            ),
        ),
    ],
)


def _rows(heads: int, head_dim: int, columns: int = 2) -> torch.Tensor:
    """A matrix whose rows hold their own number, so that it shows where each went."""
    return torch.arange(float(heads * head_dim))[:, None].repeat(1, columns)


def _halves_cases() -> list[Case]:
    return [
        Case("one head of 8 rows, each holding its number", (_rows(1, 8), 1)),
        Case("two heads of 8 rows", (_rows(2, 8), 2)),
        Case("three heads of 6 rows", (_numbers(18, 5), 3)),
        Case("as many rows as columns", (_numbers(16, 16, seed=1), 2)),
    ]


def _new_order(n_heads: int, head_dim: int) -> list[int]:
    """For each row of Hugging Face's matrix, its number in Meta's."""
    half = head_dim // 2
    return [head_dim * head + 2 * (j % half) + j // half for head in range(n_heads) for j in range(head_dim)]


def _swapped_slices(w: torch.Tensor, n_heads: int) -> torch.Tensor:
    rows = w.view(-1, n_heads, w.shape[-1])
    return torch.cat([rows[:, 0::2], rows[:, 1::2]], 1).reshape(w.shape)


def _swapped_axes(w: torch.Tensor, n_heads: int) -> torch.Tensor:
    return w.view(-1, n_heads, 2, w.shape[-1]).transpose(1, 2).reshape(w.shape)


def _swapped_pairs(w: torch.Tensor, n_heads: int) -> torch.Tensor:
    return w.view(-1, 2, n_heads, w.shape[-1]).transpose(1, 2).reshape(w.shape)


TO_HALVES = Exercise(
    number="2.4",
    hints=(
        "One head of 8 rows, in the new order: 0 2 4 6 1 3 5 7. First the firsts of all pairs, then the seconds.",
        "Give the pairs an axis: `w.view(n_heads, -1, 2, w.shape[-1])` is (H, h/2, 2, D). Which two axes change "
        "places?",
        "`.transpose(1, 2)` makes it (H, 2, h/2, D), and `.reshape(w.shape)` a matrix again.",
    ),
    answer=to_halves,
    expected=lambda w, n_heads: w[_new_order(n_heads, len(w) // n_heads)],
    cases=_halves_cases,
    mistakes=[
        Mistake(
            "the other way",
            "This is the way back, from halves to neighbours: row 1 of yours came from the second half of the head. "
            "View as (H, h/2, 2, D), not (H, 2, h/2, D), before you transpose.",
            lambda w, n_heads: w.view(n_heads, 2, -1, w.shape[-1]).transpose(1, 2).reshape(w.shape),
        ),
        Mistake(
            "across heads",
            "All heads were sorted as if they were one. The rows of each head stay with it: give the heads an axis "
            "of their own first.",
            lambda w, n_heads: torch.cat([w[0::2], w[1::2]]),
        ),
        Mistake(
            "heads taken apart",
            "You read the rows as if neighbours belonged to different heads. A head is h rows in a block: the axis of "
            "the heads comes first in the view.",
            lambda w, n_heads: w.view(-1, 2, n_heads, w.shape[-1]).transpose(0, 1).reshape(w.shape),
        ),
        *(
            Mistake(
                "heads and rows exchanged",
                "The sizes in your view have changed places: the first axis counts the heads, `w.view(n_heads, -1, "
                "...)`, because the rows of a head lie one below the other.",
                wrong,
            )
            for wrong in (_swapped_slices, _swapped_axes, _swapped_pairs)
        ),
        Mistake(
            "columns",
            "You sorted the columns. They are the D numbers that come in; the pairs are among the numbers that come "
            "out, and those are rows.",
            lambda w, n_heads: torch.cat([w[:, 0::2], w[:, 1::2]], 1),
        ),
        Mistake(
            "seconds first",
            "The seconds of the pairs came first. Then sine and cosine meet the wrong halves: firsts, then seconds.",
            lambda w, n_heads: w.view(n_heads, -1, 2, w.shape[-1]).flip(2).transpose(1, 2).reshape(w.shape),
        ),
        Mistake(
            "not flat",
            "The order is right, and the axes are still apart. `.reshape(w.shape)` makes it a matrix again.",
            lambda w, n_heads: w.view(n_heads, -1, 2, w.shape[-1]).transpose(1, 2),
        ),
        Mistake(
            "unchanged",
            "The rows are where they were: `view` and `reshape` alone move nothing, it takes a `transpose` in between.",
            lambda w, n_heads: w,
        ),
    ],
)


EXERCISES = [ROTATE_PAIR, ROTATION_TABLE, ROTATE, TO_HALVES]
