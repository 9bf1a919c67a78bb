"""Every classic wrong answer is rejected with its own diagnosis; right ones pass, however they are written."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import misconceptions
import numpy
import pytest
import torch
from misconceptions import parallel as PARALLEL

from minillama.teach.exercise import Exercise, exercises

CHAPTERS = [importlib.import_module(f"misconceptions.{m.name}") for m in pkgutil.iter_modules(misconceptions.__path__)]
EXERCISES = exercises()


def wrong() -> list[Any]:
    return [*_wrong()]


def right() -> list[Any]:
    return [*_right()]


def _wrong() -> Iterator[Any]:
    for chapter in CHAPTERS:
        for name, answers in chapter.WRONG.items():
            for diagnosis, examples in answers.items():
                for answer in examples if isinstance(examples, tuple) else (examples,):
                    yield pytest.param(EXERCISES[name], diagnosis, answer, id=f"{name}: {diagnosis}, {answer.__name__}")


def _right() -> Iterator[Any]:
    for name, exercise in EXERCISES.items():
        yield pytest.param(exercise, exercise.answer, id=f"{name}: the worked answer")
    for chapter in CHAPTERS:
        for name, answers in chapter.RIGHT.items():
            for answer in answers:
                yield pytest.param(EXERCISES[name], answer, id=f"{name}: {answer.__name__}")


def stubs() -> list[Callable[..., Any]]:
    def unfinished(*_: Any) -> None:
        raise NotImplementedError

    return [lambda *_: None, lambda *_: ..., unfinished]


@pytest.mark.parametrize("exercise, diagnosis, answer", wrong())
def test_a_classic_wrong_answer_is_rejected_by_its_name(
    exercise: Exercise, diagnosis: str, answer: Callable[..., Any]
) -> None:
    verdict = exercise(answer)
    assert (verdict.ok, verdict.diagnosis) == (False, diagnosis), verdict.says
    own = [m.says for m in exercise.mistakes if m.name == diagnosis]
    assert any(verdict.says.startswith(says) for says in own)


@pytest.mark.parametrize("exercise, answer", right())
def test_a_right_answer_passes_however_it_is_written(exercise: Exercise, answer: Callable[..., Any]) -> None:
    verdict = exercise(answer)
    assert verdict.ok is True, verdict.says


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_a_stub_is_not_yet_and_gets_the_first_hint(exercise: Exercise) -> None:
    for stub in stubs():
        verdict = exercise(stub)
        assert verdict.ok is None
        assert exercise.hints[0] in repr(verdict)


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_whatever_is_handed_in_the_check_says_something_and_never_raises(exercise: Exercise) -> None:
    def stops(*_: Any) -> Any:
        raise RuntimeError("halfway")

    for thing in (None, 3, "text", int, print, lambda: 1, lambda *_: "text", lambda *_: [], lambda *_: {}, stops):
        verdict = exercise(thing)
        assert verdict.ok is not True
        assert len(verdict.says) > 20
        assert verdict._repr_html_().startswith("<div")


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_an_exercise_knows_five_mistakes_and_every_one_has_an_example(exercise: Exercise) -> None:
    known = {mistake.name for mistake in exercise.mistakes}
    shown = {name for chapter in CHAPTERS for name in chapter.WRONG.get(exercise.name, {})}
    assert len(known) >= 5
    assert known == shown
    assert len({mistake.says for mistake in exercise.mistakes}) == len(known), "two mistakes with one diagnosis"


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_the_hints_lead_to_the_worked_answer(exercise: Exercise) -> None:
    assert len(exercise.hints) >= 3
    texts = [repr(exercise.hint(number)) for number in range(1, len(exercise.hints) + 1)]
    assert len(set(texts)) == len(texts)
    assert f"def {exercise.answer.__name__}" in repr(exercise.hint(len(texts) + 1))


def _spoiled(keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, _: torch.Tensor) -> None:
    xk.zero_()


def test_only_what_was_returned_is_counted_and_not_the_arguments_that_were_changed() -> None:
    remember = EXERCISES["remember"]
    assert "it returned 3 things; expected 2." in remember(lambda *args: (*remember.answer(*args), 3)).says
    assert "it returned None; expected a tuple of 2." in remember(_spoiled).says


def test_weights_glued_together_are_right_with_a_remark_and_a_rank_s_own_two_without() -> None:
    glued, packed = (getattr(PARALLEL, name) for name in ("swiglu_together", "swiglu_packed"))
    check = EXERCISES["parallel_swiglu"]
    assert "You put the weights together" in check(glued).says
    assert check(packed).says == check(check.answer).says == "right, on all 5 cases."


BOXES: dict[str, Callable[[Any], Any]] = {
    "range": lambda heads: range(heads[0], heads[-1] + 1),
    "set": set,
    "array": numpy.array,
    "tensor": torch.tensor,
}


def test_of_heads_a_list_is_asked_for_and_no_bare_number_and_no_range() -> None:
    heads = EXERCISES["my_kv_heads"]
    says = {name: heads(boxed(heads.answer, box)).says for name, box in BOXES.items()}
    assert (
        "it returned 0; expected a list, [0, 1]."
        in heads(lambda rank, ranks, n_kv_heads: rank * n_kv_heads // ranks).says
    )
    assert "it returned range(0, 2); expected a list, [0, 1]." in says["range"]
    assert "it returned {0, 1}; expected a list, [0, 1]." in says["set"]
    assert "it returned array([0, 1]); expected a list, [0, 1]." in says["array"]
    assert "it returned a tensor of shape (2,); expected a list, [0, 1]." in says["tensor"]


def test_masks_joined_by_and_are_told_of_the_other_sign() -> None:
    lookup = EXERCISES["vocab_lookup"]

    def joined(tokens: Any, part: Any, first: Any) -> Any:
        return part * (tokens >= first and tokens < first + len(part))

    assert "Between masks write `&`, with parentheses: `(a >= b) & (a < c)`." in lookup(joined).says


def boxed(answer: Callable[..., Any], box: Callable[[Any], Any]) -> Callable[..., Any]:
    """`answer` with its result in a box, or without the list that it is in."""

    @functools.wraps(answer)
    def put(*args: Any) -> Any:
        return box(answer(*args))

    return put


ONE_THING = [e for e in EXERCISES.values() if not isinstance(e.attempt(e.answer).expected[0].value, (list, tuple))]
SEVERAL = [e for e in EXERCISES.values() if e not in ONE_THING]


@pytest.mark.parametrize("exercise", ONE_THING, ids=lambda e: e.name)
def test_a_thing_in_a_list_or_a_tuple_is_not_the_thing(exercise: Exercise) -> None:
    comma, listed, nested = (exercise(boxed(exercise.answer, box)) for box in (_tuple, _list, lambda x: ([x],)))
    assert comma.ok is listed.ok is nested.ok is False
    assert "it returned a tuple of one thing: is there a comma behind the `return`?" in comma.says
    assert "it returned a list" in listed.says


@pytest.mark.parametrize("exercise", SEVERAL, ids=lambda e: e.name)
def test_a_list_is_as_good_as_a_tuple_and_one_of_one_is_not_what_is_in_it(exercise: Exercise) -> None:
    assert exercise(boxed(exercise.answer, tuple)).ok is True
    assert exercise(boxed(exercise.answer, list)).ok is True
    for box in (_tuple, _list):
        assert exercise(boxed(exercise.answer, box)).ok is False
        assert exercise(boxed(exercise.answer, lambda got, box=box: box(got[0]) if len(got) else got)).ok is False


def _tuple(x: Any) -> Any:
    return (x,)


def _list(x: Any) -> Any:
    return [x]


def test_the_course_has_sixty_wrong_answers_to_tell_apart() -> None:
    assert sum(len(answers) for chapter in CHAPTERS for answers in chapter.WRONG.values()) >= 60
