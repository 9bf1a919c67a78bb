"""Figures of chapter 01: what a norm does to vectors, and what it meets in the trained model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from minillama.teach.figures import BROKEN, INK, OTHER, OURS, QUIET, Picture, picture

MARGINS = dict(left=0.09, right=0.99, bottom=0.19, top=0.9, wspace=0.3)


def two_norms(x: torch.Tensor, scale: float = 1.0, shift: float = 0.0) -> Picture:
    """One vector x (D,), shifted, then scaled, beside what RMSNorm and LayerNorm make of it."""
    moved = scale * (x + shift)
    after_rms, after_layer = F.rms_norm(moved, x.shape), F.layer_norm(moved, x.shape)
    alt = (
        f"Three bar charts of the same {len(x)} numbers, plus {shift:g}, times {scale:g}: as they are, after RMSNorm "
        f"(mean {after_rms.mean():.2f}) and after LayerNorm (mean {abs(after_layer.mean()):.2f})."
    )
    fig, axes = picture(1, 3, height=2.5, alt=alt, margins=MARGINS, sharex=True)
    panels = (
        (f"x: mean {moved.mean():.2f}", moved, QUIET),
        (f"RMSNorm: mean {after_rms.mean():.2f}", after_rms, OURS),
        (f"LayerNorm: mean {abs(after_layer.mean()):.2f}", after_layer, OTHER),
    )
    for ax, (title, numbers, color) in zip(axes, panels):
        ax.vlines(range(len(x)), 0, numbers, color=color, linewidth=5)  # one artist: a slider redraws it
        ax.axhline(0, color=INK, linewidth=0.8)
        ax.set_title(title)
        ax.set_xlabel("place in the vector")
    axes[0].set_ylabel("value")
    axes[0].set_ylim(-12, 18)
    for ax in axes[1:]:
        ax.set_ylim(-4, 4)
    return fig


def mean_share(names: Sequence[str], shares: torch.Tensor) -> Picture:
    """How much of each vector's mean square is its mean: shares (norms, tokens) between 0 and 1."""
    median = shares.median(-1).values
    alt = (
        f"For each of {len(names)} norms of the model, the share of the mean square that is due to the mean. The "
        f"median token is between {100 * median.min():.2f}% and {100 * median.max():.2f}%."
    )
    title = f"The mean holds at most {100 * median.max():.1f}% of the median token's mean square"
    fig, ax = picture(height=3.2, alt=alt)
    for i, row in enumerate(shares):
        ax.scatter([i] * len(row), 100 * row, s=8, color=QUIET, alpha=0.35, linewidths=0)
    ax.plot(range(len(names)), 100 * median, "o", color=OURS, label="median token")
    ax.set_xticks(range(len(names)), [_short(name) for name in names], rotation=40, ha="right", fontsize=8)
    ax.set_ylabel("due to the mean (%)")
    ax.set_xlabel("the norms of the model, in order")
    ax.set_title(title)
    ax.legend(frameon=False)
    return fig


def sizes_through_layers(names: Sequence[str], before: torch.Tensor, after: torch.Tensor) -> Picture:
    """RMS of every token's vector before and after each norm: before, after (norms, tokens)."""
    first, last = before[0].median(), before[-1].median()
    alt = (
        f"RMS of the vectors that reach each norm: the median goes from {first:.2f} at the first to {last:.2f} at the "
        "last. After the norm it is near the size of the learned weight everywhere."
    )
    fig, ax = picture(height=3.2, alt=alt)
    for values, color, label in ((before, BROKEN, "before the norm"), (after, OURS, "after it")):
        low, mid, high = values.quantile(torch.tensor([0.05, 0.5, 0.95]), dim=-1)
        ax.fill_between(range(len(names)), low, high, color=color, alpha=0.2, linewidth=0)
        ax.plot(range(len(names)), mid, "o-", color=color, label=f"{label}: median, and 90% of the tokens")
    ax.set_xticks(range(len(names)), [_short(name) for name in names], rotation=40, ha="right", fontsize=8)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("RMS of a vector")
    ax.set_xlabel("the norms of the model, in order")
    ax.set_title(f"The stream grows from {first:.2f} to {last:.2f}; what the layers read does not")
    ax.legend(frameon=False)
    return fig


def _short(name: str) -> str:
    """ "layers.0.attention_norm" as "0 attention"."""
    return name.replace("layers.", "").replace("_norm", "").replace(".", " ")


def overflow(sizes: torch.Tensor, results: dict[str, torch.Tensor]) -> Picture:
    """RMS after the norm (sizes,) against the size of what came in, for each way of computing it."""
    alt = "RMS after the norm against the size of the numbers that came in. " + ", ".join(
        f"{name} is right up to {sizes[(values - 1).abs() < 0.1].max():.0f}" for name, values in results.items()
    )
    fig, ax = picture(height=2.9, alt=alt + ".")
    for (name, values), color, style in zip(results.items(), (BROKEN, OURS), ("o-", "s--")):
        ax.plot(sizes, values, style, color=color, label=name, markersize=4)
    ax.set_xscale("log")
    ax.set_xlabel("size of the numbers that come in")
    ax.set_ylabel("RMS that comes out")
    limit = float(torch.finfo(torch.float16).max) ** 0.5
    ax.axvline(limit, color=QUIET, linewidth=0.8)
    ax.annotate(f"√65504 = {limit:.0f}", (1.35 * limit, 0.5), color=INK, fontsize=9)
    ax.set_title(f"Squares taken in fp16 overflow from {limit:.0f} on; in fp32 they do not")
    ax.legend(frameon=False)
    return fig
