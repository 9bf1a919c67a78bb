"""Notebooks of the course, run again."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
CHAPTER_10 = FOLDER / "10_real_checkpoints.ipynb"


def run(notebook: nbformat.NotebookNode) -> None:
    """Execute all cells, in place. Raises where a cell does."""
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": FOLDER}}).execute()


def said(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """The text that each cell of code shows, by the cell's id."""
    return {
        cell.id: "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
