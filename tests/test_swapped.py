"""`teach.swapped` and `Llama.build(parts=...)`: a learner's pieces inside trained models, and everything back in place.

The right pieces here are other code than the package's and the worked answers'. fp32 tolerance: 1e-5 of the largest
logit, as in test_parity.py. bf16 and quantized models: the bf16 roundings of one layer may fall the other way, and a
model that is broken is off by far more; see `close`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import nn
from toys import make_checkpoint

import minillama
from minillama import KVCache, Llama, Transformer, launch, packed
from minillama import attention as attention_module
from minillama import norm as norm_module
from minillama.packed import PackedLinear
from minillama.quantize import QuantizedLinear
from minillama.storyteller import demo_dir
from minillama.teach import slots
from minillama.teach.slots import SLOTS, PartError
from minillama.teach.swap import BY_NAME, MODULES, SAME_AS, swapped

Function = Callable[..., Any]
PROMPTS = ["Once upon a time", "The dog", "Lily wanted to play with her red ball and"]
ROWS = [[1, 5, 9, 40, 77, 300, 12, 8], [1, 5, 200, 31]]
PACK = pytest.mark.skipif(not packed.has_kernel(torch.zeros(1)), reason="oneDNN's packed products are not here")


# --- Right pieces, written another way -------------------------------------------------------------------------------


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return (wide / (wide.square().sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt()).to(x.dtype) * weight


def rotation_table(dim: int, end: int, theta: float) -> torch.Tensor:
    angles = [[m * theta ** (-2 * i / dim) for i in range(dim // 2)] for m in range(end)]
    wide = torch.tensor(angles, dtype=torch.float64)
    return torch.complex(wide.cos(), wide.sin()).to(torch.complex64)


def rotate(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    cos, sin = freqs_cis.real.unsqueeze(-2), freqs_cis.imag.unsqueeze(-2)
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = odd * cos + even * sin
    return out.to(x.dtype)


def may_look(positions: torch.Tensor, end: int) -> torch.Tensor:
    return ~(positions.unsqueeze(-1) < torch.arange(end, device=positions.device))


def attend(xq: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    B, T, H, h = xq.shape
    grouped = xq.float().reshape(B, T, keys.shape[1], -1, h)  # (B, T, K, H/K, h)
    scores = torch.einsum("btkgh,bksh->bkgts", grouped, keys.float()) * h**-0.5
    weights = torch.where(mask.unsqueeze(2), scores, -torch.inf).softmax(-1)
    return torch.einsum("bkgts,bksh->btkgh", weights, values.float()).reshape(B, T, H, h).to(xq.dtype)


def remember(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    for b in range(len(keys)):
        for t, place in enumerate((positions if positions.dim() == 1 else positions[b]).tolist()):
            keys[b, :, place], values[b, :, place] = xk[b, t], xv[b, t]
    return keys, values


def swiglu(x: torch.Tensor, w1: Function, w2: Function, w3: Function) -> torch.Tensor:
    gate = w1(x)
    return w2(gate * gate.sigmoid() * w3(x))


def block(
    x: torch.Tensor, attention: Function, feed_forward: Function, attention_norm: Function, ffn_norm: Function
) -> torch.Tensor:
    for norm, layer in ((attention_norm, attention), (ffn_norm, feed_forward)):
        x = layer(norm(x)) + x
    return x


def stack(tokens: torch.Tensor, embed: Function, blocks: list[Function], norm: Function) -> torch.Tensor:
    return norm(functools.reduce(lambda h, layer: layer(h), blocks, embed(tokens)))


RIGHT: dict[str, Function] = {f.__name__: f for f in (
    rms_norm, rotation_table, rotate, may_look, attend, remember, swiglu, block, stack,
)}  # fmt: skip


class MyNorm(nn.Module):
    def __init__(self, width: int, small: float):
        super().__init__()
        self.small = small
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return rms_norm(vectors, self.weight, self.small)


class MyFeedForward(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.w3 = nn.Linear(width, hidden, bias=False)  # in another order than the package's
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swiglu(x, self.w1, self.w2, self.w3)


class MyAttention(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.size = config.dim // config.n_heads
        self.wq = nn.Linear(config.dim, config.dim, bias=False)
        self.wk = nn.Linear(config.dim, config.n_kv_heads * self.size, bias=False)
        self.wv = nn.Linear(config.dim, config.n_kv_heads * self.size, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, h: torch.Tensor, where: torch.Tensor, turn: torch.Tensor, look: Any, past: Any) -> torch.Tensor:
        B, T, _ = h.shape
        q, k, v = (w(h).view(B, T, -1, self.size) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, turn), rotate(k, turn)
        keys, values = (k.transpose(1, 2), v.transpose(1, 2)) if past is None else past.update(k, v, where)
        if look is None:
            look = may_look(where, keys.shape[2]).view(-1, 1, T, keys.shape[2])
        return self.wo(attend(q, keys, values, look).flatten(2))


class MyBlock(nn.Module):
    def __init__(self, args: Any):
        super().__init__()
        self.attention = MyAttention(args)
        self.feed_forward = MyFeedForward(args.dim, args.hidden_dim)
        self.attention_norm = MyNorm(args.dim, args.norm_eps)
        self.ffn_norm = MyNorm(args.dim, args.norm_eps)

    def forward(self, x: torch.Tensor, p: Any, f: Any, m: Any, c: Any = None) -> torch.Tensor:
        return block(x, lambda h: self.attention(h, p, f, m, c), self.feed_forward, self.attention_norm, self.ffn_norm)


class MyTransformer(nn.Module):
    def __init__(self, args: Any):
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList(MyBlock(args) for _ in range(args.n_layers))
        self.norm = MyNorm(args.dim, args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        self.freqs_cis = rotation_table(args.dim // args.n_heads, 4, args.rope_theta)

    def stack(self, tokens: Any, positions: Any, mask: Any, window: Any = None) -> torch.Tensor:
        def layer(i: int) -> Function:
            return lambda h: self.layers[i](h, positions, turns, mask, None if window is None else window[i])

        turns = self.freqs_cis[positions]
        return stack(tokens, self.tok_embeddings, [layer(i) for i in range(len(self.layers))], self.norm)


class MyLayerCache:
    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        self.keys, self.values = keys, values

    def window(self, rows: int, end: int) -> MyLayerCache:
        return MyLayerCache(self.keys[:rows, :, :end], self.values[:rows, :, :end])

    def update(self, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor) -> Any:
        return remember(self.keys, self.values, xk.detach(), xv.detach(), positions)


class MyKVCache(KVCache):
    def window(self, rows: int, end: int) -> Any:
        return [MyLayerCache(layer.keys[:rows, :, :end], layer.values[:rows, :, :end]) for layer in self.layers]


def apply_rotary_emb(q: torch.Tensor, k: torch.Tensor, turn: torch.Tensor) -> list[torch.Tensor]:
    return [rotate(q, turn), rotate(k, turn)]


def causal_mask(positions: torch.Tensor, end: int) -> torch.Tensor:
    looks = may_look(positions, end)
    return looks.view(-1, 1, *looks.shape[-2:])


CLASSES: dict[str, Any] = {
    "RMSNorm": MyNorm, "FeedForward": MyFeedForward, "Attention": MyAttention, "TransformerBlock": MyBlock,
    "Transformer": MyTransformer, "LayerCache": MyLayerCache, "KVCache": MyKVCache,
}  # fmt: skip
OTHERS: dict[str, Function] = {
    "apply_rotary_emb": apply_rotary_emb, "precompute_freqs_cis": rotation_table, "causal_mask": may_look,
}  # fmt: skip
EACH: dict[str, dict[str, Any]] = {name: {name: piece} for name, piece in (RIGHT | CLASSES | OTHERS).items()}
EACH |= {
    "all slots": RIGHT,
    "all classes": CLASSES,
    "classes and slots": {"RMSNorm": MyNorm, "FeedForward": MyFeedForward, "attend": attend, "rotate": rotate},
}
every_piece = pytest.mark.parametrize("pieces", EACH.values(), ids=EACH)


# --- Wrong ones, in shape and dtype right ----------------------------------------------------------------------------


class NoWeight(MyNorm):
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return rms_norm(vectors, torch.ones_like(self.weight), self.small)


class NoGate(MyFeedForward):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(self.w1(x))


class NoTurn(MyAttention):
    def forward(self, h: torch.Tensor, where: Any, turn: torch.Tensor, look: Any, past: Any) -> torch.Tensor:
        return super().forward(h, where, torch.ones_like(turn), look, past)


class NoSkip(MyBlock):
    def forward(self, x: torch.Tensor, p: Any, f: Any, m: Any, c: Any = None) -> torch.Tensor:
        return super().forward(x, p, f, m, c) - x


class OneLayerLess(MyTransformer):
    def stack(self, tokens: Any, positions: Any, mask: Any, window: Any = None) -> torch.Tensor:
        turns, h = self.freqs_cis[positions], self.tok_embeddings(tokens)
        for i, layer in enumerate(list(self.layers)[:-1]):
            h = layer(h, positions, turns, mask, None if window is None else window[i])
        return self.norm(h)


class Forgetful(MyLayerCache):
    def window(self, rows: int, end: int) -> Forgetful:
        return Forgetful(self.keys[:rows, :, :end], self.values[:rows, :, :end])

    def update(self, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor) -> Any:
        return super().update(torch.zeros_like(xk), xv, positions)


class ForgetfulCache(KVCache):
    def window(self, rows: int, end: int) -> Any:
        return [Forgetful(layer.keys[:rows, :, :end], layer.values[:rows, :, :end]) for layer in self.layers]


WRONG: dict[str, Any] = {
    "rms_norm": lambda x, weight, eps: rms_norm(x, torch.ones_like(weight), eps),
    "rotation_table": lambda dim, end, theta: rotation_table(dim, end, 10.0),
    "rotate": lambda x, freqs_cis: rotate(x, freqs_cis * freqs_cis),
    "may_look": lambda positions, end: torch.ones(*positions.shape, end, dtype=torch.bool),
    "attend": lambda xq, keys, values, mask: attend(xq / 8, keys, values, mask),
    "remember": lambda keys, values, xk, xv, positions: remember(keys, values, torch.zeros_like(xk), xv, positions),
    "swiglu": lambda x, w1, w2, w3: w2(w1(x)),
    "block": lambda x, attention, feed_forward, first, second: x + attention(first(x)),
    "stack": lambda tokens, embed, blocks, norm: stack(tokens, embed, blocks[:-1], norm),
    "RMSNorm": NoWeight,
    "FeedForward": NoGate,
    "Attention": NoTurn,
    "TransformerBlock": NoSkip,
    "Transformer": OneLayerLess,
    "LayerCache": Forgetful,
    "KVCache": ForgetfulCache,
    "apply_rotary_emb": lambda q, k, turn: (q, k),
    "precompute_freqs_cis": lambda dim, end, theta: rotation_table(dim, end, 10.0),
    "causal_mask": lambda positions, end: torch.ones(*positions.shape, end, dtype=torch.bool),
}


# --- Looking on ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> Llama:
    return minillama.demo(device="cpu")


@pytest.fixture(scope="module")
def told(llama: Llama) -> list[str]:
    return tell(llama)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("small") / "ckpt", dim=64)


def tell(llama: Llama, prompts: list[str] = PROMPTS) -> list[str]:
    """Greedy answers to prompts of different lengths, in one batch: prefills, steps and rows at different positions."""
    return [p["generation"] for p in llama.text_completion(prompts, temperature=0, max_gen_len=20)]


@torch.no_grad()
def logits(model: Transformer, rows: list[list[int]] = ROWS) -> torch.Tensor:
    """Stateless, in chunks through a cache, and a step with rows apart, one after another: (N, V)."""
    size = min(map(len, rows))
    tokens = torch.tensor([row[:size] for row in rows])
    cache = KVCache.for_model(model, len(rows), size + 1)
    steps = [model(tokens), model(tokens[:, :-1], 0, cache), model(tokens[:, -1:], size - 1, cache)]
    steps.append(model(tokens[:, :1], torch.tensor([size, size - 2]), cache))
    return torch.cat([step.flatten(0, 1) for step in steps])


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


def state() -> dict[str, Any]:
    """Everything that a swap may change, for a comparison by identity."""
    found: dict[str, Any] = {"now_in": slots.now_in, "now_out": slots.now_out}
    for ours, *_ in MODULES.values():
        found |= {f"{ours.__name__}.{name}": value for name, value in vars(ours).items()}
    for piece in (MyLayerCache, MyKVCache, Forgetful):
        found |= {f"{piece.__name__}.{name}": value for name, value in vars(piece).items()}
    for key, module in sys.modules.items():
        if key.partition(".")[0] == "minillama":
            found |= {f"{key}.{name}": vars(module)[name] for name in BY_NAME if name in vars(module)}
    return found


@pytest.fixture(autouse=True)
def all_is_restored() -> Iterator[None]:
    before = state()
    yield
    after = state()
    assert before.keys() <= after.keys()
    changed = [name for name in before if before[name] is not after[name]]
    assert changed == []
    for name in after.keys() - before.keys():  # of a module that was imported meanwhile
        assert after[name] is BY_NAME[name.rpartition(".")[2]], name


# --- It runs, and makes no difference where it should not ------------------------------------------------------------


def test_every_name_is_tried_here() -> None:
    assert {*RIGHT, *CLASSES, *OTHERS} == {*SLOTS, *MODULES, *SAME_AS, *BY_NAME} == WRONG.keys()


@every_piece
def test_a_right_piece_changes_neither_logits_nor_text(llama: Llama, told: list[str], pieces: dict[str, Any]) -> None:
    ours = logits(llama.model)
    with swapped(**pieces):
        theirs = logits(llama.model)
        text = tell(llama)
    assert close(theirs, ours)
    assert text == told


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_piece_changes_the_text_until_the_block_ends(llama: Llama, told: list[str], name: str) -> None:
    with swapped(**{name: WRONG[name]}):
        assert tell(llama) != told
    assert tell(llama) == told


def test_a_stream_runs_on_the_pieces(llama: Llama) -> None:
    def streamed() -> str:
        return "".join(piece.text for piece in llama.stream_text(PROMPTS[0], temperature=0, max_gen_len=12))

    ours = streamed()
    with swapped(**RIGHT):
        assert streamed() == ours
    with swapped(swiglu=WRONG["swiglu"]):
        assert streamed() != ours


def test_a_model_that_is_built_inside_takes_part_and_is_the_package_s_afterwards(told: list[str]) -> None:
    with swapped(RMSNorm=NoWeight, rotate=rotate):
        made = minillama.demo(device="cpu")
        assert tell(made) != told
    assert tell(made) == told


def test_two_models_each_keep_their_weights(llama: Llama, told: list[str], small: Path) -> None:
    other = Llama.build(small, device="cpu")
    ours = logits(other.model)
    for pieces in (RIGHT, CLASSES):
        with swapped(**pieces):
            assert tell(llama) == told
            assert close(logits(other.model), ours)
            assert tell(llama) == told


def test_gradients_go_through_the_pieces() -> None:
    def gradient() -> torch.Tensor:
        model = Transformer.from_checkpoint(demo_dir())
        model(torch.tensor([ROWS[0]])).logsumexp(-1).sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    ours = gradient()
    for pieces in (RIGHT, CLASSES):
        with swapped(**pieces):
            assert close(gradient(), ours, 1e-4)  # sums over all tokens, in another order


def test_weights_that_are_changed_inside_the_block_are_seen() -> None:
    model = Transformer.from_checkpoint(demo_dir())
    with swapped(**CLASSES):
        before = logits(model)
        for module in model.modules():
            if isinstance(module, minillama.norm.RMSNorm):
                module.weight = nn.Parameter(module.weight.detach() * 1.5)  # another Parameter in its place
        inside = logits(model)
    assert close(inside, logits(model))
    assert not close(inside, before, 1e-2)


# --- Blocks in blocks, and models built on parts ---------------------------------------------------------------------


def test_an_inner_block_adds_to_the_outer(llama: Llama, told: list[str]) -> None:
    calls: list[str] = []

    def counted(name: str) -> Function:
        def call(*args: Any) -> Any:
            calls.append(name)
            return RIGHT[name](*args)

        call.__signature__ = __import__("inspect").signature(RIGHT[name])
        return call

    with swapped(rms_norm=counted("rms_norm")):
        with swapped(swiglu=counted("swiglu"), Attention=MyAttention):
            assert tell(llama) == told
            assert {*calls} == {"rms_norm", "swiglu"}
        calls.clear()
        assert tell(llama) == told
        assert {*calls} == {"rms_norm"}


@pytest.mark.parametrize("name", WRONG)
def test_the_inner_piece_wins_over_the_outer_of_its_name(llama: Llama, told: list[str], name: str) -> None:
    with swapped(**{name: WRONG[name]}):
        with swapped(**EACH[name]):
            assert tell(llama) == told
        assert tell(llama) != told


def test_an_inner_class_takes_the_place_of_an_outer_function(llama: Llama, told: list[str]) -> None:
    with swapped(rms_norm=WRONG["rms_norm"], rotate=rotate):
        with swapped(RMSNorm=MyNorm):
            assert tell(llama) == told
        with swapped(Transformer=MyTransformer):
            assert tell(llama) == told
        assert tell(llama) != told


@pytest.mark.parametrize(
    "outer, inner",
    [
        ({"RMSNorm": MyNorm}, {"rms_norm": rms_norm}),
        ({"Transformer": MyTransformer}, {"stack": stack}),
        ({"TransformerBlock": MyBlock}, {"causal_mask": may_look}),
        ({"LayerCache": MyLayerCache}, {"remember": remember}),
    ],
)  # fmt: skip
def test_two_pieces_for_the_same_work_are_refused(outer: dict[str, Any], inner: dict[str, Any]) -> None:
    name = next(iter(inner))
    with pytest.raises(PartError, match=SAME_AS.get(name, name)), swapped(**outer, **inner):
        pass
    with pytest.raises(PartError, match=SAME_AS.get(name, name)), swapped(**outer), swapped(**inner):
        pass


def test_a_slot_given_twice_is_refused() -> None:
    with pytest.raises(PartError, match="causal_mask is may_look by another name"):
        with swapped(may_look=may_look, causal_mask=may_look):
            pass


@pytest.mark.parametrize("name", WRONG)
def test_a_swap_goes_before_what_a_model_was_built_with(told: list[str], name: str) -> None:
    made = minillama.demo(device="cpu", parts=RIGHT)
    assert tell(made) == told
    with swapped(**{name: WRONG[name]}):
        assert tell(made) != told
    assert tell(made) == told


def test_parts_belong_to_one_model(llama: Llama, told: list[str]) -> None:
    made = minillama.demo(device="cpu", parts={"swiglu": WRONG["swiglu"]})
    assert tell(llama) == told
    assert tell(made) != told
    slots.uninstall(made.model)
    assert tell(made) == told


# --- Everything back, also after an exception ------------------------------------------------------------------------


@every_piece
def test_everything_is_back_after_an_exception(llama: Llama, told: list[str], pieces: dict[str, Any]) -> None:
    before = state()
    with pytest.raises(KeyError, match="the learner's own"), swapped(**pieces):
        assert any(before[name] is not value for name, value in state().items() if name in before)
        raise KeyError("the learner's own")
    assert all(before[name] is value for name, value in state().items())
    assert tell(llama) == told


def test_nothing_is_changed_where_one_piece_of_many_does_not_fit() -> None:
    before = state()
    for misfit in ({"rotate": 5}, {"nothing": rotate}, {"Attention": rotate}, {"KVCache": dict}):
        with pytest.raises(PartError), swapped(rms_norm=rms_norm, RMSNorm=MyNorm, **misfit):
            pass
        with pytest.raises(PartError), swapped(LayerCache=MyLayerCache, swiglu=swiglu, **misfit):
            pass
        assert all(before[name] is value for name, value in state().items())


def test_a_module_that_is_imported_inside_the_block_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    late = type(sys)("minillama.late")
    monkeypatch.setitem(sys.modules, "minillama.late", late)
    with swapped(KVCache=MyKVCache):
        late.KVCache = minillama.kv_cache.KVCache
        assert late.KVCache is MyKVCache
    assert late.KVCache is KVCache


# --- Other models: bf16, packed, quantized, meta, ranks --------------------------------------------------------------


@pytest.mark.parametrize("pieces", [RIGHT, CLASSES], ids=["slots", "classes"])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8", "int4", "packed"])
def test_other_models_run_on_the_pieces(
    small: Path, monkeypatch: pytest.MonkeyPatch, kind: str, pieces: dict[str, Any]
) -> None:
    if kind in ("int8", "int4") and not torch.backends.mkldnn.is_available():
        pytest.skip("quantized products are oneDNN's")
    if kind == "packed":
        if not packed.has_kernel(torch.zeros(1)):
            pytest.skip("oneDNN's packed products are not here")
        monkeypatch.setattr(packed, "WORTH_PACKING", 0)
    how: dict[str, Any] = {"quantize": kind} if kind.startswith("int") else {}
    made = Llama.build(small, device="cpu", dtype=kind if "float" in kind else None, **how)
    kinds = {type(module) for module in made.model.modules()}
    assert (QuantizedLinear in kinds) == kind.startswith("int") and (PackedLinear in kinds) == (kind == "packed")
    ours = logits(made.model)
    with swapped(**pieces):
        theirs = logits(made.model)
    # Half precision rounds by 2^-8 (bf16) or 2^-11 in each of a few layers; int8 keeps 127 steps of its input.
    assert close(theirs, ours, {"packed": 1e-5, "float16": 2**-8}.get(kind, 2**-4))
    with swapped(swiglu=WRONG["swiglu"]):
        assert not close(logits(made.model), ours, 2**-3)


@pytest.mark.parametrize("pieces", [{k: v for k, v in RIGHT.items() if k != "remember"}, CLASSES])
def test_a_model_without_numbers_gives_shapes(tiny_model: Callable[..., Transformer], pieces: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = Transformer(tiny_model().args)
    tokens = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    with swapped(**{k: v for k, v in pieces.items() if "Cache" not in k}):
        assert model(tokens).shape == (2, 5, model.args.vocab_size)


@torch.no_grad()
def swapped_in_ranks(folder: str) -> dict[str, Any]:
    """What one rank's logits are: the package's, with all slots, with classes, and with a wrong piece."""
    launch.start(device="cpu")
    found = {}
    model = Transformer.from_checkpoint(folder)
    found["ours"] = logits(model)
    classes = {k: v for k, v in CLASSES.items() if k != "Transformer"}
    wrong = {"rotate": lambda x, freqs_cis: x}
    for name, pieces in {"slots": RIGHT, "classes": CLASSES, "apart": classes, "wrong": wrong}.items():
        with swapped(**pieces):
            found[name] = logits(model)
    found["after"] = logits(model)
    found["built"] = logits(Llama.build(folder, device="cpu", parts=RIGHT).model)
    return found


def test_two_ranks_run_on_the_pieces(small: Path) -> None:
    one = logits(Transformer.from_checkpoint(small))
    for found in run_ranks(2, swapped_in_ranks, str(small)):
        for name in ("ours", "slots", "classes", "apart", "after", "built"):
            assert close(found[name], one), name
        assert not close(found["wrong"], one, 1e-2)


# --- What a learner is told ------------------------------------------------------------------------------------------


def broken_inside(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    normed = x / x.pow(2).mean(-1)  # this line
    return normed * weight


def calls_a_helper(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return helper(x) * weight


def helper(x: torch.Tensor) -> torch.Tensor:
    return x["mean",]  # and this


def recursive(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return recursive(x, weight, eps)


async def later(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x


def one_by_one(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Iterator[torch.Tensor]:
    yield x


def in_place(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x *= (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return x * weight


def documented(x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Only this."""


INSIDE: dict[str, tuple[str, Any, str]] = {
    "returns nothing": ("rms_norm", documented, r"your rms_norm returned nothing: is there a `return`\?"),
    "returns dots": ("swiglu", lambda x, w1, w2, w3: ..., "returned nothing"),
    "shape": ("rms_norm", lambda x, w, e: x[..., :-1], r"shape \(1, 5, 191\); expected \(1, 5, 192\)"),
    "axes": (
        "attend", lambda q, k, v, m: q.transpose(1, 2), r"shape \(1, 8, 5, 24\).*the axes are in another order",
    ),
    "dtype": ("rms_norm", lambda x, w, e: x.double(), r"returned torch.float64; expected torch.float32"),
    "numpy": ("rms_norm", lambda x, w, e: np.ones(tuple(x.shape)), "returned ndarray; expected a tensor"),
    "float": ("rms_norm", lambda x, w, e: 1.0, "returned float; expected a tensor"),
    "one of two": ("remember", lambda k, v, xk, xv, p: k, "returned 1 things; expected 2"),
    "whole mask": ("may_look", lambda p, end: torch.ones(end, end).bool().tril()[None], "expected"),
    "mask of numbers": ("may_look", lambda p, end: torch.zeros(*p.shape, end), "torch.float32; expected torch.bool"),
    "table": ("rotation_table", lambda d, e, t: torch.zeros(e, d // 2), "torch.float32; expected torch.complex64"),
    "stack of nothing": ("stack", lambda tokens, embed, blocks, norm: None, "your stack returned nothing"),
    "stack that drops": ("stack", lambda t, embed, blocks, norm: embed(t)[:, -1], "your stack returned the shape"),
    "raises": ("rms_norm", broken_inside, r"your rms_norm stopped with RuntimeError: .*`normed = x / x.pow\(2\).mean"),
    "in a helper": ("rms_norm", calls_a_helper, r"your rms_norm stopped with .*at your line `return x\[.mean"),
    "partial": ("rms_norm", functools.partial(broken_inside), r"your line `normed = "),
    "no end": ("rms_norm", recursive, r"RecursionError: .*at your line `return recursive"),
    "async": ("rms_norm", later, "returned coroutine; expected a tensor"),
    "generator": ("rms_norm", one_by_one, "returned generator; expected a tensor"),
    "in place": ("rms_norm", in_place, "your rms_norm changes `x`, which its owner still needs"),
    "in a block": (
        "block", lambda x, a, f, n, m: x.add_(a(n(x))), "your block changes `x`, which its owner still needs",
    ),
    "rotary": ("apply_rotary_emb", lambda q, k, f: q, "your apply_rotary_emb returned 1 things; expected 2"),
    "rotary stops": ("apply_rotary_emb", lambda q, k, f: q * f, "your apply_rotary_emb stopped with RuntimeError"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("name, piece, says", INSIDE.values(), ids=INSIDE)
def test_what_goes_wrong_inside_is_said_in_the_learner_s_terms(llama: Llama, name: str, piece: Any, says: str) -> None:
    with pytest.raises(PartError, match=f"(?s){says}"), swapped(**{name: piece}):
        llama.text_completion(PROMPTS[:1], temperature=0, max_gen_len=2)
        logits(llama.model)


def test_a_trained_weight_that_was_written_to_is_said_to_be_so() -> None:
    def scales(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight.mul_(2), eps)

    own = minillama.demo(device="cpu")  # not the one of the other tests
    with pytest.raises(PartError, match="changes `weight`.*load the model again"), swapped(rms_norm=scales):
        tell(own)


def test_an_inner_part_is_blamed_and_not_the_one_that_calls_it(llama: Llama) -> None:
    with pytest.raises(PartError, match="^your rms_norm returned nothing"):
        with swapped(block=block, rms_norm=documented, stack=stack):
            tell(llama)
    with pytest.raises(PartError, match="^your RMSNorm stopped"), swapped(RMSNorm=class_that_stops(), block=block):
        tell(llama)


def class_that_stops() -> type[nn.Module]:
    class Stops(MyNorm):
        def forward(self, vectors: torch.Tensor) -> torch.Tensor:
            return vectors.no_such_method()

    return Stops


class ReturnsNothing(MyNorm):
    def forward(self, vectors: torch.Tensor) -> None:
        rms_norm(vectors, self.weight, self.small)


class TakesNoEps(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Renamed(MyNorm):
    def __init__(self, dim: int, eps: float):
        super().__init__(dim, eps)
        self.g = self.weight
        del self.weight


class WithBias(MyNorm):
    def __init__(self, dim: int, eps: float):
        super().__init__(dim, eps)
        self.bias = nn.Parameter(torch.zeros(dim))


class WithTable(MyNorm):
    def __init__(self, dim: int, eps: float):
        super().__init__(dim, eps)
        self.table = torch.ones(dim)


class WithBuffer(MyNorm):
    def __init__(self, dim: int, eps: float):
        super().__init__(dim, eps)
        self.register_buffer("scale", torch.ones(dim))


class GateOnly(MyFeedForward):
    def __init__(self, width: int, hidden: int):
        super().__init__(width, hidden)
        del self.w3


class Widens(MyFeedForward):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w1(x)


class HalfCache(MyLayerCache):
    def window(self, rows: int, end: int) -> HalfCache:
        return HalfCache(self.keys[:rows, :, :end], self.values[:rows, :, :end])

    def update(self, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor) -> Any:
        return xk, xv


AS_CLASSES: dict[str, tuple[str, Any, str]] = {
    "returns nothing": ("RMSNorm", ReturnsNothing, "your RMSNorm returned nothing"),
    "stops": (
        "RMSNorm",
        class_that_stops(),
        r"your RMSNorm stopped with AttributeError.*`return vectors.no_such_method",
    ),
    "cannot be made": ("RMSNorm", TakesNoEps, r"RMSNorm\(192, 1e-05\) could not be made: TypeError"),
    "other name": ("RMSNorm", Renamed, "it lacks weight; nothing was trained for g"),
    "extra": ("RMSNorm", WithBias, "nothing was trained for bias"),
    "table": ("RMSNorm", WithTable, "computes table when it is made"),
    "buffer": ("RMSNorm", WithBuffer, "computes scale when it is made"),
    "less": ("FeedForward", GateOnly, "has the submodules w1, w2.*it lacks w3"),
    "width": ("FeedForward", Widens, r"your FeedForward returned the shape .*expected \(1, 5, 192\)"),
    "cache": ("LayerCache", HalfCache, "your LayerCache.update returned the shape"),
}


@pytest.mark.parametrize("name, piece, says", AS_CLASSES.values(), ids=AS_CLASSES)
def test_a_class_that_does_not_fit_is_told_why(llama: Llama, name: str, piece: Any, says: str) -> None:
    with pytest.raises(PartError, match=f"(?s){says}"), swapped(**{name: piece}):
        llama.text_completion(PROMPTS[:1], temperature=0, max_gen_len=2)


class NoForward(nn.Module):
    pass


class TwoInputs(MyNorm):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x


class NoCache(MyAttention):
    def forward(self, h: torch.Tensor, where: Any, turn: Any, look: Any) -> torch.Tensor:
        return h


AT_ONCE: dict[str, tuple[str, Any, str]] = {
    "arguments": ("rms_norm", lambda x, weight: x, r"calls rms_norm\(x, weight, eps\), and yours is .*\(x, weight\)"),
    "too many": ("rotate", lambda x, f, dim: x, r"take those 2 arguments"),
    "by name only": ("rotate", lambda x, *, freqs_cis: x, r"take those 2 arguments"),
    "no function": ("swiglu", 5, "swiglu is 5; expected a function swiglu"),
    "nothing": ("swiglu", None, "swiglu is None; expected a function swiglu"),
    "class for function": ("rms_norm", MyNorm, r"yours is the class MyNorm; .*swapped\(RMSNorm=...\)"),
    "function for class": ("RMSNorm", rms_norm, r"RMSNorm is a class.*use swapped\(rms_norm=...\)"),
    "object for class": ("Attention", nn.Linear(2, 2), "Attention is a class"),
    "no module": ("FeedForward", dict, "expected a class made from nn.Module"),
    "no forward": ("RMSNorm", NoForward, "your RMSNorm has no method `forward`"),
    "forward's arguments": ("RMSNorm", TwoInputs, r"the model calls RMSNorm.forward\(x\)"),
    "no room for the cache": ("Attention", NoCache, r"Attention.forward\(x, positions, freqs_cis, mask, cache\)"),
    "no stack": ("Transformer", NoForward, "your Transformer has no method `stack`"),
    "cache": ("KVCache", dict, "your KVCache has no method `for_model`, `window`"),
    "cache as a function": ("LayerCache", remember, "LayerCache is a class"),
    "rotary": ("apply_rotary_emb", rotate, r"the model calls apply_rotary_emb\(xq, xk, freqs_cis\)"),
    "rotary as a class": ("apply_rotary_emb", MyKVCache, "expected a function"),
    "unknown": ("RmsNorm", MyNorm, "RmsNorm cannot be swapped; there are RMSNorm, FeedForward"),
    "a private one": ("turn_keys", rotate, "turn_keys cannot be swapped"),
}  # fmt: skip


@pytest.mark.parametrize("name, piece, says", AT_ONCE.values(), ids=AT_ONCE)
def test_what_cannot_fit_is_refused_before_anything_runs(name: str, piece: Any, says: str) -> None:
    with pytest.raises(PartError, match=f"(?s){says}"), swapped(**{name: piece}):
        pytest.fail("the block began")


def test_nothing_to_swap_is_refused() -> None:
    with pytest.raises(PartError, match="nothing cannot be swapped"), swapped():
        pass


class Callable_:
    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)


def with_default(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5, *more: Any, **named: Any) -> torch.Tensor:
    assert not more and not named
    return rms_norm(x, weight, eps)


@pytest.mark.parametrize(
    "piece",
    [Callable_(), Callable_().__call__, functools.partial(rms_norm), with_default, lambda *args: rms_norm(*args)],
    ids=["object", "method", "partial", "defaults", "stars"],
)
def test_whatever_can_be_called_will_do(llama: Llama, told: list[str], piece: Any) -> None:
    with swapped(rms_norm=piece):
        assert tell(llama) == told


def test_the_names_stay_what_the_package_calls_them() -> None:
    assert attention_module.apply_rotary_emb is BY_NAME["apply_rotary_emb"]
    assert MODULES["RMSNorm"][0] is norm_module.RMSNorm
