"""Each notebook runs in JupyterLab in a real browser, and each control of each widget does something."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import (
    ROOT,
    Lab,
    NoBrowser,
    browser,
    controls,
    copy_course,
    errors,
    find_browser,
    jupyterlab,
    label,
    open_notebook,
    photograph,
    response,
    run_all,
    widgets,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    try:
        find_browser()
    except NoBrowser as reason:
        pytest.skip(str(reason))
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def lab(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    course = copy_course(tmp_path_factory.mktemp("course"))
    with jupyterlab(course, tmp_path_factory.mktemp("jupyter")) as running:
        yield running


@pytest.fixture
def page(chromium: Browser, lab: Lab) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    yield context.new_page()
    context.close()
    lab.stop_kernels()  # one model in memory at a time


def has_widgets(notebook: Path) -> bool:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return re.search(r"teach\.explore|import .*\bexplore\b|explorer|_widget\(", code) is not None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_widgets_respond(notebook: Path, page: Page, lab: Lab, tmp_path: Path) -> None:
    kept = Path(os.environ.get("MINILLAMA_SCREENSHOTS") or tmp_path).resolve() / notebook.stem
    open_notebook(page, lab, notebook.name)
    run_all(page)
    photograph(page, kept)
    assert errors(page) == []
    found = widgets(page)
    assert bool(found) == has_widgets(notebook)
    silent = []
    for i, widget in enumerate(found):
        movable = controls(widget)
        assert movable, f"widget {i} has no controls"
        for kind, control in movable:
            if kind == "unknown" or not response(page, widget, kind, control):
                silent.append(f"widget {i}: {label(kind, control)}")
        widget.screenshot(path=kept / f"widget-{i:02}-moved.png")
    assert silent == []
    assert errors(page) == []
