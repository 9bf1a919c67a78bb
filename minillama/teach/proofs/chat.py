"""What shows that the promoted chat template is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from minillama.storyteller import demo_dir
from minillama.teach.receipts import Proof
from minillama.tokenizer import Tokenizer

Messages = list[dict[str, str]]
TAGS = ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>")
CONTENTS = ("Hi", " two  spaces ", "\n\tHello!\n", "", "</s><s>", "狐 🦊", "[INST", "A longer one.\n\nWith a break.")


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's functions beside the package's, then the format written down again, and Hugging Face's."""
    tokenizer = Tokenizer(demo_dir() / "tokenizer.model")
    good = [*_dialogs()]
    bad = [*_bad_dialogs()]
    unlike = sum(theirs.encode_dialog(d, tokenizer) != ours.encode_dialog(d, tokenizer) for d in good)
    for dialog in bad:
        a, b = (_refusal(module.encode_dialog, dialog, tokenizer) for module in (theirs, ours))
        unlike += a != b or a is None
    what = f"{len(good)} dialogs, and {len(bad)} that are refused in the same words"
    yield Proof(f"the notebook's template is the package's: {what}", unlike, 0.0)

    unlike = sum(theirs.encode_dialog(d, tokenizer) != _as_documented(d, tokenizer) for d in good)
    yield Proof("its ids are the reference's format, written down with SentencePiece alone", unlike, 0.0)
    if (template := _transformers()) is not None:
        unlike = sum(template(d) != _text(theirs, d) for d in good)
        yield Proof("its text is that of transformers' tags and template engine", unlike, 0.0)
    missed = sum(not theirs.has_special_tags(_with_tag(tag, place)) for tag in TAGS for place in range(4))
    missed += sum(theirs.has_special_tags(d) for d in good)
    yield Proof("the guard finds each tag in each message, and nothing in harmless ones", missed, 0.0)


def _dialogs() -> Iterator[Messages]:
    for system in (None, "Be brief.", "  calm \n"):
        for length in (1, 3, 5):
            for first in range(len(CONTENTS)):
                said = [CONTENTS[(first + n) % len(CONTENTS)] for n in range(length)]
                turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
                yield ([{"role": "system", "content": system}] if system is not None else []) + turns


def _bad_dialogs() -> Iterator[Any]:
    names = {"s": "system", "u": "user", "a": "assistant", "x": "tool"}
    for roles in ("", "s", "a", "uu", "ua", "usu", "ssu", "sau", "x", "uaua"):
        yield [{"role": names[letter], "content": "text"} for letter in roles]
    yield from (
        "Hi",
        {"role": "user", "content": "Hi"},
        ["Hi"],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
    )
    yield from (_with_tag(tag, place) for tag in TAGS for place in range(4))


def _with_tag(tag: str, place: int) -> Messages:
    dialog = [{"role": role, "content": "text"} for role in ("system", "user", "assistant", "user")]
    dialog[place]["content"] = f"before {tag} after"
    return dialog


def _refusal(encode: Callable[..., Any], dialog: Any, tokenizer: Tokenizer) -> str | None:
    try:
        encode(dialog, tokenizer)
    except ValueError as error:
        return str(error)
    return None


def _as_documented(dialog: Sequence[dict[str, str]], tokenizer: Tokenizer) -> list[int]:
    sp = tokenizer.sp_model
    waiting = list(dialog)
    opening = f"<<SYS>>\n{waiting.pop(0)['content']}\n<</SYS>>\n\n" if waiting[0]["role"] == "system" else ""
    ids: list[int] = []
    while True:
        text = "[INST] " + (opening + waiting.pop(0)["content"]).strip() + " [/INST]"
        opening = ""
        if not waiting:
            return [*ids, sp.bos_id(), *sp.encode(text)]
        text += " " + waiting.pop(0)["content"].strip() + " "
        ids += [sp.bos_id(), *sp.encode(text), sp.eos_id()]


class _Letters:
    """In place of a tokenizer: ids are letters, so that the template's text can be read."""

    def encode(self, s: str, bos: bool, eos: bool) -> list[str]:
        return ["<s>"] * bos + list(s) + ["</s>"] * eos


def _text(module: Any, dialog: Messages) -> str:
    return "".join(module.encode_dialog(dialog, _Letters()))


def _transformers() -> Callable[[Messages], str] | None:
    """Llama 2's template from the tags in transformers' source, rendered by its engine; None without it."""
    try:
        from transformers.models.llama import tokenization_llama as llama
        from transformers.utils.chat_template_utils import render_jinja_template

        tags = (llama.B_INST, llama.E_INST, llama.B_SYS, llama.E_SYS)
    except (ImportError, AttributeError):
        return None
    b_inst, e_inst, b_sys, e_sys = (tag.replace("\n", "\\n") for tag in tags)
    template = (
        "{% set opening = namespace(text='') %}{% for m in messages %}"
        f"{{% if m.role == 'system' %}}{{% set opening.text = '{b_sys}' + m.content + '{e_sys}' %}}"
        f"{{% elif m.role == 'user' %}}{{{{ '<s>{b_inst} ' + (opening.text + m.content).strip() + ' {e_inst}' }}}}"
        "{% set opening.text = '' %}{% else %}{{ ' ' + m.content.strip() + ' </s>' }}{% endif %}{% endfor %}"
    )
    return lambda dialog: render_jinja_template([dialog], chat_template=template)[0][0]
