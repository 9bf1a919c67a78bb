"""The chat template and its guard: chapter 07, `notebooks/07_tokenizer_and_chat.ipynb`.

The format is the one Llama 2 Chat was trained on: `chat_completion` in Meta's `llama/generation.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from minillama.args import shown
from minillama.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant"]


class Message(TypedDict):
    role: Role
    content: str


Dialog = Sequence[Message]

B_INST, E_INST = "[INST]", "[/INST]"
B_SYS, E_SYS = "<<SYS>>\n", "\n<</SYS>>\n\n"
SPECIAL_TAGS = [B_INST, E_INST, "<<SYS>>", "<</SYS>>"]
UNSAFE_ERROR = "Error: special tags are not allowed as part of the prompt."


def check_dialog(dialog: Any) -> None:
    """Raise ValueError, with index and role, unless it is [system,] user, assistant, user, ..., user."""
    if isinstance(dialog, (str, bytes, dict)) or not isinstance(dialog, Sequence):
        raise ValueError(f"a dialog is a list of messages, got {shown(dialog)}")
    for i, message in enumerate(dialog):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise ValueError(f"message {i} is {shown(message)}; expected a dict with 'role' and 'content'")
        if not isinstance(message["content"], str):
            raise ValueError(f"message {i}: content is {shown(message['content'])}; expected text (str)")
    turns = dialog[1:] if dialog and dialog[0]["role"] == "system" else dialog
    first = len(dialog) - len(turns)
    if not turns:
        raise ValueError("the dialog has no user message" + (", only a system message (index 0)" if dialog else ""))
    for i, message in enumerate(turns):
        expected = "user" if i % 2 == 0 else "assistant"
        if message["role"] != expected:
            raise ValueError(
                f"message {first + i} has the role {shown(message['role'])}; expected {expected!r} "
                "(an optional system message first, then user and assistant in turn)"
            )
    if len(turns) % 2 == 0:
        raise ValueError(f"message {len(dialog) - 1} has the role 'assistant'; the last message must be the user's")


def has_special_tags(dialog: Dialog) -> bool:
    """True if any message, whatever its role, holds a tag of the template: its author could forge a turn."""
    return any(tag in message["content"] for tag in SPECIAL_TAGS for message in dialog)


def encode_dialog(dialog: Dialog, tokenizer: Tokenizer) -> list[int]:
    """Ids that a chat model continues with its answer: finished turns, then the open question.

    Raises ValueError for a wrong order of roles (see `check_dialog`) and for special tags in the content.
    """
    check_dialog(dialog)
    if has_special_tags(dialog):
        raise ValueError(UNSAFE_ERROR)
    if dialog[0]["role"] == "system":  # the system message is the opening of the first user message
        opening = B_SYS + dialog[0]["content"] + E_SYS + dialog[1]["content"]
        dialog = [Message(role="user", content=opening), *dialog[2:]]
    ids: list[int] = []
    for question, answer in zip(dialog[:-1:2], dialog[1::2]):
        # A finished turn has its own BOS and EOS, and a space behind the answer.
        ids += tokenizer.encode(f"{ask(question)} {answer['content'].strip()} ", bos=True, eos=True)
    return ids + tokenizer.encode(ask(dialog[-1]), bos=True, eos=False)


def ask(question: Message) -> str:
    return f"{B_INST} {question['content'].strip()} {E_INST}"
