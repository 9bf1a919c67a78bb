"""What shows that the promoted tokenizer is right."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from sentencepiece import SentencePieceProcessor

from minillama.storyteller import demo_dir
from minillama.teach.exercises.tokenizer import bpe
from minillama.teach.receipts import Proof

TEXTS = (
    "", " ", "Once upon a time", "  two  spaces  ", "\u2581", "</s><s><unk><0x0A>", "Olé! 🦊👍🏽", "狐狸怕黑",
    "\u0000 \r\n\t\u00a0\ufeff", "नमस्ते", "3.14159",
)  # fmt: skip


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's classes beside the package's, then SentencePiece, BPE by hand, and Python's own UTF-8."""
    path = demo_dir() / "tokenizer.model"
    stories: list[str] = json.loads((path.parent / "held_out.json").read_text(encoding="utf-8"))["stories"]
    texts = [*TEXTS, *stories]
    package, here = ours.Tokenizer(path), theirs.Tokenizer(path)
    sp = SentencePieceProcessor(model_file=str(path))
    lists = _id_lists(sp.vocab_size())

    unlike = sum(here.encode(text, True, True) != package.encode(text, True, True) for text in texts)
    unlike += sum(here.id_bytes(i) != package.id_bytes(i) for i in range(sp.vocab_size()))
    for ids in lists:
        for continuing in (False, True):
            unlike += list(here.decode_stream(ids, continuing)) != list(package.decode_stream(ids, continuing))
    what = f"{len(texts)} texts, every piece, {len(lists)} lists of any ids"
    yield Proof(f"the notebook's tokenizer is the package's: {what}", unlike, 0.0)

    encoded = [here.encode(text, False, False) for text in texts]
    yield Proof("it encodes as SentencePiece does", sum(a != sp.encode(t) for a, t in zip(encoded, texts)), 0.0)
    yield Proof("its pieces are those of BPE by hand, in 40 stories", _unlike_by_hand(sp, stories), 0.0)
    kept = (here.decode(ids) == text.replace("\u2581", " ") for ids, text in zip(encoded, texts))
    yield Proof("text comes back as it went in", sum(not same for same in kept), 0.0)
    yield Proof("no text yields the id of <unk>, <s> or </s>", sum(bool({0, 1, 2} & {*ids}) for ids in encoded), 0.0)
    broken = sum("".join(here.decode_stream(ids, True)) != _all_at_once(sp, ids) for ids in lists)
    yield Proof("streamed text is that of all bytes at once, in Python's UTF-8", broken, 0.0)


def _id_lists(n_words: int) -> list[list[int]]:
    """Ids in any order, single bytes above all, so that characters are begun, finished and broken off."""
    rng = random.Random(0)
    return [
        [rng.randrange(3, 259) if rng.random() < 0.7 else rng.randrange(n_words) for _ in range(12)] for _ in range(200)
    ]


def _unlike_by_hand(sp: SentencePieceProcessor, stories: Sequence[str]) -> int:
    ranks = {sp.id_to_piece(i): i for i in range(259, sp.vocab_size())}
    words = {word for story in stories for word in story.split()}
    return sum(bpe(list("\u2581" + word), ranks) != sp.encode(word, out_type=str) for word in sorted(words))


def _all_at_once(sp: SentencePieceProcessor, ids: Sequence[int]) -> str:
    raw = b""
    for i in ids:
        if sp.is_byte(i):
            raw += bytes.fromhex(sp.id_to_piece(i)[3:5])
        elif sp.is_unknown(i):
            raw += " \u2047 ".encode()
        elif not sp.is_control(i):
            raw += sp.id_to_piece(i).replace("\u2581", " ").encode()
    return raw.decode("utf-8", errors="replace")
