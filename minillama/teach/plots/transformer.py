"""Figures of chapter 06: what each layer adds to the stream, and what the stream would say halfway."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.patches import Rectangle

from minillama.teach.figures import BROKEN, INK, KEY, OTHER, OURS, QUIET, SERIES, VALUE, Picture, picture, words


def block_diagram() -> Picture:
    """The block as a drawing: the stream straight through, and two layers that read from it and add to it."""
    alt = (
        "A straight line from x to the output, the stream. A branch leaves it, passes attention_norm and attention, "
        "and is added back; a second leaves after that, passes ffn_norm and feed_forward, and is added back."
    )
    fig, ax = picture(height=2.4, alt=alt)
    ax.set_xlim(0, 15)
    ax.set_ylim(0, 4)
    ax.axis("off")

    def arrow(start: tuple[float, float], end: tuple[float, float], color: str = INK, linewidth: float = 1.2) -> None:
        style = dict(arrowstyle="-|>", mutation_scale=11, color=color, linewidth=linewidth, shrinkA=0, shrinkB=0)
        ax.annotate("", end, start, arrowprops=style)

    arrow((0.5, 0.8), (14.5, 0.8), QUIET, 3)
    ax.text(0.4, 0.8, "x", ha="right", va="center", fontsize=12)
    ax.text(14.6, 0.8, "out", ha="left", va="center", fontsize=11)
    ax.text(7.5, 0.25, "h", ha="center", va="center", fontsize=12)
    for start, norm, layer, color in (
        (1.2, "attention_norm", "attention", KEY),
        (8.2, "ffn_norm", "feed_forward", VALUE),
    ):
        ax.plot([start, start], [0.8, 3.0], color=INK, linewidth=1.2)
        arrow((start, 3.0), (start + 0.5, 3.0))
        for x, text, shade in ((start + 0.5, norm, QUIET), (start + 3.0, layer, color)):
            ax.add_patch(Rectangle((x, 2.5), 2.1, 1.0, facecolor=shade, alpha=0.25, edgecolor=shade))
            ax.text(x + 1.05, 3.0, text, ha="center", va="center", fontsize=8)
        arrow((start + 2.6, 3.0), (start + 3.0, 3.0))
        ax.plot([start + 5.1, start + 5.6], [3.0, 3.0], color=INK, linewidth=1.2)
        arrow((start + 5.6, 3.0), (start + 5.6, 1.12))
        ax.text(start + 5.6, 0.8, "+", ha="center", va="center", fontsize=13, bbox=dict(boxstyle="circle", fc="white"))
    ax.set_title("The parts read the stream and add to it; none stands in its way", color=INK, fontsize=11)
    return fig


def what_layers_add(names: Sequence[str], added: torch.Tensor, stream: torch.Tensor) -> Picture:
    """RMS of what each layer adds, as a share of the stream it is added to: added, stream (layers, tokens)."""
    share = (added / stream).median(-1).values
    most = names[int(share.argmax())]
    alt = "What each layer adds, as a share of the stream's size before it: " + ", ".join(
        f"{name} {100 * value:.0f}%" for name, value in zip(names, share.tolist())
    )
    fig, ax = picture(height=3.0, alt=alt + ".")
    colors = [KEY if name.endswith("attention") else VALUE for name in names]
    ax.bar(range(len(names)), 100 * share, color=colors)
    ax.bar(0, 0, color=KEY, label="attention")
    ax.bar(0, 0, color=VALUE, label="feed-forward")
    ax.set_xticks([i + 0.5 for i in range(0, len(names), 2)], [f"layer {i}" for i in range(len(names) // 2)])
    ax.legend(frameon=False, loc="upper center", ncols=2)
    ax.set_ylim(0, 118 * float(share.max()))
    ax.set_ylabel("size of what is added\n(% of the stream)")
    ax.set_title(f"{most} changes the stream the most, by {100 * share.max():.0f}% of its size")
    return fig


def without_a_layer(perplexities: Sequence[float], intact: float) -> Picture:
    """Held-out perplexity with each layer left out in turn."""
    worst = max(range(len(perplexities)), key=perplexities.__getitem__)
    alt = f"Perplexity is {intact:.2f} intact, and without layer " + ", ".join(
        f"{i}: {value:.1f}" for i, value in enumerate(perplexities)
    )
    fig, ax = picture(height=2.7, alt=alt + ".")
    ax.bar(
        range(len(perplexities)),
        perplexities,
        color=[BROKEN if i == worst else QUIET for i in range(99)][: len(perplexities)],
    )
    ax.axhline(intact, color=OURS, linewidth=1.2)
    ax.set_xlim(-0.6, len(perplexities))
    ax.set_xticks(range(len(perplexities)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.text(len(perplexities) - 0.05, intact * 1.1, "intact", color=OURS, va="bottom", ha="right", fontsize=9)
    for i, value in enumerate(perplexities):
        ax.text(i, value, f"{value:.1f}", ha="center", va="bottom", fontsize=9, color=INK)
    ax.set_yscale("log")
    ax.set_ylim(1, 3 * max(perplexities))
    ax.set_xlabel("the layer that is left out")
    ax.set_ylabel("held-out perplexity")
    ax.set_title(f"Layer {worst} is missed the most")
    return fig


def training(histories: dict[str, Sequence[float]], no_better: float) -> Picture:
    """Loss against steps of training, one line for each kind of block; the title tells where they end.

    no_better: the loss of one who knows nothing but how often each piece occurs.
    """
    ends = {name: sum(losses[-10:]) / 10 for name, losses in histories.items()}
    said = ", ".join(f"{name} from {losses[0]:.2f} to {ends[name]:.2f}" for name, losses in histories.items())
    fig, ax = picture(
        height=2.8, alt=f"Loss in nats per token while training: {said}; frequencies alone give {no_better:.2f}."
    )
    for (name, losses), color in zip(histories.items(), (OURS, BROKEN)):
        ax.plot(range(1, len(losses) + 1), losses, color=color, label=name)
    ax.axhline(no_better, color=INK, linewidth=1, linestyle=":")
    ax.text(1, no_better, f"frequencies alone: {no_better:.2f}", color=INK, fontsize=9, va="top")
    ax.set_xlabel("step of training")
    ax.set_ylabel("loss (nats per token)")
    ax.set_title(", ".join(f"{name} ends at {end:.1f}" for name, end in ends.items()))
    ax.legend(frameon=False)
    return fig


def lens(probs: torch.Tensor, guesses: Sequence[Sequence[str]], pieces: Sequence[str]) -> Picture:
    """What each layer's stream would say comes next: probs (L+1, T) of its first guess, and the guess itself."""
    L, T = probs.shape
    settled = sum(guesses[-2][t] == guesses[-1][t] for t in range(T))
    alt = (
        f"A grid of {L} depths by {T} tokens with the likeliest next piece in each cell, shaded by its probability. "
        f"One layer before the end, {settled} of {T} are what the last layer says."
    )
    fig, ax = picture(height=0.36 * L + 1.3, alt=alt)
    ax.imshow(probs, cmap="Blues", vmin=0, vmax=1.9, aspect="auto", origin="lower")
    for i in range(L):
        for t in range(T):
            guess = words([guesses[i][t]])[0]
            guess = f"“{guess.strip('·')}”" if len(guess) < 3 and not guess.strip("·").isalnum() else guess
            ax.text(t, i, guess, ha="center", va="center", fontsize=9, color=INK)
    ax.set_xticks(range(T), words(list(pieces)), rotation=40, ha="right", fontsize=9)
    ax.set_yticks(range(L), ["embedding", *(f"after layer {i}" for i in range(L - 1))], fontsize=8)
    ax.set_xlabel("the token that was read")
    ax.set_title(f"The last layer changes the first guess for {T - settled} of {T} tokens")
    ax.spines[["left", "bottom"]].set_visible(False)
    return fig


def candidates(probs: torch.Tensor, pieces: Sequence[str], after: str, most: int = 5) -> Picture:
    """Through the layers at one position: probs (L+1, V); the pieces that are likeliest at the end."""
    best = probs[-1].topk(most).indices.tolist()
    name = words([pieces[best[0]]])[0].strip("·")
    depth = int((probs.argmax(-1) != best[0]).nonzero().max()) + 1 if (probs.argmax(-1) != best[0]).any() else 0
    title = (
        f"After “{after}”: “{name}” leads from the embedding on"
        if depth == 0
        else f"After “{after}”: only the last layer puts “{name}” first"
        if depth == len(probs) - 1
        else f"After “{after}”: “{name}” leads for good after layer {depth - 1}"
    )
    alt = f"Probability through the layers after “{after}”. At the end: " + ", ".join(
        f"{pieces[i]} {100 * probs[-1, i]:.0f}%" for i in best
    )
    fig, ax = picture(height=2.9, alt=alt + ".", margins=dict(left=0.08, right=0.82, bottom=0.17, top=0.91))
    for i, color, marker in zip(best, SERIES, "osD^v"):
        label = words([pieces[i]])[0].strip("·") or "·"
        ax.plot(range(len(probs)), 100 * probs[:, i], marker=marker, markersize=5, color=color, label=label)
    ax.set_xticks(range(len(probs)), ["emb.", *map(str, range(len(probs) - 1))])
    ax.set_xlabel("read after layer")
    ax.set_ylabel("probability (%)")
    ax.set_ylim(-3, 103)
    ax.set_title(title)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return fig


def by_depth(values: Sequence[float]) -> Picture:
    """Held-out perplexity of the lens at each depth."""
    alt = "Held-out perplexity read after each layer: " + ", ".join(f"{v:.3g}" for v in values)
    fig, ax = picture(height=2.6, alt=alt + ".")
    ax.plot(range(len(values)), values, "o-", color=OURS)
    for i, value in enumerate(values):
        ax.annotate(
            f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
            (i, value),
            textcoords="offset points",
            xytext=(0, 7),
            ha="center",
            fontsize=9,
        )
    ax.set_yscale("log")
    ax.set_ylim(1, 4 * max(values))
    ax.set_xticks(range(len(values)), ["embedding", *(f"layer {i}" for i in range(len(values) - 1))])
    ax.set_ylabel("perplexity")
    ax.set_xlabel("read after")
    ax.set_title(f"Each layer knows more: from {values[0]:,.0f} to {values[-1]:.2f}")
    return fig


def shares(names: Sequence[str], parts: dict[str, Sequence[float]]) -> Picture:
    """Bars that add up to 100%: for each name, the share of each part."""
    said = "; ".join(f"{part}: " + ", ".join(f"{n} {v:.0f}%" for n, v in zip(names, vs)) for part, vs in parts.items())
    fig, ax = picture(height=0.5 * len(names) + 1.2, alt=f"Shares of the operations. {said}.")
    left = [0.0] * len(names)
    for (part, values), color in zip(parts.items(), (KEY, VALUE, OURS, OTHER)):
        ax.barh(list(names), values, left=left, color=color, label=part)
        for y, (x, value) in enumerate(zip(left, values)):
            if value >= 3:
                ax.text(x + value / 2, y, f"{value:.0f}%", ha="center", va="center", fontsize=9, color="white")
        left = [a + b for a, b in zip(left, values)]
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the operations (%)")
    smallest = min(sum(values[i] for part, values in parts.items() if "values" not in part) for i in range(len(names)))
    ax.set_title(f"Matrices are {smallest:.0f}% of the operations, or more")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return fig
