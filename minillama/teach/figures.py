"""One look for every figure: colours, a white ground that is legible on dark pages too, and words for the alt text.

The colours are Paul Tol's "muted" and "bright" schemes, which survive colour blindness. A colour has one meaning in all
chapters: queries, keys and values keep theirs.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import TICKDOWN, TICKLEFT, MarkerStyle
from PIL import Image

QUERY = "#4477aa"  # blue
KEY = "#cc6677"  # rose
VALUE = "#228833"  # green
OURS = "#4477aa"  # what is right, or the model as it is
BROKEN = "#cc6677"  # what is wrong, or was taken away
OTHER = "#ddaa33"  # a third thing
QUIET = "#888888"  # what is there for comparison
INK = "#222222"
SERIES = (QUERY, KEY, VALUE, OTHER, "#aa3377", "#66ccee", QUIET)
RANKS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#332288", "#ee8866")
AMOUNTS = "viridis"  # a colour map for amounts
SIGNED = "PuOr"  # and for numbers around zero
DPI = 100


class Picture(Figure):
    """A figure that shows itself, with `alt`: what a reader who cannot see it should know."""

    alt = ""

    def png(self) -> bytes:
        self.set_dpi(DPI)
        canvas = FigureCanvasAgg(self)
        canvas.draw()
        pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        # 128 colours are plenty for a drawing, and a quarter of the bytes: notebooks store pictures.
        few = pixels.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        ground: Any = few.getpixel((0, 0))
        color: Any = pixels.getpixel((0, 0))
        palette = few.getpalette() or []
        palette[3 * ground : 3 * ground + 3] = color  # the ground stays white, not nearly so
        few.putpalette(palette)
        buffer = io.BytesIO()
        few.save(buffer, format="png", dpi=(DPI, DPI))
        return buffer.getvalue()

    def page(self, png: bytes | None = None) -> str:
        """The picture as HTML, with its alt text."""
        data = base64.b64encode(png or self.png()).decode()
        return f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}" style="max-width:100%">'

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        # Neither JupyterLab nor nbconvert takes an alt text for image/png; both prefer HTML, and others take the png.
        png = self.png()
        return {"text/html": self.page(png), "image/png": png, "text/plain": f"<picture: {self.alt}>"}, {}


class _Quick(Axes):
    """Axes whose title stands above them at once: to look for a free place takes a tenth of the time of drawing."""

    def set_title(self, label: str, *args: Any, **options: Any) -> Any:
        return super().set_title(label, *args, **{"y": 1.0, **options})


def picture(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = 7.5,
    height: float = 3.0,
    alt: str,
    margins: dict[str, float] | None = None,
    **options: Any,
) -> tuple[Picture, Any]:
    """An empty `Picture` and its axes: one Axes, or an array of them as `plt.subplots` gives.

    width, height: inches, at 100 pixels each; 7.5 fits a notebook's page. margins: those of `subplots_adjust`, where a
    slider redraws: finding them costs as much as drawing. options: those of `Figure.subplots`.
    """
    if not alt.strip():
        raise ValueError("a picture needs alt: what someone who cannot see it should know")
    fig = Picture(figsize=(width, height), layout="constrained" if margins is None else None, facecolor="white")
    fig.alt = alt
    fig.set_dpi(DPI)
    FigureCanvasAgg(fig)  # which measures texts
    if margins is not None:
        options["subplot_kw"] = {"axes_class": _Quick, **options.get("subplot_kw", {})}
        fig.subplots_adjust(**margins)
    axes = fig.subplots(rows, columns, **options)
    for ax in [axes] if isinstance(axes, Axes) else axes.flat:
        clean(ax)
    return fig, axes


def clean(ax: Axes) -> Axes:
    """Only the lines that are read from."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=INK, labelsize=9)
    for text in (ax.xaxis.label, ax.yaxis.label, ax.title):
        text.set_color(INK)
    ax.title.set_fontsize(11)
    ax.xaxis.label.set_fontsize(10)
    ax.yaxis.label.set_fontsize(10)
    return ax


def ticks(
    ax: Axes, which: Literal["x", "y"], places: Sequence[float], labels: Sequence[str], marks: bool = True, **text: Any
) -> None:
    """Labels, and marks if wanted, at places on one axis, all of them in view; the axis label keeps clear of them.

    They look like matplotlib's and take less than half the time: for sliders, with their margins given.
    """
    axis, length = (ax.xaxis if which == "x" else ax.yaxis), 3.5 * marks
    axis.set_ticks([])
    across = ax.get_xaxis_text1_transform if which == "x" else ax.get_yaxis_text1_transform
    transform, va, ha = across(length + 3.5)
    text = {"transform": transform, "va": va, "ha": ha, "fontsize": 9, "color": INK, **text}
    at = [(place, 0.0) if which == "x" else (0.0, place) for place in places]
    drawn = [ax.text(x, y, label, **text) for (x, y), label in zip(at, labels)]
    if marks:
        line = Line2D(*zip(*at), linestyle="", color=INK, markersize=length, markeredgewidth=0.8, label="_ticks")
        line.set_marker(MarkerStyle(TICKDOWN if which == "x" else TICKLEFT))
        line.set(transform=ax.get_xaxis_transform() if which == "x" else ax.get_yaxis_transform(), clip_on=False)
        ax.add_artist(line)
    box = max(drawn, key=lambda t: len(t.get_text())).get_window_extent()
    axis.labelpad += length + 3.5 + (box.height if which == "x" else box.width) * 72 / DPI


def words(pieces: list[str]) -> list[str]:
    """SentencePiece's pieces as tick labels: the sign for a space, a line break and what mathtext would take apart."""
    return [piece.replace("▁", "·").replace("<0x0A>", "↵").replace("$", r"\$") for piece in pieces]
