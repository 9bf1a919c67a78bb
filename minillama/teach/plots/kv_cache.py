"""Figures of chapter 04: what is read again without a cache, how one fills, what a mask of the wrong shape hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from minillama.args import ModelArgs
from minillama.memory import gb, kv_cache_bytes, weight_bytes
from minillama.teach.figures import BROKEN, DPI, INK, KEY, OTHER, OURS, QUIET, Picture, picture

EMPTY = "#eeeeee"
FILLER = "#c4c4c4"
NOW = OTHER  # written in this step


def _image(states: torch.Tensor, colors: Sequence[str]) -> torch.Tensor:
    """Numbers of colours (rows, columns) as an image (rows, columns, 3)."""
    return torch.tensor([to_rgb(color) for color in colors])[states]


def readings(read: Mapping[str, Sequence[int]]) -> Picture:
    """What each pass reads, for ways of generating the same text: the tokens that each of its passes was given."""
    names = list(read)
    totals = {name: sum(counts) for name, counts in read.items()}
    share = 1 - totals[names[-1]] / totals[names[0]]
    alt = "Passes downwards, positions to the right, a mark where a pass reads a token. " + ", ".join(
        f"{name} {total:,} readings" for name, total in totals.items()
    )
    fig, axes = picture(1, len(names), height=3.0, alt=alt + ".", sharey=True)
    for ax, name in zip(axes, names):
        counts = read[name]
        end = max(max(counts), counts[0] + len(counts) - 1)
        states = torch.zeros(len(counts), end, dtype=torch.long)
        known = 0
        for step, count in enumerate(counts):
            last = counts[0] + step
            states[step, last - count : last] = 1
            states[step, last - count : known] = 2
            known = max(known, last)
        ax.imshow(_image(states, ["#ffffff", OURS, BROKEN]), aspect="auto", interpolation="nearest")
        ax.set_title(f"{name}: {totals[name]:,} readings", fontsize=10)
        ax.set_xlabel("position of the token")
    axes[0].set_ylabel("pass")
    handles = [Patch(color=OURS, label="read for the first time"), Patch(color=BROKEN, label="read again")]
    axes[-1].legend(handles=handles, frameon=False, loc="upper right", fontsize=9)
    fig.suptitle(f"{100 * share:.0f}% of the readings without a cache are repetitions", fontsize=11, color=INK)
    return fig


@dataclass
class Filling:
    """How a cache filled: sizes of the keys in every slot after each step, (steps, L, B, S), 0 where it is empty.

    lengths: of the prompts; texts: of each row after each step.
    """

    sizes: torch.Tensor
    lengths: list[int]
    texts: list[list[str]]

    def states(self, step: int) -> torch.Tensor:
        """0 empty, 1 kept from before, 2 written in this step, 3 a filler: (B, L, S)."""
        now = self.sizes[step]
        before = self.sizes[step - 1] if step else torch.zeros_like(now)
        states = (now > 0).long()
        states[now != before] = 2
        for row, length in enumerate(self.lengths):
            filler = states[:, row, length + step :]
            filler[filler > 0] = 3
        return states.transpose(0, 1)


def filling(seen: Filling, step: int) -> Picture:
    """The cells of all rows and layers after one step, 0 being the prefill."""
    L, B, S = seen.sizes.shape[1:]
    cell = (690 // S, 12)  # pixels
    high = B * (L + 2) * cell[1]
    fig, ax = picture(height=(high + 96) / DPI, alt=_filling_alt(seen, step))
    _draw_cells(ax, seen, step, 2, cell, (56, 68))
    ax.set_xlabel("slot = position of the token")
    ax.set_title(_filling_title(seen, step))
    for row in range(B):
        text = seen.texts[step][row]
        text = text if len(text) <= 110 else f"... {text[-106:].partition(' ')[2]}"
        ax.text(-0.4, row * (L + 2) + 0.45, text, fontsize=8, color=INK, va="center")
    _cell_legend(fig)
    return fig


def filling_steps(seen: Filling, steps: Sequence[int]) -> Picture:
    """`filling` at several steps, small, two beside each other."""
    L, B, S = seen.sizes.shape[1:]
    cell = (330 // S, 8)  # pixels
    high, lines = B * (L + 1) * cell[1], -(-len(steps) // 2)
    height = 90 + lines * (high + 30)
    fig, axes = picture(
        lines, 2, height=height / DPI, sharey=True,
        alt=f"The cells of the cache at {len(steps)} steps. " + " ".join(_filling_alt(seen, step) for step in steps),
    )  # fmt: skip
    for i, (ax, step) in enumerate(zip(axes.flat, steps)):
        corner = (56 + (i % 2) * 350, height - 50 - high - (i // 2) * (high + 30))
        _draw_cells(ax, seen, step, 1, cell, corner)
        now = int((seen.states(step) == 2).sum())
        ax.set_title(f"{'prefill' if step == 0 else f'decode, step {step}'}: {now} cells", fontsize=9, pad=-3)
        if i // 2 + 1 < lines:
            ax.set_xticks([])
        else:
            ax.set_xlabel("slot = position of the token", fontsize=9)
    first, later = (int((seen.states(step) == 2).sum()) for step in (0, steps[-1]))
    fig.suptitle(
        f"{first} cells of keys at once, fillers not counted; then {later} a step, one in each row and layer",
        fontsize=11, color=INK, y=1 - 12 / height, va="center",
    )  # fmt: skip
    _cell_legend(fig)
    return fig


def _cell_legend(fig: Picture) -> None:
    named = {
        NOW: "written in this step", KEY: "kept from before", FILLER: "a filler's, hidden by the mask", EMPTY: "empty",
    }  # fmt: skip
    handles = [Patch(color=color, label=label) for color, label in named.items()]
    fig.legend(handles=handles, frameon=False, fontsize=8, ncols=4, loc="lower center")


def _draw_cells(ax: Axes, seen: Filling, step: int, lines: int, cell: tuple[int, int], corner: tuple[int, int]) -> None:
    """One image, a cell of exactly `cell` pixels, with its lower left corner at pixel `corner` of the figure.

    lines: white ones above each row of the batch, room for its text. Lines between cells are a part of the image: as
    grid lines of the axes they would take most of the time.
    """
    states = seen.states(step)
    B, L, S = states.shape
    cells = torch.full((B, L + lines, S), 4)
    cells[:, lines:] = states
    image = _image(cells.flatten(0, 1), [EMPTY, KEY, NOW, FILLER, "#ffffff"])  # (lines, S, 3)
    image = image.repeat_interleave(cell[1], 0).repeat_interleave(cell[0], 1)
    image[cell[1] - 1 :: cell[1]] = 1.0
    image[:, cell[0] - 1 :: cell[0]] = 1.0
    high, wide = image.shape[:2]
    ax.imshow(image, aspect="auto", interpolation="nearest", extent=(-0.5, S - 0.5, B * (L + lines) - 0.5, -0.5))
    fig: Any = ax.figure
    fig.set_layout_engine(None)  # with one, everything is drawn twice
    width, height = fig.get_size_inches() * DPI
    ax.set_position((corner[0] / width, corner[1] / height, wide / width, high / height))
    middle = [row * (L + lines) + lines + (L - 1) / 2 for row in range(B)]
    ax.set_yticks(middle, [f"row {row}\n{L} layers" if lines > 1 else f"row {row}" for row in range(B)], fontsize=8)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)


def _filling_title(seen: Filling, step: int) -> str:
    L, B, _ = seen.sizes.shape[1:]
    states = seen.states(step)
    now = int((states == 2).sum())
    if step == 0:
        return f"Prefill: one pass writes {now} cells of keys, {B} prompts in {L} layers"
    *most, last = [str(length + step - 1) for length in seen.lengths]
    slots = f"slots {', '.join(most)} and {last}" if most else f"slot {last}"
    return f"Decode, step {step}: {now} new cells, in {slots}; {int((states == 1).sum())} are kept"


def _filling_alt(seen: Filling, step: int) -> str:
    filled = [int((row[0] > 0).sum() - (row[0] == 3).sum()) for row in seen.states(step)]
    return f"Step {step}: the rows have {', '.join(map(str, filled))} slots filled in every layer."


def looks(masks: Mapping[str, torch.Tensor], start: int) -> Picture:
    """Masks (T, S) of a chunk behind `start` tokens, coloured by what is right."""
    T, S = next(iter(masks.values())).shape
    right = torch.arange(S) <= torch.arange(start, start + T)[:, None]
    lost = {name: int((right & ~mask).sum()) for name, mask in masks.items()}
    alt = f"Masks of {T} queries behind {start} cached tokens. " + " ".join(
        f"{name}: {n} of {int(right.sum())} looks are lost." for name, n in lost.items()
    )
    worst = max(lost, key=lambda name: lost[name])
    fig, axes = picture(1, len(masks), height=0.9 + 0.36 * T, alt=alt, sharey=True)
    for ax, (name, mask) in zip(axes, masks.items()):
        states = mask.long()  # 0 hidden, 1 seen, 2 wrongly hidden, 3 wrongly seen
        states[right & ~mask] = 2
        states[~right & mask] = 3
        ax.imshow(_image(states, [EMPTY, OURS, BROKEN, OTHER]), aspect="auto", interpolation="nearest")
        ax.set_xticks(torch.arange(S + 1).sub(0.5).tolist(), minor=True)
        ax.set_yticks(torch.arange(T + 1).sub(0.5).tolist(), minor=True)
        ax.grid(which="minor", color="white", linewidth=2)
        ax.tick_params(which="both", length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
        ax.set_xticks(range(S), [str(s) for s in range(S)])
        ax.set_yticks(range(T), [str(start + t) for t in range(T)])
        ax.set_xlabel("position of the key")
        ax.set_title(name, fontsize=10)
    axes[0].set_ylabel("position\nof the query")
    handles = [Patch(color=OURS, label="may look"), Patch(color=BROKEN, label="hidden, and should not be")]
    fig.legend(handles=handles, frameon=False, ncols=2, loc="outside lower center", fontsize=9)
    fig.suptitle(
        f"{worst.capitalize()} hides {lost[worst]} of the {int(right.sum())} keys that may be seen",
        fontsize=11, color=INK,
    )  # fmt: skip
    return fig


def time_per_token(positions: Sequence[int], seconds: Mapping[str, Sequence[float]]) -> Picture:
    """Seconds for one more token against its position, for each way of making it."""
    (slow, slowest), (fast, fastest) = seconds.items()
    ratio = slowest[-1] / fastest[-1]
    alt = (
        f"Milliseconds for one more token against its position, on this machine: {slow} from {1e3 * slowest[0]:.1f} to "
        f"{1e3 * slowest[-1]:.1f}, {fast} from {1e3 * fastest[0]:.1f} to {1e3 * fastest[-1]:.1f}."
    )
    fig, ax = picture(height=3.0, alt=alt)
    for (name, times), color, style in zip(seconds.items(), (BROKEN, OURS), ("o-", "s-")):
        ax.plot(positions, [1e3 * t for t in times], style, color=color, label=name, markersize=4)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("position of the token")
    ax.set_ylabel("time for it (ms)")
    ax.set_title(f"At position {positions[-1]}, a token without a cache takes {ratio:.0f} times as long")
    ax.legend(frameon=False)
    return fig


def memory(batch_size: int) -> Picture:
    """The cache of 7B and 70B, and of 70B without shared kv heads, against the tokens in each row; 16-bit numbers."""
    seven, seventy = ModelArgs.preset("7B"), ModelArgs.preset("70B")
    every_head = ModelArgs.preset("70B")
    every_head.n_kv_heads = every_head.n_heads
    tokens = torch.arange(0, 4097, 256)
    lines = (
        ("70B, were K = H", every_head, BROKEN, ":"), ("7B", seven, QUIET, "--"), ("70B", seventy, KEY, "-"),
    )  # fmt: skip
    full = {name: kv_cache_bytes(args, batch_size, 4096, 2) for name, args, _, _ in lines}
    sizes = ", ".join(f"{name} {gb(size)}" for name, size in full.items())
    alt = f"Bytes of the KV cache against tokens for a batch of {batch_size}. At 4,096 tokens: {sizes}."
    fig, ax = picture(height=3.0, alt=alt)
    fig.set_layout_engine(None)  # with one, everything is drawn twice
    ax.set_position((0.09, 0.17, 0.895, 0.73))
    for name, _, color, style in lines:
        ax.plot(tokens, full[name] / 1e9 * tokens / 4096, style, color=color, label=f"{name}: {gb(full[name])}")
    weights = weight_bytes(seven, 2)
    if full["70B, were K = H"] > weights:
        ax.axhline(weights / 1e9, color=INK, linewidth=0.8, label=f"the weights of 7B: {gb(weights)}")
    ax.set_ylim(0, 1.3 * max(full.values()) / 1e9)  # the legend stands above all lines
    ax.set_xlabel("tokens in each row")
    ax.set_ylabel("KV cache (GB)")
    rows = "One row" if batch_size == 1 else f"{batch_size} rows"
    ax.set_title(f"{rows} of 4,096 tokens: {gb(full['7B'])} for 7B, {gb(full['70B'])} for 70B")
    ax.legend(frameon=False, loc="upper left", ncols=2)
    return fig
