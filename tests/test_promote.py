"""Modules are their notebooks' promoted cells, byte for byte, and an edit on either side finds its way to the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minillama.teach.promote import (
    PromotionError,
    chapter_of,
    differences,
    find_notebooks,
    main,
    module_texts,
    pull,
    read_cells,
    write,
)

ROOT = Path(__file__).resolve().parents[1]
NORM = [
    '"""Norms: `notebooks/01_norm.ipynb`."""\n\nimport torch\n\nEPS = 1e-5',
    "def norm(x):\n    return x / EPS  # é",
]
ROPE = [
    '"""Turns: `notebooks/02_rope.ipynb`."""\n\nfrom minillama.norm import norm',
    "def angles(n):\n    # a quarter turn\n    return [0.25] * n",
    "def turn(x):\n    return norm(x), angles(x)",
]
NORM_TEXT = "\n\n\n".join(NORM) + "\n"
ROPE_TEXT = "\n\n\n".join(ROPE) + "\n"


def code(source: str, *tags: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    metadata = {"tags": list(tags)} if tags else {}
    return {"cell_type": "code", "execution_count": 3, "metadata": metadata, "outputs": [], "source": lines}


def promoted(module: str, *sources: str) -> list[dict[str, Any]]:
    return [code(f"# promote: minillama/{module}.py\n{source}", "promote") for source in sources]


def save(folder: Path, name: str, cells: list[dict[str, Any]]) -> Path:
    """A notebook as nbformat writes it, a line of text before the cells and a picture's worth of output after them."""
    text = {"cell_type": "markdown", "id": "text", "metadata": {}, "source": ["Näher am Text: 1 µs"]}
    shown = {
        "data": {"text/plain": ["0.1000000001"]},
        "execution_count": 1,
        "metadata": {},
        "output_type": "display_data",
    }
    cells = [text, *({**cell, "id": f"c{i}"} for i, cell in enumerate(cells)), {**code("1"), "outputs": [shown]}]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path = folder / name
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two chapters and the modules that they promote."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (tmp_path / "minillama").mkdir()
    save(folder, "01_norm.ipynb", [code("norm_by_hand = 1"), *promoted("norm", *NORM)])
    save(folder, "02_rope.ipynb", [*promoted("rope", *ROPE), code("from minillama.norm import norm")])
    assert write(folder) == ["minillama/norm.py", "minillama/rope.py"]
    return folder


def module(folder: Path, name: str) -> Path:
    return folder.parent / "minillama" / f"{name}.py"


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.parent.rglob("*")) if path.is_file()}


def says(folder: Path, *words: str) -> None:
    """Checking and writing both refuse, with these words, and nothing is written."""
    for name in ("norm", "rope"):
        module(folder, name).write_text("# stale\n")
    before = state(folder)
    for command in (differences, write):
        with pytest.raises(PromotionError) as error:
            command(folder)
        for word in words:
            assert word in str(error.value)
    assert state(folder) == before


def test_the_courses_notebooks_and_modules_agree() -> None:
    command = [sys.executable, "-m", "minillama.teach.promote", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert find_notebooks() == ROOT / "notebooks"


def test_promotion_starts_without_torch_and_plots() -> None:
    heavy = "sys.modules.keys() & {'torch', 'matplotlib', 'numpy'}"
    program = f"import sys, minillama.teach.promote; print(sorted({heavy}))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "[]\n", ran.stderr


def test_a_module_is_its_cells_byte_for_byte(folder: Path) -> None:
    assert module_texts(folder) == {"minillama/norm.py": NORM_TEXT, "minillama/rope.py": ROPE_TEXT}
    assert module(folder, "norm").read_bytes() == NORM_TEXT.encode()
    assert [(cell.module, cell.number, cell.id) for cell in read_cells(folder / "01_norm.ipynb")] == [
        ("minillama/norm.py", 3, "c1"),
        ("minillama/norm.py", 4, "c2"),
    ]


def test_newlines_at_the_end_of_a_cell_do_not_travel(folder: Path) -> None:
    save(folder, "01_norm.ipynb", promoted("norm", *(f"{source}\n\n" for source in NORM)))
    assert module_texts(folder)["minillama/norm.py"] == NORM_TEXT


def test_only_modules_that_changed_are_written(folder: Path) -> None:
    other = module(folder, "checkpoint")
    other.write_text("# promoted by no notebook\n")
    module(folder, "rope").write_text("# stale\n")
    before = module(folder, "norm").stat().st_mtime_ns
    assert write(folder) == ["minillama/rope.py"]
    assert module(folder, "rope").read_text(encoding="utf-8") == ROPE_TEXT
    assert module(folder, "norm").stat().st_mtime_ns == before
    assert other.read_text() == "# promoted by no notebook\n"
    assert (write(folder), differences(folder)) == ([], {})


@pytest.mark.parametrize(
    ("old", "new"),
    [("# a quarter turn", "# a quarter  turn"), ("0.25", "0.5"), ("angles(x)\n", "angles(x)"), ("\n", "\r\n")],
)
def test_a_changed_byte_is_shown_with_the_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    module(folder, "rope").write_bytes(ROPE_TEXT.replace(old, new).encode())
    assert main(["--check", "--notebooks", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "--- minillama/rope.py" in said and "+++ notebooks/02_rope.ipynb" in said
    removed = [line for line in said.splitlines() if line.startswith("-") and not line.startswith("---")]
    added = [line for line in said.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert removed and added and removed != added
    assert ("\\r" in said) == ("\r" in new)  # a terminal shows no carriage return
    assert "make promote" in said and "python -m minillama.teach.promote --pull minillama/rope.py" in said


def test_a_missing_module_is_called_that(folder: Path) -> None:
    module(folder, "rope").unlink()
    report = differences(folder)["minillama/rope.py"]
    assert "is not there" in report and "make promote" in report


def test_the_chapter_of_a_module_is_found() -> None:
    assert chapter_of("checkpoint.py") is None
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in read_cells(notebook):
            assert chapter_of(cell.module) == notebook


def test_a_place_without_notebooks_is_called_that(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--notebooks", str(folder / "none")]) == 1
    assert "no folder" in capsys.readouterr().err


# The marks


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (code("x = 1", "promote"), ["has the tag", "'x = 1'", "take the tag off"]),
        (code("\n# promote: minillama/rope.py\nx = 1", "promote"), ["has the tag", "take the tag off"]),
        (code("# promote: minillama/rope.py\nx = 1"), ["lacks the tag", "add the tag"]),
        (code("\n#Promote: rope\nx = 1"), ["lacks the tag", "add the tag"]),
        (code("# promote: minillama/rope.py \nx = 1", "promote"), ["expected exactly"]),
        (code("# promote: rope.py\nx = 1", "promote"), ["'# promote: rope.py'", "minillama/NAME.py"]),
        (code("# promote: minillama/../x.py\nx = 1", "promote"), ["minillama/../x.py", "minillama/NAME.py"]),
        (code("# promote: minillama/rope.py\n\n", "promote"), ["promotes nothing", "delete the cell"]),
        (code("# promote: minillama/rope.py\nx = (1", "promote"), ["line 2", "plain Python", "correct it"]),
        (code("# promote: minillama/rope.py\n%time x = 1", "promote"), ["plain Python", "ordinary cell"]),
        ({**code("x", "promote"), "cell_type": "markdown"}, ["no code cell", "take the tag off"]),
    ],
)
def test_a_cell_that_is_half_marked_is_named(folder: Path, cell: dict[str, Any], words: list[str]) -> None:
    save(folder, "02_rope.ipynb", [*promoted("rope", *ROPE), cell])
    says(folder, "notebooks/02_rope.ipynb, cell 5 (id c3)", *words)


def test_a_module_has_one_notebook(folder: Path) -> None:
    save(folder, "03_more.ipynb", promoted("rope", "x = 1"))
    says(folder, "minillama/rope.py", "02_rope.ipynb, cell 2", "03_more.ipynb, cell 2", "keep it in one")


@pytest.mark.parametrize(("name", "remedy"), [("more.ipynb", "NN_name.ipynb"), ("02_more.ipynb", "renumber")])
def test_a_notebook_that_promotes_has_a_place_among_the_chapters(folder: Path, name: str, remedy: str) -> None:
    save(folder, name, promoted("more", f'"""`notebooks/{name}`."""'))
    says(folder, name, remedy)


@pytest.mark.parametrize("content", ["<<<<<<< HEAD\n{}", "[]", '{"worksheets": []}'])
def test_a_file_that_is_no_notebook_is_named(folder: Path, content: str) -> None:
    (folder / "03_more.ipynb").write_text(content)
    says(folder, "notebooks/03_more.ipynb")


# Names


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def turn(x): ...", "turn"),
        ("%matplotlib inline\nfiles = !ls\nclass turn: ...", "turn"),
        ("%%time\nif True:\n    EPS = 2", "EPS"),
        ("for EPS in (1, 2):\n    pass", "EPS"),
        ("EPS = %timeit -o 1", "EPS"),
        ("import numpy as angles", "angles"),
        ("from minillama.norm import norm as turn", "turn"),
    ],
)
@pytest.mark.parametrize("notebook", ["00_start.ipynb", "03_more.ipynb"])
def test_a_promoted_name_is_defined_in_no_other_cell(folder: Path, notebook: str, source: str, name: str) -> None:
    save(folder, notebook, [code("x = 1"), code(source)])
    says(folder, f"{notebook}, cell 3 (id c1) defines {name}", "rename", f"{name}_by_hand")


def test_a_promoted_name_is_promoted_once(folder: Path) -> None:
    save(folder, "03_more.ipynb", promoted("more", '"""`notebooks/03_more.ipynb`."""', "EPS = 1"))
    says(folder, "03_more.ipynb, cell 3 (id c1) defines EPS", "01_norm.ipynb, cell 3", "rename")


@pytest.mark.parametrize(
    "source",
    [
        "from minillama.norm import norm\nfrom minillama import norm as norm",
        "import torch\nfrom torch import norm",
        "def f(norm):\n    EPS = norm\n    return [turn for turn in range(3)]",
        "obj.norm = {'EPS': 1}\nf(angles=2)\nangles: int",
        "%%bash\nEPS=3\nif [ 1 ]; then",
        "x = (7\n% 3)\n!ls\nnorm?",
    ],
)
def test_what_only_looks_like_a_second_definition_is_let_through(folder: Path, source: str) -> None:
    save(folder, "03_more.ipynb", [code(source)])
    assert differences(folder) == {}


# Imports


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("from minillama.more import x", ["minillama.more", "03_more.ipynb, cell 2", "only earlier ones"]),
        ("import minillama.more", ["minillama.more", "only earlier ones"]),
        ("def f():\n    from minillama.more import x", ["minillama.more", "only earlier ones"]),
        ("from minillama.checkpoint import load", ["no notebook promotes", "inside the function"]),
        ("from minillama import norm", ["minillama itself", "from minillama.NAME import"]),
        ("from minillama.rope import turn", ["the module it is a part of"]),
        ("from .norm import norm", ["does not run in a notebook", "minillama.NAME"]),
        ("from minillama.norm import *", ["name what is needed"]),
    ],
)
def test_a_promoted_cell_needs_only_earlier_chapters(folder: Path, statement: str, words: list[str]) -> None:
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE, statement))
    save(folder, "03_more.ipynb", promoted("more", '"""`notebooks/03_more.ipynb`."""\n\nx = 1'))
    says(folder, "02_rope.ipynb, cell 5 (id c3) imports", *words)


@pytest.mark.parametrize(
    "statement",
    [
        "import os\n\nimport torch\n\nfrom minillama.args import ModelArgs",
        "import typing\n\nif typing.TYPE_CHECKING:\n    from minillama import Llama\n    from minillama.more import x",
        "def f():\n    from minillama.checkpoint import load\n\n    return load",
        "from minillama.norm import norm as scaled",
    ],
)
def test_imports_that_a_reader_of_the_chapter_can_run_are_let_through(folder: Path, statement: str) -> None:
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE, statement))
    save(folder, "03_more.ipynb", promoted("more", '"""`notebooks/03_more.ipynb`."""\n\nx = 1'))
    assert module_texts(folder)["minillama/rope.py"].endswith(statement + "\n")


def test_two_modules_of_one_notebook_depend_in_the_order_of_their_cells(folder: Path) -> None:
    def both(first: str, second: str) -> None:
        modules = {
            "one": promoted("one", '"""`notebooks/03_both.ipynb`."""\n\nx = 1'),
            "two": promoted("two", '"""`notebooks/03_both.ipynb`."""\n\nfrom minillama.one import x\n\ny = x'),
        }
        save(folder, "03_both.ipynb", [*modules[first], *modules[second]])

    both("one", "two")
    assert list(module_texts(folder)) == [
        "minillama/norm.py",
        "minillama/rope.py",
        "minillama/one.py",
        "minillama/two.py",
    ]
    both("two", "one")
    says(folder, "03_both.ipynb, cell 2 (id c0) imports from minillama.one", "promoted later")


# Order


@pytest.mark.parametrize(
    "early",
    [
        "@Late\ndef f(): ...",
        "class A(Late): ...",
        "class A:\n    x = Late",
        "def f(x=Late): ...",
        "def f(x: Late): ...",
        "def f() -> Late: ...",
        "x: Late = 1",
        "x = [Late for _ in range(3)]",
        "if Late:\n    x = 1",
        "f = lambda x=Late: x",
    ],
)
def test_what_runs_as_the_module_is_read_stands_after_what_it_uses(folder: Path, early: str) -> None:
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE, early, "class Late: ..."))
    says(folder, "cell 5 (id c3) uses Late", "later, at notebooks/02_rope.ipynb, cell 6", "change the order")
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE, "class Late: ...", early))
    assert "minillama/rope.py" in module_texts(folder)


@pytest.mark.parametrize(
    "early",
    [
        "def f():\n    return Late",
        "f = lambda: Late",
        "class A:\n    def f(self):\n        return Late",
        "def f(x: 'Late'): ...",
        "with open(__file__) as file:\n    text = file.read()",
        "if (n := len('a')) > 1:\n    m = n",
        "m = (n := 2) + n",
        "class A:\n    x = 1\n    y = x\n\n    def f(self, z=x): ...",
        "pairs = {a: b for a, b in zip([1], [2])}",
    ],
)
def test_what_runs_later_may_stand_before_what_it_uses(folder: Path, early: str) -> None:
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE, early, "class Late: ..."))
    assert "minillama/rope.py" in module_texts(folder)


def test_postponed_annotations_may_name_what_comes_later(folder: Path) -> None:
    first = ROPE[0].replace("\n\n", "\n\nfrom __future__ import annotations\n\n", 1)
    save(folder, "02_rope.ipynb", promoted("rope", first, "def f(x: Late) -> Late: ...", "class Late: ..."))
    assert "minillama/rope.py" in module_texts(folder)
    save(folder, "02_rope.ipynb", promoted("rope", first, "def f(x=Late): ...", "class Late: ..."))
    says(folder, "uses Late")


def test_an_import_stands_before_its_use(folder: Path) -> None:
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE, "class A(nn.Module): ...", "from torch import nn"))
    says(folder, "cell 5 (id c3) uses nn", "cell 6", "change the order")
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE, "x = math.pi\n\nimport math"))
    says(folder, "uses math", "further down")
    save(folder, "02_rope.ipynb", [code("from torch import nn"), *promoted("rope", *ROPE, "class A(nn.Module): ...")])
    says(folder, "cell 6 (id c4) uses nn", "no promoted cell", "import or define it")


def test_a_module_begins_with_a_docstring_that_names_its_notebook(folder: Path) -> None:
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE[1:], ROPE[0]))
    says(
        folder, "cell 2 (id c0)", "does not begin with", "cell 4 (id c2) begins with a docstring", "move it to the top"
    )
    save(folder, "02_rope.ipynb", promoted("rope", ROPE[0].replace("02_rope", "03_rope"), *ROPE[1:]))
    says(folder, "cell 2 (id c0)", "add `notebooks/02_rope.ipynb`")


def test_cells_that_are_python_only_apart_are_named(folder: Path) -> None:
    save(folder, "02_rope.ipynb", promoted("rope", *ROPE, "from __future__ import annotations\n\nx = 1"))
    says(folder, "cell 5 (id c3)", "not valid Python", "from __future__")


def test_all_that_is_wrong_is_said_at_once(folder: Path) -> None:
    save(folder, "03_more.ipynb", [code("EPS = 1"), code("norm = 2")])
    says(folder, "defines EPS", "defines norm")


# From the module back


@pytest.mark.parametrize(
    "edits",
    [
        {1: ("    # a quarter turn\n", "    # a quarter\n    # turn: µ\n\n\n")},
        {1: ("    # a quarter turn\n    return [0.25] * n", "    return 1")},
        {0: ("Turns", "Half turns,\n\n\nand whole ones")},
        {0: ("import norm", "import norm\n\nHALF = 0.5")},
        {1: ("def angles", "# Measured.\ndef angles")},
        {1: ("def angles(n)", "@cached\ndef angles(n)"), 0: ("\n\n", "\n\nfrom functools import cache as cached\n\n")},
        {2: ("angles(x)", "angles(x)\n\n\ndef new(x):\n    return norm(x), angles(x)")},
        {1: ("def angles(n):\n    # a quarter turn\n", "def degrees(n):\n    n *= 4\n\n\n    n /= 4\n")},
        {1: ("angles", "degrees"), 2: ("angles", "degrees")},
    ],
)
def test_an_edit_in_the_module_is_carried_into_its_cell(folder: Path, edits: dict[int, tuple[str, str]]) -> None:
    notebook = folder / "02_rope.ipynb"
    before = notebook.read_bytes()
    edited = [source.replace(*edits[i]) if i in edits else source for i, source in enumerate(ROPE)]
    module(folder, "rope").write_text("\n\n\n".join(edited) + "\n", encoding="utf-8")
    diffs = pull(folder, "rope")
    assert [diff.splitlines()[0] for diff in diffs] == [
        f"--- notebooks/02_rope.ipynb, cell {i + 2} (id c{i})" for i in sorted(edits)
    ]
    assert [cell.source for cell in read_cells(notebook)] == edited
    assert (differences(folder), write(folder)) == ({}, [])

    module(folder, "rope").write_text(ROPE_TEXT)  # put back, the notebook is what it was, to the byte
    pull(folder, "rope")
    assert notebook.read_bytes() == before


def test_a_pull_leaves_all_other_bytes_alone(folder: Path) -> None:
    notebook = folder / "02_rope.ipynb"
    before = notebook.read_text(encoding="utf-8")
    edited = ROPE_TEXT.replace("quarter", "third").encode()
    module(folder, "rope").write_bytes(edited)
    pull(folder, "rope.py")
    assert before.count("quarter") == 1
    assert notebook.read_text(encoding="utf-8") == before.replace("quarter", "third")
    assert module(folder, "rope").read_bytes() == edited
    assert module(folder, "norm").read_text(encoding="utf-8") == NORM_TEXT


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "\n\n\ndef turn",
            "\n\n\ndef new(x):\n    return x\n\n\ndef turn",
            ["not clear", "cell 3", "cell 4", "lines 8, 12"],
        ),
        ("\n\n\ndef turn", "\n\ndef turn", ["not clear", "found none"]),
        ("\n\n\ndef turn", "\n\n\n\ndef turn", ["not clear", "lines 8, 9"]),
        ("\n\n\n" + ROPE[1], "", ["nothing is left", "cell 3", "delete the cell"]),
        ("[0.25] * n", "[0.25 * n", ["no Python"]),
        ("angles(x)\n", "angles(x)\n\n", ["one newline", "ruff format"]),
        ("\n", "\r\n", ["carriage returns"]),
        ("norm import norm", "more import norm", ["not pulled", "minillama.more", "no notebook promotes"]),
    ],
)
def test_an_edit_that_fits_the_cells_in_more_than_one_way_changes_nothing(
    folder: Path, old: str, new: str, words: list[str]
) -> None:
    module(folder, "rope").write_bytes(ROPE_TEXT.replace(old, new).encode())
    before = state(folder)
    with pytest.raises(PromotionError) as error:
        pull(folder, "rope")
    for word in words:
        assert word in str(error.value)
    assert state(folder) == before


def test_a_copy_of_a_function_between_two_cells_is_not_given_to_either(folder: Path) -> None:
    # Line by line the copy resembles the old function more than the old function, edited, does.
    edited = ROPE_TEXT.replace(
        ROPE[1], ROPE[1].replace("# a quarter turn", "# x") + "\n\n\n" + ROPE[1].replace("angles", "b")
    )
    module(folder, "rope").write_text(edited)
    with pytest.raises(PromotionError, match="not clear"):
        pull(folder, "rope")


def test_a_notebook_that_would_change_elsewhere_is_not_rewritten(folder: Path) -> None:
    notebook = folder / "02_rope.ipynb"
    notebook.write_text(json.dumps(json.loads(notebook.read_bytes()), indent=2))
    module(folder, "rope").write_text(ROPE_TEXT.replace("quarter", "third"))
    before = state(folder)
    with pytest.raises(PromotionError, match="save it"):
        pull(folder, "rope")
    assert state(folder) == before


def test_a_pull_without_an_edit_or_a_module_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state(folder)
    assert main(["--pull", "rope", "--notebooks", str(folder)]) == 0
    assert "equals its cells" in capsys.readouterr().out
    assert main(["--pull", "checkpoint", "--notebooks", str(folder)]) == 1
    assert "no notebook promotes minillama/checkpoint.py" in capsys.readouterr().err
    assert state(folder) == before


def test_the_command_writes_checks_and_pulls(folder: Path) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "minillama.teach.promote", "--notebooks", str(folder), *arguments]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)

    module(folder, "rope").write_text(ROPE_TEXT.replace("quarter", "third"))
    assert command("--check").returncode == 1
    pulled = command("--pull", "minillama/rope.py")
    assert pulled.returncode == 0 and "+    # a third turn" in pulled.stdout
    assert command("--check").returncode == 0
    module(folder, "norm").write_text("# stale\n")
    assert command().stdout == "wrote minillama/norm.py\n"
    save(folder, "03_more.ipynb", [code("EPS = 1")])
    refused = command("--check")
    assert refused.returncode == 1 and "rename" in refused.stderr and "Traceback" not in refused.stderr


def test_every_chapter_promotes_its_module() -> None:
    """A notebook that lost its promoted cells would otherwise promote nothing, and agree with everything."""
    names = "norm rope attention kv_cache feed_forward transformer tokenizer chat sampling decode parallel".split()
    assert list(module_texts(find_notebooks())) == [f"minillama/{name}.py" for name in names]
