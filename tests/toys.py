"""A tokenizer and checkpoints small enough to be made while the tests run, and a model that says what it is told to."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
import torch

from minillama import Llama, ModelArgs, Tokenizer, Transformer

WORDS = (
    "once upon a time there was a little cat who lived in the old house by the sea. every day the cat saw the boats "
    'and the birds. "hello," said the bird, "will you play with me?" they played until the sun went down, and then '
    "they were friends. the dog came to the garden with a red ball and a story. it was a good day! 0 1 2 3 4 5 6 7 8 9"
).split(" ")


def make_tokenizer(path: Path, **options: object) -> Path:
    """Train a SentencePiece BPE model with byte fallback, the kind that Llama 2's is, and write it to `path`."""
    sentences = [" ".join(WORDS[i : i + 12]) for i in range(len(WORDS) - 12)]
    sentences += [s.capitalize() for s in sentences]
    model = io.BytesIO()
    llama2 = dict(
        model_type="bpe", vocab_size=400, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True, unk_id=0, bos_id=1,
        eos_id=2, pad_id=-1, num_threads=1, minloglevel=2,
    )  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 4), model_writer=model, **(llama2 | options)
    )
    path.write_bytes(model.getvalue())
    return path


def make_checkpoint(folder: Path, seed: int = 0, max_seq_len: int = 128, **params: int) -> Path:
    """Random weights in Meta's layout, with a trained tokenizer beside them. Logits reach about 10."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = Tokenizer(make_tokenizer(folder / "tokenizer.model")).n_words
    shape = dict(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, multiple_of=32, norm_eps=1e-5) | params
    model = Transformer(ModelArgs(vocab_size=vocab_size, max_seq_len=max_seq_len, **shape))
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for key, value in model.state_dict().items():
        scale = {"tok_embeddings.weight": 1.0, "output.weight": 3 * shape["dim"] ** -0.5}.get(key)
        if value.dim() == 2:
            weights[key] = torch.randn(value.shape, generator=generator) * (scale or value.shape[1] ** -0.5)
        else:
            weights[key] = torch.rand(value.shape, generator=generator) + 0.5
    torch.save(weights, folder / "consolidated.00.pth")
    (folder / "params.json").write_text(json.dumps(shape | {"max_seq_len": max_seq_len}), encoding="utf-8")
    return folder


class Scripted(Transformer):
    """At position p it is sure of `script[p]`, whatever came before: for tests of what is done with tokens."""

    def __init__(self, tokenizer: Tokenizer, script: Sequence[int], max_seq_len: int | None = None):
        super().__init__(
            ModelArgs(
                dim=4,
                n_layers=1,
                n_heads=1,
                vocab_size=tokenizer.n_words,
                multiple_of=4,
                max_seq_len=max_seq_len or len(script),
            )
        )
        self.script = torch.tensor(script)

    def stack(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, window: object = None
    ) -> torch.Tensor:
        return positions.expand(tokens.shape)[..., None].float()  # (B, T, 1)

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        wanted = self.script[h[..., 0].long().clamp(max=len(self.script) - 1)]
        return torch.zeros(*wanted.shape, self.args.vocab_size).scatter(-1, wanted[..., None], 50.0)


def scripted(tokenizer: Tokenizer, answer: Sequence[int], prompt_len: int = 1, max_seq_len: int = 512) -> Llama:
    """A Llama that continues any prompt of `prompt_len` ids with `answer`, then EOS."""
    script = [tokenizer.eos_id] * (prompt_len - 1) + [*answer, tokenizer.eos_id]
    return Llama(Scripted(tokenizer, script, max_seq_len), tokenizer)
