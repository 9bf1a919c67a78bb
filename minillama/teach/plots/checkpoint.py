"""Figures of chapter 10: how files are shared by ranks, what memory is taken for, whether a plan came true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from minillama.args import PRESETS, ModelArgs, count
from minillama.memory import GPU_LIBRARIES, Plan, gb, plan
from minillama.teach.figures import BROKEN, INK, KEY, OTHER, OURS, QUIET, RANKS, VALUE, Picture, picture

PARTS = {"weights": OURS, "KV cache": KEY, "activations": VALUE, "workspace": OTHER}
DTYPES = {"16 bits": torch.float16, "32 bits": torch.float32}


def _box(ax: Axes, left: float, width: float, y: float, color: str, text: str = "") -> None:
    ax.add_patch(Rectangle((left, y), width, 0.62, facecolor=color, edgecolor="white", linewidth=1.5))
    if text:
        ax.text(
            left + width / 2, y + 0.31, text, ha="center", va="center", fontsize=8, color=INK,
            bbox=dict(boxstyle="round,pad=0.2", facecolor="white", edgecolor="none"),
        )  # fmt: skip


def _opened(n_files: int, part: int, parts: int) -> list[int]:
    return [f for f in range(n_files) if f * parts < (part + 1) * n_files and part * n_files < (f + 1) * parts]


def _draw_shares(ax: Axes, n_files: int, ranks: int) -> str:
    """Files above, ranks below, in the colours of the files they read; what there is to say."""
    for f in range(n_files):
        _box(ax, f / n_files, 1 / n_files, 1, RANKS[f % len(RANKS)], f"{f:02d}")
    for r in range(ranks):
        for f in _opened(n_files, r, ranks):
            low, high = max(f / n_files, r / ranks), min((f + 1) / n_files, (r + 1) / ranks)
            _box(ax, low, high - low, 0, RANKS[f % len(RANKS)])
        ax.add_patch(Rectangle((r / ranks, 0), 1 / ranks, 0.62, fill=False, edgecolor=INK, linewidth=1))
        ax.text(
            (r + 0.5) / ranks, 0.31, f"{r}", ha="center", va="center", fontsize=8, color=INK,
            bbox=dict(boxstyle="circle,pad=0.2", facecolor="white", edgecolor="none"),
        )  # fmt: skip
    ax.set_xlim(-0.005, 1.005)
    ax.set_ylim(-0.1, 1.7)
    ax.set_yticks([0.31, 1.31], ["ranks", "files"], fontsize=9)
    ax.set_xticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    most = max(len(_opened(n_files, r, ranks)) for r in range(ranks))
    return f"{count(n_files, 'file')}, {count(ranks, 'rank')}: each opens {most}"


def shares(*pairs: tuple[int, int]) -> Picture:
    """How ranks share one weight that lies in files: pairs of (files, ranks)."""
    alt = "A bar of files above a bar of ranks, cut where their shares end: " + "; ".join(
        f"{f} files and {r} ranks, each rank opens {max(len(_opened(f, i, r)) for i in range(r))}" for f, r in pairs
    )
    fig, axes = picture(
        len(pairs), 1, height=1.1 * len(pairs) + 0.45, alt=alt + ".",
        margins=dict(left=0.08, right=0.98, top=1 - 0.3 / (1.1 * len(pairs) + 0.45), bottom=0.03, hspace=0.55),
    )  # fmt: skip
    for ax, (n_files, ranks) in zip([axes] if len(pairs) == 1 else axes, pairs):
        ax.set_title(_draw_shares(ax, n_files, ranks), fontsize=10, loc="left")
    return fig


def _bar(ax: Axes, y: float, made: Plan) -> float:
    left = 0.0
    for name, size in made.parts().items():
        ax.barh(y, size / 1e9, left=left / 1e9, color=PARTS[name], height=0.6, edgecolor="white", linewidth=0.5)
        left += size
    return left / 1e9


def _handles() -> list[Patch]:
    names = {"workspace": "workspace, and 1 GB for libraries"}
    return [Patch(color=color, label=names.get(name, name)) for name, color in PARTS.items()]


def plans(made: Mapping[str, Plan]) -> Picture:
    """Plans under each other, each with the memory of its card as a line."""
    names = list(made)
    fits = [name for name in names if made[name].fits]
    alt = "Bars of weights, KV cache, activations and workspace. " + "; ".join(
        f"{name}: {gb(p.total)} of {gb(p.budget or 0)}, {'fits' if p.fits else 'does not fit'}"
        for name, p in made.items()
    )
    fig, ax = picture(height=0.42 * len(names) + 1.25, alt=alt + ".")
    for i, name in enumerate(names):
        one = made[name]
        end = _bar(ax, i, one)
        card = (one.budget or 0) / 1e9
        ax.plot([card, card], [i - 0.42, i + 0.42], color=INK, linewidth=2)
        sign = "fits" if one.fits else "does not fit"
        ax.text(
            max(end, card) + 1, i, f"{gb(one.total)}, {sign}", va="center", fontsize=8,
            color=INK if one.fits else BROKEN,
        )  # fmt: skip
    ax.set_yticks(range(len(names)), names, fontsize=8.5)
    ax.invert_yaxis()
    most = max(max(p.total, p.budget or 0) for p in made.values()) / 1e9
    ax.set_xlim(0, most * 1.22)
    ax.set_xlabel("GB on each GPU; the black line is its memory")
    ax.legend(handles=_handles(), frameon=False, fontsize=8, loc="lower right")
    title = f"{len(fits)} of {len(names)} fit"
    if fits:
        spare = {name: (made[name].budget or 0) - made[name].total for name in fits}
        least = min(spare, key=spare.__getitem__)
        title += f"; least is to spare with {least}: {gb(spare[least])}"
    ax.set_title(title, fontsize=11, loc="left")
    return fig


def planner(model: str, ranks: int, card: int, batch: int, tokens: int, bits: str = "16 bits") -> Picture:
    """One plan: card in GB."""
    args = ModelArgs(**PRESETS[model])
    margins = dict(left=0.03, right=0.97, top=0.84, bottom=0.36)
    if not args.fits_ranks(ranks):
        title = f"{model} cannot be shared by {ranks} ranks: its {args.n_heads} heads do not divide"
        fig, ax = picture(height=1.9, alt=title, margins=margins)
        ax.set_title(title, fontsize=10, loc="left")
        ax.set_xticks([])
        ax.set_yticks([])
        return fig
    one = plan(
        args, ranks=ranks, batch_size=batch, seq_len=tokens, dtype=DTYPES[bits], budget=card * 10**9,
        extra=GPU_LIBRARIES,
    )  # fmt: skip
    each = f"on each of {ranks} GPUs" if ranks > 1 else "on one GPU"
    if one.fits:
        title = f"{model} fits: {gb(one.total)} of {card} GB {each}; the largest batch is {one.largest_batch}"
    elif one.largest_seq_len:
        title = f"{model}: {gb(one.total)} do not fit in {card} GB {each}; {one.largest_seq_len:,} tokens would"
    else:
        title = f"{model}: {gb(one.total)} do not fit in {card} GB {each}, nor would one token"
    sizes = ", ".join(f"{name} {gb(size)}" for name, size in one.parts().items())
    fig, ax = picture(height=1.9, alt=f"{title}. {sizes}.", margins=margins)
    end = _bar(ax, 0, one)
    ax.plot([card, card], [-0.45, 0.45], color=INK, linewidth=2.5)
    ax.set_yticks([])
    ax.set_ylim(-0.5, 0.5)
    ax.set_xlim(0, max(end, card) * 1.03)
    ax.set_title(title, fontsize=10, loc="left", color=INK if one.fits else BROKEN)
    ax.set_xlabel("GB; the black line is the card")
    ax.legend(
        handles=_handles(), frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.42)
    )  # fmt: skip
    return fig


def came_true(rows: Sequence[tuple[str, int, int]]) -> Picture:
    """(what, planned bytes, measured bytes): how far the plan is off."""
    off = [100 * (measured / planned - 1) for _, planned, measured in rows]
    worst = max(map(abs, off))
    alt = "Measured against planned: " + "; ".join(
        f"{name} {gb(planned)} planned, {gb(measured)} measured" for name, planned, measured in rows
    )
    fig, ax = picture(height=0.36 * len(rows) + 1.0, alt=alt + ".")
    ax.axvline(0, color=QUIET, linewidth=1)
    ax.barh(range(len(rows)), off, color=OURS, height=0.5)
    for i, (_, planned, measured) in enumerate(rows):
        ax.text(1.02, i, f"{gb(planned)} planned, {gb(measured)} taken", va="center", fontsize=8,
                transform=ax.get_yaxis_transform())  # fmt: skip
    ax.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=8.5)
    ax.invert_yaxis()
    reach = max(6.0, 1.15 * worst)
    ax.set_xlim(-reach, reach)
    ax.set_xlabel("% more (right) or less (left) than planned")
    ax.set_title(f"No part is more than {worst:.1f}% from its plan", fontsize=11, loc="left")
    return fig
