"""Break it: take a piece out of a trained model, or do it wrongly, and see what that costs.

>>> import minillama
>>> from minillama.teach.breaking import ablate, ablations
>>> ablations(chapter=2)
>>> ablate(minillama.demo(), "no_rope")
"""

from __future__ import annotations

import contextlib
import difflib
import html
import json
import math
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from minillama.args import real_number, shown, whole_number
from minillama.decode import padded
from minillama.generation import LARGEST_SEED, Llama
from minillama.kv_cache import KVCache
from minillama.rope import apply_rotary_emb, precompute_freqs_cis
from minillama.sampling import Sampler, SamplingParams
from minillama.storyteller import demo_dir
from minillama.teach import slots
from minillama.teach.exercise import marked
from minillama.tokenizer import Tokenizer
from minillama.transformer import Transformer, causal_mask

# Text is read in pieces, with a cache: a fault of the cache or of the mask would not show in a single pass.
FIRST, NEXT = 16, 8
STORIES = 8
PROMPT = "Once upon a time, in the quiet valley, there lived a shy fox. His name was Rusty. Rusty was afraid of"
NOT_NUMBERS = "[the logits are not numbers]"
WIDTH = 100

# Everything that an ablation can replace, as a message calls it.
PLACES = {
    "norm": "how a vector is normalized",
    "after_sum": "where the norms stand",
    "angles": "the table of angles",
    "turn": "how queries and keys are turned",
    "turn_keys": "how keys are turned",
    "turn_values": "how values are turned",
    "looks": "the mask",
    "scale": "the scale of the scores",
    "heads": "which kv head a query head uses",
    "remember": "what the cache keeps",
    "neurons": "what comes out of the gate",
    "wo_input": "what goes into wo",
    "w2_input": "what goes into w2",
    "attention_stream": "what attention is added to",
    "ffn_stream": "what the feed-forward is added to",
    "attention": "the attention of a layer",
    "ffn": "the feed-forward of a layer",
}
Replaced = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """What an ablation has to know: the model, and the base of the angles that `wrong_theta` puts in."""

    model: Transformer
    theta: float


@dataclass(frozen=True)
class Ablation:
    """about: what is done, in one sentence. parts: what it puts where, by the names of `PLACES`."""

    about: str
    chapter: int
    parts: Callable[[Setting], Replaced]


def _always(**parts: Any) -> Callable[[Setting], Replaced]:
    return lambda setting: parts


def _rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).type_as(x)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x32 = x.float()
    return _rms(x32 - x32.mean(-1, keepdim=True), eps).type_as(x) * weight


def _turn(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    return apply_rotary_emb(x, x, freqs_cis)[0]


def _turn_halves(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, -1)  # (B, T, H, h) -> (B, T, H, h/2) twice
    turned = torch.complex(first, second) * freqs_cis.unsqueeze(-2)
    return torch.cat([turned.real, turned.imag], -1).type_as(x)


def _square(mask: torch.Tensor) -> torch.Tensor:
    T, S = mask.shape[-2:]
    return mask if T == 1 else causal_mask(torch.arange(T, device=mask.device), S)


def _overwrites(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    T = xk.shape[1]
    keys[:, :, :T], values[:, :, :T] = xk.transpose(1, 2), xv.transpose(1, 2)  # (B, T, K, h) -> (B, K, T, h)
    return keys, values


def _one_late(setting: Setting) -> Replaced:
    first = 0  # tokens of the first chunk, the prefill, which is written where it belongs

    def remember(
        keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal first
        keys[:, :, positions], values[:, :, positions] = xk.transpose(1, 2), xv.transpose(1, 2)
        if positions[0] == 0:
            first = xk.shape[1]
            return keys, values

        # The last token's slot lies beyond the window, so the store is right and the way it is read is one off.
        def late(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[:, :, :first], torch.zeros_like(x[:, :, :1]), x[:, :, first:-1]], 2)

        return late(keys), late(values)

    return {"remember": remember}


def _half(x: torch.Tensor) -> torch.Tensor:
    kept = x.clone()
    kept[..., x.shape[-1] // 2 :] = 0
    return kept


ABLATIONS: dict[str, Ablation] = {
    "no_eps": Ablation(
        "The norms add no eps to the mean square.", 1, _always(norm=lambda x, weight, eps: _rms(x, 0.0) * weight)
    ),
    "layer_norm": Ablation("The norms subtract the mean too, as LayerNorm does.", 1, _always(norm=_layer_norm)),
    "norm_without_weight": Ablation(
        "The norms leave out their learned weight.", 1, _always(norm=lambda x, weight, eps: _rms(x, eps))
    ),
    "no_norm": Ablation(
        "There is no norm: a vector goes on as it is, at the length it has, without the weight.", 1,
        _always(norm=lambda x, weight, eps: x),
    ),
    "no_rope": Ablation("Queries and keys are not turned.", 2, _always(turn=lambda x, freqs_cis: x)),
    "rope_on_values": Ablation(
        "Values are turned by their position, as queries and keys are.", 2,
        _always(turn_values=lambda turn, x, freqs_cis, table: turn(x, freqs_cis)),
    ),
    "halves": Ablation(
        "The pairs are (i, i + h/2), as in Hugging Face's files; the weights were trained for neighbours.", 2,
        _always(turn=_turn_halves),
    ),
    "wrong_theta": Ablation(
        "The angles come from another base than the model's: `theta`, if not given 500000.", 2,
        lambda s: {"angles": precompute_freqs_cis(s.model.args.head_dim, s.model.args.max_seq_len, s.theta)},
    ),
    "clockwise": Ablation(
        "Queries and keys are turned the other way.", 2, _always(turn=lambda x, freqs_cis: _turn(x, freqs_cis.conj()))
    ),
    "clockwise_keys": Ablation(
        "Keys are turned the other way, queries are not.", 2,
        _always(turn_keys=lambda turn, x, freqs_cis, table: turn(x, freqs_cis.conj())),
    ),
    "keys_not_rotated": Ablation(
        "Queries are turned, keys are not.", 2, _always(turn_keys=lambda turn, x, freqs_cis, table: x)
    ),
    "off_by_one_keys": Ablation(
        "A key is turned as if it stood one position further on, a query is not.", 2,
        _always(turn_keys=lambda turn, x, freqs_cis, table: turn(x, freqs_cis * table[1])),
    ),
    "no_scale": Ablation("The scores are not divided by the root of h.", 3, _always(scale=1.0)),
    "no_mask": Ablation(
        "Every token of a chunk sees all of the chunk, what comes after it too.", 3, _always(looks=torch.ones_like)
    ),
    "tiled_heads": Ablation(
        "Query head i uses kv head i mod K; trained was i // (H/K).", 3,
        _always(heads=lambda x, H: x.repeat(1, H // x.shape[1], 1, 1)),
    ),
    "one_kv_head": Ablation("All query heads use kv head 0.", 3, _always(heads=lambda x, H: x[:, :1])),
    "mean_kv_heads": Ablation(
        "All query heads use the mean of the kv heads.", 3, _always(heads=lambda x, H: x.mean(1, keepdim=True))
    ),
    "cache_off_by_one": Ablation(
        "After the prefill, keys and values are written one slot late: a token does not see itself, and an empty slot "
        "stays behind.", 4, _one_late,
    ),
    "cache_overwrites": Ablation(
        "Every chunk is written from slot 0 on, over what was there.", 4, _always(remember=_overwrites)
    ),
    "square_mask": Ablation(
        "The mask of a chunk is the T x T triangle: its token i sees slots 0 to i of the whole cache.", 4,
        _always(looks=_square),
    ),
    "no_gate": Ablation(
        "The gate stays open: what passes is w3 x, without silu(w1 x).", 5,
        _always(neurons=lambda x, w1, w3: w3(x)),
    ),
    "gate_only": Ablation(
        "The gate is all there is: silu(w1 x), without w3 x.", 5, _always(neurons=lambda x, w1, w3: F.silu(w1(x)))
    ),
    "relu": Ablation("The gate is relu.", 5, _always(neurons=lambda x, w1, w3: F.relu(w1(x)) * w3(x))),
    "gelu": Ablation("The gate is gelu.", 5, _always(neurons=lambda x, w1, w3: F.gelu(w1(x)) * w3(x))),
    "swapped_w1_w3": Ablation(
        "w1 and w3 have changed places: silu(w3 x) * w1 x.", 5,
        _always(neurons=lambda x, w1, w3: w1(x) * F.silu(w3(x))),
    ),
    "no_attention": Ablation("Attention is left out.", 6, _always(attention=False)),
    "no_ffn": Ablation("The feed-forward is left out.", 6, _always(ffn=False)),
    "no_residual_attention": Ablation(
        "What attention answers takes the place of its input, and is not added to it.", 6,
        _always(attention_stream=False),
    ),
    "no_residual_ffn": Ablation(
        "What the feed-forward answers takes the place of its input, and is not added to it.", 6,
        _always(ffn_stream=False),
    ),
    "no_residual": Ablation(
        "What attention and feed-forward answer takes the place of their input.", 6,
        _always(attention_stream=False, ffn_stream=False),
    ),
    "post_norm": Ablation(
        "A norm stands after the sum, not before attention or feed-forward.", 6, _always(after_sum=True)
    ),
    "missing_all_reduce": Ablation(
        "Of two ranks that share the heads and the neurons, the second's part is not added.", 9,
        _always(wo_input=_half, w2_input=_half),
    ),
}  # fmt: skip


class Listing(dict[str, str]):
    """Names and what they do."""

    def __repr__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:<{width}}  {about}" for name, about in self.items())

    def _repr_html_(self) -> str:
        return _table([[_code(name), marked(about)] for name, about in self.items()])


def ablations(chapter: int | None = None) -> Listing:
    """What can be broken, all of it or that of one chapter, with a sentence for each."""
    found = Listing({name: a.about for name, a in ABLATIONS.items() if chapter in (None, a.chapter)})
    if not found:
        chapters = sorted({a.chapter for a in ABLATIONS.values()})
        raise ValueError(f"chapter is {shown(chapter)}; there is something to break in {', '.join(map(str, chapters))}")
    return found


def held_out(llama: Llama) -> list[list[int]]:
    """Ids of stories that the demo checkpoint was not trained on, each from BOS to EOS, as its report reads them.

    Raises ValueError for a model with another tokenizer: what it has not seen, its owner has to say.
    """
    ours = Tokenizer(demo_dir() / "tokenizer.model").sp_model.serialized_model_proto()
    if llama.tokenizer.sp_model.serialized_model_proto() != ours:
        raise ValueError(
            "the held-out stories are the demo checkpoint's, and this model has another tokenizer; "
            "pass texts=[...], a few that it was not trained on"
        )
    stories: list[str] = json.loads((demo_dir() / "held_out.json").read_text(encoding="utf-8"))["stories"]
    return [_ids(llama, story) for story in stories]


def _ids(llama: Llama, text: str) -> list[int]:
    return llama.tokenizer.encode(text, bos=True, eos=True)[: llama.model.args.max_seq_len]


@dataclass(frozen=True)
class Side:
    """One of the two models. perplexity: on held-out text, inf if the logits are not numbers. text: what it writes."""

    perplexity: float
    text: str


@dataclass(frozen=True, repr=False)
class Comparison:
    """The intact model and the broken one. kl: nats per token, intact || broken, mean over the held-out positions."""

    names: tuple[str, ...]
    intact: Side
    broken: Side
    kl: float
    prompt: str
    layers: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return " + ".join(self.names)

    @property
    def about(self) -> str:
        where = "" if self.layers is None else f" Only in layer {', '.join(map(str, self.layers))}."
        return " ".join(ABLATIONS[name].about for name in self.names) + where

    def __repr__(self) -> str:
        rows = [
            ["", "intact", self.name],
            ["held-out perplexity", _number(self.intact.perplexity), _number(self.broken.perplexity)],
            ["KL, nats per token", "", _number(self.kl)],
        ]
        texts = [("prompt", self.prompt), ("intact", self.intact.text), (self.name, self.broken.text)]
        paragraphs = [textwrap.fill(f"{who}: {' '.join(text.split())}", WIDTH) for who, text in texts]
        return "\n\n".join([textwrap.fill(f"{self.name}: {self.about}", WIDTH), _columns(rows), *paragraphs])

    def _repr_html_(self) -> str:
        rows = [
            ["", "<b>intact</b>", f"<b>{_code(self.name)}</b>"],
            ["held-out perplexity", _number(self.intact.perplexity), _number(self.broken.perplexity)],
            ["KL, nats per token", "", _number(self.kl)],
            [f"after <i>{_prose(self.prompt)}</i>", _prose(self.intact.text), _prose(self.broken.text)],
        ]
        return _table(rows, html.escape(self.about), widths=(20, 40, 40))


@dataclass(frozen=True, repr=False)
class Comparisons:
    """Several ablations of one model, under one measurement of it intact."""

    rows: tuple[Comparison, ...]

    def __getitem__(self, name: str) -> Comparison:
        for row in self.rows:
            if name == row.name:
                return row
        raise KeyError(name)

    def __repr__(self) -> str:
        rows = [["", "perplexity", "KL, nats", "text"]]
        rows += [[name, *numbers, textwrap.shorten(text, 60)] for name, numbers, text in self._cells()]
        return _columns(rows)

    def _repr_html_(self) -> str:
        rows = [["", "<b>held-out perplexity</b>", "<b>KL, nats per token</b>", "<b>text</b>"]]
        for name, numbers, text in self._cells():
            rows.append([_code(name), *numbers, _prose(textwrap.shorten(text, 120))])
        return _table(rows, f"after <i>{_prose(self.rows[0].prompt)}</i>")

    def _cells(self) -> Iterator[tuple[str, list[str], str]]:
        intact = self.rows[0].intact
        yield "intact", [_number(intact.perplexity), ""], intact.text
        for row in self.rows:
            yield row.name, [_number(row.broken.perplexity), _number(row.kl)], row.broken.text


def ablate(
    llama: Llama,
    *names: str,
    texts: Sequence[str] | Sequence[Sequence[int]] | None = None,
    prompt: str = PROMPT,
    layers: Collection[int] | None = None,
    seed: int = 1,
    temperature: float = 0.0,
    max_gen_len: int = 60,
    theta: float | None = None,
) -> Comparison:
    """The model without a piece, or with it done wrongly, beside the model as it is. The model itself stays intact.

    names: of `ABLATIONS`, several at once if you like. texts: what perplexity and KL are measured on; None takes a few
    of the demo checkpoint's held-out stories. layers: those that are broken; None: all, and the last norm. theta: for
    `wrong_theta`. Text is read in chunks, with a cache, and so is the prompt. Raises ValueError for names that are
    unknown or change the same thing, never because the broken model is broken.
    """
    return compare_table(
        llama, [names], texts=texts, prompt=prompt, layers=layers, seed=seed, temperature=temperature,
        max_gen_len=max_gen_len, theta=theta,
    ).rows[0]  # fmt: skip


def compare_table(
    llama: Llama,
    names: Sequence[str | Sequence[str]],
    *,
    texts: Sequence[str] | Sequence[Sequence[int]] | None = None,
    prompt: str = PROMPT,
    layers: Collection[int] | None = None,
    seed: int = 1,
    temperature: float = 0.0,
    max_gen_len: int = 60,
    theta: float | None = None,
) -> Comparisons:
    """`ablate` for each of `names` (a name, or several that are broken together), as one table."""
    if not isinstance(llama, Llama):
        raise ValueError(f"llama is {shown(llama)}; expected a Llama with its tokenizer, such as minillama.demo()")
    if isinstance(names, str):
        raise ValueError(f"names is {shown(names)}; expected a list of names, such as [{names!r}]")
    sets = [tuple(dict.fromkeys([n] if isinstance(n, str) else n)) for n in names]
    if not sets:
        raise ValueError("no names; expected at least one ablation, see ablations()")
    model = llama.model
    broken = [_parts(_setting(model, theta, sets), one) for one in sets]
    where = None if layers is None else _layers(model, layers)
    rows = held_out(llama)[:STORIES] if texts is None else _rows(llama, texts)
    start = llama._check_prompt(0, llama.tokenizer.encode(prompt, bos=True, eos=False))
    params = SamplingParams(temperature)
    whole_number("seed", seed, least=0, most=LARGEST_SEED)
    whole_number("max_gen_len", max_gen_len)

    models = [None, *broken]
    numbers = _measure(model, rows, models, where)
    written = [_write(llama, start, parts, where, params, seed, max_gen_len) for parts in models]
    sides = [Side(perplexity, text) for (perplexity, _), text in zip(numbers, written)]
    return Comparisons(
        tuple(
            Comparison(one, sides[0], side, kl, prompt, where)
            for one, side, (_, kl) in zip(sets, sides[1:], numbers[1:])
        )
    )


def _setting(model: Transformer, theta: float | None, sets: Sequence[Sequence[str]]) -> Setting:
    if theta is None:
        # Llama 3 was trained with 500000, Llama 2 with 10000: each is wrong for the other.
        return Setting(model, 10000.0 if model.args.rope_theta == 500000.0 else 500000.0)
    if not any("wrong_theta" in one for one in sets):
        raise ValueError(f"theta is {shown(theta)}, and only wrong_theta takes one; leave it out, or add that name")
    return Setting(model, real_number("theta", theta, 1e-30, 1e30, "a positive number"))


def _parts(setting: Setting, names: Sequence[str]) -> Replaced:
    """What `names` replace, taken together. Raises ValueError for names that are unknown or contradict each other."""
    if not names:
        raise ValueError("no name; expected at least one ablation, see ablations()")
    made: dict[str, Any] = {}
    by: dict[str, str] = {}
    for name in names:
        if name not in ABLATIONS:
            close = difflib.get_close_matches(str(name), ABLATIONS)
            hint = f"did you mean {' or '.join(close)}? All" if close else "all"
            raise ValueError(f"no ablation {shown(name)}; {hint} there are: {', '.join(ABLATIONS)}")
        for place, part in ABLATIONS[name].parts(setting).items():
            if place in made:
                raise ValueError(f"{by[place]} and {name} both change {PLACES[place]}; leave one of them out")
            made[place], by[place] = part, name
    return made


def _layers(model: Transformer, layers: Collection[int]) -> tuple[int, ...]:
    last = len(model.layers) - 1
    if isinstance(layers, (str, bytes)) or not isinstance(layers, Collection) or not layers:
        raise ValueError(f"layers is {shown(layers)}; expected a list of numbers from 0 to {last}")
    return tuple(sorted({whole_number("a layer", layer, least=0, most=last) for layer in layers}))


def _rows(llama: Llama, texts: Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise ValueError(f"texts is {shown(texts)}; expected a list of texts or of ids, one or more")
    given: Sequence[Any] = texts
    rows = [_ids(llama, x) if isinstance(x, str) else llama._check_prompt(i, x) for i, x in enumerate(given)]
    for i, row in enumerate(rows):
        if len(row) < 2:
            raise ValueError(
                f"text {i} has {len(row)} token; expected two or more: the second is foretold from the first"
            )
    return rows


def _chunks(n: int) -> Iterator[tuple[int, int]]:
    """Where the chunks of n tokens begin and end."""
    start = 0
    while start < n:
        end = min(n, start + (NEXT if start else FIRST))
        yield start, end
        start = end


@torch.no_grad()
def _measure(
    model: Transformer, rows: Sequence[Sequence[int]], models: Sequence[Replaced | None], layers: Collection[int] | None
) -> list[tuple[float, float]]:
    """Perplexity of each of `models` (None: intact) on `rows`, and KL of the first from it. They go in step: the logits
    of one chunk are all that is in memory."""
    tokens = padded(rows).to(model.device)  # (B, T)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    n = tokens.shape[1] - 1  # the last token foretells nothing
    caches = [KVCache.for_model(model, len(rows), n) for _ in models]
    nll, kl = [0.0] * len(models), [0.0] * len(models)
    for start, end in _chunks(n):
        targets = tokens[:, start + 1 : end + 1, None]  # (B, T, 1)
        real = torch.arange(start + 1, end + 1, device=model.device) < lengths[:, None]  # (B, T), not filler
        first: torch.Tensor | None = None
        for i, (parts, cache) in enumerate(zip(models, caches)):
            with _broken(model, parts, layers):
                logits = model(tokens[:, start:end], start, cache)  # (B, T, V)
            logprobs = logits[real].double().log_softmax(-1)  # (n, V)
            first = logprobs if first is None else first
            nll[i] -= float(logprobs.gather(-1, targets[real]).sum())
            kl[i] += float((first.exp() * (first - logprobs)).sum())
    count = sum(len(row) - 1 for row in rows)
    return [(_perplexity(a / count), b / count if math.isfinite(b) else math.inf) for a, b in zip(nll, kl)]


def _perplexity(nll: float) -> float:
    return math.exp(nll) if nll < 700 else math.inf  # NaN is not below 700


@torch.no_grad()
def _write(
    llama: Llama,
    prompt: Sequence[int],
    parts: Replaced | None,
    layers: Collection[int] | None,
    params: SamplingParams,
    seed: int,
    max_gen_len: int,
) -> str:
    """What the model writes after `prompt`. `Llama.generate` would take the prompt whole, and stop at broken logits."""
    model = llama.model
    room = min(max_gen_len, model.args.max_seq_len - len(prompt))
    cache = KVCache.for_model(model, 1, len(prompt) + room)
    sampler = Sampler(params, [prompt], max(room, 1), model.args.vocab_size, [seed], model.device)
    ids: list[int] = []
    end = ""
    with _broken(model, parts, layers):
        for start, stop in _chunks(len(prompt)):
            logits = model(torch.tensor([prompt[start:stop]], device=model.device), start, cache)[:, -1]  # (1, V)
        while len(ids) < room:
            token = int(sampler(logits))
            if token < 0:
                end = f" {NOT_NUMBERS}"
                break
            if token == llama.tokenizer.eos_id:
                break
            ids.append(token)
            at = len(prompt) + len(ids) - 1
            if len(ids) < room:
                logits = model(torch.tensor([[token]], device=model.device), at, cache)[:, -1]
    return "".join(llama.tokenizer.decode_stream(ids, continuing=True)) + end


@contextlib.contextmanager
def _broken(model: Transformer, parts: Replaced | None, layers: Collection[int] | None) -> Iterator[None]:
    """`model` with `parts` for as long as the block lasts."""
    if parts is None:
        yield
        return
    chosen = parts

    def stack(
        tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, window: Any = None
    ) -> torch.Tensor:
        filled = _slots(model, chosen, positions)
        return slots.run(model, filled, tokens, positions, mask, window, layers)

    before = model.__dict__.get("stack")
    model.__dict__["stack"] = stack
    try:
        yield
    finally:
        if before is None:
            model.__dict__.pop("stack", None)
        else:
            model.__dict__["stack"] = before


def _slots(model: Transformer, parts: Replaced, positions: torch.Tensor) -> dict[str, Callable[..., Any]]:
    """`parts` as the slots of `slots.run`, for a pass at `positions`."""
    made: dict[str, Callable[..., Any]] = {}
    has = parts.keys()
    if "norm" in has:
        made["rms_norm"] = parts["norm"]
    turn = parts.get("turn", _turn)
    table = parts.get("angles", model.freqs_cis).to(positions.device)  # (max_seq_len, h/2)
    freqs_cis = table[positions]  # (T, h/2)
    if has & {"turn", "angles"}:
        made["rotate"] = lambda x, _: turn(x, freqs_cis)
    for place in has & {"turn_keys", "turn_values"}:
        made[place] = partial(_turned, parts[place], turn, freqs_cis, table)
    if has & {"looks", "scale", "heads"}:
        made["attend"] = partial(_attend, parts)
    if "remember" in has:
        made["remember"] = parts["remember"]
    if "neurons" in has:
        made["swiglu"] = lambda x, w1, w2, w3: w2(parts["neurons"](x, w1, w3))
    if "wo_input" in has:
        made["join_heads"] = lambda wo, x: wo(parts["wo_input"](x))
    if "w2_input" in has:
        made["join_neurons"] = lambda w2, x: w2(parts["w2_input"](x))
    if has & {"after_sum", "attention_stream", "ffn_stream", "attention", "ffn"}:
        made["block"] = lambda *args: _block(parts, *args)  # a partial of a partial would be one, with `parts` as x
    return made


def _turned(part: Any, turn: Any, freqs_cis: torch.Tensor, table: torch.Tensor, x: torch.Tensor, _: Any) -> Any:
    return part(turn, x, freqs_cis, table)


def _attend(
    parts: Replaced, xq: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    if "heads" in parts:
        keys, values = (parts["heads"](x, xq.shape[2]) for x in (keys, values))
    if "looks" in parts:
        mask = parts["looks"](mask)
    out = F.scaled_dot_product_attention(
        xq.transpose(1, 2), keys, values, attn_mask=mask, scale=parts.get("scale"), enable_gqa=True
    )
    return out.transpose(1, 2)  # (B, H, T, h) -> (B, T, H, h)


def _block(parts: Replaced, x: torch.Tensor, attention: Any, feed_forward: Any, first: Any, second: Any) -> Any:
    for piece, norm, name in ((attention, first, "attention"), (feed_forward, second, "ffn")):
        if not parts.get(name, True):
            continue
        after = parts.get("after_sum", False)
        answer = piece(x if after else norm(x))
        if parts.get(f"{name}_stream", True):
            answer = x + answer
        x = norm(answer) if after else answer
    return x


def _number(x: float) -> str:
    if not math.isfinite(x):
        return str(x)
    return f"{x:,.0f}" if x >= 1000 else f"{x:#.4g}"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows)


def _code(text: str) -> str:
    return f'<code style="color:inherit;background:none">{html.escape(text)}</code>'


def _prose(text: str) -> str:
    return "<br>".join(html.escape(line) for line in text.splitlines() if line.strip())


def _table(rows: Sequence[Sequence[str]], above: str = "", widths: Sequence[int] = ()) -> str:
    """Cells that are HTML already. No colour of its own: JupyterLab's light and dark themes bring theirs."""
    cell = "text-align:left;vertical-align:top;white-space:normal;padding:4px 8px;border:1px solid;background:none"
    width = [f";width:{w}%" for w in widths] or [""] * max(map(len, rows))
    lines = ["".join(f'<td style="{cell}{w}">{text}</td>' for text, w in zip(row, width)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    head = f'<div style="color:inherit;margin-bottom:4px">{above}</div>' if above else ""
    return f'{head}<table style="color:inherit;border-collapse:collapse"><tbody>{body}</tbody></table>'
