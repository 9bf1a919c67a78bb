"""Real ranks for tests: processes spawned with the environment that torchrun gives, and what some tests run in them.

A spawned process finds its function by name, so the function must live in a module that can be imported: here or in
another one of this folder, not in a notebook or a closure.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from fairscale.nn.model_parallel import initialize as mpu

from minillama import KVCache, Llama, Transformer, launch, packed, parallelize

Rows = Sequence[Sequence[int]]
Ways = dict[str, list[torch.Tensor]]


def run_ranks(
    n: int, function: Callable[..., Any], *args: Any, timeout: float = 300.0, method: str = "spawn"
) -> list[Any]:
    """Call `function(*args)` in each of n new processes; returns what each returned, rank 0's first.

    Results travel as files that torch writes: tensors, numbers, text, and lists and dicts of them. What a rank raises
    is raised here; after `timeout` seconds the ranks are ended and TimeoutError is raised. method: "fork" saves the
    seconds in which each new process imports torch; this process must not have computed on several threads.
    """
    ports = mp.get_context(method).SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _be_rank, (n, ports, folder, function, args), nprocs=n, join=False, start_method=method
        )
        try:
            # As under torchrun, the parent keeps the store that ranks meet at: no port can be taken between choice and
            # use. Its thread takes a lock of libc's to look up names; a rank forked meanwhile would wait for ever.
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            for _ in range(n):
                ports.put(store.port)
            deadline = time.monotonic() + timeout
            while not context.join(timeout=max(0.0, deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    where = _where_they_are(context.processes, Path(folder))
                    raise TimeoutError(f"{n} ranks of {function.__name__} did not end in {timeout:g} s: {where}")
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(n)]


def _where_they_are(processes: Sequence[Any], folder: Path) -> str:
    """What every rank that is still at work is doing: the innermost lines of its stack."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGUSR1)
    time.sleep(5)  # they share the cores with other tests
    said = []
    for rank, process in enumerate(processes):
        stack = folder / f"{rank}.stack"
        at = stack.read_text() if stack.exists() and stack.stat().st_size else "has said nothing"
        said.append(f"rank {rank} {at if process.is_alive() else f'ended with {process.exitcode}'}")
    return "\n".join(said)


def _be_rank(rank: int, n: int, ports: Any, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    faulthandler.register(signal.SIGUSR1, open(Path(folder) / f"{rank}.stack", "w"))  # noqa: SIM115
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports.get()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    torch.save(function(*args), Path(folder) / f"{rank}.pt")
    launch.leave()


def filled(rows: Rows, filler: int) -> torch.Tensor:
    """Rows of different lengths as one tensor (B, T), filled up on the right."""
    tokens = torch.full((len(rows), max(map(len, rows))), filler)
    for r, row in enumerate(rows):
        tokens[r, : len(row)] = torch.tensor(row, dtype=torch.long)
    return tokens


def level(model: Transformer, rows: Rows, sizes: Sequence[int], filler: int = 7) -> list[torch.Tensor]:
    """Logits of each row, (T, V), fed through a cache in chunks of `sizes`, all rows at the same position."""
    tokens = filled(rows, filler)
    cache = KVCache.for_model(model, len(rows), tokens.shape[1])
    steps, start = [], 0
    for chunk in tokens.split(list(sizes), 1):
        steps.append(model(chunk, start, cache))
        start += chunk.shape[1]
    return [one[: len(row)] for one, row in zip(torch.cat(steps, 1), rows)]


def apart(model: Transformer, rows: Rows, sizes: Sequence[int], filler: int = 7) -> list[torch.Tensor]:
    """Logits of each row, (T, V), each row at its own position: all but the last sum(sizes) tokens, then `sizes`."""
    prefixes = [row[: len(row) - sum(sizes)] for row in rows]  # one of them may be empty: a row that joins late
    cache = KVCache.for_model(model, len(rows), max(map(len, rows)))
    first = model(filled(prefixes, filler), 0, cache)
    parts = [[one[: len(prefix)]] for one, prefix in zip(first, prefixes)]
    positions = torch.tensor([len(prefix) for prefix in prefixes])
    for size in sizes:
        chunk = [list(row[p : p + size]) for row, p in zip(rows, positions.tolist())]
        for part, logits in zip(parts, model(torch.tensor(chunk), positions, cache)):
            part.append(logits)
        positions = positions + size
    return [torch.cat(part) for part in parts]


@torch.no_grad()
def every_way(model: Transformer, rows: Rows) -> Ways:
    """Logits of each row, (T, V), by every road that leads to them. Rows: 28 tokens, or shorter but 11 or more."""
    tokens = filled(rows, 7)
    stateless = [one[: len(row)] for one, row in zip(model(tokens), rows)]
    return {
        "one pass, no cache": stateless,
        "one pass": level(model, rows, [28]),
        "chunks": level(model, rows, [9, 1, 14, 4]),
        "single steps": level(model, rows, [1] * 28),
        "chunks, rows apart": apart(model, rows, [3, 1, 5, 2]),
        "single steps, rows apart": apart(model, rows, [1] * 11),
    }


class CountedCalls:
    """Count the collectives of torch.distributed that run while it is open."""

    NAMES = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce_scatter", "barrier")

    def __enter__(self) -> dict[str, int]:
        self.counts = dict.fromkeys(self.NAMES, 0)
        self.kept = {name: getattr(dist, name) for name in self.NAMES}
        for name, function in self.kept.items():
            setattr(dist, name, self._counting(name, function))
        return self.counts

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            return function(*args, **kwargs)

        return counted

    def __exit__(self, *error: object) -> None:
        for name, function in self.kept.items():
            setattr(dist, name, function)


@torch.no_grad()
def model_in_ranks(folders: dict[str, str], batches: dict[str, Rows], unfit: dict[str, str]) -> dict[str, Any]:
    """What one rank has to say about models: logits, collectives, weights, the cache, messages of what cannot be."""
    launch.start(device="cpu")
    found: dict[str, Any] = {"ways": {}, "counts": {}, "errors": {}}
    for name, folder in folders.items():
        model = Transformer.from_checkpoint(folder)
        found["ways"][name] = {batch: every_way(model, rows) for batch, rows in batches.items()}

    cache = KVCache.for_model(model, 1, 8)
    found["cache nbytes"] = cache.nbytes
    tokens = torch.tensor([[1, 2, 3]])
    calls = {
        "stateless": lambda: model(tokens),
        "prefill": lambda: model(tokens, 0, cache),
        "step": lambda: model(tokens[:, :1], 3, cache),
    }
    for name, call in calls.items():
        with CountedCalls() as counts:
            call()
        found["counts"][name] = counts

    # The same model, cut from whole weights that are already in memory.
    whole = torch.load(Path(folder) / "consolidated.00.pth")
    cut = Transformer(model.args)
    cut.load_state_dict(whole)
    del whole
    parallelize(cut)
    found["loaded"], found["cut"] = dict(model.state_dict()), dict(cut.state_dict())
    found["loaded logits"], found["cut logits"] = model(tokens), cut(tokens)
    found["cut bytes held"] = sum(
        {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in cut.parameters()}.values()
    )
    found["cut bytes"] = sum(p.nbytes for p in cut.parameters())

    for name, folder in unfit.items():
        try:
            Transformer.from_checkpoint(folder)
        except ValueError as error:
            found["errors"][name] = str(error)
    return found


@torch.no_grad()
def fast_in_ranks(folder: str, rows: Rows, sizes: Sequence[int], formats: Sequence[str | None]) -> dict[str, Any]:
    """What each format (None: packed, however small) makes of the linears on this rank, and the logits they give."""
    packed.WORTH_PACKING = 0
    found: dict[str, Any] = {}
    for format in formats:
        model = Llama.build(folder, device="cpu", quantize=format).model
        kinds = {type(m).__name__ for m in model.modules() if type(m).__name__.endswith("Linear")}
        with CountedCalls() as counts:
            logits = level(model, rows, sizes)
        found[str(format).lower()] = {"kinds": sorted(kinds), "logits": logits, "all_reduce": counts["all_reduce"]}
    return found


@torch.no_grad()
def reference_case(folder: str, tokenizer: str, tokens: torch.Tensor, prompts: Rows) -> dict[str, Any]:
    """What Meta's reference was asked, answered by this rank (or by the only process)."""
    llama = Llama.build(folder, tokenizer, device="cpu")
    cache = KVCache.for_model(llama.model, *tokens.shape)
    chunks = [llama.model(chunk, start, cache) for chunk, start in _as_fed(tokens)]
    greedy, logprobs = llama.generate(prompts, 24, temperature=0.0, logprobs=True)
    return {"logits": llama.model(tokens), "chunked": torch.cat(chunks, 1), "greedy": greedy, "logprobs": logprobs}


def _as_fed(tokens: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
    cuts = [0, *range(16, 33), 40]  # 16 together, 16 one at a time, 8 together
    return [(tokens[:, start:end], start) for start, end in zip(cuts, cuts[1:])]


def generation_case(folder: str, prompts: list[str], stop_id: int, stop: str) -> dict[str, Any]:
    """Tokens of several requests, and how many forwards each took, in this rank (or in the only process).

    Ranks are given different seeds wherever one is given but in "seed": rank 0's are the ones to be obeyed.
    """
    me = int(os.environ.get("RANK", "0"))
    llama = Llama.build(folder, device="cpu", seed=5 + me)
    rows = [llama.tokenizer.encode(prompt, bos=True, eos=False) for prompt in prompts]
    forwards = 0

    def count(*_: object) -> None:
        nonlocal forwards
        forwards += 1

    llama.model.norm.register_forward_hook(count)
    found: dict[str, Any] = {}

    def ask(name: str, **options: Any) -> None:
        nonlocal forwards
        forwards = 0
        tokens, _ = llama.generate(rows, 16, **options)
        found[name] = {"tokens": tokens, "forwards": forwards}

    ask("greedy", temperature=0.0)
    ask("seed", temperature=0.8, seed=11)
    ask("seeds that differ", temperature=0.8, seed=12 + me)
    ask("seeds of builds that differ", temperature=0.8)
    ask("greedy, stop id", temperature=0.0, stop_ids=[stop_id])
    ask("greedy, stop string", temperature=0.0, stop=stop)
    ask("sampled, stop string", temperature=0.8, seed=13 + me, stop=[stop, "!"])
    ask("sampled, stop id", temperature=0.8, seed=14 + me, stop_ids=[stop_id])
    forwards = 0
    streamed = list(llama.stream_text(prompts[0], 0.8, max_gen_len=16, stop=stop, seed=15 + me))
    found["stream"] = {"tokens": [piece.tokens for piece in streamed], "forwards": forwards}
    return found


def reference_and_stories(references: dict[str, tuple[Any, ...]], stories: tuple[Any, ...]) -> dict[str, Any]:
    return {name: reference_case(*case) for name, case in references.items()} | {"stories": generation_case(*stories)}


@torch.no_grad()
def folders_in_ranks(folders: dict[str, str], tokens: torch.Tensor) -> dict[str, Any]:
    """Logits of every folder on this rank: in one pass, through a cache in chunks, and of a whole model cut later."""
    found = {}
    for name, folder in folders.items():
        whole = Transformer.from_checkpoint(folder)
        launch.start(device="cpu")
        model = Transformer.from_checkpoint(folder)
        cache = KVCache.for_model(model, *tokens.shape)
        chunks = [
            model(chunk, start, cache)
            for chunk, start in ((tokens[:, :9], 0), (tokens[:, 9:10], 9), (tokens[:, 10:], 10))
        ]
        found[name] = {
            "stateless": model(tokens),
            "cached": torch.cat(chunks, 1),
            "parallelized": parallelize(whole)(tokens),
            "kv heads": cache.layers[0].keys.shape[1],
        }
        mpu.destroy_model_parallel()  # the next folder is first loaded whole
    return found
