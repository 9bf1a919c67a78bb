"""What shows that the promoted FeedForward is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from minillama.teach.receipts import Proof

# (B, T, D, F): one token and many, a width that is no multiple of anything, and one that needs long sums.
SHAPES = ((1, 1, 64, 172), (3, 7, 192, 384), (2, 5, 1024, 2752))
NAMES = ("w1", "w2", "w3")


def _filled(block: Any, generator: torch.Generator, dtype: torch.dtype) -> Any:
    """`block` with weights that give gate and value the size they have in a trained model."""
    with torch.no_grad():
        for name in NAMES:
            weight = getattr(block, name).weight
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5)
    return block.to(dtype)


def _formula(block: Any, x: torch.Tensor) -> torch.Tensor:
    """The equation in float64, with the sigmoid written out."""
    w1, w2, w3 = (getattr(block, name).weight.double() for name in NAMES)
    gate, value = x.double() @ w1.T, x.double() @ w3.T
    return (gate / (1 + torch.exp(-gate)) * value) @ w2.T


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's class beside the package's, and both beside a float64 formula and Hugging Face's block."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        worst, oracle = 0.0, 0.0
        for B, T, D, F in SHAPES:
            package = _filled(ours.FeedForward(D, F), generator, dtype)
            here = theirs.FeedForward(D, F).to(dtype)
            here.load_state_dict(package.state_dict())
            x = torch.randn(B, T, D, generator=generator).to(dtype)
            with torch.no_grad():
                a, b = here(x), package(x)
            worst = max(worst, 0.0 if torch.equal(a, b) else float("inf"))
            exact = _formula(package, x)
            oracle = max(oracle, ((b.double() - exact).abs().max() / exact.abs().max()).item())
        name = str(dtype).removeprefix("torch.")
        yield Proof(f"the notebook's FeedForward is the package's, {name}, batches of 1 to 3", worst, 0.0)
        # bf16 rounds four times on the way: gate, silu, product and result; sums of many such errors stay below two.
        most = 1e-5 if dtype is torch.float32 else 2 * torch.finfo(dtype).eps
        yield Proof(f"it is the equation in float64, {name}", oracle, most)
    yield from _hugging_face(ours, generator)


def _hugging_face(ours: Any, generator: torch.Generator) -> Iterator[Proof]:
    try:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaMLP
    except ImportError:  # not needed to learn from this chapter
        return
    worst = 0.0
    for B, T, D, F in SHAPES[:2]:
        block = _filled(ours.FeedForward(D, F), generator, torch.float32)
        other = LlamaMLP(LlamaConfig(hidden_size=D, intermediate_size=F, num_attention_heads=4))
        with torch.no_grad():
            for mine, name in zip(NAMES, ("gate_proj", "down_proj", "up_proj")):
                getattr(other, name).weight.copy_(getattr(block, mine).weight)
            x = torch.randn(B, T, D, generator=generator)
            a, b = block(x), other(x)
        worst = max(worst, ((a - b).abs().max() / b.abs().max()).item())
    yield Proof("it is transformers' LlamaMLP, float32", worst, 1e-5)
