"""Measure the demo checkpoint and write its model card: losses, samples, copying, instructions followed.

python tools/storyteller/report.py                # after train.py; a few minutes
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

import held_out  # noqa: E402
import train as recipe  # noqa: E402
from corpus import HELD_OUT, SHARE_OF_DIALOGUES, Corpus, Document  # noqa: E402
from minillama import Llama  # noqa: E402
from world import ANIMALS, NAMES_F, NAMES_M, PLOTS, Story  # noqa: E402

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

SENTENCE_END = re.compile(r'(?<=[.!?])["”]?\s+')
NAMES = set(NAMES_F + NAMES_M)


def sentences(text: str) -> list[str]:
    return [s.strip() for s in SENTENCE_END.split(text) if s.strip()]


def spoken(document: Document) -> str:
    """What the model was taught to say in a document."""
    if isinstance(document, Story):
        return document.text
    return "\n".join(m["content"] for m in document if m["role"] == "assistant")


def training_documents(llama: Llama, tokens: int) -> Iterator[Document]:
    """The documents of the first `tokens` tokens of training, as `train.Stream` dealt them."""
    seen = 0
    bar = tqdm(total=tokens, desc="training text again", unit="token", mininterval=5)
    for document in Corpus(recipe.SEED).documents():
        yield document
        n = len(recipe.encode_document(document, llama.tokenizer)[0])
        seen += n
        bar.update(n)
        if seen >= tokens:
            return


@torch.no_grad()
def loss_per_token(llama: Llama, documents: Iterable[Document]) -> float:
    """Mean negative log-probability (nats) of the tokens that training asks for, each document from its own BOS."""
    total, count = 0.0, 0
    for document in documents:
        ids, learn = recipe.encode_document(document, llama.tokenizer)
        ids, learn = ids[: recipe.CONTEXT], learn[: recipe.CONTEXT]
        logits = llama.model(torch.tensor([ids[:-1]]))[0]
        losses = F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        total += float(losses[torch.tensor(learn[1:])].sum())
        count += sum(learn[1:])
    return total / count


def in_batches(llama: Llama, dialogs: list[list[dict[str, str]]], temperature: float, seed: int) -> list[str]:
    out = []
    for i in tqdm(range(0, len(dialogs), 25), desc=f"answers at temperature {temperature}"):
        answers = llama.chat_completion(dialogs[i : i + 25], temperature=temperature, top_p=1.0, seed=seed + i)  # type: ignore[arg-type]
        out += [
            a["generation"]["content"] if a["finish_reason"] == "stop" else a["generation"]["content"] + "\0"
            for a in answers
        ]
    return out


def requests(n: int) -> list[tuple[str, list[dict[str, str]]]]:
    """Held-out requests for a story: the animal asked for, and the dialog."""
    rng = random.Random(99)
    topics = [story.topic for story in Corpus(recipe.SEED).held_out]
    asked = []
    for topic in rng.sample(topics, n):
        word = next((w for w in re.findall(r"\w+", topic) if w in {*ANIMALS, "girl", "boy"}), "")
        asked.append((word, [{"role": "user", "content": f"Tell me a story about {topic}."}]))
    return asked


def judge(texts: list[str], kinds: list[str], known: set[str], stories: set[str], words: set[str]) -> dict[str, float]:
    """Shares, over the texts, of what can be counted without reading."""
    ended = [t for t in texts if not t.endswith("\0")]
    all_sentences = [s for t in ended for s in sentences(t)]
    tokens = [w for t in ended for w in re.findall(r"[A-Za-z']+", t)]
    hero_kept = []
    for text in ended:
        names = [w for w in re.findall(r"\b[A-Z][a-z]+\b", text) if w in NAMES]
        hero_kept.append(bool(names) and names[0] in text.split("\n\n")[-1])
    return {
        "ends with EOS": len(ended) / len(texts),
        "tells of the animal asked for": sum(k in t for k, t in zip(kinds, texts)) / len(texts),
        "hero of the first sentence is in the last paragraph": sum(hero_kept) / len(ended),
        "words that are in the training text": sum(w.lower() in words for w in tokens) / len(tokens),
        "sentences found verbatim in the training text": sum(s in known for s in all_sentences) / len(all_sentences),
        "whole stories found verbatim in the training text": sum(t in stories for t in ended) / len(ended),
    }


def instructions(llama: Llama) -> dict[str, float]:
    """Shares of answers that obey, each with a check a program can make."""
    asked = requests(50)
    one = [[{"role": "system", "content": "Answer in one sentence."}, *dialog] for _, dialog in asked]
    end = [
        [{"role": "system", "content": "End every answer with the words 'The end.'"}, *dialog] for _, dialog in asked
    ]
    stories = in_batches(llama, [dialog for _, dialog in asked], 0.0, 0)
    name_of = [next((w for w in re.findall(r"\b[A-Z][a-z]+\b", s) if w in NAMES), "?") for s in stories]
    follow = [
        [*dialog, {"role": "assistant", "content": s.strip("\0")}, {"role": "user", "content": f"What was the {kind}'s name?"}]
        for (kind, dialog), s in zip(asked, stories) if kind
    ]  # fmt: skip
    fitting = [
        i
        for i, dialog in enumerate(follow)
        if len(llama.tokenizer.encode(dialog[1]["content"], bos=False, eos=False)) < 400
    ]
    names = [n for (kind, _), n in zip(asked, name_of) if kind]
    answers = in_batches(llama, [follow[i] for i in fitting], 0.0, 0)
    return {
        '"Answer in one sentence." gives one sentence': sum(
            len(sentences(a)) == 1 for a in in_batches(llama, one, 0.0, 0)
        )
        / 50,
        "\"End every answer with the words 'The end.'\" is obeyed": sum(
            a.endswith("The end.") for a in in_batches(llama, end, 0.0, 0)
        )
        / 50,
        '"What was the fox\'s name?" after a story names its hero': sum(names[i] in a for i, a in zip(fitting, answers))
        / len(fitting),
    }


def draw_curve(curve: list[dict[str, float]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110)
    tokens = [point["tokens"] / 1e6 for point in curve]
    axes.plot(tokens, [p["train"] for p in curve], color="#0072B2", label="training text (mean of the last 100 steps)")
    axes.plot(tokens, [p["held_out"] for p in curve], color="#D55E00", linestyle="--", label="held-out text")
    axes.set_xlabel("tokens seen (millions)")
    axes.set_ylabel("loss (nats per token)")
    axes.set_ylim(0, 3)
    axes.set_title("Held-out stories cost what training stories cost")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def percent(x: float) -> str:
    return f"{100 * x:.1f}%"


def card(result: dict) -> str:
    """The model card, with every number taken from `result`."""
    temperatures = list(result["judged"])
    rows = "\n".join(
        f"| {what} | " + " | ".join(percent(result["judged"][t][what]) for t in temperatures) + " |"
        for what in result["judged"][temperatures[0]]
    )
    obeyed = "\n".join(f"| {what} | {percent(share)} |" for what, share in result["instructions"].items())
    losses = "\n".join(
        f"| {kind} | {one['training']:.3f} | {one['held_out']:.3f} | {one['held_out_perplexity']:.2f} |"
        for kind, one in result["loss"].items()
    )
    samples = "\n\n".join(
        f"**Temperature {t}**\n\n" + "\n".join("> " + line for line in text.splitlines())
        for t, text in result["samples"].items()
    )
    params = json.dumps(recipe.PARAMS)
    return f"""# Storyteller: the demo checkpoint

A Llama with {result["parameters"]:,} parameters (fp32) in Meta's layout: `consolidated.00.pth`, `params.json`,
`tokenizer.model`. It tells short stories for children in simple English, and answers in the Llama 2 chat format: requests
for a story, questions about the story it just told, small talk, and, often, the system message "Answer in one sentence."

`{params}`

## Data

All of the text is ours: a generator ({len(PLOTS)} plots over {len(ANIMALS)} animals, girls and boys, {len(NAMES)} names; every beat has several
phrasings, most plots several courses of events) in `tools/storyteller`. Training saw {result["training_documents"]:,} documents, each a
different story; {percent(SHARE_OF_DIALOGUES)} of them are told inside dialogues in the chat template. {HELD_OUT:,} stories were dealt first and held
out: {result["held_out_stories_also_in_training"]} of them are in the training text. The text is made of templates, so sentences recur:
{percent(result["held_out_sentences_found_in_training"])} of the sentences of held-out stories are somewhere in the training text, letter for letter.
`{held_out.FILE}` has the first {held_out.STORIES} of the held-out stories that stand outside dialogues; `tools/storyteller/held_out.py` writes it.

The tokenizer is a SentencePiece BPE of {recipe.PARAMS["vocab_size"]} pieces with Llama 2's settings (bytes for what is unknown, single digits).

## Recipe

{result["training_tokens"]:,} tokens in batches of {recipe.BATCH * recipe.CONTEXT:,} (rows of {recipe.CONTEXT // 2} for the first {percent(recipe.SHORT)}, then of {recipe.CONTEXT}), in bf16 autocast: Muon
(learning rate {recipe.MUON_LR}) for the matrices of the layers, AdamW ({recipe.ADAM_LR}) for embedding, head and norms; {recipe.WARMUP} steps of
warm-up, then constant, then linear to zero over the last {percent(recipe.DECAY)}. Embeddings start at a standard deviation of 1, and
until the decay a name that the document has said before counts {recipe.NAME_WEIGHT:g} times: without both, the model did not learn in
12 million tokens to look a name up, and every character changed its name from sentence to sentence. In steps
{recipe.REQUESTS_FROM:,} to {recipe.REQUESTS_TO:,} the words of a request count {recipe.REQUEST_WEIGHT:g} times where the answer takes them up: until
then the stories were whole, but not about what was asked for. From step {recipe.SYSTEM_FROM:,} the first and last {recipe.EDGE} tokens of answers
under a system message count as much: that is where a system message decides. The last steps count every token once.
{result["training_seconds"] / 60:.0f} minutes on two cores. The model is the package's own `Transformer`, the template
its own `encode_dialog`. `python tools/storyteller/train.py` makes it again, with the same seeds; `report.py` measures it
and writes this card.

![Loss against tokens seen, on training text and on held-out text](loss.png)

The held-out text is read in rows of {recipe.CONTEXT}, which the model meets from {percent(recipe.SHORT)} of the steps on: there the curves cross.

| loss, nats per token (fp32) | training text | held-out text | held-out perplexity |
|---|---|---|---|
{losses}

## What it does, counted

{result["samples_counted"]} requests for held-out topics ("Tell me a story about ..."), top_p 1; rows three to six count the stories that ended:

| share | {" | ".join(f"temperature {t}" for t in temperatures)} |
|---|{"---|" * len(temperatures)}
{rows}

At temperature 0, on 50 held-out topics:

| instruction | obeyed |
|---|---|
{obeyed}

## How it sounds

`Tell me a story about a fox who is afraid of the dark`, one draw at each temperature, top_p 1:

{samples}

## What it cannot do

It knows nothing but these stories: no facts, no arithmetic, no code, no language but simple English, and it says so when
asked in words like those it was taught. Most system messages it ignores (the table above has two). A plot or a word from outside its text is replaced by the nearest thing it knows. Its
sentences are close to those of the templates. It has seen 512 positions; longer conversations do not fit. Now and
then, above all at temperature 1, a name, a pronoun or an object changes in the middle of a story, and an answer to
a question about a story is wrong. It is a model to learn with, not one to rely on.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckpt-dir", type=Path, default=ROOT / "assets" / "storyteller")
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    llama = Llama.build(options.ckpt_dir, device="cpu")
    curve = json.loads((options.ckpt_dir / "loss.json").read_text())
    corpus = Corpus(recipe.SEED)
    held = {
        "stories": [d for d in corpus.held_out_documents if isinstance(d, Story)],
        "dialogues": [d for d in corpus.held_out_documents if not isinstance(d, Story)],
    }
    known: set[str] = set()
    stories: set[str] = set()
    words: set[str] = set()
    first: dict[str, list[Document]] = {"stories": [], "dialogues": []}
    n_documents = 0
    for document in training_documents(llama, int(curve[-1]["tokens"])):
        n_documents += 1
        text = spoken(document)
        stories.add(text)
        known.update(sentences(text))
        words.update(w.lower() for w in re.findall(r"[A-Za-z']+", text))
        kind = "stories" if isinstance(document, Story) else "dialogues"
        if len(first[kind]) < len(held[kind]):
            first[kind].append(document)
    shared = sum(story.text in stories for story in corpus.held_out)
    held_sentences = [s for story in corpus.held_out for s in sentences(story.text)]
    losses = {kind: (loss_per_token(llama, first[kind]), loss_per_token(llama, held[kind])) for kind in held}
    asked = requests(options.samples)
    judged = {}
    samples = {}
    for temperature in (0.0, 0.7, 1.0):
        texts = in_batches(llama, [dialog for _, dialog in asked], temperature, 1000)
        judged[temperature] = judge(texts, [kind for kind, _ in asked], known, stories, words)
        fox = [{"role": "user", "content": "Tell me a story about a fox who is afraid of the dark"}]
        samples[temperature] = in_batches(llama, [fox], temperature, 7)[0].strip("\0")
    result = {
        "parameters": llama.model.args.n_params,
        "training_tokens": curve[-1]["tokens"],
        "training_documents": n_documents,
        "training_seconds": curve[-1]["seconds"],
        "held_out_stories_also_in_training": shared,
        "held_out_sentences_found_in_training": sum(s in known for s in held_sentences) / len(held_sentences),
        "loss": {k: {"training": a, "held_out": b, "held_out_perplexity": math.exp(b)} for k, (a, b) in losses.items()},
        "samples_counted": options.samples,
        "judged": {str(k): v for k, v in judged.items()},
        "instructions": instructions(llama),
        "samples": {str(k): v for k, v in samples.items()},
    }
    (options.ckpt_dir / "report.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    draw_curve(curve, options.ckpt_dir / "loss.png")
    (options.ckpt_dir / "README.md").write_text(card(result))
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
