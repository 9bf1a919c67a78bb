"""Text to ids and back: llama.cpp's vectors for Llama 2, SentencePiece's own decoder, properties of any text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from toys import make_tokenizer

from minillama import Tokenizer
from minillama.tokenizer import StreamDecoder

WORD_START = "\u2581"  # SentencePiece's sign for a space; typed by a user, it becomes a space
REPLACEMENT = "\ufffd"

# The tokenizers do not change, so one may serve all examples of a test.
prove = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("toy") / "tokenizer.model"))


@pytest.fixture(scope="module", params=["toy", "stories260K", "llama2"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """400, 512 and 32,000 pieces; the latter two are real and lie with the test data."""
    if request.param == "toy":
        return request.getfixturevalue("toy")
    if request.param == "llama2":
        return request.getfixturevalue("llama2_tokenizer")
    return request.getfixturevalue("stories260k").tokenizer


def spelled(sp: sentencepiece.SentencePieceProcessor, ids: Sequence[int]) -> bytes:
    """The bytes of `ids`, first space included, from SentencePiece's table of pieces."""
    raw = b""
    for i in ids:
        if sp.is_byte(i):
            raw += bytes.fromhex(sp.id_to_piece(i).removeprefix("<0x").removesuffix(">"))
        elif sp.is_unknown(i):
            raw += " \u2047 ".encode()
        elif not sp.is_control(i):
            raw += sp.id_to_piece(i).replace(WORD_START, " ").encode()
    return raw


def id_lists(tokenizer: Tokenizer, max_size: int = 12) -> st.SearchStrategy[list[int]]:
    """Any ids at all, with bytes, controls and whole characters in bytes more often than chance would have them."""
    any_id = st.integers(0, tokenizer.n_words - 1)
    byte = st.integers(0, 255).map(lambda b: tokenizer.sp_model.piece_to_id(f"<0x{b:02X}>"))
    character = st.characters(codec="utf-8").map(
        lambda c: [tokenizer.sp_model.piece_to_id(f"<0x{b:02X}>") for b in c.encode()]
    )
    part = st.one_of(any_id.map(lambda i: [i]), byte.map(lambda i: [i]), character, st.sampled_from([[0], [1], [2]]))
    return st.lists(part, max_size=max_size).map(lambda parts: list(itertools.chain(*parts)))


# --- Real vectors ----------------------------------------------------------------------------------------------------


def test_llama2_vectors_give_the_recorded_ids(shared_data: Path, llama2_tokenizer: Tokenizer) -> None:
    vectors = shared_data / "tokenizers" / "llama2" / "ggml-vocab-llama-spm.gguf"
    # newline="": the line ends of the inputs are inputs.
    with open(f"{vectors}.inp", encoding="utf-8", newline="") as file:
        inputs = file.read().split("\n__ggml_vocab_test__\n")
    outputs = Path(f"{vectors}.out").read_text(encoding="utf-8").split("\n")
    assert len(inputs) == len(outputs) == 47  # the last of both is empty
    for text, ids in zip(inputs, outputs):
        expected = [int(i) for i in ids.split()]
        assert llama2_tokenizer.encode(text, bos=False, eos=False) == expected, repr(text)
        assert llama2_tokenizer.decode(expected) == text, repr(text)


def test_llama2_ids_are_those_of_the_reference(llama2_tokenizer: Tokenizer) -> None:
    t = llama2_tokenizer
    assert (t.n_words, t.bos_id, t.eos_id, t.pad_id) == (32000, 1, 2, -1)
    assert t.encode("Hello world again", bos=True, eos=True) == [1, 15043, 3186, 1449, 2]
    assert t.decode([1, 15043, 3186, 1449, 2]) == "Hello world again"


# --- The reference's interface ---------------------------------------------------------------------------------------


def test_interface_is_the_reference_s(toy: Tokenizer, tmp_path: Path) -> None:
    path = make_tokenizer(tmp_path / "tokenizer.model")
    t = Tokenizer(model_path=str(path))
    sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert (t.n_words, t.bos_id, t.eos_id, t.pad_id) == (sp.vocab_size(), 1, 2, -1) == (400, 1, 2, -1)
    text = "the cat saw the bird"
    ids = sp.encode(text)
    assert t.encode(text, bos=False, eos=False) == ids
    assert t.encode(text, bos=True, eos=False) == [1, *ids]
    assert t.encode(text, bos=False, eos=True) == [*ids, 2]
    assert t.encode(s=text, bos=True, eos=True) == [1, *ids, 2]
    assert t.decode([1, *ids, 2]) == text
    assert t.decode(tuple(ids)) == text
    assert t.encode("", bos=True, eos=True) == [1, 2]
    assert t.decode([]) == ""


def test_one_id_may_be_decoded_as_in_the_reference(tokenizer: Tokenizer) -> None:
    for i in range(tokenizer.n_words):  # the reference decodes token by token for its `tokens`
        if not tokenizer.sp_model.is_byte(i):
            assert tokenizer.decode(i) == tokenizer.decode([i]) == tokenizer.sp_model.decode([i])


# --- Any text --------------------------------------------------------------------------------------------------------


@prove
@given(text=st.text(st.characters(codec="utf-8", exclude_characters=WORD_START)))
@example(text="")
@example(text=" ")
@example(text="   three spaces before, two behind  ")
@example(text="\x00 \r\n\t \x7f \u2028 \ufeff e\u0301 \ufb01 \uff21 \U0010ffff")  # nothing is normalized
def test_text_comes_back_as_it_went_in(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, bos=True, eos=True)) == text


@prove
@given(text=st.text())
def test_encoding_is_sentencepiece_s(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, bos=False, eos=False)
    assert ids == tokenizer.sp_model.encode(text)
    assert tokenizer.decode(ids) == tokenizer.sp_model.decode(ids) == text.replace(WORD_START, " ")


FORGERIES = [
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<0x0A>",
    "<0x00>",
    "<",
    "s",
    ">",
    "/",
    " ",
    WORD_START,
    "\n",
    "\x00",
    "\x01",
    "\x02",
]


@prove
@given(parts=st.lists(st.one_of(st.sampled_from(FORGERIES), st.text(max_size=3)), min_size=1, max_size=8))
@example(parts=["</s>"])
@example(parts=["Hello", "</s>"])
@example(parts=[" ", "<s>", " ", "</s>", " "])
def test_text_never_yields_a_control_id(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = tokenizer.encode(text, bos=False, eos=False)
    assert not any(tokenizer.sp_model.is_control(i) or tokenizer.sp_model.is_unknown(i) for i in ids)
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode(ids) == text.replace(WORD_START, " ")  # "<0x0A>" stayed six letters


@pytest.mark.parametrize("text", ["\ud83d", "fine until \udc00 here", "\udfff\ud800"], ids=ascii)
def test_half_a_surrogate_pair_is_refused(toy: Tokenizer, text: str) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        toy.encode(text, bos=True, eos=False)


@pytest.mark.parametrize("text", [None, b"bytes", 7, ["a", "b"]], ids=repr)
def test_what_is_not_text_is_refused(toy: Tokenizer, text: object) -> None:
    with pytest.raises(ValueError, match="expected text"):
        toy.encode(text, bos=True, eos=False)


# --- Any ids ---------------------------------------------------------------------------------------------------------


@prove
@given(data=st.data())
def test_decode_equals_sentencepiece_where_no_character_is_broken(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(id_lists(tokenizer))
    theirs = tokenizer.sp_model.decode(ids)
    assume(REPLACEMENT not in theirs)  # it marks every broken byte, we mark every broken character
    assert tokenizer.decode(ids) == theirs


@prove
@given(data=st.data(), continuing=st.booleans())
def test_stream_joins_to_the_decoded_bytes(tokenizer: Tokenizer, data: st.DataObject, continuing: bool) -> None:
    ids = data.draw(id_lists(tokenizer))
    chunks = list(tokenizer.decode_stream(ids, continuing))
    assert len(chunks) == len(ids) + 1
    whole = spelled(tokenizer.sp_model, ids).decode("utf-8", errors="replace")
    pieces = [tokenizer.sp_model.id_to_piece(i) for i in ids if not tokenizer.sp_model.is_control(i)]
    encodings_space = not continuing and bool(pieces) and pieces[0].startswith(WORD_START)
    assert "".join(chunks) == whole.removeprefix(" " if encodings_space else "")
    if not continuing:
        assert tokenizer.decode(ids) == "".join(chunks)


@prove
@given(text=st.text(min_size=1), data=st.data())
@example(text="🔥 ok 你好 नमस्ते", data=None)
def test_characters_arrive_whole(tokenizer: Tokenizer, text: str, data: st.DataObject | None) -> None:
    assume(REPLACEMENT not in text)
    ids = tokenizer.encode(text, bos=False, eos=False)
    assert not any(REPLACEMENT in chunk for chunk in tokenizer.decode_stream(ids))
    # Every prefix too: only the flush at its end may say that something is missing.
    end = len(ids) if data is None else data.draw(st.integers(0, len(ids)))
    *chunks, _ = tokenizer.decode_stream(ids[:end])
    assert not any(REPLACEMENT in chunk for chunk in chunks)
    assert text.replace(WORD_START, " ").startswith("".join(chunks))


@prove
@given(data=st.data())
def test_no_chunk_waits_longer_than_a_character_needs(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(id_lists(tokenizer))
    stream = StreamDecoder(tokenizer, continuing=True)
    said = ""
    for n, i in enumerate(ids, start=1):
        said += stream.feed(i)
        so_far = spelled(tokenizer.sp_model, ids[:n]).decode("utf-8", errors="replace")
        # A complete character is never held: what is missing is at most three bytes, the beginning of one.
        held = so_far.removeprefix(said)
        assert so_far == said + held
        assert len(held) <= 3
        assert held.strip(REPLACEMENT) == ""
    said += stream.flush()
    assert said == spelled(tokenizer.sp_model, ids).decode("utf-8", errors="replace")


def test_llama2_emoji_in_four_bytes_is_held_until_it_is_whole(llama2_tokenizer: Tokenizer) -> None:
    ids = [29871, 243, 162, 151, 168, 3431]
    assert list(llama2_tokenizer.decode_stream(ids)) == ["", "", "", "", "🔥", " ok", ""]
    assert list(llama2_tokenizer.decode_stream(ids, continuing=True)) == [" ", "", "", "", "🔥", " ok", ""]
    *chunks, flushed = llama2_tokenizer.decode_stream(ids[:4])
    assert chunks == [""] * 4
    assert flushed.strip(REPLACEMENT) == "" != flushed


@prove
@given(text=st.text(min_size=1))
def test_continuing_keeps_the_first_space(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, bos=True, eos=False)
    assert "".join(tokenizer.decode_stream(ids, continuing=True)) == " " + text.replace(WORD_START, " ")
    assert "".join(tokenizer.decode_stream(ids)) == text.replace(WORD_START, " ")


@prove
@given(text=st.text(min_size=1), data=st.data())
def test_ids_may_be_decoded_in_two_parts(tokenizer: Tokenizer, text: str, data: st.DataObject) -> None:
    ids = tokenizer.encode(text, bos=False, eos=False)
    cut = data.draw(st.integers(1, len(ids)))
    first, second = tokenizer.decode(ids[:cut]), "".join(tokenizer.decode_stream(ids[cut:], continuing=True))
    assume(REPLACEMENT not in first + second)  # a cut inside a character
    assert first + second == text.replace(WORD_START, " ")


def test_only_one_space_is_dropped_and_only_at_the_start(toy: Tokenizer) -> None:
    space = toy.sp_model.piece_to_id(WORD_START)
    the = toy.sp_model.piece_to_id(WORD_START + "the")
    newline = toy.sp_model.piece_to_id("<0x0A>")
    assert toy.decode([the, the]) == "the the"
    assert toy.decode([space, the]) == " the"
    assert toy.decode([toy.bos_id, the]) == "the"
    assert toy.decode([newline, the]) == toy.sp_model.decode([newline, the])
    assert list(toy.decode_stream([space, the])) == ["", " the", ""]


def test_control_ids_are_silent(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the cat", bos=False, eos=False)
    between = [x for i in ids for x in (1, i, 2)]
    assert tokenizer.decode(between) == "the cat"
    assert tokenizer.decode([1, 2, 2, 1]) == ""


@pytest.mark.parametrize("bad", [-1, 400, 10**6, 1.5, "3", None], ids=repr)
def test_ids_outside_the_vocabulary_are_refused_and_named(toy: Tokenizer, bad: object) -> None:
    with pytest.raises(ValueError, match="vocabulary of 400"):
        toy.decode([5, bad])
    with pytest.raises(ValueError, match="vocabulary of 400"):
        toy.id_bytes(bad)


# --- Files -----------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "tokenizer.model", tmp_path):
        with pytest.raises(FileNotFoundError, match=str(path)):
            Tokenizer(path)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", bytes(1000), b"\xff" * 99])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        Tokenizer(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = make_tokenizer(tmp_path / "whole.model").read_bytes()
    path = tmp_path / "tokenizer.model"
    path.write_bytes(whole[: len(whole) // 2 + 1])
    with pytest.raises(ValueError, match=str(path)):
        Tokenizer(path)


def test_a_tokenizer_without_a_control_id_for_the_end_is_refused(tmp_path: Path) -> None:
    # Here "</s>" is a word like any other, which users could type.
    path = make_tokenizer(tmp_path / "tokenizer.model", user_defined_symbols=["</s>"])
    with pytest.raises(ValueError, match=str(path)):
        Tokenizer(path)
