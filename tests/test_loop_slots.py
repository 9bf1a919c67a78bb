"""Chapter 08's slots: a learner's own draw and loop in `Llama.generate`, in `parts=` and `--mine`.

The right pieces here are other code than the package's and the worked answers'. A token is drawn from the same number
on the same ruler, so texts have to be equal, not alike.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from toys import make_checkpoint, make_tokenizer, scripted

import minillama
from minillama import Llama, Tokenizer, Transformer
from minillama.decode import decode
from minillama.sampling import Sampler
from minillama.teach import own, slots
from minillama.teach.exercise import exercises
from minillama.teach.loop import made_of
from minillama.teach.own import parts_of, progress, promote_mine, whole_source
from minillama.teach.slots import LOOP, SLOTS, PartError
from minillama.teach.swap import swapped

ROOT = Path(__file__).resolve().parents[1]
HANG = 300  # seconds: no limit on speed, only an end to waiting for a process that hangs
Function = Callable[..., Any]
TEXTS = ["Once upon a time", "The dog", "Lily wanted to play with her red ball and", "They found a"]
DRAWN: dict[str, Any] = dict(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=3)


# --- Right pieces, written another way -------------------------------------------------------------------------------


def with_temperature(logits: torch.Tensor, t: float) -> torch.Tensor:
    z = (logits - logits.amax(-1, keepdim=True)) / t
    return z.exp() / z.exp().sum(-1, keepdim=True)


def nucleus(probs: torch.Tensor, p: float) -> torch.Tensor:
    kept = probs.masked_fill(probs.cumsum(-1) - probs > p, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def pick(probs: torch.Tensor, u: float) -> int:
    cdf = probs.double().cumsum(0)
    return int(torch.searchsorted(cdf, u * cdf[-1].item(), right=True))


def repetition_penalized(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    out = logits.clone()
    out[seen & (logits > 0)] *= 1 / penalty
    out[seen & (logits <= 0)] *= penalty
    return out


def tell_on(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> Iterator[int]:
    logits, at = next_logits(prompt, 0), len(prompt)
    for _ in range(max_new):
        token = choose(logits)
        if token in stop_ids:
            return
        yield token
        if at < len(prompt) + max_new - 1:
            logits, at = next_logits([token], at), at + 1


def as_list(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> list[int]:
    return list(tell_on(next_logits, prompt, choose, max_new, stop_ids))


def from_nothing(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> Iterator[int]:
    """Reads the whole text again and again; right, if slow."""
    text = list(prompt)
    while len(text) < len(prompt) + max_new and (token := choose(next_logits(text, 0))) not in stop_ids:
        text.append(token)
        yield token


RIGHT: dict[str, Function] = {
    f.__name__: f for f in (with_temperature, nucleus, pick, repetition_penalized, tell_on)
}  # fmt: skip
EACH: dict[str, dict[str, Function]] = {name: {name: piece} for name, piece in RIGHT.items()}
EACH |= {"all": RIGHT, "a list": RIGHT | {"tell_on": as_list}, "from nothing": {"tell_on": from_nothing}}
every_piece = pytest.mark.parametrize("pieces", EACH.values(), ids=EACH)


def deaf(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> Iterator[int]:
    yield from tell_on(next_logits, prompt, choose, max_new, ())


WRONG: dict[str, Function] = {
    "with_temperature": lambda logits, t: with_temperature(logits, 3.0),
    "nucleus": lambda probs, p: torch.ones_like(probs) / probs.shape[-1],
    "pick": lambda probs, u: 1,
    "repetition_penalized": lambda logits, seen, penalty: logits.masked_fill(seen, -50.0),
    "tell_on": lambda next_logits, prompt, choose, max_new, stop_ids: as_list(
        lambda ids, at: next_logits(ids, 0), prompt, choose, max_new, stop_ids
    ),
}


class AnotherTransformer(Transformer):
    pass


@pytest.fixture(scope="module")
def llama() -> Llama:
    return minillama.demo(device="cpu")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("small") / "ckpt")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    monkeypatch.setenv("MY_MINILLAMA", str(folder))
    return folder


def answers(llama: Llama, **options: Any) -> Any:
    """Everything that comes back: texts, reasons, pieces, log-probabilities; ids too."""
    how = dict(max_gen_len=12, logprobs=True) | DRAWN | options
    rows = [llama.tokenizer.encode(text, bos=True, eos=False) for text in TEXTS]
    echo = dict(echo=True)
    return llama.text_completion(TEXTS, **how), llama.generate(rows, **how), llama.text_completion(TEXTS, **how, **echo)


def same(a: Any, b: Any) -> bool:
    """Whether two answers are the same; log-probabilities to 1e-4, as rows alone are other shapes of products."""
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


# --- It runs, and makes no difference where it should not ------------------------------------------------------------


def test_every_slot_is_tried_here() -> None:
    assert RIGHT.keys() == WRONG.keys() == LOOP.keys()
    assert {name for name in exercises() if name in LOOP} == LOOP.keys()


OPTIONS: dict[str, dict[str, Any]] = {
    "drawn": {},
    "greedy": dict(temperature=0.0),
    "greedy by top_p": dict(top_p=0.0),
    "all cuts": dict(top_k=9, min_p=0.05, temperature=1.3),
    "nothing cut": dict(top_p=1.0, repetition_penalty=1.0),
    "other penalties": dict(frequency_penalty=0.4, presence_penalty=0.2, repetition_penalty=1.0),
    "a stop string": dict(stop=["ed", "the"]),
    "no stop id": dict(stop_ids=()),
    "stop ids": dict(stop_ids=list(range(200, 900, 7))),
    "nothing": dict(max_gen_len=0),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_right_pieces_change_nothing_that_comes_back(llama: Llama, options: dict[str, Any]) -> None:
    ours = answers(llama, **options)
    for pieces in (RIGHT, EACH["a list"]):
        with swapped(**pieces):
            assert same(answers(llama, **options), ours)
    assert answers(llama, **options) == ours


@every_piece
def test_each_piece_and_each_worked_answer_changes_nothing(llama: Llama, pieces: dict[str, Function]) -> None:
    ours = answers(llama)
    for these in (pieces, {name: exercises()[name].answer for name in pieces}):
        with swapped(**these):
            assert same(answers(llama), ours)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_piece_changes_the_text_until_the_block_ends(llama: Llama, name: str) -> None:
    ours = answers(llama)
    with swapped(**{name: WRONG[name]}):
        assert not same(answers(llama), ours)
        with swapped(**{name: RIGHT[name]}):
            assert same(answers(llama), ours)
        assert not same(answers(llama), ours)
    assert answers(llama) == ours


@every_piece
def test_a_stream_runs_on_the_pieces(llama: Llama, pieces: dict[str, Function]) -> None:
    for options in ({}, {"stop": "the"}, {"max_gen_len": 0}, {"temperature": 0.0}):
        how = dict(max_gen_len=20) | DRAWN | options
        ours = list(llama.stream_text(TEXTS[1], **how))
        with swapped(**pieces):
            theirs = list(llama.stream_text(TEXTS[1], **how))
        for field in ("text", "tokens"):
            joined = [[getattr(piece, field) for piece in pieces] for pieces in (ours, theirs)]
            assert [x for x in joined[0] if x] == [x for x in joined[1] if x]
        assert [p.finish_reason for p in theirs if p.finish_reason] == [ours[-1].finish_reason]
        assert theirs[-1].finish_reason == ours[-1].finish_reason


def test_a_chat_runs_on_the_pieces(llama: Llama) -> None:
    dialogs = [[{"role": "user", "content": text}] for text in ("Tell me a story.", "Hello")]
    ours = llama.chat_completion(dialogs, max_gen_len=16, **DRAWN)
    with swapped(**RIGHT):
        assert llama.chat_completion(dialogs, max_gen_len=16, **DRAWN) == ours


def test_a_generator_is_heard_token_by_token_and_not_asked_past_a_stop_string(llama: Llama) -> None:
    given: list[int] = []

    def counted(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> Iterator[int]:
        for token in tell_on(next_logits, prompt, choose, max_new, stop_ids):
            given.append(token)
            yield token

    with swapped(tell_on=counted):
        stream = llama.stream_text(TEXTS[0], temperature=0, max_gen_len=30)
        next(stream)
        assert len(given) == 1
        stream.close()
        given.clear()
        [told] = llama.text_completion(TEXTS[:1], temperature=0, max_gen_len=40, stop="the")
    assert told["finish_reason"] == "stop" and len(given) < 20


def test_every_row_comes_to_the_loop_by_itself_with_its_own_prompt(llama: Llama) -> None:
    seen: list[tuple[list[int], int]] = []

    def looked_at(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> Iterator[int]:
        seen.append((list(prompt), max_new))
        assert stop_ids == {llama.tokenizer.eos_id}
        prompt.clear()  # it is the learner's
        return tell_on(next_logits, seen[-1][0], choose, max_new, stop_ids)

    rows = [[1, 5, 9], [1], [1, 7, 2, 5]]
    ours = llama.generate(rows, 6, **DRAWN)
    with swapped(tell_on=looked_at):
        assert llama.generate(rows, 6, **DRAWN) == ours
    assert seen == [([1, 5, 9], 6), ([1], 6), ([1, 7, 2, 5], 6)]


def test_a_loop_that_hears_no_stop_goes_on(tmp_path: Path) -> None:
    tokenizer = Tokenizer(make_tokenizer(tmp_path / "tokenizer.model"))
    talk = scripted(tokenizer, [40, 41], prompt_len=2)
    assert talk.generate([[1, 5]], 5, temperature=0)[0] == [[40, 41]]
    with swapped(tell_on=deaf):
        tokens, scores = talk.generate([[1, 5]], 5, temperature=0, logprobs=True)
    assert tokens == [[40, 41, 2, 2, 2]]
    assert scores is not None and len(scores[0]) == 5


def test_rows_draw_from_their_own_numbers_alone_or_together(llama: Llama) -> None:
    rows = [llama.tokenizer.encode(text, bos=True, eos=False) for text in TEXTS]
    with swapped(**RIGHT):
        together = llama.generate(rows, 16, **DRAWN)[0]
        for r, row in enumerate(rows):
            assert llama.generate([row], 16, **(DRAWN | {"seed": DRAWN["seed"] + r}))[0] == [together[r]]


def test_with_pieces_of_the_model_beside_them(llama: Llama) -> None:
    ours = answers(llama)
    worked = own.worked(loop=True)
    assert worked.keys() == (SLOTS | LOOP).keys() and LOOP.keys().isdisjoint(own.worked())
    with swapped(**worked):
        assert same(answers(llama), ours)
    with swapped(Transformer=AnotherTransformer, **RIGHT):
        assert same(answers(llama), ours)


# --- Blocks in blocks, and models built on parts ---------------------------------------------------------------------


def test_an_inner_block_adds_to_the_outer_and_all_is_back_afterwards(llama: Llama) -> None:
    calls: set[str] = set()

    def noting(name: str) -> Function:
        def call(*args: Any) -> Any:
            calls.add(name)
            return RIGHT[name](*args)

        call.__signature__ = __import__("inspect").signature(RIGHT[name])
        return call

    model = type(llama.model)
    assert not hasattr(model, "own_loop")
    with swapped(pick=noting("pick")):
        with swapped(
            tell_on=noting("tell_on"), swiglu=lambda x, w1, w2, w3: w2(torch.nn.functional.silu(w1(x)) * w3(x))
        ):
            answers(llama)
            assert calls == {"pick", "tell_on"}
        calls.clear()
        answers(llama)
        assert calls == {"pick"}
        with pytest.raises(KeyError), swapped(nucleus=nucleus):
            raise KeyError("the learner's own")
    assert not hasattr(model, "own_loop") and slots.now_in == {}


def test_what_a_model_was_built_with_runs_in_it_alone_and_a_swap_goes_before_it(llama: Llama) -> None:
    ours = answers(llama)
    made = minillama.demo(device="cpu", parts=RIGHT)
    wrong = minillama.demo(device="cpu", parts={"pick": WRONG["pick"]})
    assert same(answers(made), ours) and not same(answers(wrong), ours) and answers(llama) == ours
    with swapped(pick=WRONG["pick"]):
        assert not same(answers(made), ours)
    with swapped(pick=pick):
        assert same(answers(wrong), ours)
    with swapped(rms_norm=exercises()["rms_norm"].answer):
        assert not same(answers(wrong), ours)
    slots.uninstall(wrong.model)
    assert answers(wrong) == ours


def test_no_part_of_the_loop_is_the_package_s_loop(small: Path) -> None:
    assert made_of({}) == (Sampler, decode)
    made = Llama.build(small, device="cpu", parts={"rms_norm": exercises()["rms_norm"].answer})
    assert made.model.own_loop() == (Sampler, decode)


def in_ranks(folder: str) -> Any:
    made = Llama.build(folder, device="cpu", parts=RIGHT)
    return made.generate([[1, 5, 9], [1, 7]], 8, **DRAWN)[0]


def test_two_ranks_run_on_the_pieces(small: Path) -> None:
    one = Llama.build(small, device="cpu").generate([[1, 5, 9], [1, 7]], 8, **DRAWN)[0]
    assert run_ranks(2, in_ranks, str(small)) == [one, one]


# --- Keeping them ----------------------------------------------------------------------------------------------------


def test_kept_pieces_run_in_another_process_and_reach_the_milestone(kept: Path, llama: Llama) -> None:
    kept.mkdir()
    for name in LOOP:
        (kept / f"{name}.py").write_text(whole_source(exercises()[name].answer), encoding="utf-8")
    assert parts_of("mine").keys() == LOOP.keys() == own.mine().keys()
    assert "every token is drawn by you" in repr(progress())
    made = minillama.demo(device="cpu", parts="mine")
    assert same(answers(made), answers(llama))

    trace = kept / "trace"
    source = (kept / "tell_on.py").read_text()
    (kept / "tell_on.py").write_text(
        source.replace("    ids, position = ", f"    open({str(trace)!r}, 'a').write('x')\n    ids, position = ")
    )
    command = [sys.executable, "-m", "minillama", "complete", "--mine", "Once upon a time", "--max-gen-len", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    checked = len(exercises()["tell_on"].cases())  # its checker calls it, however often it looks, and the model once
    assert len(trace.read_text()) % checked == 1


def test_promoting_a_piece_tells_what_runs_on_it(kept: Path) -> None:
    for name in LOOP:
        shown = repr(promote_mine(exercises()[name].answer))
        assert f"{name} is yours now" in shown and LOOP[name].place in shown and "“Once upon a time" in shown
    assert "Milestone: every token is drawn by you" in shown


# --- What a learner is told ------------------------------------------------------------------------------------------


def stops(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> Iterator[int]:
    yield choose(next_logits(prompt, 0).nothing)  # this line


def gives(*ids: Any) -> Function:
    return lambda next_logits, prompt, choose, max_new, stop_ids: list(ids)


def chooses_on(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> Iterator[int]:
    logits = next_logits(prompt, 0)
    while True:
        yield choose(logits)


def gives_more(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> list[int]:
    logits = next_logits(prompt, 0)
    return [*(choose(logits) for _ in range(max_new)), 5]


def reads_past(next_logits: Function, prompt: Any, choose: Function, max_new: int, stop_ids: Any) -> Iterator[int]:
    yield choose(next_logits([1] * (len(prompt) + max_new + 1), 0))


TOLD: dict[str, tuple[str, Any, str]] = {
    "loop stops": ("tell_on", stops, r"your tell_on stopped with AttributeError: .*`yield choose\(next_logits"),
    "loop returns nothing": ("tell_on", lambda n, p, c, m, s: None, "your tell_on returned None: `yield` each new id"),
    "loop returns a number": ("tell_on", lambda n, p, c, m, s: 5, "your tell_on returned 5"),
    "an id out of nowhere": ("tell_on", gives(5), "new id 0 of your tell_on is 5, and what was chosen is nothing yet"),
    "no id": ("tell_on", gives("a"), "your tell_on gave 'a'; expected ids"),
    "without end": ("tell_on", chooses_on, "your tell_on goes on choosing after max_new = 4 ids"),
    "one more": ("tell_on", gives_more, "your tell_on gave more than max_new = 4 ids"),
    "past the cache": ("tell_on", reads_past, "your tell_on stopped with ValueError: .*do not fit in the cache"),
    "logits of a batch": (
        "tell_on", lambda n, p, c, m, s: [c(n(p, 0)[None])], r"gives choose \(1, 1536\); expected logits \(1536,\)",
    ),
    "pick returns nothing": ("pick", lambda probs, u: None, "your pick returned None; expected a place"),
    "pick goes too far": ("pick", lambda probs, u: len(probs), "your pick returned 1536; .*below 1536"),
    "pick is a share": ("pick", lambda probs, u: 0.5, "your pick returned 0.5"),
    "nucleus returns nothing": ("nucleus", lambda probs, p: None, "your nucleus returned nothing: is there a"),
    "nucleus is shorter": ("nucleus", lambda probs, p: probs[:, :5], r"the shape \(2, 5\); expected \(2, 1536\)"),
    "nucleus in place": ("nucleus", lambda probs, p: probs.mul_(2), "your nucleus changes `probs`"),
    "temperature in float64": ("with_temperature", lambda z, t: z.double(), "returned torch.float64; expected"),
    "penalty stops": ("repetition_penalized", lambda z, s, r: z[s, s], "your repetition_penalized stopped with"),
}  # fmt: skip


@pytest.mark.parametrize("name, piece, says", TOLD.values(), ids=TOLD)
def test_what_goes_wrong_is_said_in_the_learner_s_terms(llama: Llama, name: str, piece: Any, says: str) -> None:
    with pytest.raises(PartError, match=f"(?s){says}"), swapped(**{name: piece}):
        llama.text_completion(TEXTS[:2], max_gen_len=4, **DRAWN)
    assert answers(llama)  # and everything is back


@pytest.mark.parametrize("piece", [5, int, lambda probs: probs, dict])
def test_what_cannot_be_a_piece_is_refused_at_once(llama: Llama, piece: Any) -> None:
    with pytest.raises(PartError, match="nucleus"), swapped(nucleus=piece):
        pass
    with pytest.raises(PartError, match="nucleus"):
        minillama.demo(device="cpu", parts={"nucleus": piece})


@every_piece
def test_logits_that_are_no_numbers_are_the_model_s_fault(pieces: dict[str, Function]) -> None:
    damaged = minillama.demo(device="cpu")
    with torch.no_grad():
        damaged.model.norm.weight[0] = float("nan")
    with swapped(**pieces), pytest.raises(ValueError, match=r"not numbers \(row 0, position 3\)") as caught:
        damaged.generate([[1, 5, 9]], 4, **DRAWN)
    assert not isinstance(caught.value, PartError)
