"""Llama 3's tokenizer and chat, against BPE done by hand, tiktoken, transformers, and Meta's documented strings."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import regex
import tiktoken
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from toys import Scripted, make_checkpoint, make_tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter
from typer.testing import CliRunner

from minillama import Llama, ModelArgs, Tokenizer, Transformer
from minillama.chat import UNSAFE_ERROR
from minillama.chat import encode_dialog as encode_dialog_llama2
from minillama.chat_llama3 import LLAMA2, LLAMA3, SPECIAL_TAGS, encode_dialog, template_of
from minillama.cli import app
from minillama.tokenizer_llama3 import (
    LONGEST_RUN,
    LONGEST_TEXT,
    NAMED,
    Llama3Tokenizer,
    is_tiktoken,
    load_tokenizer,
    parts,
    stop_ids_of,
    stream_decoder,
)

# The regular expression of Llama 3's files, written down apart from the package's.
PATTERN = "|".join([
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])  # fmt: skip
TEXT = (
    'once upon a time there was a little cat. the cat said: "hello, it\'s a good day!" 1234567 2024\n\n    return x\n'
    "system user assistant you are a helpful assistant\u2014na\u00efve caf\u00e9 \u732b\u3068\u72ac \U0001f431 "
)
prove = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def merged_pieces(n_merges: int) -> list[bytes]:
    """256 bytes and the pairs that are commonest in TEXT, merged one after the other: plain byte-level BPE."""
    pieces = [bytes([b]) for b in range(256)]
    words = [[bytes([b]) for b in word.encode()] for word in regex.findall(PATTERN, TEXT)]
    for _ in range(n_merges):
        pairs = [pair for word in words for pair in zip(word, word[1:])]
        if not pairs:
            break
        best = max(sorted(set(pairs)), key=pairs.count)
        pieces.append(best[0] + best[1])
        words = [merge(word, best) for word in words]
    return pieces


def merge(word: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    out: list[bytes] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def write_tiktoken(path: Path, pieces: list[bytes], end: bytes = b"\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(base64.b64encode(piece) + b" %d" % i + end for i, piece in enumerate(pieces)))
    return path


PIECES = merged_pieces(120)
FIRST = len(PIECES)  # the id of <|begin_of_text|>
# What Llama 3.1's model card writes for a first question.
DOCUMENTED = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWhat is the capital of France?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
THREE_TURNS = (
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiktoken(tmp_path_factory.mktemp("llama3") / "tokenizer.model", PIECES)


@pytest.fixture(scope="module")
def toy(path: Path) -> Llama3Tokenizer:
    return Llama3Tokenizer(path)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("llama2") / "tokenizer.model"))


@pytest.fixture(scope="module")
def other(path: Path) -> PreTrainedTokenizerFast:
    """transformers' reading of the same file, with Llama 3's 256 special ids by their names."""
    names = [f"<|reserved_{i}|>" for i in range(256)]
    for name, place in NAMED.items():
        names[place] = name
    converted = TikTokenConverter(str(path), pattern=PATTERN, extra_special_tokens=names).converted()
    return PreTrainedTokenizerFast(tokenizer_object=converted, clean_up_tokenization_spaces=False)


def by_hand(text: str) -> list[int]:
    """Cut by the regular expression, then join the pair of the lowest id until none is left."""
    ids = {piece: i for i, piece in enumerate(PIECES)}
    out = []
    for word in regex.findall(PATTERN, text):
        pieces = [bytes([b]) for b in word.encode()]
        while True:
            joins = [(ids[a + b], i) for i, (a, b) in enumerate(zip(pieces, pieces[1:])) if a + b in ids]
            if not joins:
                break
            _, i = min(joins)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        out += [ids[piece] for piece in pieces]
    return out


# --- Ids -------------------------------------------------------------------------------------------------------------


def test_interface_is_the_tokenizer_s(toy: Llama3Tokenizer, path: Path) -> None:
    assert isinstance(toy, Tokenizer) and not hasattr(toy, "sp_model")
    assert (toy.n_words, toy.bos_id, toy.eos_id, toy.pad_id) == (FIRST + 256, FIRST, FIRST + 1, -1)
    ids = toy.encode("the cat", bos=False, eos=False)
    assert ids == by_hand("the cat") and len(ids) < 7
    assert toy.encode(s="the cat", bos=True, eos=True) == [FIRST, *ids, FIRST + 1]
    assert toy.encode("", bos=True, eos=True) == [FIRST, FIRST + 1]
    assert toy.decode([FIRST, *ids, FIRST + 1]) == toy.decode(tuple(ids)) == "the cat"
    assert toy.decode(ids[0]) == PIECES[ids[0]].decode()
    assert toy.decode([]) == ""
    assert Llama3Tokenizer(model_path=str(path)).n_words == toy.n_words


def test_special_ids_are_where_llama_3_has_them() -> None:
    ids = {name: 128000 + place for name, place in NAMED.items()}
    assert ids == {
        "<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|start_header_id|>": 128006,
        "<|end_header_id|>": 128007, "<|eom_id|>": 128008, "<|eot_id|>": 128009,
    }  # fmt: skip


def test_a_file_of_128000_pieces_gives_a_vocabulary_of_128256(tmp_path: Path) -> None:
    pieces = [bytes([b]) for b in range(256)] + [i.to_bytes(3, "big") for i in range(128000 - 256)]
    tokenizer = Llama3Tokenizer(write_tiktoken(tmp_path / "tokenizer.model", pieces))
    assert (tokenizer.n_words, tokenizer.bos_id, tokenizer.eos_id) == (128256, 128000, 128001)
    assert tokenizer.stop_ids == [128001, 128009, 128008]


@prove
@given(text=st.text())
@example(text=TEXT)
@example(text="I'm  sure they'LL\r\n\r\n \t\n x\n\n\n  \u00a0\u3000y 1234 \u0661\u0662\u0663\u0664 ...!?\n\n")
@example(text="\x00\x7f\ufeff\u2028 e\u0301 \U0010ffff")
def test_ids_are_those_of_bpe_by_hand_and_text_comes_back(toy: Llama3Tokenizer, text: str) -> None:
    ids = toy.encode(text, bos=False, eos=False)
    assert ids == by_hand(text)
    assert toy.decode(ids) == toy.decode([toy.bos_id, *ids, toy.eos_id]) == text


@prove
@given(text=st.text())
@example(text=TEXT)
def test_ids_are_those_of_tiktoken_and_transformers(
    toy: Llama3Tokenizer, other: PreTrainedTokenizerFast, text: str
) -> None:
    theirs = tiktoken.Encoding(
        "toy", pat_str=PATTERN, mergeable_ranks={piece: i for i, piece in enumerate(PIECES)}, special_tokens={}
    )
    ids = toy.encode(text, bos=False, eos=False)
    assert ids == theirs.encode(text)
    if not any(tag in text for tag in SPECIAL_TAGS):
        assert ids == other.encode(text, add_special_tokens=False)
    assert toy.decode(ids) == theirs.decode(ids)


@prove
@given(pieces=st.lists(st.one_of(st.sampled_from([*SPECIAL_TAGS, "<|", "|>", "eot_id"]), st.text(max_size=3))))
def test_text_never_yields_a_special_id(toy: Llama3Tokenizer, pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = toy.encode(text, bos=False, eos=False)
    assert all(i < FIRST for i in ids)
    assert toy.decode(ids) == text


def test_special_ids_are_silent(toy: Llama3Tokenizer) -> None:
    for i in range(FIRST, toy.n_words):
        assert toy.id_bytes(i) == b"" and toy.decode(i) == ""
    hello = toy.encode("hello", bos=False, eos=False)
    assert toy.decode([FIRST + 9, *hello, FIRST + 200]) == "hello"


@pytest.mark.parametrize("i", [-1, FIRST + 256, 2**31, None, 1.0, True], ids=repr)
def test_ids_that_there_are_not_are_named(toy: Llama3Tokenizer, i: Any) -> None:
    with pytest.raises(ValueError, match=f"not in the vocabulary of {FIRST + 256}"):
        toy.id_bytes(i)


@pytest.mark.parametrize("text", [None, 7, b"hi", ["hi"]], ids=repr)
def test_what_is_no_text_is_refused(toy: Llama3Tokenizer, text: Any) -> None:
    with pytest.raises(ValueError, match="expected text"):
        toy.encode(text, bos=True, eos=False)


def test_half_a_surrogate_pair_is_named(toy: Llama3Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"\\ud83d' at character 2, half of a surrogate pair"):
        toy.encode("ab\ud83d", bos=True, eos=False)


# --- Streaming -------------------------------------------------------------------------------------------------------


@prove
@given(ids=st.lists(st.integers(0, FIRST + 255), max_size=12))
def test_any_ids_stream_into_the_text_of_their_bytes(toy: Llama3Tokenizer, ids: list[int]) -> None:
    expected = b"".join(PIECES[i] if i < FIRST else b"" for i in ids).decode(errors="replace")
    for continuing in (False, True):
        pieces = list(toy.decode_stream(ids, continuing))
        assert len(pieces) == len(ids) + 1
        assert "".join(pieces) == toy.decode(ids) == expected
        stream = stream_decoder(toy, continuing)
        assert "".join([*map(stream.feed, ids), stream.flush()]) == expected


def test_a_character_of_many_ids_comes_whole_and_the_first_space_stays(toy: Llama3Tokenizer) -> None:
    ids = toy.encode(" \u20ac", bos=False, eos=False)
    assert len(ids) > 2
    pieces = list(toy.decode_stream(ids))
    assert pieces[0] == " " and pieces.count("\u20ac") == 1 and "".join(pieces) == " \u20ac"


def test_stream_decoder_of_sentencepiece_is_as_it_was(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("the cat", bos=False, eos=False)
    for continuing, expected in ((False, "the cat"), (True, " the cat")):
        stream = stream_decoder(sentencepiece, continuing)
        assert "".join([*map(stream.feed, ids), stream.flush()]) == expected


# --- Long texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [" ", "a", "\n", "!", "1", "\U0001f431", " a", "\n a!"], ids=ascii)
def test_a_million_characters_are_encoded(toy: Llama3Tokenizer, unit: str) -> None:
    text = unit * (1_000_000 // len(unit))  # tiktoken itself overflows its stack on a million spaces
    assert toy.decode(toy.encode(text, bos=False, eos=False)) == text


def cut_by_counting(text: str) -> list[str]:
    """Character by character: a part ends before the character that would make a run, or the text, too long."""
    found = []
    for start in range(0, len(text), LONGEST_TEXT):
        part, run, was_space = "", 0, None
        for c in text[start : start + LONGEST_TEXT]:
            run = run + 1 if c.isspace() == was_space else 1
            was_space = c.isspace()
            if run > LONGEST_RUN:
                found.append(part)
                part, run = "", 1
            part += c
        found.append(part)
    return found


@pytest.mark.parametrize(
    "text",
    ["", "a b", "a" * LONGEST_RUN, "a" * (LONGEST_RUN + 1), " " * (2 * LONGEST_RUN + 3) + "x" * (3 * LONGEST_RUN),
     "ab " * 3 + "x" * (LONGEST_RUN + 5) + "\u3000\n " + "y" * LONGEST_RUN + " z", "word " * 90_000],
    ids=range(7),
)  # fmt: skip
def test_long_texts_are_cut_as_meta_s_tokenizer_cuts_them(text: str) -> None:
    found = list(parts(text))
    assert "".join(found) == text
    assert found == cut_by_counting(text)


# --- Files -----------------------------------------------------------------------------------------------------------


def test_kind_of_file_is_told_by_its_content(path: Path, tmp_path: Path) -> None:
    assert is_tiktoken(path)
    assert type(load_tokenizer(path)) is Llama3Tokenizer
    ours = make_tokenizer(tmp_path / "tokenizer.model")
    assert not is_tiktoken(ours)
    assert type(load_tokenizer(str(ours))) is Tokenizer
    assert type(load_tokenizer(write_tiktoken(tmp_path / "dos.model", PIECES, b"\r\n"))) is Llama3Tokenizer
    for nothing in (tmp_path, tmp_path / "absent"):
        assert not is_tiktoken(nothing)
        with pytest.raises(FileNotFoundError, match="no tokenizer at"):
            load_tokenizer(nothing)
        with pytest.raises(FileNotFoundError, match="no tokenizer at"):
            Llama3Tokenizer(nothing)


def lines(*changes: tuple[int, bytes]) -> bytes:
    made = [base64.b64encode(piece) + b" %d" % i for i, piece in enumerate(PIECES)]
    for n, line in changes:
        made[n - 1] = line
    return b"\n".join(made)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (lines((3, b"Ag==")), "line 3"),
        (lines((3, b"Ag== two")), "line 3"),
        (lines((3, b"A 2")), "line 3"),
        (lines((3, b"\xff\xfe 2")), "line 3"),
        (lines((3, b"")), "line 3"),
        (lines((3, b"Ag== 3")), "line 3 has the id 3; expected 2"),
        (lines((300, b"Ag== 299")), "has a piece twice"),
        (lines((3, b"enp6 2")), "lacks 1 of the 256 bytes"),
        (lines()[: len(lines()) // 3], ""),
        (b"IQ== 0\n", "lacks 255"),
        (b"IQ== 1\n", "line 1 has the id 1"),
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, named: str) -> None:
    damaged = tmp_path / "tokenizer.model"
    damaged.write_bytes(content)
    with pytest.raises(ValueError) as error:
        load_tokenizer(damaged)
    assert named in str(error.value) and str(damaged) in str(error.value) and "download it again" in str(error.value)


def test_without_tiktoken_the_error_says_how_to_get_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ValueError, match="pip install tiktoken"):
        load_tokenizer(path)


def test_sentencepiece_models_need_no_tiktoken(sentencepiece: Tokenizer, tmp_path: Path) -> None:
    ours = make_tokenizer(tmp_path / "tokenizer.model")
    said = "import sys; sys.modules['tiktoken'] = None\nfrom minillama.tokenizer_llama3 import load_tokenizer\n"
    code = f"{said}print(load_tokenizer({str(ours)!r}).n_words)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{sentencepiece.n_words}\n", done.stderr


# --- Chat ------------------------------------------------------------------------------------------------------------


def dialog(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    turns = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return ([] if system is None else [{"role": "system", "content": system}]) + turns


def spelled(ids: list[int]) -> str:
    """The text of `ids` with special ids by their names."""
    names = {FIRST + place: name for name, place in NAMED.items()}
    out, run = "", b""
    for i in ids:
        if i in names:
            out, run = out + run.decode() + names[i], b""
        else:
            run += PIECES[i]
    return out + run.decode()


@pytest.mark.parametrize(
    ("messages", "documented"),
    [
        (dialog("What is the capital of France?", system="You are a helpful assistant"), DOCUMENTED),
        (dialog("Hi", "Hello!", "Bye"), THREE_TURNS),
        (dialog(" Hi\n", "\n\nHello! ", "\tBye \u3000"), THREE_TURNS),
    ],
    ids=["system", "three turns", "white space"],
)
def test_dialogs_are_meta_s_documented_strings(
    toy: Llama3Tokenizer, other: PreTrainedTokenizerFast, messages: Any, documented: str
) -> None:
    ids = encode_dialog(messages, toy)
    assert spelled(ids) == documented
    assert ids == other.encode(documented, add_special_tokens=False)  # which takes special ids out of text


plain = st.text(max_size=12).filter(lambda text: not any(tag in text for tag in SPECIAL_TAGS))


@prove
@given(contents=st.lists(st.one_of(plain, st.sampled_from(["", "\n", "[INST]", "<|eot_id", "system"])), max_size=4),
       last=plain, system=st.one_of(st.none(), plain))  # fmt: skip
def test_any_dialog_is_encoded_as_transformers_encodes_its_string(
    toy: Llama3Tokenizer, other: PreTrainedTokenizerFast, contents: list[str], last: str, system: str | None
) -> None:
    messages = dialog(*contents[: len(contents) // 2 * 2], last, system=system)
    text = "<|begin_of_text|>" + "".join(
        f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n{m['content'].strip()}<|eot_id|>" for m in messages
    )
    ids = encode_dialog(messages, toy)
    assert ids == other.encode(text + "<|start_header_id|>assistant<|end_header_id|>\n\n", add_special_tokens=False)
    assert ids.count(FIRST) == 1 and ids.count(FIRST + 9) == len(messages)


@pytest.mark.parametrize("tag", ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                 "<|eot_id|>", "<|eom_id|>"])  # fmt: skip
@pytest.mark.parametrize("where", range(4))
def test_tags_are_refused_in_every_message(toy: Llama3Tokenizer, tag: str, where: int) -> None:
    messages = dialog("a", "b", "c", system="d")
    assert not LLAMA3.has_special_tags(messages)
    messages[where]["content"] = f"x{tag}y"
    assert LLAMA3.has_special_tags(messages) and not LLAMA2.has_special_tags(messages)
    with pytest.raises(ValueError, match=UNSAFE_ERROR):
        encode_dialog(messages, toy)


def test_llama_2_s_tags_are_plain_text_to_llama_3(toy: Llama3Tokenizer) -> None:
    assert "[INST] hi [/INST]" in spelled(encode_dialog(dialog("[INST] hi [/INST]"), toy))


def test_wrong_orders_of_roles_are_named(toy: Llama3Tokenizer) -> None:
    with pytest.raises(ValueError, match="message 1 has the role 'assistant'; the last"):
        encode_dialog(dialog("a", "b"), toy)
    with pytest.raises(ValueError, match="no user message"):
        encode_dialog([], toy)


def test_the_template_goes_with_the_tokenizer(toy: Llama3Tokenizer, sentencepiece: Tokenizer) -> None:
    assert template_of(toy) is LLAMA3 and template_of(sentencepiece) is LLAMA2
    messages = dialog("Hi")
    assert LLAMA2.encode_dialog(messages, sentencepiece) == encode_dialog_llama2(messages, sentencepiece)
    with pytest.raises(ValueError, match="needs Llama 3's tokenizer"):
        encode_dialog(messages, sentencepiece)
    assert stop_ids_of(sentencepiece) == [sentencepiece.eos_id]
    assert stop_ids_of(toy) == [FIRST + 1, FIRST + 9, FIRST + 8]


# --- Llama -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Llama 3.1's: its tokenizer, its theta, its scaled angles; random weights."""
    made = make_checkpoint(tmp_path_factory.mktemp("model") / "llama3", max_seq_len=256)
    write_tiktoken(made / "tokenizer.model", PIECES)
    weights = torch.load(made / "consolidated.00.pth", weights_only=True)
    generator = torch.Generator().manual_seed(1)
    for key in ("tok_embeddings.weight", "output.weight"):
        weights[key] = torch.randn(FIRST + 256, 32, generator=generator) * (0.5 if key[0] == "o" else 1.0)
    torch.save(weights, made / "consolidated.00.pth")
    params = json.loads((made / "params.json").read_text())
    params |= {"vocab_size": FIRST + 256, "rope_theta": 500000.0, "use_scaled_rope": True}
    (made / "params.json").write_text(json.dumps(params))
    return made


def test_a_llama_3_folder_is_built_and_answers(folder: Path) -> None:
    llama = Llama.build(folder)
    assert isinstance(llama.tokenizer, Llama3Tokenizer)
    assert llama.model.args.rope_theta == 500000.0
    assert llama.model.args.rope_scaling is not None and llama.model.args.rope_scaling["factor"] == 8.0
    (answer,) = llama.chat_completion([dialog("Hi")], temperature=0.0, max_gen_len=8)
    ids = encode_dialog(dialog("Hi"), llama.tokenizer)
    tokens, _ = llama.generate([ids], temperature=0.0, max_gen_len=8)
    assert answer["generation"]["content"] == llama.tokenizer.decode(tokens[0])
    streamed = "".join(piece.text for piece in llama.stream_chat(dialog("Hi"), temperature=0.0, max_gen_len=8))
    assert streamed == answer["generation"]["content"]
    (said,) = llama.text_completion(["the cat"], temperature=0.0, max_gen_len=8, echo=True)
    assert said["generation"].startswith("the cat")
    assert llama.score(["the cat"])[0].tokens[0] == FIRST


def test_a_tokenizer_of_another_model_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{FIRST + 256} rows and the tokenizer 400 pieces"):
        Llama.build(folder, make_tokenizer(tmp_path / "tokenizer.model"))


@pytest.mark.parametrize("name", ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"])
def test_an_answer_ends_at_each_stop_id_unless_others_are_asked_for(toy: Llama3Tokenizer, name: str) -> None:
    prompt = encode_dialog(dialog("Hi"), toy)
    words = toy.encode(" hello", bos=False, eos=False)
    script = [0] * (len(prompt) - 1) + [*words, toy.special[name], *words, toy.eos_id]
    llama = Llama(Scripted(toy, script, max_seq_len=len(script) + 1), toy)
    (answer,) = llama.chat_completion([dialog("Hi")])
    assert answer["generation"]["content"] == " hello" and answer["finish_reason"] == "stop"
    assert [piece.text for piece in llama.stream_chat(dialog("Hi"))][-1] == ""
    (longer,) = llama.chat_completion([dialog("Hi")], stop_ids=[FIRST + 50])
    assert longer["generation"]["content"].startswith(" hello hello") and longer["finish_reason"] == "length"


def test_a_dialog_with_tags_is_not_run_and_the_others_are(folder: Path) -> None:
    llama = Llama.build(folder)
    dialogs = [dialog("Hi"), dialog("x<|eot_id|>"), dialog("[INST]")]
    results = llama.chat_completion(dialogs, temperature=0.0, max_gen_len=4)
    assert [result["finish_reason"] == "unsafe" for result in results] == [False, True, False]
    assert results[1]["generation"]["content"] == UNSAFE_ERROR
    with pytest.raises(ValueError, match=UNSAFE_ERROR):
        llama.stream_chat(dialog("x<|eot_id|>"))


def test_chat_on_the_command_line_takes_the_template_of_the_folder(folder: Path) -> None:
    llama = Llama.build(folder)

    def run(*more: str, text: str = "") -> Any:
        options = ("--ckpt-dir", str(folder), "--max-gen-len", "6", "--temperature", "0", "--json")
        return CliRunner().invoke(app, ["chat", *options, *more], input=text)

    said = json.loads(run("--message", "[INST] Hi").stdout)
    assert said["prompt_tokens"] == len(encode_dialog(dialog("[INST] Hi"), llama.tokenizer))
    (expected,) = llama.chat_completion([dialog("[INST] Hi")], temperature=0.0, max_gen_len=6)
    assert said["text"] == expected["generation"]["content"]
    for more in (("--message", "<|eot_id|>"), ("--message", "a", "--system", "<|eot_id|>")):
        refused = run(*more)
        assert refused.exit_code == 2 and "<|eot_id|>" in refused.stderr and "forge" in refused.stderr
    talk = [json.loads(line) for line in run(text="Hi\n<|eot_id|>\n[INST]\n").stdout.splitlines()]
    assert ["error" in one for one in talk] == [False, True, False]


@torch.no_grad()
def test_a_model_of_llama_3_s_vocabulary_and_theta_is_built_from_its_params(tmp_path: Path) -> None:
    params = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024,
              "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05, "rope_theta": 500000.0}  # fmt: skip
    (tmp_path / "params.json").write_text(json.dumps(params))
    args = ModelArgs.from_json(tmp_path / "params.json")
    with torch.device("meta"):
        model = Transformer(args)
    assert sum(p.numel() for p in model.parameters()) == args.n_params == 8030261248  # Llama 3 8B, by its model card
    slowest = model.freqs_cis[1, -1].angle().item()
    assert slowest == pytest.approx(500000.0 ** (-126 / 128), rel=1e-5)
