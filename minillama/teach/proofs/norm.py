"""What shows that the promoted RMSNorm is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from minillama.teach.receipts import Proof

SHAPES = ((1, 1, 64), (3, 7, 192), (2, 5, 4096))


def proofs(ours: Any, theirs: Any) -> Iterator[Proof]:
    """The notebook's class beside the package's, and both beside torch's own norm in float64."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        worst, oracle = 0.0, 0.0
        for shape in SHAPES:
            x = torch.randn(shape, generator=generator).mul(3).add(1).to(dtype)
            weight = torch.rand(shape[-1], generator=generator).add(0.5).to(dtype)
            here, package = theirs.RMSNorm(shape[-1]).to(dtype), ours.RMSNorm(shape[-1]).to(dtype)
            with torch.no_grad():
                here.weight.copy_(weight)
                package.weight.copy_(weight)
                a, b = here(x), package(x)
            worst = max(worst, 0.0 if torch.equal(a, b) else float("inf"))
            exact = F.rms_norm(x.double(), shape[-1:], weight.double(), 1e-5)
            oracle = max(oracle, ((b.double() - exact).abs() / exact.abs().clamp(min=1)).max().item())
        name = str(dtype).removeprefix("torch.")
        yield Proof(f"the notebook's RMSNorm is the package's, {name}, batches of 1 to 3", worst, 0.0)
        # Rounding to bf16 twice, after the norm and after the weight, may cost two units in the last place.
        most = 1e-5 if dtype is torch.float32 else 2 * torch.finfo(dtype).eps
        yield Proof(f"it is torch.nn.functional.rms_norm in float64, {name}", oracle, most)
