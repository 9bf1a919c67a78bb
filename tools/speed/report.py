"""docs/speed.md and its plots, from what `minillama bench --json`, tricks.py and perplexity.py wrote.

    python tools/speed/report.py FOLDER     reads FOLDER/*.json, writes docs/speed.md and docs/speed/*.svg

tools/speed/README.md has the commands that fill the folder. Every number in the document is read from there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

DOCS = Path(__file__).resolve().parents[2] / "docs"
COLORS = {"minillama": "#0072B2", "transformers": "#E69F00", "llamacpp": "#009E73"}  # safe for colour blindness
NAMES = {"minillama": "minillama", "transformers": "transformers", "llamacpp": "llama.cpp"}
RUNS = {  # name of the file: what it is
    "bf16-1": "bfloat16, 1 thread", "bf16-2": "bfloat16, 2 threads", "fp32-1": "float32, 1 thread",
    "fp32-2": "float32, 2 threads", "int8-1": "int8, 1 thread", "int8-2": "int8, 2 threads", "int4-1": "int4, 1 thread",
    "int4-2": "int4, 2 threads",
}  # fmt: skip

SMALL = {
    "110M-1": "110M, bfloat16, 1 thread",
    "110M-2": "110M, bfloat16, 2 threads",
    "demo-2": "demo checkpoint, float32, 2 threads",
}

Results = dict[str, dict[str, Any]]


def decode_of(result: dict[str, Any], engine: str, name: str = "decode") -> dict[str, Any]:
    return next(entry for entry in result["engines"][engine]["decode"] if entry["name"] == name)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(figure: dict[str, float]) -> str:
    return f"{short(figure['median'])} ({short(figure['lowest'])} to {short(figure['highest'])})"


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def decode_table(results: Results, names: list[str]) -> str:
    rows = []
    for name in names:
        result = results[name]
        ours = decode_of(result, "minillama")["tokens_per_s"]["median"]
        for engine, about in result["engines"].items():
            entry = decode_of(result, engine)
            ratio = "" if engine == "minillama" else f"{ours / entry['tokens_per_s']['median']:.2f}"
            rows.append(
                [
                    {**RUNS, **SMALL}[name] if engine == "minillama" else "",
                    f"{NAMES[engine]} {about['weights_in']}",
                    spread(entry["tokens_per_s"]),
                    f"{entry['ms_per_token']['median']:.1f} ({entry['ms_per_token']['p95']:.1f})",
                    f"{entry['weights_gb_per_s']:.1f}",
                    f"{entry['weights_of_bandwidth']:.0%}",
                    ratio,
                ]
            )
    head = ["", "engine", "tokens/s (lowest to highest)", "ms a token (p95)", "GB/s", "of bandwidth", "minillama is"]
    return table(head, rows)


def prefill_table(results: Results, names: list[str]) -> str:
    rows = []
    for name in names:
        engines = results[name]["engines"]
        for length, ours in engines["minillama"]["prefill_tokens_per_s"].items():
            others = {e: v["prefill_tokens_per_s"][length]["median"] for e, v in engines.items() if e != "minillama"}
            rows.append(
                [f"{RUNS[name]}, {length} tokens", spread(ours)]
                + [short(others[e]) if e in others else "" for e in ("transformers", "llamacpp")]
                + [f"{ours['median'] / max(others.values()):.2f}"]
            )
    return table(["", "minillama tokens/s", "transformers", "llama.cpp", "minillama to the better"], rows)


def far_table(results: Results) -> str:
    rows = []
    for name in ("bf16-2", "fp32-2"):
        for engine in results[name]["engines"]:
            found = [entry for entry in results[name]["engines"][engine]["decode"] if entry["name"].startswith("at ")]
            for far in found:
                near = decode_of(results[name], engine)
                extra = far["ms_per_token"]["median"] - near["ms_per_token"]["median"]
                more = far["cache_bytes"] - near["cache_bytes"]
                explained = more / results[name]["read_bandwidth_gb_per_s"]["median"] / 1e6
                rows.append(
                    [RUNS[name], NAMES[engine], f"{far['from_position']:,}", f"{far['ms_per_token']['median']:.1f}",
                     f"{extra:.1f}", f"{explained:.1f}"]
                )  # fmt: skip
    return table(
        ["", "engine", "position", "ms a token", "more than near the start", "the cache's bytes explain"], rows
    )


def batch_table(result: dict[str, Any]) -> str:
    rows = []
    for entry in result["engines"]["minillama"]["decode"]:
        rows.append(
            [str(entry["batch"]), f"{entry['tokens_per_s']['median']:.1f}", f"{entry['ms_per_token']['median']:.1f}",
             f"{entry['weights_gb_per_s']:.1f}", f"{gflops(entry, result):.0f}"]
        )  # fmt: skip
    return table(["batch", "tokens/s", "ms a step", "weights GB/s", "GFLOP/s"], rows)


def gflops(entry: dict[str, Any], result: dict[str, Any]) -> float:
    """Two operations a weight and row; weights are counted by their bytes."""
    weights = entry["weight_bytes"] / {"bfloat16": 2, "float32": 4}[result["dtype"]]
    return 2 * weights * entry["batch"] / entry["ms_per_token"]["median"] / 1e6


def linear_table(tricks: list[dict[str, Any]]) -> str:
    rows = []
    for case in tricks[0]["linear"]:
        row = [case]
        for trick in tricks:
            found = trick["linear"][case]
            row += [f"{found['F.linear']:.1f}", f"{found['packed']:.1f}", f"{found['packed'] / found['F.linear']:.2f}"]
        rows.append(row)
    head = [""]
    for trick in tricks:
        head += [f"{word}, {trick['threads']} thr." for word in ("F.linear", "packed", "ratio")]
    return table(head, rows)


def bits_table(tricks: list[dict[str, Any]]) -> str:
    kinds = list(tricks[0]["few bits"]["1 rows"])
    rows = [
        [kind, *(f"{trick['few bits'][case][kind]:.1f}" for trick in tricks for case in trick["few bits"])]
        for kind in kinds
    ]
    head = [f"{case}, {trick['threads']} thr." for trick in tricks for case in trick["few bits"]]
    return table(["", *head], rows)


def trick_rows(tricks: list[dict[str, Any]]) -> str:
    """What each trick brought, as without / with."""

    def both(ratio: Any) -> list[str]:
        return [f"{ratio(trick):.2f}" for trick in tricks]

    def linear(case: str, less: str) -> Any:
        return lambda t: t["linear"][case]["packed"] / t["linear"][case][less]

    def attend(case: str, less: str) -> Any:
        return lambda t: t["attention"][case][less] / t["attention"][case]["queries of a group together"]

    one16, one32 = "bfloat16, 1 rows", "float32, 1 rows"
    rows = [
        ["packed weights against F.linear: one row, bfloat16", *both(linear(one16, "F.linear"))],
        ["the same, float32", *both(linear(one32, "F.linear"))],
        ["the same, 8 rows, bfloat16", *both(linear("bfloat16, 8 rows", "F.linear"))],
        ["the same, 8 rows, float32", *both(linear("float32, 8 rows", "F.linear"))],
        ["one row filled up to four, bfloat16", *both(linear(one16, "packed, not filled up"))],
        ["the same, float32", *both(linear(one32, "packed, not filled up"))],
        ["2 MB pages against 4 kB: packed, one row, bfloat16",
         *both(lambda t: t["pages"]["2 MB pages"]["packed"] / t["pages"]["4 kB pages"]["packed"])],
        ["the same, a plain read",
         *both(lambda t: t["pages"]["2 MB pages"]["read"] / t["pages"]["4 kB pages"]["read"])],
        ["queries of a group together (attention alone): 4,000 slots, bfloat16",
         *both(attend("bfloat16, 4000 filled", "enable_gqa"))],
        ["the same, float32", *both(attend("float32, 4000 filled", "enable_gqa"))],
        ["two query rows a head instead of one, without groups (attention alone), bfloat16",
         *both(lambda t: t["single rows"]["one row"] / t["single rows"]["two rows"])],
        ["reading 128 filled slots of 4,096 (attention alone), bfloat16",
         *both(attend("bfloat16, 128 filled", "together, all 4,096 slots"))],
        ["wq wk wv and w1 w3 as one product each: a step, bfloat16",
         *both(lambda t: t["groups"]["bfloat16"]["alone"] / t["groups"]["bfloat16"]["joined"])],
        ["packing, all told: a step of 8 layers, bfloat16",
         *both(lambda t: t["groups"]["bfloat16"]["not packed"] / t["groups"]["bfloat16"]["joined"])],
        ["the same, float32", *both(lambda t: t["groups"]["float32"]["not packed"] / t["groups"]["float32"]["joined"])],
        ["finished rows leave: 24 of 32 end after 4 of 32 steps, whole run",
         *both(lambda t: t["rows that end"]["kept"] / t["rows that end"]["gone"])],
    ]  # fmt: skip
    return table(["trick", *(f"{trick['threads']} thread{'s' * (trick['threads'] > 1)}" for trick in tricks)], rows)


def tried_table(tricks: list[dict[str, Any]]) -> str:
    rows = [[name, *(f"{trick['tried'][name]:.1f}" for trick in tricks)] for name in tricks[0]["tried"]]
    return table(["", *(f"GB/s, {trick['threads']} thr." for trick in tricks)], rows)


def perplexity_table(found: dict[str, dict[str, float]]) -> str:
    kinds = ["full precision", "int8", "int8, one scale a matrix", "int4", "int4, groups of 64", "int4, groups of 128"]
    rows = []
    for kind in kinds:
        row = [kind]
        for model in found.values():
            more = model[kind] / model["full precision"] - 1
            row.append(f"{model[kind]:.4f}" + (f" ({more:+.2%})" if kind != "full precision" else ""))
        rows.append(row)
    return table(["", *found], rows)


def verdict(results: Results) -> dict[str, str]:
    """Ranges of our speed over the peers', 1.1B shape."""

    def between(ratios: list[float]) -> str:
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    def decoding(names: tuple[str, ...], engine: str) -> str:
        both = [[decode_of(results[n], e)["tokens_per_s"]["median"] for e in ("minillama", engine)] for n in names]
        return between([ours / theirs for ours, theirs in both])

    def shares(names: tuple[str, ...]) -> str:
        found = [decode_of(results[name], "minillama")["weights_of_bandwidth"] for name in names]
        return f"{min(found):.0%} to {max(found):.0%}"

    full, half = ("bf16-1", "bf16-2", "fp32-1", "fp32-2"), ("bf16-1", "bf16-2")
    prefill = [
        ours["median"]
        / max(v["prefill_tokens_per_s"][length]["median"] for e, v in engines.items() if e != "minillama")
        for engines in (results[name]["engines"] for name in ("bf16-2", "fp32-2"))
        for length, ours in engines["minillama"]["prefill_tokens_per_s"].items()
    ]
    return {
        "against transformers": decoding(full, "transformers"),
        "against f16": decoding(half, "llamacpp"),
        "against f32": decoding(("fp32-1", "fp32-2"), "llamacpp"),
        "against q8_0": decoding(("int8-1", "int8-2"), "llamacpp"),
        "against q4_0": decoding(("int4-1", "int4-2"), "llamacpp"),
        "share": shares(full),
        "prefill ratio": between(prefill),
    }


def plot_decode(results: Results) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.6))
    names = [name for name in RUNS if name in results]
    for i, name in enumerate(names):
        for j, engine in enumerate(COLORS):
            if engine in results[name]["engines"]:
                share = 100 * decode_of(results[name], engine)["weights_of_bandwidth"]
                label = NAMES[engine] if i == 0 else None
                axes.bar(i + (j - 1) * 0.27, share, 0.25, color=COLORS[engine], label=label)
    axes.set_xticks(range(len(names)), [RUNS[name].replace(", ", "\n") for name in names], fontsize=8)
    axes.set_ylabel("weights read,\n% of the read bandwidth")
    axes.set_title("Decoding at batch 1, 1.1B shape: how much of the memory's speed is used")
    axes.set_ylim(0, 125)
    finish(figure, axes, "decode.svg")


def plot_prefill(results: Results) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.6))
    cases = [(n, t) for n in ("bf16-2", "fp32-2") for t in results[n]["engines"]["minillama"]["prefill_tokens_per_s"]]
    for i, (name, length) in enumerate(cases):
        for j, (engine, color) in enumerate(COLORS.items()):
            speed = results[name]["engines"][engine]["prefill_tokens_per_s"][length]
            axes.bar(i + (j - 1) * 0.27, speed["median"], 0.25, color=color, label=NAMES[engine] if i == 0 else None)
    axes.set_xticks(range(len(cases)), [f"{results[n]['dtype']}\n{t} tokens" for n, t in cases], fontsize=8)
    axes.set_ylabel("prompt tokens a second")
    axes.set_title("Prefill, 1.1B shape, 2 threads")
    finish(figure, axes, "prefill.svg")


def plot_batches(result: dict[str, Any]) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.6))
    entries = result["engines"]["minillama"]["decode"]
    sizes = [entry["batch"] for entry in entries]
    speed = [entry["tokens_per_s"]["median"] for entry in entries]
    memory = [n * result["read_bandwidth_gb_per_s"]["median"] * 1e9 / entries[0]["weight_bytes"] for n in sizes]
    peak = max(gflops(entry, result) for entry in entries) * 1e9
    compute = peak / (2 * entries[0]["weight_bytes"] / 2)
    axes.plot(sizes, memory, "--", color="#777777", label="memory: batch x bandwidth / bytes of weights")
    axes.axhline(compute, ls=":", color="#777777", label="arithmetic: the most that any batch here reached")
    axes.plot(sizes, speed, "o-", color=COLORS["minillama"], label="minillama")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    ticks = [16, 32, 64, 128, 256]
    axes.set_yticks(ticks, [str(n) for n in ticks])
    axes.set_ylim(8, 512)
    axes.set_xlabel("rows in the batch")
    axes.set_ylabel("tokens a second, all rows")
    axes.set_title("Throughput against the roofline: 1.1B shape, bfloat16, 2 threads")
    finish(figure, axes, "batches.svg")


def finish(figure: Any, axes: Any, name: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.patch.set_facecolor("white")  # legible on a dark page too
    figure.tight_layout()
    folder = DOCS / "speed"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / name, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    folder = Path(sys.argv[1])
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    tricks = [found["tricks-1"], found["tricks-2"]]
    results = {name: found[name] for name in [*RUNS, *SMALL, "batch-2"]}
    plt.rcParams["svg.hashsalt"] = "minillama"
    plot_decode(results)
    plot_prefill(results)
    plot_batches(results["batch-2"])
    peers = results["bf16-2"]["engines"]
    text = (Path(__file__).parent / "speed.md.in").read_text()
    fields = {
        "decode": decode_table(results, list(RUNS)),
        "small": decode_table(results, list(SMALL)),
        "prefill": prefill_table(results, ["bf16-2", "fp32-2"]),
        "far": far_table(results),
        "batches": batch_table(results["batch-2"]),
        "tricks": trick_rows(tricks),
        "linear": linear_table(tricks),
        "bits": bits_table(tricks),
        "tried": tried_table(tricks),
        "perplexity": perplexity_table(found["perplexity"]),
        **verdict(results),
        "versions": ", ".join(f"{NAMES[name]} {about['version']}" for name, about in peers.items()),
        "bandwidths": "; ".join(
            f"{RUNS[name]} {spread(results[name]['read_bandwidth_gb_per_s'])}" for name in RUNS if name in results
        ),
    }
    for name, value in fields.items():
        text = text.replace("{{" + name + "}}", value)
    if "{{" in text:
        raise SystemExit(f"speed.md.in asks for what is not measured: {text[text.index('{{') :][:40]}")
    (DOCS / "speed.md").write_text(text)


if __name__ == "__main__":
    main()
