"""Promoted cells are the package's modules, byte for byte: `python -m minillama.teach.promote`.

A code cell with the tag `promote` and the first line `# promote: minillama/rope.py` is a part of that module. The
module is its cells, in order, without those lines, two blank lines between them and one newline at the end.

    python -m minillama.teach.promote                 cells -> modules
    python -m minillama.teach.promote --check         do they agree? A diff, and exit code 1, if not
    python -m minillama.teach.promote --pull rope     an edit made in the module -> back into its cells
"""

from __future__ import annotations

import argparse
import ast
import builtins
import difflib
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

TAG = "promote"
FIRST_LINE = re.compile(r"# promote: (minillama/[a-z][a-z0-9_]*\.py)")
LIKE_FIRST_LINE = re.compile(r"\s*#\s*promote\s*:", re.IGNORECASE)
CHAPTER = re.compile(r"\d\d_\w+\.ipynb")  # two digits: the order of the names is the order of the chapters
BASE = "minillama/args.py"  # the one module that every chapter may import and no notebook has to promote
BETWEEN = "\n\n\n"
RUNS_AT_ONCE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
# What Python binds before a module's or a class's first line.
ALWAYS_THERE = {*dir(builtins), "__name__", "__file__", "__doc__", "__spec__", "__module__", "__qualname__"}


class PromotionError(ValueError):
    """The notebooks cannot be promoted as they stand; each line names a notebook, a cell and what to do."""


@dataclass(frozen=True)
class CodeCell:
    """number: counted from 1, all cells of the notebook; tree: None where IPython's own syntax is in the way."""

    notebook: Path
    number: int
    id: str
    source: str
    tree: ast.Module | None = field(repr=False, compare=False)

    @property
    def where(self) -> str:
        return f"{shown(self.notebook)}, cell {self.number}" + (f" (id {self.id})" if self.id else "")


@dataclass(frozen=True)
class PromotedCell(CodeCell):
    """source: without the first line and without newlines at the end."""

    tree: ast.Module = field(repr=False, compare=False)
    module: str = ""  # "minillama/rope.py"


Promoted = dict[str, list[PromotedCell]]


class Bound(NamedTuple):
    """A name that a statement binds; origin: what was imported, "minillama.rope.apply_rotary_emb", else None."""

    name: str
    origin: str | None = None
    renamed: bool = False


class Part(NamedTuple):
    """A statement at top level, or a line of comment there: lines start to end - 1, counted from 0."""

    start: int
    end: int
    names: set[str]


# What others ask


def find_notebooks() -> Path:
    """The checkout's `notebooks/`: beside the package, else in the nearest folder above the current one."""
    beside = Path(__file__).resolve().parents[2]
    here = Path.cwd()
    for parent in (beside, here, *here.parents):
        if (parent / "notebooks").is_dir():
            return parent / "notebooks"
    raise FileNotFoundError(
        f"no folder notebooks/ in {beside}, nor in {here} or above it; run this inside a checkout of minillama"
    )


def read_cells(notebook: Path) -> list[PromotedCell]:
    """The promoted cells of one notebook, in order. Raises PromotionError if one is not marked as it should be."""
    cells, problems = _read(notebook, _bytes(notebook))
    _raise(problems)
    return [cell for cell in cells if isinstance(cell, PromotedCell)]


def module_texts(folder: Path) -> dict[str, str]:
    """{"minillama/norm.py": its text, ...}. Raises PromotionError, naming the cells, if any rule is broken."""
    return {module: joined(cells) for module, cells in _promoted(folder).items()}


def chapter_of(module: str) -> Path | None:
    """The notebook that promotes `module` ("rope", "rope.py" or "minillama/rope.py"), None if there is none."""
    module = module_name(module)
    for notebook in _paths(find_notebooks()):
        if any(cell.module == module for cell in read_cells(notebook)):
            return notebook
    return None


def module_name(module: str) -> str:
    """`rope` and `rope.py` are short for `minillama/rope.py`."""
    name = module.replace(os.sep, "/").removeprefix("./").removeprefix("minillama/").removesuffix(".py")
    return f"minillama/{name}.py"


def joined(cells: Sequence[PromotedCell]) -> str:
    return BETWEEN.join(cell.source for cell in cells) + "\n"


def shown(notebook: Path) -> str:
    return f"{notebook.parent.name}/{notebook.name}"


# The three commands


def write(folder: Path) -> list[str]:
    """Write the modules that differ from their cells; returns their names."""
    texts = {module: text.encode() for module, text in module_texts(folder).items()}
    changed = [module for module, text in texts.items() if _on_disk(folder, module) != text]
    for module in changed:
        _replace(folder.parent / module, texts[module])
    return changed


def differences(folder: Path) -> dict[str, str]:
    """{module: what to read about it} for each module that is not its cells, byte for byte."""
    reports = {}
    for module, cells in _promoted(folder).items():
        text, content, notebook = joined(cells), _on_disk(folder, module), shown(cells[0].notebook)
        if content is None:
            reports[module] = f"{module} is not there, and {notebook} promotes it: `make promote` writes it\n"
        elif content != text.encode():
            reports[module] = _diff(content.decode("utf-8", "replace"), text, module, notebook) + (
                f"{module} differs from its cells in {notebook} (+).\n"
                "  The cell is right: make promote\n"
                f"  The module is right: python -m minillama.teach.promote --pull {module}\n"
            )
    return reports


def pull(folder: Path, module: str) -> list[str]:
    """Carry an edit made in the module back into its cells; returns a diff of each cell that changed.

    Raises PromotionError, and changes nothing, if it is not clear where one cell ends and the next begins.
    """
    module = module_name(module)
    promoted = _promoted(folder)
    if module not in promoted:
        known = ", ".join(sorted(promoted)) or "none"
        raise PromotionError(f"no notebook promotes {module}; promoted modules: {known}")
    cells, content = promoted[module], _on_disk(folder, module)
    if content is None:
        raise PromotionError(f"{module} is not there, so nothing can be pulled from it; `make promote` writes it")
    pieces = _cut(cells, module, content)
    changed = [(cell, piece) for cell, piece in zip(cells, pieces) if cell.source != piece]
    if not changed:
        return []

    notebook = cells[0].notebook
    old = _bytes(notebook)
    data = json.loads(old)
    if _dumped(data) != old:
        raise PromotionError(
            f"{shown(notebook)} is not laid out as Jupyter saves it, so more than the cells would change; "
            "open it in JupyterLab, save it, and pull again"
        )
    for cell, piece in changed:
        source = f"# promote: {module}\n{piece}"
        data["cells"][cell.number - 1]["source"] = source.splitlines(keepends=True)  # as nbformat splits it
    new = _dumped(data)
    try:
        _promoted(folder, {notebook: new})
    except PromotionError as error:
        raise PromotionError(f"{module} was not pulled, its cells would break a rule of promotion:\n{error}") from None
    _replace(notebook, new)
    return [_diff(cell.source + "\n", piece + "\n", cell.where, module) for cell, piece in changed]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m minillama.teach.promote",
        description="Write the modules that the notebooks' promoted cells make up.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing; exit code 1 and a diff if any differs")
    what.add_argument("--pull", metavar="MODULE", help="carry an edit made in the module back into its cells")
    parser.add_argument("--notebooks", type=Path, help="their folder; the package lies beside it (default: found)")
    options = parser.parse_args(arguments)
    try:
        folder = options.notebooks.resolve() if options.notebooks else find_notebooks()
        if options.check:
            reports = differences(folder)
            print("\n".join(reports.values()), end="")
            if not reports:
                print(f"promoted modules: {len(module_texts(folder))}, each equal to its cells")
            return 1 if reports else 0
        if options.pull:
            print("\n".join(pull(folder, options.pull)) or f"{module_name(options.pull)} equals its cells already")
            return 0
        for module in (changed := write(folder)):
            print(f"wrote {module}")
        if not changed:
            print("nothing to write: each promoted module equals its cells")
        return 0
    except (PromotionError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


# Reading


def _paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}; expected the one with the course's notebooks")
    return sorted(path for path in folder.glob("*.ipynb") if not path.name.startswith("."))


def _bytes(notebook: Path) -> bytes:
    if not notebook.is_file():
        raise FileNotFoundError(f"no notebook {notebook}")
    return notebook.read_bytes()


def _on_disk(folder: Path, module: str) -> bytes | None:
    path = folder.parent / module
    return path.read_bytes() if path.is_file() else None


def _read(notebook: Path, content: bytes) -> tuple[list[CodeCell], list[str]]:
    """All code cells, and what is wrong with the marks of those that are promoted or look so."""
    cells: list[CodeCell] = []
    problems: list[str] = []
    for number, raw in enumerate(_raw_cells(notebook, content), 1):
        source = "".join(raw.get("source", ""))
        tagged = TAG in raw.get("metadata", {}).get("tags", [])
        code = raw.get("cell_type") == "code"
        cell = CodeCell(notebook, number, raw.get("id", ""), source, _parsed(source) if code else None)
        if not code:
            if tagged:
                problems.append(f"{cell.where} has the tag `{TAG}` and is no code cell; take the tag off")
            continue
        cells.append(cell)
        first, _, rest = source.partition("\n")
        match = FIRST_LINE.fullmatch(first)
        if not tagged:
            if LIKE_FIRST_LINE.match(source):  # blank lines before it as well
                problems.append(
                    f"{cell.where} begins with {source.lstrip().splitlines()[0]!r} and lacks the tag `{TAG}`; "
                    "add the tag (JupyterLab: the gears at the top right), or take the line away"
                )
        elif not LIKE_FIRST_LINE.match(first):
            problems.append(
                f"{cell.where} has the tag `{TAG}` and its first line is {first!r}; "
                "expected `# promote: minillama/NAME.py`: add it, or take the tag off"
            )
        elif not match:
            problems.append(
                f"{cell.where} has the first line {first!r}; expected exactly `# promote: minillama/NAME.py`, "
                "a module in the folder minillama/ itself"
            )
        elif not rest.strip():
            problems.append(f"{cell.where} promotes nothing: there is no code after its first line; delete the cell")
        else:
            try:
                tree = _parse(rest)
            except (SyntaxError, ValueError) as error:
                line = f", line {error.lineno + 1}" if isinstance(error, SyntaxError) and error.lineno else ""
                problems.append(
                    f"{cell.where}{line}: a promoted cell has to be plain Python ({error.args[0]}); "
                    "correct it, or move lines for IPython (% and !) to an ordinary cell"
                )
                continue
            cells[-1] = PromotedCell(notebook, number, cell.id, rest.rstrip("\n"), tree, match[1])
    return cells, problems


def _raw_cells(notebook: Path, content: bytes) -> list[dict[str, Any]]:
    try:
        data = json.loads(content)
    except ValueError as error:
        raise PromotionError(f"{shown(notebook)} is not JSON ({error}); restore it, or undo the merge") from None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise PromotionError(f"{shown(notebook)} has no list of cells; save it in JupyterLab, which writes format 4")
    return cells


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a doubtful escape in a string is ruff's to tell
        return ast.parse(source)


def _parsed(source: str) -> ast.Module | None:
    """An ordinary cell's syntax, its lines for IPython taken out; None if it is something else, as in `%%bash`."""
    try:
        return _parse(source)  # as it stands: a line of a long expression may begin with %
    except (SyntaxError, ValueError):
        pass
    source = re.sub(r"^([^\S\n]*[\w, \t]+=[ \t]*)[%!].*$", r"\1None", source, flags=re.MULTILINE)  # files = !ls
    source = re.sub(r"^([^\S\n]*)(?:[%!?].*|.*\?)$", r"\1pass", source, flags=re.MULTILINE)
    try:
        return _parse(source)
    except (SyntaxError, ValueError):
        return None


# The rules


def _promoted(folder: Path, instead: Mapping[Path, bytes] | None = None) -> Promoted:
    """The cells of each module. Raises PromotionError with all that is wrong; instead: contents not yet on disk."""
    cells: list[CodeCell] = []
    problems: list[str] = []
    for notebook in _paths(folder):
        content = (instead or {}).get(notebook)
        more, wrong = _read(notebook, _bytes(notebook) if content is None else content)
        cells += more
        problems += wrong
    _raise(problems)
    promoted: Promoted = {}
    for cell in cells:
        if isinstance(cell, PromotedCell):
            promoted.setdefault(cell.module, []).append(cell)
    _raise(_wrong_places(promoted))
    _raise([*_wrong_names(cells), *_wrong_imports(promoted), *_wrong_order(promoted)])
    return promoted


def _raise(problems: Collection[str] | Iterator[str]) -> None:
    if lines := list(problems):
        raise PromotionError("\n".join(lines))


def _wrong_places(promoted: Promoted) -> Iterator[str]:
    for module, cells in promoted.items():
        if other := next((cell for cell in cells if cell.notebook != cells[0].notebook), None):
            places = f"at {cells[0].where} and {other.where}"
            yield f"{module} is promoted by two notebooks, {places}; keep it in one of them"
    notebooks = {cell.notebook for cells in promoted.values() for cell in cells}
    numbers: dict[str, Path] = {}
    for notebook in sorted(notebooks):
        if not CHAPTER.fullmatch(notebook.name):
            yield f"{shown(notebook)} has promoted cells and no place among the chapters; rename it NN_name.ipynb"
        elif (first := numbers.setdefault(notebook.name[:2], notebook)) != notebook:
            yield f"{shown(first)} and {shown(notebook)} both promote and have one number; renumber one of them"


def _wrong_names(cells: Sequence[CodeCell]) -> Iterator[str]:
    home: dict[str, PromotedCell] = {}
    for cell in cells:
        if isinstance(cell, PromotedCell):
            for name in {bound.name for bound in _bound(cell.tree) if bound.origin is None}:
                # `__all__` and its like are every module's own.
                if name != "_" and not (name.startswith("__") and name.endswith("__")):
                    home.setdefault(name, cell)
    for cell in cells:
        told = set()
        for bound in _bound(cell.tree) if cell.tree else ():
            first = home.get(bound.name)
            if first is None or first == cell or bound.name in told:
                continue
            itself = (f"{_dotted(first.module)}.{bound.name}", f"minillama.{bound.name}")
            if bound.origin is None or (bound.renamed and bound.origin not in itself):
                told.add(bound.name)
                yield (
                    f"{cell.where} defines {bound.name}, which {first.where} promotes to {first.module}; "
                    f"rename one of them (steps on the way have names of their own, as in {bound.name}_by_hand)"
                )


def _wrong_imports(promoted: Promoted) -> Iterator[str]:
    for module, cells in promoted.items():
        for cell in cells:
            for target, in_function in _imported(cell.tree):
                if problem := _wrong_import(promoted, module, cell, target, in_function):
                    yield f"{cell.where} {problem}"


def _wrong_import(promoted: Promoted, module: str, cell: PromotedCell, target: str, in_function: bool) -> str | None:
    if target.startswith("."):
        return f"imports from {target}, which does not run in a notebook; write minillama.NAME"
    if target.endswith(".*"):
        return f"imports * from {target[:-2]}; name what is needed"
    if target.split(".")[0] != "minillama":
        return None
    if target == "minillama":
        return (
            "imports from minillama itself, which holds every chapter; name the module: from minillama.NAME import ..."
        )
    source = f"minillama/{target.split('.')[1]}.py"
    if source == module:
        return f"imports from {target}, the module it is a part of; what earlier cells define is there already"
    if source == BASE:
        return None
    if source not in promoted:
        return (
            None
            if in_function
            else f"imports from {target}, which no notebook promotes; "
            "import it inside the function that needs it, or in an ordinary cell"
        )
    last = promoted[source][-1]
    if (last.notebook.name, last.number) < (cell.notebook.name, cell.number):
        return None
    return (
        f"imports from {target}, which is promoted later, at {last.where}; a chapter needs only earlier ones: "
        "move what it needs to an earlier chapter, or hand it in as an argument (for a type: if TYPE_CHECKING)"
    )


def _wrong_order(promoted: Promoted) -> Iterator[str]:
    for module, cells in promoted.items():
        first, notebook = cells[0], cells[0].notebook
        docstring = ast.get_docstring(first.tree)
        if docstring is None:
            yield (
                f"{first.where} is the first of {module} and does not begin with the module's docstring; "
                f"begin it with one that names `notebooks/{notebook.name}`"
            )
        elif notebook.name not in docstring:
            yield f"{first.where}: the docstring of {module} does not say its notebook; add `notebooks/{notebook.name}`"
        for cell in cells[1:]:
            if ast.get_docstring(cell.tree) is not None:
                yield f"{cell.where} begins with a docstring and is not the first cell of {module}; move it to the top"
        yield from _used_too_early(module, cells)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(joined(cells), module, "exec", dont_inherit=True)
        except SyntaxError as error:
            where = _at_line(cells, error.lineno or 1).where
            yield f"{where}: as a part of {module} it is not valid Python ({error.msg}); correct it"


def _used_too_early(module: str, cells: Sequence[PromotedCell]) -> Iterator[str]:
    later = {bound.name: cell for cell in reversed(cells) for bound in _bound(cell.tree)}
    postponed = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.names[0].name == "annotations"
        for node in cells[0].tree.body
    )
    there, told = set(ALWAYS_THERE), set()
    for cell in cells:
        for statement in cell.tree.body:
            # `with open(path) as f: text = f.read()` uses what it has bound itself.
            own = {bound.name for bound in _bound(statement)} if isinstance(statement, COMPOUND) else set()
            own |= {node.target.id for node in ast.walk(statement) if isinstance(node, ast.NamedExpr)}
            for name in _used(statement, postponed):
                if name in there or name in own or name in told:
                    continue
                told.add(name)
                if name in later:
                    which = "only further down" if later[name] == cell else f"only later, at {later[name].where}"
                    yield f"{cell.where} uses {name} as {module} is read, and it is there {which}; change the order"
                else:
                    yield (
                        f"{cell.where} uses {name} as {module} is read, and no promoted cell of it has that name; "
                        "import or define it in an earlier promoted cell (an ordinary cell does not count)"
                    )
            there |= {bound.name for bound in _bound(statement)}


def _at_line(cells: Sequence[PromotedCell], line: int) -> PromotedCell:
    """The cell that holds a line, counted from 1, of the module; a gap belongs to the cell before it."""
    return [cell for cell, (start, _) in zip(cells, _spans(cells)) if start < line][-1]


# What a piece of syntax does as a module is read


def _dotted(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".")


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node; of `if TYPE_CHECKING`, only its else: the rest never runs."""
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        yield from node.orelse
    else:
        yield from ast.iter_child_nodes(node)


def _bound(node: ast.AST) -> Iterator[Bound]:
    """The names that a statement, or a whole cell, binds in the scope it stands in."""
    if isinstance(node, (*FUNCTION, ast.ClassDef)):
        yield Bound(node.name)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield Bound(alias.asname or alias.name.split(".")[0], alias.name, alias.asname is not None)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            origin = f"{'.' * node.level}{node.module or ''}.{alias.name}"
            yield Bound(alias.asname or alias.name, origin, alias.asname is not None)
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield Bound(node.id)
    elif isinstance(node, ast.comprehension):  # its variable is its own
        for clause in (node.iter, *node.ifs):
            yield from _bound(clause)
    elif not isinstance(node, ast.Lambda) and not (isinstance(node, ast.AnnAssign) and node.value is None):
        if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield Bound(node.name)
        if isinstance(node, ast.MatchMapping) and node.rest:
            yield Bound(node.rest)
        for part in _running(node):
            yield from _bound(part)


def _used(node: ast.AST, postponed: bool) -> Iterator[str]:
    """The names that have to be there when a statement is reached; postponed: annotations are not evaluated."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, (*FUNCTION, ast.Lambda)):
        parts = [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]
        if not isinstance(node, ast.Lambda):
            parts += node.decorator_list
            if not postponed:
                parts += [arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg) and arg.annotation]
                parts += [node.returns] if node.returns else []
        for expression in parts:
            yield from _used(expression, postponed)
    elif isinstance(node, ast.ClassDef):
        own = {bound.name for statement in node.body for bound in _bound(statement)}
        for expression in (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)):
            yield from _used(expression, postponed)
        for statement in node.body:
            yield from (name for name in _used(statement, postponed) if name not in own)
    elif isinstance(node, RUNS_AT_ONCE):
        targets = [name for clause in node.generators for name in ast.walk(clause.target)]
        own = {target.id for target in targets if isinstance(target, ast.Name)}
        for part in ast.iter_child_nodes(node):
            yield from (name for name in _used(part, postponed) if name not in own)
    else:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        for part in _running(node):
            if not (postponed and isinstance(node, ast.AnnAssign) and part is node.annotation):
                yield from _used(part, postponed)


def _imported(node: ast.AST, in_function: bool = False) -> Iterator[tuple[str, bool]]:
    """(module, whether a function has to be called first) for each import that can run."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, in_function) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield (f"{module}.*" if node.names[0].name == "*" else module), in_function
    for part in _running(node):
        yield from _imported(part, in_function or isinstance(node, FUNCTION))


# From the module back into the cells


def _cut(cells: Sequence[PromotedCell], module: str, content: bytes) -> list[str]:
    """The edited module in as many pieces as it has cells. Raises PromotionError where that is not clear."""
    advice = "Nothing was changed: make the edit in the notebook's cells, then `make promote`"
    try:
        new = content.decode()
        new_tree = _parse(new)
    except (SyntaxError, ValueError) as error:
        raise PromotionError(f"{module} is no Python that can be read ({error}); correct it and pull again") from None
    if "\r" in new or not new.endswith("\n") or new.endswith("\n\n"):
        raise PromotionError(
            f"{module} should end in one newline and have no carriage returns; run `ruff format {module}`, pull again"
        )
    old = joined(cells)
    old_lines, new_lines = old.split("\n"), new.split("\n")
    old_parts, new_parts = _parts(old_lines, _parse(old)), _parts(new_lines, new_tree)
    homes: dict[str, list[Part]] = {}
    for part in new_parts:
        for name in part.names:
            homes.setdefault(name, []).append(part)
    same: dict[int, int] = {}  # line of old -> line of new
    for block in difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_matching_blocks():
        same |= {block.a + i: block.b + i for i in range(block.size) if old_lines[block.a + i].strip()}

    def found(part: Part) -> list[tuple[int, int]]:
        """Where a part of the old module is in the new one. A name says it best: copies of code have equal lines."""
        if named := [home for name in part.names for home in homes.get(name, [])]:
            return [(home.start, home.end) for home in named]
        return [(same[line], same[line] + 1) for line in range(part.start, part.end) if line in same]

    # A cell can end where two blank lines stand outside every statement; three are two such places.
    gaps = [
        i
        for i in range(1, len(new_lines) - 2)
        if not (new_lines[i] or new_lines[i + 1])
        if not any(part.start <= i < part.end for part in new_parts)
    ]
    cuts: list[int] = []
    for cell, after, (_, end) in zip(cells, cells[1:], _spans(cells)):
        before_it = (found(part) for part in reversed(old_parts) if part.end <= end)
        after_it = (found(part) for part in old_parts if part.start > end)
        low = max((stop for _, stop in next(filter(None, before_it), [])), default=0)
        high = min((start for start, _ in next(filter(None, after_it), [])), default=len(new_lines))
        places = [gap for gap in gaps if low <= gap and gap + 2 <= high]
        if len(places) != 1:
            seen = "none" if not places else "those after lines " + ", ".join(map(str, places))
            raise PromotionError(
                f"{module}: it is not clear where {cell.where} ends and cell {after.number} begins. Expected one place "
                f"with two blank lines at top level between the code of the two cells, found {seen}. {advice}"
            )
        if cuts and places[0] <= cuts[-1]:
            raise PromotionError(f"{module}: nothing is left for {cell.where}. {advice} (delete the cell there)")
        cuts += places
    starts, ends = [0, *(cut + 2 for cut in cuts)], [*cuts, len(new_lines) - 1]
    return ["\n".join(new_lines[start:end]) for start, end in zip(starts, ends)]


def _spans(cells: Sequence[PromotedCell]) -> list[tuple[int, int]]:
    """First line of each cell in the module, counted from 0, and the line after its last."""
    spans, start = [], 0
    for cell in cells:
        end = start + cell.source.count("\n") + 1
        spans.append((start, end))
        start = end + BETWEEN.count("\n") - 1
    return spans


def _parts(lines: Sequence[str], tree: ast.Module) -> list[Part]:
    parts = []
    for node in tree.body:
        decorators = node.decorator_list if isinstance(node, (*FUNCTION, ast.ClassDef)) else []
        start = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
        parts.append(Part(start, node.end_lineno or node.lineno, {bound.name for bound in _bound(node)}))
    covered = {line for part in parts for line in range(part.start, part.end)}
    parts += [Part(i, i + 1, set()) for i, line in enumerate(lines) if line.strip() and i not in covered]
    return sorted(parts, key=lambda part: part.start)


# Files


def _dumped(notebook: Any) -> bytes:
    """As nbformat writes it; the order of keys stays what it was."""
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _diff(old: str, new: str, old_name: str, new_name: str) -> str:
    def lines(text: str) -> list[str]:
        *whole, last = text.replace("\r", "\\r").split("\n")
        return [*whole, f"{last}\n\\ No newline at end of file"] if last else whole

    return "\n".join(difflib.unified_diff(lines(old), lines(new), old_name, new_name, lineterm="")) + "\n"


def _replace(path: Path, content: bytes) -> None:
    """All of the file or none of it: a reader never meets half a module."""
    path = path.resolve()
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(content)
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
