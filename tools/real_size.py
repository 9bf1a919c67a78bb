"""Real sizes on this machine, without a real checkpoint: random weights in Meta's layout, loaded and run.

    python tools/real_size.py WORK                     a 7B, then one rank's share of a 70B on eight; 18 GB of disk
    python tools/real_size.py WORK --case 7B --keep    one of them, and leave its files
    python tools/real_size.py --report WORK/real_size.json     the table
    python tools/real_size.py --report WORK/real_size.json --into docs/real-checkpoints.md     where it belongs

Each part of the work is written to WORK/real_size.json when it is done, so a run that was stopped goes on from there.
A case is a shape (7B, 13B, 70B, 1.1B, 110M), or SHAPE/RANKS for one rank's share: that file alone is made, and its
neighbours are links to it. Exchanges with the seven ranks that are not there are left out, so the text would be
nonsense; what is measured is this rank's own work. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fairscale.nn.model_parallel import initialize as mpu

from minillama import parallel
from minillama.args import ModelArgs
from minillama.bench import SHAPES, Ours, PeakMemory, bandwidth_probe, clock, prompt_ids, random_weight
from minillama.checkpoint import load_model, meta_model, shapes_of
from minillama.generation import for_this_machine
from minillama.memory import gb, plan, proc_sizes, weight_bytes
from minillama.pth import PthWriter

ALL = SHAPES | {"tiny": dict(dim=512, n_layers=2, n_heads=64, vocab_size=1600, multiple_of=64, max_seq_len=256)}
CASES = ("7B", "70B/8")
CPU = torch.device("cpu")
DTYPE = torch.bfloat16
SPARE = 1_000_000_000  # bytes of disk that have to stay free
BLOCK = 2**24
RESULTS = "real_size.json"
BEGIN, END = "<!-- real_size: begin -->", "<!-- real_size: end -->"

Results = dict[str, Any]


def main() -> None:
    options = parsed()
    if options.report:
        table = report(json.loads(options.report.read_text()))
        if options.into:
            options.into.write_text(put_into(options.into.read_text(), table))
        else:
            print(table)
    elif options.child:
        print(json.dumps(run(options.child, options.work, options)))
    else:
        measure(options)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("work", type=Path, nargs="?", help="a folder with enough room")
    parser.add_argument("--case", action="append", help=f"default: {' '.join(CASES)}")
    parser.add_argument("--prompt", type=int, default=64, metavar="N")
    parser.add_argument("--new-tokens", type=int, default=16, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), metavar="N")
    parser.add_argument("--keep", action="store_true", help="leave the files")
    parser.add_argument("--report", type=Path, metavar="JSON", help="write the table of a finished run")
    parser.add_argument("--into", type=Path, metavar="FILE", help=f"put it between {BEGIN} and {END}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is None and options.report is None:
        parser.error("name a folder with enough room, or --report real_size.json")
    return options


def measure(options: argparse.Namespace) -> None:
    options.work.mkdir(parents=True, exist_ok=True)
    path = options.work / RESULTS
    results: Results = json.loads(path.read_text()) if path.exists() else {"machine": machine(), "cases": {}}
    for case in options.case or CASES:
        shape_of(case)  # before anything long
    for case in options.case or CASES:
        done = results["cases"].setdefault(case, {})
        folder = options.work / case.replace("/", "-of-")

        def finish(part: str, found: Any, done: Results = done) -> None:
            done[part] = found
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps(results, indent=1) + "\n")
            os.replace(beside, path)

        if "run" not in done:
            if not is_made(folder, done):
                finish("make", make(case, folder))
            if "read" not in done:
                say(f"{case}: reading the file")
                finish("read", read(weights_file(folder)))
            say(f"{case}: loading and running")
            finish("run", in_child(case, folder, options))
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(report(results))


def shape_of(case: str) -> tuple[ModelArgs, int]:
    """The model's args and the number of ranks."""
    name, _, ranks = case.partition("/")
    if name not in ALL or (ranks and not ranks.isdecimal()):
        raise SystemExit(f"no case {case!r}; there are {', '.join(ALL)}, and each with /RANKS")
    args = ModelArgs(**ALL[name])
    args.check_ranks(int(ranks or 1))
    return args, int(ranks or 1)


# Making and reading files -------------------------------------------------------------------------------------------


def make(case: str, folder: Path) -> Results:
    """A folder in Meta's layout, of which this rank's file is real and the others are links to it."""
    args, ranks = shape_of(case)
    need, free = weight_bytes(args, DTYPE, ranks), shutil.disk_usage(folder.parent).free
    if need + SPARE > free:
        raise SystemExit(f"{case} takes {gb(need)} and {gb(SPARE)} have to stay free; {folder.parent} has {gb(free)}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    started = time.perf_counter()
    whole = shapes_of(meta_model(args))
    shapes = {}
    for key, shape in whole.items():
        dim = parallel.split_dim(key)
        shapes[key] = tuple(size // ranks if d == dim else size for d, size in enumerate(shape))
    part = folder / "weights.part"
    writer = PthWriter(part, shapes, DTYPE)
    for i, (key, shape) in enumerate(shapes.items()):
        say(f"{case}: writing {key} ({i + 1} of {len(shapes)})", again=True)
        writer.write(random_weight(key, torch.Size(shape), DTYPE, CPU))
    writer.close()
    os.replace(part, weights_file(folder))
    for n in range(1, ranks):
        os.link(weights_file(folder), folder / f"consolidated.{n:02d}.pth")
    fields = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of", "ffn_dim_multiplier", "norm_eps")
    (folder / "params.json").write_text(json.dumps({name: getattr(args, name) for name in fields}))
    size = weights_file(folder).stat().st_size
    return {"seconds": time.perf_counter() - started, "file_bytes": size}


def weights_file(folder: Path) -> Path:
    return folder / "consolidated.00.pth"


def is_made(folder: Path, done: Results) -> bool:
    file = weights_file(folder)
    whole = file.exists() and (folder / "params.json").exists()
    return whole and "make" in done and file.stat().st_size == done["make"]["file_bytes"]


def forget(path: Path) -> None:
    """Have the system read the file from the disk next time."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path) -> Results:
    """Seconds of reading the file from front to back, from the disk."""
    forget(path)
    block, total = bytearray(BLOCK), 0
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(block):
            total += n
    return {"seconds": time.perf_counter() - started, "bytes": total}


# Loading and running, in a process of its own -----------------------------------------------------------------------


def in_child(case: str, folder: Path, options: argparse.Namespace) -> Results:
    more = ["--prompt", options.prompt, "--new-tokens", options.new_tokens, "--repeats", options.repeats]
    command = [sys.executable, __file__, folder, "--child", case, *more, "--threads", options.threads]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{case}: the run ended with {done.returncode}; what it said is above")
    return json.loads(done.stdout.splitlines()[-1])


@torch.no_grad()
def run(case: str, folder: Path, options: argparse.Namespace) -> Results:
    torch.set_num_threads(options.threads)
    args, ranks = shape_of(case)
    if ranks > 1:
        stand_alone_among(ranks)
    warm_up(ranks)
    forget(weights_file(folder))
    before = proc_sizes("/proc/self/status").get("RssAnon", 0)
    started = time.perf_counter()
    with PeakMemory(CPU) as memory:
        model = load_model(folder, device=CPU)
        loaded = time.perf_counter() - started
        for_this_machine(model, mapped=True)
        ready = time.perf_counter() - started
    engine = Ours(model, "bfloat16")
    prompts = prompt_ids(1, options.prompt, args.vocab_size)
    with PeakMemory(CPU) as running:
        first = clock(engine.steps(prompts, 1), 1, CPU)[0]
        probe, bandwidth, prefill, steps = bandwidth_probe(CPU), [], [], []
        for _ in range(options.repeats):
            bandwidth.append(probe())
            seen = clock(engine.steps(prompts, options.new_tokens + 1), options.new_tokens + 1, CPU)
            prefill.append(seen[0])
            steps += seen[1:]
    step = statistics.median(steps)
    length = options.prompt + options.new_tokens + 1
    planned = plan(args, ranks=ranks, seq_len=length, prompt_len=options.prompt, dtype=DTYPE, joined=True)
    return {
        "threads": options.threads, "weights": weight_bytes(args, DTYPE, ranks), "load_s": loaded, "ready_s": ready,
        "first_prompt_s": first, "prompt": options.prompt, "new_tokens": options.new_tokens,
        "prefill_tokens_per_s": options.prompt / statistics.median(prefill), "tokens_per_s": 1 / step,
        "read_gb_per_s": engine.matrix_bytes / step / 1e9, "bandwidth_gb_per_s": statistics.median(bandwidth),
        "anonymous_before": before, "peak_loading": memory.bytes, "peak_running": running.bytes,
        "largest_tensor": max(p.nbytes for p in model.parameters()), "planned": planned.as_dict(),
    }  # fmt: skip


def warm_up(ranks: int) -> None:
    """Load a small model first: the seconds and megabytes of what Python imports on the way are not the model's."""
    with tempfile.TemporaryDirectory() as work:
        small = f"tiny/{ranks}" if ranks > 1 else "tiny"
        make(small, Path(work) / "warm")
        list(Ours(for_this_machine(load_model(Path(work) / "warm", device=CPU)), "bfloat16").steps([[1, 2, 3]], 2))


def stand_alone_among(ranks: int) -> None:
    """Be rank 0 of `ranks` of which no other exists: what they would send is what this one has."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    mpu.initialize_model_parallel(ranks)

    def all_gather(parts: list[torch.Tensor], mine: torch.Tensor, **_: Any) -> None:
        for part in parts:
            part.copy_(mine)

    dist.all_gather = all_gather


# Reporting ----------------------------------------------------------------------------------------------------------


def report(results: Results) -> str:
    """The finished cases as a Markdown table."""
    cases = {case: done for case, done in results["cases"].items() if "run" in done}
    if not cases:
        return "no case is finished yet"
    rows = [["", *cases]]
    rows += [[name, *(row(done) for done in cases.values())] for name, row in ROWS.items()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    head = "| --- |" + " ---: |" * len(cases)
    about = results["machine"]
    threads = ", ".join(sorted({str(done["run"]["threads"]) for done in cases.values()}))
    where = f"{about['processor']}, {about['cores']} cores, {gb(about['memory'])} memory, torch {about['torch']}"
    return "\n".join([f"Measured on: {where}, {threads} threads; weights in bfloat16.", "", lines[0], head, *lines[1:]])


def put_into(text: str, table: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"no {BEGIN} and {END} to put the table between")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def peak(done: Results, when: str) -> int | None:
    """Anonymous memory beyond what the process had before it loaded anything."""
    kinds = done["run"][when]
    return kinds["anonymous"] - done["run"]["anonymous_before"] if kinds else None


def size(n_bytes: int | None) -> str:
    return "not seen here" if n_bytes is None else gb(n_bytes)


def over_weights(done: Results) -> str:
    most = peak(done, "peak_loading")
    return "not seen here" if most is None else f"{most / done['run']['weights']:.2f}"


ROWS: dict[str, Callable[[Results], str]] = {
    "weights": lambda done: gb(done["run"]["weights"]),
    "reading the file, from the disk": lambda done: (
        f"{done['read']['seconds']:.1f} s ({done['read']['bytes'] / done['read']['seconds'] / 1e9:.2f} GB/s)"
    ),
    "loading: checked and mapped": lambda done: f"{done['run']['load_s']:.1f} s",
    "ready: packed for this processor as well": lambda done: (
        f"{done['run']['ready_s']:.1f} s ({done['run']['ready_s'] / done['read']['seconds']:.2f} x reading)"
    ),
    "most memory while loading, files not counted": lambda done: size(peak(done, "peak_loading")),
    "the same over the weights": over_weights,
    "most memory while running, files not counted": lambda done: size(peak(done, "peak_running")),
    "planned": lambda done: gb(done["run"]["planned"]["total_bytes"]),
    "prefill, tokens/s": lambda done: f"{done['run']['prefill_tokens_per_s']:.1f}",
    "decoding, tokens/s": lambda done: f"{done['run']['tokens_per_s']:.2f}",
    "weights read while decoding": lambda done: f"{done['run']['read_gb_per_s']:.1f} GB/s",
    "read bandwidth in the same minutes": lambda done: f"{done['run']['bandwidth_gb_per_s']:.1f} GB/s",
    "of the bandwidth": lambda done: f"{done['run']['read_gb_per_s'] / done['run']['bandwidth_gb_per_s']:.0%}",
}


def machine() -> Results:
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    memory = proc_sizes("/proc/meminfo").get("MemTotal", 0)
    return {"processor": name, "cores": os.cpu_count(), "memory": memory, "torch": torch.__version__}


def say(text: str, again: bool = False) -> None:
    """To stderr; again: over the last line, where that is a terminal, and not at all elsewhere."""
    if not again:
        print(text, file=sys.stderr, flush=True)
    elif sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
