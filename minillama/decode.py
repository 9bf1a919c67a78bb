"""The loop: chapter 08, `notebooks/08_sampling.ipynb`. Ids in, ids out; it knows nothing of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from minillama.kv_cache import KVCache
from minillama.transformer import Transformer

SCORED_AT_ONCE = 256  # positions whose logits are in memory together: 256 x 32,000 x 4 bytes is 33 MB a row


@dataclass
class Row:
    """One sequence of a batch, as far as it has come.

    finish_reason: None while it goes on, then "stop" (a stop id) or "length". Whoever reads the rows may set it between
    two steps to end a row early.
    """

    prompt: list[int]
    max_new: int
    tokens: list[int] = field(default_factory=list)  # generated so far, without the stop id
    logprobs: list[float] = field(default_factory=list)  # of `tokens`, under the model's own distribution
    prompt_logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None


def decode(
    model: Transformer,
    rows: Sequence[Row],
    choose: Callable[[torch.Tensor], torch.Tensor],
    stop_ids: Collection[int],
    *,
    logprobs: bool = False,
    score_prompts: bool = False,
) -> Iterator[Sequence[Row]]:
    """Prefill all prompts in one forward, then add a token to every row that is not finished; yield after each step.

    choose: logits (B, V) -> ids (B,), for instance a `Sampler`. A row never sees its neighbours, so it gets the tokens
    that it would get alone. Raises ValueError if the model's logits are not numbers.
    """
    for row in rows:
        if row.max_new <= 0:
            row.finish_reason = "length"
    lengths = torch.tensor([len(row.prompt) for row in rows], device="cpu")  # (B,)
    device = model.output.weight.device
    cache = KVCache.for_model(model, len(rows), max(len(row.prompt) + max(row.max_new, 0) for row in rows))

    # Short prompts are filled up on the right. No real token can look right, so the filler may be any id, and the
    # slots it takes in the cache are overwritten as the row grows.
    tokens = padded([row.prompt for row in rows]).to(device)  # (B, T)
    h = model.features(tokens, 0, cache)  # (B, T, D)
    if score_prompts:
        for r, (row, scores) in enumerate(zip(rows, token_logprobs(model, h, tokens).tolist())):
            row.prompt_logprobs = check_numbers(r, scores[: len(row.prompt)])
    last = h[torch.arange(len(rows), device="cpu"), lengths - 1]  # (B, D): each row's own last prompt token
    del h

    # Where each row's next token goes; a row without room for one is finished, and stays on its last slot.
    positions = lengths.clamp(max=cache.max_len - 1)
    while any(row.finish_reason is None for row in rows):
        logits = model.logits(last)  # (B, V)
        chosen = choose(logits)  # (B,)
        scores = logits.log_softmax(-1).gather(-1, chosen.clamp(min=0)[:, None])[:, 0].tolist() if logprobs else None
        for r, (row, token) in enumerate(zip(rows, chosen.tolist())):
            if row.finish_reason is not None:
                continue
            if token < 0:
                raise not_numbers(r, int(positions[r]))
            if token in stop_ids:
                row.finish_reason = "stop"
                continue
            row.tokens.append(token)
            if scores is not None:
                row.logprobs.append(scores[r])
            if len(row.tokens) == row.max_new:
                row.finish_reason = "length"
        yield rows
        going = torch.tensor([row.finish_reason is None for row in rows], device="cpu")
        if going.any():
            # A finished row stays in its slot and on its position; what it computes there, nobody reads.
            last = model.features(chosen.clamp(min=0)[:, None], positions, cache)[:, 0]  # (B, 1, D) -> (B, D)
            positions = positions + going


def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Rows of ids as one tensor (B, T) on the CPU, short ones filled up on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.long, device="cpu")


def token_logprobs(model: Transformer, h: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probability of every token given those before it: h (B, T, D), tokens (B, T) -> (B, T).

    The first token has nothing before it; its entry is 0, as in Meta's `generate`.
    """
    scores = torch.zeros(tokens.shape, dtype=torch.float32, device=h.device)
    for start in range(0, tokens.shape[1] - 1, SCORED_AT_ONCE):
        end = min(start + SCORED_AT_ONCE, tokens.shape[1] - 1)
        logprobs = model.logits(h[:, start:end]).log_softmax(-1)  # (B, t, V)
        scores[:, start + 1 : end + 1] = logprobs.gather(-1, tokens[:, start + 1 : end + 1, None])[..., 0]
    return scores


def check_numbers(row: int, scores: list[float]) -> list[float]:
    """`scores` of one row. Raises ValueError, with the position, if one is not a number: the logits were none."""
    for position, score in enumerate(scores):
        if not math.isfinite(score):
            raise not_numbers(row, position)
    return scores


def not_numbers(row: int, position: int) -> ValueError:
    return ValueError(f"the model's logits are not numbers (row {row}, position {position}): damaged weights?")
