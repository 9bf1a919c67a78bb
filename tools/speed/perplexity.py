"""Perplexity of models whose linears hold fewer bits, beside full precision.

    python tools/speed/perplexity.py [--also FOLDER] > perplexity.json

The demo checkpoint reads stories that were held out of its training; another folder reads text that it wrote itself at
temperature 1, which full precision finds as likely as it can be.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import minillama
from minillama import Llama, quantize

import torch  # isort: skip

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "storyteller"))
from corpus import Corpus  # noqa: E402

STORIES = 200


def perplexity(llama: Llama, documents: list[list[int]]) -> float:
    """exp of the mean loss of all tokens but each document's first."""
    total = count = 0.0
    for start in range(0, len(documents), 8):
        for score in llama.score(documents[start : start + 8]):
            total -= sum(score.logprobs)
            count += len(score.logprobs) - 1
    return math.exp(total / count)


def one_scale(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`quantize_int8` with a single scale for the whole matrix: what outliers do to the others."""
    scale = weight.float().abs().max() / 127
    return (weight.float() / scale).round().to(torch.int8), scale.expand(len(weight)).contiguous()


def measure(folder: Path, documents: list[list[int]] | None) -> dict[str, object]:
    llama = Llama.build(folder)
    if documents is None:
        bos, length = [llama.tokenizer.bos_id], llama.model.args.max_seq_len - 1
        written = llama.generate([bos] * 32, length, temperature=1.0, top_p=1.0, seed=1)[0]
        documents = [bos + ids for ids in written]
    found: dict[str, object] = {"tokens": sum(map(len, documents)), "full precision": perplexity(llama, documents)}
    for name in quantize.FORMATS:
        found[name] = perplexity(Llama.build(folder, quantize=name), documents)
    per_channel, quantize.quantize_int8 = quantize.quantize_int8, one_scale
    found["int8, one scale a matrix"] = perplexity(Llama.build(folder, quantize="int8"), documents)
    quantize.quantize_int8 = per_channel
    for group in (64, 128):  # a wider group: fewer scales, larger errors
        kept, quantize.GROUP = quantize.GROUP, group
        quantize.quantize_int4.__defaults__ = (group,)
        found[f"int4, groups of {group}"] = perplexity(Llama.build(folder, quantize="int4"), documents)
        quantize.GROUP = kept
        quantize.quantize_int4.__defaults__ = (kept,)
    widest = 0.0
    for layer in Llama.build(folder).model.layers:
        for weight in (layer.feed_forward.w1.weight, layer.feed_forward.w3.weight):
            largest = weight.detach().float().abs().amax(1)
            widest = max(widest, float(largest.max() / largest.median()))
    found["widest channel of w1 and w3, over the median one"] = widest
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--also", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    demo = minillama.demo()
    corpus = Corpus()
    stories = [demo.tokenizer.encode(story.text, bos=True, eos=True) for story in corpus.held_out[:STORIES]]
    result = {"demo checkpoint": measure(minillama.storyteller.demo_dir(), stories)}
    for folder in options.also:
        result[folder.name] = measure(folder, None)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
