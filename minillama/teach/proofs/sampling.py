"""What shows that the promoted sampler is right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from minillama.teach.receipts import Proof

OFF = dict(top_p=1.0, top_k=0, min_p=0.0)
CHOICES: tuple[dict[str, Any], ...] = (
    dict(temperature=0.3, **OFF), dict(temperature=1.7, **OFF), dict(temperature=1.0, **(OFF | {"top_k": 7})),
    dict(temperature=1.0, **(OFF | {"top_p": 0.9})), dict(temperature=1.0, **(OFF | {"min_p": 0.1})),
    dict(temperature=0.8, top_k=30, top_p=0.8, min_p=0.05),
    dict(temperature=1.5, top_k=50, top_p=0.95, min_p=0.01, repetition_penalty=1.3),
    dict(temperature=0.9, top_p=0.0, top_k=0, min_p=0.0), dict(temperature=1.0, repetition_penalty=0.7, **OFF),
)  # fmt: skip
B, V = 3, 400
DRAWS = 20_000


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's sampler beside the package's; then float64 one token at a time, transformers, and chi-square."""
    for dtype in (torch.float32, torch.bfloat16):
        same = 0.0
        for choice in (*CHOICES, dict(temperature=0.0), dict(frequency_penalty=0.4, presence_penalty=-0.3)):
            a, b = (_tokens(module, module.SamplingParams(**choice), dtype) for module in (theirs, ours))
            same = max(same, 0.0 if a == b else float("inf"))
        name = str(dtype).removeprefix("torch.")
        yield Proof(f"the notebook's Sampler draws what the package's does, {name}, 3 rows, 11 settings", same, 0.0)
    yield Proof("its probabilities are those of the formulas, one token at a time in float64", _formulas(theirs), 5e-6)
    found = against_transformers(theirs.SamplingParams, theirs)
    if found is not None:
        yield Proof("they are those of transformers' processors, in the same order", found, 5e-6)
    yield Proof(f"{DRAWS:,} draws: chi-square within 4 standard deviations", _chi_square(theirs), 4.0)
    yield Proof("torch.multinomial's draws, counted beside: within 4 as well", _beside_multinomial(theirs), 4.0)


def _logits(seed: int, dtype: torch.dtype = torch.float32, rows: int = B) -> torch.Tensor:
    return (4 * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))).to(dtype).float()


def _tokens(module: Any, params: Any, dtype: torch.dtype) -> list[list[int]]:
    """Eight steps of three rows, of which the second is gone after four: ids, step by step."""
    prompts = [[1, 5, 9], [3], [7, 7, 2, 50]]
    sampler = module.Sampler(params, prompts, 8, V, [11, 12, 13])
    found = []
    for step in range(8):
        rows = None if step < 4 else [0, 2]
        logits = _logits(step, dtype) if rows is None else _logits(step, dtype)[rows]
        found.append(sampler(logits, rows).tolist())
    return found


def by_id(module: Any, logits: torch.Tensor, params: Any, seen: torch.Tensor) -> torch.Tensor:
    """Probabilities (B, V) in the order of the ids."""
    changed = module.penalize(logits, seen, torch.zeros(logits.shape), params)
    probs, ids = module.distribution(changed, params)
    return torch.zeros_like(probs).scatter(-1, ids, probs)


def _seen(seed: int, rows: int) -> torch.Tensor:
    return torch.rand(rows, V, generator=torch.Generator().manual_seed(seed)) < 0.05


def _formulas(module: Any) -> float:
    worst = 0.0
    for number, choice in enumerate(CHOICES):
        params, logits, seen = module.SamplingParams(**choice), _logits(100 + number), _seen(number, B)
        for row, z, was in zip(by_id(module, logits, params, seen), logits.tolist(), seen.tolist()):
            wanted = _one_by_one(z, was, params)
            worst = max(worst, max(abs(p - q) for p, q in zip(row.tolist(), wanted)))
    return worst


def _one_by_one(z: list[float], seen: list[bool], params: Any) -> list[float]:
    """The steps in Python's own float64, without cumsum: each token looks at those that are better."""
    r = params.repetition_penalty
    z = [(x / r if x > 0 else x * r) if was else x for x, was in zip(z, seen)]
    best = max(z)
    p = _normed([math.exp((x - best) / params.temperature) for x in z])
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if params.top_k:
        keep = set(order[: params.top_k])
        p = _normed([x if i in keep else 0.0 for i, x in enumerate(p)])
    if params.top_p < 1:
        keep, mass = set(), 0.0
        for i in order:
            if mass > params.top_p or (keep and params.top_p == 0):
                break
            keep.add(i)
            mass = math.fsum(p[j] for j in keep)
        p = _normed([x if i in keep else 0.0 for i, x in enumerate(p)])
    return _normed([x if x >= params.min_p * max(p) else 0.0 for x in p])


def _normed(p: list[float]) -> list[float]:
    total = math.fsum(p)
    return [x / total for x in p]


def against_transformers(make: Any, module: Any) -> float | None:
    """The largest difference from Hugging Face's processors on 200 rows of logits; None where it is not installed.

    make: SamplingParams; module: whatever has `penalize` and `distribution`.
    """
    try:
        from transformers.generation import logits_process as peers
    except ImportError:
        return None
    worst = 0.0
    for number, choice in enumerate(CHOICES):
        params = make(**choice)
        if not params.top_p:
            continue  # theirs has no 0
        logits, seen = _logits(200 + number, rows=200), _seen(number, 200)
        # Theirs asks for the ids of the text; rows are filled up with an id of their own that is seen.
        ids = torch.where(seen, torch.arange(V), seen.int().argmax(-1, keepdim=True))
        steps: list[Any] = [peers.TemperatureLogitsWarper(params.temperature)]
        if params.repetition_penalty != 1:
            steps.insert(0, peers.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
        if params.top_k:
            steps.append(peers.TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            steps.append(peers.TopPLogitsWarper(params.top_p))
        if params.min_p:
            steps.append(peers.MinPLogitsWarper(params.min_p))
        scores = logits
        for step in steps:
            scores = step(ids, scores)
        wanted = scores.softmax(-1)
        worst = max(worst, (by_id(module, logits, params, seen) - wanted).abs().max().item())
    return worst


def _off_by(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """Standard deviations between the chi-square of `counts` and what a fair sampler has."""
    expected = probs.double() * counts.sum()
    big = expected >= 5
    cells = [torch.cat([x[big], x[~big].sum()[None]]) for x in (counts.double(), expected)]
    if not expected[~big].sum():
        cells = [cell[:-1] for cell in cells]
    freedom = len(cells[0]) - 1
    return abs(((cells[0] - cells[1]) ** 2 / cells[1]).sum().item() - freedom) / math.sqrt(2 * freedom)


def _chi_square(module: Any) -> float:
    worst = 0.0
    u = torch.rand(DRAWS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for choice in CHOICES[:6]:
        probs, ids = module.distribution(_logits(7, rows=1), module.SamplingParams(**choice))
        drawn = module.draw(probs.expand(DRAWS, -1), ids.expand(DRAWS, -1), u)
        whole = torch.zeros_like(probs).scatter(-1, ids, probs)[0]
        worst = max(worst, _off_by(torch.bincount(drawn, minlength=V), whole))
    return worst


def _beside_multinomial(module: Any) -> float:
    """Both samplers' counts in one table: do they come from one distribution?"""
    probs, ids = module.distribution(_logits(8, rows=1), module.SamplingParams(1.5, 1.0))
    generator = torch.Generator().manual_seed(6)
    u = torch.rand(DRAWS, generator=generator, dtype=torch.float64)
    ours = torch.bincount(module.draw(probs.expand(DRAWS, -1), ids.expand(DRAWS, -1), u), minlength=V).double()
    places = torch.multinomial(probs[0], DRAWS, replacement=True, generator=generator)
    theirs = torch.bincount(ids[0][places], minlength=V).double()
    big = ours + theirs >= 10
    a, b = (torch.cat([x[big], x[~big].sum()[None]]) for x in (ours, theirs))
    statistic = ((a - b) ** 2 / (a + b).clamp(min=1)).sum().item()
    freedom = len(a) - 1
    return abs(statistic - freedom) / math.sqrt(2 * freedom)
