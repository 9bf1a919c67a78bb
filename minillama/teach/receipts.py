"""`receipt`: a chapter's last cell. What was promoted, and what shows that notebook, package and the truth agree."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from minillama.teach import promote
from minillama.teach.exercise import framed


@dataclass
class Proof:
    """One thing that was compared. worst: the largest difference; most: what it may be (0: equal to the bit)."""

    what: str
    worst: float
    most: float

    @property
    def holds(self) -> bool:
        return self.worst <= self.most  # a NaN does not


@dataclass
class Receipt:
    module: str
    notebook: str
    cells: int
    digest: str
    same_bytes: bool | None  # None: no notebook here to compare with
    proofs: list[Proof]

    @property
    def promoted(self) -> bool:
        return bool(self.same_bytes) and all(proof.holds for proof in self.proofs)

    def rows(self) -> list[tuple[str, str, str]]:
        sign = {True: "✓", False: "✗", None: "-"}
        if self.same_bytes:
            found = f"sha256 {self.digest}"
        else:
            found = "no notebook found here" if self.same_bytes is None else "different: make promote, or --pull"
        first = (sign[self.same_bytes], f"{self.cells} cells of {self.notebook}, byte for byte", found)
        rest = [(sign[p.holds], p.what, _found(p)) for p in self.proofs]
        return [first, *rest]

    def __repr__(self) -> str:
        verdict = "promoted" if self.promoted else "not promoted"
        return "\n".join([f"{self.module}: {verdict}", *("  ".join(row) for row in self.rows())])

    def _repr_html_(self) -> str:
        verdict = "promoted" if self.promoted else "not promoted"
        cells = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self.rows()
        )
        page = f"<b>{html.escape(self.module)}: {verdict}</b><table>{cells}</table>"
        return framed("green" if self.promoted else "red", page)


def _found(proof: Proof) -> str:
    if proof.most == 0:
        return "equal, to the bit" if proof.worst == 0 else f"largest difference {proof.worst:.1e}, and none is allowed"
    return f"largest difference {proof.worst:.1e} (at most {proof.most:.0e})"


def receipt(module: str, names: Mapping[str, Any]) -> Receipt:
    """Compare what the notebook's cells defined (`globals()`) with the package's module and with independent oracles.

    module: "norm" for minillama/norm.py. Raises ValueError, naming it, if a promoted name is not defined: run the
    cells above first.
    """
    ours = import_module(f"minillama.{module}")
    public = [name for name, value in vars(ours).items() if getattr(value, "__module__", None) == ours.__name__]
    missing = [name for name in public if name not in names]
    if missing:
        raise ValueError(f"{', '.join(missing)} of minillama/{module}.py are not defined here yet: run the cells above")
    if borrowed := [name for name in public if names[name] is getattr(ours, name)]:
        raise ValueError(f"{', '.join(borrowed)} here are the package's own; run the promoted cells above")
    theirs = SimpleNamespace(**{name: names[name] for name in public})
    proofs = list(import_module(f"minillama.teach.proofs.{module}").proofs(ours, theirs))
    return Receipt(f"minillama/{module}.py", *_compared(ours), proofs)


def _compared(ours: ModuleType) -> tuple[str, int, str, bool | None]:
    source = Path(str(ours.__file__)).read_bytes()
    digest = hashlib.sha256(source).hexdigest()[:12]
    module = f"minillama/{Path(str(ours.__file__)).name}"
    try:
        notebook = promote.chapter_of(module)
    except FileNotFoundError:
        notebook = None
    if notebook is None:
        return "the notebook", 0, digest, None
    cells = [cell for cell in promote.read_cells(notebook) if cell.module == module]
    return f"notebooks/{notebook.name}", len(cells), digest, promote.joined(cells).encode() == source
