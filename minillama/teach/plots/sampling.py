"""Figures of chapter 08: a distribution on its way to a token, and rows on their way to an end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from minillama.sampling import SamplingParams, distribution, penalize
from minillama.teach.figures import BROKEN, INK, OTHER, OURS, QUIET, SERIES, Picture, picture, ticks, words

MARGINS = dict(left=0.09, right=0.99, bottom=0.33, top=0.86)
BARS = 12
FEW = 8  # where several panels share a page
PALE = "#d6d6d6"  # of grey bars that others stand in front of


@dataclass
class Scene:
    """The model's answer to a text: logits (V,), the prompt's ids, every id's piece, and the ids it has said since."""

    logits: torch.Tensor
    prompt: list[int]
    pieces: list[str]
    said: list[int] = field(default_factory=list)

    def names(self, ids: Sequence[int]) -> list[str]:
        """Pieces as tick labels, with what the penalties look at: * in the prompt, ×2 said twice."""
        return [
            piece + "*" * (i in self.prompt) + (f" ×{self.said.count(i)}" if i in self.said else "")
            for i, piece in zip(ids, words([self.pieces[i] for i in ids]))
        ]

    def marks(self, names: Sequence[str]) -> str:
        """What the marks in these names mean; "" where there are none."""
        meanings = {"*": "* in the prompt", " ×": "×n said n times since"}
        found = [meaning for mark, meaning in meanings.items() if any(mark in name for name in names)]
        return f" ({', '.join(found)})" if found else ""


def by_id(scene: Scene, params: SamplingParams) -> torch.Tensor:
    """What is drawn from after all steps, in the order of the ids: (V,)."""
    seen = torch.zeros(1, len(scene.logits), dtype=torch.bool)
    seen[0, scene.prompt] = True
    counts = torch.bincount(torch.tensor(scene.said, dtype=torch.long), minlength=len(scene.logits)).float()
    if params.greedy:  # all mass on the one that is taken, penalties included
        params = replace(params, temperature=1e-6, top_k=1, top_p=1.0, min_p=0.0)
    probs, ids = distribution(penalize(scene.logits[None], seen, counts[None], params), params)
    return torch.zeros_like(probs).scatter(-1, ids, probs)[0]


def _with_others(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """In percent: the values at `order`, and the sum of all others."""
    return 100 * torch.cat([values[order], (values.sum() - values[order].sum()).clamp(min=0)[None]])


def wide(probs: torch.Tensor) -> float:
    """How many equally likely tokens would be as uncertain: exp of the entropy."""
    return math.exp(-torch.special.xlogy(probs.double(), probs.double()).sum().item())


def _decades(ax: Axes) -> None:
    """1, 10, 100 along a logarithmic axis, in plain figures."""
    low, high = ax.get_ylim()
    shown = [10**n for n in range(7) if low <= 10**n <= high]
    ax.set_yticks(shown, [f"{n:,}" for n in shown])
    ax.yaxis.set_minor_formatter(NullFormatter())


def ruler(probs: Sequence[float], names: Sequence[str], points: Sequence[float]) -> Picture:
    """Probabilities laid end to end, and where numbers between 0 and 1 fall."""
    ends = torch.tensor(probs, dtype=torch.float64).cumsum(0)
    found = [int((ends <= u).sum()) for u in points]
    alt = "A ruler from 0 to 1 in pieces: " + ", ".join(f"{n} {p:g}" for n, p in zip(names, probs)) + ". "
    alt += ", ".join(f"{u:g} falls on {names[place]}" for u, place in zip(points, found)) + "."
    fig, ax = picture(height=1.7, alt=alt)
    left = 0.0
    for i, (share, name) in enumerate(zip(probs, names)):
        ax.barh(0, share, left=left, height=0.6, color=SERIES[i % len(SERIES)], alpha=0.45, edgecolor="white")
        ax.text(left + share / 2, 0, f"{name}\n{share:g}", ha="center", va="center", fontsize=9, color=INK)
        left += share
    for u in points:
        ax.plot([u, u], [-0.4, 0.5], color=INK, linewidth=1.4)
        ax.text(u, 0.55, f"u = {u:g}", ha="center", va="bottom", fontsize=9, color=INK)
    ax.set_ylim(-0.45, 0.95)
    ax.set_xlim(0, 1)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("cumulative probability")
    ax.set_title(", ".join(f"{u:g} picks {names[place]}" for u, place in zip(points, found)))
    return fig


def temperatures(scene: Scene, choices: Sequence[float]) -> Picture:
    """One distribution at several temperatures, side by side."""
    shares = [by_id(scene, SamplingParams(t, 1.0)) for t in choices]
    order = scene.logits.argsort(descending=True)[:FEW]
    alt = "The likeliest next pieces at several temperatures. " + " ".join(
        f"At {t:g} the first has {p.max():.2f} and the spread is that of {wide(p):.1f} equally likely ones."
        for t, p in zip(choices, shares)
    )
    fig, axes = picture(1, len(choices), height=3.0, alt=alt, sharey=True, sharex=True)
    for ax, t, p in zip(axes, choices, shares):
        ax.barh(range(FEW + 1), _with_others(p, order), color=[OURS] * FEW + [QUIET])
        ax.set_title(f"t = {t:g}\nas wide as {wide(p):.1f}", fontsize=10)
        ax.set_xlabel("probability (%)")
    _name_rows(axes[0], [*words([scene.pieces[i] for i in order.tolist()]), "all others"])
    return fig


def _name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Names beside horizontal bars, the first at the top: to be read without turning one's head."""
    ax.set_yticks(range(len(names)), names, fontsize=10)
    ax.set_ylim(len(names) - 0.4, -0.6)


def theatre(
    scene: Scene,
    u: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
) -> Picture:
    """The model's distribution, what the steps make of it, and what is drawn with the numbers u (N,)."""
    params = SamplingParams(temperature, top_p, top_k, min_p, repetition, frequency, presence)
    raw = scene.logits.softmax(-1)
    order = raw.argsort(descending=True)[:BARS]
    shares = by_id(scene, params)
    cdf = shares.double().cumsum(0)
    drawn = torch.searchsorted(cdf, u * cdf[-1], right=True).clamp(max=len(cdf) - 1)
    counts = torch.bincount(drawn, minlength=len(raw)) / len(u)
    left, spread = int((shares > 0).sum()), wide(shares)
    columns = [_with_others(x, order) for x in (raw, shares, counts)]
    names = [*scene.names(order.tolist()), "all others"]
    off = 100 * (shares - counts).abs().max()
    alt = (
        f"{left} of {len(raw)} pieces can be drawn. The {len(u)} draws differ from the theory by {off:.1f} points at "
        "most. " + ", ".join(f"{n} {r:.0f}% becomes {p:.0f}%" for n, r, p in zip(names[:6], columns[0], columns[1]))
    )
    fig, ax = picture(height=3.6, alt=alt + ".", margins=MARGINS)
    places = torch.arange(len(names))
    # One artist each, not a rectangle for every bar: a slider redraws them.
    ax.vlines(places, 0, columns[0], color=PALE, linewidth=30)
    ax.vlines(places, 0, columns[1], color=OURS, linewidth=18)
    ax.plot(places, columns[2], "o", color=OTHER, markeredgecolor=INK, markersize=6)
    ax.set_ylim(0, 1.08 * max(float(c.max()) for c in columns))
    turned: dict[str, Any] = dict(rotation=45, rotation_mode="anchor", ha="right", va="top", fontsize=10)
    ticks(ax, "x", (places + 0.1).tolist(), names, marks=False, **turned)
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_xlabel(f"likeliest next pieces{scene.marks(names)}")
    ax.xaxis.set_label_coords(0.5, -0.4)  # a fixed place: it would jump with the length of the names
    ax.set_ylabel("probability (%)")
    title = f"{left:,} of {len(raw):,} can be drawn, as wide as {spread:.1f} equally likely"
    if left == 1:
        title = f"Only one of {len(raw):,} is left: {words([scene.pieces[int(shares.argmax())]])[0]}"
    # The settings too: a slider that changes nothing here should be seen to have been moved.
    off_at_zero = "off" if not top_k else str(top_k)
    said = (
        f"temperature {temperature:g}, top-k {off_at_zero}, top-p {top_p:g}, min-p {min_p:g}, "
        f"repetition {repetition:g}, frequency {frequency:g}, presence {presence:g}"
    )
    ax.set_title(f"{title}\n{said}", fontsize=10)
    ax.legend(*_legend(len(u)), frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.7, 1.0))
    return fig


def _legend(draws: int) -> tuple[list[Line2D], list[str]]:
    """What the colours mean: lines as broad as the bars would be too broad for it."""
    bars = [Line2D([], [], color=color, linewidth=6) for color in (PALE, OURS)]
    dot = Line2D([], [], color=OTHER, marker="o", linestyle="", markeredgecolor=INK, markersize=6)
    return [*bars, dot], ["the model's own", "after the steps", f"{draws:,} draws"]


def settings(scene: Scene, choices: dict[str, SamplingParams]) -> Picture:
    """The theatre's bars at several settings, small."""
    raw = scene.logits.softmax(-1)
    order = raw.argsort(descending=True)[:FEW]
    shares = {name: by_id(scene, params) for name, params in choices.items()}
    alt = "What can be drawn at each setting: " + ", ".join(
        f"{name}, {int((p > 0).sum())} pieces, as wide as {wide(p):.1f}" for name, p in shares.items()
    )
    columns = 4
    rows = -(-len(choices) // columns)
    fig, axes = picture(rows, columns, height=2.3 * rows + 0.5, alt=alt + ".", sharey=True, sharex=True, squeeze=False)
    names = [*scene.names(order.tolist()), "all others"]
    places = range(len(names))
    for ax, (name, p) in zip(axes.flat, shares.items()):
        ax.barh(places, _with_others(raw, order), height=0.86, color=PALE, label="the model's own")
        ax.barh(places, _with_others(p, order), height=0.5, color=OURS, label="after the steps")
        ax.set_title(f"{name}\n{int((p > 0).sum()):,} left", fontsize=10)
    for ax in axes.flat[len(choices) :]:
        ax.axis("off")
    for ax in axes[:, 0]:
        _name_rows(ax, names)
    for ax in axes[-1]:
        ax.set_xlabel("probability (%)", fontsize=10)
    fig.legend(
        *axes.flat[0].get_legend_handles_labels(),
        title=f"likeliest next pieces{scene.marks(names)}",
        loc="outside upper center",
        ncols=2,
        frameon=False,
        fontsize=10,
    )
    return fig


def along_a_story(sizes: Sequence[int], pieces: Sequence[str], p: float) -> Picture:
    """How many tokens are in the nucleus before each token of a text."""
    count = torch.tensor(sizes)
    alone = 100 * (count == 1).float().mean()
    most = int(count.argmax())
    alt = (
        f"The number of pieces in the nucleus of {p:g} before each of {len(sizes)} tokens: 1 at {alone:.0f}% of them, "
        f"and up to {count.max()}, in front of {pieces[most]}."
    )
    fig, ax = picture(height=2.9, alt=alt)
    ax.bar(range(len(sizes)), count, color=[QUIET if c == 1 else OURS for c in sizes], width=1.0)
    ax.set_yscale("log")
    ax.set_ylim(0.8, 1.9 * max(55.0, float(count.max())))
    _decades(ax)
    labelled: list[int] = []
    for i in count.argsort(descending=True).tolist()[:40]:  # the widest, where there is room for a word
        if sizes[i] > 2 and all(abs(i - other) > len(sizes) / 14 for other in labelled):
            ax.text(i, 1.08 * sizes[i], words([pieces[i]])[0], ha="center", va="bottom", fontsize=9, color=INK)
            labelled.append(i)
    ax.set_ylabel(f"pieces in the nucleus of {p:g}")
    ax.set_xlabel("position in the story; the word is what follows there")
    ax.set_title(f"One piece is enough at {alone:.0f}% of the places; elsewhere it takes up to {count.max()}")
    kinds = [Patch(color=QUIET, label="one piece is enough"), Patch(color=OURS, label="a choice of several")]
    ax.legend(handles=kinds, frameon=False, fontsize=9, loc="upper right", ncols=2)
    return fig


def circles(shares: dict[int, float]) -> Picture:
    """How much of a greedy walk repeats itself, for each number of tokens that it remembers."""
    memories, repeated = list(shares), [100 * v for v in shares.values()]
    alt = "Repeated runs of four tokens in a greedy walk: " + ", ".join(
        f"{r:.0f}% with a memory of {m}" for m, r in zip(memories, repeated)
    )
    fig, ax = picture(height=2.6, alt=alt + ".")
    colors = [BROKEN if r > 50 else OURS for r in repeated]
    bars = ax.bar(range(len(memories)), repeated, color=colors, width=0.6)
    ax.bar_label(bars, [f"{r:.0f}%" for r in repeated], fontsize=9, padding=2)
    ax.set_xticks(range(len(memories)), [str(m) for m in memories])
    ax.set_ylim(0, 112)
    ax.set_xlabel("tokens that it remembers")
    ax.set_ylabel("runs of four that were\nthere before (%)")
    caught = [m for m, r in zip(memories, repeated) if r > 50]
    ax.set_title(f"With a memory of {max(caught)} or less it walks in a circle" if caught else "No circle")
    return fig


def perplexities(choices: Sequence[float], curves: dict[str, Sequence[float]], written: float) -> Picture:
    """Perplexity, by the model, of what it writes at each temperature, beside that of stories it did not write."""
    alt = "Perplexity of the model's own stories. " + " ".join(
        f"{name}: " + ", ".join(f"{v:.1f} at {t:g}" for t, v in zip(choices, values)) + "."
        for name, values in curves.items()
    )
    fig, ax = picture(height=2.9, alt=f"{alt} Held-out stories: {written:.2f}.")
    for (name, values), color, style in zip(curves.items(), (BROKEN, OURS), ("o-", "s--")):
        ax.plot(choices, values, style, color=color, label=name, markersize=5)
    ax.axhline(written, color=QUIET, linewidth=1)
    ax.text(choices[-1], written * 1.06, "held-out stories", ha="right", va="bottom", fontsize=9, color=INK)
    ax.set_yscale("log")
    ax.set_ylim(bottom=1)
    _decades(ax)
    ax.set_xlabel("temperature")
    ax.set_ylabel("perplexity of the text")
    first, last = next(iter(curves.values()))[0], next(iter(curves.values()))[-1]
    ax.set_title(f"What it writes goes from a perplexity of {first:.1f} to one of {last:.0f}")
    ax.legend(frameon=False, fontsize=9)
    return fig


def slots(history: Sequence[Sequence[int]], rows: int) -> Picture:
    """Which row stands in which slot of the cache at each step."""
    steps = len(history)
    done = sum(map(len, history))
    saved = 100 * (1 - done / (rows * steps))
    alt = f"{rows} rows, {steps} steps. " + " ".join(
        f"From step {i} on the slots hold rows {', '.join(map(str, now))}."
        for i, now in enumerate(history)
        if i == 0 or now != history[i - 1]
    )
    fig, ax = picture(height=2.5, alt=alt)
    for step, now in enumerate(history):
        for slot, row in enumerate(now):
            ax.barh(slot, 1, left=step, height=0.86, color=SERIES[row % len(SERIES)], alpha=0.55, linewidth=0)
            if step == 0 or slot >= len(history[step - 1]) or history[step - 1][slot] != row:
                ax.text(step + 0.15, slot, f"row {row}", ha="left", va="center", fontsize=9, color=INK)
    ax.set_ylim(rows - 0.4, -0.6)
    ax.set_xlim(0, steps)
    ax.set_yticks(range(rows), [f"slot {i}" for i in range(rows)])
    ax.set_xlabel("step")
    ax.set_title(f"The last row takes the place of one that is done: {saved:.0f}% less to compute")
    return fig
