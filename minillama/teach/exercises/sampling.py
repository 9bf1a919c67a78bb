"""Chapter 08: from logits to a token, and the loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from minillama.teach.exercise import Attempt, Case, Exercise, Mistake, Outcome, equal

Ids = Sequence[int]


def with_temperature(logits: torch.Tensor, t: float) -> torch.Tensor:
    best = logits.max(-1, keepdim=True).values  # nothing above 0 goes into exp, so nothing overflows
    return torch.softmax((logits - best) / t, dim=-1)


def nucleus(probs: torch.Tensor, p: float) -> torch.Tensor:
    before = probs.cumsum(-1) - probs  # the mass in front of each token
    kept = torch.where(before > p, 0, probs)
    return kept / kept.sum(-1, keepdim=True)


def pick(probs: torch.Tensor, u: float) -> int:
    cdf = probs.double().cumsum(-1)  # (V,)
    return int((cdf <= u * cdf[-1]).sum())


def repetition_penalized(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)


def tell_on(
    next_logits: Callable[..., torch.Tensor],
    prompt: Ids,
    choose: Callable[[torch.Tensor], int],
    max_new: int,
    stop_ids: Collection[int],
) -> Iterator[int]:
    ids, position = prompt, 0
    for _ in range(max_new):
        token = choose(next_logits(ids, position))
        if token in stop_ids:
            return
        yield token
        position += len(ids)
        ids = [token]


def perplexity_of(logprobs: Sequence[float]) -> float:
    scored = logprobs[1:]  # the first token had nothing before it
    return math.exp(-sum(scored) / len(scored))


# --- 8.1 -------------------------------------------------------------------------------------------------------------


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _shares(*shape: int, seed: int = 0, spread: float = 1.5) -> torch.Tensor:
    """Probabilities, best first, that add up to 1."""
    return torch.softmax(spread * _numbers(*shape, seed=seed), -1).sort(-1, descending=True).values


WITH_TEMPERATURE = Exercise(
    number="8.1",
    hints=(
        "Divide, then softmax. Which of the two inputs gets divided by which?",
        "`torch.softmax(..., dim=-1)` works along the last axis, so a batch needs nothing more. The last cases have a "
        "tiny `t`: 60 / 1e-38 is `inf`, and `inf - inf` is not a number.",
        "Softmax does not change when the same number is taken from all logits. Take the largest away *before* you "
        "divide: then the largest is 0, and 0 / t is 0 for every t.",
    ),
    answer=with_temperature,
    expected=lambda logits, t: torch.softmax((logits.double() - logits.double().max(-1, keepdim=True)[0]) / t, -1).to(
        logits.dtype
    ),
    cases=lambda: [
        Case("t = 0.5", (torch.tensor([2.0, 1.0, 0.0, -1.0]), 0.5)),
        Case("t = 2", (torch.tensor([2.0, 1.0, 0.0, -1.0]), 2.0)),
        Case("t = 1", (_numbers(6, seed=1), 1.0)),
        Case("three rows, t = 0.7", (3 * _numbers(3, 5, seed=2), 0.7)),
        Case("logits of about 60, t = 0.001", (torch.tensor([60.0, 59.99, 58.0]), 1e-3)),
        Case("logits of about 60, t = 1e-38", (torch.tensor([60.0, 59.0, 61.0, -5.0]), 1e-38)),
    ],
    mistakes=[
        Mistake(
            "multiplies",
            "You multiplied by t. A high temperature flattens, so the logits get smaller: they are divided by t.",
            lambda logits, t: torch.softmax(logits * t, -1),
        ),
        Mistake(
            "divides probabilities",
            "You divided the probabilities by t. Dividing all of them by one number changes no share; the logits have "
            "to be divided, before the softmax.",
            lambda logits, t: torch.softmax(logits, -1) / t,
        ),
        Mistake(
            "no temperature",
            "That is the softmax alone: t has no part in it, or it cancels out.",
            lambda logits, t: torch.softmax(logits, -1),
        ),
        Mistake(
            "logits",
            "These are scaled logits. Wanted are probabilities: a softmax has to follow.",
            lambda logits, t: logits / t,
        ),
        Mistake(
            "log-probabilities",
            "You took `log_softmax`. Wanted are the probabilities themselves.",
            lambda logits, t: torch.log_softmax((logits - logits.max(-1, keepdim=True).values) / t, -1),
        ),
        Mistake(
            "whole tensor",
            "You normalized over all rows together. Each row is a distribution of its own: `dim=-1`.",
            lambda logits, t: torch.softmax(((logits - logits.max()) / t).flatten(), 0).view(logits.shape),
        ),
        Mistake(
            "wrong axis",
            "You normalized across the rows. The tokens are along the last axis: `dim=-1`.",
            lambda logits, t: torch.softmax(logits / t, 0),
        ),
        Mistake(
            "overflows",
            "Right, as long as t is not tiny: 60 / 1e-38 is `inf` in fp32, and from there on nothing is a number. "
            "Take the largest logit away first.",
            lambda logits, t: torch.softmax(logits / t, -1),
        ),
        Mistake(
            "exp without the maximum",
            "You wrote the softmax out, and exp() of a number above 88 is `inf` in fp32. Take the largest away first.",
            lambda logits, t: torch.exp(logits / t) / torch.exp(logits / t).sum(-1, keepdim=True),
        ),
        Mistake(
            "powers of probabilities",
            "Right, as long as t is not tiny: you raise probabilities to the power of 1/t, and 0.5 to the power of "
            "1,000 is 0 in fp32; then all are 0, and 0/0 is not a number. Divide the logits, the largest taken away.",
            lambda logits, t: _rescaled(torch.softmax(logits, -1) ** (1 / t)),
        ),
    ],
)  # fmt: skip


# --- 8.3 -------------------------------------------------------------------------------------------------------------


def _by_hand(probs: torch.Tensor, p: float) -> torch.Tensor:
    """One token at a time, in float64."""
    out = torch.zeros_like(probs)
    for row, kept in zip(probs.view(-1, probs.shape[-1]), out.view(-1, probs.shape[-1])):
        mass, place = 0.0, 0
        for place, share in enumerate(row.tolist()):
            if mass > p:
                break
            kept[place] = share
            mass += share
        kept /= kept.double().sum()
    return out


def _rescaled(kept: torch.Tensor) -> torch.Tensor:
    return kept / kept.sum(-1, keepdim=True)


NUCLEUS = Exercise(
    number="8.3",
    hints=(
        "A token stays if the mass *in front of it* is at most p. `probs.cumsum(-1)` is the mass up to and with it.",
        "Mass in front: `probs.cumsum(-1) - probs`. For [0.5, 0.3, 0.2] that is [0, 0.5, 0.8].",
        "`torch.where(before > p, 0, probs)` empties the tail. What is left must add up to 1 again: divide each row by "
        "its own sum, with `keepdim=True`.",
    ),
    answer=nucleus,
    expected=_by_hand,
    cases=lambda: [
        Case("[0.5, 0.3, 0.2], p = 0.6", (torch.tensor([0.5, 0.3, 0.2]), 0.6)),
        Case("a first token above p", (torch.tensor([0.7, 0.2, 0.1]), 0.4)),
        Case("p = 0.9", (torch.tensor([0.4, 0.25, 0.15, 0.12, 0.05, 0.03]), 0.9)),
        Case("three rows", (_shares(3, 7, seed=3), 0.75)),
        Case("two tokens that are alike", (torch.tensor([0.4, 0.2, 0.2, 0.1, 0.1]), 0.45)),
        Case("everything fits: p = 0.999", (torch.tensor([0.6, 0.3, 0.1]), 0.999)),
    ],
    mistakes=[
        Mistake(
            "cumsum without - p",
            "You looked at the mass up to and *with* each token, so the one that crosses the line is lost, and if the "
            "first alone crosses it, nothing is left. Look at the mass in front: `cumsum - probs`.",
            lambda probs, p: _rescaled(torch.where(probs.cumsum(-1) > p, 0, probs)),
        ),
        Mistake(
            "without it, the first spared",
            "You keep the first token and drop the one that crosses the line. Only the mass *in front of* a token "
            "decides: the one that crosses it stays.",
            lambda probs, p: _rescaled(
                torch.where((probs.cumsum(-1) > p) & (torch.arange(probs.shape[-1]) > 0), 0, probs)
            ),
        ),
        Mistake(
            "not renormalized",
            "The right tokens are left, but they do not add up to 1 any more: divide by their sum.",
            lambda probs, p: torch.where(probs.cumsum(-1) - probs > p, 0, probs),
        ),
        Mistake(
            "the tail",
            "You kept the tail and dropped the nucleus: the comparison is the wrong way round.",
            lambda probs, p: _rescaled(torch.where(probs.cumsum(-1) - probs > p, probs, 0)),
        ),
        Mistake(
            "a threshold",
            "You dropped every token whose own probability is below 1 - p or so. The nucleus looks at the mass in "
            "front of a token, not at its own.",
            lambda probs, p: _rescaled(torch.where(probs < 1 - p, 0, probs)),
        ),
        Mistake(
            "own probability",
            "You compared each probability with p. What counts is the mass in front: `probs.cumsum(-1) - probs`.",
            lambda probs, p: _rescaled(torch.where(probs > p, 0, probs)),
        ),
        Mistake(
            "those above p",
            "You compare each probability with p; it is the sum in front: `probs.cumsum(-1) - probs`.",
            lambda probs, p: _rescaled(torch.where(probs < p, 0, probs)),
        ),
        Mistake(
            "rows together",
            "You divided by the sum of all rows. Each row has to add up to 1: `.sum(-1, keepdim=True)`.",
            lambda probs, p: (lambda kept: kept / kept.sum())(torch.where(probs.cumsum(-1) - probs > p, 0, probs)),
        ),
        Mistake(
            "cut, and shorter",
            "You cut the tail off. The places must stay, with a 0 in them: each belongs to an id.",
            lambda probs, p: _rescaled(probs[: int((probs.cumsum(-1) - probs <= p).sum())]),
        ),
        Mistake(
            "one token more",
            "You keep one token too many: with the mass in front of it above p, a token is out.",
            lambda probs, p: _rescaled(
                torch.where((probs.cumsum(-1) - probs).roll(1, -1).index_fill(-1, torch.tensor([0]), 0) > p, 0, probs)
            ),
        ),
        Mistake(
            "over p",
            "You divided by p. What is left adds up to a little more than p, as the last one crosses the line: divide "
            "by the sum.",
            lambda probs, p: torch.where(probs.cumsum(-1) - probs > p, 0, probs) / p,
        ),
        Mistake(
            "softmax again",
            "You put the rest through a softmax. These are probabilities already, and exp(0) is 1, so the tail comes "
            "back: divide by the sum.",
            lambda probs, p: torch.softmax(torch.where(probs.cumsum(-1) - probs > p, 0, probs), -1),
        ),
    ],
)


# --- 8.2 -------------------------------------------------------------------------------------------------------------


def _walk(probs: torch.Tensor, u: float) -> int:
    """Go along the ruler until u is behind."""
    shares = probs.double().tolist()
    end, point = 0.0, u * math.fsum(shares)
    for place, share in enumerate(shares):
        end += share
        if point < end:
            return place
    return max(place for place, share in enumerate(shares) if share > 0)


SHORT = "a sum of 0.75 and u = 0.9"

PICK = Exercise(
    number="8.2",
    hints=(
        "Lay the probabilities end to end along a ruler from 0 to 1. In whose piece does `u` lie?",
        "The pieces end at `probs.cumsum(-1)`. Count the pieces that end at or before u: that many lie in front of it.",
        "`int((probs.cumsum(-1) <= u).sum())`. Rounding may leave the sum a little below 1; the last case has one like "
        "that, so measure u against the real end: `u * cdf[-1]`.",
    ),
    answer=pick,
    expected=_walk,
    cases=lambda: [
        Case("[0.5, 0.3, 0.2], u = 0.6", (torch.tensor([0.5, 0.3, 0.2]), 0.6)),
        Case("u = 0", (torch.tensor([0.5, 0.3, 0.2]), 0.0)),
        Case("u = 0.85", (torch.tensor([0.5, 0.3, 0.2]), 0.85)),
        Case("u on the line between two pieces", (torch.tensor([0.25, 0.25, 0.5]), 0.25)),
        Case("u = 0 and a first token without mass", (torch.tensor([0.0, 0.75, 0.25]), 0.0)),
        Case("u = 0.7, not sorted", (torch.tensor([0.125, 0.25, 0.0, 0.5, 0.125]), 0.7)),
        Case("u = 0.95, not sorted", (torch.tensor([0.125, 0.25, 0.0, 0.5, 0.125]), 0.95)),
        Case("u = 0.3, and an empty tail", (torch.tensor([0.6, 0.4, 0.0, 0.0]), 0.3)),
        Case(SHORT, (torch.tensor([0.5, 0.25, 0.0, 0.0]), 0.9)),
    ],
    mistakes=[
        # First: what is drawn may be, by chance, what another mistake gives.
        Mistake(
            "a dice of its own",
            "You drew a random number of your own. `u` is the random number here: the same u must give the same place.",
            sees=lambda attempt: _differs(attempt),
        ),
        Mistake(
            "the likeliest",
            "You always take the likeliest. That is greedy; u has to decide.",
            lambda probs, u: int(probs.argmax()),
        ),
        Mistake(
            "own probability",
            "You compared u with each probability by itself. Lay them end to end: compare it with `cumsum`.",
            lambda probs, u: int((probs <= u).sum()),
        ),
        *(
            Mistake(
                "the first above u",
                "You compare u with each probability by itself. Compare with the sum so far.",
                lambda probs, u, otherwise=otherwise: next(
                    (i for i, share in enumerate(probs.tolist()) if share > u), otherwise(probs)
                ),
            )
            for otherwise in (lambda _: 0, lambda _: None, lambda probs: len(probs) - 1)
        ),
        Mistake(
            "the nearest line",
            "You take the piece whose end is nearest to u. Wanted is the piece that u lies in: count the ends at or "
            "before u.",
            lambda probs, u: int((probs.double().cumsum(-1) - u).abs().argmin()),
        ),
        Mistake(
            "one further",
            "You are one piece too far: the number of pieces that end at or before u is the place already.",
            lambda probs, u: int((probs.double().cumsum(-1) <= u * probs.double().sum()).sum()) + 1,
        ),
        Mistake(
            "on the line",
            "Where u lies exactly at the end of a piece, it belongs to the next one: `<=`, not `<`. Otherwise u = 0 "
            "picks a token without any mass.",
            lambda probs, u: int((probs.double().cumsum(-1) < u * probs.double().sum()).sum()),
        ),
        Mistake(
            "a slot of equal width",
            "You gave every token the same width, u times V. Each has the width of its probability.",
            lambda probs, u: int(u * len(probs)),
        ),
        Mistake(
            "the sum is taken for 1",
            "Right while probs add up to 1. Rounding can leave the sum a little short of it, and then no piece with "
            "mass is found for a u beyond it: compare with `u * cdf[-1]`, that is `u * probs.sum()`.",
            sees=lambda attempt: [attempt.cases[i].about for i in attempt.failed] == [SHORT],
        ),
        Mistake(
            "from the far end",
            "You counted from the far end: the pieces that end *beyond* u.",
            lambda probs, u: int((probs.double().cumsum(-1) > u * probs.double().sum()).sum()),
        ),
        Mistake(
            "a tensor",
            "The place is right, but it is a tensor; `int(...)` makes a number of it.",
            lambda probs, u: torch.tensor(_walk(probs, u)),
        ),
    ],
)


def _differs(attempt: Attempt) -> bool:
    """Whether the same arguments give different places: on a flat distribution, where u never changes."""
    flat = torch.full((64,), 1 / 64)
    found: set[Any] = set()
    for seed in range(8):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                found.add(int(attempt.function(flat.clone(), 0.5)))
            except Exception:
                return False
    return len(found) > 1


# --- 8.4 -------------------------------------------------------------------------------------------------------------


def _penalized(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    out = logits.clone()
    for place in itertools.product(*map(range, logits.shape)):
        if seen[place]:
            out[place] = out[place] / penalty if out[place] > 0 else out[place] * penalty
    return out


_GIVEN = torch.tensor([4.0, 1.0, -2.0, 0.5, -1.0, 3.0])
_SEEN = torch.tensor([True, False, True, False, False, True])

REPETITION_PENALIZED = Exercise(
    number="8.4",
    hints=(
        "4 / 2 is less than 4. Is -4 / 2 less than -4? What has to happen to a negative logit for it to go down?",
        "`torch.where(condition, a, b)` takes from a where the condition holds, from b elsewhere. You need it twice: "
        "once for the sign, once for `seen`.",
        "`lowered = torch.where(logits > 0, logits / penalty, logits * penalty)`; then `lowered` where `seen`, and "
        "`logits` elsewhere.",
    ),
    answer=repetition_penalized,
    expected=_penalized,
    cases=lambda: [
        Case("logits of both signs, penalty 2", (_GIVEN.clone(), _SEEN.clone(), 2.0)),
        Case("a penalty below 1 favours repetition", (_GIVEN.clone(), _SEEN.clone(), 0.5)),
        Case("nothing seen", (_GIVEN.clone(), torch.zeros(6, dtype=torch.bool), 1.5)),
        Case("two rows", (_numbers(2, 8, seed=4), _numbers(2, 8, seed=5) > 0, 1.3)),
        Case("all negative", (-_GIVEN.abs(), _SEEN.clone(), 1.2)),
    ],
    mistakes=[
        Mistake(
            "divides all",
            "You divided negative logits too: -2 / 2 is -1, which is *more* likely than before. Multiply those.",
            lambda logits, seen, penalty: torch.where(seen, logits / penalty, logits),
        ),
        Mistake(
            "multiplies all",
            "You multiplied all of them: a positive logit goes up then. Divide those, multiply the negative ones.",
            lambda logits, seen, penalty: torch.where(seen, logits * penalty, logits),
        ),
        Mistake(
            "the wrong way",
            "You divided the negative ones and multiplied the positive ones: both go up. The other way round.",
            lambda logits, seen, penalty: torch.where(
                seen, torch.where(logits > 0, logits * penalty, logits / penalty), logits
            ),
        ),
        Mistake(
            "everywhere",
            "Every token was penalized, seen or not. Where `seen` is False the logit must stay as it was.",
            lambda logits, seen, penalty: torch.where(logits > 0, logits / penalty, logits * penalty),
        ),
        Mistake(
            "the unseen",
            "You penalized the tokens that were *not* seen.",
            lambda logits, seen, penalty: torch.where(
                seen, logits, torch.where(logits > 0, logits / penalty, logits * penalty)
            ),
        ),
        Mistake(
            "subtracts",
            "You subtracted the penalty. That is what OpenAI's presence penalty does; this one divides or multiplies.",
            lambda logits, seen, penalty: torch.where(seen, logits - penalty, logits),
        ),
        Mistake(
            "forbids",
            "You forbade what was seen. A penalty makes it less likely; a text without a second `the` would be odd.",
            lambda logits, seen, penalty: logits.masked_fill(seen, -math.inf),
        ),
        Mistake(
            "probabilities",
            "These are probabilities. The penalty works on logits, and logits go on to the temperature.",
            lambda logits, seen, penalty: torch.softmax(_penalized(logits, seen, penalty), -1),
        ),
        Mistake(
            "negative ones stay",
            "You left negative logits as they were. A token that was seen goes down, whatever its sign: multiply them.",
            lambda logits, seen, penalty: torch.where(seen & (logits > 0), logits / penalty, logits),
        ),
    ],
)


# --- 8.5 -------------------------------------------------------------------------------------------------------------

V = 23  # ids of the model in the cases
MOST_CALLS = 200


class Remembering:
    """Stands for a model with a cache: its logits depend on which ids it remembers at which positions."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self.again = 0  # positions that were read more than once
        self.calls = 0
        self.asked: list[tuple[Any, Any]] = []  # what each call was given

    def fresh(self) -> Remembering:
        return type(self)()

    def __call__(self, ids: Any, start_pos: Any = 0) -> torch.Tensor:
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise RuntimeError(f"next_logits was called {self.calls} times: does your loop ever end?")
        self.asked.append((list(ids) if isinstance(ids, (list, tuple)) else ids, start_pos))
        given = ids.reshape(-1).tolist() if isinstance(ids, torch.Tensor) else [int(i) for i in ids]
        start = int(start_pos)
        for place, token in enumerate(given, start):
            self.again += place in self.slots
            self.slots[place] = token
        end = start + len(given)
        # What a mask lets the last token see: all slots up to its own, and those that were never filled as zeros.
        state = sum((place + 2) * (self.slots.get(place, 0) + 1) for place in range(end)) + 31 * end
        generator = torch.Generator().manual_seed(state)
        return torch.randn(V, generator=generator)


class Likeliest:
    """A `choose`, which notes what it chose."""

    def fresh(self) -> Likeliest:
        return type(self)()

    def __call__(self, logits: torch.Tensor) -> int:
        return int(logits.argmax())


class SecondBest(Likeliest):
    def __call__(self, logits: torch.Tensor) -> int:
        return int(logits.topk(2).indices[1])


class LoopExercise(Exercise):
    """Hands a model of its own to every attempt, and looks at the ids that came out and at how much was read twice."""

    def _once(self, function: Callable[..., Any], case: Case) -> Outcome:
        args = [arg.fresh() if hasattr(arg, "fresh") else arg for arg in case.args]
        model, prompt, choose, max_new, stop_ids = args
        before = list(prompt)
        given = list(prompt)
        try:
            value = function(model, given, choose, max_new, set(stop_ids))
            if isinstance(value, Iterator):
                value = list(itertools.islice(value, len(prompt) + max_new + 9))  # and not for ever
        except Exception as error:
            return Outcome(error=error)
        left = []
        if isinstance(value, (list, tuple, torch.Tensor)):
            value = value.tolist() if isinstance(value, torch.Tensor) else [_id(v) for v in value]
            left = [model.again]
        return Outcome(value, changed=[1] if given != before else [], left=left)

    def _difference(self, attempt: Attempt, i: int) -> str:
        got, wanted, about = attempt.outcomes[i], attempt.expected[i].value, attempt.cases[i].about
        if not got.left:
            return super()._difference(attempt, i)
        if got.value != wanted:
            return f"For {about} the new ids are {got.value}; expected {wanted}."
        return f"For {about} the ids are right, but {got.left[0]} tokens were read again: the model remembers them."


def _id(value: Any) -> Any:
    return int(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _told(
    model: Remembering, prompt: Ids, choose: Any, max_new: int, stop_ids: Collection[int], **otherwise: Any
) -> list[int]:
    """The loop with a dict of things done otherwise: for `expected` and for the mistakes."""
    do = dict(
        first=0, step=1, offset=0, still=False, whole=False, stop=True, keep=False, echo=False, more=0, greedy=False,
        last_only=False, counts_prompt=False, at_least=0, bare=False, forgets_prompt=False, skips=False,
    ) | otherwise  # fmt: skip
    new: list[int] = []
    room = max(max_new + do["more"] - len(prompt) * do["counts_prompt"], do["at_least"])
    ids, position = (list(prompt[-1:]), len(prompt) - 1) if do["last_only"] else (list(prompt), do["first"])
    rounds = 0
    while rounds < room:
        rounds += 1
        logits = model(ids, position)
        token = int(logits.argmax()) if do["greedy"] else choose(logits)
        if do["stop"] and token in stop_ids:
            if do["keep"]:
                new.append(token)
            break
        new.append(token)
        ids, position = [token], len(prompt) + do["offset"] + (0 if do["still"] else rounds - 1)
        if do["forgets_prompt"]:
            position = rounds
        if do["bare"]:
            position = 0
        if do["whole"]:
            ids, position = [*prompt, *new], 0
    if do["skips"]:
        new = [token for token in new if token not in stop_ids]
    return [*prompt, *new] if do["echo"] else new


def _expected_loop(model: Any, prompt: Any, choose: Any, max_new: int, stop_ids: Any) -> list[int]:
    """From nothing at every step: a new model reads the whole text."""
    text = list(prompt)
    while len(text) < len(prompt) + max_new:
        token = choose(model.fresh()(text, 0))
        if token in stop_ids:
            break
        text.append(token)
    return text[len(prompt) :]


def _wrongly(**otherwise: Any) -> Callable[..., Any]:
    return lambda model, prompt, choose, max_new, stop_ids: _told(model, prompt, choose, max_new, stop_ids, **otherwise)


def _watched(attempt: Attempt, i: int) -> tuple[list[tuple[Any, Any]], list[int]]:
    """Case i once more: what `next_logits` was given at each call, and what `choose` chose."""
    model, prompt, choose, max_new, stop_ids = attempt.cases[i].args
    model, chosen = model.fresh(), list[int]()

    def choosing(logits: torch.Tensor) -> int:
        chosen.append(choose(logits))
        return chosen[-1]

    try:
        value = attempt.function(model, list(prompt), choosing, max_new, set(stop_ids))
        if isinstance(value, Iterator):
            list(itertools.islice(value, len(prompt) + max_new + 9))
    except Exception:
        pass  # what was seen until then is enough
    return model.asked, chosen


def _old_at_new_places(attempt: Attempt) -> bool:
    asked, _ = _watched(attempt, 0)
    text = len(attempt.cases[0].args[1])
    for step, (ids, start) in enumerate(asked[1:], 1):
        if (
            isinstance(ids, list)
            and len(ids) > 1
            and isinstance(start, int)
            and start
            and start + len(ids) > text + step
        ):
            return True
    return False


def _bare_id(attempt: Attempt) -> bool:
    asked, _ = _watched(attempt, 0)
    errors = [str(o.error) for o in attempt.outcomes if isinstance(o.error, TypeError)]
    return (
        bool(errors)
        and (isinstance(asked[-1][0], int) if asked else False)
        or any("'int' has no len" in e for e in errors)
    )


def _goes_round(attempt: Attempt) -> bool:
    """Whether a stop id makes it ask the same again."""
    for i, case in enumerate(attempt.cases):
        asked, chosen = _watched(attempt, i)
        if len(asked) > 1 and asked[-1] == asked[-2] and chosen[-1:] == chosen[-2:-1] and chosen[-1] in case.args[4]:
            return True
    return False


def _ignores_max_new(attempt: Attempt) -> bool:
    """Whether it had to be stopped, or went on until a stop id came."""
    for case, outcome in zip(attempt.cases, attempt.outcomes):
        ids, prompt, max_new = outcome.value if isinstance(outcome.value, list) else [], case.args[1], case.args[3]
        if len(ids) > max_new + 1 and ids[: len(prompt)] != prompt or "loop ever end" in str(outcome.error):
            return True
    return False


def _loop_cases() -> list[Case]:
    cases = []
    for about, prompt, choose, max_new, n in (
        ("three ids, six new ones", [1, 5, 9], Likeliest(), 6, None),
        ("it ends at a stop id", [1, 5, 9], Likeliest(), 12, 3),
        ("a choose that takes the second best", [1, 7, 2, 2], SecondBest(), 5, None),
        ("two stop ids", [4, 8], SecondBest(), 9, 4),
        ("a stop id at once", [3, 3, 3, 3, 3], Likeliest(), 7, 0),
        ("max_new is 1", [6, 2, 1], Likeliest(), 1, None),
        ("max_new is 0", [1, 2], Likeliest(), 0, None),
        ("a long prompt", [1, *range(2, 16)], SecondBest(), 8, None),
    ):
        whole = _expected_loop(Remembering(), prompt, choose, max(max_new, 1), ())
        unused = next(i for i in range(V) if i not in whole)
        stops = [unused] if n is None else [whole[n], unused]
        cases.append(Case(about, (Remembering(), prompt, choose, max_new, stops)))
    return cases


TELL_ON = LoopExercise(
    number="8.5",
    hints=(
        "What goes round: logits, a token, is it a stop id, hand it out. And what does `next_logits` get the second "
        "time? It remembers all that it has read.",
        "The first call is `next_logits(prompt, 0)`; after that `next_logits([token], position)`, where the first new "
        "token stands at position `len(prompt)`, the next one behind it.",
        "`for _ in range(max_new):`, and inside: `token = choose(next_logits(ids, position))`; return if it is in "
        "`stop_ids`; `yield token`; `position += len(ids)`; `ids = [token]`. Before: `ids, position = prompt, 0`.",
    ),
    answer=tell_on,
    expected=_expected_loop,
    cases=_loop_cases,
    mistakes=[
        Mistake(
            "the stop id too",
            "You hand out the stop id. It says that the text is over and is no part of it: return before you yield.",
            _wrongly(keep=True),
        ),
        Mistake(
            "goes on",
            "A stop id was chosen, and your loop went on. Look whether `token in stop_ids`, and return.",
            _wrongly(stop=False),
        ),
        Mistake(
            "the prompt too",
            "The prompt came out as well. Only new ids are wanted.",
            _wrongly(echo=True),
        ),
        Mistake(
            "reads it all again",
            "The ids are right, but the whole text is read again at every step. `next_logits` remembers (chapter 04): "
            "hand over the new token alone, and its position.",
            _wrongly(whole=True),
        ),
        Mistake(
            "stands still",
            "Every new token is put at position `len(prompt)`. The first stands there, the second behind it: the "
            "position has to move on.",
            _wrongly(still=True),
        ),
        Mistake(
            "from zero",
            "You gave the new token with start_pos 0: it overwrites the first token of the prompt. It stands behind "
            "all that was read.",
            _wrongly(bare=True),
        ),
        Mistake(
            "one too far",
            "Positions count from 0, so the first new token stands at `len(prompt)`, and yours is one further: a slot "
            "stays empty in front of it.",
            _wrongly(offset=1),
        ),
        Mistake(
            "one short",
            "Your first new token stands at `len(prompt) - 1`, where the prompt's last token is.",
            _wrongly(offset=-1),
        ),
        Mistake(
            "the last token only",
            "Of the prompt, only the last token was read. The first call takes all of it: that is the prefill.",
            _wrongly(last_only=True),
        ),
        Mistake(
            "one too many",
            "You hand out max_new + 1 ids.",
            _wrongly(more=1),
        ),
        Mistake(
            "one too few",
            "You hand out max_new - 1 ids.",
            _wrongly(more=-1),
        ),
        Mistake(
            "counts the prompt",
            "You count the prompt among the max_new. They are *new* ids.",
            _wrongly(counts_prompt=True),
        ),
        Mistake(
            "its own choice",
            "You take the likeliest yourself. `choose` decides: it may draw.",
            _wrongly(greedy=True),
        ),
        Mistake(
            "one at least",
            "With max_new = 0 yours still hands out an id. Look before the first one, too.",
            _wrongly(at_least=1),
        ),
        Mistake(
            "the prompt counts as one",
            "The second call stands at position 1. The prompt took `len(prompt)` places: the position goes on by the "
            "number of ids that were read, before `ids` becomes the new token.",
            _wrongly(forgets_prompt=True),
        ),
        Mistake(
            "old tokens at new places",
            "You hand over old tokens again, at new positions. `next_logits` remembers them where they were: from the "
            "second call on it wants the new token alone.",
            sees=_old_at_new_places,
        ),
        Mistake(
            "a bare id",
            "`next_logits` wants a list: `[token]`.",
            sees=_bare_id,
        ),
        Mistake(
            "continue at a stop id",
            "At a stop id yours goes round once more (a `continue`?) and asks the same again. The text is over: "
            "`return`, or `break`.",
            sees=_goes_round,
        ),
        Mistake(
            "leaves stop ids out",
            "You leave stop ids out and go on behind them. The text is over there: `return`, or `break`.",
            _wrongly(stop=False, skips=True),
        ),
        Mistake(
            "no end",
            "You do not look at max_new: where no stop id comes, yours goes on for ever.",
            sees=_ignores_max_new,
        ),
    ],
)


# --- 8.6 -------------------------------------------------------------------------------------------------------------


def _perplexity(logprobs: Sequence[float]) -> float:
    """The geometric mean of 1 / p."""
    product = 1.0
    for score in logprobs[1:]:
        product *= math.exp(score)
    return product ** (-1 / (len(logprobs) - 1))


PERPLEXITY_OF = Exercise(
    number="8.6",
    hints=(
        "Average the log-probabilities of the tokens that were predicted. Which one was not?",
        "The first entry is a 0 that stands for no prediction: leave it out of the sum *and* out of the count.",
        "`math.exp(-sum(scored) / len(scored))` with `scored = logprobs[1:]`.",
    ),
    answer=perplexity_of,
    expected=_perplexity,
    cases=lambda: [
        Case("every token had probability 1/4", ([0.0, *[math.log(0.25)] * 3],)),
        Case("two tokens, 1/2 and 1/8", ([0.0, math.log(0.5), math.log(0.125)],)),
        Case("one that was certain", ([0.0, 0.0],)),
        Case("one of 100", ([0.0, math.log(0.01)],)),
        Case("five tokens", ([0.0, -0.3, -2.5, -0.01, -1.2, -4.0],)),
    ],
    mistakes=[
        Mistake(
            "counts the first",
            "You divided by the number of tokens. The first was not predicted, so there is one prediction less.",
            lambda logprobs: math.exp(-sum(logprobs) / len(logprobs)),
        ),
        Mistake(
            "no minus",
            "The sign is missing: log-probabilities are negative, and a perplexity is at least 1.",
            lambda logprobs: math.exp(sum(logprobs[1:]) / len(logprobs[1:])),
        ),
        Mistake(
            "no exp",
            "That is the mean surprise in nats, the loss. Perplexity is `exp` of it.",
            lambda logprobs: -sum(logprobs[1:]) / len(logprobs[1:]),
        ),
        Mistake(
            "base 2",
            "You took 2 to the power of it. The log-probabilities are natural logarithms, so it is `math.exp`.",
            lambda logprobs: 2 ** (-sum(logprobs[1:]) / len(logprobs[1:])),
        ),
        Mistake(
            "the sum",
            "You took exp of the sum. Without the mean, a long text has a huge perplexity, however easy it is.",
            lambda logprobs: math.exp(-sum(logprobs[1:])),
        ),
        Mistake(
            "mean of 1/p",
            "You averaged 1 / p. Average the logarithms first, then take exp: one token that was hard to guess would "
            "otherwise decide alone.",
            lambda logprobs: sum(math.exp(-score) for score in logprobs[1:]) / len(logprobs[1:]),
        ),
        Mistake(
            "mean of p",
            "You averaged the probabilities and turned that round. Average the logarithms, then take exp.",
            lambda logprobs: len(logprobs[1:]) / sum(math.exp(score) for score in logprobs[1:]),
        ),
        Mistake(
            "a tensor",
            "The number is right, but it is a tensor: `float(...)` makes a plain number of it.",
            sees=lambda attempt: all(
                isinstance(o.value, torch.Tensor) and o.value.numel() == 1 and equal(float(o.value), wanted.value, 1e-5)
                for o, wanted in zip(attempt.outcomes, attempt.expected)
            ),
        ),
    ],
)


EXERCISES = [WITH_TEMPERATURE, NUCLEUS, PICK, REPETITION_PENALIZED, TELL_ON, PERPLEXITY_OF]
