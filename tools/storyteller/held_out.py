"""Write `assets/storyteller/held_out.json`: stories that the demo checkpoint never saw, to measure it by.

python tools/storyteller/held_out.py              # a second
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import train as recipe  # noqa: E402
from corpus import Corpus  # noqa: E402
from world import Story  # noqa: E402

FILE = "held_out.json"
STORIES = 40


def held_out_texts() -> list[str]:
    """The first of the held-out stories that are told plainly: those of the card's row "stories"."""
    documents = Corpus(recipe.SEED).held_out_documents
    return [document.text for document in documents if isinstance(document, Story)][:STORIES]


def write(folder: Path) -> None:
    text = json.dumps({"stories": held_out_texts()}, indent=1, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "assets" / "storyteller")
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
