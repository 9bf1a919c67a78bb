"""`watching`: what goes into a model's modules and what comes out, on one forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass
class Seen:
    """Input and output of one module; `module` itself for its weights."""

    module: Any
    x: torch.Tensor
    out: torch.Tensor


@contextlib.contextmanager
def watching(model: nn.Module, *ends: str) -> Iterator[dict[str, Seen]]:
    """`with watching(model, "attention_norm", "w1") as seen: model(tokens)` fills `seen` by module name.

    ends: watch the modules whose name ends so ("attention_norm" is in every layer, "layers.3.attention" in one).
    Raises ValueError for an end that no name has.
    """
    seen: dict[str, Seen] = {}
    watched = [
        (name, module) for name, module in model.named_modules() if any(f".{name}".endswith(f".{end}") for end in ends)
    ]
    names = [name for name, _ in model.named_modules()]
    unknown = [end for end in ends if not any(f".{name}".endswith(f".{end}") for name in names)]
    if unknown or not ends:
        raise ValueError(f"no module's name ends in {' or '.join(unknown) or 'nothing'}; print(model) shows the names")

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: torch.Tensor) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            seen[name] = Seen(module, x.detach(), out.detach())

        return hook

    hooks = [module.register_forward_hook(note(name), with_kwargs=True) for name, module in watched]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
