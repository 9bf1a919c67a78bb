"""A learner's draw and loop in place of the package's, where slots of `slots.LOOP` are filled.

At temperature 0, nothing is drawn, so only `repetition_penalized` and `tell_on` have work there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from minillama.decode import Row, Step, check_numbers, decode, not_numbers, token_logprobs
from minillama.kv_cache import KVCache
from minillama.launch import LostRanks
from minillama.sampling import Sampler, SamplingParams, distribution, draw, filtered, penalize
from minillama.teach.slots import PartError, Parts, running
from minillama.transformer import Transformer

Choose = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


def made_of(parts: Parts) -> tuple[Callable[..., Sampler], Callable[..., Iterator[Sequence[Row]]]]:
    """What stands for `Sampler` and for `decode` where `parts`, as `slots.ready` gives them, are in."""
    if not parts:
        return Sampler, decode
    return partial(OwnSampler, parts), partial(row_by_row, parts["tell_on"]) if "tell_on" in parts else decode


class OwnSampler(Sampler):
    """The package's sampler with some of its steps a learner's. Each row counts its own draws: rows may come singly."""

    def __init__(self, parts: Parts, params: SamplingParams, prompts: Sequence[Sequence[int]], *args: Any):
        super().__init__(params, prompts, *args)
        self.parts = parts
        self.taken = [0] * len(prompts)

    def __call__(self, logits: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
        """As `Sampler`'s: logits (n, V) and the numbers of their rows -> ids (n,)."""
        numbers = range(len(self.taken)) if rows is None else rows
        which = self.all[list(numbers)]
        if self.params.penalizes:
            logits = self._penalized(logits, which)
        broken = ~torch.isfinite(logits.max(-1).values)
        if self.params.greedy:
            chosen = logits.argmax(-1)
        else:
            u = torch.stack([self.uniform[self.taken[r], r] for r in numbers])  # (n,)
            safe = torch.where(broken[:, None], 0, logits)  # a learner's function is not asked about NaN
            chosen = self._drawn(*self._distribution(safe), u)
        for r in numbers:
            self.taken[r] += 1
        if self.params.penalizes:
            self.counts[which, chosen] += 1
        return torch.where(broken, -1, chosen)

    def _penalized(self, logits: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        prompt, counts = self.prompt[which], self.counts[which]
        rest = self.params
        if "repetition_penalized" in self.parts and rest.repetition_penalty != 1:
            logits = self.parts["repetition_penalized"](logits, prompt | (counts > 0), rest.repetition_penalty)
            rest = replace(rest, repetition_penalty=1.0)
        return penalize(logits, prompt, counts, rest) if rest.penalizes else logits

    def _distribution(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`distribution`, step by step: probabilities, best first, and their ids, (n, V) each."""
        params = self.params
        if not self.parts.keys() & {"with_temperature", "nucleus"}:
            return distribution(logits, params)
        if "with_temperature" in self.parts:
            probs = self.parts["with_temperature"](logits, params.temperature)
            probs, ids = probs.sort(dim=-1, descending=True, stable=True)
        else:
            probs, ids = distribution(logits, SamplingParams(params.temperature, top_p=1.0))
        if "nucleus" not in self.parts or params.top_p == 1:
            return filtered(probs, params), ids
        probs = filtered(probs, replace(params, top_p=1.0, min_p=0.0))
        probs = self.parts["nucleus"](probs, params.top_p)
        return filtered(probs, replace(params, top_k=0, top_p=1.0)), ids

    def _drawn(self, probs: torch.Tensor, ids: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        if "pick" not in self.parts:
            return draw(probs, ids, u)
        places = [self.parts["pick"](row.clone(), number) for row, number in zip(probs, u.tolist())]
        most = probs.shape[-1]
        for place in places:
            if as_id(place) is None or not 0 <= int(place) < most:
                raise PartError(f"your pick returned {place!r}; expected a place in probs, a whole number below {most}")
        return ids.gather(-1, torch.tensor([[int(place)] for place in places], device=ids.device))[:, 0]


def row_by_row(
    tell_on: Callable[..., Any],
    model: Transformer,
    rows: Sequence[Row],
    choose: Choose,
    stop_ids: Collection[int],
    *,
    logprobs: bool = False,
    score_prompts: bool = False,
    step: Step | None = None,
) -> Iterator[Sequence[Row]]:
    """`decode` by a learner's loop for one row: one row after another, each with a cache of its own."""
    if score_prompts:
        for r, row in enumerate(rows):
            tokens = torch.tensor([row.prompt], device=model.device)
            scores = token_logprobs(model, model.features(tokens), tokens)[0].tolist()
            row.prompt_logprobs = check_numbers(r, scores)
    for r, row in enumerate(rows):
        if row.max_new <= 0:
            row.finish_reason = "length"
            continue
        one = _One(model, row, r, choose, logprobs)
        for token in one.told(tell_on, set(stop_ids)):
            one.take(token)
            if len(row.tokens) == row.max_new:
                row.finish_reason = "length"
            yield rows
            if row.finish_reason == "stop":  # a stop string: nobody asks for more
                break
        if row.finish_reason is None:
            row.finish_reason = "stop"
            yield rows


class _One:
    """One row in the hands of a learner's loop: what it is given to call, and what it gives back."""

    def __init__(self, model: Transformer, row: Row, number: int, choose: Choose, logprobs: bool):
        self.model, self.row, self.number, self.chooser, self.logprobs = model, row, number, choose, logprobs
        self.cache = KVCache.for_model(model, 1, len(row.prompt) + row.max_new)
        self.chosen: list[tuple[int, float]] = []  # ids, and their log-probabilities
        self.end = 0  # position of the next token
        self.fault: ValueError | None = None  # the model's, not the learner's

    def next_logits(self, ids: Any, start_pos: Any) -> torch.Tensor:
        """Logits (V,) after `ids`, the first of which stands at `start_pos`."""
        given = ids.reshape(-1).tolist() if isinstance(ids, torch.Tensor) else [int(i) for i in ids]
        tokens = torch.tensor([given], dtype=torch.long, device=self.model.device)  # (1, T)
        self.end = int(start_pos) + len(given)
        return self.model.logits(self.model.features(tokens, int(start_pos), self.cache)[0, -1])

    def choose(self, logits: torch.Tensor) -> int:
        """An id for `logits` (V,)."""
        if not isinstance(logits, torch.Tensor) or logits.shape != (self.model.args.vocab_size,):
            given = tuple(logits.shape) if isinstance(logits, torch.Tensor) else logits
            raise PartError(f"your tell_on gives choose {given!r}; expected logits ({self.model.args.vocab_size},)")
        if len(self.chosen) == self.row.max_new:
            raise PartError(f"your tell_on goes on choosing after max_new = {self.row.max_new} ids")
        token = int(self.chooser(logits[None], [self.number])[0])
        if token < 0:
            self.fault = not_numbers(self.number, self.end)
            raise self.fault
        self.chosen.append((token, float(logits.log_softmax(-1)[token]) if self.logprobs else 0.0))
        return token

    def told(self, tell_on: Callable[..., Any], stop_ids: set[int]) -> Iterator[Any]:
        """What comes out of the learner's loop; where it stops with an error, that is said in the learner's terms."""
        try:
            with running("tell_on", tell_on):
                ids = tell_on(self.next_logits, list(self.row.prompt), self.choose, self.row.max_new, stop_ids)
                if not isinstance(ids, Iterable):
                    raise PartError(f"your tell_on returned {ids!r}: `yield` each new id, or return a list of them")
                yield from ids
        except (PartError, LostRanks):
            if self.fault is not None:
                raise self.fault from None
            raise

    def take(self, token: Any) -> None:
        """Note an id that came out of the loop."""
        row = self.row
        if as_id(token) is None:
            raise PartError(f"your tell_on gave {token!r}; expected ids, one after another")
        if len(row.tokens) == row.max_new:
            raise PartError(f"your tell_on gave more than max_new = {row.max_new} ids")
        count = len(row.tokens)
        if count >= len(self.chosen) or int(token) != self.chosen[count][0]:
            chosen = self.chosen[count][0] if count < len(self.chosen) else "nothing yet"
            raise PartError(f"new id {count} of your tell_on is {int(token)}, and what was chosen is {chosen}")
        row.tokens.append(int(token))
        if self.logprobs:
            row.logprobs.append(self.chosen[count][1])


def as_id(token: Any) -> int | None:
    """`token` as an int, if it is one or a tensor of one."""
    if isinstance(token, torch.Tensor):
        return int(token) if token.numel() == 1 and not token.is_floating_point() else None
    try:
        return None if isinstance(token, bool) else operator.index(token)  # numpy's as well
    except TypeError:
        return None
