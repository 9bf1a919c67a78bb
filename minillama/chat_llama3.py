"""Llama 3's chat template and its guard, and which template goes with a tokenizer.

The format is that of `ChatFormat` in Meta's `llama3/llama/tokenizer.py`. Turns are marked by special ids, which no text
encodes to, so nobody can forge one; text that spells a mark is refused all the same, as with Llama 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from minillama import chat
from minillama.chat import UNSAFE_ERROR, Dialog, check_dialog
from minillama.tokenizer import Tokenizer
from minillama.tokenizer_llama3 import NAMED, Llama3Tokenizer

SPECIAL_TAGS = list(NAMED)


class Template(NamedTuple):
    """How a dialog becomes ids, and the tags that no message may hold."""

    special_tags: Sequence[str]
    encode_dialog: Callable[[Dialog, Tokenizer], list[int]]

    def has_special_tags(self, dialog: Dialog) -> bool:
        return any(tag in message["content"] for tag in self.special_tags for message in dialog)


def encode_dialog(dialog: Dialog, tokenizer: Tokenizer) -> list[int]:
    """Ids that a Llama 3 chat model continues with its answer.

    Raises ValueError for a wrong order of roles (see `check_dialog`) and for special tags in the content.
    """
    check_dialog(dialog)
    if LLAMA3.has_special_tags(dialog):
        raise ValueError(UNSAFE_ERROR)
    if not isinstance(tokenizer, Llama3Tokenizer):
        raise ValueError("Llama 3's chat template needs Llama 3's tokenizer; this one is SentencePiece's")
    ids = [tokenizer.bos_id]
    for message in dialog:
        ids += header(message["role"], tokenizer)
        ids += tokenizer.encode(message["content"].strip(), bos=False, eos=False)
        ids.append(tokenizer.special["<|eot_id|>"])
    return ids + header("assistant", tokenizer)


def header(role: str, tokenizer: Llama3Tokenizer) -> list[int]:
    name, gap = (tokenizer.encode(text, bos=False, eos=False) for text in (role, "\n\n"))
    return [tokenizer.special["<|start_header_id|>"], *name, tokenizer.special["<|end_header_id|>"], *gap]


LLAMA2 = Template(chat.SPECIAL_TAGS, chat.encode_dialog)
LLAMA3 = Template(SPECIAL_TAGS, encode_dialog)


def template_of(tokenizer: Tokenizer) -> Template:
    return LLAMA3 if isinstance(tokenizer, Llama3Tokenizer) else LLAMA2
