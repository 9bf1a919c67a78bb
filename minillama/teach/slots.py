"""Where a learner's functions go in a living model.

A slot is one function of the model, written so that it needs no class: `rms_norm(x, weight, eps)`. `run` is the model's
forward pass with some of its slots filled by other functions and the rest left to the package. It works on any model,
on every rank, with packed and quantized linears, because it only ever calls the model's own modules.
"""

from __future__ import annotations

import contextlib
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from fairscale.nn.model_parallel.mappings import copy_to_model_parallel_region, reduce_from_model_parallel_region
from torch import nn

from minillama import attention as attention_module
from minillama.attention import Remembers
from minillama.launch import LostRanks, explained
from minillama.parallel import world_size
from minillama.transformer import Transformer, causal_mask

Function = Callable[..., Any]
Parts = Mapping[str, Function]


class PartError(ValueError):
    """A learner's part does not fit: the message says what the model gave, what it needs, and what it got."""


@dataclass(frozen=True)
class Slot:
    """One function that a learner can write. shapes: what goes in and what comes out, in the course's letters."""

    signature: str
    shapes: str
    place: str
    results: Callable[..., Sequence[torch.Tensor | tuple[tuple[int, ...], torch.dtype]]] | None = None

    @property
    def names(self) -> list[str]:
        return self.signature.partition("(")[2].rstrip(")").split(", ")


def _like(x: torch.Tensor, *_: Any, **__: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(x.shape), x.dtype)]


def _table(dim: int, end: int, *_: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((end, dim // 2), torch.complex64)]


def _looks(positions: torch.Tensor, end: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((*positions.shape, end), torch.bool)]


def _stream(tokens: torch.Tensor, embed: Any, *_: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((*tokens.shape, embed.embedding_dim), embed.weight.dtype)]


def _slots(keys: torch.Tensor, values: torch.Tensor, *_: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(keys.shape), keys.dtype), (tuple(values.shape), values.dtype)]


SLOTS: dict[str, Slot] = {
    "rms_norm": Slot("rms_norm(x, weight, eps)", "(..., D) -> (..., D)", "every norm in every layer", _like),
    "rotation_table": Slot(
        "rotation_table(dim, end, theta)", "-> (end, h/2) complex64", "the table of angles", _table
    ),
    "rotate": Slot(
        "rotate(x, freqs_cis)", "(B, T, H, h), (T, h/2) or (B, T, h/2) -> (B, T, H, h)",
        "every query and every key", _like,
    ),
    "may_look": Slot("may_look(positions, end)", "(T,) or (B, T) -> (..., T, S) bool", "every mask", _looks),
    "attend": Slot(
        "attend(xq, keys, values, mask)", "(B, T, H, h), (B, K, S, h) twice, (..., T, S) -> (B, T, H, h)",
        "attention in every layer", _like,
    ),
    "remember": Slot(
        "remember(keys, values, xk, xv, positions)", "(B, K, S, h) twice, (B, T, K, h) twice -> (B, K, S, h) twice",
        "the cache of every layer", _slots,
    ),
    "swiglu": Slot("swiglu(x, w1, w2, w3)", "(..., D) -> (..., D)", "the feed-forward block of every layer", _like),
    "block": Slot(
        "block(x, attention, feed_forward, attention_norm, ffn_norm)", "(B, T, D) -> (B, T, D)", "every layer", _like
    ),
    "stack": Slot("stack(tokens, embed, blocks, norm)", "(B, T) -> (B, T, D)", "the way through the layers", _stream),
}  # fmt: skip

# The same for what happens after the logits; `minillama.teach.loop` runs them.
LOOP: dict[str, Slot] = {
    "with_temperature": Slot(
        "with_temperature(logits, t)", "(..., V) -> probabilities (..., V)", "the softmax before every draw", _like
    ),
    "nucleus": Slot("nucleus(probs, p)", "(..., V), best first -> (..., V)", "top-p before every draw", _like),
    "repetition_penalized": Slot(
        "repetition_penalized(logits, seen, penalty)", "(..., V), (..., V) bool -> (..., V)",
        "the repetition penalty before every draw", _like,
    ),
    "pick": Slot("pick(probs, u)", "(V,), a number in [0, 1) -> a place", "every draw"),
    "tell_on": Slot(
        "tell_on(next_logits, prompt, choose, max_new, stop_ids)", "-> new ids, one after another",
        "the loop, row by row",
    ),
}  # fmt: skip

# And for what a rank does with its share; `minillama.teach.ranks` runs them. One process has no use for them.
RANKS: dict[str, Slot] = {
    "column_shard": Slot(
        "column_shard(w, rank, ranks)", "(out, in) -> (out/R, in)", "what each rank takes of every matrix",
        lambda w, rank, ranks: [((len(w) // ranks, *w.shape[1:]), w.dtype)],
    ),
    "parallel_swiglu": Slot(
        "parallel_swiglu(x, shards)", "(..., D) -> (..., D)", "each rank's part of every feed-forward block", _like
    ),
    "vocab_lookup": Slot(
        "vocab_lookup(tokens, part, first)", "(B, T), (V/R, D) -> (B, T, D)", "each rank's part of the embedding",
        lambda tokens, part, first: [((*tokens.shape, part.shape[1]), part.dtype)],
    ),
    "my_kv_heads": Slot(
        "my_kv_heads(rank, ranks, n_kv_heads)", "-> a list of heads", "which kv heads each rank holds"
    ),
}  # fmt: skip
EVERY = SLOTS | LOOP | RANKS

# Not for learners: places where `ablate` reaches in. wq..wo stay the model's.
INNER = {"turn_keys", "turn_values", "join_heads", "join_neurons"}
# What `swapped` has in place just now: functions for slots of every model, and slots whose work a class does instead:
# a function there, which the model was built with, gives way.
now_in: Parts = {}
now_out: frozenset[str] = frozenset()

# Files whose lines are not a learner's.
LIBRARIES = [str(Path(__file__).resolve().parents[1]), str(Path(torch.__file__).parent)]
LIBRARIES += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]

OF_ATTENTION = {"rotate", "attend", "remember", "turn_keys", "turn_values", "join_heads"}


def fitted(name: str, mine: Function) -> Function:
    """`mine` for slot `name`: every result is looked at, and what goes wrong is said in the learner's terms.

    Raises PartError for something that is no function or cannot be called with the slot's arguments.
    """
    slot = EVERY[name]
    if isinstance(mine, type):
        raise PartError(
            f"{name} is a function {slot.signature}, and yours is the class {mine.__name__}; classes go in under "
            "the names of the package's, as in swapped(RMSNorm=...)"
        )
    if not callable(mine):
        raise PartError(f"{name} is {mine!r}; expected a function {slot.signature}")
    check_signature(mine, slot.names, slot.signature)

    def call(*args: Any) -> Any:
        before = _versions(args)
        with running(name, mine):
            result = mine(*args)
        if slot.results is not None:
            check_result(name, slot.shapes, result, slot.results(*args))
        if name != "remember" and _versions(args) != before:
            raise PartError(_changed(name, slot.names, args, before))
        return result

    return call


@contextlib.contextmanager
def running(name: str, mine: Function) -> Iterator[None]:
    """Run a learner's code in here: what stops it is said as PartError, with the line of `mine` that it came from."""
    try:
        with explained():
            yield
    except (PartError, LostRanks):  # of another part, that this one calls; of other ranks, whom it waits for
        raise
    except (Exception, SystemExit) as error:
        raise PartError(f"your {name} stopped with {blame(error, mine)}") from error


def _versions(args: Sequence[Any]) -> list[int | None]:
    """How often each tensor has been written to, as far as torch counts."""
    return [a._version if isinstance(a, torch.Tensor) and not a.is_inference() else None for a in args]


def _changed(name: str, names: Sequence[str], args: Sequence[Any], before: Sequence[int | None]) -> str:
    which = next(i for i, count in enumerate(_versions(args)) if count != before[i])
    text = (
        f"your {name} changes `{names[which]}`, which its owner still needs: make a new tensor, `x = x * y`, "
        "not `x *= y`"
    )
    if isinstance(args[which], nn.Parameter):
        text += ". It is a trained weight of the model, and it is changed now: load the model again"
    return text


def check_signature(mine: Function, wanted: Sequence[str], shown: str) -> None:
    """Raise PartError unless `mine` can be called with as many arguments as `wanted` has."""
    if own := misfit(mine, wanted):
        raise PartError(f"the model calls {shown}, and yours is {own}: take those {len(wanted)} arguments")


def misfit(function: Function, wanted: Sequence[str]) -> str | None:
    """The first line of `function`, if it cannot be called with as many arguments as `wanted` has."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin may have none to look at
        return None
    try:
        signature.bind(*wanted)
    except TypeError:
        return f"{getattr(function, '__name__', 'yours')}{signature}"
    return None


def check_result(name: str, shapes: str, result: Any, wanted: Sequence[Any]) -> None:
    """Raise PartError unless `result` has the shapes and dtypes that are `wanted`."""
    if result is None or result is ...:
        raise PartError(f"your {name} returned nothing: is there a `return`?")
    results = result if isinstance(result, (tuple, list)) else [result]
    if len(wanted) == 1 and results is result:
        comma = ": is there a comma behind the `return`?" if len(results) == 1 else ""
        raise PartError(f"your {name} returned a {type(result).__name__}; expected a tensor ({shapes}){comma}")
    if len(results) != len(wanted):
        raise PartError(f"your {name} returned {len(results)} things; expected {len(wanted)} ({shapes})")
    for got, (shape, dtype) in zip(results, wanted):
        if not isinstance(got, torch.Tensor):
            raise PartError(f"your {name} returned {type(got).__name__}; expected a tensor ({shapes})")
        if tuple(got.shape) != shape:
            hint = ": the axes are in another order" if sorted(got.shape) == sorted(shape) else ""
            raise PartError(f"your {name} returned the shape {tuple(got.shape)}; expected {shape} ({shapes}){hint}")
        if got.dtype != dtype:
            raise PartError(f"your {name} returned {got.dtype}; expected {dtype}, the model goes on in it")


def blame(error: BaseException, mine: Function) -> str:
    """`error` in one line, with the learner's line that it came from: of `mine`, or of what it called."""
    what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".rstrip(": ")
    code = getattr(inspect.unwrap(mine), "__code__", None)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        own = code is not None and frame.filename == code.co_filename
        if frame.line and (own or not any(Path(frame.filename).is_relative_to(folder) for folder in LIBRARIES)):
            return f"{what}, at your line `{frame.line.strip()}`"
    return what


def run(
    model: Transformer,
    parts: Parts,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor | None,
    window: Sequence[Remembers] | None = None,
    layers: Collection[int] | None = None,
) -> torch.Tensor:
    """`Transformer.stack` with `parts` in place of the model's own: tokens (B, T) -> (B, T, D).

    layers: those that take part, the norm after the last not being one; None: all, and that norm too.
    """
    T = tokens.shape[1]
    end = T if window is None else window[0].keys.shape[2]  # type: ignore[attr-defined]
    table = parts["rotation_table"](model) if "rotation_table" in parts else model.freqs_cis
    freqs_cis = table.to(tokens.device)[positions]  # (T, h/2) or (B, T, h/2)
    if "may_look" in parts:
        looks = parts["may_look"](positions, end)  # (T, S) or (B, T, S)
        mask = looks if looks.dim() == 4 else looks.view(-1, 1, *looks.shape[-2:])  # (B or 1, 1, T, S)

    blocks = []
    everywhere = parts
    layer: Any
    for i, layer in enumerate(model.layers):
        parts = everywhere if layers is None or i in layers else {}
        cache = None if window is None else window[i]
        attention = layer.attention if not OF_ATTENTION & parts.keys() else partial(_attention, parts, layer.attention)
        attention = partial(attention, positions=positions, freqs_cis=freqs_cis, mask=mask, cache=cache)
        feed_forward = partial(_feed_forward, parts, layer.feed_forward)
        norms = [partial(_norm, parts, norm) for norm in (layer.attention_norm, layer.ffn_norm)]
        blocks.append(_on_the_stream(parts.get("block", _block), attention, feed_forward, *norms))
    norm = partial(_norm, everywhere if layers is None else {}, model.norm)
    return everywhere.get("stack", _stack)(tokens, model.tok_embeddings, blocks, norm)


def _on_the_stream(block: Function, *layers: Function) -> Function:
    """A block as a function of x alone: its layers are held."""
    return lambda x: block(x, *layers)


def _block(x: torch.Tensor, attention: Function, feed_forward: Function, first: Function, second: Function) -> Any:
    h = x + attention(first(x))
    return h + feed_forward(second(h))


def _stack(tokens: torch.Tensor, embed: Function, blocks: Sequence[Function], norm: Function) -> Any:
    h = embed(tokens)
    for block in blocks:
        h = block(h)
    return norm(h)


def _norm(parts: Parts, norm: Any, x: torch.Tensor) -> Any:
    return parts["rms_norm"](x, norm.weight, norm.eps) if "rms_norm" in parts else norm(x)


def _feed_forward(parts: Parts, block: Any, x: torch.Tensor) -> Any:
    if "parallel_swiglu" in parts and world_size() > 1 and hasattr(block.w1, "weight"):  # quantized ones have none
        x = copy_to_model_parallel_region(x)  # which sums what the ranks' parts send back to x in training
        mine = parts["parallel_swiglu"](x, [tuple(w.weight for w in (block.w1, block.w2, block.w3))])
        return summed(mine)
    w2 = partial(parts["join_neurons"], block.w2) if "join_neurons" in parts else block.w2
    if "swiglu" in parts:
        return parts["swiglu"](x, block.w1, w2, block.w3)
    return block(x) if w2 is block.w2 else w2(F.silu(block.w1(x)) * block.w3(x))


def summed(mine: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks of what each has."""
    # A copy, because the sum is made in place, and what a learner returns may be a view of something else.
    return reduce_from_model_parallel_region(mine.clone(memory_format=torch.contiguous_format))


def _attention(
    parts: Parts,
    module: Any,
    x: torch.Tensor,
    positions: torch.Tensor,
    freqs_cis: torch.Tensor,
    mask: torch.Tensor | None,
    cache: Any,
) -> Any:
    B, T, _ = x.shape
    xq, xk, xv = (w(x).view(B, T, -1, module.head_dim) for w in (module.wq, module.wk, module.wv))
    before = xk
    if "rotate" in parts:
        xq, xk = parts["rotate"](xq, freqs_cis), parts["rotate"](xk, freqs_cis)
    else:
        xq, xk = attention_module.apply_rotary_emb(xq, xk, freqs_cis)
    if "turn_keys" in parts:
        xk = parts["turn_keys"](before, freqs_cis)
    if "turn_values" in parts:
        xv = parts["turn_values"](xv, freqs_cis)
    if cache is None:
        keys, values = xk.transpose(1, 2), xv.transpose(1, 2)  # (B, T, K, h) -> (B, K, T, h)
    elif "remember" in parts:
        keys, values = parts["remember"](cache.keys, cache.values, xk.detach(), xv.detach(), positions)
    else:
        keys, values = cache.update(xk, xv, positions)  # (B, K, S, h)
    if mask is None:  # said in full: a learner's function need not know what its absence means
        mask = causal_mask(positions, keys.shape[2])
    out = parts.get("attend", attend)(xq, keys, values, mask)  # (B, T, H, h)
    wo = partial(parts["join_heads"], module.wo) if "join_heads" in parts else module.wo
    return wo(out.reshape(B, T, -1))


def attend(xq: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The package's attention as the slot asks for it, through torch's own operation."""
    out = F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)  # (B, H, T, h) -> (B, T, H, h)


def ready(parts: Parts) -> Parts:
    """`parts`, checked one by one, as `run` takes them. Raises PartError for a name that is no slot's."""
    unknown = [str(name) for name in parts if name not in EVERY]
    if unknown:
        raise PartError(f"{', '.join(unknown)}: no such part; there are {', '.join(EVERY)}")
    made = {name: fitted(name, mine) for name, mine in parts.items()}
    if "rotation_table" in made:
        made["rotation_table"] = _once(made["rotation_table"])
    return made


def _once(table: Function) -> Function:
    """The table of a model, computed when it is first asked for."""
    kept: dict[tuple[int, int, float], torch.Tensor] = {}

    def of(model: Transformer) -> torch.Tensor:
        a = model.args
        if a.rope_scaling is not None:
            kind = a.rope_scaling["rope_type"]
            raise PartError(
                f"this model's angles are scaled ({kind}), and rotation_table(dim, end, theta) is not told how: "
                "leave it out, or take a model without rope_scaling"
            )
        key = (a.head_dim, a.max_seq_len, a.rope_theta)
        if key not in kept:
            kept[key] = table(*key)
        return kept[key]

    return of


def install(model: Transformer, parts: Parts) -> Transformer:
    """Let `model` run on `parts` from now on. What `swapped` puts in for a while goes before them."""
    return put_on(model, ready(parts))


def put_on(model: Transformer, made: Parts) -> Transformer:
    """`install` of parts that are ready."""

    def chosen(of: Collection[str]) -> dict[str, Function]:
        here = {**{name: part for name, part in made.items() if name not in now_out}, **now_in}
        return {name: part for name, part in here.items() if name in of}

    def stack(self: Transformer, *args: Any, **kwargs: Any) -> torch.Tensor:
        on_ranks = world_size() > 1 and "swiglu" not in now_in.keys() | now_out
        here = chosen([*SLOTS, "parallel_swiglu"] if on_ranks else SLOTS)
        return run(self, here, *args, **kwargs) if here else type(self).stack(self, *args, **kwargs)

    def own_loop(self: Transformer) -> Any:
        from minillama.teach.loop import made_of

        return made_of(chosen(LOOP))

    model.stack = MethodType(stack, model)  # type: ignore[method-assign]
    model.own_loop = MethodType(own_loop, model)  # type: ignore[assignment]
    return model


def uninstall(model: nn.Module) -> None:
    """Give `model` its own parts back."""
    for name in ("stack", "own_loop"):
        model.__dict__.pop(name, None)
