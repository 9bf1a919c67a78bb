"""What the notebooks have stored is what they do today: each is run again, and its pictures are compared with the kept.

Text is compared by nbval, on the cells that ask for it. A cell that shows times, which are another machine's, has the
tag `varies`; of its pictures only size and number are compared.
"""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path

import nbformat
import numpy as np
import pytest
from PIL import Image
from rerun import CHAPTER_10, FOLDER, run, said
from toys import make_checkpoint

from minillama import convert

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

# Of 255, on average over a picture. A changed colour, axis or curve moves it further; a last digit of fp32 does not.
TOLERANCE = 2.0


def pictures(cell: nbformat.NotebookNode) -> list[np.ndarray]:
    """Every picture that a cell has shown, as grey pixels."""
    shown = [output.data["image/png"] for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    decoded = [Image.open(io.BytesIO(base64.b64decode(data))).convert("L") for data in shown]
    return [np.asarray(image, dtype=float) for image in decoded]


@pytest.fixture
def unsolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A course with this checkout's package, of which nothing is done: the stored outputs are of such a one."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MY_MINILLAMA", str(tmp_path / "my_minillama"))


@pytest.mark.usefixtures("unsolved")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_pictures_are_the_ones_that_the_code_draws(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    again = nbformat.read(path, as_version=4)
    run(again)
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


@pytest.mark.usefixtures("unsolved")
@pytest.mark.parametrize("files", [1, 2])
def test_chapter_10_goes_through_with_a_checkpoint_of_one_s_own(files: int, tmp_path: Path) -> None:
    """As Meta packs it: bf16, as many kv heads as heads, the tokenizer in the folder above, vocab_size -1."""
    toy = make_checkpoint(tmp_path / "toy", dim=64, n_heads=8, n_kv_heads=8, n_layers=3, max_seq_len=1024)
    own, work = tmp_path / "models" / "llama-of-mine", tmp_path / "work"
    own.parent.mkdir()
    work.mkdir()
    convert.rewrite(toy, own, "meta", mp=files, dtype="bfloat16")
    (own / "tokenizer.model").rename(own.parent / "tokenizer.model")
    params = json.loads((own / "params.json").read_text())
    (own / "params.json").write_text(json.dumps(params | {"vocab_size": -1}))

    notebook = nbformat.read(CHAPTER_10, as_version=4)
    load = next(cell for cell in notebook.cells if cell.id == "load")
    for line, ours in (
        ("CKPT_DIR = demo_dir()", f"CKPT_DIR = Path({str(own)!r})"),
        ('tempfile.mkdtemp(prefix="minillama-10-")', repr(str(work))),
    ):
        assert load.source.count(line) == 1
        load.source = load.source.replace(line, ours)
    run(notebook)

    shown = said(notebook)
    assert "llama-of-mine" in shown["typed-helper"] and "bfloat16" in shown["typed-helper"]
    assert shown["split-back"] == shown["hf-back"] == shown["count"] == "True"
    assert shown["split-eight-try"] == "written: 8 files\n"  # there are heads enough
    assert "storyteller" not in " ".join(shown.values())
    assert "nothing is wrong" not in " ".join(shown.values())  # every wrong setup of the clinic is told
    assert "\nOnce upon a time" in shown["loads-ranks-code"]  # under torchrun, from eight files
