"""The loop: chapter 08, `notebooks/08_sampling.ipynb`. Ids in, ids out; it knows nothing of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from minillama.attention import Remembers
from minillama.kv_cache import KVCache, LayerCache
from minillama.transformer import Transformer, causal_mask

SMALLEST_WINDOW = 128  # slots: below this, a step of fixed shape costs next to nothing for those that are empty
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
    choose: Callable[[torch.Tensor, Sequence[int]], torch.Tensor],
    stop_ids: Collection[int],
    *,
    logprobs: bool = False,
    score_prompts: bool = False,
    step: Step | None = None,
) -> Iterator[Sequence[Row]]:
    """Prefill all prompts in one forward, then add a token to every row that is not finished; yield after each step.

    choose: logits (n, V) and the numbers of the n rows they are for -> ids (n,), for instance a `Sampler`. A row never
    sees its neighbours, so it gets the tokens that it would get alone (where rounding decides between two, in fp32).
    step: `decode_step`, compiled: it is given the same shapes again and again, at the price of reading some empty slots
    and of computing rows that are finished. None: each step is as small as it can be.
    Raises ValueError if the model's logits are not numbers.
    """
    for row in rows:
        if row.max_new <= 0:
            row.finish_reason = "length"
    lengths = [len(row.prompt) for row in rows]
    device = model.device
    longest = max(len(row.prompt) + max(row.max_new, 0) for row in rows)
    if step is not None:
        longest = min(model.args.max_seq_len, static_window(longest))
    cache = KVCache.for_model(model, len(rows), longest)

    # Short prompts are filled up on the right. No real token can look right, so the filler may be any id, and the
    # slots it takes in the cache are overwritten as the row grows.
    tokens = padded([row.prompt for row in rows]).to(device)  # (B, T)
    h = model.features(tokens, 0, cache)  # (B, T, D)
    if score_prompts:
        for r, (row, scores) in enumerate(zip(rows, token_logprobs(model, h, tokens).tolist())):
            row.prompt_logprobs = check_numbers(r, scores[: len(row.prompt)])
    last = h[torch.arange(len(rows), device=device), torch.tensor(lengths, device=device) - 1]  # (B, D)
    del h

    if not _any_goes_on(rows):
        return
    which = list(range(len(rows)))  # the row in each slot of the cache
    at = [min(n, longest - 1) for n in lengths]  # and the position of its next token, if it has room for one
    if step is None:
        keep = close_ranks(rows, which, at, cache)
        last, which, at = last[keep], [which[s] for s in keep], [at[s] for s in keep]
    logits = model.logits(last)  # (n, V)
    while True:
        chosen = choose(logits, which)  # (n,)
        scores = logits.log_softmax(-1).gather(-1, chosen.clamp(min=0)[:, None])[:, 0].tolist() if logprobs else None
        for s, (r, token) in enumerate(zip(which, chosen.tolist())):
            row = rows[r]
            if row.finish_reason is not None:
                continue
            if token < 0:
                raise not_numbers(r, at[s])
            if token in stop_ids:
                row.finish_reason = "stop"
                continue
            row.tokens.append(token)
            if scores is not None:
                row.logprobs.append(scores[s])
            if len(row.tokens) == row.max_new:
                row.finish_reason = "length"
        yield rows
        if not _any_goes_on(rows):
            return
        if step is None:
            keep = close_ranks(rows, which, at, cache)
            if len(keep) < len(which):
                chosen, which, at = chosen[keep], [which[s] for s in keep], [at[s] for s in keep]
            logits = decode_step(model, chosen[:, None], *_place(at, cache, device))
        else:
            # A finished row stays in its slot and on its position; what it computes there, nobody reads.
            logits = step(model, chosen.clamp(min=0)[:, None], *_place(at, cache, device, static=True))
        at = [a + 1 if rows[r].finish_reason is None else a for r, a in zip(which, at)]


Step = Callable[[Transformer, torch.Tensor, torch.Tensor, "torch.Tensor | None", Sequence[Remembers]], torch.Tensor]


def decode_step(
    model: Transformer,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor | None,
    window: Sequence[Remembers],
) -> torch.Tensor:
    """One token for each row: tokens (n, 1) -> logits (n, V). Tensors alone, no look at a value: it can be compiled."""
    return model.logits(model.stack(tokens, positions, mask, window)[:, 0])  # (n, 1, D) -> (n, D) -> (n, V)


def close_ranks(rows: Sequence[Row], which: Sequence[int], at: Sequence[int], cache: KVCache) -> list[int]:
    """Put the last row's cache into the slot of one that is finished, until none is; the slots to keep, in new order.

    What a finished row costs from then on is the memory of a slot at the end.
    """
    keep = list(range(len(which)))
    for slot in reversed(range(len(which))):
        if rows[which[slot]].finish_reason is not None:
            source = keep.pop()
            if len(keep) > slot:
                cache.move_row(len(keep), slot, at[source])
                keep[slot] = source
    return keep


def static_window(end: int) -> int:
    """Slots that a step of fixed shape looks at: a power of two, so that there are few shapes, half of them filled."""
    return max(SMALLEST_WINDOW, 1 << (end - 1).bit_length())


def _any_goes_on(rows: Sequence[Row]) -> bool:
    return any(row.finish_reason is None for row in rows)


def _place(
    at: Sequence[int], cache: KVCache, device: torch.device, static: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None, list[LayerCache]]:
    """Positions, mask and window of a step whose rows are at `at`; static: the same shapes while `at` grows."""
    end = max(at) + 1
    if static:
        end = min(cache.max_len, static_window(end))
    level = not static and min(at) == max(at)
    positions = torch.tensor(at[:1] if level else [[a] for a in at], device=device)  # (1,) or (n, 1)
    mask = None if level else causal_mask(positions, end)
    return positions, mask, cache.window(len(at), end)


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
