"""How fast a model runs here, against the memory bandwidth of the same minutes and, if asked, against other engines.

Decoding reads every weight once a token, so the figure that travels between machines is bytes of weights read a second
over the bandwidth that plain reads of a large tensor get. All engines take turns in every repeat: what slows the
machine down meanwhile slows all of them.
"""

from __future__ import annotations

import contextlib
import mmap
import statistics
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minillama import __version__, launch, parallel
from minillama.args import PRESETS, ModelArgs, count, shown, whole_number
from minillama.bench_peers import GGUF_BITS, PEERS, Engine, Feed, check_peers, shapes
from minillama.checkpoint import load_model, quantized_as, resolve_dtype
from minillama.decode import Row, Step, decode
from minillama.generation import Llama, check_together, compiled_step, find_tokenizer, for_this_machine
from minillama.kv_cache import KVCache
from minillama.memory import free_memory, gb, kv_cache_bytes, proc_sizes, weight_bytes
from minillama.packed import PackedLinear, Watched
from minillama.quantize import check_device
from minillama.storyteller import demo_dir
from minillama.transformer import Transformer

SHAPES: dict[str, dict[str, Any]] = {
    "110M": dict(dim=768, n_layers=12, n_heads=12, vocab_size=32000, max_seq_len=4096),
    "1.1B": dict(dim=2048, n_layers=22, n_heads=32, n_kv_heads=4, vocab_size=32000, max_seq_len=4096),
    **PRESETS,
}
CHECKED = 16  # tokens of the prompt on which engines have to agree
FAR = {4: 1e-3, 2: 0.05}  # by the bytes of a number: the part of the largest logit by which a peer may be off
PROBE = 400_000_000  # bytes, many times the caches'
EVERY = 0.02  # seconds between two looks at the memory in use
WIDTH = 100

Tick = Callable[[int, int, str], None]  # parts done, parts in all, what comes now
Times = dict["Job", list[list[float]]]  # of each repeat, the seconds of each step


@dataclass(frozen=True)
class Job:
    """`batch` rows of `prompt` tokens each, then `new` steps. kept: the repeats go on from one another."""

    batch: int
    prompt: int
    new: int
    kept: bool = False

    @property
    def name(self) -> str:
        return f"at {self.prompt}" if self.kept else f"batch {self.batch}" if self.batch > 1 else "decode"


@dataclass(frozen=True)
class Plan:
    """What is measured: prefills of `prompts` tokens; `new_tokens` steps at each batch size, after the first prompt.

    prompts: none means 64 and 512, less for a short context. at_position: decode there as well, at batch 1.
    """

    prompts: tuple[int, ...] = ()
    batches: tuple[int, ...] = (1,)
    new_tokens: int = 32
    repeats: int = 5
    at_position: int | None = None

    def fitted(self, args: ModelArgs) -> Plan:
        """The plan for this model. Raises ValueError, with the numbers, if the model's context is too short for it."""
        limit = args.max_seq_len
        plan = self if self.prompts else replace(self, prompts=(min(64, limit // 4), min(512, limit // 2)))
        for name in ("prompts", "batches"):
            values = [whole_number(f"one of {name}", value) for value in getattr(plan, name)]
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} are {shown(values)}; expected one number or more, each once")
        for name in ("new_tokens", "repeats") + ("at_position",) * (self.at_position is not None):
            whole_number(name, getattr(plan, name))
        for job in plan.jobs():
            end = job.prompt + 1 + job.new * (plan.repeats if job.kept else 1)
            if end > limit:
                new = f"{end - job.prompt} new ones{' in all repeats' * job.kept}"
                raise ValueError(f"{job.prompt} tokens and {new} are more than the model's max_seq_len {limit}")
        return plan

    def jobs(self) -> list[Job]:
        decoded = [Job(batch, self.prompts[0], self.new_tokens) for batch in self.batches]
        prefilled = [Job(1, n, 0) for i, n in enumerate(self.prompts) if i or 1 not in self.batches]
        far = [] if self.at_position is None else [Job(1, self.at_position, self.new_tokens, kept=True)]
        return decoded + prefilled + far


class Ours(Engine):
    """minillama, through the loop that `Llama` runs."""

    name = "minillama"

    def __init__(self, model: Transformer, held: str, compile: bool = False):
        self.model, self.held, self.version = model, held, __version__
        self.step: Step | None = compiled_step() if compile else None
        self.warm_steps = None if compile else 2
        embedding = module_bytes(model.tok_embeddings)
        self.matrix_bytes, self.row_bytes = module_bytes(model) - embedding, embedding // model.args.vocab_size

    @torch.no_grad()
    def steps(self, prompts: list[list[int]], new: int, kept: bool = False) -> Iterator[object]:
        rows = [Row(prompt, new) for prompt in prompts]

        def choose(logits: torch.Tensor, _: Sequence[int]) -> torch.Tensor:
            return launch.same_everywhere(logits.argmax(-1))

        yield from decode(self.model, rows, choose, (), step=self.step)

    def feeder(self, rows: int, length: int, kept: bool = False) -> Feed:
        cache, end = KVCache.for_model(self.model, rows, length), 0

        @torch.no_grad()
        def feed(tokens: torch.Tensor) -> torch.Tensor:
            nonlocal end
            logits = self.model(tokens.to(self.model.device), end, cache)[:, -1]
            end += tokens.shape[1]
            return logits

        return feed


def module_bytes(module: nn.Module) -> int:
    """Bytes of weights that a forward through `module` reads: what a packed layer says of itself, else parameters."""
    if (said := getattr(module, "weight_bytes", None)) is not None:
        return int(said)
    return sum(p.nbytes for p in module.parameters(recurse=False)) + sum(map(module_bytes, module.children()))


def bench(
    plan: Plan,
    ckpt_dir: str | Path | None = None,
    *,
    shape: str | None = None,
    against: Sequence[str] = (),
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    quantize: str | None = None,
    compile: bool = False,
    tick: Tick = lambda done, total, what: None,
) -> dict[str, Any]:
    """Measure the checkpoint in `ckpt_dir`, or random weights of a `shape`; the result can go into JSON as it is.

    against: `bench_peers.PEERS` that run as well. Threads are torch's, and peers get as many. Raises ValueError for
    what cannot be measured, before memory is taken.
    """
    against = list(dict.fromkeys(against))
    check_peers(against)
    check_together(quantize, compile, None if shape else ckpt_dir)
    if against and launch.launched_ranks() > 1:
        raise ValueError("--against runs in one process; start it without torchrun")
    asked = resolve_dtype(dtype)
    on = launch.start(None, device)
    if quantize is not None:
        check_device(on)
    total = (1 + len(against)) * (2 + plan.repeats)
    left = iter(range(total))

    def now(what: str) -> None:
        tick(next(left), total, what)

    now("loading")
    started = time.perf_counter()
    with PeakMemory(on) as memory:
        if shape is not None:
            shape = known_shape(shape)
            args = ModelArgs(**SHAPES[shape])
            plan = plan.fitted(args)
            asked = asked or torch.bfloat16
            check_memory(shape, args, asked, quantize, against, plan, on)
            model = random_model(args, asked, on, quantize, compile)
        elif ckpt_dir is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # loading gives them again
                plan = plan.fitted(ModelArgs.from_json(Path(ckpt_dir) / "params.json"))
            quantize = quantize or quantized_as(ckpt_dir)
            if against and quantized_as(ckpt_dir) is not None:
                raise ValueError(f"--against needs the full weights, and those in {ckpt_dir} are quantized")
            model = stored_model(ckpt_dir, asked, on, quantize, compile)
            args = model.args
        else:
            raise ValueError("neither ckpt_dir nor shape says what to measure")
        position = KVCache.for_model(model, 1, 1)  # its bytes are those of a token
        kept = position.layers[0].keys.dtype
        engines: list[Engine] = [Ours(model, quantize or _name(kept), compile)]
        ids = prompt_ids(1, CHECKED, args.vocab_size)
        logits = engines[0].logits(ids[0])
        load_s = time.perf_counter() - started if shape is None else None
        now("warming up")
        far = {engines[0].name: warm_up(engines[0], plan, args.vocab_size)}

    def weight(key: str) -> torch.Tensor:
        """The plain weight: the model's own, or, where packing or quantizing took it, once more from its origin."""
        if quantize is None and model.get_parameter(key).is_contiguous():
            return model.get_parameter(key)
        return random_weight(key, wanted[key], kept, on) if ckpt_dir is None else again.get_parameter(key)

    if against:
        wanted = shapes(args)
        again = model if ckpt_dir is None or quantize is None else load_model(ckpt_dir, device=on, dtype=kept)
    differences = {}
    try:
        for name in against:
            now(f"preparing {name}")
            engines.append(PEERS[name](args, weight, kept, on, quantize))
            difference = float((engines[-1].logits(ids[0]) - logits).abs().max() / logits.abs().max())
            if quantize is None and not difference <= FAR[kept.itemsize]:
                raise ValueError(f"{name} computes something else: logits {difference:.2g} of the largest apart")
            differences[name] = difference
            now(f"warming up {name}")
            far[name] = warm_up(engines[-1], plan, args.vocab_size)
        bandwidth, times = measure(engines, plan, args.vocab_size, on, far, now)
    finally:
        for engine in engines:
            engine.close()
    tick(total, total, "done")
    read = spread(bandwidth)
    name = shape or ("demo checkpoint" if ckpt_dir and Path(ckpt_dir) == demo_dir() else str(ckpt_dir))
    results = {e.name: summary(e, plan, times[e.name], read["median"], position.nbytes) for e in engines}
    return {
        "model": name, "weights": "checkpoint" if shape is None else "random",
        "n_params": args.n_params, "dtype": _name(kept), "quantize": quantize, "compile": compile, "device": str(on),
        "threads": torch.get_num_threads(), "ranks": parallel.world_size(), "repeats": plan.repeats,
        "read_bandwidth_gb_per_s": read, "engines": results,
        "times_as_fast_as": {name: times_as_fast(results["minillama"], results[name]) for name in against},
        "largest_logit_difference": differences, "load_s": load_s, "memory": memory.bytes,
    }  # fmt: skip


# Models -------------------------------------------------------------------------------------------------------------


def known_shape(shape: str) -> str:
    for name in SHAPES:
        if shape.upper() == name.upper():
            return name
    raise ValueError(f"no shape {shown(shape)}; there are {', '.join(SHAPES)}")


def random_weight(key: str, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal, 0.02 wide, the same for the same key; norms are ones."""
    weight = torch.ones(shape, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(zlib.crc32(key.encode()))
    return weight if len(shape) == 1 else weight.normal_(0, 0.02, generator=generator)


def random_model(
    args: ModelArgs, dtype: torch.dtype, device: torch.device, quantize: str | None = None, compile: bool = False
) -> Transformer:
    """A model that was never trained. Of a packed weight it has no plain copy: `random_weight` makes another."""
    with torch.device("meta"):
        model = Transformer(args)
    parallel.parallelize(model)
    parts: list[tuple[str, Any]] = [*((f"layers.{i}.", layer) for i, layer in enumerate(model.layers)), ("", model)]
    for prefix, part in parts:
        for key, value in part.state_dict().items():
            if value.is_meta:
                owner, _, name = key.rpartition(".")
                weight = nn.Parameter(random_weight(prefix + key, value.shape, dtype, device))
                setattr(part.get_submodule(owner), name, weight)
        for_this_machine(part, quantize, compile)
        for packed in part.modules():
            if isinstance(packed, PackedLinear):
                shared, empty = packed.shared, packed.weight.detach().new_empty(1).expand_as(packed.weight)
                packed.weight = hollow = Watched(empty, requires_grad=False)
                shared.weights = [hollow if i == packed.index else w for i, w in enumerate(shared.weights)]
                shared.versions[packed.index] = hollow._version
    return model.eval()


def stored_model(
    folder: str | Path, dtype: torch.dtype | None, device: torch.device, quantize: str | None, compile: bool
) -> Transformer:
    try:
        find_tokenizer(folder)
    except FileNotFoundError:  # ids are all that is needed here
        model = load_model(folder, device=device, dtype=dtype)
        if quantized_as(folder) is None:
            for_this_machine(model, quantize, compile, mapped=dtype is None)
        return model
    return Llama.build(folder, device=device, dtype=dtype, quantize=quantize, compile=compile).model


def check_memory(
    shape: str, args: ModelArgs, dtype: torch.dtype, quantize: str | None, against: Sequence[str], plan: Plan,
    device: torch.device,
) -> None:  # fmt: skip
    """Raise ValueError if the weights and caches will not fit into the memory that is free."""
    ranks = parallel.world_size()
    parts = {"minillama": weight_bytes(args, dtype, ranks) * (1 if device.type == "cuda" else ranks)}
    longest = max(job.batch * (job.prompt + job.new * (plan.repeats if job.kept else 1)) for job in plan.jobs())
    parts["caches"] = (1 + len(against)) * kv_cache_bytes(args, 1, longest, dtype)
    if "transformers" in against:
        parts["transformers"] = args.n_params * dtype.itemsize
    if "llamacpp" in against:
        parts["llamacpp"] = int(args.n_params * GGUF_BITS.get(quantize or "", 8 * dtype.itemsize) / 8)
    free = free_memory(device)
    if free is not None and sum(parts.values()) > free:
        each = ", ".join(f"{name} {gb(size)}" for name, size in parts.items())
        raise ValueError(f"{shape} in {_name(dtype)} takes {gb(sum(parts.values()))} ({each}), and {gb(free)} are free")


def prompt_ids(rows: int, length: int, vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(vocab_size, (rows, length), generator=generator).tolist()


# Measuring ----------------------------------------------------------------------------------------------------------


def warm_up(engine: Engine, plan: Plan, vocab_size: int) -> Iterator[object]:
    """Each job's first steps; the sequence that is filled up to at_position, for the repeats to go on from."""
    far: Iterator[object] = iter(())
    for job in plan.jobs():
        new = job.new * (plan.repeats if job.kept else 1)
        steps = engine.steps(prompt_ids(job.batch, job.prompt, vocab_size), new + 1, job.kept)
        if job.kept:
            next(steps)
            far = steps
        else:
            for _ in islice(steps, engine.warm_steps):
                pass
    return far


def measure(
    engines: list[Engine], plan: Plan, vocab_size: int, device: torch.device, far: Mapping[str, Iterator[object]],
    now: Callable[[str], None],
) -> tuple[list[float], dict[str, Times]]:  # fmt: skip
    """Every engine once a repeat, in turn: the read bandwidth of each repeat in GB/s, and the times of each engine."""
    probe = bandwidth_probe(device)
    bandwidth: list[float] = []
    times: dict[str, Times] = {engine.name: {job: [] for job in plan.jobs()} for engine in engines}
    for r in range(plan.repeats):
        first, best = r % len(engines), 0.0
        for engine in engines[first:] + engines[:first]:
            now(f"repeat {r + 1}: {engine.name}")
            best = max(best, probe())
            for job, seen in times[engine.name].items():
                steps, n = far[engine.name], job.new
                if not job.kept:
                    n += 1
                    steps = engine.steps(prompt_ids(job.batch, job.prompt, vocab_size), n)
                seen.append(clock(steps, n, device))
        bandwidth.append(best)
    return bandwidth, times


def clock(steps: Iterator[object], n: int, device: torch.device) -> list[float]:
    """Seconds of each of `n` steps. A step ends with its ids on the CPU, so on a GPU too it is over then."""
    _synchronize(device)
    times = [time.perf_counter()]
    for _ in range(n):
        next(steps)
        _synchronize(device)
        times.append(time.perf_counter())
    return [end - start for start, end in zip(times, times[1:])]


def bandwidth_probe(device: torch.device) -> Callable[[], float]:
    """A function that measures GB/s: reads by torch's threads on a CPU; on a GPU a copy, read and written."""
    if device.type == "cpu":
        room = mmap.mmap(-1, PROBE)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # in pages of 4 kB, a virtual machine may read at half the speed
            with contextlib.suppress(OSError):
                room.madvise(mmap.MADV_HUGEPAGE)
        data = torch.frombuffer(room, dtype=torch.float32).fill_(1)
        ops: list[Callable[[], object]] = [data.sum, data.amax, data.aminmax, data.view(torch.int64).sum]
        moved = data.nbytes
    else:
        data = torch.ones(PROBE // 4, device=device)
        other = torch.empty_like(data)
        again = 10  # one copy is over in a fifth of a millisecond, of which starting it is a tenth
        ops, moved = [lambda: [other.copy_(data) for _ in range(again)]], again * 2 * data.nbytes

    def probe() -> float:
        seconds = []
        for op in ops * 3:
            _synchronize(device)
            started = time.perf_counter()
            op()
            _synchronize(device)
            seconds.append(time.perf_counter() - started)
        return moved / min(seconds) / 1e9

    return probe


class PeakMemory:
    """The most memory that the process has while the block runs, in `bytes`; {} where it cannot be seen.

    On a CPU: resident, the anonymous part of it (files that are mapped are not), and what was there before.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.bytes: dict[str, int] = {}
        self.over = threading.Event()

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif before := proc_sizes("/proc/self/status"):
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # the high-water mark goes back to what is there now
            self.bytes = {"resident": 0, "anonymous": 0, "resident_before": before["VmRSS"]}
            self.watcher = threading.Thread(target=self._watch, daemon=True)
            self.watcher.start()
        return self

    def _watch(self) -> None:
        while True:
            done = self.over.wait(EVERY)
            self.bytes["anonymous"] = max(self.bytes["anonymous"], proc_sizes("/proc/self/status")["RssAnon"])
            if done:
                return

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.bytes = {"allocated": torch.cuda.max_memory_allocated(self.device)}
        elif self.bytes:
            self.over.set()
            self.watcher.join()
            self.bytes["resident"] = proc_sizes("/proc/self/status")["VmHWM"]


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


# Results ------------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def summary(engine: Engine, plan: Plan, times: Times, bandwidth: float, position_bytes: int) -> dict[str, Any]:
    """bandwidth: GB/s; position_bytes: of keys and values of one token."""
    first = {job.prompt: [seen[0] for seen in runs] for job, runs in times.items() if job.batch == 1 and not job.kept}
    decoded = []
    for job, runs in times.items():
        if not job.new:
            continue
        gaps = [seen[-job.new :] for seen in runs]  # without the first token of sequences begun anew
        end = job.prompt + job.new * (plan.repeats if job.kept else 1)
        ms = [1e3 * gap for seen in gaps for gap in seen]
        speed = spread([job.batch * job.new / sum(seen) for seen in gaps])
        weights = engine.weight_bytes(job.batch)
        cache = job.batch * position_bytes * (job.prompt + 1 + end) // 2
        gb_per_s, both = (n * speed["median"] / job.batch / 1e9 for n in (weights, weights + cache))
        decoded.append({
            "name": job.name, "batch": job.batch, "from_position": job.prompt, "to_position": end,
            "ms_per_token": spread([1e3 * statistics.median(seen) for seen in gaps])
            | {"p95": sorted(ms)[-(-len(ms) * 95 // 100) - 1]},
            "tokens_per_s": speed,
            "weight_bytes": weights, "cache_bytes": cache,
            "weights_gb_per_s": gb_per_s, "weights_of_bandwidth": gb_per_s / bandwidth,
            "weights_and_cache_gb_per_s": both, "weights_and_cache_of_bandwidth": both / bandwidth,
        })  # fmt: skip
    return {
        "version": engine.version, "weights_in": engine.held,
        "prefill_tokens_per_s": {str(n): spread([n / s for s in first[n]]) for n in plan.prompts},
        "first_token_ms": spread([1e3 * s for s in first[plan.prompts[0]]]), "decode": decoded,
    }  # fmt: skip


def columns(engine: dict[str, Any]) -> dict[tuple[str, str], dict[str, float]]:
    """What the table shows of one engine, by what it is and its unit; without "lowest" where it is no measurement."""
    found = {(f"prefill {n}", "tokens/s"): speed for n, speed in engine["prefill_tokens_per_s"].items()}
    found["first token", "ms"] = engine["first_token_ms"]
    for i, job in enumerate(engine["decode"]):
        if whole := i == 0 or not job["name"].startswith("batch"):
            found[job["name"], "ms (p95)"] = job["ms_per_token"]
        found[job["name"], "tokens/s"] = job["tokens_per_s"]
        if whole:
            what = ("weights", "weights") if i == 0 else ("with cache", "weights_and_cache")
            found[what[0], "GB/s"] = {"median": job[f"{what[1]}_gb_per_s"]}
            found[what[0], "of memory"] = {"median": job[f"{what[1]}_of_bandwidth"]}
    return found


def times_as_fast(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, float]:
    """Quotients of the medians, above 1 where we are faster: of speeds ours over theirs, of times theirs over ours."""
    theirs = columns(peer)
    quotients = {key: one["median"] / theirs[key]["median"] for key, one in columns(ours).items() if "lowest" in one}
    return {" ".join(key): 1 / q if key[1].startswith("ms") else q for key, q in quotients.items()}


def table(result: dict[str, Any]) -> str:
    """The result for people, in lines of at most `WIDTH` characters where they can be."""
    heads = list(columns(result["engines"]["minillama"]))
    rows: list[list[str]] = [["", *(what for what, _ in heads)], ["", *(unit for _, unit in heads)]]
    for name, engine in result["engines"].items():
        cells = columns(engine)
        rows.append([f"{name} {engine['weights_in']}", *(_cell(cells[key], key[1]) for key in heads)])
        rows.append(["  lowest-highest", *(_range(cells[key]) for key in heads)])
    for name, ratios in result["times_as_fast_as"].items():
        quotients = (ratios.get(" ".join(key)) for key in heads)
        rows.append([f"vs {name}", *("" if q is None else f"{q:.2f}x" for q in quotients)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads) + 1)]
    parts: list[list[int]] = [[]]
    for i, width in enumerate(widths[1:], 1):
        if parts[-1] and widths[0] + sum(widths[j] + 2 for j in parts[-1]) + width + 2 > WIDTH:
            parts.append([])
        parts[-1].append(i)
    tables = [
        "\n".join(f"{row[0]:<{widths[0]}}" + "".join(f"  {row[i]:>{widths[i]}}" for i in part) for row in rows)
        for part in parts
    ]
    read, memory = result["read_bandwidth_gb_per_s"], result["memory"]
    random = ", random weights" * (result["weights"] == "random")
    shape = f"{result['model']}{random}, {result['quantize'] or result['dtype']}"
    where = result["device"] + f", {result['ranks']} ranks" * (result["ranks"] > 1)
    threads = count(result["threads"], "thread")
    lines = [
        f"{shape}, {where}, {threads}; medians of {count(result['repeats'], 'repeat')}",
        f"memory is read at {_number(read['median'])} GB/s ({_range(read)})",
        *(f"\n{one}" for one in tables),
        "",
    ]
    for name, difference in result["largest_logit_difference"].items():
        held = result["engines"][name]["weights_in"]
        which = "weights before they were quantized, as" if result["quantize"] else "same weights in"
        lines.append(f"{name} has the {which} {held}; its logits differ by {difference:.1g} of the largest")
    if memory:
        lines.append("peak memory: " + ", ".join(f"{k.replace('_', ' ')} {gb(size)}" for k, size in memory.items()))
    if result["load_s"] is not None:
        lines.append(f"loaded in {result['load_s']:.2f} s, first forward included")
    return "\n".join(line.rstrip() for line in "\n".join(lines).split("\n"))


def _cell(value: dict[str, float], unit: str) -> str:
    if unit == "of memory":
        return f"{value['median']:.0%}"
    return _number(value["median"]) + (f" ({_number(value['p95'])})" if "p95" in value else "")


def _range(value: dict[str, float]) -> str:
    return f"{_number(value['lowest'])}-{_number(value['highest'])}" if "lowest" in value else ""


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
