"""Figures of chapter 02: hands that turn, scores that depend on distance, and what goes wrong later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection

from minillama.teach.figures import BROKEN, INK, KEY, OTHER, OURS, QUERY, QUIET, Picture, picture

PAIRS = ("#aa3377", "#332288", "#997700")  # pairs of numbers, where they are told apart


def turned(rotate_pair: Callable[[torch.Tensor, torch.Tensor], Any]) -> Picture:
    """Three arrows, where they should go, and where `rotate_pair` takes them. A stub takes them nowhere."""
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [-0.5, 0.8]])
    angle = torch.deg2rad(torch.tensor([90.0, 45.0, 150.0]))
    wanted = _pairs(torch.view_as_complex(x) * torch.polar(torch.ones(3), angle))
    try:
        result = rotate_pair(x.clone(), angle)
    except Exception:  # the check above says what it is
        result = None
    yours = (
        result if isinstance(result, torch.Tensor) and result.shape == x.shape and result.is_floating_point() else None
    )
    if yours is None:
        title = "No arrow of yours yet: the thin ones show where they go"
    elif torch.allclose(yours, wanted, atol=1e-4):
        title = "Your arrows lie where they should"
    else:
        off = (yours - wanted).norm(dim=-1)
        title = f"Your arrows miss by up to {off.max():.2f}"
    alt = "Three arrows turned by 90, 45 and 150 degrees against the clock, and yours beside them. " + title + "."
    fig, axes = picture(1, 3, height=2.6, alt=alt)
    for i, ax in enumerate(axes):
        _dials(ax, [(0.0, 0.0)])
        _hands(ax, [(0.0, 0.0)], x[i : i + 1], QUIET, label="before")
        _hands(ax, [(0.0, 0.0)], wanted[i : i + 1], QUERY, label="wanted", width=0.008)
        if yours is not None:
            _hands(ax, [(0.0, 0.0)], yours[i : i + 1].detach(), KEY, label="yours", width=0.02, alpha=0.7)
        ax.set_xlabel(f"by {math.degrees(angle[i]):.0f}°")
        ax.set_xlim(-1.25, 1.25)
        ax.set_ylim(-1.25, 1.25)
    axes[0].legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(-0.45, -0.1))
    fig.suptitle(title, fontsize=11, color=INK)
    return fig


def clocks(positions: Sequence[int], dim: int, theta: float = 10000.0) -> Picture:
    """One hand for each pair, at each of `positions`."""
    freqs = _freqs(dim, theta)  # (h/2,)
    pairs = len(freqs)
    turns = positions[-1] * freqs / (2 * math.pi)
    title = (
        f"At position {positions[-1]} the first hand has made {_turns(turns[0])} turns, the last {_turns(turns[-1])}"
    )
    alt = (
        f"{pairs} clocks with one hand each, at position {', '.join(map(str, positions))}, theta {theta:g}. {title}; "
        "each hand is slower than the one on its left."
    )
    height = 0.8 + 0.55 * len(positions)
    fig, ax = picture(height=height, alt=alt)
    _fixed(fig, (ax, (0.13, 0.45 / height, 0.86, 0.55 * len(positions) / height)))
    centres = [(float(i), -float(row)) for row in range(len(positions)) for i in range(pairs)]
    angles = torch.outer(torch.tensor(positions).double(), freqs).flatten()
    _dials(ax, centres)
    _hands(ax, centres, torch.stack([angles.cos(), angles.sin()], -1), INK, width=0.0035)
    _grid(ax, pairs, [f"position {m}" for m in positions])
    ax.set_xlabel(f"pair (theta {theta:,.0f})")
    ax.set_title(title)
    return fig


def turning(q: torch.Tensor, k: torch.Tensor, settings: Sequence[tuple[int, int]], theta: float = 10000.0) -> Picture:
    """All pairs of a query at m and a key at n, a row for each (m, n), with the score at its end."""
    q, k = _complex(q), _complex(k)
    freqs = _freqs(2 * len(q), theta)
    scores = [(q * _at(m, freqs) * (k * _at(n, freqs)).conj()).real.sum().item() for m, n in settings]
    pairs = len(q)
    by_apart: dict[int, list[float]] = {}
    for (m, n), score in zip(settings, scores):
        by_apart.setdefault(m - n, []).append(score)
    steady = all(max(same) - min(same) < 5e-4 for same in by_apart.values())
    words = [f"{apart} apart: {same[0]:.3f}" for apart, same in by_apart.items()]
    title = (
        f"Scores {'; '.join(words)}, wherever they stand" if steady else "The scores depend on where the pair stands"
    )
    alt = f"{pairs} pairs of arrows for each (m, n) of {list(settings)}. {title}."
    height = 0.95 + 0.55 * len(settings)
    fig, ax = picture(height=height, alt=alt)
    _fixed(fig, (ax, (0.17, 0.5 / height, 0.75, 0.55 * len(settings) / height)))
    centres = [(float(i), -float(row)) for row in range(len(settings)) for i in range(pairs)]
    _dials(ax, centres)
    for x, color, label, places in (
        (q, QUERY, "query", [m for m, _ in settings]),
        (k, KEY, "key", [n for _, n in settings]),
    ):
        directions = _pairs(torch.cat([x / x.abs() * _at(place, freqs) for place in places]))
        _hands(ax, centres, directions, color, width=0.0035, label=label)
    _grid(ax, pairs, [f"m = {m}, n = {n}" for m, n in settings])
    ax.set_xlabel("pair")
    for row, score in enumerate(scores):
        ax.annotate(f"{score:.3f}", (pairs - 0.3, -row), va="center", fontsize=10, color=INK, annotation_clip=False)
    ax.annotate("score", (pairs - 0.3, 0.55), fontsize=9, color=INK, annotation_clip=False)
    ax.set_xlim(-0.6, pairs + 0.6)
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper right", bbox_to_anchor=(1.02, -0.1))
    fig.suptitle(title, fontsize=11, color=INK)
    return fig


def board(q: torch.Tensor, k: torch.Tensor, m: int = 5, n: int = 3, theta: float = 10000.0, shift: int = 0) -> Picture:
    """The phasor board: query at m + shift, key at n + shift, and what each pair adds to the score."""
    q, k = _complex(q), _complex(k)
    freqs = _freqs(2 * len(q), theta)
    turned_q, turned_k = q * _at(m + shift, freqs), k * _at(n + shift, freqs)
    parts = (turned_q * turned_k.conj()).real
    score = parts.sum().item()
    pairs = len(q)
    where = f"query at {m + shift}, key at {n + shift}"
    title = f"{where}: m − n = {m - n}, score {score:.3f}"
    alt = (
        f"{pairs} pairs of arrows, {where}, theta {theta:g}, and bars of what each pair adds to the score, {score:.3f}."
    )
    fig, (ax, bars) = picture(1, 2, height=2.6, alt=alt)
    _fixed(fig, (ax, (0.01, 0.02, 0.55, 0.8)), (bars, (0.66, 0.18, 0.33, 0.68)))  # laid out by hand: faster
    columns = (pairs + 1) // 2
    centres = [(float(i % columns), -1.35 * (i // columns)) for i in range(pairs)]
    _dials(ax, centres)
    _hands(ax, centres, _pairs(turned_q / q.abs()), QUERY, width=0.006)
    _hands(ax, centres, _pairs(turned_k / k.abs()), KEY, width=0.006)
    for i, (x, y) in enumerate(centres):
        ax.text(x, y - 0.62, str(i), ha="center", va="center", fontsize=8, color=INK)
    _bare(ax)
    ax.set_xlim(-0.6, columns - 0.4)
    ax.set_ylim(centres[-1][1] - 0.75, 0.6)
    ax.set_title("directions: query blue, key rose", fontsize=9)
    limit = 1.05 * float((q.abs() * k.abs()).max())
    bars.vlines(range(pairs), 0, parts, color=OURS, linewidth=9)  # one artist, where `bar` makes one for each
    bars.axhline(0, color=INK, linewidth=0.8)
    bars.set_ylim(-limit, limit)
    bars.set_xticks(range(0, pairs, 2))
    bars.set_xlabel("pair")
    bars.set_ylabel("adds to the score")
    fig.suptitle(title, fontsize=11, color=INK)
    return fig


def by_distance(distances: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> Picture:
    """The scores (n,) of two keys at growing distance from one query."""
    peaks = [int(distances[scores.argmax()]) for scores in (near, far)]
    title = f"One key is loudest at distance {peaks[0]}, the other at {peaks[1]}"
    alt = (
        f"Score against distance for two keys and one query. {title}. The first falls from {near[0]:.1f} at distance 0 "
        f"to {near[-1]:.1f} at {distances[-1]:.0f}, with ripples."
    )
    fig, ax = picture(height=2.8, alt=alt)
    ax.plot(distances, near, color=QUERY, label="key equal to the query")
    ax.plot(distances, far, "--", color=KEY, label="the same key, turned beforehand")
    for peak, scores, color in zip(peaks, (near, far), (QUERY, KEY)):
        ax.plot([peak], [scores.max()], "o", color=color)
    ax.axhline(0, color=QUIET, linewidth=0.8)
    ax.set_xlabel("distance m − n, positions")
    ax.set_ylabel("score")
    ax.set_title(title)
    ax.legend(frameon=False)
    return fig


def learned_distance(distances: torch.Tensor, scores: torch.Tensor, first_layer: torch.Tensor) -> Picture:
    """Scores (heads, n) of each head's mean query with its mean key; those of layer 0 apart."""
    middle = scores.median(0).values
    at = {int(d): float(s) for d, s in zip(distances, middle)}
    lowest, highest = int(distances[0]), int(distances[-1])
    title = f"Nearby words score higher, far words fade: {at[1]:.1f} at distance 1, {at[highest]:.1f} at {highest}"
    alt = (
        f"Score of mean query and mean key against distance: {len(scores)} heads, and {len(first_layer)} of layer "
        f"0. The median head has {at[1]:.1f} at distance 1, {at[highest]:.1f} at {highest}, "
        f"{at[lowest]:.1f} at {lowest}."
    )
    fig, ax = picture(height=3.2, alt=alt)
    past = distances >= 0
    for rows, color, label in ((scores, OURS, "layers 1 to 5"), (first_layer, OTHER, "layer 0")):
        for row in rows:
            ax.plot(distances[past], row[past], color=color, alpha=0.35, linewidth=0.8)
            ax.plot(distances[~past], row[~past], ":", color=color, alpha=0.35, linewidth=0.8)
        ax.plot([], [], color=color, label=label)
    ax.plot(distances[past], middle[past], color=INK, linewidth=1.6, label="median of layers 1 to 5")
    ax.plot(distances[~past], middle[~past], ":", color=INK, linewidth=1.6)
    ax.axvline(0, color=QUIET, linewidth=0.8)
    ax.annotate("the past →", (2, ax.get_ylim()[0]), fontsize=9, color=INK, va="bottom")
    ax.annotate("← the future", (-2, ax.get_ylim()[0]), fontsize=9, color=INK, va="bottom", ha="right")
    ax.set_xlabel("distance m − n, positions")
    ax.set_ylabel("score of mean query and key")
    ax.set_title(title)
    ax.legend(frameon=False, fontsize=9)
    return fig


def layouts(order: Sequence[int]) -> Picture:
    """Where the numbers of one head (h,) go from neighbours to halves; `order`: for each new place, the old one."""
    h = len(order)
    colors = PAIRS
    moves = ", ".join(f"{old} to {new}" for new, old in enumerate(order))
    title = "The same pairs, stored in another order"
    alt = f"A head of {h} numbers in two layouts: neighbours are pairs, or halves are. The numbers go from {moves}."
    fig, ax = picture(height=2.2, alt=alt)
    for new, old in enumerate(order):
        color = colors[old // 2 % len(colors)]
        for x, y in ((old, 1.0), (new, 0.0)):
            ax.add_patch(_box(x, y, color))
            ax.annotate(str(old), (x, y), ha="center", va="center", color="white", fontsize=11)
        ax.plot([old, new], [0.8, 0.2], color=color, linewidth=1.5)
    for pair in range(h // 2):
        for y, left, right in ((1.0, 2 * pair, 2 * pair + 1), (0.0, pair, pair + h // 2)):
            up = 1 if y else -1
            height = y + up * (0.32 if y else 0.32 + 0.12 * pair)
            ax.plot([left, left, right, right], [y + up * 0.22, height, height, y + up * 0.22], color=colors[pair % 3])
    for y, name in ((1.0, "Meta: neighbours"), (0.0, "Hugging Face: halves")):
        ax.annotate(name, (h - 0.35, y), va="center", fontsize=10, color=INK)
    _bare(ax)
    ax.set_xlim(-0.6, h + 2.2)
    ax.set_ylim(-0.8, 1.5)
    ax.set_title(title)
    return fig


def rotting(results: Mapping[str, torch.Tensor], edges: Sequence[int]) -> Picture:
    """How far the model's guesses have moved, KL (T,) by position, for each mistake; averaged between `edges`."""
    first = max(float(kl[0].abs()) for kl in results.values())
    means = {name: [max(float(kl[a:b].mean()), 1e-7) for a, b in zip(edges, edges[1:])] for name, kl in results.items()}
    title = (
        f"At position 0 every mistake is right ({first:.0e} nats off); then they rot"
        if first
        else ("At position 0 every mistake is right, to the bit; then they rot")
    )
    alt = "How far the model's guesses move, in nats, by position. " + "; ".join(
        f"{name}: {kl[0]:.0f} at position 0, {m[1]:.1g} at {edges[1]}, {m[-1]:.1g} from {edges[-2]} on"
        for (name, kl), m in zip(results.items(), means.values())
    )
    fig, ax = picture(height=3.2, alt=alt + ".")
    styles = (("o-", BROKEN), ("s-", OTHER), ("^-", OURS), ("D-", QUIET))
    for (name, values), (style, color) in zip(means.items(), styles):
        ax.plot(range(len(values)), values, style, color=color, markersize=4, label=name)
    labels = [str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in zip(edges, edges[1:])]
    ax.set_xticks(range(len(labels)), labels)
    ax.set_yscale("log")
    ax.set_ylim(3e-8, 30)
    ticks = [1e-7, 1e-5, 1e-3, 1e-1, 10]
    ax.set_yticks(ticks, ["0", *(f"{t:g}" for t in ticks[1:])])
    ax.minorticks_off()
    ax.set_xlabel("position")
    ax.set_ylabel("KL from the intact model, nats")
    ax.set_title(title)
    ax.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig


def wavelengths(dim: int, models: Mapping[str, tuple[float, int]]) -> Picture:
    """Positions for a full turn, by pair, for each model's theta; and the length of its context."""
    waves = {name: 2 * math.pi / _freqs(dim, theta) for name, (theta, _) in models.items()}
    whole = [f"{name} {int((waves[name] <= context).sum())} of {dim // 2}" for name, (_, context) in models.items()]
    title = "Pairs that make a full turn within the context: " + ", ".join(whole)
    fig, ax = picture(height=3.2, alt=f"Wavelength of each pair, in positions, on a logarithmic scale. {title}.")
    longest = max(context for _, context in models.values())
    for (name, (theta, context)), color, style in zip(models.items(), (OURS, OTHER, QUIET), ("o", "s", "^")):
        ax.plot(range(dim // 2), waves[name], style, markersize=2.5, color=color, label=f"{name}: theta {theta:,.0f}")
        ax.axhline(context, color=color, linewidth=0.8, linestyle="--")
        above = "bottom" if context == longest else "top"
        ax.annotate(f"context {context:,}", (0, context), color=INK, fontsize=8, va=above)
    ax.set_yscale("log")
    ax.set_xlabel("pair")
    ax.set_ylabel("positions for one full turn")
    ax.set_title(title)
    ax.legend(frameon=False, loc="lower right")
    return fig


def _fixed(fig: Picture, *places: tuple[Axes, tuple[float, float, float, float]]) -> None:
    """Axes at (left, bottom, width, height), as shares of the picture."""
    fig.set_layout_engine("none")
    for ax, place in places:
        ax.set_position(place)


def _freqs(dim: int, theta: float) -> torch.Tensor:
    return theta ** (-torch.arange(0, dim, 2).double() / dim)


def _complex(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.detach().double().reshape(-1, 2))


def _at(position: int, freqs: torch.Tensor) -> torch.Tensor:
    return torch.polar(torch.ones_like(freqs), position * freqs)


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x)


def _turns(turns: torch.Tensor) -> str:
    return f"{turns:.1f}" if turns >= 1 else f"{turns:.2g}"


def _dials(ax: Axes, centres: Sequence[tuple[float, float]]) -> None:
    size = [0.9 if len(centres) > 1 else 2.0] * len(centres)
    ax.add_collection(
        EllipseCollection(
            size, size, [0] * len(size), units="xy", offsets=centres, transOffset=ax.transData,
            facecolors="none", edgecolors=QUIET, linewidths=0.7,
        )
    )  # fmt: skip
    _bare(ax)


def _hands(
    ax: Axes,
    centres: Sequence[tuple[float, float]],
    hands: torch.Tensor,
    color: str,
    width: float = 0.012,
    **options: Any,
) -> None:
    """Arrows hands (n, 2) from the middle of each dial; length 1 reaches its rim."""
    x, y = zip(*centres)
    reach = 0.45 if len(centres) > 1 else 1.0
    ax.quiver(
        x, y, reach * hands[:, 0], reach * hands[:, 1], color=color, width=width, angles="xy", scale_units="xy",
        scale=1, headwidth=4.5, headlength=5, headaxislength=4.5, **options,
    )  # fmt: skip


def _grid(ax: Axes, pairs: int, rows: Sequence[str]) -> None:
    ax.set_xticks(range(pairs), [str(i) for i in range(pairs)])
    ax.set_yticks([-i for i in range(len(rows))], rows)
    ax.tick_params(length=0)
    ax.set_xlim(-0.6, pairs - 0.4)
    ax.set_ylim(-len(rows) + 0.45, 0.6)


def _bare(ax: Axes) -> None:
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)


def _box(x: float, y: float, color: str) -> Any:
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch((x - 0.3, y - 0.15), 0.6, 0.3, boxstyle="round,pad=0.05", color=color)
