"""What a notebook shows to those who do not run it: its stored outputs, and the web page that nbconvert makes."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from browser import ROOT

bs4 = pytest.importorskip("bs4", reason="nbconvert, which comes with the extra notebooks, is not installed")
HTMLExporter = pytest.importorskip("nbconvert", reason="nbconvert is not installed").HTMLExporter

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
DRAWN_LIVE = ("<Figure", "VBox(", "HBox(", "interactive(")  # how a figure and a widget read where only text is left

every_notebook = pytest.mark.parametrize(
    "notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]


def stored(notebook: Path) -> list[dict[str, Any]]:
    return [output for cell in code_cells(notebook) for output in cell["outputs"]]


def bundles(notebook: Path) -> list[dict[str, Any]]:
    """What the outputs that are not plain streams offer: a text, a picture, a page, by their types."""
    return [output["data"] for output in stored(notebook) if "data" in output]


@functools.cache
def page(notebook: Path) -> Any:
    """The notebook as a web page, made without a kernel, as BeautifulSoup reads it."""
    return bs4.BeautifulSoup(HTMLExporter().from_filename(str(notebook))[0], "html.parser")


@every_notebook
def test_every_cell_has_run_once_in_order_and_without_an_error(notebook: Path) -> None:
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert [output for output in stored(notebook) if output["output_type"] == "error"] == []


@every_notebook
def test_what_is_drawn_is_stored_as_a_picture(notebook: Path) -> None:
    for data in bundles(notebook):
        text = "".join(data.get("text/plain", ""))
        if WIDGET_VIEW in data or text.startswith(DRAWN_LIVE):
            assert "image/png" in data, text[:80]
        if "image/svg+xml" in data:  # JupyterLab shows no SVG of a notebook that was run by someone else
            assert "image/png" in data, text[:80]


@every_notebook
def test_no_state_of_widgets_is_stored(notebook: Path) -> None:
    # With it the page would load the widgets' JavaScript from elsewhere, and show them dead instead of the picture.
    assert "widgets" not in json.loads(notebook.read_text(encoding="utf-8"))["metadata"]


@every_notebook
def test_the_web_page_shows_every_picture(notebook: Path) -> None:
    expected = 0
    for data in bundles(notebook):
        has_picture = any(kind.startswith("image/") for kind in data)
        html = "".join(data.get("text/html", ""))  # nbconvert and JupyterLab prefer it to a picture
        in_html = html.count("<img") + html.count("<svg")
        assert in_html or not (has_picture and html)
        expected += in_html if html else has_picture
    area = page(notebook).select(".jp-OutputArea-output")
    shown = [image for output in area for image in output.select("img, svg") if image.find_parent("svg") is None]
    assert len(shown) == expected
    sources = {"".join(image.get("src", "").split()) for image in shown}
    stored_sources = {
        "data:image/png;base64," + "".join("".join(data["image/png"]).split())
        for data in bundles(notebook)
        if "image/png" in data and "text/html" not in data and "image/svg+xml" not in data
    }
    assert len(stored_sources - sources) == 0  # their number: the text of a picture fills the screen
    assert page(notebook).select(f'script[type="{WIDGET_VIEW}"]') == []


@every_notebook
def test_every_picture_on_the_web_page_has_a_description(notebook: Path) -> None:
    # An image/png cannot have one in nbconvert or JupyterLab: it takes text/html with <img alt="..." src="...">.
    silent = "No description has been provided for this image"  # what nbconvert puts there itself
    described = [image.get("alt", "").strip() not in ("", silent) for image in page(notebook).select("img")]
    assert described == [True] * len(described)
