"""Draw `assets/pictures/map.svg`: the model, the module that holds each piece, the chapter that builds it."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

INK, PAPER = "#1b1b1b", "#ffffff"
FILL = {"io": "#e8e8e8", "norm": "#fbe3c0", "attention": "#cfe4f3", "ffn": "#cdebdd", "sample": "#f3d5e4"}

plt.rcParams["svg.hashsalt"] = "minillama"  # the same file from the same code
plt.rcParams["font.family"] = "sans-serif"
figure, axes = plt.subplots(figsize=(11, 4.3), facecolor=PAPER)
axes.set_xlim(0, 111)
axes.set_ylim(0, 43)
axes.axis("off")


def box(x: float, y: float, w: float, h: float, title: str, note: str, kind: str) -> None:
    axes.add_patch(FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0.2,rounding_size=1", fc=FILL[kind], ec=INK, lw=1))
    axes.text(x + w / 2, y + h / 2 + 1.1, title, ha="center", va="center", fontsize=10.5, color=INK, weight="bold")
    axes.text(x + w / 2, y + h / 2 - 1.7, note, ha="center", va="center", fontsize=8, color=INK)


def arrow(x0: float, y0: float, x1: float, y1: float) -> None:
    axes.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.3})


Y = 14  # the residual stream
axes.plot([29.5, 84], [Y, Y], color=INK, lw=2.2, zorder=0)
box(1, Y - 4, 11, 8, "tokenizer", "07 · text to ids", "io")
box(15.6, Y - 4, 13, 8, "embedding", "06 · (B, T, D)", "io")
arrow(12.5, Y, 15.2, Y)
axes.add_patch(
    FancyBboxPatch((31, 6), 51, 33, boxstyle="round,pad=0.2,rounding_size=1.5", fc="none", ec=INK, lw=1, ls="--")
)
axes.text(56.5, 41, "one block, repeated n_layers times", ha="center", va="center", fontsize=9.5, color=INK)
for x, title, note, kind in (
    (33, "attention", "02 RoPE, 03, 04 KV", "attention"),
    (58, "SwiGLU", "05 · w1 w2 w3", "ffn"),
):
    box(x, 20, 11.5, 6, "RMSNorm", "01", "norm")
    box(x, 29.5, 17, 7, title, note, kind)
    arrow(x + 5.7, Y, x + 5.7, 19.6)
    arrow(x + 5.7, 26.4, x + 5.7, 29.1)
    arrow(x + 15, 29.1, x + 15, Y + 1.7)
    axes.text(x + 15, Y, "+", ha="center", va="center", fontsize=14, weight="bold", color=INK,
              bbox={"boxstyle": "circle,pad=0.15", "fc": PAPER, "ec": INK})  # fmt: skip
axes.text(56.5, 8.6, "residual stream (B, T, D)", ha="center", va="center", fontsize=8.5, color=INK)
box(84, Y - 4, 11, 8, "head", "06 · (B, T, V)", "norm")
box(98.2, Y - 4, 11.5, 8, "sampling", "08 · next token", "sample")
arrow(95.5, Y, 97.7, Y)
axes.annotate(
    "",
    (6.5, Y - 4.4),
    (104, Y - 4.4),
    arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.1, "connectionstyle": "bar,fraction=-0.055"},
)
axes.text(56.5, 2.3, "the new token goes round again", ha="center", va="center", fontsize=8.5, color=INK)
axes.text(1, 40, "minillama", fontsize=15, weight="bold", color=INK, va="center")
axes.text(1, 36.3, "numbers: the chapter\nthat builds the piece", fontsize=8.2, color=INK, va="center")
out = Path(__file__).resolve().parents[1] / "assets" / "pictures" / "map.svg"
figure.savefig(out, bbox_inches="tight", metadata={"Date": None})
