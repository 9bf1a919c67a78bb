"""The text that the demo checkpoint learns from: distinct stories, and dialogues about them.

`Corpus(seed)` deals documents without end and without repeating a story. Held-out stories are dealt first; no story
of the training stream has the same text as one of them.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from pathlib import Path

from world import PLOTS, Story

for module in sorted(Path(__file__).parent.glob("plots_*.py")):
    importlib.import_module(module.stem)  # each registers its plots

from dialogues import dialogue  # noqa: E402  (needs nothing of the plots; kept beside its use)

HELD_OUT = 1000
SHARE_OF_DIALOGUES = 0.6

Document = Story | list[dict[str, str]]


class Corpus:
    """Stories and dialogues in a fixed order for a given seed."""

    def __init__(self, seed: int = 0):
        self.rng = random.Random(seed)
        self.told: set[str] = set()
        self.held_out: list[Story] = [self._new_story() for _ in range(HELD_OUT)]
        self.held_out_documents: list[Document] = [self._document(story) for story in self.held_out]

    def documents(self) -> Iterator[Document]:
        while True:
            yield self._document(self._new_story())

    def _document(self, story: Story) -> Document:
        return dialogue(self.rng, story) if self.rng.random() < SHARE_OF_DIALOGUES else story

    def _new_story(self) -> Story:
        while True:
            story = self.rng.choice(PLOTS)(self.rng)
            if story.text not in self.told:
                self.told.add(story.text)
                return story
