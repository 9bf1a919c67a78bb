"""What one GPU does with a model, in a few minutes and one table: is it right, how fast, how much memory.

    bash tools/gpu_check.sh                              a 7B on the first GPU, at most 8 minutes
    python tools/gpu_check.py --device cpu --model 110M  the same lines on a CPU: a trial of this script, not of a GPU

Weights are random: nothing needs to be downloaded. Right means: logits of two layers of this width, in bf16 on the
device, are no further from fp32 on the CPU than twice as far as bf16 on the CPU is, prompt and single steps alike, and
as far through the compiled step. Exit code 1 if they are not. With --json FILE the figures go there as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.autograd.profiler import profile

from minillama import KVCache, ModelArgs, Transformer, __version__
from minillama.bench import SHAPES, Ours, bandwidth_probe, clock, known_shape, prompt_ids, random_model, random_weight
from minillama.decode import Row, Step, decode, decode_step
from minillama.generation import compiled_step
from minillama.launch import pick_device
from minillama.memory import GPU_LIBRARIES, free_memory, gb, plan

DTYPE = torch.bfloat16
TIMES_AS_FAR = 2.0  # as bf16 on the CPU is from fp32: other orders of summing, the same rounding
CHECKED = 24  # tokens: 16 as a prompt, the others one at a time
WIDTH = 100


@dataclasses.dataclass
class Line:
    """A row of the table; good: None where nothing is promised."""

    what: str
    found: str
    beside: str = ""
    good: bool | None = None


class Check:
    """The lines so far, and how much time is left."""

    def __init__(self, seconds: float):
        self.lines: list[Line] = []
        self.figures: dict[str, Any] = {}
        self.end = time.monotonic() + seconds

    def add(self, what: str, found: str, beside: str = "", good: bool | None = None, **figures: Any) -> None:
        self.lines.append(Line(what, found, beside, good))
        self.figures |= figures
        print(f"  {what}: {found}", file=sys.stderr, flush=True)

    def part(self, name: str, least: float, work: Callable[[Check], None]) -> None:
        """Do a part, if at least so many seconds are left; what fails is a line too, and the others go on."""
        if time.monotonic() + least > self.end:
            self.add(name, "not run: no time left")
            return
        try:
            work(self)
        except Exception as error:  # each part stands for itself: what else the machine can tell is worth having
            text = " ".join(str(error).split())[:200]
            self.add(name, "failed", f"{type(error).__name__}: {text}", good=False)

    def table(self) -> str:
        marks = {True: "ok", False: "NO", None: ""}
        left = max(len(line.what) for line in self.lines) + 2
        middle = max(len(line.found) for line in self.lines) + 2
        return "\n".join(
            f"{line.what:<{left}}{line.found:<{middle}}{line.beside}  {marks[line.good]}".rstrip()
            for line in self.lines
        )


def main() -> int:
    options = parsed()
    device = pick_device(options.device)
    args = ModelArgs(**SHAPES[known_shape(options.model)])
    check = Check(options.minutes * 60)
    signal.signal(signal.SIGTERM, lambda *_: time_is_up(check))
    check.part("machine", 0, lambda check: about(check, device, options.model))
    check.part("correctness", 10, lambda check: correctness(check, args, device, options.compile))
    check.part("speed", 60, lambda check: speed(check, args, device, options))
    print(check.table())
    wrong = any(line.good is False for line in check.lines)
    if options.json:
        lines = [dataclasses.asdict(line) for line in check.lines]
        options.json.write_text(json.dumps(check.figures | {"lines": lines, "good": not wrong}, indent=1) + "\n")
    return int(wrong)


def time_is_up(check: Check) -> NoReturn:
    check.add("the rest", "not run: the time was up")
    print(check.table(), flush=True)
    sys.exit(128 + signal.SIGTERM)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="7B", help=", ".join(SHAPES))
    parser.add_argument("--minutes", type=float, default=7.5, help="begin nothing new after this")
    parser.add_argument("--prompt", type=int, default=512, metavar="N")
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="a second batch size beside 1")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def about(check: Check, device: torch.device, model: str) -> None:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name = f"{properties.name}, {gb(properties.total_memory)}"
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        name, has_bf16 = "CPU: a trial of the script", None
    check.add("machine", name, machine=name)
    versions = f"minillama {__version__}, torch {torch.__version__}"
    check.add("versions", versions, versions=versions, model=model)
    check.add("bf16 in hardware", {True: "yes", False: "no", None: "not asked"}[has_bf16], "", has_bf16)


# Is it right? -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def correctness(check: Check, args: ModelArgs, device: torch.device, compile: bool) -> None:
    few = dataclasses.replace(args, n_layers=min(2, args.n_layers), max_seq_len=256)
    model = Transformer(few).eval()
    for key, p in model.named_parameters():
        # as wide as trained weights act: each product keeps its input's size, and logits reach several units
        p.copy_(random_weight(key, p.shape, torch.float32, torch.device("cpu")))
        if p.dim() == 2:
            p.mul_(50 * (1.0 if key == "tok_embeddings.weight" else p.shape[1] ** -0.5))
    ids = torch.tensor(prompt_ids(2, CHECKED, args.vocab_size))
    right = logits_of(model, ids)
    rounded = model.to(DTYPE)
    yardstick = distance(logits_of(rounded, ids), right)
    on_device = rounded.to(device)
    steps: list[tuple[str, Step | None]] = [("bf16 here against fp32 on the CPU", None)]
    if compile:
        steps.append(("the same through the compiled step", compiled_step()))
    for what, step in steps:
        found = distance(logits_of(on_device, ids, step), right)
        limit = TIMES_AS_FAR * yardstick
        said = f"at most {limit:.2g} of the largest logit (bf16 on the CPU: {yardstick:.2g})"
        check.add(what, f"{found:.2g}", said, found <= limit, **{f"distance{'_compiled' * (step is not None)}": found})


def logits_of(model: Transformer, ids: torch.Tensor, step: Step | None = None) -> torch.Tensor:
    """Logits of every position from the 16th on: a prompt of 16, then one token at a time, (T, B, V) in fp32."""
    seen, at = [], iter(range(16, CHECKED))

    def choose(logits: torch.Tensor, rows: Any) -> torch.Tensor:
        seen.append(logits.float().cpu())
        return ids[:, next(at, 0)].to(logits.device)

    rows = [Row(row[:16].tolist(), CHECKED - 16 + 1) for row in ids]
    for _ in decode(model, rows, choose, (), step=step):
        pass
    return torch.stack(seen)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


# How fast, and how much memory? ---------------------------------------------------------------------------------------


@torch.no_grad()
def speed(check: Check, args: ModelArgs, device: torch.device, options: argparse.Namespace) -> None:
    probe = bandwidth_probe(device)
    bandwidth = max(probe() for _ in range(3))
    kind = "a copy, read and written" if device.type == "cuda" else "reading"
    check.add("memory bandwidth", f"{bandwidth:,.0f} GB/s", kind, bandwidth_gb_per_s=bandwidth)

    held = allocated(device)
    model = random_model(args, DTYPE, device, compile=True)  # plain linears, as for a GPU
    weights = allocated(device) - held if device.type == "cuda" else sum(p.nbytes for p in model.parameters())
    length = options.prompt + options.new_tokens + 1
    planned = plan(args, batch_size=1, seq_len=length, prompt_len=options.prompt, dtype=DTYPE)
    check.add(
        "weights", gb(weights), f"planned {gb(planned.weights)}", abs(weights / planned.weights - 1) < 0.01,
        weight_bytes=weights, planned_weight_bytes=planned.weights,
    )  # fmt: skip
    memory(check, model, device, options, planned.total - planned.weights)

    # The copy of a GPU moves its bytes twice, so reading weights can reach its figure and no more.
    first_token(check, model, device, options)
    engines = [("", Ours(model, "bfloat16"))]
    if options.compile:
        engines.append((", compiled", compiled_engine(model)))
    for batch in dict.fromkeys((1, options.batch)):
        for name, engine in engines:
            check.part(f"decoding, batch {batch}{name}", 40, decoding(engine, batch, name, bandwidth, device, options))
    if options.compile and device.type == "cuda":
        # torch leaves a graph out, with no more than a count of it, where a step writes to what it was given: the cache
        skipped = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
        check.add("CUDA graphs left out by torch", f"{skipped}", "0: the compiled step is replayed", None)


def compiled_engine(model: Transformer) -> Ours:
    engine = Ours(model, "bfloat16", compile=True)
    if model.device.type != "cuda":  # g++ would take a minute, and this is a trial of the script
        engine.step = torch.compile(decode_step, fullgraph=True, backend="eager")
    return engine


def decoding(
    engine: Ours, batch: int, name: str, bandwidth: float, device: torch.device, options: argparse.Namespace
) -> Callable[[Check], None]:
    def work(check: Check) -> None:
        prompts = prompt_ids(batch, 16, engine.model.args.vocab_size)

        def steps() -> Iterator[object]:
            return engine.steps(prompts, options.new_tokens + 1)

        # The first request: the compiler, and whatever a library does once for each length of the cache.
        first = statistics.median(clock(steps(), options.new_tokens + 1, device)[1:])
        seconds = [s for _ in range(options.repeats) for s in clock(steps(), options.new_tokens + 1, device)[1:]]
        step = statistics.median(seconds)
        read = engine.matrix_bytes / step / 1e9
        check.add(
            f"decoding, batch {batch}{name}", f"{batch / step:,.1f} tokens/s",
            f"{read:,.0f} GB/s of weights, {read / bandwidth:.0%} of the bandwidth; "
            f"in the first request {batch / first:,.1f}",
            **{
                f"decode_{batch}{'_compiled' * bool(name)}": {
                    "tokens_per_s": batch / step, "gb_per_s": read, "first_tokens_per_s": batch / first,
                }
            },
        )  # fmt: skip

    return work


def first_token(check: Check, model: Transformer, device: torch.device, options: argparse.Namespace) -> None:
    """Of a prompt, from its ids to the first new id on the CPU; prefill speed is the same time seen another way."""
    engine = Ours(model, "bfloat16")
    prompts = prompt_ids(1, options.prompt, model.args.vocab_size)
    clock(engine.steps(prompts, 1), 1, device)
    seconds = statistics.median(clock(engine.steps(prompts, 1), 1, device)[0] for _ in range(options.repeats))
    rate = options.prompt / seconds
    check.add("time to the first token", f"{seconds * 1000:,.1f} ms", f"prompt of {options.prompt}", ttft_s=seconds)
    work = 2 * (model.args.n_params - model.args.vocab_size * model.args.dim) * rate / 1e12
    check.add("prefill", f"{rate:,.0f} tokens/s", f"{work:,.1f} TFLOP/s in products", prefill_tokens_per_s=rate)


def memory(check: Check, model: Transformer, device: torch.device, options: argparse.Namespace, planned: int) -> None:
    """What a request takes beside the weights, against the plan."""
    tokens = torch.tensor(prompt_ids(1, options.prompt, model.args.vocab_size), device=device)

    def request() -> object:
        cache = KVCache.for_model(model, 1, options.prompt + options.new_tokens + 1)
        return cache, model.logits(model.features(tokens, 0, cache)[:, -1])

    request()
    found = most_allocated(request, device)
    beside = f"planned {gb(planned)}; a GPU's libraries: {gb(GPU_LIBRARIES)} allowed"
    check.add("a request, beside weights", gb(found), beside, found <= planned, request_bytes=found, planned=planned)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        check.add(
            "taken by libraries, and by other processes",
            gb(others),
            f"allowed {gb(GPU_LIBRARIES)}",
            others <= GPU_LIBRARIES,
        )
        check.figures["library_bytes"] = others
    if (left := free_memory(device)) is not None:
        check.add("free now", gb(left))


def allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def most_allocated(work: Callable[[], object], device: torch.device) -> int:
    """The most memory that torch had given out for `work` at one time, beyond what there was."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        kept = work()
        torch.cuda.synchronize(device)
        del kept
        return torch.cuda.max_memory_allocated(device) - before
    with profile(profile_memory=True) as record:
        kept = work()
    events = [(e.start_ns(), e.nbytes()) for e in record.kineto_results.events() if e.name() == "[memory]"]
    del kept
    held = most = 0
    for _, size in sorted(events, key=lambda event: event[0]):
        held += size
        most = max(most, held)
    return most


if __name__ == "__main__":
    sys.exit(main())
