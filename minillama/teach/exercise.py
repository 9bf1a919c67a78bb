"""Exercises that check themselves, and know the classic mistakes by name.

An `Exercise` compares a learner's function with an independent one on its cases. A wrong answer is recognized by what
it computes: each `Mistake` carries a function that makes it, and the learner's results are looked for among theirs.
"""

from __future__ import annotations

import ast
import html
import inspect
import operator
import pkgutil
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from typing import Any

import torch

from minillama.args import count
from minillama.teach.slots import Function, blame, misfit

MOST_NUMBERS = 64  # in a table of what was wanted and what came
SEQUENCES = (list, tuple)  # one is as good as the other
COLORS = {"green": "#228833", "red": "#cc6677", "grey": "#888888"}


@dataclass
class Case:
    """Arguments to try, and what is special about them: "fp16 numbers of 300"."""

    about: str
    args: tuple[Any, ...]


@dataclass
class Mistake:
    """A wrong idea by its name, what to tell someone who has it, and a function that has it.

    sees: in place of `wrong`, for what shows otherwise: is given the `Attempt`.
    """

    name: str
    says: str
    wrong: Function | None = None
    sees: Callable[[Attempt], bool] | None = None


@dataclass
class Outcome:
    """What a function did with one case: returned `value`, or raised `error`."""

    value: Any = None
    error: BaseException | None = None
    changed: list[int] = field(default_factory=list)  # arguments that are not what they were
    left: list[Any] = field(default_factory=list)  # what else it left behind, where that counts as well


@dataclass
class Attempt:
    """One function on all cases of an exercise, beside what was expected."""

    function: Function
    cases: list[Case]
    expected: list[Outcome]
    outcomes: list[Outcome]
    failed: list[int]  # numbers of the cases that went wrong

    def pairs(self, i: int) -> list[tuple[Any, Any]]:
        """What came of case i and what was wanted, piece by piece."""
        got, want = self.outcomes[i], self.expected[i]
        return [*zip(flat(got.value), flat(want.value)), *zip(flat(got.left), flat(want.left))]


@dataclass
class Exercise:
    """One thing to write. `answer` is shown last; `expected` decides, and is not the same code.

    cases: makes the inputs afresh. tolerance: relative to the largest expected number; half precision gets its own.
    in_place: the function changes its arguments on purpose, and they are compared as well.
    also: looks at a function that passes all cases, and returns None or what is still wrong (a property).
    remark: looks at a right answer, and returns None or something to know about it.
    """

    number: str  # "2.1"
    hints: tuple[str, ...]
    answer: Function
    expected: Function
    cases: Callable[[], list[Case]]
    mistakes: list[Mistake]
    tolerance: float = 1e-5
    in_place: bool = False
    remark: Callable[[Function], str | None] | None = None
    also: Callable[[Function], str | None] | None = None

    @property
    def name(self) -> str:
        return self.answer.__name__

    @property
    def names(self) -> list[str]:
        return list(inspect.signature(self.answer).parameters)

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.names)})"

    @property
    def chapter(self) -> int:
        return int(self.number.partition(".")[0])

    def __call__(self, function: Any) -> Verdict:
        """Look at an answer. Never raises: what is wrong with it is what it is here to say."""
        try:
            return self._look(function)
        except Exception as error:  # a result so odd that comparing it failed
            return self._no("odd", f"The check could not make sense of what {self.name} returns ({error}).")

    def hint(self, number: int = 1) -> Hint:
        """One hint; the number after the last shows the worked answer."""
        if number > len(self.hints):
            return self.worked()
        number = max(1, number)
        return Hint(f"Hint {number} of {len(self.hints)}: {self.hints[number - 1]}", "")

    def worked(self) -> Hint:
        """The worked answer, to read."""
        return Hint(f"{self.name}, worked:", source_of(self.answer))

    def _look(self, function: Any) -> Verdict:
        if not callable(function):
            return self._no("not a function", f"This is {shown(function)}; expected the function {self.signature}.")
        if own := misfit(function, self.names):
            return self._no("signature", f"Yours is {own}, and it will be called as {self.signature}.")
        attempt = self.attempt(function)
        if is_stub(attempt.outcomes):
            return Verdict(self, None, "stub", "not yet: it returns nothing so far (printing is not returning).")
        if not attempt.failed:
            changed = next((o for o in attempt.outcomes if o.changed), None)
            if changed is not None and not self.in_place:
                name = self.names[changed.changed[0]]
                text = f"The result is right, but `{name}` was changed on the way; its owner still needs it."
                return self._no("changes its argument", text)
            wrong = self.also(function) if self.also is not None else None
            if wrong is not None:
                return self._no("property", wrong)
            remark = self.remark(function) if self.remark is not None else None
            says = f"right, on all {len(attempt.cases)} cases." + (f" {remark}" if remark else "")
            return Verdict(self, True, "right", says)
        return self._diagnosed(attempt)

    def attempt(self, function: Function) -> Attempt:
        cases = self.cases()
        expected = [self._once(self.expected, case) for case in cases]
        outcomes = [self._once(function, case) for case in cases]
        failed = [i for i, (o, e) in enumerate(zip(outcomes, expected)) if not self._same(o, e)]
        return Attempt(function, cases, expected, outcomes, failed)

    def _once(self, function: Function, case: Case) -> Outcome:
        args = [fresh(arg) for arg in case.args]
        try:
            with torch.random.fork_rng(devices=[]):
                value = function(*args)
        except (Exception, SystemExit) as error:
            return Outcome(error=error)
        changed = [i for i, (a, b) in enumerate(zip(args, case.args)) if not equal(a, b, 0.0)]
        return Outcome(value, changed=changed, left=args if self.in_place else [])

    def _same(self, a: Outcome, b: Outcome) -> bool:
        if a.error is not None or b.error is not None:
            return type(a.error) is type(b.error)
        return equal(a.value, b.value, self.tolerance) and equal(a.left, b.left, self.tolerance)

    def _diagnosed(self, attempt: Attempt) -> Verdict:
        explained = [self._explains(mistake, attempt) for mistake in self.mistakes]
        most, first = max(explained), attempt.failed[0]
        table = self._table(attempt, first)
        # One case in many may agree by chance: a mistake has to explain half of what is wrong.
        if 2 * most < len(attempt.failed):
            return self._no("unknown", self._difference(attempt, first), table)
        mistake = self.mistakes[explained.index(most)]
        some = " That explains some of what is wrong; look again when it is mended."
        return self._no(mistake.name, mistake.says + some * (most < len(attempt.failed)), table)

    def _explains(self, mistake: Mistake, attempt: Attempt) -> int:
        """In how many of the failed cases `mistake` does what the attempt did; 0 if it does not fit the others."""
        if mistake.sees is not None:
            return len(attempt.failed) if mistake.sees(attempt) else 0
        matches = seen = told = contradicted = 0
        for i, case in enumerate(attempt.cases):
            wrong = self._once(mistake.wrong, case)  # type: ignore[arg-type]
            if i not in attempt.failed:
                if not self._same(wrong, attempt.expected[i]):
                    return 0  # whoever had this idea would have failed here, too
                continue
            outcome = attempt.outcomes[i]
            same = self._same(outcome, wrong)
            matches += same
            seen += same and wrong.error is None
            told += same and wrong.error is not None and str(wrong.error) == str(outcome.error)
            contradicted += not same and wrong.error is None and outcome.error is None
        # All sorts of mistakes stop with an error of the same kind: by itself it is no sign of any.
        return matches if seen or (told and not contradicted) else 0

    def _difference(self, attempt: Attempt, i: int) -> str:
        """What is wrong with case i, where no known mistake explains it."""
        about, outcome = attempt.cases[i].about, attempt.outcomes[i]
        if outcome.error is not None:
            return f"For {about} it stopped with {blame(outcome.error, attempt.function)}.{advice(outcome.error)}"
        expected = attempt.expected[i]
        for got, want in (outcome.value, expected.value), (outcome.left, expected.left):
            if not equal(got, want, self.tolerance):
                return f"For {about} {self._unlike(got, want)}"
        return f"For {about} the result is not what was expected."

    def _unlike(self, got: Any, want: Any) -> str:
        """In words, how `got` differs from `want`: in kind, in number, or in the first piece that is not the same."""
        if isinstance(want, SEQUENCES):
            if not isinstance(got, SEQUENCES):
                return f"it returned {shown(got)}; expected a {_kind(want)}{_listed(want)}."
            if _legible(got) and _legible(want):
                return f"it returned {got}; expected {want}."
            if len(got) != len(want):
                return f"it returned {count(len(got), 'thing')}; expected {len(want)}."
            return next(self._unlike(g, w) for g, w in zip(got, want) if not equal(g, w, self.tolerance))
        if isinstance(got, tuple) and len(got) == 1:
            return "it returned a tuple of one thing: is there a comma behind the `return`?"
        if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
            whole = isinstance(want, float) and want.is_integer()
            wanted = "a tensor" if isinstance(want, torch.Tensor) else shown(int(want) if whole else want)
            found = f"a {_kind(got)}{_listed(got)}" if isinstance(got, SEQUENCES) else shown(got)
            return f"it returned {found}; expected {wanted}."
        if got.shape != want.shape:
            return f"the shape is {tuple(got.shape)}; expected {tuple(want.shape)}."
        if got.dtype != want.dtype:
            return f"the dtype is {got.dtype}; expected {want.dtype}."
        return f"{_worst(got, want)}."

    def _table(self, attempt: Attempt, i: int) -> str:
        """Wanted and yours, side by side, where they are small enough to read."""
        if attempt.outcomes[i].error is not None:
            return ""
        for g, w in attempt.pairs(i):
            if isinstance(g, torch.Tensor) and isinstance(w, torch.Tensor) and not equal(g, w, self.tolerance):
                if max(g.numel(), w.numel()) <= MOST_NUMBERS:
                    return _side_by_side(w, g, attempt.cases[i].about)
        return ""

    def _no(self, name: str, says: str, table: str = "") -> Verdict:
        return Verdict(self, False, name, says, table)


@dataclass
class Hint:
    text: str
    code: str

    def __repr__(self) -> str:
        return self.text + (f"\n\n{self.code}" if self.code else "")

    def _repr_html_(self) -> str:
        return f"<p>{marked(self.text)}</p>" + (f"<pre>{html.escape(self.code)}</pre>" if self.code else "")


@dataclass
class Verdict:
    """What a check says. ok: True, False, or None for "not yet"; diagnosis: the name of the mistake."""

    exercise: Exercise
    ok: bool | None
    diagnosis: str
    says: str
    table: str = ""
    helps: bool = True  # with the hints

    def __repr__(self) -> str:
        e = self.exercise
        lines = [f"{e.number} {e.name}: {self.says}"]
        if self.ok is None and self.helps:
            lines += [e.hint(1).text, f"The next one: check.{e.name}.hint(2)"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        e = self.exercise
        sign, color = {True: ("✓", "green"), False: ("✗", "red"), None: ("○", "grey")}[self.ok]
        page = f"<b>{sign} {e.number} {e.name}</b>: {marked(self.says)}{self.table}"
        if self.ok is None and self.helps:
            page += folded(e)
        elif self.ok is False:
            page += f"<details><summary>hints</summary>{folded(e)}</details>"
        return framed(color, page, "padding:.2em 0 .2em .8em;margin:.4em 0")


def folded(e: Exercise) -> str:
    """Hints inside each other, so that each is opened by itself; the worked answer is the last."""
    answer = f"<pre>{html.escape(source_of(e.answer))}</pre>"
    inner = f"<details><summary>the worked answer</summary>{answer}</details>"
    for number in range(len(e.hints), 0, -1):
        hint = f"<p>{marked(e.hints[number - 1])}</p>"
        inner = f"<details><summary>hint {number} of {len(e.hints)}</summary>{hint}{inner}</details>"
    return inner


def is_stub(outcomes: Sequence[Outcome]) -> bool:
    """Whether nothing was written yet: `...`, `pass`, `return None` or `raise NotImplementedError`."""
    return all(
        (type(o.error) is NotImplementedError and _raised_on_purpose(o.error))
        or (o.error is None and (o.value is None or o.value is ...) and not (o.left and o.changed))
        for o in outcomes
    )


def _raised_on_purpose(error: BaseException) -> bool:
    """Whether a `raise` did it: torch has the same error for operations that it does not know."""
    line = traceback.extract_tb(error.__traceback__)[-1].line or "raise"
    return line.strip().startswith("raise")


# What torch says, and what somebody who has not met it before should look at.
ADVICE = (
    ("bitwise_xor", "In Python `^` is no power: write `x**2` or `x.pow(2)`."),
    ("must match the size of tensor", "Two shapes do not meet. Print both: is an axis missing, or in another place?"),
    ("mat1 and mat2 shapes", "`@` takes (..., n, k) and (..., k, m). Print both shapes; one may want `.T` or `.mT`."),
    ("batch2", "`@` takes (..., n, k) and (..., k, m). Print both shapes; one may want `.mT`."),
    ("same dtype", "Two dtypes meet. `.float()` and `.type_as(x)` bring numbers to one."),
    ("expected scalar type", "Two dtypes meet. `.float()` and `.type_as(x)` bring numbers to one."),
    ("is invalid for input of size", "Is a size written into your function? Take it from `x.shape`."),
    ("view size is not compatible", "`view` wants numbers that lie side by side; `reshape` copies where it has to."),
    ("leaf Variable", "Something was changed in place that must stay as it is; make a new tensor."),
    ("Boolean value of Tensor", "`and`, `if` and `a < b < c` ask a whole tensor for one yes or no. "
     "Between masks write `&`, with parentheses: `(a >= b) & (a < c)`."),
    ("cannot be interpreted as an integer", "`//` gives a whole number; `/` never does."),
    ("'NoneType'", "Something is None here: does a helper of yours lack its `return`?"),
)  # fmt: skip


def advice(error: BaseException) -> str:
    """A sentence for an error that is known to puzzle people, or nothing."""
    return next((f" {says}" for part, says in ADVICE if part in str(error)), "")


def fresh(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, SEQUENCES):
        return type(value)(fresh(v) for v in value)
    return value


def flat(value: Any) -> list[Any]:
    if isinstance(value, SEQUENCES):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def equal(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two results are the same: shapes, dtypes, and numbers within `tolerance` of the largest.

    One thing and a list of it are two.
    """
    if isinstance(a, SEQUENCES) and isinstance(b, SEQUENCES):
        return len(a) == len(b) and all(equal(x, y, tolerance) for x, y in zip(a, b))
    return not isinstance(a, SEQUENCES) and not isinstance(b, SEQUENCES) and _equal(a, b, tolerance)


def _equal(x: Any, y: Any, tolerance: float) -> bool:
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        if x.shape != y.shape or x.dtype != y.dtype or x.device != y.device:
            return False
        if not (x.is_floating_point() or x.is_complex()):
            return torch.equal(x, y)
        if x.dtype in (torch.bfloat16, torch.float16) and tolerance:
            tolerance = max(tolerance, 2 * torch.finfo(x.dtype).eps)
        x, y = _wide(x), _wide(y)
        finite = y.abs()[torch.isfinite(y.abs())]
        largest = float(finite.max()) if finite.numel() else 0.0
        return torch.allclose(x, y, rtol=0, atol=tolerance * max(largest, 1e-6), equal_nan=True)
    if isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor):
        return False
    if isinstance(x, bool) or isinstance(y, bool) or callable(x) or callable(y):
        return x is y
    if isinstance(y, float) and isinstance(x, Real):
        x = float(x)
        return abs(x - y) <= max(tolerance, 1e-12) * max(abs(y), 1e-12) or (x != x and y != y)
    if isinstance(y, int):
        try:
            return operator.index(x) == y  # numpy's whole numbers are as good as Python's
        except TypeError:
            return False
    return type(x) is type(y) and bool(x == y)


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64)


def source_of(function: Function) -> str:
    """The source as a learner would write it: without the annotations."""
    source = textwrap.dedent(inspect.getsource(function)).rstrip()
    node: Any = ast.parse(source).body[0]
    body = "\n".join(source.split("\n")[node.body[0].lineno - 1 :])
    return f"def {node.name}({', '.join(arg.arg for arg in node.args.args)}):\n{body}"


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value).replace("\n", "")
    return text if len(text) <= 60 else text[:57] + "..."


def marked(text: str) -> str:
    """`code` in a sentence as HTML."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def framed(color: str, page: str, room: str = "padding-left:.8em") -> str:
    """`page`, which is HTML, behind a bar in one of COLORS."""
    return f'<div style="border-left:4px solid {COLORS[color]};{room}">{page}</div>'


def _legible(value: Any) -> bool:
    """Whether a list can be read as it is: it is short, and there are no tensors in it."""
    return len(repr(value)) <= 60 and not any(isinstance(leaf, torch.Tensor) for leaf in flat(value))


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "tuple"


def _listed(value: Any) -> str:
    return f", {value}" if _legible(value) else f" of {len(value)}"


def _worst(g: torch.Tensor, w: torch.Tensor) -> str:
    """Where two tensors of one shape differ most, in words."""
    if not g.numel():
        return "the results differ"
    off = (_wide(g) - _wide(w)).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    place = [int(i) for i in torch.unravel_index(off.argmax(), off.shape)]
    at = f" at {place}" if place else ""
    return f"yours{at} is {g[tuple(place)].item():.6g}, and {w[tuple(place)].item():.6g} was expected"


def _side_by_side(wanted: torch.Tensor, yours: torch.Tensor, about: str) -> str:
    tables = "".join(
        f'<div style="display:inline-block;margin-right:2em;vertical-align:top"><i>{title}</i>{_grid(t, wanted)}</div>'
        for title, t in (("wanted", wanted), ("yours", yours))
    )
    return f'<div style="margin:.4em 0">for {html.escape(about)}:<br>{tables}</div>'


def _grid(t: torch.Tensor, wanted: torch.Tensor) -> str:
    rows = t.detach().reshape(-1, t.shape[-1] if t.dim() else 1)
    comparable = wanted.numel() == t.numel() and wanted.is_complex() == t.is_complex()
    right = wanted.detach().reshape(rows.shape) if comparable else None
    cells = ""
    for r, row in enumerate(rows):
        cells += "<tr>"
        for c, number in enumerate(row):
            same = right is not None and equal(number, right[r, c].to(number.dtype), 1e-4)
            color = "transparent" if same else COLORS["red"]
            value = number.item()
            text = str(value) if isinstance(value, int) else f"{value:.3g}"
            cells += f'<td style="border:1px solid {color};text-align:right;padding:.1em .4em">{text}</td>'
        cells += "</tr>"
    return f'<table style="font-size:.9em">{cells}</table>'


def exercises() -> dict[str, Exercise]:
    """All exercises of the course by name, in its order."""
    package = import_module("minillama.teach.exercises")
    found: list[Exercise] = []
    for info in pkgutil.iter_modules(package.__path__):
        found += import_module(f"{package.__name__}.{info.name}").EXERCISES
    found.sort(key=lambda e: [int(part) for part in e.number.split(".")])
    return {e.name: e for e in found}


class Check:
    """`check.rms_norm(rms_norm)` looks at an answer; `check.rms_norm.hint(2)` tells a little more."""

    def __getattr__(self, name: str) -> Exercise:
        if name.startswith("_"):
            raise AttributeError(name)
        known = exercises()
        if name not in known:
            raise AttributeError(f"no exercise {name!r}; there are {', '.join(known)}")
        return known[name]

    def __dir__(self) -> list[str]:
        return list(exercises())


check = Check()
