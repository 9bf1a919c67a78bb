"""From logits to one token: chapter 08, `notebooks/08_sampling.ipynb`.

The order of the steps is fixed: penalties, temperature, top-k, top-p, min-p, draw. Each step sees what the one before
left, renormalized; every "off" value leaves the distribution untouched. Everything is fp32 or finer.

Fan et al., "Hierarchical Neural Story Generation" (2018) for top-k; Holtzman et al., "The Curious Case of Neural Text
Degeneration" (2019) for top-p; Nguyen et al., "Turning Up the Heat" (2024) for min-p; Keskar et al., "CTRL" (2019)
for the repetition penalty. Frequency and presence penalty count generated tokens only, as in OpenAI's API.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minillama.args import real_number, whole_number


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen. Off: top_p 1, top_k 0, min_p 0, repetition_penalty 1, the other penalties 0.

    temperature 0 is greedy, and so is top_p 0. Raises ValueError for a value out of range.
    """

    temperature: float = 0.6
    top_p: float = 0.9
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        most = sys.float_info.max
        ranges = {
            "temperature": (0.0, most, "0 (greedy) or more"),
            "top_p": (0.0, 1.0, "between 0 (greedy) and 1 (off)"),
            "min_p": (0.0, 1.0, "between 0 (off) and 1"),
            "repetition_penalty": (1 / most, most, "above 0, 1 for off"),
            "frequency_penalty": (-most, most, "finite, 0 for off"),
            "presence_penalty": (-most, most, "finite, 0 for off"),
        }
        for name, (low, high, expected) in ranges.items():  # the class is frozen, so values go in by the back door
            object.__setattr__(self, name, real_number(name, getattr(self, name), low, high, f"a number, {expected}"))
        object.__setattr__(self, "top_k", whole_number("top_k", self.top_k, least=0, most=2**62))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1

    @property
    def penalizes(self) -> bool:
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


def penalize(logits: torch.Tensor, prompt: torch.Tensor, counts: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Lower the logits of tokens that were there before: (B, V) -> (B, V).

    prompt: (B, V) bool, is in the prompt; counts: (B, V), times generated. Repetition looks at both.
    """
    # Past 1e30, what is multiplied by logits and counts would leave fp32, and inf times 0 is not a number.
    frequency, presence = (max(-1e30, min(p, 1e30)) for p in (params.frequency_penalty, params.presence_penalty))
    repetition = max(1e-30, min(params.repetition_penalty, 1e30))
    # A penalty divides: a negative logit must be multiplied, or it would go up.
    rate = torch.where(logits > 0, 1 / repetition, repetition)
    logits = torch.where(prompt | (counts > 0), logits * rate, logits)
    return logits - frequency * counts - presence * (counts > 0)


def distribution(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Temperature, top-k, top-p, min-p: (B, V) -> probabilities (B, V), best first, and the ids they belong to.

    Needs a temperature above 0.
    """
    # The maximum goes first: 60 / 1e-4 overflows fp16 and exp() of it overflows everything, 0 / 1e-4 does not.
    scaled = (logits - logits.max(-1, keepdim=True).values).float() / min(max(params.temperature, 1e-30), 1e30)
    probs, ids = torch.softmax(scaled, -1).sort(dim=-1, descending=True, stable=True)  # ties as in argmax
    return filtered(probs, params), ids


def filtered(probs: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """What top-k, top-p and min-p leave of probabilities, best first: (B, V) -> (B, V)."""
    if params.top_k:
        probs = torch.where(torch.arange(probs.shape[-1], device=probs.device) < params.top_k, probs, 0)
        probs = probs / probs.sum(-1, keepdim=True)
    if params.top_p < 1:
        # Mass *before* a token: the token that crosses the line is kept, and so is the first, however small p is.
        before = probs.cumsum(-1) - probs
        probs = torch.where(before > params.top_p, 0, probs)
        probs[:, 1:] *= params.top_p > 0  # in fp32 the first may hold all the mass and leave `before` of the rest at 0
        probs = probs / probs.sum(-1, keepdim=True)
    if params.min_p:
        probs = torch.where(probs < params.min_p * probs[:, :1], 0, probs)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def draw(probs: torch.Tensor, ids: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution at u: probs, ids (B, V) and u (B,) in [0, 1) -> (B,) ids."""
    cdf = probs.double().cumsum(-1)  # (B, V)
    place = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)  # (B, 1)
    # Rounding can carry u * total up to the total; the last token with any mass is meant.
    place = torch.minimum(place, (probs > 0).sum(-1, keepdim=True) - 1).clamp(min=0)
    return ids.gather(-1, place)[:, 0]


class Sampler:
    """Chooses the tokens of one request, row by row, with random numbers of its own.

    Row r draws from seeds[r] whoever its neighbours are, so that it repeats what a single run with that seed gives. The
    numbers come from a CPU generator, whatever the device, and the global generator is left alone.

    prompts: ids of each row; max_new: the most tokens a row may get; seeds: one for each row.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompts: Sequence[Sequence[int]],
        max_new: int,
        vocab_size: int,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ):
        self.params = params
        self.step = 0
        self.all = torch.arange(len(prompts), device=device)
        if not params.greedy:
            rows = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
            uniform = [torch.rand(max_new, generator=row, dtype=torch.float64, device="cpu") for row in rows]
            self.uniform = torch.stack(uniform, 1).to(device)  # (max_new, B)
        if params.penalizes:
            self.prompt = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=device)
            for row, prompt in enumerate(prompts):
                self.prompt[row, list(prompt)] = True
            self.counts = torch.zeros(len(prompts), vocab_size, dtype=torch.float32, device=device)

    def __call__(self, logits: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
        """logits (n, V) fp32 -> the next token of each row, (n,); -1 where the logits are not numbers.

        rows: the numbers of the n rows, where some of the request's are finished; None: all, in order.
        """
        which = self.all if rows is None or len(rows) == len(self.all) else torch.tensor(rows, device=logits.device)
        if self.params.penalizes:
            logits = penalize(logits, self.prompt[which], self.counts[which], self.params)
        broken = ~torch.isfinite(logits.max(-1).values)
        if self.params.greedy:
            chosen = logits.argmax(-1)
        else:
            chosen = draw(*distribution(logits, self.params), self.uniform[self.step][which])
        if self.params.penalizes:
            self.counts[which, chosen] += 1
        self.step += 1
        # Told apart by an id that cannot be, not by an exception: looking would stop the GPU at every token.
        return torch.where(broken, -1, chosen)
