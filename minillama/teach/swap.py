"""`swapped`: run any trained model with a learner's pieces, for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn

from minillama import attention, feed_forward, kv_cache, norm, rope, transformer
from minillama.args import ModelArgs
from minillama.teach import slots
from minillama.teach.slots import LOOP, RANKS, SLOTS, PartError

Module = Any

# The promoted classes, and how the arguments of each are read off one that is at work.
MODULES: dict[str, tuple[type[nn.Module], str, Callable[[Module], tuple[Any, ...]]]] = {
    "RMSNorm": (norm.RMSNorm, "forward", lambda m: (len(m.weight), m.eps)),
    "FeedForward": (feed_forward.FeedForward, "forward", lambda m: (m.w2.out_features, m.w1.out_features)),
    "Attention": (attention.Attention, "forward", lambda m: (_args_of(m),)),
    "TransformerBlock": (
        transformer.TransformerBlock, "forward", lambda m: (_args_of(m.attention, m.feed_forward, m.ffn_norm.eps),),
    ),
    "Transformer": (transformer.Transformer, "stack", lambda m: (m.args,)),
}  # fmt: skip
# Functions of the package that are slots under another name.
SAME_AS = {"precompute_freqs_cis": "rotation_table", "causal_mask": "may_look"}
# The slots whose work each of the others does: both at once cannot be.
DONE_BY: dict[str, frozenset[str]] = {
    "RMSNorm": frozenset({"rms_norm"}),
    "FeedForward": frozenset({"swiglu"}),
    "Attention": frozenset({"rotate", "attend", "remember"}),
    "TransformerBlock": frozenset(SLOTS),
    "Transformer": frozenset(SLOTS),
    "apply_rotary_emb": frozenset({"rotate"}),
    "LayerCache": frozenset({"remember"}),
    "KVCache": frozenset({"remember"}),
}
# What is looked up by its name whenever it is used, so that the name is all there is to change.
BY_NAME: dict[str, Any] = {
    "apply_rotary_emb": rope.apply_rotary_emb,
    "LayerCache": kv_cache.LayerCache,
    "KVCache": kv_cache.KVCache,
}


@contextlib.contextmanager
def swapped(**pieces: Any) -> Iterator[None]:
    """`with swapped(RMSNorm=Mine, rotate=mine): ...` runs every model on the given pieces, then restores everything.

    A name is one of the package's (RMSNorm, Attention, FeedForward, TransformerBlock, Transformer, apply_rotary_emb,
    precompute_freqs_cis, causal_mask, LayerCache, KVCache) or a slot's (rms_norm, rotate, nucleus, ...).
    Models that are there already take part: a class is given the trained weights of each module it stands in for.
    Raises PartError, before anything is changed, for unknown names and signatures that do not fit; inside the block,
    for results of a wrong shape or dtype.
    """
    known = [*MODULES, *SAME_AS, *BY_NAME, *SLOTS, *LOOP]
    if on_ranks := [name for name in pieces if name in RANKS]:
        raise PartError(
            f"{', '.join(on_ranks)} has work where there are several ranks: promote it (teach.promote_mine), and start "
            "torchrun --nproc_per_node 2 -m minillama complete --mine"
        )
    unknown = [name for name in pieces if name not in known]
    if unknown or not pieces:
        raise PartError(f"{', '.join(unknown) or 'nothing'} cannot be swapped; there are {', '.join(known)}")
    for name in pieces:
        if twice := sorted(DONE_BY.get(name, frozenset()) & {SAME_AS.get(other, other) for other in pieces}):
            raise PartError(f"{name} does the work of {', '.join(twice)} as well: swap one or the other")
    filled: dict[str, Any] = {}
    for name, piece in pieces.items():
        if (slot := SAME_AS.get(name, name)) in SLOTS | LOOP:
            if slot in filled:
                raise PartError(f"{name} is {slot} by another name: swap one or the other")
            filled[slot] = piece
    if twice := sorted(filled.keys() & slots.now_out):
        raise PartError(f"what the `with` around this one has put in does the work of {', '.join(twice)} already")
    done = frozenset().union(*(DONE_BY.get(name, frozenset()) for name in pieces))
    # What a block around this one has put in stays, unless a piece here does its work.
    parts = {**{name: part for name, part in slots.now_in.items() if name not in done}, **slots.ready(filled)}
    changes: list[tuple[Any, str, Any]] = []
    renamed: list[tuple[str, Any]] = []
    for name, piece in pieces.items():
        if name in MODULES:
            changes.append(_stand_in(name, piece))
        elif name in BY_NAME:
            new, more = _in_place_of(name, piece)
            renamed.append((name, new))
            changes += more
    inside = {name: part for name, part in parts.items() if name in SLOTS}
    after = {name: part for name, part in parts.items() if name in LOOP}
    if (inside or slots.now_in.keys() & SLOTS.keys()) and "Transformer" not in pieces:

        @functools.wraps(transformer.Transformer.stack)
        def stack(self: transformer.Transformer, *args: Any, **kwargs: Any) -> torch.Tensor:
            return slots.run(self, inside, *args, **kwargs)

        changes.append((transformer.Transformer, "stack", stack))
    if after:
        from minillama.teach.loop import made_of

        changes.append((transformer.Transformer, "own_loop", lambda self: made_of(after)))
    changes.append((slots, "now_in", parts))
    changes.append((slots, "now_out", slots.now_out | done))
    with contextlib.ExitStack() as undo:
        for name, new in renamed:
            old = vars(sys.modules[BY_NAME[name].__module__])[name]
            undo.callback(_rename, name, new, old)
            _rename(name, old, new)
        for owner, attribute, value in changes:
            if attribute in vars(owner):
                undo.callback(setattr, owner, attribute, vars(owner)[attribute])
            else:
                undo.callback(delattr, owner, attribute)
            setattr(owner, attribute, value)
        yield


def _stand_in(name: str, mine: Any) -> tuple[type, str, Callable[..., Any]]:
    """The method of the package's class that hands its work to an instance of `mine` with the same weights."""
    ours, method, arguments = MODULES[name]
    if not (isinstance(mine, type) and issubclass(mine, nn.Module)):
        slot = {"RMSNorm": "rms_norm", "FeedForward": "swiglu", "Attention": "attend"}.get(name)
        instead = f"; for a function use swapped({slot}=...)" if slot else ""
        raise PartError(f"{name} is a class, and yours is {mine!r}; expected a class made from nn.Module{instead}")
    if not inspect.isfunction(getattr(mine, method, None)) or getattr(mine, method) is nn.Module.forward:
        raise PartError(f"your {name} has no method `{method}`")
    original = vars(ours)[method]
    needed = list(inspect.signature(original).parameters)[1:]  # the model gives them all
    slots.check_signature(_unbound(getattr(mine, method)), needed, f"{name}.{method}({', '.join(needed)})")
    made: weakref.WeakKeyDictionary[nn.Module, nn.Module] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def handed_on(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if type(self) is not ours:  # a subclass that asks its parent means the parent
            return original(self, *args, **kwargs)
        args = (*args, *(kwargs[key] for key in needed[len(args) :] if key in kwargs))  # its names may be others
        if self not in made:
            made[self] = adopt(name, mine, self, arguments(self))
        stand_in = made[self]
        stand_in._parameters.update(self._parameters)  # they may have been moved, or quantized, since
        stand_in._modules.update(self._modules)
        with slots.running(name, getattr(mine, method)):
            result = getattr(stand_in, method)(*args)
        if method == "forward":
            slots.check_result(name, "as x", result, [(tuple(args[0].shape), args[0].dtype)])
        return result

    return ours, method, handed_on


def adopt(name: str, mine: type[nn.Module], ours: nn.Module, arguments: tuple[Any, ...]) -> nn.Module:
    """A `mine` that holds the very parameters and submodules of `ours`. Raises PartError where their names differ."""
    try:
        with torch.device("meta"):
            made = mine(*arguments)
    except Exception as error:
        shown = ", ".join("args" if isinstance(a, ModelArgs) else repr(a) for a in arguments)
        raise PartError(f"{name}({shown}) could not be made: {slots.blame(error, mine.__init__)}") from error
    holders: list[tuple[str, Any, Any]] = [
        ("parameter", ours._parameters, made._parameters),
        ("submodule", ours._modules, made._modules),
    ]
    for kind, theirs, own in holders:
        if theirs.keys() != own.keys():
            lacks, extra = sorted(theirs.keys() - own.keys()), sorted(own.keys() - theirs.keys())
            raise PartError(
                f"your {name} has the {kind}s {', '.join(own) or 'none'}, and the trained weights come under the names "
                f"{', '.join(theirs) or 'none'}"
                + (f"; it lacks {', '.join(lacks)}" if lacks else "")
                + (f"; nothing was trained for {', '.join(extra)}" if extra else "")
            )
        own.update(theirs)
    if name == "Transformer":
        made.__dict__["freqs_cis"] = ours.freqs_cis
        made._buffers.pop("freqs_cis", None)
    if not _is_meta(ours):
        held = {**vars(made), **made._buffers}
        if lost := [key for key, value in held.items() if isinstance(value, torch.Tensor) and value.is_meta]:
            raise PartError(f"your {name} computes {', '.join(lost)} when it is made; compute it when it is used")
    return made.train(ours.training)


def _is_meta(ours: nn.Module) -> bool:
    return any(p.is_meta for p in ours.parameters())


def _in_place_of(name: str, mine: Any) -> tuple[Any, list[tuple[Any, str, Any]]]:
    """What stands for the package's `name` while `mine` does, and what else is to be changed for that."""
    ours = BY_NAME[name]
    if isinstance(ours, type):
        if not isinstance(mine, type):
            raise PartError(f"{name} is a class, and yours is {mine!r}; expected a class")
        wanted = [key for key, value in vars(ours).items() if inspect.isroutine(value) and not key.startswith("_")]
        if lacks := [key for key in wanted if not callable(getattr(mine, key, None))]:
            raise PartError(f"your {name} has no method {', '.join(f'`{key}`' for key in lacks)}")
        return mine, [(mine, "update", _looked_at(mine))] if name == "LayerCache" else []
    wanted = list(inspect.signature(ours).parameters)
    shown = f"{name}({', '.join(wanted)})"
    if isinstance(mine, type) or not callable(mine):
        raise PartError(f"{name} is {mine!r}; expected a function {shown}")
    slots.check_signature(mine, wanted, shown)

    def new(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> Any:
        with slots.running(name, mine):
            result = mine(xq, xk, freqs_cis)
        wanted = [(tuple(x.shape), x.dtype) for x in (xq, xk)]
        slots.check_result(name, "queries and keys, each in its own shape and dtype", result, wanted)
        return result

    return new, []


def _looked_at(mine: Any) -> Callable[..., Any]:
    """`mine.update`, whose results are looked at."""
    slots.check_signature(_unbound(mine.update), ["xk", "xv", "positions"], "update(xk, xv, positions)")
    update = mine.update

    def looked_at(self: Any, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor) -> Any:
        with slots.running("LayerCache", update):
            result = update(self, xk, xv, positions)
        wanted = [(tuple(x.shape), x.dtype) for x in (self.keys, self.values)]
        slots.check_result("LayerCache.update", "keys and values, (B, K, S, h) each", result, wanted)
        return result

    return looked_at


def _rename(name: str, old: Any, new: Any) -> None:
    """Put `new` for `old` in every module of the package that knows `name`."""
    for key, module in list(sys.modules.items()):
        if key.partition(".")[0] == "minillama" and getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


def _unbound(method: FunctionType) -> Callable[..., Any]:
    """`method` with `self` filled in, for a look at the rest of its signature."""
    return method.__get__(object())


def _args_of(attention: Module, feed_forward: Module = None, norm_eps: float = 1e-5) -> ModelArgs:
    """ModelArgs that give modules of these widths."""
    dim, head_dim = attention.wo.out_features, attention.head_dim  # quantized linears tell only what comes out
    hidden = feed_forward.w1.out_features if feed_forward is not None else dim
    return ModelArgs(
        dim=dim, n_layers=1, n_heads=dim // head_dim, n_kv_heads=attention.wk.out_features // head_dim,
        multiple_of=hidden, ffn_dim_multiplier=0.5 * hidden / int(8 * dim / 3), norm_eps=norm_eps,
    )  # fmt: skip
