"""Ablations of the demo checkpoint: measured rightly, each against the same fault built another way."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import make_checkpoint

import minillama
from minillama import Llama, Transformer
from minillama import attention as attention_module
from minillama.rope import apply_rotary_emb
from minillama.storyteller import demo_dir
from minillama.teach.breaking import ABLATIONS, FIRST, NEXT, ablate, ablations, compare_table, held_out

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "storyteller"))

HARMLESS = {"no_eps"}  # eps is far below the mean square of any vector that the trained model makes
SHORT: dict[str, Any] = dict(max_gen_len=4, prompt="Once upon a time")


@pytest.fixture(scope="module")
def llama() -> Llama:
    return minillama.demo(device="cpu")


@pytest.fixture(scope="module")
def rows(llama: Llama) -> list[list[int]]:
    """Short enough to be quick, long enough for some chunks, of different lengths."""
    return [row[:n] for row, n in zip(held_out(llama), (60, 45))]


@pytest.fixture
def other() -> Transformer:
    """The same weights, to be changed by hand."""
    return Transformer.from_checkpoint(demo_dir())


@torch.no_grad()
def measured(intact: Transformer, broken: Transformer, rows: list[list[int]]) -> tuple[float, float]:
    """Perplexity of `broken` and KL from `intact`, each row in one stateless pass."""
    nll, kl = [], []
    for row in rows:
        ids = torch.tensor([row])
        right, wrong = (model(ids[:, :-1])[0].log_softmax(-1) for model in (intact, broken))  # (T, V)
        nll.append(F.nll_loss(wrong, ids[0, 1:], reduction="none"))
        kl.append(F.kl_div(wrong, right, log_target=True, reduction="none").sum(-1))
    return float(torch.cat(nll).mean().exp()), float(torch.cat(kl).mean())


# Each makes the fault of the same name in another way: by its weights, its table, or a module of torch's.


def attentions(model: Transformer) -> list[Any]:
    return [layer.attention for layer in model.layers]


def feed_forwards(model: Transformer) -> list[Any]:
    return [layer.feed_forward for layer in model.layers]


def norms(model: Transformer) -> list[Any]:
    return [model.norm, *(norm for layer in model.layers for norm in (layer.attention_norm, layer.ffn_norm))]


def no_rope(model: Transformer) -> None:
    model.freqs_cis = torch.ones_like(model.freqs_cis)


def clockwise(model: Transformer) -> None:
    model.freqs_cis = model.freqs_cis.conj().resolve_conj()


def wrong_theta(model: Transformer) -> None:
    model.freqs_cis = Transformer(replace(model.args, rope_theta=500000.0)).freqs_cis


def layer_norm(model: Transformer) -> None:
    for norm in norms(model):
        norm.forward = lambda x, n=norm: F.layer_norm(x, (len(n.weight),), n.weight, None, n.eps)


def norm_without_weight(model: Transformer) -> None:
    for norm in norms(model):
        norm.weight.fill_(1)


def no_eps(model: Transformer) -> None:
    for norm in norms(model):
        norm.eps = 0.0


def no_scale(model: Transformer) -> None:
    for a in attentions(model):
        a.wq.weight *= math.sqrt(a.head_dim)


def halves(model: Transformer) -> None:
    for a in attentions(model):
        for w in (a.wq, a.wk):  # a pair's two rows become neighbours
            w.weight.copy_(w.weight.view(-1, 2, a.head_dim // 2, w.in_features).transpose(1, 2).flatten(0, 2))


def tiled_heads(model: Transformer) -> None:
    K, H, h = model.args.n_kv_heads, model.args.n_heads, model.args.head_dim
    order = [i for k in range(K) for i in range(H) if i % K == k]  # query heads, sorted by their new kv head
    for a in attentions(model):
        a.wq.weight.copy_(a.wq.weight.view(H, h, -1)[order].flatten(0, 1))
        a.wo.weight.copy_(a.wo.weight.view(-1, H, h)[:, order].flatten(1))


def one_kv_head(model: Transformer) -> None:
    for a in attentions(model):
        for w in (a.wk, a.wv):
            heads = w.weight.view(model.args.n_kv_heads, model.args.head_dim, -1)
            heads[:] = heads[:1].clone()


def mean_kv_heads(model: Transformer) -> None:
    for a in attentions(model):
        for w in (a.wk, a.wv):
            heads = w.weight.view(model.args.n_kv_heads, model.args.head_dim, -1)
            heads[:] = heads.mean(0, keepdim=True)


def swapped_w1_w3(model: Transformer) -> None:
    for block in feed_forwards(model):
        block.w1, block.w3 = block.w3, block.w1


def gated(form: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[Transformer], None]:
    def change(model: Transformer) -> None:
        for block in feed_forwards(model):
            block.forward = lambda x, b=block: b.w2(form(b.w1(x), b.w3(x)))

    return change


def missing_all_reduce(model: Transformer) -> None:
    for layer in model.layers:
        for w in (layer.attention.wo.weight, layer.feed_forward.w2.weight):
            w[:, w.shape[1] // 2 :] = 0


def no_attention(model: Transformer) -> None:
    for a in attentions(model):
        a.wo.weight.zero_()


def no_ffn(model: Transformer) -> None:
    for block in feed_forwards(model):
        block.w2.weight.zero_()


def blocks(form: Callable[[Any, Any, Any], Any]) -> Callable[[Transformer], None]:
    """form(layer, x, attend): the layer's forward, where attend(x) is its attention."""

    def change(model: Transformer) -> None:
        for layer in model.layers:
            layer.forward = MethodType(lambda self, x, *rest: form(self, x, lambda y: self.attention(y, *rest)), layer)

    return change


def post_norm(layer: Any, x: torch.Tensor, attend: Any) -> torch.Tensor:
    x = layer.attention_norm(x + attend(x))
    return layer.ffn_norm(x + layer.feed_forward(x))


def no_residual_attention(layer: Any, x: torch.Tensor, attend: Any) -> torch.Tensor:
    x = attend(layer.attention_norm(x))
    return x + layer.feed_forward(layer.ffn_norm(x))


def no_residual_ffn(layer: Any, x: torch.Tensor, attend: Any) -> torch.Tensor:
    return layer.feed_forward(layer.ffn_norm(x + attend(layer.attention_norm(x))))


def no_residual(layer: Any, x: torch.Tensor, attend: Any) -> torch.Tensor:
    return layer.feed_forward(layer.ffn_norm(attend(layer.attention_norm(x))))


ANOTHER_WAY: dict[str, Callable[[Transformer], None]] = {
    "no_rope": no_rope, "clockwise": clockwise, "wrong_theta": wrong_theta, "layer_norm": layer_norm,
    "norm_without_weight": norm_without_weight, "no_eps": no_eps, "no_scale": no_scale, "halves": halves,
    "tiled_heads": tiled_heads, "one_kv_head": one_kv_head, "mean_kv_heads": mean_kv_heads,
    "swapped_w1_w3": swapped_w1_w3, "missing_all_reduce": missing_all_reduce, "no_attention": no_attention,
    "no_ffn": no_ffn, "no_gate": gated(lambda gate, up: up), "gate_only": gated(lambda gate, up: F.silu(gate)),
    "relu": gated(lambda gate, up: gate.clamp(min=0) * up),
    "gelu": gated(lambda gate, up: 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2))) * up),
    "post_norm": blocks(post_norm), "no_residual": blocks(no_residual),
    "no_residual_attention": blocks(no_residual_attention), "no_residual_ffn": blocks(no_residual_ffn),
}  # fmt: skip


@pytest.mark.parametrize("name", ANOTHER_WAY)
def test_the_numbers_are_those_of_the_same_fault_made_another_way(
    llama: Llama, other: Transformer, rows: list[list[int]], name: str
) -> None:
    with torch.no_grad():
        ANOTHER_WAY[name](other)
    perplexity, kl = measured(llama.model, other, rows)
    result = ablate(llama, name, texts=rows, **SHORT)
    assert math.isclose(result.broken.perplexity, perplexity, rel_tol=1e-3)
    assert math.isclose(result.kl, kl, rel_tol=1e-3, abs_tol=1e-5)


def key_faults(freqs_cis: torch.Tensor) -> dict[str, torch.Tensor]:
    """The angles of the keys, for queries with their own: freqs_cis (max_seq_len, h/2)."""
    return {
        "keys_not_rotated": torch.ones_like(freqs_cis),
        "clockwise_keys": freqs_cis.conj().resolve_conj(),
        "off_by_one_keys": freqs_cis.roll(-1, 0),
    }


@pytest.mark.parametrize("name", ["keys_not_rotated", "clockwise_keys", "off_by_one_keys"])
def test_faults_of_the_keys_alone(
    llama: Llama, rows: list[list[int]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama.model
    result = ablate(llama, name, texts=rows[:1], **SHORT)
    ids = torch.tensor(rows[:1])
    table = key_faults(model.freqs_cis)[name][: ids.shape[1] - 1]

    def turned(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return apply_rotary_emb(xq, xk, freqs_cis)[0], apply_rotary_emb(xq, xk, table)[1]

    monkeypatch.setattr(attention_module, "apply_rotary_emb", turned)
    with torch.no_grad():
        loss = F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
    assert math.isclose(result.broken.perplexity, float(loss.exp()), rel_tol=1e-3)


def chunk_of(p: int) -> tuple[int, int]:
    """First position and end of the chunk that position p is read in."""
    start = 0 if p < FIRST else FIRST + (p - FIRST) // NEXT * NEXT
    return start, FIRST if start == 0 else start + NEXT


def visible(name: str, p: int, n: int) -> tuple[set[int], int]:
    """The tokens that query p of n is shown, and how many empty slots besides."""
    start, end = chunk_of(p)
    end = min(end, n)
    if name == "no_mask":
        return set(range(end)), 0
    if name == "square_mask":
        return set(range(p + 1 if end - start == 1 else p - start + 1)), 0
    if name == "cache_off_by_one":
        return (set(range(p + 1)), 0) if start == 0 else (set(range(p)), 1)
    if name == "cache_overwrites":
        slots: list[int | None] = [None] * n
        for q in range(end):
            slots[q - chunk_of(q)[0]] = q
        seen = slots[: p + 1]
        return {q for q in seen if q is not None}, seen.count(None)
    return set(range(p + 1)), 0


def by_hand(model: Transformer, name: str, n: int) -> None:
    """Attention in one pass over n tokens in which each query is shown what the fault shows it."""
    bias = torch.full((n, n + 1), -math.inf)  # the last column stands for the empty slots: a score of 0, a value of 0
    for p in range(n):
        tokens, empty = visible(name, p, n)
        bias[p, list(tokens)] = 0.0
        bias[p, n] = math.log(empty) if empty else -math.inf

    for a in attentions(model):

        def forward(self: Any, x: torch.Tensor, positions: Any, freqs_cis: torch.Tensor, *_: Any) -> torch.Tensor:
            xq, xk, xv = (w(x)[0].unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))  # (T, H, h)
            xq, xk = apply_rotary_emb(xq[None], xk[None], freqs_cis)
            xk, group = xk[0], xq.shape[2] // xk.shape[2]
            if name == "rope_on_values":
                xv = apply_rotary_emb(xv[None], xv[None], freqs_cis)[0][0]
            out = []
            for head in range(xq.shape[2]):
                keys, values = (F.pad(y[:, head // group], (0, 0, 0, 1)) for y in (xk, xv))  # (T + 1, h)
                scores = xq[0, :, head] @ keys.T / math.sqrt(self.head_dim) + bias
                out.append(scores.softmax(-1) @ values)
            return self.wo(torch.cat(out, -1))[None]

        a.forward = MethodType(forward, a)


@pytest.mark.parametrize(
    "name", ["no_mask", "square_mask", "cache_off_by_one", "cache_overwrites", "rope_on_values", "nothing"]
)
@pytest.mark.parametrize("length", [60, 42])  # the last chunk is of 3 tokens, and of 1
def test_faults_that_show_only_in_chunks(
    llama: Llama, other: Transformer, rows: list[list[int]], name: str, length: int
) -> None:
    row = rows[0][:length]
    by_hand(other, name, len(row) - 1)
    perplexity, kl = measured(llama.model, other, [row])
    if name == "nothing":  # the instrument itself
        assert kl < 1e-5
        return
    result = ablate(llama, name, texts=[row], **SHORT)
    assert math.isclose(result.broken.perplexity, perplexity, rel_tol=1e-3)
    assert math.isclose(result.kl, kl, rel_tol=1e-3, abs_tol=1e-5)


def test_every_ablation_is_compared_with_something() -> None:
    chunked = {"no_mask", "square_mask", "cache_off_by_one", "cache_overwrites", "rope_on_values"}
    keys = {"keys_not_rotated", "clockwise_keys", "off_by_one_keys"}
    assert set(ABLATIONS) == {*ANOTHER_WAY, *chunked, *keys, "no_norm"}


def test_no_norm_in_one_layer_leaves_the_rest(llama: Llama, other: Transformer, rows: list[list[int]]) -> None:
    layer: Any = other.layers[2]
    layer.attention_norm = layer.ffn_norm = nn.Identity()
    result = ablate(llama, "no_norm", texts=rows, layers=[2], **SHORT)
    perplexity, kl = measured(llama.model, other, rows)
    assert math.isclose(result.broken.perplexity, perplexity, rel_tol=1e-3)
    assert math.isclose(result.kl, kl, rel_tol=1e-3)
    assert result.about.endswith("Only in layer 2.")


def test_every_ablation_shows_and_the_intact_side_is_the_model(llama: Llama, rows: list[list[int]]) -> None:
    result = compare_table(llama, list(ABLATIONS), texts=rows, **SHORT)
    perplexity, _ = measured(llama.model, llama.model, rows)
    written = llama.text_completion([SHORT["prompt"]], temperature=0, max_gen_len=4)[0]["generation"]
    for row in result.rows:
        assert math.isclose(row.intact.perplexity, perplexity, rel_tol=1e-4)  # in chunks as in one pass
        assert row.intact.text == written
        # The least of them, the cache that is one slot late, costs 0.004 nats on this text.
        assert (row.kl < 1e-6) if row.name in HARMLESS else (row.kl > 1e-3), row.name
    assert "stack" not in llama.model.__dict__


def test_several_at_once_and_in_some_layers(llama: Llama, other: Transformer, rows: list[list[int]]) -> None:
    with torch.no_grad():
        no_rope(other)
        no_ffn(other)
    result = ablate(llama, "no_rope", "no_ffn", texts=rows, **SHORT)
    assert result.names == ("no_rope", "no_ffn") and result.name == "no_rope + no_ffn"
    assert math.isclose(result.broken.perplexity, measured(llama.model, other, rows)[0], rel_tol=1e-3)

    one = ablate(llama, "no_attention", texts=rows, layers=[1], **SHORT)
    again = Transformer.from_checkpoint(demo_dir())
    with torch.no_grad():
        attentions(again)[1].wo.weight.zero_()
    assert math.isclose(one.broken.perplexity, measured(llama.model, again, rows)[0], rel_tol=1e-3)


def test_another_theta_is_that_models(llama: Llama, other: Transformer, rows: list[list[int]]) -> None:
    other.freqs_cis = Transformer(replace(other.args, rope_theta=2000.0)).freqs_cis
    result = ablate(llama, "wrong_theta", texts=rows, theta=2000, **SHORT)
    assert math.isclose(result.broken.perplexity, measured(llama.model, other, rows)[0], rel_tol=1e-3)


def test_kv_heads_that_are_alone_cannot_be_mixed_up(tmp_path: Path) -> None:
    every = Llama.build(make_checkpoint(tmp_path / "mha", n_kv_heads=4), device="cpu")
    one = Llama.build(make_checkpoint(tmp_path / "mqa", n_kv_heads=1), device="cpu")
    short: dict[str, Any] = dict(texts=["the cat saw the dog by the sea and the birds"], prompt="once", max_gen_len=2)
    assert ablate(every, "tiled_heads", **short).kl < 1e-9
    assert all(
        row.kl < 1e-9 for row in compare_table(one, ["tiled_heads", "one_kv_head", "mean_kv_heads"], **short).rows
    )


@pytest.mark.parametrize("options", [dict(quantize="int8"), dict(dtype="bfloat16")])
def test_it_works_on_other_builds(options: dict[str, str], rows: list[list[int]]) -> None:
    built = minillama.demo(device="cpu", **options)
    result = compare_table(built, ["no_rope", "missing_all_reduce", "gelu", "layer_norm"], texts=rows[:1], **SHORT)
    for row in result.rows:
        assert row.broken.perplexity > 1 and row.kl > 1e-3


def test_a_seed_repeats_itself(llama: Llama, rows: list[list[int]]) -> None:
    def text(seed: int) -> str:
        return ablate(llama, "gelu", texts=rows[:1], seed=seed, temperature=1.5, max_gen_len=20).intact.text

    assert text(1) == text(1) != text(2)


def test_broken_numbers_are_reported_not_raised(llama: Llama, rows: list[list[int]]) -> None:
    result = ablate(llama, "no_norm", texts=rows, **SHORT)
    assert result.broken.perplexity == math.inf and result.kl == math.inf
    assert "the logits are not numbers" in result.broken.text
    assert "inf" in repr(result) and "inf" in result._repr_html_()


def test_the_model_is_restored_after_an_error(
    llama: Llama, rows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise RuntimeError("stopped inside")

    ids = torch.tensor(rows[:1])
    before = llama.model(ids)
    monkeypatch.setattr(sys.modules[ablate.__module__], "_slots", stop)
    with pytest.raises(RuntimeError, match="stopped inside"):
        ablate(llama, "no_rope", texts=rows, **SHORT)
    assert torch.equal(llama.model(ids), before) and "stack" not in llama.model.__dict__

    own = llama.model.stack
    llama.model.__dict__["stack"] = own
    try:
        with pytest.raises(RuntimeError, match="stopped inside"):
            ablate(llama, "no_rope", texts=rows, **SHORT)
        assert llama.model.__dict__["stack"] is own
    finally:
        del llama.model.__dict__["stack"]


def test_held_out_stories_are_the_corpus_s_own() -> None:
    from held_out import FILE, held_out_texts

    assert json.loads((demo_dir() / FILE).read_text(encoding="utf-8"))["stories"] == held_out_texts()


def test_held_out_ids_are_read_as_the_report_reads_them(llama: Llama) -> None:
    from held_out import held_out_texts
    from train import CONTEXT, encode_document
    from world import Story

    encoded = [encode_document(Story("", text, ""), llama.tokenizer)[0] for text in held_out_texts()]
    assert held_out(llama) == [ids[:CONTEXT] for ids in encoded]


def test_another_tokenizer_needs_texts(tmp_path: Path) -> None:
    toy = Llama.build(make_checkpoint(tmp_path / "toy"), device="cpu")
    with pytest.raises(ValueError, match=r"pass texts=\[...\]"):
        ablate(toy, "no_rope")
    assert ablate(toy, "no_rope", texts=["the cat saw the dog"], prompt="once", max_gen_len=2).kl > 0


def test_listing_by_chapter() -> None:
    assert set(ablations()) == set(ABLATIONS)
    assert set(ablations(4)) == {"cache_off_by_one", "cache_overwrites", "square_mask"}
    assert "square_mask" in repr(ablations(4)) and "square_mask" in ablations(4)._repr_html_()
    with pytest.raises(ValueError, match="chapter is 12"):
        ablations(12)


def test_it_is_shown_as_text_and_as_a_table(llama: Llama, rows: list[list[int]]) -> None:
    table = compare_table(llama, ["gelu", ("no_rope", "no_ffn")], texts=rows, **SHORT)
    assert table["no_rope + no_ffn"] is table.rows[1]
    for shown in (table, table.rows[0]):
        page = shown._repr_html_()
        assert "gelu" in repr(shown) and "gelu" in page and "intact" in page
        assert "color:inherit" in page and "#" not in page and "black" not in page


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["no_rop"], {}, "no ablation 'no_rop'; did you mean no_rope"),
        (["zzz"], {}, "no ablation 'zzz'; all there are: no_eps, "),
        ([], {}, "no name; expected at least one"),
        (["no_rope", "halves"], {}, "no_rope and halves both change how queries and keys are turned"),
        (["no_rope"], dict(layers=[6]), "a layer is 6"),
        (["no_rope"], dict(layers=[]), "expected a list of numbers from 0 to 5"),
        (["no_rope"], dict(layers=2), "expected a list of numbers from 0 to 5"),
        (["no_rope"], dict(texts="a story"), "expected a list of texts"),
        (["no_rope"], dict(texts=[[1]]), "text 0 has 1 token"),
        (["no_rope"], dict(theta=7.0), "only wrong_theta takes one"),
        (["wrong_theta"], dict(theta=-7.0), "theta is -7.0; expected a positive number"),
        (["no_rope"], dict(max_gen_len=0), "max_gen_len is 0"),
        (["no_rope"], dict(seed=-1), "seed is -1"),
    ],
)
def test_what_cannot_be_is_said(llama: Llama, names: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ablate(llama, *names, **options)
    assert message in str(caught.value)


def test_a_model_alone_is_not_enough(llama: Llama) -> None:
    with pytest.raises(ValueError, match="expected a Llama with its tokenizer"):
        ablate(llama.model, "no_rope")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a list of names"):
        compare_table(llama, "no_rope")
