"""Figures of chapter 05: bends and gates, what neurons fire on, and what large weights cost when bits are few."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from minillama.teach.figures import BROKEN, INK, OTHER, OURS, QUIET, Picture, picture, ticks, words

BENDS: dict[str, tuple[Callable[..., torch.Tensor], str, str]] = {
    "ReLU": (F.relu, QUIET, "--"),
    "GELU": (F.gelu, OTHER, "-"),
    "SiLU": (F.silu, OURS, "-"),
}
MATRICES = {"w1": "#66ccee", "w3": OTHER, "w2": "#aa3377"}
WAYS = {"the matrix": (BROKEN, "o-"), "each row": (OURS, "s-"), "each group of 32": (OTHER, "^-")}  # what has a scale
MOST_DOTS = 800  # of a cloud: more are slow to draw, and hide each other


def _margins(left: float = 0.08, wide: float = 0.24) -> dict[str, float]:
    return dict(left=left, right=0.99, bottom=0.19, top=0.89, wspace=wide)


def slopes(x: torch.Tensor, name: str) -> torch.Tensor:
    """The derivative of a bend at every number of x."""
    at = x.detach().clone().requires_grad_()
    return torch.autograd.grad(BENDS[name][0](at).sum(), at)[0]


def _short(number: float) -> str:
    """Two decimals, and no minus before 0.00."""
    return f"{round(number, 2) + 0.0:.2f}"


def bends(at: float = -1.5) -> Picture:
    """ReLU, GELU and SiLU, and their derivatives, with the values at one number."""
    x = torch.linspace(-6, 4, 121)
    point = torch.tensor([float(at)])
    found = {name: (BENDS[name][0](point).item(), slopes(point, name).item()) for name in BENDS}
    alt = f"ReLU, GELU and SiLU from -6 to 4, and their derivatives. At {at:g}: " + ", ".join(
        f"{name} {_short(value)} with slope {_short(slope)}" for name, (value, slope) in found.items()
    )
    fig, (left, right) = picture(1, 2, height=2.9, alt=alt + ".", margins=_margins())
    for name, (bend, color, line) in BENDS.items():
        value, slope = found[name]
        left.plot(x, bend(x), line, color=color, label=f"{name}: {_short(value)}, slope {_short(slope)}")
        right.plot(x, slopes(x, name), line, color=color)
    colors = [color for _, color, _ in BENDS.values()]
    for ax, marks in zip((left, right), zip(*found.values())):
        ax.scatter([at] * len(colors), marks, color=colors, s=36, zorder=3)
        below_legend = ax is left and at < 1
        ax.axvline(at, ymax=0.6 if below_legend else 1, color=QUIET, linewidth=0.8)
        ax.axhline(0, color=INK, linewidth=0.6)
        ticks(ax, "x", [-6, -4, -2, 0, 2, 4], ["−6", "−4", "−2", "0", "2", "4"])
        ax.set_xlabel("x, what comes in")
    ticks(left, "y", [0, 2, 4], ["0", "2", "4"])
    ticks(right, "y", [0, 0.5, 1], ["0.0", "0.5", "1.0"])
    left.set_ylabel("what comes out")
    right.set_ylabel("derivative")
    left.legend(fontsize=9, loc="upper left", frameon=False)
    flat = [name for name, (_, slope) in found.items() if slope == 0]
    left.set_title(f"The bends at x = {at:g}")
    learns = f"{' and '.join(flat)} cannot learn here" if flat else "Every bend can learn here"
    right.set_title("ReLU has a corner here" if at == 0 else learns)
    return fig


def shut_share(shut: dict[str, torch.Tensor]) -> Picture:
    """Share of gates below 0, and of flat derivatives, layer by layer: name -> (L,)."""
    alt = "For each layer: " + "; ".join(
        f"{name}, {100 * share.min():.0f}% to {100 * share.max():.0f}%" for name, share in shut.items()
    )
    fig, ax = picture(height=2.7, alt=alt + ".")
    for (name, share), color, shift in zip(shut.items(), (BROKEN, OURS), (-0.2, 0.2)):
        ax.bar(torch.arange(len(share)) + shift, 100 * share, width=0.38, color=color, label=name)
    first = next(iter(shut.values()))
    ax.set_ylim(0, 100)
    ax.set_xticks(range(len(first)))
    ax.set_xlabel("layer")
    ax.set_ylabel("pairs of token and neuron (%)")
    ax.set_title(f"With ReLU, {100 * first.mean():.0f}% of the gates would be shut, and pass no gradient")
    ax.legend(frameon=False, loc="upper right")
    return fig


def gates(gate: Sequence[float] = (-1.0, 0.0, 1.0, 2.0, 3.0)) -> Picture:
    """A neuron's output against its value, one line for each gate: the slope is silu(gate)."""
    value = torch.linspace(-3, 3, 3)
    opened = {g: F.silu(torch.tensor(float(g))).item() for g in gate}
    alt = "A neuron's output against its value: a straight line through 0 for each gate. Slopes: " + ", ".join(
        f"{slope:.2f} at gate {g:g}" for g, slope in opened.items()
    )
    fig, ax = picture(height=3.1, alt=alt + ".")
    steps = max(len(opened) - 1, 1)
    heights = [3 * slope for slope in opened.values()]
    for i in range(1, len(heights)):  # labels keep a distance from the one below
        heights[i] = max(heights[i], heights[i - 1] + 1.4)
    for i, ((g, slope), height) in enumerate(zip(opened.items(), heights)):
        ax.plot(value, slope * value, color=OURS, alpha=0.25 + 0.75 * i / steps, linewidth=2)
        ax.annotate(
            f"  w1 x = {g:g}: slope {slope:.2f}", (3, height), color=INK, fontsize=9, va="center",
            annotation_clip=False,
        )  # fmt: skip
    ax.axhline(0, color=INK, linewidth=0.6)
    ax.set_xlim(-3, 3)
    ax.set_xlabel("value, w3 x")
    ax.set_ylabel("output, silu(w1 x) · w3 x")
    ax.set_title("The neuron is linear in its value, and its slope is silu(gate)")
    return fig


def gate(gate: float = 1.0, value: float = 1.0) -> Picture:
    """One neuron: where its gate stands on SiLU, and the line that this gate makes of it."""
    slope = F.silu(torch.tensor(float(gate))).item()
    alt = f"Gate {gate:g}: SiLU is {slope:.2f}. The value {value:g} comes out as {slope * value:.2f}."
    fig, (left, right) = picture(1, 2, height=2.7, alt=alt, margins=_margins())
    x = torch.linspace(-6, 6, 121)
    left.plot(x, F.silu(x), color=OURS)
    left.plot([gate], [slope], "o", color=BROKEN, markersize=8)
    left.set_xticks([-6, -3, 0, 3, 6])
    left.set_yticks([0, 3, 6])
    left.set_xlabel("gate, w1 x")
    left.set_ylabel("silu(w1 x)")
    left.set_title(f"The gate is {gate:g}: open by {slope:.2f}")
    span = torch.tensor([-3.0, 3.0])
    right.plot(span, slope * span, color=OURS, linewidth=2)
    right.plot([value], [slope * value], "o", color=BROKEN, markersize=8)
    right.set_ylim(-15, 15)
    right.set_xticks([-3, 0, 3])
    right.set_yticks([-15, 0, 15])
    right.set_xlabel("value, w3 x")
    right.set_ylabel("output")
    right.set_title(f"{slope:.2f} × {value:g} = {slope * value:.2f}")
    for ax in (left, right):
        ax.axhline(0, color=INK, linewidth=0.6)
    return fig


def strongest(
    fires: torch.Tensor, ids: torch.Tensor, size: int, least: int = 3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How one neuron treats each piece: fires (T,), ids (T,) -> mean (V,), share of the sum of squares (V,), ranking.

    Pieces that were met fewer than `least` times rank last.
    """
    count = torch.bincount(ids, minlength=size)
    mean = torch.zeros(size).index_add_(0, ids, fires) / count.clamp(min=1)
    square = torch.zeros(size).index_add_(0, ids, fires.pow(2))
    order = (mean.abs() * (count >= least)).argsort(descending=True)
    return mean, square / square.sum(), order


def _bars(ax: Axes, mean: torch.Tensor, order: torch.Tensor, pieces: Sequence[str], most: int, quick: bool) -> None:
    top = order[:most].tolist()
    ax.barh(range(len(top)), mean[top], color=[OURS if mean[i] > 0 else OTHER for i in top])
    names = words([pieces[i] for i in top])
    if quick:
        ticks(ax, "y", range(len(top)), names)
    else:
        ax.set_yticks(range(len(top)), names, fontsize=9)
    ax.invert_yaxis()
    ax.axvline(0, color=INK, linewidth=0.6)


def neuron(
    gate: torch.Tensor,
    value: torch.Tensor,
    ids: torch.Tensor,
    raises: torch.Tensor,
    pieces: Sequence[str],
    layer: int = 5,
    number: int = 0,
) -> Picture:
    """The pieces on which one neuron fires most, how gate and value bring that about, and what it makes likelier.

    gate, value: (L, T, F) before SiLU; ids: (T,); raises: (L, F, V), the logits that a neuron adds to when it is > 0.
    """
    opened, passed = F.silu(gate[layer, :, number]), value[layer, :, number]
    fires = opened * passed
    mean, share, order = strongest(fires, ids, len(pieces))
    first = int(order[0])
    sign = 1 if mean[first] > 0 else -1
    then = words([pieces[i] for i in (sign * raises[layer, number]).topk(5).indices.tolist()])
    name = words([pieces[first]])[0]
    alt = (
        f"Layer {layer}, neuron {number} fires most on {', '.join(words([pieces[i] for i in order[:6].tolist()]))}; "
        f"{name} alone has {100 * share[first]:.0f}% of its square. It then makes likelier: {', '.join(then)}."
    )
    fig, (left, right) = picture(1, 2, height=3.1, alt=alt, margins=_margins(left=0.13))
    _bars(left, mean, order, pieces, 8, quick=True)
    left.xaxis.set_major_locator(MaxNLocator(4))
    left.set_xlabel("mean of silu(w1 x) · w3 x")
    left.set_title(f"Layer {layer}, neuron {number}: fires on {name}")
    rest = (ids != first).nonzero()[:, 0]
    rest = rest[:: max(1, -(-len(rest) // MOST_DOTS))]
    there = (ids == first).nonzero()[:, 0][:200]
    right.plot(opened[rest], passed[rest], ".", color=QUIET, alpha=0.4, markersize=3, label="any other piece")
    right.plot(opened[there], passed[there], ".", color=OURS if sign > 0 else OTHER, markersize=6, label=name)
    right.axhline(0, color=INK, linewidth=0.6)
    right.axvline(0, color=INK, linewidth=0.6)
    right.xaxis.set_major_locator(MaxNLocator(4))
    right.yaxis.set_major_locator(MaxNLocator(4))
    right.set_xlabel("silu(w1 x)")
    right.set_ylabel("value, w3 x")
    right.set_title(f"and raises {' '.join(then[:4])}", fontsize=10)
    right.legend(frameon=False, fontsize=8, loc="upper right")
    return fig


def neurons(
    gate: torch.Tensor, value: torch.Tensor, ids: torch.Tensor, pieces: Sequence[str], chosen: Sequence[tuple[int, int]]
) -> Picture:
    """The pieces on which some neurons fire most, one panel each: chosen (layer, neuron)."""
    found = []
    for layer, number in chosen:
        fires = F.silu(gate[layer, :, number]) * value[layer, :, number]
        mean, share, order = strongest(fires, ids, len(pieces))
        found.append((layer, number, mean, share, order))
    names = [words([pieces[int(order[0])]])[0] for *_, order in found]
    alt = "What neurons fire on: " + "; ".join(
        f"layer {layer}, neuron {number}: {', '.join(words([pieces[i] for i in order[:4].tolist()]))}"
        for layer, number, _, _, order in found
    )
    fig, axes = picture(2, -(-len(found) // 2), height=5.1, alt=alt + ".")
    for ax, name, (layer, number, mean, share, order) in zip(axes.flat, names, found):
        _bars(ax, mean, order, pieces, 6, quick=False)
        ax.set_title(f"layer {layer}, neuron {number}:\n{100 * share[order[0]]:.0f}% on {name}", fontsize=9)
    most = max(100 * share[order[0]] for *_, share, order in found)
    fig.suptitle(f"Words have their neurons: of these, one spends {most:.0f}% on a single piece", fontsize=11)
    for ax in axes[-1]:
        ax.set_xlabel("mean of silu(w1 x) · w3 x", fontsize=9)
    return fig


def near_zero(fires: torch.Tensor, part: float = 0.1) -> Picture:
    """Share of neurons that stay within `part` of their layer's RMS: fires (L, T, F)."""
    rms = fires.pow(2).mean((1, 2), keepdim=True).sqrt()
    share = 100 * (fires.abs() < part * rms).float().mean((1, 2))
    bell = 100 * torch.erf(torch.tensor(part / 2**0.5)).item()
    alt = (
        f"Share of neurons within {part:g} RMS of zero: "
        + ", ".join(f"layer {i} {s:.0f}%" for i, s in enumerate(share))
        + f"; of numbers drawn from a bell curve {bell:.0f}%."
    )
    fig, ax = picture(height=2.7, alt=alt)
    ax.bar(range(len(share)), share, color=OURS, width=0.6)
    ax.axhline(bell, color=QUIET, linewidth=1.2)
    ax.set_xlim(-0.6, len(share) + 0.6)  # room for the words
    ax.set_xticks(range(len(share)))
    ax.annotate(f"a bell curve: {bell:.0f}%", (len(share) + 0.6, bell + 1), color=INK, fontsize=9, ha="right")
    ax.set_xlabel("layer")
    ax.set_ylabel(f"within {part:g} RMS of zero (%)")
    ax.set_title(f"{share.min():.0f}% to {share.max():.0f}% of the neurons say next to nothing to a token")
    return fig


def kept(numbers: Sequence[int], perplexities: Sequence[float], intact: float) -> Picture:
    """Perplexity when each token keeps only its k strongest neurons."""
    alt = "Perplexity with the k strongest neurons of each token and layer: " + ", ".join(
        f"{k}: {p:.3f}" for k, p in zip(numbers, perplexities)
    )
    near = min(k for k, p in zip(numbers, perplexities) if p < 1.01 * intact)
    fig, ax = picture(height=2.8, alt=alt + ".")
    ax.axhline(intact, color=QUIET, linewidth=1, label=f"all of them: {intact:.3f}")
    ax.plot(numbers, perplexities, "o-", color=OURS, label="the k strongest, others set to 0")
    ax.set_xscale("log", base=2)
    ax.set_xticks(numbers, [str(k) for k in numbers])
    ax.set_xlabel("k, neurons kept for each token in each layer")
    ax.set_ylabel("held-out perplexity")
    ax.set_title(f"{near} of {max(numbers)} neurons are within 1% of the whole block")
    ax.legend(frameon=False)
    return fig


def outliers(ratios: dict[str, torch.Tensor], chance: float) -> Picture:
    """Largest weight over RMS, row by row: name -> (L, rows); chance: the same for rows of random numbers."""
    worst = {name: r.max().item() for name, r in ratios.items()}
    most = max(worst, key=lambda name: worst[name])
    alt = (
        "Largest weight of a row over the row's RMS, in each layer. "
        + ", ".join(f"{name}: median {r.median():.1f}, highest {r.max():.1f}" for name, r in ratios.items())
        + f". Rows of random numbers: {chance:.1f}."
    )
    fig, ax = picture(height=3.0, alt=alt)
    for shift, (name, r) in zip((-0.22, 0.0, 0.22), ratios.items()):
        layers = torch.arange(len(r)) + shift
        ax.scatter(
            layers[:, None].expand_as(r), r, s=6, color=MATRICES[name], alpha=0.35, linewidths=0,
            label=f"{name}: at most {worst[name]:.1f}",
        )  # fmt: skip
        ax.plot(layers, r.median(1).values, "_", color=INK, markersize=11, markeredgewidth=1.6, zorder=3)
    ax.axhline(chance, color=QUIET, linewidth=0.8, zorder=0)
    ax.set_ylim(bottom=0)
    ax.set_xticks(range(len(ratios[most])))
    ax.set_xlabel("layer (a dot is a row, a dash the median row; the line: random numbers)")
    ax.set_ylabel("largest weight / RMS")
    ax.set_title(f"The furthest weight stands {worst[most]:.1f} RMS out, in {most}")
    ax.legend(frameon=False, loc="upper left", markerscale=2, ncols=3, fontsize=9)
    ax.set_ylim(top=1.25 * worst[most])
    return fig


def scales(errors: dict[str, dict[str, torch.Tensor]], bits: int) -> Picture:
    """Rounding error with scales of three sizes: matrix -> way -> (L,), in parts of the weights' RMS."""
    alt = (
        f"Rounding error at {bits} bits, in percent of the weights' RMS, largest over the layers, one scale for: "
        + "; ".join(
            f"{name}: " + ", ".join(f"{way} {100 * e.max():.0f}" for way, e in ways.items())
            for name, ways in errors.items()
        )
    )
    fig, axes = picture(1, len(errors), height=3.0, alt=alt + ".", sharey=True)
    for ax, (name, ways) in zip(axes, errors.items()):
        for way, error in ways.items():
            color, line = WAYS[way]
            ax.plot(range(len(error)), 100 * error, line, color=color, label=way, markersize=5)
        ax.set_title(name)
        ax.set_xlabel("layer")
        ax.set_xticks(range(len(error)))
    axes[0].set_ylim(bottom=0)
    times = {name: (ways["the matrix"] / ways["each row"]).max() for name, ways in errors.items()}
    most = max(times, key=lambda name: times[name])
    fig.suptitle(
        f"In {most}, one scale for the matrix errs up to {times[most]:.1f} times as much as one for each row",
        fontsize=11,
    )
    axes[0].set_ylabel(f"error at {bits} bits (% of RMS)")
    axes[0].legend(frameon=False, fontsize=9, title="one scale for", title_fontsize=9, alignment="left")
    return fig


def planted(factors: Sequence[int], perplexities: dict[str, Sequence[float]], without: float, bits: int) -> Picture:
    """Perplexity against the size of one row of w3, for scales of three sizes; without: with no block at all."""
    first = perplexities["the matrix"]
    alt = f"Perplexity at {bits} bits when a row of w3 is larger by a factor, one scale for: " + "; ".join(
        f"{way}: " + ", ".join(f"{f} {p:.4g}" for f, p in zip(factors, values)) for way, values in perplexities.items()
    )
    fig, ax = picture(height=3.0, alt=alt + ".")
    for way, values in perplexities.items():
        color, line = WAYS[way]
        wide = 4 if way == "each row" else 1.5  # it lies under another
        ax.plot(factors, values, line, color=color, label=way, markersize=5, linewidth=wide)
    ax.axhline(without, color=QUIET, linewidth=1)
    ax.annotate("no block at all", (factors[0], without), color=INK, fontsize=9, va="bottom")
    ax.set_xscale("log", base=4)
    ax.set_yscale("log")
    ax.set_ylim(top=3 * without)
    ax.set_xticks(factors, [f"× {f}" for f in factors])
    ax.set_xlabel("one row of w3, made larger by")
    ax.set_ylabel(f"perplexity at {bits} bits")
    lost = next((f for f, p in zip(factors, first) if p > 2 * first[0]), None)
    title = f"One row × {lost}, and a scale for the whole matrix loses the others" if lost else "Every scale holds"
    ax.set_title(title)
    ax.legend(frameon=False, loc="center left", title="one scale for", alignment="left")
    return fig


def rounding(w: torch.Tensor, times: int = 16, bits: int = 4, row: int = 0) -> Picture:
    """An ordinary row of w (out, in), rounded on the matrix's scale and on its own, another being `times` as large."""
    most = 2 ** (bits - 1) - 1
    largest = max(w.abs().max().item(), times * w[-1].abs().max().item())
    ways = {"the matrix": largest / most, "the row": w[row].abs().max().item() / most}
    found = {name: (w[row] / scale).round() for name, scale in ways.items()}
    alt = f"A row at {bits} bits, another being {times} times as large: " + ", ".join(
        f"on the scale of {name} the number of its values is {len(q.unique())}" for name, q in found.items()
    )
    fig, axes = picture(1, 2, height=2.9, alt=alt + ".", margins=_margins(left=0.11, wide=0.08))
    for ax, (name, q), color in zip(axes, found.items(), (BROKEN, OURS)):
        back, steps = q * ways[name], len(q.unique())
        error = ((back - w[row]).pow(2).mean().sqrt() / w[row].pow(2).mean().sqrt()).item()
        ax.plot(w[row], w[row], color=QUIET, linewidth=0.8)
        ax.plot(w[row], back, ".", color=color, markersize=5)
        ax.set_title(f"scale of {name}: {steps} value{'s' * (steps > 1)}, error {100 * error:.0f}%", fontsize=10)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.set_xlabel("weight")
    span = 1.1 * w[row].abs().max().item()
    for ax in axes:
        ax.set_ylim(-span, span)
        ax.yaxis.set_major_locator(MaxNLocator(4))
    axes[1].set_yticklabels([])
    axes[0].set_ylabel("after rounding")
    return fig
