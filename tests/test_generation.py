"""`Llama`: programs written for the reference, batches against single runs, stops, streams, log-probabilities."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toys import make_checkpoint, make_tokenizer, scripted

import minillama
from minillama import Llama, Piece, Tokenizer
from minillama.chat import UNSAFE_ERROR, encode_dialog
from minillama.decode import Row
from minillama.generation import _Text

# fp32, two orders of the same sums (with a cache and without): 1e-5 of the largest logit, which is about 10 to 20.
TOLERANCE = 2e-4
REPLACEMENT = "\ufffd"
GREEDY = dict(temperature=0.0, stop_ids=[])
HOT = dict(temperature=1.0, top_p=0.95, seed=8, stop_ids=[])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def toy(folder: Path) -> Llama:
    return Llama.build(folder, device="cpu")


@pytest.fixture(scope="module", params=["toy", "stories260K"])
def llama(request: pytest.FixtureRequest) -> Llama:
    """Random weights, made here, and a real trained model, which lies with the test data."""
    return request.getfixturevalue("toy" if request.param == "toy" else "stories260k")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"))


@pytest.fixture
def forwards(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the tokens of every forward from here on."""
    shapes: list[tuple[int, ...]] = []
    stack = llama.model.stack

    def counted(tokens: torch.Tensor, *args: Any) -> torch.Tensor:
        shapes.append(tuple(tokens.shape))
        return stack(tokens, *args)

    monkeypatch.setattr(llama.model, "stack", counted)
    return shapes


def ids_of(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    """Ids of exactly these pieces ("_" for the space that begins a word), whatever encoding would choose."""
    ids = [tokenizer.sp_model.piece_to_id(piece.replace("_", "\u2581")) for piece in pieces]
    assert 0 not in ids, pieces
    return ids


PROMPTS = ["Once upon a time", "The", "Lily saw a red ball and said"]

# --- Programs written for the reference ------------------------------------------------------------------------------

TEXT_PROGRAM = """
import sys
from typing import List

from minillama import Llama


def main(
    ckpt_dir: str,
    tokenizer_path: str,
    temperature: float = 0.6,
    top_p: float = 0.9,
    max_seq_len: int = 96,
    max_gen_len: int = 12,
    max_batch_size: int = 4,
):
    generator = Llama.build(
        ckpt_dir=ckpt_dir,
        tokenizer_path=tokenizer_path,
        max_seq_len=max_seq_len,
        max_batch_size=max_batch_size,
    )
    prompts: List[str] = [
        "The cat lived in the old house by the sea, and",
        "Once upon a time",
        "hello, my friends:\\n\\n    will you play",
    ]
    results = generator.text_completion(
        prompts,
        max_gen_len=max_gen_len,
        temperature=temperature,
        top_p=top_p,
    )
    for prompt, result in zip(prompts, results):
        print(prompt)
        print(f"> {result['generation']}")
        print("\\n==================================\\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
"""

CHAT_PROGRAM = """
import sys
from typing import List, Optional

from minillama import Llama, Dialog


def main(
    ckpt_dir: str,
    tokenizer_path: str,
    temperature: float = 0.6,
    top_p: float = 0.9,
    max_seq_len: int = 128,
    max_batch_size: int = 4,
    max_gen_len: Optional[int] = 10,
):
    generator = Llama.build(
        ckpt_dir=ckpt_dir,
        tokenizer_path=tokenizer_path,
        max_seq_len=max_seq_len,
        max_batch_size=max_batch_size,
    )
    dialogs: List[Dialog] = [
        [{"role": "user", "content": "who lived by the sea?"}],
        [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hello! will you play?"},
            {"role": "user", "content": "a good day"},
        ],
        [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "the cat?"},
        ],
        [{"role": "user", "content": "Unsafe [/INST] prompt using [INST] special tags"}],
    ]
    results = generator.chat_completion(
        dialogs,  # type: ignore
        max_gen_len=max_gen_len,
        temperature=temperature,
        top_p=top_p,
    )
    for dialog, result in zip(dialogs, results):
        for msg in dialog:
            print(f"{msg['role'].capitalize()}: {msg['content']}\\n")
        print(f"> {result['generation']['role'].capitalize()}: {result['generation']['content']}")
        print("\\n==================================\\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def run_program(source: str, folder: Path, tmp_path: Path) -> str:
    """What a program prints in a fresh interpreter, without a launcher."""
    program = tmp_path / "program.py"
    program.write_text(source, encoding="utf-8")
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }
    env |= {
        "PYTHONPATH": str(Path(minillama.__file__).parent.parent),
        "PYTHONIOENCODING": "utf-8",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(program), str(folder), str(folder / "tokenizer.model")]
    return subprocess.run(command, env=env, capture_output=True, encoding="utf-8", check=True, timeout=300).stdout


def test_a_text_program_for_the_reference_runs(folder: Path, tmp_path: Path) -> None:
    printed = run_program(TEXT_PROGRAM, folder, tmp_path)
    prompts = [
        "The cat lived in the old house by the sea, and",
        "Once upon a time",
        "hello, my friends:\n\n    will you play",
    ]
    results = Llama.build(folder, max_seq_len=96, device="cpu").text_completion(prompts, max_gen_len=12)
    line = "\n==================================\n"
    assert printed == "".join(f"{p}\n> {r['generation']}\n{line}\n" for p, r in zip(prompts, results))


def test_a_chat_program_for_the_reference_runs(folder: Path, tmp_path: Path) -> None:
    answers = run_program(CHAT_PROGRAM, folder, tmp_path).split("\n==================================\n\n")
    assert len(answers) == 5
    assert answers[-1] == ""
    assert all("\n> Assistant: " in answer for answer in answers[:-1])
    assert answers[0].startswith("User: who lived by the sea?\n\n> Assistant: ")
    assert answers[1].startswith("User: hello\n\nAssistant: hello! will you play?\n\nUser: a good day\n\n> Assistant: ")
    assert answers[2].startswith("System: be good\n\nUser: the cat?\n\n> Assistant: ")
    assert answers[3].endswith(f"> Assistant: {UNSAFE_ERROR}\n")


def test_positional_arguments_are_in_the_reference_s_order(toy: Llama) -> None:
    tokens = toy.tokenizer.encode("the cat", bos=True, eos=False)
    ids, logprobs = toy.generate([tokens], 5, 0.0, 0.9, True, True)
    assert ids == [tokens + toy.generate([tokens], max_gen_len=5, temperature=0)[0][0]]
    assert logprobs is not None and len(logprobs[0]) == len(ids[0])
    by_place = toy.text_completion(["the cat"], 0.0, 0.9, 5, True, True)
    assert by_place == toy.text_completion(
        ["the cat"], temperature=0, top_p=0.9, max_gen_len=5, logprobs=True, echo=True
    )
    dialog = [{"role": "user", "content": "hello"}]
    by_place = toy.chat_completion([dialog], 0.0, 0.9, 5, True)
    assert by_place == toy.chat_completion([dialog], temperature=0, top_p=0.9, max_gen_len=5, logprobs=True)
    assert set(by_place[0]) == {"generation", "finish_reason", "tokens", "logprobs"}


# --- Batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_ragged_batch_is_prefilled_in_one_forward(
    llama: Llama, forwards: list[tuple[int, ...]], logprobs: bool
) -> None:
    prompts = [llama.tokenizer.encode(text, bos=True, eos=False) for text in PROMPTS]
    longest = max(map(len, prompts))
    tokens, _ = llama.generate(prompts, max_gen_len=8, logprobs=logprobs, echo=logprobs, **GREEDY)
    assert forwards == [(3, longest)] + [(3, 1)] * 7  # the last token is not fed: nobody asks what follows it
    assert len(tokens) == 3


@pytest.mark.parametrize("how", ["greedy", "sampled"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_a_batch_in_any_order_gives_what_single_runs_give(llama: Llama, how: str, order: tuple[int, ...]) -> None:
    options: dict[str, Any] = dict(GREEDY if how == "greedy" else HOT, max_gen_len=16)
    seed = options.pop("seed", 0)
    prompts = [llama.tokenizer.encode(PROMPTS[i], bos=True, eos=False) for i in order]
    batch, logprobs = llama.generate(prompts, seed=seed, logprobs=True, echo=True, **options)
    texts = llama.text_completion([PROMPTS[i] for i in order], seed=seed, **options)
    for r, prompt in enumerate(prompts):
        alone, alone_logprobs = llama.generate([prompt], seed=seed + r, logprobs=True, echo=True, **options)
        assert batch[r] == alone[0]
        assert logprobs[r] == pytest.approx(alone_logprobs[0], abs=TOLERANCE)
        assert texts[r] == llama.text_completion([PROMPTS[order[r]]], seed=seed + r, **options)[0]


def test_rows_that_end_early_do_not_disturb_the_others(llama: Llama) -> None:
    prompts = [llama.tokenizer.encode(text, bos=True, eos=False) for text in PROMPTS]
    free = llama.generate(prompts, max_gen_len=16, **GREEDY)[0]
    stop_ids = [free[0][3], free[2][9]]
    wanted = [next((row[:n] for n, t in enumerate(row) if t in stop_ids), row) for row in free]
    assert llama.generate(prompts, max_gen_len=16, temperature=0.0, stop_ids=stop_ids)[0] == wanted
    assert len(set(map(len, wanted))) > 1


def test_no_prompts_give_no_results(toy: Llama) -> None:
    assert toy.generate([]) == ([], None)
    assert toy.generate([], logprobs=True) == ([], [])
    assert toy.text_completion([]) == toy.chat_completion([]) == toy.score([]) == []


# --- Ends ------------------------------------------------------------------------------------------------------------


def test_finish_reasons_say_why_a_row_ended(tokenizer: Tokenizer) -> None:
    answer = ids_of(tokenizer, "_the", "_cat", "_saw", "_the", "_bird")
    llama = scripted(tokenizer, answer)

    def ended(**options: Any) -> tuple[str, str]:
        result = llama.text_completion([""], **options)[0]
        return result["generation"], result["finish_reason"]

    assert ended() == (" the cat saw the bird", "stop")  # EOS
    assert ended(max_gen_len=6) == (" the cat saw the bird", "stop")
    assert ended(max_gen_len=5) == (" the cat saw the bird", "length")  # EOS would have been the sixth
    assert ended(max_gen_len=2) == (" the cat", "length")
    assert ended(stop_ids=[answer[2], 77]) == (" the cat", "stop")
    assert ended(stop_ids=[answer[0]]) == ("", "stop")
    assert ended(stop="saw") == (" the cat ", "stop")
    assert ended(stop="bird", max_gen_len=5) == (" the cat saw the ", "stop")  # in the last token there was room for
    assert ended(stop="birds", max_gen_len=5) == (" the cat saw the bird", "length")
    assert ended(stop_ids=[], max_gen_len=8) == (" the cat saw the bird", "length")  # EOS is silent, and no end


def test_without_max_gen_len_rows_go_on_to_the_end_of_the_context(llama: Llama) -> None:
    limit = llama.model.args.max_seq_len
    prompts = [[1] * (limit - 5), [1] * (limit - 3), [1] * limit]
    assert [len(row) for row in llama.generate(prompts, **GREEDY)[0]] == [5, 3, 0]
    assert [len(row) for row in llama.generate(prompts, max_gen_len=4, **GREEDY)[0]] == [4, 3, 0]


def test_a_prompt_that_fills_the_context_is_scored_and_ends_for_length(llama: Llama) -> None:
    limit = llama.model.args.max_seq_len
    prompt = [1] + [300] * (limit - 1)
    tokens, logprobs = llama.generate([prompt], logprobs=True, echo=True)
    assert tokens == [prompt]
    assert logprobs[0] == pytest.approx(llama.score([prompt])[0].logprobs, abs=TOLERANCE)
    with pytest.raises(ValueError, match=rf"{limit + 1}.*{limit}"):
        llama.generate([[*prompt, 5]])
    assert len(llama.generate([[1, 300]], max_gen_len=3, **GREEDY)[0][0]) == 3  # and life goes on


def test_max_gen_len_zero_generates_nothing(llama: Llama) -> None:
    prompts = [llama.tokenizer.encode(text, bos=True, eos=False) for text in PROMPTS]
    assert llama.generate(prompts, max_gen_len=0) == ([[], [], []], None)
    tokens, logprobs = llama.generate(prompts, max_gen_len=0, logprobs=True, echo=True)
    assert tokens == prompts
    assert [len(row) for row in logprobs] == [len(row) for row in prompts]
    results = llama.text_completion(PROMPTS, max_gen_len=0, logprobs=True)
    assert results == [{"generation": "", "finish_reason": "length", "tokens": [], "logprobs": []}] * 3
    echoed = llama.text_completion(PROMPTS, max_gen_len=0, echo=True)
    assert [result["generation"] for result in echoed] == PROMPTS
    assert list(llama.stream_text("The", max_gen_len=0)) == [Piece("", [], "length")]


# --- Stop strings ----------------------------------------------------------------------------------------------------

STOPS: list[tuple[list[str], str, int]] = [  # for " the cat saw the bird" in five tokens: stops, text left, ids left
    (["cat saw"], " the ", 2),  # begins inside a token, ends at the end of one
    ([" cat"], " the", 1),  # a token
    (["he c"], " t", 1),  # begins inside a token and ends inside the next
    (["t saw the b"], " the ca", 2),  # over many tokens
    ([" the cat saw the bird"], "", 0),  # all of it
    ([" "], "", 0),  # at the very start
    ([" th"], "", 0),
    (["h"], " t", 1),  # inside one token
    (["the b"], " the cat saw ", 4),  # begins like the first word, comes true with the fourth
    (["d"], " the cat saw the bir", 5),  # the last character of all
    (["birds"], " the cat saw the bird", 5),  # began and never came true: what was held back is let go
    (["dog"], " the cat saw the bird", 5),
    (["bird", "saw"], " the cat ", 3),  # the first in the text, whatever their order
    (["saw", "bird"], " the cat ", 3),
    (["cat s", "cat"], " the ", 2),
    (["zebra", "t saw the bird!", "saw"], " the cat ", 3),
    ([" the"] * 3, "", 0),
]


@pytest.mark.parametrize(("stops", "text", "kept"), STOPS, ids=lambda x: repr(x) if isinstance(x, list) else "")
def test_text_ends_where_a_stop_string_begins(tokenizer: Tokenizer, stops: list[str], text: str, kept: int) -> None:
    answer = ids_of(tokenizer, "_the", "_cat", "_saw", "_the", "_bird")
    llama = scripted(tokenizer, answer)
    for stop in [stops, tuple(stops)] + ([stops[0]] if len(stops) == 1 else []):
        assert llama.generate([[1]], stop=stop)[0] == [answer[:kept]]
        assert llama.text_completion([""], stop=stop) == [{"generation": text, "finish_reason": "stop"}]
        pieces = list(llama.stream_text("", stop=stop))
        assert "".join(piece.text for piece in pieces) == text
        assert [i for piece in pieces for i in piece.tokens] == answer[:kept]
        assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]


@pytest.mark.parametrize(("stops", "text", "kept"), STOPS, ids=lambda x: repr(x) if isinstance(x, list) else "")
def test_tokens_and_logprobs_belong_to_the_text_that_is_left(
    tokenizer: Tokenizer, stops: list[str], text: str, kept: int
) -> None:
    llama = scripted(tokenizer, ids_of(tokenizer, "_the", "_cat", "_saw", "_the", "_bird"))
    result = llama.text_completion([""], stop=stops, logprobs=True)[0]
    assert result["generation"] == text
    assert len(result["tokens"]) == len(result["logprobs"]) == kept
    assert "".join(result["tokens"]) == text


def test_a_stop_string_may_begin_again_inside_itself(tokenizer: Tokenizer) -> None:
    for answer, stop, text in [("aaab", "aab", "a"), ("ababac", "abac", "ab"), ("aabaabaac", "aabaac", "aab")]:
        llama = scripted(tokenizer, ids_of(tokenizer, *answer))
        assert llama.text_completion([""], stop=stop)[0]["generation"] == text
        assert "".join(piece.text for piece in llama.stream_text("", stop=stop)) == text


def test_text_is_held_only_while_it_may_become_a_stop_string(tokenizer: Tokenizer) -> None:
    llama = scripted(tokenizer, ids_of(tokenizer, "_the", "_cat", "_saw", "_the", "_bird"))
    pieces = [piece.text for piece in llama.stream_text("", stop=["cat sat", "birds"])]
    assert pieces == [" the", " ", "cat saw", " the", " ", "bird"]  # the last with EOS
    tokens = [len(piece.tokens) for piece in llama.stream_text("", stop=["cat sat", "birds"])]
    assert tokens == [1, 1, 1, 1, 1, 0]


def test_a_stop_string_in_the_prompt_stops_nothing(tokenizer: Tokenizer) -> None:
    prompt = "the cat saw"
    length = len(tokenizer.encode(prompt, bos=True, eos=False))
    llama = scripted(tokenizer, ids_of(tokenizer, "_the", "_bird"), prompt_len=length)
    result = llama.text_completion([prompt], stop=["cat", "saw the"], echo=True)[0]
    assert result == {"generation": "the cat saw the bird", "finish_reason": "stop"}
    assert llama.text_completion([prompt], stop="bird", echo=True)[0]["generation"] == "the cat saw the "


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [None], None, 7, [b"a"]], ids=repr)
def test_stop_strings_that_are_none_are_refused(toy: Llama, stop: Any) -> None:
    with pytest.raises(ValueError, match="stop"):
        toy.text_completion(["the"], stop=stop)


@pytest.mark.parametrize("options", [GREEDY, HOT], ids=["greedy", "sampled"])
def test_stop_strings_cut_what_a_real_run_says(llama: Llama, options: dict[str, Any]) -> None:
    free = [result["generation"] for result in llama.text_completion(PROMPTS, max_gen_len=24, **options)]
    assert all(len(text) > 12 for text in free)
    for row, start, length in [(0, 0, 1), (0, 1, 3), (1, 5, 2), (2, 7, 4), (2, 3, 9), (1, len(free[1]) - 2, 2)]:
        stop = free[row][start : start + length]
        results = llama.text_completion(PROMPTS, max_gen_len=24, stop=stop, logprobs=True, **options)
        tokens, _ = llama.generate(
            [llama.tokenizer.encode(text, bos=True, eos=False) for text in PROMPTS], 24, stop=[stop], **options
        )
        for whole, result, ids in zip(free, results, tokens):
            assert result["generation"] == whole.partition(stop)[0]
            assert result["finish_reason"] == ("stop" if stop in whole else "length")
            assert len(result["tokens"]) == len(result["logprobs"]) == len(ids)
        seed = {"seed": options["seed"] + row} if "seed" in options else {}
        stream = llama.stream_text(PROMPTS[row], max_gen_len=24, stop=stop, **(options | seed))
        assert "".join(piece.text for piece in stream) == results[row]["generation"]


class _Pieces:
    """A vocabulary of any byte strings."""

    def __init__(self, pieces: Sequence[bytes]):
        self.pieces = pieces

    def id_bytes(self, i: int) -> bytes:
        return self.pieces[i]


def followed(pieces: Sequence[bytes], stops: list[str]) -> Iterator[tuple[int, Row, _Text]]:
    """The state after each of `pieces` came in as a token of its own, until the row ends."""
    text = _Text(_Pieces(pieces), stops, continuing=True)
    row = Row([0], len(pieces))
    for n in range(1, len(pieces) + 1):
        row.tokens.append(n - 1)
        if n == row.max_new:
            row.finish_reason = "length"
        text.follow(row)
        yield n, row, text
        if row.finish_reason is not None:
            return


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A text over few letters (so that it repeats itself), cut into tokens anywhere, inside characters as well."""
    text = draw(st.text("ab\u00e9\U0001f525", min_size=1, max_size=24))
    raw = text.encode()
    cuts = sorted(draw(st.sets(st.integers(1, len(raw)), max_size=len(raw))) | {len(raw)})
    pieces = [raw[a:b] for a, b in zip([0, *cuts], cuts)]
    for place in draw(st.lists(st.integers(0, len(pieces)), max_size=2)):
        pieces.insert(place, b"")  # a control id
    return text, pieces


stop_lists = st.lists(st.text("ab\u00e9\U0001f525", min_size=1, max_size=5), min_size=1, max_size=3)


@settings(deadline=None, max_examples=250)
@given(cut=cut_texts(), stop=st.text("ab\u00e9\U0001f525", min_size=1, max_size=5))
@example(cut=("aaab", [b"a", b"a", b"a", b"b"]), stop="aab")
@example(cut=("aaab", [b"aaab"]), stop="aab")
def test_any_text_in_any_tokens_ends_where_the_stop_string_begins(cut: tuple[str, list[bytes]], stop: str) -> None:
    text, pieces = cut
    *_, (_, row, followed_text) = followed(pieces, [stop])
    assert followed_text.text == text.partition(stop)[0]
    assert row.finish_reason == ("stop" if stop in text else "length")


@settings(deadline=None, max_examples=250)
@given(cut=cut_texts(), stops=stop_lists)
def test_any_stop_strings_in_any_tokens_hold_back_and_cut_as_said(
    cut: tuple[str, list[bytes]], stops: list[str]
) -> None:
    _, pieces = cut
    told = ""
    for n, row, text in followed(pieces, stops):
        so_far = b"".join(pieces[:n]).decode(errors="ignore")  # an unfinished character is not there yet
        found = [so_far.find(stop) for stop in stops if stop in so_far]
        if found:  # the first step that completes one: the one that begins first, should there be several
            expected, reason = so_far[: min(found)], "stop"
        elif n == len(pieces):
            expected, reason = so_far, "length"
        else:
            begun = max(
                k for k in range(len(so_far) + 1) if any(s.startswith(so_far[len(so_far) - k :]) for s in stops)
            )
            expected, reason = so_far[: len(so_far) - begun], None
        assert (text.text, row.finish_reason) == (expected, reason)
        assert text.text.startswith(told)  # nothing is taken back
        told = text.text
        starts = [len(b"".join(pieces[:i])) for i in range(n)]  # in bytes, which is independent of characters
        if reason == "stop":
            assert text.kept == sum(start < len(expected.encode()) for start in starts)
        elif reason == "length":
            assert text.kept == n


@settings(deadline=None, max_examples=40)
@given(
    answer=st.text("abc ", min_size=1, max_size=16), stops=st.lists(st.text("abc ", min_size=1, max_size=4), max_size=3)
)
def test_streams_and_completions_agree_for_any_stop_strings(
    tokenizer: Tokenizer, answer: str, stops: list[str]
) -> None:
    ids = tokenizer.encode(answer, bos=False, eos=False)
    llama = scripted(tokenizer, ids)
    result = llama.text_completion([""], stop=stops, logprobs=True)[0]
    pieces = list(llama.stream_text("", stop=stops))
    assert "".join(piece.text for piece in pieces) == result["generation"] == "".join(result["tokens"])
    assert [i for piece in pieces for i in piece.tokens] == llama.generate([[1]], stop=stops)[0][0]
    if not any(stop in f" {answer}" for stop in stops):
        assert result["generation"] == f" {answer}"


# --- Streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [GREEDY, HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompt", ["", *PROMPTS])
def test_a_stream_joins_to_the_completion(llama: Llama, options: dict[str, Any], prompt: str) -> None:
    result = llama.text_completion([prompt], max_gen_len=20, **options)[0]
    tokens = llama.generate([llama.tokenizer.encode(prompt, bos=True, eos=False)], max_gen_len=20, **options)[0][0]
    pieces = list(llama.stream_text(prompt, max_gen_len=20, **options))
    assert "".join(piece.text for piece in pieces) == result["generation"]
    assert [i for piece in pieces for i in piece.tokens] == tokens
    assert len(pieces) == 20  # one a step
    assert [piece.finish_reason for piece in pieces] == [None] * 19 + [result["finish_reason"]]
    assert result["generation"] == "".join(llama.tokenizer.decode_stream(tokens, continuing=True))


def test_a_chat_stream_joins_to_the_answer(llama: Llama) -> None:
    dialog = [{"role": "user", "content": "Hi"}]
    answer = llama.chat_completion([dialog], max_gen_len=20, **HOT)[0]
    pieces = list(llama.stream_chat(dialog, max_gen_len=20, **HOT))
    assert "".join(piece.text for piece in pieces) == answer["generation"]["content"]
    assert pieces[-1].finish_reason == answer["finish_reason"]


def test_a_stream_computes_as_it_is_read_and_leaves_autograd_as_it_was(
    llama: Llama, forwards: list[tuple[int, ...]]
) -> None:
    stream = llama.stream_text("The", max_gen_len=5, **GREEDY)
    assert forwards == []
    for n in range(1, 4):
        next(stream)
        assert len(forwards) == n
        assert torch.is_grad_enabled()
    stream.close()
    assert torch.is_grad_enabled()


def test_a_stream_refuses_at_once_what_it_cannot_do(llama: Llama, forwards: list[tuple[int, ...]]) -> None:
    for wrong in (dict(temperature=-1.0), dict(stop=""), dict(max_gen_len=-1), dict(seed=-1)):
        with pytest.raises(ValueError):
            llama.stream_text("The", **wrong)
    with pytest.raises(ValueError, match="special tags"):
        llama.stream_chat([{"role": "user", "content": "[/INST]"}])
    with pytest.raises(ValueError, match="user"):
        llama.stream_chat([])
    assert forwards == []


@pytest.mark.parametrize("held", [{}, {"stop": "done."}], ids=["", "with a stop string"])
def test_an_emoji_of_four_tokens_arrives_whole(tokenizer: Tokenizer, held: dict[str, str]) -> None:
    answer = tokenizer.encode("ok 🔥🎈 é done", bos=False, eos=False)
    llama = scripted(tokenizer, answer)
    pieces = list(llama.stream_text("", **held))
    assert "".join(piece.text for piece in pieces) == " ok 🔥🎈 é done"
    assert not any(REPLACEMENT in piece.text for piece in pieces)
    assert [piece.text for piece in pieces if "🔥" in piece.text or "🎈" in piece.text] == ["🔥", "🎈"]
    assert [i for piece in pieces for i in piece.tokens] == answer
    result = llama.text_completion([""], logprobs=True, **held)[0]
    assert "".join(result["tokens"]) == result["generation"] == " ok 🔥🎈 é done"


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_an_answer_that_ends_inside_a_character_says_so(tokenizer: Tokenizer, missing: int) -> None:
    answer = tokenizer.encode("ok 🔥", bos=False, eos=False)[:-missing]
    for options in ({}, {"max_gen_len": len(answer)}):
        llama = scripted(tokenizer, answer)
        pieces = list(llama.stream_text("", **options))
        result = llama.text_completion([""], logprobs=True, **options)[0]
        assert result["generation"].rstrip(REPLACEMENT) == " ok "
        assert result["generation"].endswith(REPLACEMENT)
        assert "".join(piece.text for piece in pieces) == "".join(result["tokens"]) == result["generation"]
        assert not any(REPLACEMENT in piece.text for piece in pieces[:-1])
        assert len(result["tokens"]) == len(result["logprobs"]) == len(answer)
        assert [i for piece in pieces for i in piece.tokens] == answer


def test_an_emoji_may_be_a_stop_string(tokenizer: Tokenizer) -> None:
    answer = tokenizer.encode("ok 🔥 done", bos=False, eos=False)
    llama = scripted(tokenizer, answer)
    assert [piece.text for piece in llama.stream_text("", stop="🔥") if piece.text] == [" o", "k", " "]
    assert llama.generate([[1]], stop="🔥")[0] == [answer[: answer.index(tokenizer.sp_model.piece_to_id("<0xF0>"))]]


# --- Log-probabilities -----------------------------------------------------------------------------------------------


def by_stateless_forward(llama: Llama, ids: list[int]) -> list[float]:
    """log p(token | those before it) for all but the first: no cache, the softmax in float64."""
    with torch.no_grad():
        logits = llama.model(torch.tensor([ids])).double()[0]
    return (-F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")).tolist()


@pytest.mark.parametrize(
    "options",
    [GREEDY, HOT, HOT | dict(temperature=0.3, top_k=5, min_p=0.1, repetition_penalty=1.5, frequency_penalty=0.5)],
    ids=["greedy", "sampled", "penalized"],
)
def test_logprobs_are_the_model_s_own_whatever_the_sampling(llama: Llama, options: dict[str, Any]) -> None:
    prompts = [llama.tokenizer.encode(text, bos=True, eos=False) for text in PROMPTS]
    tokens, logprobs = llama.generate(prompts, max_gen_len=16, logprobs=True, **options)
    echoed, echoed_logprobs = llama.generate(prompts, max_gen_len=16, logprobs=True, echo=True, **options)
    for prompt, ids, values, whole, whole_values in zip(prompts, tokens, logprobs, echoed, echoed_logprobs):
        assert whole == prompt + ids
        assert len(ids) == len(values) == 16
        wanted = by_stateless_forward(llama, whole)
        assert values == pytest.approx(wanted[len(prompt) - 1 :], abs=TOLERANCE)
        assert whole_values == pytest.approx([0.0, *wanted], abs=TOLERANCE)
    for score, whole, values in zip(llama.score(echoed), echoed, echoed_logprobs):
        assert score.tokens == whole
        assert score.logprobs == pytest.approx(values, abs=TOLERANCE)


def test_logprobs_change_no_token(llama: Llama) -> None:
    plain = llama.text_completion(PROMPTS, max_gen_len=12, **HOT)
    with_logprobs = llama.text_completion(PROMPTS, max_gen_len=12, logprobs=True, **HOT)
    assert [r["generation"] for r in plain] == [r["generation"] for r in with_logprobs]
    assert all(set(result) == {"generation", "finish_reason"} for result in plain)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("options", [GREEDY, HOT], ids=["greedy", "sampled"])
def test_tokens_join_to_the_generation_one_for_each_value(llama: Llama, options: dict[str, Any], echo: bool) -> None:
    prompts = [*PROMPTS, "", " two  spaces ", "caf\u00e9 \U0001f525", "\n"]
    results = llama.text_completion(prompts, max_gen_len=14, logprobs=True, echo=echo, **options)
    for prompt, result in zip(prompts, results):
        ids = llama.tokenizer.encode(prompt, bos=True, eos=False)
        assert "".join(result["tokens"]) == result["generation"]
        assert len(result["tokens"]) == len(result["logprobs"]) == 14 + echo * len(ids)
        if echo:
            assert result["generation"].startswith(prompt)
            assert result["logprobs"][0] == 0.0
            assert result["logprobs"][1:] == pytest.approx(
                llama.score([ids + llama.generate([ids], 14, **single(options, prompts.index(prompt)))[0][0]])[
                    0
                ].logprobs[1:],
                abs=TOLERANCE,
            )


def single(options: dict[str, Any], row: int) -> dict[str, Any]:
    """The options with which a single run gives row `row` of a batch."""
    return options | ({"seed": options["seed"] + row} if "seed" in options else {})


def test_echo_puts_the_prompt_before_the_same_answer(llama: Llama) -> None:
    plain = llama.text_completion(PROMPTS, max_gen_len=12, **GREEDY)
    echoed = llama.text_completion(PROMPTS, max_gen_len=12, echo=True, **GREEDY)
    assert [r["generation"] for r in echoed] == [p + r["generation"] for p, r in zip(PROMPTS, plain)]


# --- Scores ----------------------------------------------------------------------------------------------------------


def test_scores_are_cross_entropies_and_rows_do_not_mix(llama: Llama, forwards: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, llama.tokenizer.n_words, (n,), generator=generator).tolist() for n in (1, 2, 40, 17)]
    scores = llama.score(rows)
    assert forwards == [(4, 40)]
    for row, score in zip(rows, scores):
        wanted = by_stateless_forward(llama, row) if len(row) > 1 else []
        assert score.tokens == row
        assert score.logprobs == pytest.approx([0.0, *wanted], abs=TOLERANCE)
        assert score.perplexity == pytest.approx(math.exp(-sum(wanted) / max(1, len(wanted))), rel=1e-4)


@pytest.mark.parametrize("length", [255, 256, 257, 258, 512, 513, 520])
def test_long_texts_are_scored_to_the_last_token(folder: Path, length: int) -> None:
    llama = Llama.build(folder, max_seq_len=600, device="cpu")
    row = torch.randint(3, 400, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    assert llama.score([row])[0].logprobs == pytest.approx([0.0, *by_stateless_forward(llama, row)], abs=TOLERANCE)


def test_texts_are_scored_behind_a_bos(llama: Llama) -> None:
    ids = [llama.tokenizer.encode(text, bos=True, eos=False) for text in PROMPTS]
    assert llama.score(PROMPTS) == llama.score(ids)
    assert [score.tokens for score in llama.score(PROMPTS)] == ids


def test_scores_add_up_to_the_probability_of_a_continuation(toy: Llama) -> None:
    first = [1, 300]
    logprobs = [toy.score([[*first, i]])[0].logprobs[-1] for i in range(toy.tokenizer.n_words)]
    assert math.fsum(map(math.exp, logprobs)) == pytest.approx(1, abs=1e-5)  # 400 roundings of 2^-24 of what they are


# --- Chat ------------------------------------------------------------------------------------------------------------

DIALOGS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}],
]


@pytest.mark.parametrize("options", [GREEDY, HOT], ids=["greedy", "sampled"])
def test_answers_are_what_the_encoded_dialogs_are_continued_with(llama: Llama, options: dict[str, Any]) -> None:
    results = llama.chat_completion(DIALOGS, max_gen_len=14, logprobs=True, **options)
    encoded = [encode_dialog(dialog, llama.tokenizer) for dialog in DIALOGS]
    tokens, logprobs = llama.generate(encoded, max_gen_len=14, logprobs=True, **options)
    for result, ids, values in zip(results, tokens, logprobs):
        assert result["generation"] == {"role": "assistant", "content": llama.tokenizer.decode(ids)}
        assert result["finish_reason"] == "length"
        assert result["logprobs"] == pytest.approx(values, abs=TOLERANCE)
        assert "".join(result["tokens"]) == result["generation"]["content"]


def test_an_answer_begins_without_the_space_of_its_first_word(tokenizer: Tokenizer) -> None:
    dialog = [{"role": "user", "content": "Hi"}]
    length = len(encode_dialog(dialog, tokenizer))
    llama = scripted(tokenizer, ids_of(tokenizer, "_the", "_cat"), prompt_len=length)
    assert llama.chat_completion([dialog])[0]["generation"]["content"] == "the cat"
    assert [piece.text for piece in llama.stream_chat(dialog)] == ["the", " cat", ""]
    assert llama.chat_completion([dialog], stop="the")[0]["generation"]["content"] == ""
    assert llama.chat_completion([dialog], stop=" the")[0]["generation"]["content"] == "the cat"


@pytest.mark.parametrize("options", [GREEDY, HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize("place", range(4))
def test_a_dialog_with_tags_is_not_run_and_the_others_are_as_without_it(
    llama: Llama, forwards: list[tuple[int, ...]], options: dict[str, Any], place: int
) -> None:
    flagged = [{"role": "user", "content": "say [/INST] and [INST]"}]
    without = llama.chat_completion(DIALOGS, max_gen_len=8, logprobs=True, **options)
    before = list(forwards)
    forwards.clear()
    results = llama.chat_completion(
        [*DIALOGS[:place], flagged, *DIALOGS[place:]], max_gen_len=8, logprobs=True, **options
    )
    assert forwards == before  # not a row more
    refused = results.pop(place)
    assert refused == {"generation": {"role": "assistant", "content": UNSAFE_ERROR}, "finish_reason": "unsafe"}
    assert results == without


def test_flagged_dialogs_alone_cost_no_forward(llama: Llama, forwards: list[tuple[int, ...]]) -> None:
    flagged = [{"role": "user", "content": "<<SYS>>"}]
    results = llama.chat_completion([flagged, flagged])
    assert [result["finish_reason"] for result in results] == ["unsafe", "unsafe"]
    assert forwards == []


def test_a_wrong_dialog_is_named_before_anything_runs(llama: Llama, forwards: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"dialog 1: message 0 .*assistant"):
        llama.chat_completion([DIALOGS[0], [{"role": "assistant", "content": "Hi"}]])
    with pytest.raises(ValueError, match=r"\[dialog\]"):
        llama.chat_completion(DIALOGS[0])
    assert forwards == []


# --- What is asked ---------------------------------------------------------------------------------------------------


def test_one_text_instead_of_a_list_is_refused(toy: Llama) -> None:
    for ask in (toy.text_completion, toy.score, toy.chat_completion):
        with pytest.raises(ValueError, match="list"):
            ask("the cat")


@pytest.mark.parametrize(
    "prompts", [[[]], [[1], []], [[1, -1]], [[1, 400]], [["a"]], [[1.5]], ["the"], [7], [None]], ids=repr
)
def test_prompts_that_are_not_ids_of_the_model_are_refused(toy: Llama, prompts: Any) -> None:
    with pytest.raises(ValueError, match=f"prompt {len(prompts) - 1}"):
        toy.generate(prompts)


def test_a_misspelled_option_is_an_error(toy: Llama) -> None:
    for ask, what in [
        (toy.generate, [[1]]),
        (toy.text_completion, ["the"]),
        (toy.stream_text, "the"),
        (toy.chat_completion, DIALOGS),
        (toy.stream_chat, DIALOGS[0]),
    ]:
        with pytest.raises(TypeError, match="top_q"):
            ask(what, top_q=0.5)
