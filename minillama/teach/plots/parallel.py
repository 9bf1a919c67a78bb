"""Figures of chapter 09: one layer on several ranks step by step, kv heads and ranks, and what limits scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba_array
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from minillama.args import ModelArgs, count
from minillama.memory import gb, kv_cache_bytes, weight_bytes
from minillama.teach.figures import BROKEN, INK, OTHER, OURS, QUIET, RANKS, SERIES, SIGNED, Picture, picture, ticks

# What a rank has after each step, from left to right, and the words above it: name -> (words, first place, cells).
COLUMNS = {
    "x": ("stream", 0.0, 12),
    "heads": ("query\nheads", 15.5, 8),
    "kv": ("kv\nheads", 25.5, 2),
    "wo": ("wo: a part\nof each sum", 30.0, 12),
    "h": ("stream", 49.5, 12),
    "neurons": ("neurons", 67.0, 8),
    "w2": ("w2: a part\nof each sum", 79.5, 12),
    "out": ("stream", 99.0, 12),
}
STEPS = ("x", "heads", "wo", "h", "neurons", "w2", "out")  # kv comes with heads
SAYS = (
    "Every rank has the whole stream",
    "Each rank turns it into its own heads",
    "wo makes of them a part of every sum",
    "All-reduce: everyone gets the sums, and adds them to the stream",
    "Each rank has its own neurons",
    "w2 makes of them a part of every sum",
    "All-reduce again, and the stream is whole on every rank",
)
ALONE = (
    "One rank has the whole stream",
    "One rank has all heads",
    "wo sums over all of them: nothing is missing",
    "Added to the stream",
    "and all neurons",
    "w2 sums over all of them",
    "Added to the stream: the layer is done",
)
SHOWN = 12  # numbers of the stream
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
EMPTY = (0.96, 0.96, 0.96, 1.0)
Trace = Mapping[str, torch.Tensor]  # of one rank: "x", "heads", "wo", "h", "neurons", "w2", "out" of one token


@dataclass(frozen=True)
class Link:
    """One way to send: bytes/s of a rank, seconds to start an all-reduce, seconds for each step of its ring."""

    bandwidth: float
    start: float
    hop: float


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """How far `a` is from `b`, as a part of the length of b."""
    return float((a - b).norm() / b.norm())


def step(
    ranks: Sequence[Trace],
    right: Trace,
    step: int = 6,
    kv_heads: int = 2,
    neurons: int = 384,
    shows: slice = slice(0, SHOWN),
) -> Picture:
    """One layer on len(ranks) ranks, up to `step`: what is whole, what is shared out, and where the sums are made.

    ranks: what each rank has on its way; right: what the model has before it is cut.
    """
    n = len(ranks)
    done = STEPS[: step + 1]
    off = max(gap(r[done[-1]], right[done[-1]]) for r in ranks) if done[-1] in ("x", "h", "out") else 0.0
    wrong = off > 1e-4
    added = all(gap(r["h"], right["h"]) < 1e-4 for r in ranks)
    title = (ALONE if n == 1 else SAYS)[step]
    if wrong:
        title = f"Nothing was summed: a rank's stream is off by up to {100 * off:.0f}% of its length"
    elif n > 1 and not added and step in (4, 5):
        title = "The ranks go on from different streams"
    alt = f"Step {step} of 6 on {count(n, 'rank')}. {title}. Parts: " + "; ".join(
        f"rank {i} has {_held(n, kv_heads, i)}" for i in range(min(n, 2))
    )
    high = 0.95 + 0.3 * n + 0.3 * (n < 3)
    margins = {"left": 0.01, "right": 0.99, "bottom": 0.02, "top": 1 - 0.3 / high}  # the title takes 0.3 inches
    fig, ax = picture(width=7.6, height=high, alt=alt + ".", margins=margins)
    ax.set_axis_off()
    ax.set_xlim(-6.5, 112)
    ax.set_ylim(n + 0.05, -1.35)
    colors = matplotlib.colormaps[SIGNED]
    boxes: list[list[tuple[float, float]]] = []
    faces: list[Any] = []
    for name, (label, left, cells) in COLUMNS.items():
        if ("heads" if name == "kv" else name) not in done:
            continue
        if name == "neurons":
            label = f"neurons,\n{neurons // cells} a box"
        ax.text(left + cells / 2, -0.75, label, ha="center", va="center", fontsize=8, color=INK)
        for i, trace in enumerate(ranks):
            if name in ("heads", "kv", "neurons"):
                own = _own(cells, n, i)
                fill = [RANKS[i] if c in own else EMPTY for c in range(cells)]
            else:
                numbers = trace[name][shows]
                most = right[name][shows].abs().max()
                fill = list(colors((0.5 + 0.5 * numbers / most).clamp(0, 1).numpy()))
                if name in ("h", "out"):  # a red foot where a number is not what it should be
                    far = (numbers - right[name][shows]).abs() > 0.03 * most
                    boxes += [_box(left + c, i + 0.88, 0.1) for c in range(cells) if far[c]]
                    faces += [BROKEN for c in range(cells) if far[c]]
            boxes += [_box(left + c, i + 0.14, 0.7) for c in range(cells)]
            faces += fill
    drawn = PolyCollection(boxes, facecolors=to_rgba_array(faces), edgecolors="#d9d9d9", linewidths=0.4)
    ax.add_collection(drawn, autolim=False)
    for i in range(n):
        ax.text(-1, i + 0.5, f"rank {i}", ha="right", va="center", fontsize=8, color=INK)
    for name, place in (("h", 46.0), ("out", 95.5)):
        if name in done:
            _all_reduce(ax, n, place, added)
    fig.suptitle(title, fontsize=11, color=BROKEN if wrong else INK, y=1 - 0.05 / high, va="top")
    return fig


def _box(x: float, y: float, high: float) -> list[tuple[float, float]]:
    return [(x, y), (x + 0.92, y), (x + 0.92, y + high), (x, y + high)]


def _own(cells: int, n: int, i: int) -> range:
    """Which of `cells` things rank i of n holds; things that are fewer than the ranks are repeated."""
    if n > cells:
        return range(i * cells // n, i * cells // n + 1)
    return range(i * cells // n, (i + 1) * cells // n)


def _held(n: int, kv_heads: int, i: int) -> str:
    heads, kv = _own(8, n, i), _own(kv_heads, n, i)
    return " and ".join(
        f"{kind} {own[0]}" if len(own) == 1 else f"{kind}s {own[0]} to {own[-1]}"
        for kind, own in (("query head", heads), ("kv head", kv))
    )


def _all_reduce(ax: object, n: int, place: float, added: bool) -> None:
    """The sum over ranks, drawn: a bar that all of them reach; dashed and crossed where it is left out."""
    axes: matplotlib.axes.Axes = ax  # type: ignore[assignment]
    color = INK if added else BROKEN
    axes.text(
        place, -0.75, "+" if n == 1 else "Σ" if added else "no Σ", ha="center", va="center", fontsize=11, color=color
    )
    if n == 1:
        return
    if added:
        axes.plot([place, place], [0.5, n - 0.5], color=color, linewidth=2.4, solid_capstyle="round")
    for i in range(n):
        axes.plot(
            [place - 2.8, place + 2.4], [i + 0.5, i + 0.5], color=RANKS[i] if added else BROKEN, linewidth=1.6,
            linestyle="-" if added else ":",
        )  # fmt: skip


def cuts(by: str = "columns") -> Picture:
    """A product of a (2, 4) and a (4, 4) matrix on two ranks, cut by columns or by rows."""
    result = "beside one another" if by == "columns" else "added"
    alt = f"x times A on two ranks, A cut by {by}: the results of the two ranks are {result}."
    fig, ax = picture(height=1.7, alt=alt, margins={"left": 0.01, "right": 0.99, "bottom": 0.02, "top": 0.85})
    ax.set_axis_off()
    middle = 7.5 if by == "columns" else 10.25
    ax.set_xlim(middle - 12.65, middle + 12.65)
    ax.set_ylim(4.3, -0.3)
    both = ["#99999988"] * 2

    def matrix(left: float, top: float, rows: int, columns: int, color: object) -> None:
        for r in range(rows):
            for c in range(columns):
                ax.add_patch(Rectangle((left + c, top + r), 0.92, 0.92, facecolor=color(r, c), linewidth=0))  # type: ignore[operator]

    def word(left: float, text: str) -> None:
        ax.text(left, 2, text, ha="center", va="center", fontsize=13, color=INK)

    if by == "columns":
        matrix(0, 1, 2, 4, lambda r, c: both[0])
        word(4.8, "×")
        matrix(5.5, 0, 4, 4, lambda r, c: RANKS[c // 2])
        word(10.3, "=")
        matrix(11, 1, 2, 4, lambda r, c: RANKS[c // 2])
    else:
        matrix(0, 1, 2, 4, lambda r, c: RANKS[c // 2])
        word(4.8, "×")
        matrix(5.5, 0, 4, 4, lambda r, c: RANKS[r // 2])
        word(10.3, "=")
        matrix(11, 1, 2, 4, lambda r, c: RANKS[0])
        word(15.7, "+")
        matrix(16.5, 1, 2, 4, lambda r, c: RANKS[1])
    ends = {
        "columns": "By columns: each rank has some of the results",
        "rows": "By rows: each rank has a part of every result",
    }
    ax.set_title(ends[by])
    return fig


def memory_per_rank(args: ModelArgs, name: str, batch: int, length: int, numbers: Sequence[int]) -> Picture:
    """Bytes of weights and KV cache on each rank, in 16 bits, against the number of ranks."""
    weights = [weight_bytes(args, 2, r) / 1e9 for r in numbers]
    cache = [kv_cache_bytes(args, batch, length, 2, r) / 1e9 for r in numbers]
    alt = f"{name} on each rank, 16 bits, {batch} rows of {length} tokens: " + "; ".join(
        f"{count(r, 'rank')} {w:.1f} GB of weights and {c:.2f} GB of cache" for r, w, c in zip(numbers, weights, cache)
    )
    fig, ax = picture(height=2.9, alt=alt + ".")
    ax.loglog(numbers, weights, "o-", color=OURS, label="weights")
    ax.loglog(numbers, cache, "s-", color=OTHER, label=f"KV cache, {batch} × {length:,} tokens")
    ax.set_xticks(numbers, [str(r) for r in numbers])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.axvline(args.n_kv_heads, color=QUIET, linewidth=0.8, linestyle="--")
    ax.yaxis.set_major_formatter(PLAIN)
    ax.set_xlabel(f"ranks (dashed: as many as {name} has kv heads)")
    ax.set_ylabel("GB on each rank")
    low = min(cache)
    ax.set_title(
        f"From {args.n_kv_heads} ranks on, each has a whole kv head: {gb(int(low * 1e9))} of cache, and no less"
    )
    ax.legend(frameon=False)
    return fig


# Links from the fastest to the slowest, dark to light; what a step is made of has colours of its own.
LOOKS = {"NVLink": (INK, "o-"), "PCIe": (SERIES[0], "s-"), "Ethernet": (SERIES[5], "^-")}
WORK = "compute, memory"
KINDS = ((WORK, QUIET), ("bytes", OTHER), ("waiting", BROKEN))


def scaling(
    times: Mapping[str, Sequence[tuple[float, float, float]]], numbers: Sequence[int], about: str, at: int = 8
) -> Picture:
    """How a step's time falls, or does not, with the ranks; and what it is made of at one number of ranks.

    times: link -> for each of `numbers` ranks, seconds of (compute and memory, bytes on the link, waiting).
    """
    total = {name: [sum(parts) for parts in found] for name, found in times.items()}
    best = {name: numbers[int(np.argmin(found))] for name, found in total.items()}
    one = next(iter(total.values()))[0]
    place = list(numbers).index(at)
    alt = f"{about}: one rank takes {1e3 * one:.3g} ms. " + "; ".join(
        f"{name}: {1e3 * found[place]:.3g} ms on {at} ranks, fastest on {best[name]}" for name, found in total.items()
    )
    fig, (left, right) = picture(
        1, 2, height=3.1, alt=alt + ".", width_ratios=[1.25, 1],
        margins={"left": 0.095, "right": 0.99, "bottom": 0.17, "top": 0.88, "wspace": 0.28},
    )  # fmt: skip
    ideal = [one / r for r in numbers]
    left.loglog(numbers, [1e3 * t for t in ideal], "--", color=QUIET, linewidth=1, label=f"{WORK}: 1/R")
    for name, found in total.items():
        left.loglog(numbers, [1e3 * t for t in found], LOOKS[name][1], color=LOOKS[name][0], label=name, markersize=4)
    left.xaxis.set_minor_locator(NullLocator())
    ticks(left, "x", numbers, [str(r) for r in numbers])
    _round_rows(left)
    left.set_xlabel("ranks")
    left.set_ylabel("predicted ms")
    left.legend(frameon=False, fontsize=8)
    base = np.zeros(len(times))
    for i, (kind, color) in enumerate(KINDS):
        part = np.array([1e3 * found[place][i] for found in times.values()])
        right.bar(range(len(times)), part, bottom=base, color=color, width=0.6, label=kind)
        base += part
    ticks(right, "x", range(len(times)), list(times))
    right.set_ylim(0, 1.45 * base.max())
    right.set_ylabel("ms")
    right.set_xlabel(f"on {count(at, 'rank')}")
    right.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", columnspacing=0.8, handlelength=1.2)
    ends = ", ".join(
        f"{name} on 1" if best[name] == 1 else f"{name} {one / min(found):.1f} × on {best[name]}"
        for name, found in total.items()
    )
    fig.suptitle(f"{about}. Fastest: {ends}", fontsize=10, y=0.97)
    return fig


def _round_numbers(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: 1, 2, 5, 10, ...; 1, 3, 10, ... or powers of ten alone, where those are many."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    found: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) <= 8:
            break
    return found


def _round_rows(ax: Axes) -> None:
    """Round numbers, and nothing between them, on a logarithmic y axis."""
    ax.yaxis.set_minor_locator(NullLocator())
    rows = _round_numbers(*ax.get_ylim())
    ticks(ax, "y", rows, [f"{row:g}" for row in rows])


def measured(sizes: Sequence[int], seconds: Sequence[float], start: float, bandwidth: float) -> Picture:
    """An all-reduce between two processes on this machine: seconds by size, beside a start and a bandwidth.

    start, bandwidth: of the line start + size / bandwidth, as it was fitted to all of them.
    """
    line = [start + size / bandwidth for size in sizes]
    misses = [max(a / b, b / a) for a, b in zip(line, seconds)]
    alt = f"All-reduce of two processes: {1e6 * seconds[0]:.0f} µs for {sizes[0]} bytes, "
    alt += f"{1e3 * seconds[-1]:.1f} ms for {gb(sizes[-1])}; the line through all points is off by a factor of "
    fig, ax = picture(height=2.7, alt=alt + f"{max(misses):.1f} at most.")
    ax.loglog(sizes, [1e6 * s for s in seconds], "o", color=OURS, label="measured")
    smooth = np.geomspace(sizes[0], sizes[-1], 100)  # a straight line is a bend where both axes are logarithmic
    label = f"{1e6 * start:.0f} µs + bytes / ({bandwidth / 1e9:.2g} GB/s)"
    ax.loglog(smooth, 1e6 * (start + smooth / bandwidth), "-", color=QUIET, label=label)
    _round_rows(ax)
    ax.set_xlabel("bytes summed")
    ax.set_ylabel("µs")
    ax.set_title(
        f"Below {gb(int(start * bandwidth))} mostly waiting; the line is off by a factor of {max(misses):.1f} at most"
    )
    ax.legend(frameon=False)
    return fig
