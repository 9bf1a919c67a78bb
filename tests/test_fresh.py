"""What the notebooks have stored is what they do today: each is run again, and its pictures are compared with the kept.

Text is compared by nbval, on the cells that ask for it. A cell that shows times, which are another machine's, has the
tag `varies`; of its pictures only size and number are compared.
"""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Of 255, on average over a picture. A changed colour, axis or curve moves it further; a last digit of fp32 does not.
TOLERANCE = 2.0


def pictures(cell: nbformat.NotebookNode) -> list[np.ndarray]:
    """Every picture that a cell has shown, as grey pixels."""
    shown = [output.data["image/png"] for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    decoded = [Image.open(io.BytesIO(base64.b64decode(data))).convert("L") for data in shown]
    return [np.asarray(image, dtype=float) for image in decoded]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_pictures_are_the_ones_that_the_code_draws(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MY_MINILLAMA", str(tmp_path / "my_minillama"))  # stored outputs are those of an unsolved course
    stored = nbformat.read(path, as_version=4)
    again = nbformat.read(path, as_version=4)
    client = NotebookClient(again, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}})
    client.execute()
    compared = 0
    for before, after in zip(stored.cells, again.cells):
        old, new = pictures(before), pictures(after)
        assert len(old) == len(new), f"cell {before.id}: {len(old)} pictures stored, {len(new)} drawn"
        for a, b in zip(old, new):
            assert a.shape == b.shape, f"cell {before.id}: stored {a.shape}, drawn {b.shape}"
            if "varies" not in before.metadata.get("tags", []):
                off = np.abs(a - b).mean()
                assert off < TOLERANCE, f"cell {before.id}: the stored picture is {off:.1f} of 255 off; run it again"
            compared += 1
    assert compared
