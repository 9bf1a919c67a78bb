"""Figures of chapter 03: who looks at whom, which heads share, and what sharing saves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import matplotlib
import torch
from matplotlib.axes import Axes

from minillama.teach.figures import BROKEN, INK, KEY, OTHER, OURS, QUERY, QUIET, Picture, picture, ticks, words

LOOKS = "Blues"  # attention weights from 0 to 1: white is nothing
HIDDEN = "#d9d9d9"  # where nobody may look
DARK = 0.6  # from this share on, text on a cell is white


def hidden_words(pieces: Sequence[str], probabilities: Sequence[float], intact: float, answer: str) -> Picture:
    """Probability of `answer` with one word at a time hidden from the words after it; probabilities: one for each."""
    names = _labels([*pieces, answer])
    answer = names.pop().strip("·")
    least = min(range(len(names)), key=lambda i: probabilities[i])
    alt = f"Probability of {answer} with each of {len(names)} words hidden from later ones: " + ", ".join(
        f"{name} {100 * p:.0f}%" for name, p in zip(names, probabilities)
    )
    fig, ax = picture(height=2.8, alt=alt + f"; with nothing hidden {100 * intact:.0f}%.")
    colors = [BROKEN if i == least else OURS for i in range(len(names))]
    ax.bar(range(len(names)), [100 * p for p in probabilities], color=colors)
    ax.axhline(100 * intact, color=QUIET, linestyle="--", linewidth=1)
    _beside(ax, 100 * intact, "nothing hidden")
    ax.set_xticks(range(len(names)), names)
    ax.set_ylim(0, 105)
    ax.set_ylabel(f"probability of “{answer}”, %")
    ax.set_xlabel("the word that is hidden from those after it")
    ax.set_title(f"Without “{names[least].strip('·')}” its probability falls from {100 * intact:.0f}% to "
                 f"{100 * probabilities[least]:.0f}%")  # fmt: skip
    return fig


def by_hand(scores: torch.Tensor, weights: torch.Tensor, names: Sequence[str]) -> Picture:
    """Scores (T, T), hidden ones -inf, and the weights that softmax makes of them."""
    T = len(names)
    hidden = torch.isinf(scores)
    grey_too = matplotlib.colormaps[LOOKS].with_extremes(bad=HIDDEN)
    seen = "; ".join(
        f"{name} " + ", ".join(f"{w:.2f}" for w in row[: i + 1]) for i, (name, row) in enumerate(zip(names, weights))
    )
    fig, axes = picture(1, 2, height=2.6, alt=f"Two {T} by {T} tables, scores and weights. The weights: {seen}.")
    top = float(scores[scores.isfinite()].abs().max())
    for ax, numbers, title, most in (
        (axes[0], scores, f"Scores: {int(hidden.sum())} are hidden (grey)", 2 * top),
        (axes[1], weights, "Weights: each row sums to 1", 1.0),
    ):
        shares = numbers.clamp(min=0) / most
        ax.imshow(shares.masked_fill(hidden, torch.nan), cmap=grey_too, vmin=0, vmax=1)
        for i in range(T):
            for j in range(T):
                value = numbers[i, j].item()
                text = "-inf" if value == -torch.inf else f"{value:.2f}"
                ax.text(j, i, text, ha="center", va="center", color="white" if shares[i, j] > DARK else INK)
        _both_ways(ax, names)
        ax.set_title(title)
    axes[0].set_ylabel("query", color=QUERY)
    return fig


def scores_grow(widths: Sequence[int], spread: Sequence[float], bare: Sequence[float], scaled: Sequence[float],
                keys: int) -> Picture:  # fmt: skip
    """spread: standard deviation of q·k for each width h; bare, scaled: the largest of `keys` weights, on average."""
    alt = "; ".join(
        f"h = {h}: standard deviation {s:.1f}, largest weight {b:.2f} bare, {c:.2f} scaled"
        for h, s, b, c in zip(widths, spread, bare, scaled)
    )
    fig, axes = picture(1, 2, height=2.9, alt=alt + ".")
    axes[0].plot(widths, [h**0.5 for h in widths], color=QUIET, label="√h")
    axes[0].plot(widths, spread, "o", color=OURS, label="measured")
    axes[0].set_ylabel("standard deviation of q · k")
    axes[0].set_title("A score grows like √h")
    axes[1].plot(widths, bare, "o-", color=BROKEN, label="q · k")
    axes[1].plot(widths, scaled, "s--", color=OURS, label="q · k / √h")
    axes[1].axhline(1 / keys, color=QUIET, linewidth=0.8)
    _beside(axes[1], 1 / keys, f"1/{keys}:\nall alike", va="bottom")
    axes[1].set_ylim(0, 1)
    axes[1].set_ylabel("largest weight")
    tell = widths.index(128) if 128 in widths else -1
    axes[1].set_title(f"At h = {widths[tell]} one key takes {100 * bare[tell]:.0f}%")
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.set_xticks(widths, [str(h) for h in widths])
        ax.set_xlabel("h, numbers in a query")
        ax.legend(frameon=False)
    return fig


def masks(looks: Mapping[str, torch.Tensor], first: Sequence[int]) -> Picture:
    """Masks (T, S) by their titles, True where a query may look; first: the position of each one's first query."""
    alt = "; ".join(f"{title}: {int(m.sum())} of {m.numel()} pairs may look" for title, m in looks.items())
    fig, axes = picture(1, len(looks), height=2.6, alt=alt + ".", squeeze=False)
    for ax, (title, mask), start in zip(axes[0], looks.items(), first):
        T, S = mask.shape
        shares = mask.float()
        ax.pcolormesh(range(S + 1), range(T + 1), shares, cmap=LOOKS, vmin=0, vmax=1.4, edgecolors="#cccccc", lw=0.6)
        ax.set_aspect("equal")
        ax.invert_yaxis()
        ax.set_xticks([j + 0.5 for j in range(S)], [str(j) for j in range(S)])
        ax.set_yticks([i + 0.5 for i in range(T)], [str(start + i) for i in range(T)])
        ax.tick_params(length=0)
        ax.set_title(title, fontsize=10 if len(looks) > 1 else 11)
        ax.set_xlabel("position of the key", color=KEY)
    axes[0][0].set_ylabel("position of the query", color=QUERY)
    if len(looks) > 1:
        fig.suptitle("A query sees as far as its own position", fontsize=12, color=INK)
    return fig


def readers(panels: Mapping[str, Sequence[int]], title: str | None = None) -> Picture:
    """Which kv head each query head reads: by panel title, a kv head for every query head.

    title: None counts the query heads whose kv head differs between the first panel and the second.
    """
    alt = "; ".join(
        f"{name}: query heads 0, 1, ... read kv heads {', '.join(map(str, of))}" for name, of in panels.items()
    )
    fig, axes = picture(1, len(panels), height=2.4, alt=alt + ".", squeeze=False)
    for ax, (name, of) in zip(axes[0], panels.items()):
        H, K = len(of), max(of) + 1
        below = [(j + 0.5) * H / K - 0.5 for j in range(K)]  # kv heads spread over the width of the query heads
        for i, j in enumerate(of):
            ax.plot([i, below[j]], [1, 0], color=QUIET, linewidth=1, zorder=1)
        ax.scatter(range(H), [1] * H, s=150, color=QUERY, zorder=2)
        ax.scatter(below, [0] * K, s=150, color=KEY, marker="s", zorder=2)
        for x, y, n in [*((i, 1, i) for i in range(H)), *((x, 0, j) for j, x in enumerate(below))]:
            ax.text(x, y, str(n), color="white", ha="center", va="center", fontsize=8, zorder=3)
        ax.set_ylim(-0.4, 1.4)
        ax.set_xlim(-0.8, H - 0.2)
        ax.spines[:].set_visible(False)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title(name, fontsize=10)
    axes[0][0].set_yticks([0, 1], ["kv heads", "query heads"])
    axes[0][0].tick_params(length=0)
    if title is None:
        first, second = list(panels.values())[:2]
        moved = sum(a != b for a, b in zip(first, second))
        title = f"The same shapes, but {moved} of {len(first)} query heads read another kv head"
    fig.suptitle(title + "\n", fontsize=12, color=INK)  # an empty line, to keep off the panels' titles
    return fig


def all_heads(weights: torch.Tensor, pieces: Sequence[str], to: int, layers: Sequence[int]) -> Picture:
    """The maps of every head: weights (L, H, T, T); to: the word whose share of the last word's look is written on."""
    share = weights[:, :, -1, to]  # (L, H)
    last, word = (name.strip("·") for name in words([pieces[-1], pieces[to]]))
    found = [i for i in layers if share[i].max() > 0.5]
    alt = (
        f"Attention maps of {len(layers)} layers of {weights.shape[1]} heads. How much “{last}” looks at “{word}”: "
        + "; ".join(f"layer {i} " + ", ".join(f"{100 * s:.0f}%" for s in share[i]) for i in layers)
    )
    fig, axes = picture(len(layers), weights.shape[1], height=0.98 * len(layers) + 0.7, alt=alt + ".", squeeze=False)
    for row, i in zip(axes, layers):
        for j, ax in enumerate(row):
            ax.imshow(weights[i, j].sqrt(), cmap=LOOKS, vmin=0, vmax=1)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(True)
            ax.spines[:].set_color("#cccccc")
            ax.text(0.96, 0.9, f"{100 * share[i, j]:.0f}%", transform=ax.transAxes, ha="right", va="top", fontsize=8,
                    color=BROKEN if share[i, j] > 0.5 else QUIET)  # fmt: skip
        row[0].set_ylabel(f"layer {i}", fontsize=9)
    for j, ax in enumerate(axes[0]):
        ax.set_title(f"head {j}", fontsize=9)
    where = f"only in layer{'s' * (len(found) > 1)} {' and '.join(map(str, found))}" if found else "in no layer"
    fig.suptitle(f"How much “{last}” looks at “{word}”: more than half {where}", fontsize=11, color=INK)
    return fig


def one_head(weights: torch.Tensor, pieces: Sequence[str], layer: int, head: int, n_kv_heads: int = 1) -> Picture:
    """One head's map, weights (L, H, T, T): who looks (rows) at whom (columns), in % where one gets much."""
    one = weights[layer, head]  # (T, T)
    names = _labels(pieces)
    to = int(one[-1].argmax())
    kv = head * n_kv_heads // weights.shape[1]
    title = (
        f"Layer {layer}, head {head} (kv head {kv}): {100 * one[-1, to]:.0f}% of the last row goes to "
        f"“{names[to].strip('·“”')}”"
    )
    rows = "; ".join(
        f"{name} mostly at {names[int(row.argmax())]} ({100 * row.max():.0f}%)" for name, row in zip(names, one)
    )
    alt = f"Attention of layer {layer}, head {head}. Who looks at whom: {rows}."
    margins = dict(left=0.18, right=0.97, bottom=0.22, top=0.93)
    fig, ax = picture(width=5.2, height=4.4, alt=alt, margins=margins)
    ax.imshow(matplotlib.colormaps[LOOKS](one.numpy(), bytes=True), interpolation="nearest")  # as colours: sooner done
    for i, row in enumerate(one):  # in place of a colour bar, which would take as long to draw as all the rest
        j = int(row.argmax())
        if row[j] > 0.3:
            color = "white" if row[j] > DARK else INK
            ax.text(j, i, f"{100 * row[j]:.0f}", ha="center", va="center", fontsize=7.5, color=color)
    ticks(ax, "x", range(len(names)), names, marks=False, rotation=60)
    ticks(ax, "y", range(len(names)), names, marks=False)
    ax.set_xlabel("at whom (key)", color=KEY)
    ax.set_ylabel("who looks (query)", color=QUERY)
    ax.set_title(title, fontsize=9)
    return fig


def kv_bytes(per_token: Mapping[str, int], lengths: Sequence[int], card: float = 80e9) -> Picture:
    """Bytes of keys and values against the length of a text; per_token: bytes by the name of a model."""
    names = list(per_token)
    alt = "; ".join(
        f"{name}: {n / 1000:,.0f} kB a token, {n * lengths[-1] / 1e9:.1f} GB at {lengths[-1]:,}"
        for name, n in per_token.items()
    )
    fig, ax = picture(height=3.2, alt=alt + ".")
    for (name, n), color, style in zip(per_token.items(), (OTHER, OURS, BROKEN), ("s--", "o-", "^-")):
        ax.plot(lengths, [n * length / 1e9 for length in lengths], style, color=color, markersize=4)
        ax.annotate(name, (lengths[-1], n * lengths[-1] / 1e9), xytext=(8, 0), textcoords="offset points", color=INK,
                    fontsize=9, va="center")  # fmt: skip
    ax.axhline(card / 1e9, color=QUIET, linewidth=0.8)
    ax.text(lengths[0], card / 1e9, f"a card of {card / 1e9:.0f} GB", color=INK, fontsize=9, va="bottom")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_yticks([1, 10, 100], ["1", "10", "100"])
    ax.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=8)
    ax.set_xlim(0.8 * lengths[0], 2.4 * lengths[-1])  # room for the names
    ax.set_xlabel("tokens that are remembered, in all texts together")
    ax.set_ylabel("keys and values, GB")
    least, most = min(per_token.values()), max(per_token.values())
    low, high = (next(name for name in names if per_token[name] == n) for n in (least, most))
    ax.set_title(f"{low} remembers in 1/{most // least} of the bytes of {high}")
    return fig


def pooled_layers(results: Mapping[str, Sequence[float]], intact: float) -> Picture:
    """Held-out perplexity with the kv heads of one layer made one: by the way it was done, a number for each layer."""
    alt = "; ".join(
        f"{way}: " + ", ".join(f"layer {i} {p:.2f}" for i, p in enumerate(ps)) for way, ps in results.items()
    )
    fig, ax = picture(height=2.9, alt=alt + f"; intact {intact:.2f}.")
    width = 0.8 / len(results)
    for n, ((way, ps), color) in enumerate(zip(results.items(), (OURS, OTHER))):
        ax.bar([i + (n - (len(results) - 1) / 2) * width for i in range(len(ps))], ps, width, color=color, label=way)
    ax.axhline(intact, color=QUIET, linestyle="--", linewidth=1)
    first = next(iter(results.values()))
    _beside(ax, intact, "intact")
    ax.set_ylim(bottom=1)
    ax.set_xticks(range(len(first)), [f"layer {i}" for i in range(len(first))])
    ax.set_ylabel("held-out perplexity")
    worst = max(((p, i) for ps in results.values() for i, p in enumerate(ps)))
    ax.set_title(f"One layer at a time: the worst is layer {worst[1]}, at {worst[0]:.1f}")
    ax.legend(frameon=False)
    return fig


def healing(tokens: Sequence[int], curves: Mapping[str, Sequence[float]], intact: float) -> Picture:
    """Held-out perplexity while a model with one kv head is trained on; curves: by the way its kv head was made."""
    alt = "; ".join(f"{way}: from {ps[0]:.1f} to {ps[-1]:.1f}" for way, ps in curves.items())
    fig, ax = picture(height=2.9, alt=f"Perplexity over {tokens[-1]:,} tokens of training. {alt}; intact {intact:.2f}.")
    for (way, ps), color, style in zip(curves.items(), (OURS, OTHER), ("o-", "s--")):
        ax.plot(tokens, ps, style, color=color, label=way, markersize=4)
    ax.axhline(intact, color=QUIET, linestyle="--", linewidth=1)
    ax.text(tokens[0], intact, "two kv heads, as trained", color=INK, fontsize=9, va="bottom")
    ax.set_yscale("log")
    ax.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    ax.set_ylim(1, 1.3 * max(map(max, curves.values())))
    ax.set_ylabel("held-out perplexity")
    ax.set_xlabel("tokens of training since")
    way, ps = next(iter(curves.items()))
    healed = math.log(ps[0] / ps[-1]) / math.log(ps[0] / intact)
    ax.set_title(f"“{way}” comes down from {ps[0]:.0f} to {ps[-1]:.0f}: {100 * healed:.0f}% of the way, in nats")
    ax.legend(frameon=False)
    return fig


def _both_ways(ax: Axes, names: Sequence[str]) -> None:
    ax.set_xticks(range(len(names)), names, fontsize=9)
    ax.set_yticks(range(len(names)), names, fontsize=9)
    ax.tick_params(length=0)
    ax.set_xlabel("at whom (key)", color=KEY)


def _labels(pieces: Sequence[str]) -> list[str]:
    """Pieces as tick labels; a full stop by itself would look like a speck of dirt."""
    return [name if name.strip("·").strip(".,;:!?'\"") else f"“{name.strip('·')}”" for name in words(list(pieces))]


def _beside(ax: Axes, y: float, text: str, va: Literal["center", "bottom"] = "center") -> None:
    """A word at the right end of a horizontal line."""
    ax.text(1.01, y, text, transform=ax.get_yaxis_transform(), color=INK, fontsize=9, va=va)
