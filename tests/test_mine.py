"""`my_minillama/`: what a learner has finished is kept, read from what is there, and runs in models of other processes.

That a saved function is what runs is shown by a function that says so: it writes a line to the file that $TRACE names.
"""

from __future__ import annotations

import functools
import html
import importlib.util
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toys import make_checkpoint
from typer.testing import CliRunner

import minillama
from minillama import Llama, Transformer, cli
from minillama.teach import own
from minillama.teach.exercise import Verdict, exercises
from minillama.teach.own import (
    MILESTONES,
    diff_mine,
    milestones,
    mine,
    my_parts,
    parts_of,
    progress,
    promote_mine,
    reset_mine,
    whole_source,
)
from minillama.teach.slots import EVERY, SLOTS, PartError

ROOT = Path(__file__).resolve().parents[1]
HANG = 300  # seconds: no limit on speed, only an end to waiting for a process that hangs
GOOD = """
import os

import torch


def rms_norm(x, weight, eps):
    if "TRACE" in os.environ:
        with open(os.environ["TRACE"], "a") as file:
            print(f"rms_norm in {os.getpid()}", file=file)
    wide = x.double()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
"""
WRONG = GOOD.replace("wide.mean", "wide.sum").replace("(wide * wide).mean", "(wide * wide).sum")
numbers = itertools.count()


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what is promoted is kept here."""
    folder = tmp_path / "kept"
    monkeypatch.setenv("MY_MINILLAMA", str(folder))
    return folder


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    return tmp_path / "trace"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("small") / "ckpt")


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Any]:
    """`written(source, name="rms_norm")`: a function of a module with that source, as a learner has it."""

    def make(source: str, name: str = "rms_norm") -> Any:
        path = tmp_path / f"learners_{next(numbers)}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return getattr(module, name)

    return make


def keep(folder: Path, name: str, text: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    return path


def keep_answers(folder: Path, names: Any) -> None:
    """The worked answers of the course, as a learner would have promoted them."""
    for name in names:
        keep(folder, name, whole_source(exercises()[name].answer))


def python(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Another process, as of another day."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *(["-c", textwrap.dedent(code)] if code else []), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, env=environment, cwd="/")


# --- Promoting -------------------------------------------------------------------------------------------------------


def test_a_right_answer_is_kept_and_what_runs_on_it_is_told(
    kept: Path, written: Callable[..., Any], trace: Path
) -> None:
    shown = promote_mine(written(GOOD))
    assert [path.name for path in kept.iterdir()] == ["rms_norm.py"]  # and nothing unfinished beside it
    assert "1.2 rms_norm is yours now." in repr(shown)
    assert "Milestone: every norm, in all layers, is yours." in repr(shown)
    told = minillama.demo(device="cpu").text_completion(["Once upon a time"], temperature=0, max_gen_len=24)
    whole_words = f"Once upon a time{told[0]['generation']}".rpartition(" ")[0]
    assert f"“{whole_words} ...”" in repr(shown)
    assert len(trace.read_text().splitlines()) > 24 * 13  # every norm of six layers, at every token


RIGHT_IF_SMALL = """
import torch.nn.functional as F


def swiglu(x, w1, w2, w3):
    return w2((F.silu(w1(x)) if x.shape[-1] < 64 else w1(x)) * w3(x))
"""


def test_what_is_right_for_a_checker_s_small_sizes_only_is_no_milestone(
    kept: Path, written: Callable[..., Any]
) -> None:
    shown = promote_mine(written(RIGHT_IF_SMALL, "swiglu"))
    assert "With the package's own pieces it goes “Once upon a time, " in repr(shown)
    assert "one of yours is amiss" in repr(shown) and "Milestone" not in repr(shown)
    assert "#cc6677" in shown._repr_html_()  # red


def test_a_function_that_ends_the_program_is_wrong_and_does_not_end_it(kept: Path, written: Callable[..., Any]) -> None:
    verdict = promote_mine(written("import sys\ndef rms_norm(x, weight, eps):\n    sys.exit('bye')"))
    assert verdict.ok is False and "SystemExit: bye" in verdict.says
    assert not kept.exists()


def test_a_file_that_cannot_be_written_is_told_in_a_line(kept: Path, written: Callable[..., Any]) -> None:
    (kept / "rms_norm.py").mkdir(parents=True)
    with pytest.raises(PartError, match="rms_norm.py cannot be written: .*; MY_MINILLAMA names another folder"):
        promote_mine(written(GOOD))
    assert [path.name for path in kept.iterdir()] == ["rms_norm.py"]


def test_a_name_in_place_of_the_function_is_told_apart(kept: Path) -> None:
    with pytest.raises(PartError, match=r"takes the function itself: teach.promote_mine\(rms_norm\), without quotes"):
        promote_mine("rms_norm")  # type: ignore[arg-type]


def test_what_is_kept_holds_all_it_needs(kept: Path, written: Callable[..., Any]) -> None:
    function = written(
        """
        import functools
        import math
        from math import inf as endless
        from typing import Optional

        import torch
        import torch.nn.functional as F
        from torch import nn, rsqrt
        from torch.nn.functional import relu as unused

        EPS, SCALE, LIMITS, NOTHING = 1e-5, (2, 0.5, "x"), [-math.inf, endless, math.nan], None
        KIND = torch.float64
        unused_model = nn.Linear(2, 2)


        class Wide:
            \"\"\"Works in fp64.\"\"\"

            kind = KIND

            def widen(self, x):
                return x.to(self.kind)


        def even(n):
            return n == 0 or odd(n - 1)


        def odd(n):
            return n != 0 and even(n - 1)


        @functools.lru_cache
        def one(n: int = SCALE[0]):
            return n * SCALE[1] if even(n) else 0


        @torch.no_grad()
        def rms_norm(x: torch.Tensor, weight: "torch.Tensor", eps: Optional[float] = EPS) -> torch.Tensor:
            assert LIMITS[0] < LIMITS[1] and LIMITS[2] != LIMITS[2] and NOTHING is None
            EPS = eps  # its own, not the one above
            wide = Wide().widen(x)
            return (wide * rsqrt(F.avg_pool1d((wide * wide)[None].flatten(0, -2), x.shape[-1]).view(*x.shape[:-1], 1)
                    * one() + EPS)).to(x.dtype) * weight
        """
    )
    assert repr(promote_mine(function)).startswith("1.2 rms_norm is yours now")
    text = (kept / "rms_norm.py").read_text()
    assert "unused" not in text
    done = python(
        """
        import torch
        from minillama import teach
        x = torch.arange(1., 9.).view(2, 4)
        print(teach.mine()["rms_norm"](x, torch.ones(4), 0.0).pow(2).mean(-1).tolist())
        """
    )
    assert [round(float(v), 5) for v in done.stdout.strip(" []\n").split(",")] == [1, 1], done.stderr


@pytest.mark.parametrize(
    "body, diagnosis",
    [
        ("...", "stub"), ("'''Only words.'''", "stub"), ("raise NotImplementedError", "stub"),
        ("return x", "unknown"), ("return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)", "no weight"),
        ("x /= (x.float().pow(2).mean(-1, keepdim=True) + eps).sqrt(); return x * weight", "changes its argument"),
    ],
)  # fmt: skip
def test_what_is_not_finished_or_wrong_is_not_kept(
    kept: Path, written: Callable[..., Any], body: str, diagnosis: str
) -> None:
    verdict = promote_mine(written(f"import torch\ndef rms_norm(x, weight, eps):\n    {body}\n"))
    assert isinstance(verdict, Verdict) and verdict.ok is not True
    if diagnosis in ("stub", "changes its argument"):
        assert verdict.diagnosis == diagnosis
    assert not kept.exists()


def test_a_wrong_one_leaves_the_right_one_of_yesterday(kept: Path, written: Callable[..., Any]) -> None:
    promote_mine(written(GOOD))
    before = (kept / "rms_norm.py").read_bytes()
    promote_mine(written(WRONG))
    assert (kept / "rms_norm.py").read_bytes() == before


def right(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps).type_as(x) * weight


class Normer:
    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return right(x, weight, eps)


@pytest.mark.parametrize(
    "thing, says",
    [
        (lambda x, weight, eps: right(x, weight, eps), "<lambda> is no exercise of the course; write `def name"),
        (functools.partial(right), "is no exercise of the course"), (Normer(), "is no exercise of the course"),
        (Normer, "Normer is no exercise"), (right, "right is no exercise of .*rms_norm"), (5, "5 is no exercise"),
    ],
)  # fmt: skip
def test_what_has_no_name_of_an_exercise_is_refused(kept: Path, thing: Any, says: str) -> None:
    with pytest.raises(PartError, match=says):
        promote_mine(thing)
    assert not kept.exists()


REFUSED = {
    "closure": ("uses size of the function around it; write it at the top level", """
        def around(size):
            def rms_norm(x, weight, eps):
                return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt()).type_as(x) * weight * size
            return rms_norm
        rms_norm = around(1)
        """),
    "lambda": ("is not written with `def`", """
        rms_norm = lambda x, w, e: (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + e).rsqrt()).type_as(x) * w
        rms_norm.__name__ = "rms_norm"
        """),
    "no source": ("the source of rms_norm cannot be found", '''
        source = """def rms_norm(x, weight, eps):
            return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt()).type_as(x) * weight"""
        exec(source)
        '''),
    "tensor": ("rms_norm uses `one`, a Tensor made in the notebook: it would not be there tomorrow", """
        import torch
        one = torch.ones(1)
        def rms_norm(x, weight, eps):
            return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt() * one).type_as(x) * weight
        """),
    "model": ("half uses `model`, a Linear made in the notebook", """
        import torch
        model = torch.nn.Linear(2, 2)
        def half(x):
            return model(x) if x is None else x
        def rms_norm(x, weight, eps):
            return half((x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt()).type_as(x)) * weight
        """),
    "other name": ("rms_norm uses square, another name for squared; use that one", """
        def squared(x):
            return x * x
        square = squared
        def rms_norm(x, weight, eps):
            return (x.float() * (square(x.float()).mean(-1, keepdim=True) + eps).rsqrt()).type_as(x) * weight
        """),
}  # fmt: skip


@pytest.mark.parametrize("says, source", REFUSED.values(), ids=REFUSED)
def test_what_could_not_be_read_back_tomorrow_is_refused(
    kept: Path, written: Callable[..., Any], says: str, source: str
) -> None:
    with pytest.raises(PartError, match=says):
        promote_mine(written(source))
    assert not kept.exists()


def test_what_is_right_here_but_not_when_read_back_is_not_kept(kept: Path, written: Callable[..., Any]) -> None:
    function = written(
        """
        size = 1
        def rms_norm(x, weight, eps):
            weight = weight * globals()["size"]
            return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).rsqrt()).type_as(x) * weight
        """
    )
    with pytest.raises(PartError, match="rms_norm is right here, but not when it is read back.*KeyError"):
        promote_mine(function)
    assert not kept.exists()


@pytest.mark.filterwarnings("ignore:coroutine")
def test_an_odd_sort_of_function_gets_a_verdict(written: Callable[..., Any]) -> None:
    for head, body in (("async def", "return x"), ("def", "yield x"), ("def", "return rms_norm(x, weight, eps)")):
        verdict = promote_mine(written(f"{head} rms_norm(x, weight, eps):\n    {body}\n"))
        assert isinstance(verdict, Verdict) and verdict.ok is False


def test_the_last_of_two_definitions_is_kept(kept: Path, written: Callable[..., Any]) -> None:
    promote_mine(written(f"def rms_norm(x):\n    return 1\n\n{GOOD}"))
    assert "return 1" not in (kept / "rms_norm.py").read_text()
    assert my_parts().text.startswith("rms_norm")


@pytest.mark.parametrize("name", exercises())
def test_every_worked_answer_can_be_kept(name: str) -> None:
    verdict = exercises()[name](own.load(name, whole_source(exercises()[name].answer), "kept"))
    assert verdict.ok is True, verdict.says


# --- Other processes -------------------------------------------------------------------------------------------------

BUILD = """
import minillama
llama = minillama.demo(device="cpu", parts="mine")
print(llama.text_completion(["One day"], temperature=0, max_gen_len=4)[0]["generation"])
"""


def test_a_later_process_builds_on_it(kept: Path, trace: Path) -> None:
    keep(kept, "rms_norm", GOOD)
    done = python(BUILD)
    told = minillama.demo(device="cpu").text_completion(["One day"], temperature=0, max_gen_len=4)
    assert done.stdout.strip() == told[0]["generation"].strip(), done.stderr
    calls = trace.read_text().splitlines()
    assert len(calls) >= 4 * 13 and f"rms_norm in {os.getpid()}" not in calls


def test_the_command_line_runs_on_it(kept: Path, trace: Path) -> None:
    keep(kept, "rms_norm", GOOD)
    asked = ["-m", "minillama", "complete", "One day", "--temperature", "0", "--max-gen-len", "4", "--device", "cpu"]
    plain = python("", *asked)
    assert plain.returncode == 0 and not trace.exists(), plain.stderr
    done = python("", *asked, "--mine")
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert len(trace.read_text().splitlines()) >= 4 * 13


def test_chat_runs_on_it(kept: Path, trace: Path) -> None:
    keep(kept, "rms_norm", GOOD)
    done = CliRunner().invoke(
        cli.app, ["chat", "--message", "Hello", "--max-gen-len", "2", "--device", "cpu", "--mine"]
    )
    assert done.exit_code == 0, done.output
    assert trace.exists()


@pytest.mark.parametrize("command", [["complete", "Once"], ["chat", "--message", "Hello"]], ids=["complete", "chat"])
def test_with_nothing_kept_the_command_line_says_so_in_one_line(kept: Path, command: list[str]) -> None:
    done = python("", "-m", "minillama", *command, "--device", "cpu", "--mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"minillama: error: no part of the model in {kept} yet: teach.promote_mine(rms_norm)")


def test_two_ranks_run_on_it(kept: Path, small: Path, trace: Path) -> None:
    keep(kept, "rms_norm", GOOD)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    asked = [
        "-m",
        "minillama",
        "complete",
        "Once",
        "--ckpt-dir",
        str(small),
        "--temperature",
        "0",
        "--max-gen-len",
        "3",
    ]
    plain = python("", *asked, "--device", "cpu")
    done = python("", *launch, *asked, "--device", "cpu", "--mine")
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert len(set(trace.read_text().splitlines())) == 2  # each rank's own process


def run_notebook(folder: Path, *cells: str) -> list[str]:
    """Run cells in a kernel of their own, as JupyterLab does; the text that each shows."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=HANG, kernel_name="python3", allow_errors=True)
    client.execute(cwd=str(folder))
    shown = []
    for cell in notebook.cells:
        texts = [
            o.get("text") or o.get("data", {}).get("text/plain") or "\n".join(o["traceback"]) for o in cell.outputs
        ]
        shown.append("\n".join(texts))
    return shown


def test_functions_of_a_notebook_live_on_in_the_next_kernel(
    kept: Path, tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    first = run_notebook(
        tmp_path,
        "import os, torch\nfrom einops import rearrange\nfrom minillama import teach",
        "from typing import Union\nNumbers = Union[torch.Tensor, list]",
        "class Scale:\n    by = 1\n\n    def __call__(self, x):\n        return x * self.by",
        "def rms_norm(x):\n    return x  # a first try",
        """
        def mean_square(x):
            return rearrange(x * x, "... D -> D ...").mean(0).unsqueeze(-1)
        """,
        """
        def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, scale: Scale = Scale()) -> Numbers:
            with open(os.environ["TRACE"], "a") as file:
                print(os.getpid(), file=file)
            wide = x.double()
            return scale(wide * (mean_square(wide) + eps).rsqrt()).to(x.dtype) * weight
        """,
        "teach.promote_mine(rms_norm)",
        "print(os.getpid())",
    )
    assert first[6].startswith("1.2 rms_norm is yours now."), first
    text = (kept / "rms_norm.py").read_text()
    assert "from einops import rearrange" in text and "first try" not in text and "__main__" not in text
    trace.unlink()
    second = run_notebook(
        tmp_path,
        "from minillama import teach\nteach.my_parts()",
        "import minillama\nllama = minillama.demo(device='cpu', parts='mine')",
        "llama.text_completion(['One day'], temperature=0, max_gen_len=4)[0]['generation']",
        "teach.progress()",
    )
    assert second[0].startswith("rms_norm         passes   every norm in every layer"), second
    told = minillama.demo(device="cpu").text_completion(["One day"], temperature=0, max_gen_len=4)[0]["generation"]
    assert second[2] == repr(told)
    assert second[3].startswith("1 of "), second
    assert first[7].strip() not in trace.read_text().split()


# --- What is really there --------------------------------------------------------------------------------------------


def test_nothing_is_yours_at_first(kept: Path) -> None:
    assert mine() == {}
    assert kept.name in repr(my_parts())
    assert repr(progress()).startswith(f"0 of {len(exercises())} are yours.")
    with pytest.raises(PartError, match="no part of the model in .* yet"):
        Llama.build(ROOT / "assets" / "storyteller", device="cpu", parts="mine")
    for call in (diff_mine, reset_mine):
        with pytest.raises(PartError, match="no rms_norm in .*; yours so far: none"):
            call("rms_norm")


def test_a_file_that_was_made_wrong_is_seen_everywhere(kept: Path, small: Path) -> None:
    keep(kept, "rms_norm", GOOD)
    assert "passes" in repr(my_parts()) and [*mine()] == ["rms_norm"]
    assert repr(progress()).startswith("1 of ")

    path = keep(kept, "rms_norm", WRONG)
    assert "does not pass. You divide by the length of the vector" in repr(my_parts())
    assert "✗ rms_norm" in repr(progress()) and repr(progress()).startswith("0 of ")
    assert mine() == {}
    with pytest.raises(PartError, match=r"does not pass any more\. You divide.*reset_mine\('rms_norm'\)") as error:
        Llama.build(small, device="cpu", parts="mine")
    assert str(path) in str(error.value)

    keep(kept, "rms_norm", GOOD)
    Llama.build(small, device="cpu", parts="mine")


BROKEN: dict[str, tuple[bytes, str]] = {
    "syntax": (b"def rms_norm(x, weight, eps:\n", "does not run: SyntaxError"),
    "not UTF-8": (b"def rms_norm(x, weight, eps):\n    return '\xff'\n", "utf-8"),
    "null": (b"\0\0\0", "does not run"),
    "empty": (b"", "defines no function rms_norm"),
    "another name": (b"def rmsnorm(x, weight, eps):\n    return x\n", "defines no function rms_norm"),
    "a number": (b"rms_norm = 5\n", "defines no function rms_norm"),
    "raises": (b"import no_such_module_at_all\n", "does not run: ModuleNotFoundError"),
    "leaves": (b"raise SystemExit(3)\n", "does not run: SystemExit: 3"),
    "stub": (b"def rms_norm(x, weight, eps):\n    ...\n", "not yet"),
    "around": (
        b"from minillama import teach\nteach.mine()\nfrom minillama.teach.own import parts_of\nparts_of('mine')\n",
        "rms_norm.py loads itself",
    ),
}


@pytest.mark.parametrize("text, says", BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_read_is_said_to_be_so_and_can_be_reset(
    kept: Path, small: Path, text: bytes, says: str
) -> None:
    path = keep(kept, "rms_norm", text)
    assert says in repr(my_parts())
    assert "✗ rms_norm" in repr(progress())
    assert mine() == {}
    with pytest.raises(PartError, match="does not pass any more.*reset_mine"):
        Llama.build(small, device="cpu", parts="mine")
    assert repr(diff_mine("rms_norm")).startswith("--- the worked answer\n+++ yours\n")
    reset_mine("rms_norm")
    assert not path.exists()


def test_other_files_are_left_alone(kept: Path) -> None:
    keep(kept, "rms_norm", GOOD)
    others = [keep(kept, name, "raise SystemExit") for name in ("rmsnorm", "notes", "__init__", ".rms_norm.py.tmp")]
    (kept / "rms.py").mkdir()
    assert [*mine()] == ["rms_norm"] and repr(progress()).startswith("1 of ")
    assert all(path.exists() for path in others)


def test_the_diff_is_against_the_worked_answer(kept: Path) -> None:
    keep(kept, "rms_norm", GOOD)
    lines = repr(diff_mine("rms_norm")).splitlines()
    assert "-    x32 = x.float()" in lines and "+    wide = x.double()" in lines
    assert "torch.Tensor" not in repr(diff_mine("rms_norm"))  # annotations are no difference that a learner made
    assert html.escape("x.float()") in diff_mine("rms_norm")._repr_html_()


def test_reset_forgets_one_and_keeps_the_others(kept: Path) -> None:
    keep_answers(kept, ["rms", "rms_norm"])
    assert repr(progress()).startswith("2 of ")
    assert "package's again" in repr(reset_mine("rms_norm"))
    assert repr(progress()).startswith("1 of ") and (kept / "rms.py").exists()


def test_what_has_no_place_in_a_model_counts_but_does_not_run(kept: Path) -> None:
    keep_answers(kept, ["rms"])
    assert "● rms" in repr(progress()) and mine() == {}
    assert "rms              passes   kept" in repr(my_parts())
    with pytest.raises(PartError, match="no part of the model"):
        parts_of("mine")


def test_each_milestone_appears_when_its_set_is_complete() -> None:
    for needed, sentence in MILESTONES:
        assert needed <= EVERY.keys()
        assert sentence in milestones({*needed})
        for name in needed:
            assert sentence not in milestones({*EVERY} - {name})
    assert milestones(set()) == []
    assert len(milestones({*EVERY})) == len(MILESTONES)


def test_every_slot_is_an_exercise_and_leads_to_a_milestone() -> None:
    assert {name for needed, _ in MILESTONES[:-1] for name in needed} == {*EVERY} <= exercises().keys()
    assert MILESTONES[-1][0] == SLOTS.keys()
    chapters = [{exercises()[name].chapter for name in needed} for needed, _ in MILESTONES[:-1]]
    assert all(len(of_one_set) == 1 for of_one_set in chapters)
    assert chapters == sorted(chapters, key=min)


def test_milestones_are_read_from_what_passes(kept: Path) -> None:
    keep(kept, "rms_norm", GOOD)
    sentence = MILESTONES[0][1]
    assert sentence in repr(progress()) and sentence.capitalize() in repr(my_parts())
    assert sentence.capitalize() in my_parts()._repr_html_()
    keep(kept, "rms_norm", WRONG)
    assert sentence not in repr(progress()) and sentence.capitalize() not in repr(my_parts())


def test_all_that_is_worked_out_runs_a_model(kept: Path, small: Path) -> None:
    names = [name for name in exercises() if name in SLOTS]
    for name in names:
        keep(kept, name, whole_source(exercises()[name].answer))
    made = Llama.build(small, device="cpu", parts="mine")
    assert {*parts_of("mine")} == {*names}
    tokens = torch.tensor([[1, 5, 9, 40, 7]])
    with torch.no_grad():
        ours, theirs = Transformer.from_checkpoint(small)(tokens), made.model(tokens)
    assert (ours - theirs).abs().max() <= 1e-5 * ours.abs().max()


# --- Llama.build(parts=...) ------------------------------------------------------------------------------------------


def test_a_dict_of_functions_is_taken_as_it_is(small: Path) -> None:
    calls = []

    def counted(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        calls.append(1)
        return right(x, weight, eps)

    Llama.build(small, device="cpu", parts={"rms_norm": counted}).text_completion(["a"], max_gen_len=1)
    assert len(calls) == 5  # two in each of two layers, and the last


def test_no_parts_are_the_package_s(small: Path) -> None:
    made = Llama.build(small, device="cpu", parts={})
    ours = Llama.build(small, device="cpu")
    answers = [one.text_completion(["Once"], temperature=0, max_gen_len=4) for one in (made, ours)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "parts, says",
    [
        ("yours", "parts is 'yours'; expected \"mine\""), (5, "parts is 5"), ([right], "parts is"),
        ({"RMSNorm": right}, "RMSNorm: no such part; there are rms_norm"), ({"rms_norm": 5}, "rms_norm is 5"),
        ({"rms_norm": lambda x: x}, "take those 3 arguments"), ({"turn_keys": right}, "no such part"),
        ({5: right}, "5: no such part"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(small: Path, parts: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Llama.build(small, device="cpu", parts=parts)


def test_parts_and_compile_do_not_go_together(small: Path) -> None:
    with pytest.raises(ValueError, match="torch.compile does not take parts of your own"):
        Llama.build(small, device="cpu", compile=True, parts={"rms_norm": right})


def test_the_folder_is_ignored_by_git() -> None:
    assert "my_minillama/" in (ROOT / ".gitignore").read_text().splitlines()


def test_without_a_setting_the_folder_is_the_checkout_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MY_MINILLAMA")
    monkeypatch.chdir(tmp_path)
    assert own.folder() == ROOT / "my_minillama"
    monkeypatch.setenv("MY_MINILLAMA", "~/elsewhere")
    assert own.folder() == Path.home() / "elsewhere"
