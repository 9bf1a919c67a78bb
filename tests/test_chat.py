"""The chat template: exact ids, an independent reading of Meta's description, and what a dialog must look like."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import make_tokenizer

from minillama import Dialog, Tokenizer
from minillama.chat import SPECIAL_TAGS, UNSAFE_ERROR, check_dialog, encode_dialog, has_special_tags


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("toy") / "tokenizer.model"))


@pytest.fixture(scope="module", params=["toy", "llama2"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue("toy" if request.param == "toy" else "llama2_tokenizer")


def dialog(*contents: str, system: str | None = None) -> Dialog:
    """User and assistant in turn, after an optional system message."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return ([] if system is None else [{"role": "system", "content": system}]) + turns


def as_documented(messages: Dialog, tokenizer: Tokenizer) -> list[int]:
    """Meta's format, written down from its description with SentencePiece alone.

    `<s>[INST] <<SYS>>\\n{system}\\n<</SYS>>\\n\\n{user} [/INST] {answer} </s><s>[INST] {user} [/INST]`, where <s> and
    </s> are the control ids, each of them stands between separately encoded texts, and users' and assistants' messages
    (a system message being part of the first user's) are stripped.
    """
    sp = tokenizer.sp_model
    waiting = list(messages)
    opening = f"<<SYS>>\n{waiting.pop(0)['content']}\n<</SYS>>\n\n" if waiting[0]["role"] == "system" else ""
    ids: list[int] = []
    while True:
        text = "[INST] " + (opening + waiting.pop(0)["content"]).strip() + " [/INST]"
        opening = ""
        if not waiting:
            return [*ids, sp.bos_id(), *sp.encode(text)]
        text += " " + waiting.pop(0)["content"].strip() + " "
        ids += [sp.bos_id(), *sp.encode(text), sp.eos_id()]


# --- Ids -------------------------------------------------------------------------------------------------------------


def test_llama2_ids_of_a_dialog_of_three_turns(llama2_tokenizer: Tokenizer) -> None:
    assert encode_dialog(dialog("Hi", "Hello!", "Bye"), llama2_tokenizer) == [
        1, 518, 25580, 29962, 6324, 518, 29914, 25580, 29962, 15043, 29991, 29871, 2,
        1, 518, 25580, 29962, 2648, 29872, 518, 29914, 25580, 29962,
    ]  # fmt: skip


def test_llama2_ids_with_a_system_message(llama2_tokenizer: Tokenizer) -> None:
    assert encode_dialog(dialog("Hi", system="Be brief."), llama2_tokenizer) == [
        1, 518, 25580, 29962, 3532, 14816, 29903, 6778, 13, 3629, 11473, 29889, 13, 29966, 829, 14816, 29903, 6778, 13,
        13, 18567, 518, 29914, 25580, 29962,
    ]  # fmt: skip


harmless = st.text(max_size=12).filter(lambda text: not any(tag in text for tag in SPECIAL_TAGS))


@settings(deadline=None, max_examples=60)
@given(
    contents=st.lists(
        st.one_of(harmless, st.sampled_from(["", " ", " two  spaces ", "\n\tHi\n", "</s><s>", "[INST"])), max_size=6
    ),
    last=harmless,
    system=st.one_of(st.none(), harmless),
)
def test_any_dialog_is_encoded_as_documented(
    tokenizer: Tokenizer, contents: list[str], last: str, system: str | None
) -> None:
    messages = dialog(*contents[: len(contents) // 2 * 2], last, system=system)
    ids = encode_dialog(messages, tokenizer)
    assert ids == as_documented(messages, tokenizer)
    turns = len(messages) // 2 + len(messages) % 2 if system is None else len(messages) // 2
    assert ids.count(tokenizer.bos_id) == turns  # and no text could add one
    assert ids.count(tokenizer.eos_id) == turns - 1


def test_text_of_a_dialog_reads_as_the_template(toy: Tokenizer) -> None:
    ids = encode_dialog(dialog("one", "two", "three", system="be kind"), toy)
    end = ids.index(toy.eos_id)
    assert toy.decode(ids[:end]) == "[INST] <<SYS>>\nbe kind\n<</SYS>>\n\none [/INST] two "
    assert toy.decode(ids[end + 1 :]) == "[INST] three [/INST]"


# --- White space -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [" ", "\n", "\t", " \r\n ", "\u00a0\u3000"], ids=ascii)
def test_space_around_user_and_assistant_messages_is_dropped(tokenizer: Tokenizer, space: str) -> None:
    spaced = dialog(f"{space}Hi{space}", f"{space}Hello!{space}", f"{space}Bye{space}")
    assert encode_dialog(spaced, tokenizer) == encode_dialog(dialog("Hi", "Hello!", "Bye"), tokenizer)


def test_space_inside_messages_and_around_the_system_message_is_kept(toy: Tokenizer) -> None:
    ids = encode_dialog(dialog("  a  b  ", system="  calm \n"), toy)
    assert toy.decode(ids) == "[INST] <<SYS>>\n  calm \n\n<</SYS>>\n\n  a  b [/INST]"


def test_empty_messages_keep_their_places(toy: Tokenizer) -> None:
    ids = encode_dialog(dialog("", "", ""), toy)
    end = ids.index(toy.eos_id)
    assert (toy.decode(ids[:end]), toy.decode(ids[end + 1 :])) == ("[INST]  [/INST]  ", "[INST]  [/INST]")


# --- The order of roles ----------------------------------------------------------------------------------------------

NAMES = {"s": "system", "u": "user", "a": "assistant"}


def by_letters(roles: str) -> list[dict[str, str]]:
    return [{"role": NAMES.get(letter, letter), "content": "x"} for letter in roles]


@pytest.mark.parametrize("roles", ["u", "su", "uau", "suau", "uauauau"])
def test_right_orders_of_roles_pass(toy: Tokenizer, roles: str) -> None:
    messages = by_letters(roles)
    check_dialog(messages)
    check_dialog(tuple(messages))
    assert encode_dialog(messages, toy) == as_documented(messages, toy)


@pytest.mark.parametrize(
    ("roles", "index", "role"),
    [("au", 0, "assistant"), ("uu", 1, "user"), ("usu", 1, "system"), ("ssu", 1, "system"), ("ua", 1, "assistant"),
     ("sua", 2, "assistant"), ("uasu", 2, "system"), ("uauu", 3, "user"), ("sau", 1, "assistant"), ("s", 0, "system"),
     ("xu", 0, "x"), ("ux", 1, "x")],
)  # fmt: skip
def test_wrong_orders_of_roles_are_named_by_index_and_role(toy: Tokenizer, roles: str, index: int, role: str) -> None:
    for refuses in (check_dialog, lambda messages: encode_dialog(messages, toy)):
        with pytest.raises(ValueError, match=rf"(?s)\b{index}\b") as error:
            refuses(by_letters(roles))
        assert role in str(error.value)


@pytest.mark.parametrize(
    "what",
    [[], (), "Hi", b"Hi", None, 7, {"role": "user", "content": "Hi"}, ["Hi"], [["user", "Hi"]], [{"role": "user"}],
     [{"content": "Hi"}], [{"role": "user", "content": None}], [{"role": "user", "content": b"Hi"}], [None],
     [{"role": ["user"], "content": "Hi"}], [{"role": None, "content": "Hi"}]],
    ids=repr,
)  # fmt: skip
def test_what_is_no_dialog_is_refused(toy: Tokenizer, what: Any) -> None:
    with pytest.raises(ValueError):
        check_dialog(what)
    with pytest.raises(ValueError):
        encode_dialog(what, toy)


# --- The guard -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"])
@pytest.mark.parametrize("where", range(4), ids=["system", "user", "assistant", "last"])
def test_tags_are_found_in_every_message(toy: Tokenizer, tag: str, where: int) -> None:
    messages = by_letters("suau")
    assert not has_special_tags(messages)
    for content in (tag, f"before{tag}after", f"\n{tag}{tag}"):
        messages[where]["content"] = content
        assert has_special_tags(messages)
        with pytest.raises(ValueError, match=UNSAFE_ERROR):
            encode_dialog(messages, toy)


@pytest.mark.parametrize(
    "text", ["[inst]", "[INST", "INST]", "<SYS>", "<< SYS >>", "[ /INST]", "</s>", "<s>", "[[INS]T]"]
)
def test_what_only_looks_like_a_tag_passes(toy: Tokenizer, text: str) -> None:
    messages = dialog(text)
    assert not has_special_tags(messages)
    assert encode_dialog(messages, toy) == as_documented(messages, toy)


def test_the_error_text_is_the_reference_s() -> None:
    assert UNSAFE_ERROR == "Error: special tags are not allowed as part of the prompt."


def test_encoding_changes_nothing_in_the_dialog(toy: Tokenizer) -> None:
    messages = dialog(" Hi ", " Hello! ", " Bye ", system=" Be brief. ")
    before = [dict(message) for message in messages]
    assert encode_dialog(messages, toy) == encode_dialog(messages, toy)
    assert messages == before
