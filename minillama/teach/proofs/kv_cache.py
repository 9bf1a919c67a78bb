"""What shows that the promoted KVCache is right."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from minillama.args import ModelArgs
from minillama.teach.receipts import Proof
from minillama.transformer import Transformer, causal_mask

RATIOS = ((4, 4), (4, 2), (4, 1))  # query heads, kv heads
PROMPTS = (7, 3, 5)  # tokens of each row before decoding
NEW = 4


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's cache beside the package's in a model, then beside one pass without a cache, and others'."""
    for dtype in (torch.float32, torch.bfloat16):
        same, oracle = 0.0, 0.0
        for H, K in RATIOS:
            model = _toy(H, K, dtype)
            tokens = torch.randint(0, model.args.vocab_size, (len(PROMPTS), max(PROMPTS) + NEW), generator=_seeded())
            here, package = _generated(theirs, model, tokens), _generated(ours, model, tokens)
            same = max(same, 0.0 if all(map(torch.equal, here, package)) else float("inf"))
            with torch.no_grad():
                whole = copy.deepcopy(model).double()(tokens)  # (B, T, V), from one pass that keeps nothing
            size = whole.abs().max()
            for logits, at in zip(here, _places()):
                wanted = whole[torch.arange(len(PROMPTS)), at]  # (B, V)
                oracle = max(oracle, ((logits - wanted).abs().max() / size).item())
        name = str(dtype).removeprefix("torch.")
        yield Proof(f"the notebook's KVCache is the package's, {name}, H/K of 1, 2 and 4, rows apart", same, 0.0)
        # Rounded to 8 bits at each step, in another order of sums.
        most = 1e-5 if dtype is torch.float32 else 8 * torch.finfo(dtype).eps
        yield Proof(f"prefill in chunks, then decode, is one pass over the text in float64, {name}", oracle, most)
    yield Proof("keys and values are where a dict of positions has them", _against_dict(theirs), 0.0)
    try:
        from transformers import DynamicCache
    except ImportError:
        pass
    else:
        yield Proof("level rows hold what transformers' DynamicCache holds", _against(DynamicCache(), theirs), 0.0)
    cache = theirs.KVCache(3, 2, 50, 2, 8, torch.bfloat16)
    yield Proof("its bytes are 2 * L * B * S * K * h * 2", abs(cache.nbytes - 2 * 3 * 2 * 50 * 2 * 8 * 2), 0.0)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _toy(H: int, K: int, dtype: torch.dtype) -> Transformer:
    args = ModelArgs(
        dim=8 * H, n_layers=2, n_heads=H, n_kv_heads=K, vocab_size=40, multiple_of=16, max_seq_len=32
    )  # fmt: skip
    model = Transformer(args)
    generator = _seeded()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model.to(dtype).eval()


def _places() -> list[list[int]]:
    """Position of each row in what `_generated` returns, step by step."""
    return [[n - 1 + step for n in PROMPTS] for step in range(NEW + 1)]


@torch.no_grad()
def _generated(module: Any, model: Transformer, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Logits (B, V) after the prompts, and after each of NEW tokens of the same text; then with a row moved.

    The prompts are read in two chunks, so the second begins at a position above 0; then every row goes its own way.
    """
    B, T = len(PROMPTS), max(PROMPTS)
    lengths = torch.tensor(PROMPTS)
    cache = module.KVCache.for_model(model, B, T + NEW)
    filled = tokens[:, :T].clone()
    for row, n in enumerate(PROMPTS):
        filled[row, n:] = 0
    first = model(filled[:, :2], 0, cache)
    logits = torch.cat([first, model(filled[:, 2:], 2, cache)], 1)  # (B, T, V)
    rows = torch.arange(B)
    found = [logits[rows, lengths - 1]]
    for step in range(NEW - 1):
        found.append(model(tokens[rows, lengths + step][:, None], lengths + step, cache)[:, 0])
    # The last step, with rows 0 and 2 having changed places by way of a slot beside them.
    at = lengths + NEW - 1
    wide = module.KVCache.for_model(model, B + 1, T + NEW)
    for layer, other in zip(wide.layers, cache.layers):
        layer.keys[:B], layer.values[:B] = other.keys, other.values
    for source, target in ((0, 3), (2, 0), (3, 2)):
        wide.move_row(source, target, T + NEW)
    order = [2, 1, 0]
    positions = at[order][:, None]  # (B, 1)
    end = int(at.max()) + 1
    mask = causal_mask(positions, end)
    new = tokens[rows, at][order][:, None]  # (B, 1)
    h = model.stack(new, positions, mask, wide.window(B, end))
    return [*found, model.logits(h[order, 0])]


def _against_dict(module: Any) -> float:
    """The largest difference between a LayerCache and a dict that was told the same."""
    B, K, S, h = 3, 2, 9, 4
    cache = module.LayerCache(torch.zeros(B, K, S, h), torch.zeros(B, K, S, h))
    kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
    generator = _seeded()
    level, apart = torch.arange(5), torch.tensor([[5, 6], [2, 3], [7, 8]])  # the second row overwrites fillers
    for positions in (level, apart):
        T = positions.shape[-1]
        xk, xv = (torch.randn(B, T, K, h, generator=generator) for _ in range(2))
        keys, values = cache.update(xk, xv, positions)
        for row in range(B):
            for t, slot in enumerate((positions if positions.dim() == 1 else positions[row]).tolist()):
                kept[row, slot] = xk[row, t], xv[row, t]
    worst = 0.0
    for row in range(B):
        for slot in range(S):
            k, v = kept.get((row, slot), (torch.zeros(K, h), torch.zeros(K, h)))
            worst = max(
                worst, *((a - b).abs().max().item() for a, b in ((keys[row, :, slot], k), (values[row, :, slot], v)))
            )
    return worst


def _against(other: Any, module: Any) -> float:
    """The largest difference from a cache that grows, after a prompt of four tokens and three more."""
    B, K, h = 2, 2, 4
    layer = module.KVCache(1, B, 10, K, h)
    generator = _seeded()
    worst, start = 0.0, 0
    for T in (4, 1, 1, 1):
        xk, xv = (torch.randn(B, T, K, h, generator=generator) for _ in range(2))
        window = layer.window(B, start + T)[0]
        mine = window.update(xk, xv, torch.arange(start, start + T))
        wanted = other.update(xk.transpose(1, 2), xv.transpose(1, 2), 0)
        for a, b in zip(mine, wanted):
            worst = max(worst, (a - b).abs().max().item() if a.shape == b.shape else float("inf"))
        start += T
    return worst
