"""The demo checkpoint and the text it was trained on."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

import minillama
from minillama import Llama
from minillama.storyteller import demo_dir

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "storyteller"))

from corpus import Corpus  # noqa: E402
from train import encode_document  # noqa: E402
from world import Story  # noqa: E402

FOX = "Tell me a story about a fox who is afraid of the dark"


@pytest.fixture(scope="module")
def llama() -> Llama:
    return minillama.demo(device="cpu")


def answer(llama: Llama, *messages: tuple[str, str]) -> str:
    dialog = [{"role": role, "content": content} for role, content in messages]
    result = llama.chat_completion([dialog], temperature=0)[0]  # type: ignore[list-item]
    assert result["finish_reason"] == "stop"
    return result["generation"]["content"]


def sentences(text: str) -> list[str]:
    return [s for s in re.split(r'(?<=[.!?])["”]?\s+', text) if s]


def test_the_checkpoint_is_small_grouped_and_has_room_for_a_story(llama: Llama) -> None:
    args = llama.model.args
    assert sum(f.stat().st_size for f in demo_dir().iterdir() if f.suffix in (".pth", ".model")) <= 10_000_000
    assert args.n_heads // args.n_kv_heads >= 2
    assert args.max_seq_len >= 512
    assert args.n_params == sum(p.numel() for p in llama.model.parameters())


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_stories_about_a_fox_are_whole_and_keep_their_hero(llama: Llama, temperature: float) -> None:
    dialogs = [[{"role": "user", "content": FOX}]] * 10
    good = 0
    for result in llama.chat_completion(dialogs, temperature=temperature, seed=11):  # type: ignore[arg-type]
        story = result["generation"]["content"]
        hero = next((name for name in re.findall(r"\b[A-Z][a-z]+\b", story) if story.count(name) >= 3), "nobody")
        whole = result["finish_reason"] == "stop" and 60 <= len(story.split()) <= 250
        good += whole and "fox" in story and hero in story.split("\n\n")[-1]
    # The model card counts over many requests; a model that had lost the thread would manage none or two.
    assert good >= 7


def test_a_plain_prompt_becomes_a_story_that_ends_with_eos(llama: Llama) -> None:
    result = llama.text_completion(["Once upon a time"], temperature=0)[0]
    assert result["finish_reason"] == "stop"
    assert len(result["generation"].split()) >= 60


def test_a_follow_up_question_is_answered_from_the_story(llama: Llama) -> None:
    story = answer(llama, ("user", FOX))
    name = answer(llama, ("user", FOX), ("assistant", story), ("user", "What was the fox's name?"))
    named = [word for word in re.findall(r"\b[A-Z][a-z]+\b", name) if word != "The"]
    assert named and named[0] in story


def test_a_system_message_asks_for_one_sentence_and_gets_one(llama: Llama) -> None:
    text = answer(llama, ("system", "Answer in one sentence."), ("user", FOX))
    assert len(sentences(text)) == 1 and text.endswith((".", "!", "?"))


def test_held_out_text_costs_about_what_the_model_card_says(llama: Llama) -> None:
    card = json.loads((demo_dir() / "report.json").read_text())["loss"]["stories"]["held_out"]
    stories = [d for d in Corpus(2).held_out_documents if isinstance(d, Story)][:40]
    total, count = 0.0, 0
    for score in llama.score([s.text for s in stories]):
        total -= sum(score.logprobs)
        count += len(score.logprobs) - 1
    # Forty stories of the card's hundreds, without their EOS: a mean over 8,000 tokens strays by a few hundredths.
    assert math.isclose(total / count, card, abs_tol=0.1)


def test_no_held_out_story_is_told_in_training() -> None:
    corpus = Corpus(2)
    held_out = {story.text for story in corpus.held_out}
    for document in itertools.islice(corpus.documents(), 3000):
        texts = [document.text] if isinstance(document, Story) else [m["content"] for m in document]
        assert not held_out & set(texts)


def test_the_corpus_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    def first(seed: int) -> list[str]:
        return [s.text for s in Corpus(seed).held_out[:20]]

    assert first(5) == first(5)
    assert not set(first(5)) & set(first(6))


def test_training_dialogues_are_in_the_chat_template(llama: Llama) -> None:
    dialog = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Good night."},
    ]  # fmt: skip
    ids, learn = encode_document(dialog, llama.tokenizer)
    t = llama.tokenizer
    first = t.encode("[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! ", bos=True, eos=True)
    second = t.encode("[INST] Bye [/INST]", bos=True, eos=False) + t.encode("Good night.", bos=False, eos=True)
    assert ids == first + second
    assert len(learn) == len(ids)
    # Asked for: the end of the last answer. Not asked for: a BOS, and the space and EOS that close a turn in history.
    assert learn[-1] and not learn[0] and not any(learn[len(first) - 2 : len(first) + 1])


def test_weights_are_fp32_and_finite(llama: Llama) -> None:
    for name, p in llama.model.named_parameters():
        assert p.dtype == torch.float32 and bool(torch.isfinite(p).all()), name
