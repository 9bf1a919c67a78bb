"""Linears in 8 and 4 bits: their products and errors, the models made of them, and the folders that keep them.

Tolerances are those of the formats, and the weights' own error is left out by comparing with the dequantized weights in
float64. The input of an int8 product is kept in whole steps, 8127 of them up to the largest of its row, so it is off by
half a step; an int4 product takes and gives bf16, which rounds by 2^-8 of a number at most.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import fast_in_ranks, level, run_ranks
from torch import nn
from toys import make_checkpoint
from typer.testing import CliRunner
from watching import Watch, difference, readers

from minillama import CheckpointError, Llama, Transformer, checkpoint, cli, packed
from minillama.checkpoint import quantized_as
from minillama.convert import convert
from minillama.feed_forward import FeedForward
from minillama.memory import gb
from minillama.packed import pack
from minillama.quantize import (
    FORMATS,
    GROUP,
    LARGEST,
    QuantizedLinear,
    check_device,
    quantize,
    quantize_int4,
    quantize_int8,
)
from minillama.storyteller import demo_dir

if not torch.backends.mkldnn.is_available():
    pytest.skip("quantized products are oneDNN's, which this build of torch is without", allow_module_level=True)

# The most that rounding to a dtype moves a number, in parts of it.
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
BF16 = ROUNDING[torch.bfloat16]
# (out, in); 32 inputs are a group at 4 bits, and its kernel takes 16 outputs at a time.
SIZES = [(64, 64), (16, 32), (48, 100), (33, 40), (7, 96), (16, 31), (100, 1376), (5, 3), (1, 1)]


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def dequantized(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """What the numbers of a quantized weight stand for, by the formulas of their docstrings, in float64."""
    if kind == "int8":
        q, scale = quantize_int8(weight)
        return q.double() * scale.double()[:, None]
    q, scale, zero = quantize_int4(F.pad(weight, (0, -weight.shape[1] % GROUP)))
    groups = (q.double().unflatten(1, (-1, GROUP)) - 8) * scale.double()[..., None] + zero.double()[..., None]
    return groups.flatten(1)[:, : weight.shape[1]]


class Single(nn.Module):
    """One linear, as the module of a model owns it."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.wo = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.wo.weight = nn.Parameter(weight)


def quantized_linear(weight: torch.Tensor, kind: str) -> Any:
    linear = quantize(Single(weight), kind).wo
    assert isinstance(linear, QuantizedLinear)
    return linear


def allowed_error(x: torch.Tensor, weight: torch.Tensor, kind: str) -> torch.Tensor:
    """How far from x @ weight.T a product may be; weight: dequantized, float64."""
    size = x.double().abs() @ weight.abs().T
    of_the_result = ROUNDING[x.dtype] * (x.double() @ weight.T).abs()
    if kind == "int8":
        step = x.double().abs().amax(-1, keepdim=True) / LARGEST
        # Half a step of every input, and 2% of that for what fp32 does to a number near the middle between two.
        return 0.51 * step * weight.abs().sum(1) + 4 * ROUNDING[torch.float32] * size + of_the_result
    of_the_inputs = 0 if x.dtype == torch.bfloat16 else BF16
    return (of_the_inputs + 1e-5) * size + BF16 * (x.double() @ weight.T).abs() + of_the_result


# --- Products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_product_is_the_one_with_the_dequantized_weights(
    size: tuple[int, int], kind: str, dtype: torch.dtype
) -> None:
    weight = numbers(*size)
    linear, meant = quantized_linear(weight.clone(), kind), dequantized(weight, kind)
    for n in range(1, 10):
        x = numbers(n, size[1], seed=n).to(dtype)
        y = linear(x)
        assert (y.dtype, y.shape) == (dtype, (n, size[0]))
        assert ((y.double() - x.double() @ meant.T).abs() <= allowed_error(x, meant, kind)).all(), f"{n} rows"


@pytest.mark.parametrize("kind", FORMATS)
def test_leading_dimensions_are_kept_and_no_rows_give_no_rows(kind: str) -> None:
    linear = quantized_linear(numbers(33, 40), kind)
    for shape in [(1, 1), (2, 3), (2, 1, 2), (0,), (2, 0), ()]:
        x = numbers(*shape, 40)
        y = linear(x)
        assert y.shape == (*shape, 33)
        assert torch.equal(y.reshape(-1, 33), linear(x.reshape(-1, 40)))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_of_zeros_gives_zeros_and_rows_of_any_size_are_as_exact(kind: str) -> None:
    weight = numbers(32, 64)
    linear, meant = quantized_linear(weight.clone(), kind), dequantized(weight, kind)
    x = numbers(5, 64) * torch.tensor([0, 1e-20, 1.0, 1e10, 1e30])[:, None]
    y = linear(x)
    assert not y[0].any()
    assert ((y.double() - x.double() @ meant.T).abs() <= allowed_error(x, meant, kind)).all()


@pytest.mark.parametrize("kind", FORMATS)
def test_inputs_at_their_largest_with_weights_at_their_largest_do_not_overflow(kind: str) -> None:
    """Pairs of products are added in 16 bits on older processors, and 11008 of them (7B's width) in 32."""
    weight = torch.ones(16, 11008)
    weight[1] = -1
    linear = quantized_linear(weight.clone(), kind)
    for sign in (1, -1):
        y = linear(torch.full((1, 11008), 3.0 * sign))
        assert torch.allclose(y[0, :2] / 11008, torch.tensor([3.0, -3.0]) * sign, rtol=BF16)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
def test_a_dequantized_weight_is_off_by_half_a_step_at_most(kind: str, spread: float, offset: float) -> None:
    weight = (numbers(50, 96) + offset) * spread
    error = (dequantized(weight, kind) - weight.double()).abs()
    if kind == "int8":
        step = weight.double().abs().amax(1, keepdim=True) / 127
        assert (error <= 0.5001 * step).all()
    else:
        _, scale, zero = (t.double() for t in quantize_int4(weight))
        # Where rounding the scale (over 15 steps) or the zero to bf16 moved the range, its ends fall outside.
        step = ((0.5 + 15 * BF16) * scale + BF16 * zero.abs())[..., None]
        assert (error.unflatten(1, (-1, GROUP)) <= step).all()


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_that_are_all_the_same_or_zero_stay_so(kind: str) -> None:
    weight = torch.zeros(32, 64)
    weight[1] = 0.75
    # Exact but for the scale's own rounding in fp32: a 127th of 0.75 is no binary number.
    assert torch.allclose(dequantized(weight, kind), weight.double(), rtol=2**-23, atol=0)


def test_at_8_bits_a_row_is_the_same_to_the_last_bit_in_any_company() -> None:
    linear = quantized_linear(numbers(100, 1376), "int8")
    x = numbers(9, 1376)
    together = linear(x)
    for r in range(9):
        assert torch.equal(linear(x[r : r + 1])[0], together[r])
    for n in range(1, 9):
        assert torch.equal(linear(x[:n]), together[:n])
    x[1:] = torch.nan
    assert torch.equal(linear(x)[0], together[0])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_channel_of_large_weights_leaves_the_others_as_exact_as_they_were(kind: str) -> None:
    block = FeedForward(64, 96)
    x, names = numbers(3, 64), ("w1", "w3")
    for seed, name in enumerate(names):
        getattr(block, name).weight = nn.Parameter(numbers(96, 64, seed=seed))
    spread = copy.deepcopy(block)
    with torch.no_grad():
        spread.w1.weight[5] *= 1000
    exact = {name: x.double() @ getattr(block, name).weight.double().T for name in names}
    large = spread.w1.weight.detach()
    before, after = quantize(block, kind), quantize(spread, kind)
    others = torch.arange(96) != 5
    assert torch.equal(after.w1(x)[:, others], before.w1(x)[:, others])
    assert torch.equal(after.w3(x), before.w3(x))  # w3's weights are part of the same product
    # One scale for the whole matrix would leave the others few steps or none.
    step = large.abs().max() / {"int8": 127, "int4": 7.5}[kind]
    by_one_scale = x.double() @ ((large / step).round() * step).double().T
    error = (after.w1(x).double() - exact["w1"])[:, others].abs().max()
    assert error < 0.1 * (by_one_scale - exact["w1"])[:, others].abs().max()


@pytest.mark.parametrize("kind", FORMATS)
def test_linears_with_the_same_input_are_one_product_asked_in_any_order(kind: str) -> None:
    block = FeedForward(64, 96)
    weights = {name: getattr(block, name).weight.detach().clone() for name in ("w1", "w3")}
    quantize(block, kind)
    assert block.w1.shared is block.w3.shared is not block.w2.shared
    apart = {name: quantized_linear(weight, kind) for name, weight in weights.items()}
    inputs = [numbers(2, 64, seed=s) for s in (1, 2)]
    for calls in itertools.product(itertools.product(("w1", "w3"), inputs), repeat=4):
        for name, x in calls:
            assert difference(getattr(block, name)(x), apart[name](x)) <= BF16


# --- Gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_no_gradient_goes_through_and_none_is_asked_for_in_plain_calls(kind: str) -> None:
    linear = quantized_linear(numbers(32, 64), kind)
    x = numbers(2, 64)
    assert torch.is_grad_enabled()
    plain = linear(x)
    assert not plain.requires_grad
    with pytest.raises(RuntimeError, match="no gradient goes through quantized weights.*without quantize"):
        linear(x.requires_grad_())
    with torch.no_grad():
        assert torch.equal(linear(x), plain)


# --- Models ----------------------------------------------------------------------------------------------------------

# Two held-out stories of the demo's corpus (seed 2), and one in the manner of stories260K's.
STORIES = {
    "demo": [
        "Long ago, there was a kind boy named Eddie. His home was in a cottage near the river. Eddie had never "
        'slept away from home, and he was afraid of it. Then, one day, a letter came from his grandfather. "Come '
        'and stay with me for a night," it said. "I will miss my own bed," said Eddie.\n\n'
        'His friend Tilly the donkey came to see him. "I was afraid the first time too," said Tilly. "This is for '
        'you." She gave Eddie a soft pillow. "Hold it when you feel alone." Eddie put it in his bag.\n\n'
        "So Eddie went. He ate warm soup with his grandfather. But when the light was out, the room was big and "
        "quiet, and he heard a clock. Then Eddie remembered the soft pillow. He held it tight and thought of "
        "Tilly. Soon, he was asleep.\n\n"
        'In the morning, the sun shone through the window. "Did you sleep well?" asked his grandfather. "Very '
        'well!" said Eddie. When he was home again, he told Tilly all about it. And he was not afraid to sleep '
        "away from home any more.",
        "There was once a funny mole called Poppy, who lived on a sunny island. Poppy had a plan. She wanted to "
        'build a bridge to the other side of the river. But she did not know how. "Use dry grass," said a crow. '
        '"I always do." So Poppy used dry grass and was done very soon. She was happy with it.\n\n'
        'But the next day, the water carried the bridge away. Poppy sat down on a stone and was sad. "I will '
        'never build a bridge," she said. Then her friend Tilly the puppy came by. "Let us build it again," said '
        'Tilly, "but slowly, and with logs and rope." "Would you really help me?" asked Poppy. "That is what '
        'friends are for," said Tilly.',
    ],
    "stories260K": [
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her "
        "dog, Max. One day, they saw a big red ball near a tall tree. Lily wanted to play with the ball, but it "
        'was stuck in the tree. "Can you help me, Max?" she asked. Max jumped and jumped, but he could not reach '
        'the ball. Then a kind bird came and pushed the ball down with its beak. Lily was very happy. "Thank you, '
        'bird!" she said. They played together until the sun went down, and then they went home.',
    ],
}  # fmt: skip
# Measured: int8 0.04% and 0.15%, int4 0.9% and 4.3%. The bound of int8 is a promise, that of int4 twice what is seen.
LARGEST_LOSS = {
    ("demo", "int8"): 0.02,
    ("stories260K", "int8"): 0.02,
    ("demo", "int4"): 0.02,
    ("stories260K", "int4"): 0.09,
}


@pytest.fixture(scope="module", params=["demo", "stories260K"])
def trained(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """The name and folder of a trained checkpoint: the demo's, and one that lies with the test data."""
    if request.param == "demo":
        return "demo", demo_dir()
    return "stories260K", request.getfixturevalue("shared_data") / "checkpoints" / "stories260K"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("full") / "toy")


@pytest.fixture(scope="module")
def converted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {kind: tmp_path_factory.mktemp("converted") / kind for kind in FORMATS}
    for kind, dst in made.items():
        convert(folder, dst, kind)
    return made


def perplexity(llama: Llama, texts: list[str]) -> float:
    scores = llama.score(texts)
    return math.exp(-sum(sum(s.logprobs) for s in scores) / sum(len(s.logprobs) - 1 for s in scores))


def logits_of(llama: Llama, tokens: Iterable[int] = (1, 300, 20, 7)) -> torch.Tensor:
    with torch.no_grad():
        return llama.model(torch.tensor([list(tokens)]))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_quantized_model_reads_its_own_kind_of_text_nearly_as_well(trained: tuple[str, Path], kind: str) -> None:
    name, path = trained
    full, few = (perplexity(Llama.build(path, device="cpu", quantize=q), STORIES[name]) for q in (None, kind))
    assert full < 3  # the text is of its kind
    assert few == pytest.approx(full, rel=LARGEST_LOSS[name, kind])
    assert few != full


@pytest.mark.parametrize("kind", FORMATS)
def test_all_linears_are_quantized_and_the_rest_is_as_it_was(trained: tuple[str, Path], kind: str) -> None:
    _, path = trained
    full, few = (Llama.build(path, device="cpu", quantize=q).model for q in (None, kind))
    linears = {name for name, module in full.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, module in few.named_modules() if isinstance(module, QuantizedLinear)} == linears
    assert not [m for m in few.modules() if isinstance(m, nn.Linear)]
    kept = {name: p for name, p in full.named_parameters() if name.removesuffix(".weight") not in linears}
    assert dict(few.named_parameters()).keys() == kept.keys() >= {"tok_embeddings.weight", "norm.weight"}
    assert all(torch.equal(p, kept[name]) for name, p in few.named_parameters())
    assert not any(p.requires_grad for p in few.parameters())


@pytest.mark.parametrize("kind", FORMATS)
def test_the_weights_take_the_bytes_that_their_bits_say(folder: Path, kind: str) -> None:
    model = Llama.build(folder, device="cpu", quantize=kind).model
    full = Transformer.from_checkpoint(folder)
    said = sum(m.weight_bytes for m in model.modules() if isinstance(m, QuantizedLinear))
    wanted = 0
    for name, module in full.named_modules():
        if isinstance(module, nn.Linear):
            out, in_ = module.weight.shape
            in_four_bits = kind == "int4" and name != "output"  # errors in the head fall on every token
            wanted += out * in_ // 2 + 4 * out * in_ // GROUP if in_four_bits else out * in_ + 4 * out
    assert said == wanted


@pytest.mark.parametrize("kind", FORMATS)
@torch.no_grad()
def test_a_step_reads_each_quantized_weight_once(folder: Path, kind: str) -> None:
    model = Llama.build(folder, device="cpu", quantize=kind).model
    products = {id(m.shared): m.shared for m in model.modules() if isinstance(m, QuantizedLinear)}
    assert len(products) == 4 * 2 + 1  # wq wk wv, wo, w1 w3, w2 of each layer, and output
    for tokens in ([[1]], [[1], [2], [3], [4]]):
        with Watch() as watch:
            model(torch.tensor(tokens))
        for product in products.values():
            assert len(readers(watch.ops, product.packed)) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_model_is_quantized_in_every_dtype(folder: Path, kind: str, dtype: str) -> None:
    full = logits_of(Llama.build(folder, device="cpu"))
    llama = Llama.build(folder, device="cpu", dtype=dtype, quantize=kind)
    assert str(llama.model.norm.weight.dtype) == f"torch.{dtype}"
    # Random weights have no slack. Seen, of the largest logit: int8 1.3%, in bf16 2.5% (most of it bf16's), int4 19%.
    assert difference(logits_of(llama), full) <= {"int8": 0.05, "int4": 0.3}[kind]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_batch_says_what_its_rows_say_alone_and_a_stream_says_the_same(trained: tuple[str, Path], kind: str) -> None:
    llama = Llama.build(trained[1], device="cpu", quantize=kind)
    prompts = ["Once upon a time", "The", "One day, a cat saw a"]
    batch = llama.text_completion(prompts, 0, max_gen_len=40)
    for prompt, together in zip(prompts, batch):
        (alone,) = llama.text_completion([prompt], 0, max_gen_len=40)
        assert together == alone
        pieces = list(llama.stream_text(prompt, 0, max_gen_len=40))
        assert "".join(piece.text for piece in pieces) == alone["generation"]
        assert pieces[-1].finish_reason == alone["finish_reason"]
    assert len({one["generation"] for one in batch}) == 3


@pytest.mark.parametrize("kind", FORMATS)
def test_no_room_for_a_token_is_an_answer_and_options_work_as_ever(folder: Path, kind: str) -> None:
    llama = Llama.build(folder, device="cpu", quantize=kind)
    assert llama.generate([[1, 5]], 0) == ([[]], None)
    assert llama.generate([[1] * 128, [1, 5]], 3, 0)[0][0] == []
    ask = dict(max_gen_len=12, temperature=0.9, repetition_penalty=1.2, seed=3, logprobs=True)
    assert llama.generate([[1, 5]], **ask) == llama.generate([[1, 5]], **ask)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("when", ["built and run", "run"])
def test_torchs_default_device_changes_nothing(folder: Path, kind: str, when: str) -> None:
    """Programs for a GPU set it once, for everything."""
    llama = Llama.build(folder, device="cpu", quantize=kind)
    expected = llama.generate([[1, 5], [1, 7, 8]], 6, 0)
    with torch.device("meta"):
        if when == "built and run":
            llama = Llama.build(folder, device="cpu", quantize=kind)
        assert llama.generate([[1, 5], [1, 7, 8]], 6, 0) == expected


@pytest.mark.parametrize("kind", FORMATS)
def test_built_inside_inference_mode_it_is_the_same_outside(folder: Path, kind: str) -> None:
    with torch.inference_mode():
        llama = Llama.build(folder, device="cpu", quantize=kind)
        inside = llama.generate([[1, 5]], 6, 0)
    assert (
        llama.generate([[1, 5]], 6, 0)
        == inside
        == Llama.build(folder, device="cpu", quantize=kind).generate([[1, 5]], 6, 0)
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's code for the CPU is compiled with g++")
@pytest.mark.parametrize("kind", FORMATS)
def test_quantized_and_compiled_it_says_the_same_or_is_refused_when_built(folder: Path, kind: str) -> None:
    expected = Llama.build(folder, device="cpu", quantize=kind).generate([[1, 5]], 6, 0)
    torch._dynamo.reset()
    try:
        llama = Llama.build(folder, device="cpu", quantize=kind, compile=True)
    except ValueError as error:
        assert "compile" in str(error)
    else:
        assert llama.generate([[1, 5]], 6, 0) == expected
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("before", [pack, lambda model: quantize(model, "int8")], ids=["packed", "quantized"])
def test_quantizing_what_is_no_longer_plain_quantizes_it_or_says_why_not(
    tiny_model: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch, before: Callable[[Any], Any], kind: str
) -> None:
    monkeypatch.setattr(packed, "WORTH_PACKING", 0)
    model = before(tiny_model(vocab_size=64))
    with torch.no_grad():
        expected = quantize(tiny_model(vocab_size=64), kind)(torch.tensor([[1, 2, 3]]))
        try:
            quantize(model, kind)
        except ValueError as error:
            assert "quantize" in str(error) or "packed" in str(error)
        else:
            assert torch.equal(model(torch.tensor([[1, 2, 3]])), expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_quantized_model_can_be_copied_and_says_how_it_is_saved(folder: Path, kind: str) -> None:
    llama = Llama.build(folder, device="cpu", quantize=kind)
    expected = logits_of(llama)
    assert torch.equal(logits_of(Llama(copy.deepcopy(llama.model), llama.tokenizer)), expected)
    with pytest.raises(TypeError, match="minillama convert --quantize"):
        torch.save(llama.model, io.BytesIO())


@pytest.mark.parametrize("kind", FORMATS)
def test_quantized_ranks_agree_with_each_other_and_with_one_process(folder: Path, kind: str) -> None:
    rows = [[1, 300, 20, 7, 8, 9, 10, 11], [1, 33, 9]]
    with torch.no_grad():
        full = level(Transformer.from_checkpoint(folder), rows, [5, 1, 2])
        alone = level(Llama.build(folder, device="cpu", quantize=kind).model, rows, [5, 1, 2])
    first, second = (found[kind] for found in run_ranks(2, fast_in_ranks, str(folder), rows, [5, 1, 2], [kind]))
    assert first["kinds"] == ["QuantizedLinear"] and first["all_reduce"] == 2 * 2 * 3  # two a layer, in three forwards
    for one, other, whole, exact in zip(first["logits"], second["logits"], alone, full):
        assert torch.equal(one, other)
        # wo and w2 are cut along their inputs, so each rank has scales of its own: other errors of the same size.
        assert difference(one, exact) <= 2 * difference(whole, exact)


# --- Numbers that are none -------------------------------------------------------------------------------------------

LINEARS = [f"layers.1.attention.{name}" for name in ("wq", "wk", "wv", "wo")]
LINEARS += [f"layers.1.feed_forward.{name}" for name in ("w1", "w2", "w3")] + ["output"]


def changed(src: Path, dst: Path, change: Callable[[dict[str, Any]], object], **params: Any) -> Path:
    """A copy of the folder with other tensors and other params."""
    shutil.copytree(src, dst)
    tensors = torch.load(dst / "consolidated.00.pth", weights_only=True)
    change(tensors)
    torch.save(tensors, dst / "consolidated.00.pth")
    said = json.loads((dst / "params.json").read_text()) | params
    (dst / "params.json").write_text(json.dumps(said))
    return dst


def spoiled(key: str, value: float) -> Callable[[dict[str, Any]], object]:
    """Change one number of the tensor."""

    def change(tensors: dict[str, Any]) -> None:
        tensors[key].view(-1)[-1] = value

    return change


def nothing(tensors: dict[str, Any]) -> None:
    pass


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("name", LINEARS)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_weight_that_is_not_a_number_becomes_an_error_and_not_text(
    folder: Path, tmp_path: Path, kind: str, name: str, value: float
) -> None:
    damaged = changed(folder, tmp_path / "damaged", spoiled(f"{name}.weight", value))
    with pytest.raises(ValueError, match="the model's logits are not numbers|holds NaN or inf"):
        Llama.build(damaged, device="cpu", quantize=kind).generate([[1, 300, 20]], 4, 0)
    with pytest.raises(ValueError, match="the model's logits are not numbers|holds NaN or inf"):
        convert(damaged, tmp_path / "converted", kind)
        Llama.build(tmp_path / "converted", device="cpu").generate([[1, 300, 20]], 4, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("name", LINEARS)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_scale_that_is_not_a_number_becomes_an_error_and_not_text(
    converted: dict[str, Path], tmp_path: Path, kind: str, name: str, value: float
) -> None:
    damaged = changed(converted[kind], tmp_path / "damaged", spoiled(f"{name}.scale", value))
    with pytest.raises(ValueError, match="the model's logits are not numbers|holds NaN or inf"):
        Llama.build(damaged, device="cpu").generate([[1, 300, 20]], 4, 0)


# --- Folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_converted_folder_is_what_quantizing_while_loading_gives_bit_for_bit(
    folder: Path, converted: dict[str, Path], kind: str, dtype: str | None
) -> None:
    expected = logits_of(Llama.build(folder, device="cpu", quantize=kind))
    assert torch.equal(logits_of(Llama.build(converted[kind], device="cpu")), expected)
    assert torch.equal(logits_of(Llama.build(converted[kind], device="cpu", quantize=kind)), expected)
    model = Transformer.from_checkpoint(converted[kind], dtype=dtype)
    assert model.norm.weight.dtype == (torch.bfloat16 if dtype else torch.float32)
    assert dtype or torch.equal(model(torch.tensor([[1, 300, 20, 7]])), expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_checkpoint_of_several_bf16_files_is_converted_to_one(folder: Path, tmp_path: Path, kind: str) -> None:
    src = tmp_path / "two"
    src.mkdir()
    weights = {key: w.bfloat16() for key, w in torch.load(folder / "consolidated.00.pth").items()}
    for part in range(2):
        cut = {
            key: w.chunk(2, dim)[part].clone() if (dim := checkpoint.split_dim(key)) is not None else w
            for key, w in weights.items()
        }
        torch.save(cut, src / f"consolidated.{part:02d}.pth")
    for name in ("params.json", "tokenizer.model"):
        shutil.copy(folder / name, src)
    convert(src, tmp_path / "one", kind)
    assert [path.name for path in sorted((tmp_path / "one").glob("*.pth"))] == ["consolidated.00.pth"]
    expected = logits_of(Llama.build(src, device="cpu", quantize=kind))
    assert torch.equal(logits_of(Llama.build(tmp_path / "one", device="cpu")), expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_converted_file_holds_tensors_alone_of_the_dtypes_that_its_bits_need(
    folder: Path, converted: dict[str, Path], kind: str
) -> None:
    assert {path.name for path in converted[kind].iterdir()} == {
        "consolidated.00.pth", "params.json", "tokenizer.model"
    }  # fmt: skip
    before = torch.load(folder / "consolidated.00.pth", weights_only=True)
    tensors = torch.load(converted[kind] / "consolidated.00.pth", weights_only=True)
    for key, weight in before.items():
        if weight.dim() == 1 or key.startswith("tok"):
            assert torch.equal(tensors.pop(key), weight)
            continue
        prefix, few = key.removesuffix("weight"), kind if key != "output.weight" else "int8"
        fields = {f: tensors.pop(prefix + f) for f in ("weight", "scale", "zero") if prefix + f in tensors}
        dtypes = {"weight": torch.int8, "scale": torch.float32}
        if few == "int4":
            dtypes = {"weight": torch.uint8, "scale": torch.bfloat16, "zero": torch.bfloat16}
        assert {f: t.dtype for f, t in fields.items()} == dtypes
        assert fields["weight"].numel() == weight.numel() // (2 if few == "int4" else 1)
    assert not tensors
    params = json.loads((folder / "params.json").read_text())
    assert json.loads((converted[kind] / "params.json").read_text()) == params | {"quantized": kind}
    assert quantized_as(converted[kind]) == kind and quantized_as(folder) is None


class Stopped(Exception):
    pass


def stopping(keys: Iterable[str]) -> Iterator[str]:
    for n, key in enumerate(keys):
        if n == 5:
            raise Stopped
        yield key


def test_a_conversion_that_is_ended_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        convert(folder, tmp_path / "new" / "dst", "int8", stopping)
    assert not list(tmp_path.glob("**/*dst*"))

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        convert(folder, tmp_path / "new" / "dst", "int8")
    assert not list(tmp_path.glob("**/*dst*"))


def test_a_conversion_leaves_its_source_alone(folder: Path, converted: dict[str, Path], tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    convert(folder, tmp_path / "dst", "int4")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_is_there_is_not_written_over(folder: Path, converted: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for dst in (folder, converted["int8"], tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match="is there already"):
            convert(folder, dst, "int8")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_quantized_is_not_quantized_again(converted: dict[str, Path], tmp_path: Path, kind: str) -> None:
    other = "int4" if kind == "int8" else "int8"
    for again in (kind, other):
        with pytest.raises(ValueError, match="is quantized already"):
            convert(converted[kind], tmp_path / "dst", again)
    with pytest.raises(ValueError, match=f"is quantized as {kind}; {other} has to start"):
        Llama.build(converted[kind], device="cpu", quantize=other)


@pytest.mark.parametrize(
    "wrong", ["int3", "INT8", "", "8", 8, True, 4.0, b"int8", ["int8"], {"int8": 1}, math.nan], ids=str
)
def test_an_unknown_format_is_named_before_anything_is_done(folder: Path, tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match="quantize is .*int8 or int4"):
        Llama.build(folder, device="cpu", quantize=wrong)
    with pytest.raises(ValueError, match="quantize is .*int8 or int4"):
        convert(folder, tmp_path / "dst", wrong)
    with pytest.raises(ValueError, match="quantize is .*int8 or int4"):
        quantize(nn.Linear(2, 2), wrong)
    assert not list(tmp_path.iterdir())


def test_no_format_is_no_conversion(folder: Path, tmp_path: Path) -> None:
    for call in (lambda: convert(folder, tmp_path / "dst", None), lambda: quantize(nn.Linear(2, 2), None)):
        with pytest.raises(ValueError, match="quantize is None; expected int8 or int4"):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "meta"])
def test_another_device_than_the_cpu_is_refused_by_name(
    folder: Path, tiny_model: Callable[..., Transformer], device: str
) -> None:
    for form in (device, torch.device(device)):
        with pytest.raises(ValueError, match=f"not on {device}.*device='cpu'"):
            check_device(form)
    with pytest.raises(ValueError, match=device):
        Llama.build(folder, device=device, quantize="int8")
    with pytest.raises(ValueError, match="not on meta"):
        quantize(tiny_model(vocab_size=64).to("meta"), "int8")


def test_a_torch_without_the_kernels_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ValueError, match="oneDNN"):
        check_device("cpu")


def lose(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: tensors.pop(key)


def put(key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], object]:
    def changing(tensors: dict[str, Any]) -> None:
        tensors[key] = change(tensors[key]).clone()

    return changing


def other_integers(t: torch.Tensor) -> torch.Tensor:
    return t.view(torch.uint8 if t.dtype == torch.int8 else torch.int8)


WK = "layers.1.attention.wk"
DAMAGES: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "no weight": (f"{WK}.weight", lose(f"{WK}.weight")),
    "no scale": (f"{WK}.scale", lose(f"{WK}.scale")),
    "no norm": ("norm.weight", lose("norm.weight")),
    "no embedding": ("tok_embeddings.weight", lose("tok_embeddings.weight")),
    "one more": ("extra.scale", lambda tensors: tensors.update({"extra.scale": torch.ones(2)})),
    "a zero where none belongs": ("output.zero", lambda tensors: tensors.update({"output.zero": torch.ones(2)})),
    "a weight cut short": (f"{WK}.weight", put(f"{WK}.weight", lambda t: t[:-1])),
    "a weight of another shape": (f"{WK}.weight", put(f"{WK}.weight", lambda t: t.reshape(len(t) // 2, -1))),
    "a weight laid flat": (f"{WK}.weight", put(f"{WK}.weight", lambda t: t.flatten())),
    "a scale cut short": (f"{WK}.scale", put(f"{WK}.scale", lambda t: t[:-1])),
    "a scale for all": (f"{WK}.scale", put(f"{WK}.scale", lambda t: t[:1])),
    "a weight of floats": (f"{WK}.weight", put(f"{WK}.weight", lambda t: t.float())),
    "a weight of wider integers": (f"{WK}.weight", put(f"{WK}.weight", lambda t: t.int())),
    "a weight of the other integers": (f"{WK}.weight", put(f"{WK}.weight", other_integers)),
    "a scale of integers": (f"{WK}.scale", put(f"{WK}.scale", lambda t: t.to(torch.int8))),
    "a norm of integers": ("norm.weight", put("norm.weight", lambda t: t.to(torch.int8))),
    "an embedding of integers": ("tok_embeddings.weight", put("tok_embeddings.weight", lambda t: t.to(torch.int8))),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_quantized_file_that_does_not_fit_is_refused_with_the_tensor_s_name(
    converted: dict[str, Path], tmp_path: Path, kind: str, damage: str
) -> None:
    named, change = DAMAGES[damage]
    damaged = changed(converted[kind], tmp_path / "damaged", change)
    with pytest.raises(CheckpointError) as error:
        Llama.build(damaged, device="cpu")
    assert named in str(error.value) and str(damaged) in str(error.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_quantized_file_without_its_end_is_refused(converted: dict[str, Path], tmp_path: Path, kind: str) -> None:
    shutil.copytree(converted[kind], tmp_path / "damaged")
    file = tmp_path / "damaged" / "consolidated.00.pth"
    whole = file.read_bytes()
    for part in (0.1, 0.5, 0.9, 0.999):
        file.write_bytes(whole[: int(part * len(whole))])
        with pytest.raises(CheckpointError, match="cannot be read"):
            Llama.build(tmp_path / "damaged", device="cpu")


@pytest.mark.parametrize("kind", FORMATS)
def test_params_that_say_another_format_than_the_file_s_are_refused(
    folder: Path, converted: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    other = "int4" if kind == "int8" else "int8"
    for n, (src, said) in enumerate([(converted[kind], other), (converted[kind], None), (folder, kind)]):
        with pytest.raises(CheckpointError, match="weight|zero|scale"):
            Llama.build(changed(src, tmp_path / str(n), nothing, quantized=said), device="cpu")


@pytest.mark.parametrize("said", ["fp4", "INT8", 8, True, ["int8"], {}, ""], ids=str)
def test_params_that_say_an_unknown_format_are_refused(converted: dict[str, Path], tmp_path: Path, said: Any) -> None:
    damaged = changed(converted["int8"], tmp_path / "damaged", nothing, quantized=said)
    for call in (lambda: Llama.build(damaged, device="cpu"), lambda: convert(damaged, tmp_path / "dst", "int8")):
        with pytest.raises(CheckpointError, match=r"params\.json says quantized .*int8 and int4"):
            call()


@pytest.mark.parametrize("text", ["[]", '"x"', "7", "null", "{", ""])
def test_params_that_are_no_object_are_refused_with_the_file_s_name(folder: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(folder, tmp_path / "src")
    (tmp_path / "src" / "params.json").write_text(text)
    with pytest.raises(ValueError, match=r"params\.json"):
        convert(tmp_path / "src", tmp_path / "dst", "int8")
    for arguments in (("info", "--ckpt-dir", tmp_path / "src"), ("complete", "x", "--ckpt-dir", tmp_path / "src")):
        result = run(*arguments)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "params.json" in result.stderr


def test_a_quantized_folder_runs_in_one_process(
    converted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "world_size", lambda: 2)
    with pytest.raises(CheckpointError, match="quantized.*2 ranks.*quantize=int8"):
        Transformer.from_checkpoint(converted["int8"])


# --- The command line ------------------------------------------------------------------------------------------------


def run(*args: object, env: dict[str, str] | None = None) -> Any:
    return CliRunner(env=env).invoke(cli.app, [str(arg) for arg in args])


def succeed(*args: object) -> str:
    result = run(*args)
    assert (result.exit_code, result.stderr) == (0, "")
    return str(result.stdout)


def fail(*args: object, env: dict[str, str] | None = None) -> str:
    """The one line of an error that the user can mend."""
    result = run(*args, env=env)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    return str(result.stderr.removeprefix("minillama: error: ").rstrip("\n"))


@pytest.mark.parametrize("kind", FORMATS)
def test_convert_writes_the_folder_and_says_how_small_it_has_become(
    folder: Path, converted: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    before, after = ((path / "consolidated.00.pth").stat().st_size for path in (folder, converted[kind]))
    said = json.loads(succeed("convert", folder, tmp_path / "json", "--quantize", kind, "--json"))
    sizes = {"src_bytes": before, "dst_bytes": after}
    assert said == {"src": str(folder), "dst": str(tmp_path / "json"), "quantized": kind} | sizes
    stdout = succeed("convert", folder, tmp_path / "text", "--quantize", kind)
    assert stdout == f"{tmp_path / 'text'}: {gb(after)} instead of {gb(before)}\n"
    expected = logits_of(Llama.build(converted[kind], device="cpu"))
    for name in ("json", "text"):
        assert torch.equal(logits_of(Llama.build(tmp_path / name, device="cpu")), expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_complete_takes_a_format_or_a_converted_folder(folder: Path, converted: dict[str, Path], kind: str) -> None:
    ask = ("--temperature", 0, "--max-gen-len", 12, "--json")
    loaded = json.loads(succeed("complete", "the cat", "--ckpt-dir", folder, "--quantize", kind, *ask))
    kept = json.loads(succeed("complete", "the cat", "--ckpt-dir", converted[kind], *ask))
    llama = Llama.build(folder, device="cpu", quantize=kind)
    (expected,) = llama.text_completion(["the cat"], 0, max_gen_len=12)
    assert loaded["text"] == kept["text"] == expected["generation"]


@pytest.mark.parametrize("kind", FORMATS)
def test_info_says_the_format_and_the_bytes_of_a_converted_folder(converted: dict[str, Path], kind: str) -> None:
    size = (converted[kind] / "consolidated.00.pth").stat().st_size
    said = json.loads(succeed("info", "--ckpt-dir", converted[kind], "--json"))
    assert (said["file_dtype"], said["file_bytes"], said["weight_bytes"]) == (kind, size, size)
    assert said["dtype"] == "float32"  # of the cache
    assert f"{gb(size)} in {kind}" in succeed("info", "--ckpt-dir", converted[kind])
    assert "one process" in fail("info", "--ckpt-dir", converted[kind], "--ranks", 2)


def test_what_cannot_be_converted_or_quantized_is_one_line(
    folder: Path, converted: dict[str, Path], tmp_path: Path
) -> None:
    dst = tmp_path / "dst"
    assert "int8 or int4" in fail("convert", folder, dst, "--quantize", "int3")
    assert "--quantize" in fail("convert", folder, dst)
    assert "no folder" in fail("convert", tmp_path / "nowhere", dst, "--quantize", "int8")
    assert "there already" in fail("convert", folder, folder, "--quantize", "int8")
    assert "quantized already" in fail("convert", converted["int4"], dst, "--quantize", "int8")
    assert "one process" in fail("convert", folder, dst, "--quantize", "int8", env={"WORLD_SIZE": "2", "RANK": "0"})
    assert "int8 or int4" in fail("complete", "x", "--ckpt-dir", folder, "--quantize", "q4")
    assert "full weights" in fail("complete", "x", "--ckpt-dir", converted["int4"], "--quantize", "int8")
    assert not dst.exists()


def test_the_tokenizer_comes_along_from_beside_above_and_behind_a_link(folder: Path, tmp_path: Path) -> None:
    above = tmp_path / "meta"
    shutil.copytree(folder, above / "model")
    shutil.move(above / "model" / "tokenizer.model", above / "tokenizer.model")
    (tmp_path / "link").symlink_to(above / "model")
    for n, src in enumerate((folder, above / "model", tmp_path / "link")):
        convert(src, tmp_path / f"dst{n}", "int8")
        assert (tmp_path / f"dst{n}" / "tokenizer.model").read_bytes() == (folder / "tokenizer.model").read_bytes()
    (above / "tokenizer.model").unlink()
    with pytest.warns(UserWarning, match="tokenizer.model"):
        convert(above / "model", tmp_path / "without", "int8")


def test_a_scale_of_zero_or_less_is_damage(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "q", "int8")
    file = tmp_path / "q" / "consolidated.00.pth"
    tensors = torch.load(file, weights_only=True)
    tensors["layers.0.attention.wo.scale"][3] *= -1
    torch.save(tensors, file)
    with pytest.raises(CheckpointError, match=r"layers\.0\.attention\.wo\.scale"):
        Llama.build(tmp_path / "q", device="cpu")
