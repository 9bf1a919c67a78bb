"""What the tests of launching run in ranks: functions for `ranks.run_ranks`, and a script for torchrun.

torchrun --nproc_per_node 2 launched.py FOLDER OUT       answers of each rank, into OUT/RANK.pt
torchrun --nproc_per_node 2 launched.py --cli ARGS...    the command line; RANK in ARGS is the rank's number
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from ranks import CountedCalls, generation_case

from minillama import KVCache, Llama, Transformer, launch, memory, parallel
from minillama.collectives import for_inference
from minillama.decode import Row, decode, decode_step

TOKENS = [[1, 5, 9, 300, 17, 2, 44, 8, 123, 64], [1, 399, 0, 12, 80, 81, 82, 7, 7, 250]]
PROMPTS = ["once upon a time", "the cat saw", "every day the boats and the birds"]
STOP_ID, STOP = 300, "a"


@torch.no_grad()
def answers(folder: str) -> dict[str, Any]:
    """Logits, and the tokens and forwards of many requests, of this rank or of the only process."""
    torch.set_num_threads(1)
    model = Transformer.from_checkpoint(folder) if launch.launched_ranks() == 1 else None
    if model is None:
        launch.start(device="cpu")
        model = Transformer.from_checkpoint(folder)
    cache = KVCache.for_model(model, 2, 10)
    tokens = torch.tensor(TOKENS)
    cached = torch.cat(
        [model(tokens[:, :7], 0, cache), model(tokens[:, 7:8], 7, cache), model(tokens[:, 8:], 8, cache)], 1
    )
    return {
        "logits": model(tokens), "cached": cached, "ranks": parallel.world_size(),
        "cache bytes": cache.nbytes, "weights": sum(p.nbytes for p in model.parameters()),
    } | generation_case(folder, PROMPTS, STOP_ID, STOP)  # fmt: skip


@torch.no_grad()
def compiled(folder: str, backends: list[str]) -> dict[str, Any]:
    """Steps of decoding through `torch.compile(fullgraph=True)`, by backend, and fairscale's own."""
    launch.start(device="cpu")
    found: dict[str, Any] = {}

    def logits(model: Transformer, step: Any) -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def choose(logits: torch.Tensor, rows: Any) -> torch.Tensor:
            seen.append(logits)
            return logits.argmax(-1)

        for _ in decode(model, [Row([1, 5, 9], 12), Row([1, 7], 12)], choose, (), step=step):
            pass
        return torch.stack(seen)

    found["smallest"] = launch.smallest([9 * 10**12, 5 * 10**11][parallel.rank()])
    model = Transformer.from_checkpoint(folder)
    found["fairscale"] = logits(model, None)
    try:
        logits(model, torch.compile(decode_step, fullgraph=True, backend="eager"))
        found["fairscale breaks the graph"] = False
    except torch._dynamo.exc.Unsupported:
        found["fairscale breaks the graph"] = True
    torch._dynamo.reset()
    keys = list(model.state_dict())
    found["the model is the same object"] = for_inference(model) is model
    found["the names stay"] = list(model.state_dict()) == keys
    with CountedCalls() as counts:
        found["eager"] = logits(model, None)
    found["fairscale's all-reduces"] = counts["all_reduce"]
    for backend in backends:
        torch._dynamo.reset()
        step = torch.compile(decode_step, fullgraph=True, backend=backend)
        with torch._dynamo.config.patch(error_on_recompile=True):
            found[backend] = logits(model, step)
    found["refused"] = refused(folder)
    return found | {"gradients": gradients(folder)}


def refused(folder: str) -> str:
    """What a rank says to a request that one of them has no memory for."""
    llama = Llama.build(folder, device="cpu")
    memory.free_memory = lambda device: [10**12, 10_000][parallel.rank()]
    try:
        llama.generate([[1, 5, 9]], 4, temperature=0)
    except memory.OutOfMemory as error:
        return str(error)
    return "nothing was amiss"


@torch.enable_grad()
def gradients(folder: str) -> dict[str, float]:
    """How far gradients through `for_inference`'s layers are from those of fairscale's, as parts of the largest."""
    found = []
    for change in (lambda model: model, for_inference):
        model = change(Transformer.from_checkpoint(folder))
        torch.nn.functional.cross_entropy(model(torch.tensor(TOKENS))[0], torch.tensor(TOKENS[1])).backward()
        found.append({key: p.grad for key, p in model.named_parameters()})
    return {
        key: float((found[0][key] - found[1][key]).abs().max() / found[0][key].abs().max())  # type: ignore[union-attr,operator]
        for key in found[0]
    }


def built_for_the_compiler(folder: str) -> list[list[int]]:
    llama = Llama.build(folder, device="cpu", compile=True)
    return llama.generate([[1, 5, 9]], 6, temperature=0, stop_ids=())[0]


def one_leaves(folder: str, silent: float) -> str:
    """Rank 1 takes no part: it ends, or is silent for some seconds. What rank 0 says."""
    launch.start(device="cpu")
    llama = Llama.build(folder, device="cpu")
    llama.generate([[1, 5]], 2, temperature=0)
    if parallel.rank() == 1:
        time.sleep(silent)
        return ""
    try:
        llama.generate([[1, 5]], 40, temperature=0)
    except launch.LostRanks as error:
        return str(error)
    return "nothing was amiss"


if __name__ == "__main__":
    if sys.argv[1] == "--cli":
        from minillama.cli import main

        sys.argv[1:] = [argument.replace("RANK", os.environ["RANK"]) for argument in sys.argv[2:]]
        main()
    result = answers(sys.argv[1])
    torch.save(result, Path(sys.argv[2]) / f"{os.environ['RANK']}.pt")
    launch.leave()
