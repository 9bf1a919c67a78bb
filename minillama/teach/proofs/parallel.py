"""What shows that the promoted module is right: simulated ranks, one thread each, against the model on one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from fairscale.nn.model_parallel import initialize as mpu
from fairscale.nn.model_parallel import layers, mappings
from torch import nn

from minillama.args import ModelArgs
from minillama.kv_cache import KVCache
from minillama.teach.receipts import Proof
from minillama.transformer import Transformer

KV_HEADS = (8, 2, 1)  # of 8 query heads
RANKS = (2, 4, 8)


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's cuts beside the package's; logits of R ranks beside one; files' order beside a plain formula."""
    cut, whole, cached = 0.0, 0.0, 0.0
    generator = torch.Generator().manual_seed(0)
    for n_kv_heads in KV_HEADS:
        args = ModelArgs(
            dim=64, n_layers=2, n_heads=8, n_kv_heads=n_kv_heads, vocab_size=96, multiple_of=32, max_seq_len=64
        )
        for dtype, numbers in ((torch.float32, RANKS), (torch.bfloat16, RANKS[1:2])):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = Transformer(args).to(dtype).eval()
            tokens = torch.randint(96, (3, 12), generator=generator)
            with torch.no_grad():
                expected = model(tokens)
            for n in numbers:
                package = in_threads(n, partial(_one_rank, ours, model, tokens))
                here = in_threads(n, partial(_one_rank, theirs, model, tokens))
                for (a, x, u), (b, y, v) in zip(here, package):
                    same = a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
                    same = same and torch.equal(x, y) and torch.equal(u, v)
                    cut = max(cut, 0.0 if same else float("inf"))
                    if dtype is torch.float32:
                        scale = expected.abs().max()
                        whole = max(whole, float((x - expected).abs().max() / scale))
                        cached = max(cached, float((u - expected[:, 7:]).abs().max() / scale))
    what = "weights and logits, fp32 and bf16, batch 3, H/K of 1, 4 and 8"
    yield Proof(f"the notebook's ranks are the package's, {what}", cut, 0.0)
    yield Proof("2, 4 and 8 ranks have the logits of one", whole, 1e-5)
    yield Proof("and through a cache, from position 7 on", cached, 1e-5)
    yield Proof("kv heads are those that the rank's query heads look at", _kv_heads(theirs), 0.0)


def _one_rank(module: Any, model: Transformer, tokens: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        mine = Transformer(model.args).to(model.norm.weight.dtype)
        mine.load_state_dict(model.state_dict())
        module.parallelize(mine)
        cache = KVCache.for_model(mine, len(tokens), tokens.shape[1])
        mine(tokens[:, :7], 0, cache)
        return mine.state_dict(), mine(tokens), mine(tokens[:, 7:], 7, cache)


def _kv_heads(module: Any) -> float:
    """Against the query heads: head i looks at kv head i // (H / K)."""
    for heads, kv_heads, ranks in ((8, 2, 8), (8, 2, 4), (8, 8, 4), (64, 8, 16), (64, 8, 64), (8, 1, 2)):
        for r in range(ranks):
            looked_at = {i * kv_heads // heads for i in range(r * heads // ranks, (r + 1) * heads // ranks)}
            part, parts = module.part_of("layers.0.attention.wk.weight", kv_heads, r, ranks)
            held = set(range(part * kv_heads // parts, (part + 1) * kv_heads // parts))
            if held != looked_at:
                return float("inf")
    return 0.0


# What the chapter's processes look at, each on its rank -------------------------------------------------------------


@torch.no_grad()
def exchanges(model: Transformer, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, int]]:
    """The logits of `tokens`, and how often the ranks exchanged something on the way to them."""
    calls = {"all_reduce": 0, "all_gather": 0}

    def counted(name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return real(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name in calls:
            stack.enter_context(mock.patch.object(dist, name, partial(counted, name, getattr(dist, name))))
        return model(tokens), calls


@torch.no_grad()
def layers_alike(whole: Transformer, w1: nn.Linear, w2: nn.Linear, tokens: torch.Tensor) -> dict[str, bool]:
    """Whether fairscale's layers, given this rank's part of a weight, make of the same numbers what the parts make.

    w1, w2: the part of the first block's that this rank holds; what w2 makes is summed over the ranks.
    """
    me, ranks = mpu.get_model_parallel_rank(), mpu.get_model_parallel_world_size()
    dim, hidden, table = whole.args.dim, whole.args.hidden_dim, whole.tok_embeddings.weight  # D, F, (V, D)
    x = whole.tok_embeddings(tokens)  # (B, T) -> (B, T, D)
    h = w1(x)  # (B, T, D) -> (B, T, F/R)
    kinds: dict[str, tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]] = {
        "ColumnParallelLinear": (
            layers.ColumnParallelLinear(dim, hidden, bias=False, gather_output=False), w1.weight, x, h,
        ),
        "RowParallelLinear": (
            layers.RowParallelLinear(hidden, dim, bias=False, input_is_parallel=True), w2.weight, h, w2(h),
        ),
        "ParallelEmbedding": (layers.ParallelEmbedding(*table.shape), table.chunk(ranks, 1)[me], tokens, x),
        "VocabParallelEmbedding": (layers.VocabParallelEmbedding(*table.shape), table.chunk(ranks, 0)[me], tokens, x),
    }  # fmt: skip
    same = {}
    for name, (made, weight, given, wanted) in kinds.items():
        made.weight.data = weight.detach().contiguous()
        same[name] = torch.equal(made(given), wanted)
    return same


def seconds_of_sums(
    sizes: Iterable[int] = (1, 192, 4096, 16384, 65536, 262144, 1048576), rounds: int = 25
) -> dict[int, float]:
    """Seconds of an all-reduce by its bytes, the shortest of `rounds`; sizes: numbers of 4 bytes.

    In rounds over all sizes: where the machine is busy for a moment, no size has all of it. Whatever else runs only
    adds to a time, so the shortest is the one that says most about the link.
    """
    boxes = [torch.zeros(size) for size in sizes]
    found = {box.nbytes: float("inf") for box in boxes}
    for _ in range(rounds):
        for box in boxes:
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(box)
            found[box.nbytes] = min(found[box.nbytes], time.perf_counter() - begin)
    return found


def in_threads(n: int, function: Callable[[], Any]) -> list[Any]:
    """What `function` returns on each of n ranks, which are threads of this process and meet where fairscale's would.

    For a moment fairscale believes that there are n ranks; no process is started.
    """
    if n == 1:
        return [function()]
    here = threading.local()
    meet = threading.Barrier(n)
    slots: list[Any] = [None] * n
    results: list[Any] = [None] * n
    errors: list[BaseException] = []

    def exchange(x: torch.Tensor) -> list[torch.Tensor]:
        slots[here.rank] = x
        meet.wait()
        everyone = list(slots)
        meet.wait()
        return everyone

    def reduce(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        together = torch.stack([part.clone() for part in exchange(x.clone())]).sum(0)
        if ctx:
            ctx.mark_dirty(x)
        return x.copy_(together)

    def gather(x: torch.Tensor) -> torch.Tensor:
        return torch.cat(exchange(x), -1)

    def work(i: int) -> None:
        here.rank = i
        try:
            results[i] = function()
        except BaseException as error:  # told to the thread that asked
            errors.append(error)
            meet.abort()

    places: list[tuple[Any, str, Any]] = [(dist, "is_initialized", lambda: True)]
    for module in (mpu, layers):
        places.append((module, "get_model_parallel_world_size", lambda: n))
        places.append((module, "get_model_parallel_rank", lambda: here.rank))
    places.append((mpu, "model_parallel_is_initialized", lambda: True))
    places += [(mappings, "_reduce", reduce), (mappings, "_gather", gather)]
    # Which one fills a slice first is left to chance: fairscale's filling is off all along, not thread by thread.
    places.append((layers, "_initialize_affine_weight", lambda *args, **kwargs: None))
    with contextlib.ExitStack() as stack:
        for module, name, value in places:
            stack.enter_context(mock.patch.object(module, name, value))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        broken = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        raise (broken or errors)[0]
    return results
