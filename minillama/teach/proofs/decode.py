"""What shows that the promoted loop is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minillama.args import ModelArgs
from minillama.sampling import Sampler, SamplingParams
from minillama.teach.receipts import Proof
from minillama.transformer import Transformer

RATIOS = ((4, 4), (4, 2), (4, 1))  # query heads, kv heads
PROMPTS = ([1, 5, 9, 30, 7], [3, 8], [2, 2, 17, 4, 4, 11, 29], [6])
MAX_NEW = (9, 14, 0, 6)
STOPS = {31, 32, 33}
V = 40


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's loop beside the package's; then rows alone, a loop without a cache, and transformers' Llama."""
    for dtype in (torch.float32, torch.bfloat16):
        same, alone, plain, scores = 0.0, 0.0, 0.0, 0.0
        for H, K in RATIOS:
            model = _toy(H, K, dtype)
            for step in (None, theirs.decode_step):
                here = _run(theirs, model, PROMPTS, MAX_NEW, step=step)
                package = _run(ours, model, PROMPTS, MAX_NEW, step=step and ours.decode_step)
                same = max(same, _gap(here, package))
            if dtype is torch.float32:
                rows = _run(theirs, model, PROMPTS, MAX_NEW)
                static = _run(theirs, model, PROMPTS, MAX_NEW, step=theirs.decode_step)
                for r, row in enumerate(rows):
                    one = _run(theirs, model, PROMPTS[r : r + 1], MAX_NEW[r : r + 1], first=r)[0]
                    alone = max(alone, _gap([row[:2]], [one[:2]]), _gap([row[:2]], [static[r][:2]]))
                    text, wanted = _plain(model, r)
                    plain = max(plain, 0.0 if row[0] == text else float("inf"))
                    found = [*row[3], *row[2]]
                    scores = max([scores, *(abs(a - b) for a, b in zip(found, wanted))])
                    scores = max(scores, 0.0 if len(found) == len(wanted) else float("inf"))
        name = str(dtype).removeprefix("torch.")
        yield Proof(f"the notebook's decode is the package's, {name}, H/K of 1, 2 and 4, both kinds of step", same, 0.0)
        if dtype is torch.float32:
            yield Proof("four ragged rows together get what each gets alone, token for token", alone, 0.0)
            yield Proof("and what a loop without a cache gets, one whole text after another", plain, 0.0)
            yield Proof("log-probabilities of prompts and new tokens are those of a plain pass", scores, 1e-4)
    peer = _against_transformers(theirs)
    if peer is not None:
        yield Proof("greedy, it is transformers' Llama, asked for the likeliest token each time", peer, 0.0)


def _gap(a: Any, b: Any) -> float:
    return 0.0 if a == b else float("inf")


def _toy(H: int, K: int, dtype: torch.dtype) -> Transformer:
    args = ModelArgs(
        dim=8 * H, n_layers=2, n_heads=H, n_kv_heads=K, vocab_size=V, multiple_of=16, max_seq_len=32
    )  # fmt: skip
    model = Transformer(args)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model.to(dtype).eval()


def _sampler(prompts: Sequence[Sequence[int]], first: int) -> Sampler:
    params = SamplingParams(0.9, 0.95, repetition_penalty=1.2)
    return Sampler(params, prompts, max(MAX_NEW), V, [50 + first + r for r in range(len(prompts))])


@torch.no_grad()
def _run(
    module: Any,
    model: Transformer,
    prompts: Sequence[list[int]],
    max_new: Sequence[int],
    first: int = 0,
    step: Callable[..., Any] | None = None,
) -> list[tuple[list[int], str | None, list[float], list[float]]]:
    """Of every row: tokens, reason, and scores; rows[0] of `prompts` being number `first` of all."""
    rows = [module.Row(list(prompt), n) for prompt, n in zip(prompts, max_new)]
    loop = module.decode(model, rows, _sampler(prompts, first), STOPS, logprobs=True, score_prompts=True, step=step)
    for _ in loop:
        pass
    return [(row.tokens, row.finish_reason, row.logprobs, row.prompt_logprobs) for row in rows]


@torch.no_grad()
def _plain(model: Transformer, r: int) -> tuple[list[int], list[float]]:
    """Row r without a cache: new ids, and the score of every token of its text in float64."""
    sampler, new = _sampler([PROMPTS[r]], r), list[int]()
    while len(new) < MAX_NEW[r]:
        token = int(sampler(model(torch.tensor([[*PROMPTS[r], *new]]))[:, -1])[0])
        if token in STOPS:
            break
        new.append(token)
    text = [*PROMPTS[r], *new]
    logprobs = model(torch.tensor([text]))[0].double().log_softmax(-1)
    return new, [0.0, *(float(logprobs[i, token]) for i, token in enumerate(text[1:]))]


@torch.no_grad()
def _against_transformers(module: Any) -> float | None:
    """Greedy rows beside `generate` of transformers, without a cache or a batch; None where it is not here."""
    try:
        from minillama.bench_peers import Transformers

        model = _toy(4, 2, torch.float32)
        peer = Transformers(model.args, model.get_parameter, torch.float32, torch.device("cpu"), None).model
    except ValueError:
        return None
    rows = [module.Row(list(prompt), 8) for prompt in PROMPTS]
    for _ in module.decode(model, rows, lambda logits, _: logits.argmax(-1), ()):
        pass
    worst = 0.0
    for row in rows:
        text = list(row.prompt)
        for _ in range(8):  # its forward, the likeliest token each time
            text.append(int(peer(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
        worst = max(worst, _gap(row.tokens, text[len(row.prompt) :]))
    return worst
