"""Figures of chapter 00: the map of the model; a token, a logit and a KV cache, in one picture each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from minillama.teach.figures import INK, KEY, OURS, QUIET, Picture, picture, words

FILL = {"io": "#e8e8e8", "norm": "#fbe3c0", "attention": "#cfe4f3", "ffn": "#cdebdd", "sample": "#f3d5e4"}


def the_map() -> Picture:
    """The model, and the chapter that builds each piece. `tools/draw_map.py` writes it to assets/pictures."""
    alt = (
        "The model as a map: tokenizer (chapter 07), embedding (06), then a block that is repeated: RMSNorm (01) and "
        "attention (02, 03, 04) add to the residual stream, RMSNorm and SwiGLU (05) add to it again; head (06), "
        "sampling (08), and the new token goes round again."
    )
    fig = Picture(figsize=(11, 4.3), facecolor="white")
    fig.alt = alt
    ax = fig.add_axes((0.01, 0.01, 0.98, 0.98))
    ax.set_xlim(0, 111)
    ax.set_ylim(0, 43)
    ax.axis("off")
    y = 14  # the residual stream
    ax.plot([29.5, 84], [y, y], color=INK, lw=2.2, zorder=0)
    _box(ax, 1, y - 4, 11, 8, "tokenizer", "07 · text to ids", "io")
    _box(ax, 15.6, y - 4, 13, 8, "embedding", "06 · (B, T, D)", "io")
    _arrow(ax, 12.5, y, 15.2, y)
    style = "round,pad=0.2,rounding_size=1.5"
    ax.add_patch(FancyBboxPatch((31, 6), 51, 33, boxstyle=style, fc="none", ec=INK, lw=1, ls="--"))
    ax.text(56.5, 41, "one block, repeated n_layers times", ha="center", va="center", fontsize=9.5, color=INK)
    for x, title, note, kind in (
        (33, "attention", "02 RoPE, 03, 04 KV", "attention"),
        (58, "SwiGLU", "05 · w1 w2 w3", "ffn"),
    ):
        _box(ax, x, 20, 11.5, 6, "RMSNorm", "01", "norm")
        _box(ax, x, 29.5, 17, 7, title, note, kind)
        _arrow(ax, x + 5.7, y, x + 5.7, 19.6)
        _arrow(ax, x + 5.7, 26.4, x + 5.7, 29.1)
        _arrow(ax, x + 15, 29.1, x + 15, y + 1.7)
        circle = {"boxstyle": "circle,pad=0.15", "fc": "white", "ec": INK}
        ax.text(x + 15, y, "+", ha="center", va="center", fontsize=14, weight="bold", color=INK, bbox=circle)
    ax.text(56.5, 8.6, "residual stream (B, T, D)", ha="center", va="center", fontsize=8.5, color=INK)
    _box(ax, 84, y - 4, 11, 8, "head", "06 · (B, T, V)", "norm")
    _box(ax, 98.2, y - 4, 11.5, 8, "sampling", "08 · next token", "sample")
    _arrow(ax, 95.5, y, 97.7, y)
    bar = {"arrowstyle": "->", "color": INK, "lw": 1.1, "connectionstyle": "bar,fraction=-0.055"}
    ax.annotate("", (6.5, y - 4.4), (104, y - 4.4), arrowprops=bar)
    ax.text(56, 2.6, "the new token goes round again", ha="center", va="center", fontsize=9, color=INK)
    ax.text(1.3, 40, "minillama", ha="left", va="center", fontsize=16, weight="bold", color=INK)
    ax.text(1.3, 36.2, "numbers: the chapter\nthat builds the piece", ha="left", va="center", fontsize=8.5, color=INK)
    return fig


def _box(ax: Axes, x: float, y: float, w: float, h: float, title: str, note: str, kind: str) -> None:
    style = "round,pad=0.2,rounding_size=1"
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=style, fc=FILL[kind], ec=INK, lw=1))
    ax.text(x + w / 2, y + h / 2 + 1.1, title, ha="center", va="center", fontsize=10.5, color=INK, weight="bold")
    ax.text(x + w / 2, y + h / 2 - 1.7, note, ha="center", va="center", fontsize=8, color=INK)


def _arrow(ax: Axes, x0: float, y0: float, x1: float, y1: float) -> None:
    ax.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.3})


def tokens(pieces: Sequence[str], ids: Sequence[int]) -> Picture:
    """A text as the model gets it: each piece in a box, its id below."""
    alt = "A text cut into pieces, each with its id: " + ", ".join(f"{p} {i}" for p, i in zip(pieces, ids)) + "."
    letters = len("".join(piece for piece in pieces if not piece.startswith("<")).replace("▁", " ").lstrip())
    fig, ax = picture(height=1.5, alt=alt)
    ax.axis("off")
    widths = [0.5 + 0.26 * len(piece) for piece in pieces]
    left = 0.0
    for piece, i, width in zip(words(list(pieces)), ids, widths):
        ax.add_patch(Rectangle((left, 0.5), width, 0.8, facecolor=OURS, alpha=0.25, edgecolor=OURS))
        ax.text(left + width / 2, 0.9, piece, ha="center", va="center", fontsize=10, color=INK)
        ax.text(left + width / 2, 0.2, str(i), ha="center", va="center", fontsize=9, color=INK)
        left += width + 0.08
    ax.set_xlim(-0.1, left)
    ax.set_ylim(0, 1.4)
    ax.set_title(f"{letters} characters are {len(pieces)} tokens; below each, its id", color=INK, fontsize=11)
    return fig


def next_token(names: Sequence[str], logits: torch.Tensor, after: str, most: int = 15) -> Picture:
    """Logits (V,) of the likeliest pieces, and the probabilities that softmax makes of them."""
    probs = logits.softmax(-1)
    top = probs.topk(most).indices.tolist()
    likely = int((probs > 0.01).sum())
    alt = f"The {most} likeliest pieces after “{after}”: " + ", ".join(
        f"{names[i]} with logit {logits[i]:.1f} and {100 * probs[i]:.1f}%" for i in top[:5]
    )
    fig, (above, below) = picture(2, 1, height=4.2, alt=alt + ", and so on.", sharex=True)
    above.bar(range(most), logits[top], color=QUIET)
    above.set_ylabel("logit")
    above.set_title(f"{likely} of {len(probs):,} pieces have more than one chance in a hundred")
    below.bar(range(most), 100 * probs[top], color=OURS)
    below.set_ylabel("probability (%)")
    below.set_xticks(range(most), [_as_word(names[i]) for i in top], rotation=45)
    below.set_xlabel(f"what comes after “{after}”: the {most} likeliest pieces")
    return fig


def _as_word(piece: str) -> str:
    """A piece as a label: one that is only the beginning of a word may not be taken for the whole."""
    return words([piece])[0].strip("·") + ("…" if len(piece) < 4 and piece.strip("▁").isalpha() else "")


def kv_cache(pieces: Sequence[str], prompt: int) -> Picture:
    """What is computed at each step when keys and values are kept: the first step reads `prompt` tokens at once."""
    steps = len(pieces) - prompt + 1
    computed = len(pieces)
    without = sum(prompt + s for s in range(steps))
    alt = (
        f"{steps} steps, one below the other. The first computes keys and values of {prompt} tokens; each after it "
        f"computes one more and finds the rest in the cache: {computed} in all, {without} without a cache."
    )
    fig, ax = picture(height=0.42 * steps + 1.2, alt=alt)
    for step in range(steps):
        end = prompt + step
        for t in range(end):
            new = step == 0 or t == end - 1
            color = KEY if new else QUIET
            ax.add_patch(Rectangle((t + 0.05, step + 0.1), 0.9, 0.8, facecolor=color, alpha=0.8 if new else 0.3))
    ax.set_xlim(0, len(pieces))
    ax.set_ylim(steps, 0)
    ax.set_xticks([t + 0.5 for t in range(len(pieces))], words(list(pieces)), rotation=40, ha="right")
    ax.set_yticks([s + 0.5 for s in range(steps)], ["prefill", *(f"step {s}" for s in range(1, steps))])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    ax.set_title(
        f"Keys and values computed for {computed} tokens (red), found in the cache {without - computed} times (grey)"
    )
    return fig
