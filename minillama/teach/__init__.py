"""What the notebooks use and the model never imports: checks, swaps, ablations, figures, promotion."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillama.teach.accounts import ledger
    from minillama.teach.breaking import ablate, ablations, compare_table, held_out
    from minillama.teach.exercise import check
    from minillama.teach.exploring import explore
    from minillama.teach.figures import picture
    from minillama.teach.own import diff_mine, mine, my_parts, progress, promote_mine, reset_mine, worked
    from minillama.teach.receipts import receipt
    from minillama.teach.swap import swapped
    from minillama.teach.telling import tell
    from minillama.teach.watch import watching

__all__ = [
    "ablate", "ablations", "check", "compare_table", "diff_mine", "explore", "held_out", "ledger", "mine", "my_parts",
    "picture", "progress", "promote_mine", "receipt", "reset_mine", "swapped", "tell", "watching",
    "worked",
]  # fmt: skip

# Fetched when first asked for, as in `minillama`: parts="mine" needs no matplotlib, and a plot no exercises.
_HOME = {
    "ablate": "breaking", "ablations": "breaking", "compare_table": "breaking", "held_out": "breaking",
    "check": "exercise", "explore": "exploring", "ledger": "accounts", "picture": "figures", "diff_mine": "own",
    "mine": "own", "my_parts": "own", "progress": "own", "promote_mine": "own", "reset_mine": "own",
    "receipt": "receipts", "swapped": "swap", "tell": "telling", "watching": "watch", "worked": "own",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'minillama.teach' has no attribute {name!r}")
    value = getattr(import_module(f"minillama.teach.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
