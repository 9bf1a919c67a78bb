"""Make `assets/storyteller`: text, tokenizer, training, report. One command, resumable, seeds fixed.

python tools/storyteller/train.py                                                     # into assets/storyteller
python tools/storyteller/train.py --steps 200 --build build/trial --out build/trial   # a trial, beside it
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sentencepiece import SentencePieceTrainer
from torch import nn
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from corpus import Corpus, Document  # noqa: E402
from minillama.args import ModelArgs  # noqa: E402
from minillama.chat import ask, encode_dialog  # noqa: E402
from minillama.tokenizer import Tokenizer  # noqa: E402
from minillama.transformer import Transformer  # noqa: E402
from world import NAMES_F, NAMES_M, Story  # noqa: E402

PARAMS = {
    "dim": 192, "n_layers": 6, "n_heads": 8, "n_kv_heads": 2, "vocab_size": 1536,
    "multiple_of": 64, "ffn_dim_multiplier": 0.75, "norm_eps": 1e-5, "max_seq_len": 512,
}  # fmt: skip
SEED = 2
CONTEXT = 512
BATCH = 8
STEPS = 3300
SHORT = 0.4  # share of the steps, the first ones, in rows of CONTEXT / 2: attention costs half there
WARMUP = 100
# A name that was told before is 4% of the tokens and the heart of a story: the model has to look it up. Counting it more
# at first makes the heads that do so appear within the first few hundred steps; from the decay on, each token counts as 1.
NAME_WEIGHT = 8.0
# The same for what was asked: in these steps, the words of a request that an answer takes up. The last steps, at small
# learning rates, count every token as 1 again.
REQUEST_WEIGHT, REQUESTS_FROM, REQUESTS_TO = 8.0, 1900, 2900
# And what a system message decides, which is how an answer begins and how it ends: its first and last tokens.
SYSTEM_FROM, EDGE = 2400, 5
COMMON = 100  # pieces too frequent to tell one request from another
DECAY = 0.6  # share of the steps over which the learning rate goes down to zero
MUON_LR, ADAM_LR = 0.01, 3e-3
TOKENIZER_DOCUMENTS = 6000


def make_tokenizer(path: Path) -> Tokenizer:
    """Train the BPE with Llama 2's own settings (bytes for the unknown, single digits, text left as it is)."""
    documents = itertools.islice(Corpus(SEED).documents(), TOKENIZER_DOCUMENTS)
    lines = itertools.chain.from_iterable(_spoken(document) for document in documents)
    path.parent.mkdir(parents=True, exist_ok=True)
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(path.with_suffix("")), model_type="bpe",
        vocab_size=PARAMS["vocab_size"], byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=1.0,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, num_threads=1, minloglevel=2,
    )  # fmt: skip
    return Tokenizer(path)


def _spoken(document: Document) -> list[str]:
    if isinstance(document, Story):
        return document.text.splitlines()
    lines = [
        m["content"] if m["role"] == "assistant" else ask({"role": "user", "content": m["content"]}) for m in document
    ]
    return [line for text in lines for line in text.splitlines() if line]


def encode_document(document: Document, tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Ids of a document and, for each, whether the model is asked to predict it.

    A dialogue is written by the package's own template. The template puts a space before the EOS of a turn that is
    over; an answer that is being written ends without it, so there the model is only asked for the EOS of the last.
    """
    if isinstance(document, Story):
        ids = tokenizer.encode(document.text, bos=True, eos=True)
        return ids, [False] + [True] * (len(ids) - 1)
    ids: list[int] = []
    learn: list[bool] = []
    for end in [i for i, message in enumerate(document) if message["role"] == "assistant"]:
        prompt = encode_dialog(document[:end], tokenizer)  # type: ignore[arg-type]
        prompt = prompt[len(ids) :]  # the turns before are written already
        answer = tokenizer.encode(document[end]["content"].strip(), bos=False, eos=False)
        ids += prompt + answer
        learn += [False] + [True] * (len(prompt) - 1 + len(answer))
        if end == len(document) - 1:
            ids.append(tokenizer.eos_id)
            learn.append(True)
        else:
            history = encode_dialog([*document[: end + 1], {"role": "user", "content": "."}], tokenizer)  # type: ignore[list-item]
            closed = len(history) - len(tokenizer.encode(ask({"role": "user", "content": "."}), bos=True, eos=False))
            learn += [False] * (closed - len(ids))
            ids = history[:closed]
    return ids, learn


class Stream:
    """Documents end to end, cut into rows; the same batches for the same seed and steps."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.corpus = Corpus(SEED)
        self.documents = self.corpus.documents()
        self.ids: list[int] = []
        self.weights: list[float] = []
        self.opens = tokenizer.encode("[INST]", bos=False, eos=False)
        self.closes = tokenizer.encode("[/INST]", bos=False, eos=False)
        self.system = tokenizer.encode("[INST] <<SYS>>", bos=False, eos=False)
        counts = Counter(i for d in self.corpus.held_out_documents[:300] for i in encode_document(d, tokenizer)[0])
        self.common = {i for i, _ in counts.most_common(COMMON)} | set(self.opens + self.closes)
        self.names = {ids[0] for n in NAMES_F + NAMES_M if len(ids := tokenizer.encode(n, bos=False, eos=False)) == 1}

    def weigh(self, ids: list[int], learn: list[bool]) -> list[float]:
        """0 for tokens that are not asked for, NAME_WEIGHT for a name that the document has said before, else 1."""
        said: set[int] = set()
        weights = []
        for i, asked in zip(ids, learn):
            weights.append((NAME_WEIGHT if i in said else 1.0) * asked)
            if i in self.names:
                said.add(i)
        return weights

    def weigh_requests(self, ids: list[int], learn: list[bool], system: bool) -> list[float]:
        """0 for tokens that are not asked for, REQUEST_WEIGHT where an answer first says a word of its request, else 1.

        system: REQUEST_WEIGHT also for the edges of answers in a dialogue that has a system message.
        """
        asked_for: set[int] = set()
        weights = []
        inside = False  # a request: from [INST] to [/INST]
        for at, (i, asked) in enumerate(zip(ids, learn)):
            if ids[at : at + len(self.opens)] == self.opens:
                inside, asked_for = True, set()
            if ids[at - len(self.closes) : at] == self.closes:
                inside = False
            if inside:
                asked_for.add(i)
            wanted = not inside and i in asked_for and i not in self.common
            weights.append((REQUEST_WEIGHT if wanted else 1.0) * asked)
            if wanted:
                asked_for.discard(i)
        if system and any(ids[at : at + len(self.system)] == self.system for at in range(12)):
            ends = [at for at, i in enumerate(ids) if i == self.tokenizer.eos_id]
            starts = [at for at in range(len(ids)) if ids[at - len(self.closes) : at] == self.closes]
            for at in [at + n for at in starts for n in range(EDGE)] + [at - n for at in ends for n in range(EDGE)]:
                if at < len(ids) and learn[at]:
                    weights[at] = REQUEST_WEIGHT
        return weights

    def batch(self, step: int, context: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids (B, T), targets (B, T), weights of the targets (B, T)."""
        rows = BATCH * CONTEXT // context
        size = rows * (context + 1)
        while len(self.ids) < size:
            ids, learn = encode_document(next(self.documents), self.tokenizer)
            self.ids += ids
            if step < REQUESTS_FROM:
                self.weights += self.weigh(ids, learn)
            else:
                self.weights += self.weigh_requests(ids, learn, system=step >= SYSTEM_FROM)
        ids = torch.tensor(self.ids[:size]).view(rows, -1)
        weights = torch.tensor(self.weights[:size]).view(rows, -1)
        self.ids, self.weights = self.ids[size:], self.weights[size:]
        return ids[:, :-1], ids[:, 1:], weights[:, 1:]

    def held_out(self, rows: int = 48) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        pairs = [encode_document(document, self.tokenizer) for document in self.corpus.held_out_documents]
        ids = torch.tensor([i for ids, _ in pairs for i in ids][: rows * (CONTEXT + 1)]).view(rows, -1)
        learn = torch.tensor([i for _, learn in pairs for i in learn][: rows * (CONTEXT + 1)]).view(rows, -1)
        return ids[:, :-1], ids[:, 1:], learn[:, 1:].float()


def losses_of(model: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of every target: (B, T), (B, T) -> (B, T)."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


def mean(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (losses * weights).sum() / weights.sum()


def initialise(model: Transformer) -> None:
    torch.manual_seed(SEED)
    for name, p in model.named_parameters():
        if p.dim() == 2:
            # All names are used alike, so only their first, random embeddings tell them apart: small ones would drown.
            scale = 1.0 if "embed" in name else p.shape[1] ** -0.5
            if name.endswith(("wo.weight", "w2.weight")):  # what is added to the stream starts small
                scale /= math.sqrt(2 * len(model.layers))
            nn.init.normal_(p, std=scale)
    with torch.no_grad():  # the head starts in the directions of the embedding: what is looked up can be said at once
        model.output.weight.copy_(0.02 * model.tok_embeddings.weight)


def optimizers(model: Transformer) -> list[torch.optim.Optimizer]:
    inner = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n]
    outer = [p for n, p in model.named_parameters() if p.dim() != 2 or "layers" not in n]
    return [
        torch.optim.Muon(inner, lr=MUON_LR, weight_decay=0.01, momentum=0.95, adjust_lr_fn="original"),
        torch.optim.AdamW(outer, lr=ADAM_LR, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def row_length(step: int, steps: int) -> int:
    return CONTEXT // 2 if step < SHORT * steps else CONTEXT


def schedule(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / WARMUP, (steps - step) / (DECAY * steps))


def train(tokenizer: Tokenizer, build: Path, steps: int) -> tuple[Transformer, list[dict[str, float]]]:
    model = Transformer(ModelArgs(**PARAMS))
    initialise(model)
    opts = optimizers(model)
    stream = Stream(tokenizer)
    held = stream.held_out()
    curve: list[dict[str, float]] = []
    state_path = build / "state.pt"
    start = 0
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        start, curve = state["step"], state["curve"]
        model.load_state_dict(state["model"])
        for opt, saved in zip(opts, state["opts"]):
            opt.load_state_dict(saved)
        for step in tqdm(range(start), desc="finding the place", disable=None):
            stream.batch(step, row_length(step, steps))
    # Seconds of a resumed run go on from the ones before.
    began, recent = time.time() - (curve[-1]["seconds"] if curve else 0), []
    for step in (bar := tqdm(range(start, steps), initial=start, total=steps, mininterval=5)):
        for opt, base in zip(opts, (MUON_LR, ADAM_LR)):
            for group in opt.param_groups:
                group["lr"] = base * schedule(step, steps)
        ids, targets, weights = stream.batch(step, row_length(step, steps))
        losses = losses_of(model, ids, targets)
        loss = mean(losses, weights > 0)
        names = step <= (1 - DECAY) * steps
        requests = REQUESTS_FROM <= step < REQUESTS_TO
        (mean(losses, weights) if names or requests else loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        recent.append(loss.item())
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        if (step + 1) % 100 == 0 or step + 1 == steps:
            with torch.no_grad():
                parts = zip(*(part.split(16) for part in held))
                held_loss = float(np.mean([mean(losses_of(model, x, y), w).item() for x, y, w in parts]))
            curve.append({
                "step": step + 1, "tokens": (step + 1) * BATCH * CONTEXT, "train": float(np.mean(recent)), "held_out": held_loss,
                "seconds": time.time() - began,
            })  # fmt: skip
            recent = []
            print(curve[-1], flush=True)
            torch.save(
                {"step": step + 1, "curve": curve, "model": model.state_dict(), "opts": [o.state_dict() for o in opts]},
                state_path.with_suffix(".tmp"),
            )
            state_path.with_suffix(".tmp").replace(state_path)
    return model, curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=ROOT / "assets" / "storyteller")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "storyteller", help="resumable state")
    parser.add_argument("--threads", type=int, default=2, help="the same result needs the same number")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    random.seed(SEED)
    options.build.mkdir(parents=True, exist_ok=True)
    path = options.build / "tokenizer.model"
    tokenizer = Tokenizer(path) if path.exists() else make_tokenizer(path)
    model, curve = train(tokenizer, options.build, options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(
        {name: p.detach().clone() for name, p in model.state_dict().items()}, options.out / "consolidated.00.pth"
    )
    (options.out / "params.json").write_text(json.dumps(PARAMS, indent=2) + "\n")
    (options.out / "tokenizer.model").write_bytes(path.read_bytes())
    (options.out / "loss.json").write_text(json.dumps(curve, indent=1) + "\n")


if __name__ == "__main__":
    main()
