"""A learner's own minillama: finished functions kept as source in `my_minillama/`, and run inside real models.

The folder is all there is: what is in it, and whether it still passes, is looked at whenever it is asked for.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import difflib
import html
import inspect
import linecache
import math
import os
import re
import subprocess
import symtable
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from minillama.teach.exercise import COLORS, Exercise, Verdict, exercises, framed, marked, source_of
from minillama.teach.slots import EVERY, LOOP, RANKS, SLOTS, PartError

Function = Callable[..., Any]
FOLDER = "MY_MINILLAMA"  # the variable of the environment that names another folder
BEGINNING = "Once upon a time"  # of what a promoted function is tried on
PROCESSES = 2  # that a rank's function is tried on
PATIENCE = 300  # seconds that they may take
MARKS = {"●": "green", "✗": "red", "○": "grey"}  # of exercises: yours, does not pass any more, not yet
AS_TEXT = "from __future__ import annotations"
_loading: list[str] = []  # files that are being read just now

# What runs on a learner's code once these are theirs, in the order of the chapters.
MILESTONES: list[tuple[frozenset[str], str]] = [
    (frozenset({"rms_norm"}), "every norm, in all layers, is yours"),
    (frozenset({"rotation_table", "rotate"}), "every query and key is turned by you"),
    (frozenset({"attend", "may_look"}), "attention, in all layers, is yours"),
    (frozenset({"remember"}), "what is remembered goes through your cache"),
    (frozenset({"swiglu"}), "the feed-forward block, in all layers, is yours"),
    (frozenset({"block", "stack"}), "the way through the layers is yours"),
    (frozenset(LOOP), "every token is drawn by you, and the loop that asks for the next one is yours"),
    (frozenset(RANKS), "under torchrun, what every rank holds is cut by you, and its parts are computed by you"),
    (frozenset(SLOTS), "the whole stack, from embedding to head, is yours: only the matrices are ours"),
]  # fmt: skip


@dataclass
class Mine:
    """One saved function. verdict: what its checker says of it today; error: why it could not even be read."""

    name: str
    path: Path
    function: Function | None
    verdict: Verdict | None
    error: str = ""

    @property
    def passes(self) -> bool:
        return self.verdict is not None and self.verdict.ok is True


class Shown:
    """Text for a terminal, HTML for a notebook."""

    def __init__(self, text: str, page: str | None = None):
        self.text = text
        self.page = page

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.page if self.page is not None else f"<pre>{html.escape(self.text)}</pre>"


def folder() -> Path:
    """Where the functions are kept: $MY_MINILLAMA, or `my_minillama` in the checkout, or in the current folder."""
    if named := os.environ.get(FOLDER):
        return Path(os.path.expanduser(named))
    checkout = Path(__file__).resolve().parents[2]
    return (checkout if (checkout / "notebooks").is_dir() else Path.cwd()) / "my_minillama"


def promote_mine(function: Function) -> Verdict | Shown:
    """Check `function` and keep its source as yours; from then on `parts="mine"` and `--mine` run on it.

    A function that is not finished, or wrong, is not kept: what is returned says why.
    """
    if isinstance(function, str):
        raise PartError(f"promote_mine takes the function itself: teach.promote_mine({function}), without quotes")
    name = getattr(function, "__name__", None)
    known = exercises()
    if name not in known:
        raise PartError(
            f"{name or repr(function)} is no exercise of the course; write `def name(...):`, where name is one of "
            f"{', '.join(known)}"
        )
    exercise = known[name]
    verdict = exercise(function)
    if verdict.ok is None:  # its hints stand below the check already
        return replace(verdict, says="not yet, so nothing is kept.", helps=False)
    if verdict.ok is not True:
        return verdict
    text = whole_source(function)
    again = exercise(load(name, text, "what was saved"))
    if again.ok is not True:
        raise PartError(f"{name} is right here, but not when it is read back from its source: {again.says}")
    _save(folder() / f"{name}.py", text)
    return _receipt(exercise)


def mine(ranks: bool = False) -> dict[str, Function]:
    """Your functions that run in a model, for `teach.swapped(**teach.mine())`. Empty before the first is promoted.

    ranks: chapter 09's as well, which have work under `torchrun` only, for `Llama.build(parts=...)`.
    """
    names = EVERY if ranks else SLOTS | LOOP
    return {item.name: item.function for item in saved() if item.passes and item.function and item.name in names}


def worked(loop: bool = False, ranks: bool = False) -> dict[str, Function]:
    """The worked answers that run in a model, for `teach.swapped(**(teach.worked() | teach.mine()))`.

    loop: chapter 08's as well; ranks: chapter 09's as well, see `mine`.
    """
    names = SLOTS | (LOOP if loop else {}) | (RANKS if ranks else {})
    return {name: exercise.answer for name, exercise in exercises().items() if name in names}


def saved() -> list[Mine]:
    """Every function in the folder, read and checked now, in the order of the course."""
    found = []
    for name, exercise in exercises().items():
        path = folder() / f"{name}.py"
        if not path.is_file():
            continue
        try:
            function = load(name, path.read_text(encoding="utf-8-sig"), str(path))
        except (PartError, OSError, UnicodeDecodeError) as error:
            found.append(Mine(name, path, None, None, str(error)))
            continue
        found.append(Mine(name, path, function, exercise(function)))
    return found


def my_parts() -> Shown:
    """What is yours so far, whether it still passes, and what runs on it."""
    items = saved()
    if not items:
        return Shown(
            f"Nothing is yours yet: `teach.promote_mine(rms_norm)` keeps a finished function in {folder().name}/."
        )
    lines, rows = [], ""
    for item in items:
        state = "passes" if item.passes else f"does not pass. {item.error or (item.verdict and item.verdict.says)}"
        place = EVERY[item.name].place if item.name in EVERY else "kept"
        lines.append(f"{item.name:16} {state:8} {place}")
        rows += f"<tr><td><code>{item.name}</code></td><td>{marked(state)}</td><td>{place}</td></tr>"
    reached = [f"{sentence}." for sentence in milestones({item.name for item in items if item.passes})]
    page = f"<table><tr><th>yours</th><th>today</th><th>runs as</th></tr>{rows}</table>"
    if reached:
        lines.append(reached[-1].capitalize())
        page += f"<p>{reached[-1].capitalize()}</p>"
    return Shown("\n".join(lines), page)


def diff_mine(name: str) -> Shown:
    """Your function beside the worked answer, as a diff."""
    item = _find(name)
    text = item.path.read_text(encoding="utf-8", errors="replace")
    theirs = text[max(0, text.find(f"def {name}(")) :].splitlines(keepends=True)  # imports and helpers stand before
    ours = (source_of(exercises()[name].answer) + "\n").splitlines(keepends=True)
    lines = difflib.unified_diff(ours, theirs, "the worked answer", "yours")
    return Shown("".join(lines) or f"{name}: yours is the worked answer, to the letter.")


def reset_mine(name: str = "") -> Shown:
    """Forget your function: models run on the package's again."""
    item = _find(name)
    item.path.unlink()
    return Shown(f"{name} is the package's again.")


def parts_of(parts: str | Mapping[str, Function]) -> dict[str, Function]:
    """The functions that `Llama.build(parts=...)` means: "mine", or a dict of slots.

    Raises PartError where nothing is saved, or where something saved does not pass any more.
    """
    if isinstance(parts, Mapping):
        return dict(parts)
    if parts != "mine":
        raise PartError(f'parts is {parts!r}; expected "mine", or a dict of functions for {", ".join(EVERY)}')
    items = saved()
    for item in items:
        if not item.passes:
            says = item.error or (item.verdict.says if item.verdict else "")
            remedy = f"Mend it and promote it again, or forget it: in Python, teach.reset_mine({item.name!r})"
            raise PartError(f"your {item.name} in {item.path} does not pass any more. {says.rstrip('.')}. {remedy}")
    found = {item.name: item.function for item in items if item.function and item.name in EVERY}
    if not found:
        raise PartError(
            f"no part of the model in {folder()} yet: teach.promote_mine(rms_norm) in chapter 01 is a start"
        )
    return found


def milestones(names: set[str]) -> list[str]:
    """Sentences about what runs on these functions."""
    return [sentence for needed, sentence in MILESTONES if needed <= names]


def progress() -> Shown:
    """How far you are: every exercise of the course, from what is saved and passes today."""
    state = {item.name: item.passes for item in saved()}
    by_chapter: dict[int, list[Exercise]] = {}
    for exercise in exercises().values():
        by_chapter.setdefault(exercise.chapter, []).append(exercise)
    lines, rows = [], ""
    for chapter, group in by_chapter.items():
        marks = ["●" if state.get(e.name) else "✗" if e.name in state else "○" for e in group]
        lines.append(f"{chapter:02} " + "  ".join(f"{mark} {e.name}" for mark, e in zip(marks, group)))
        cells = " &nbsp; ".join(
            f'<span style="color:{COLORS[MARKS[mark]]}">{mark}</span> <code>{e.name}</code>'
            for mark, e in zip(marks, group)
        )
        rows += f'<tr><td>{chapter:02}</td><td style="text-align:left">{cells}</td></tr>'
    done = sum(state.values())
    total = sum(map(len, by_chapter.values()))
    summary = f"{done} of {total} are yours"
    reached = milestones({name for name, passes in state.items() if passes})
    if reached:
        summary += f": {reached[-1]}"
    bar = (
        f'<div style="border:1px solid {COLORS["grey"]};height:.7em;width:24em;max-width:100%">'
        f'<div style="background:{COLORS["green"]};height:100%;width:{100 * done / max(total, 1):.0f}%"></div></div>'
    )
    page = f"{bar}<p>{html.escape(summary)}.</p><table>{rows}</table>"
    return Shown("\n".join([f"{summary}.", *lines]), page)


def _receipt(exercise: Exercise) -> Shown:
    """What promotion brought: the place in the model, the milestones, and a sentence by a model that runs on it."""
    lines, color = [f"{exercise.number} {exercise.name} is yours now."], "green"
    if exercise.name in EVERY:
        on_ranks = exercise.name in RANKS
        items = mine(ranks=on_ranks)
        where = f"on {PROCESSES} processes" if on_ranks else "running"
        lines.append(f"It is {EVERY[exercise.name].place}. The demo model, {where} with your {', '.join(items)}:")
        try:
            told = _told_by_ranks() if on_ranks else _told(items, exercise.name in LOOP)
            alone = _told(mine(), False) if on_ranks else _told({}, exercise.name in LOOP)
        except PartError as error:
            lines.append(f"it stops there: {error}")
            color = "red"
        else:
            lines.append(f"“{told.rpartition(' ')[0]} ...”")  # the last word may not be whole
            if told != alone:  # one that is right for the small sizes of its checker, say
                beside = "On one process" if on_ranks else "With the package's own pieces"
                lines.append(f"{beside} it goes “{alone.rpartition(' ')[0]} ...”, so one of yours is amiss.")
                color = "red"
            else:
                lines += ["Word for word what one process tells."] * on_ranks
                reached = [sentence for needed, sentence in MILESTONES if exercise.name in needed <= items.keys()]
                lines += [f"Milestone: {sentence}." for sentence in reached]
    page = "".join(f"<p>{marked(line)}</p>" for line in lines)
    return Shown("\n".join(lines), framed(color, page))


def _told(items: Mapping[str, Function], drawn: bool) -> str:
    """A sentence by the demo model with `items` in it. At temperature 0 nothing is drawn."""
    from minillama.storyteller import demo

    how: Any = dict(temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=1) if drawn else dict(temperature=0)
    llama = demo(device="cpu", parts=items)
    return BEGINNING + llama.text_completion([BEGINNING], max_gen_len=24, **how)[0]["generation"]


def _told_by_ranks() -> str:
    """The same by several processes, which find what is yours for themselves."""
    print(f"Trying it on {PROCESSES} processes, which takes some seconds to half a minute ...", flush=True)
    command = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(PROCESSES), "-m", "minillama"]
    command += ["complete", "--mine", "--device", "cpu", "--temperature", "0", "--max-gen-len", "24", BEGINNING]
    home = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, FOLDER: str(folder().resolve())}
    pipes: Any = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", env=env)
    with subprocess.Popen([sys.executable, "-m", *command], **pipes) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise PartError(f"it was not done after {PATIENCE} s: does it end for every size?") from None
        finally:
            process.terminate()  # not killed: torchrun has to end its processes
    if process.returncode:
        # The command line's own sentence, or what Python said before torchrun summed up who ended how.
        said = re.search(r"(?m)^minillama: error: (.*)|^\[rank\d+\]: (\w*(?:Error|Exception)\b.*)", err)
        raise PartError(next(filter(None, said.groups())) if said else err[-500:])
    return out.strip()


def _find(name: str) -> Mine:
    for item in saved():
        if item.name == name:
            return item
    kept = ", ".join(item.name for item in saved()) or "none"
    if not name:
        raise PartError(f'say which one: teach.reset_mine("rms_norm"), for instance; yours so far: {kept}')
    raise PartError(f"no {name} in {folder()}; yours so far: {kept}")


def _save(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise PartError(f"{path} cannot be written: {error.strerror}; {FOLDER} names another folder") from None


def load(name: str, text: str, origin: str) -> Function:
    """The function `name` that `text` defines. Raises PartError if there is none, or the text does not run."""
    names: dict[str, Any] = {"__name__": f"my_minillama.{name}"}
    if origin in _loading:  # it asks for `mine()`, say
        raise PartError(f"{origin} loads itself")
    _loading.append(origin)
    try:
        linecache.checkcache(origin)  # a message that shows a line shows it as it is today
        exec(compile(text, origin, "exec", dont_inherit=True), names)
    except (Exception, SystemExit) as error:
        raise PartError(f"{origin} does not run: {type(error).__name__}: {error}") from error
    finally:
        _loading.remove(origin)
    if not callable(names.get(name)):
        raise PartError(f"{origin} defines no function {name}")
    return names[name]


def whole_source(function: Function) -> str:
    """The source of `function` with the imports, constants and helpers of the notebook that it uses.

    Raises PartError, naming it, for something that cannot be written down, such as a model made in the notebook.
    """
    imports: dict[str, None] = {}
    pieces: dict[str, str] = {}
    _gather(function, imports, pieces)
    if AS_TEXT in imports:  # has to come first
        imports = {AS_TEXT: None, **imports}
    head = "\n".join(imports)
    return (f"{head}\n\n\n" if head else "") + "\n\n\n".join(pieces.values()) + "\n"


def _gather(thing: Any, imports: dict[str, None], pieces: dict[str, str]) -> None:
    name, inner = thing.__name__, inspect.unwrap(thing)
    if name in pieces:
        return
    if isinstance(inner, FunctionType) and (inside := [v for v in inner.__code__.co_freevars if v != "__class__"]):
        raise PartError(
            f"{name} uses {', '.join(inside)} of the function around it; write it at the top level of a cell"
        )
    try:
        source = _source(inner)
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        raise PartError(f"the source of {name} cannot be found; write it in a cell, at its top level") from None
    if not isinstance(tree.body[0], (ast.FunctionDef, ast.ClassDef)):
        raise PartError(f"{name} is not written with `def`; write `def {name}(...):`")
    namespace = inner.__globals__ if isinstance(inner, FunctionType) else vars(sys.modules[inner.__module__])
    pieces[name] = ""  # helpers may call each other
    if isinstance(inner, FunctionType) and inner.__code__.co_flags & annotations.compiler_flag:
        imports[AS_TEXT] = None
    needed = _free_names(_unannotated(tree))
    for used in _free_names(source):
        if used == name or used not in namespace or _of_the_shell(used, namespace[used]):
            continue
        try:
            _write_down(name, used, namespace[used], inner, imports, pieces)
        except PartError:
            if used in needed:
                raise
            imports[AS_TEXT] = None  # an annotation may name what is not there
    del pieces[name]
    pieces[name] = source  # after what it needs


def _source(thing: Any) -> str:
    """As `inspect.getsource`, which finds no class of a notebook before Python 3.13: its methods tell the cell."""
    if isinstance(thing, type):
        for method in vars(thing).values():
            lines = linecache.getlines(method.__code__.co_filename) if isinstance(method, FunctionType) else []
            for node in ast.parse("".join(lines)).body:
                if isinstance(node, ast.ClassDef) and node.name == thing.__name__:
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    return "".join(lines[first - 1 : node.end_lineno]).rstrip()
    return textwrap.dedent(inspect.getsource(thing)).rstrip()


def _write_down(name: str, used: str, value: Any, thing: Any, imports: dict[str, None], pieces: dict[str, str]) -> None:
    home = getattr(value, "__module__", None)
    if isinstance(value, ModuleType):
        plain = "." not in value.__name__ and value.__name__ == used
        imports[f"import {used}" if plain else f"import {value.__name__} as {used}"] = None
    elif isinstance(inspect.unwrap(value) if callable(value) else value, (FunctionType, type)) and (
        home in (thing.__module__, "__main__") or str(home).startswith("my_minillama.")
    ):
        if value.__name__ != used:
            raise PartError(f"{name} uses {used}, another name for {value.__name__}; use that one")
        _gather(value, imports, pieces)
    elif _plain(value):
        pieces.setdefault(used, f"{used} = {_written(value)}")
    elif isinstance(value, torch.dtype):
        imports["import torch"] = None
        pieces.setdefault(used, f"{used} = {value!r}")
    elif (found := _importable(value, used)) is not None:
        imports[f"from {found[0]} import {found[1]}" + (f" as {used}" if used != found[1] else "")] = None
    else:
        raise PartError(
            f"{name} uses `{used}`, a {type(value).__name__} made in the notebook: it would not be there tomorrow. "
            "Take it as an argument, or compute it inside"
        )


def _importable(value: Any, used: str) -> tuple[str, str] | None:
    """The module that has `value`, and its name there. Functions of C do not know their module."""
    parts = str(getattr(value, "__module__", "")).split(".")
    homes = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]  # the package, if it hands it on
    for module in (*homes, "torch", "torch.nn.functional", "typing"):
        for name in (getattr(value, "__name__", None), used):
            known = vars(sys.modules[module]) if module in sys.modules and module != "__main__" else {}
            if isinstance(name, str) and known.get(name) is value:
                return module, name
    return None


def _of_the_shell(used: str, value: Any) -> bool:
    """Whether this is a builtin that IPython has wrapped: `open`."""
    return callable(value) and inspect.unwrap(value) is vars(builtins).get(used)


def _unannotated(tree: ast.Module) -> str:
    """The source of `tree` without annotations."""
    tree = copy.deepcopy(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
    return ast.unparse(tree)


def _plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_plain, value))
    return type(value) in (bool, int, float, str, bytes, type(None))


def _written(value: Any) -> str:
    if type(value) in (tuple, list):
        inside = ", ".join(map(_written, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return f"float({str(value)!r})" if value != value or value in (math.inf, -math.inf) else repr(value)


def _free_names(source: str) -> list[str]:
    """Names that `source` takes from the module around it, for its code, its defaults, decorators or annotations."""
    found: dict[str, None] = {}

    def look(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            if symbol.is_global() if table.get_type() != "module" else symbol.is_referenced():
                found[symbol.get_name()] = None
        for child in table.get_children():
            look(child)

    look(symtable.symtable(source, "<your source>", "exec"))
    return list(found)
