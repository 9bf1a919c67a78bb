"""What shows that the promoted Transformer is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from minillama.args import ModelArgs
from minillama.kv_cache import KVCache
from minillama.teach.receipts import Proof

KV_HEADS = (4, 2, 1)  # of 4 query heads


def transformers_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor | None:
    """Logits (B, T, V) of Hugging Face transformers on the weights of `model`; None where it is not installed."""
    try:
        from minillama.bench_peers import Transformers

        peer = Transformers(model.args, model.get_parameter, torch.float32, torch.device("cpu"), None)
    except ValueError:
        return None
    with torch.no_grad():
        return peer.model(input_ids=tokens, use_cache=False).logits


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's model beside the package's on the same weights, in one pass and in pieces; then transformers."""
    worst, oracle, pieces = 0.0, 0.0, 0.0
    compared = False
    generator = torch.Generator().manual_seed(0)
    for n_kv_heads in KV_HEADS:
        args = ModelArgs(
            dim=64, n_layers=2, n_heads=4, n_kv_heads=n_kv_heads, vocab_size=97, multiple_of=32, max_seq_len=64
        )
        for dtype in (torch.float32, torch.bfloat16):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                package = ours.Transformer(args).to(dtype).eval()
            here = theirs.Transformer(args).to(dtype).eval()
            here.load_state_dict(package.state_dict())
            tokens = torch.randint(97, (3, 20), generator=generator)
            with torch.no_grad():
                whole = package(tokens)
                worst = max(worst, _gap(here(tokens), whole))
                starts = torch.tensor([5, 12, 0])  # rows at different positions
                a, b = (_ragged(model, tokens, starts) for model in (here, package))
                worst = max(worst, _gap(a, b))
                if dtype is torch.float32:
                    scale = whole.abs().max().item()
                    for row, start in enumerate(starts.tolist()):
                        off = (a[row] - here(tokens[row : row + 1, : start + 4])[0, -4:]).abs().max().item()
                        pieces = max(pieces, off / scale)
                    peer = transformers_logits(here, tokens)
                    if peer is not None:
                        compared = True
                        oracle = max(oracle, (peer - whole).abs().max().item() / scale)
    what = "fp32 and bf16, H/K of 1, 2 and 4, batch 3, start_pos 0 and (5, 12, 0)"
    yield Proof(f"the notebook's Transformer is the package's: {what}", worst, 0.0)
    yield Proof("chunks through a cache, rows at different positions, are one stateless pass", pieces, 1e-5)
    if compared:
        yield Proof("it is Hugging Face transformers' LlamaForCausalLM on the same weights", oracle, 1e-5)


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return 0.0 if torch.equal(a, b) else float("inf")


def _ragged(model: Any, tokens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Logits (3, 4, V) of four tokens behind `starts` others, each row at its own place."""
    cache = KVCache.for_model(model, len(tokens), tokens.shape[1])
    model(tokens[:, : int(starts.max())], 0, cache)
    new = torch.stack([row[start : start + 4] for row, start in zip(tokens, starts.tolist())])
    return model(new, starts, cache)
