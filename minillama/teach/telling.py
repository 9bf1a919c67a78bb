"""`tell`: print a text as it comes, broken between words: JupyterLab would break inside them."""

from __future__ import annotations

from collections.abc import Iterable

from minillama.generation import Piece

WIDTH = 90


def tell(*parts: str | Iterable[Piece]) -> None:
    """Print texts and streams one after another, for instance `tell(prompt, llama.stream_text(prompt))`."""
    room, word = WIDTH, ""
    for part in parts:
        for text in [part] if isinstance(part, str) else (piece.text for piece in part):
            for letter in text:
                if letter not in " \n":
                    word += letter
                    continue
                room = _print(word, room)
                word = letter
                if letter == "\n":
                    print(flush=True)
                    room, word = WIDTH, ""
    _print(word, room)
    print()


def _print(word: str, room: int) -> int:
    """Print `word`, with the space before it, on this line or the next; the room that is left."""
    if len(word) > room and room < WIDTH:
        print()
        word, room = word.lstrip(" "), WIDTH
    print(word, end="", flush=True)
    return room - len(word)
