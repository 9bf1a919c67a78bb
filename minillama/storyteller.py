"""The trained demo checkpoint: `assets/storyteller` of a checkout, or its copy inside an installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minillama.generation import Llama


def demo_dir() -> Path:
    """The folder of the demo checkpoint, in Meta's layout. Raises FileNotFoundError where the package came without."""
    package = Path(__file__).resolve().parent
    for place in (package / "assets" / "storyteller", package.parent / "assets" / "storyteller"):
        if (place / "params.json").is_file():
            return place
    raise FileNotFoundError(f"no demo checkpoint beside {package}; install minillama from its wheel or a full checkout")


def demo(**build_options: Any) -> Llama:
    """A `Llama` that tells children's stories, ready in a second. build_options: those of `Llama.build`."""
    return Llama.build(demo_dir(), **build_options)
