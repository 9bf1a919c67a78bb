"""Scaled RoPE: each kind against the papers' formulas in float64, transformers' frequencies, and its whole model."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from minillama import KVCache, ModelArgs, Transformer
from minillama.rope import precompute_freqs_cis
from minillama.rope_scaling import (
    frequencies,
    rope_scaling_from_hf,
    rope_to_hf,
    scaled_freqs_cis,
    scaled_frequencies,
)
from minillama.teach import swapped
from minillama.teach.slots import PartError

TOLERANCE = 1e-6  # relative, of a frequency in fp32
LOGITS = 1e-5  # of the largest logit, in fp32
LENGTH = "original_max_position_embeddings"

LINEAR = {"rope_type": "linear", "factor": 4.0}
NTK = {"rope_type": "ntk", "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, LENGTH: 64}
YARN = {"rope_type": "yarn", "factor": 8.0, LENGTH: 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, LENGTH: 64}
LLAMA31 = LLAMA3 | {LENGTH: 8192}
YARN_64K = {"rope_type": "yarn", "factor": 16.0, LENGTH: 4096}  # Llama 2, stretched from 4,096 to 65,536
KINDS = {
    "linear": LINEAR, "ntk": NTK, "dynamic": DYNAMIC, "yarn": YARN, "llama3": LLAMA3, "Llama 3.1": LLAMA31,
    "YaRN of 64K": YARN_64K, "dynamic from 4096": DYNAMIC | {LENGTH: 4096, "factor": 4.0},
    "yarn with its own numbers": YARN_64K | {"beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.5},
    "yarn with a ramp between pairs": YARN_64K | {"truncate": False}, "yarn below 1": YARN | {"factor": 0.5},
    "yarn on a point": YARN_64K | {"beta_fast": 1.001, "beta_slow": 1.0, "truncate": False},
    "yarn from beyond the slowest pair": YARN_64K | {LENGTH: 131072}, "yarn from nothing": YARN_64K | {LENGTH: 6},
    "factor 1": LINEAR | {"factor": 1}, "no whole factor": LLAMA31 | {"factor": 2.5},
}  # fmt: skip
SHAPES = [(16, 10000.0), (64, 500000.0), (128, 10000.0), (128, 1e6)]  # h, theta
each_kind = pytest.mark.parametrize("scaling", KINDS.values(), ids=KINDS)
each_shape = pytest.mark.parametrize(("h", "theta"), SHAPES, ids=str)


def args_of(h: int, theta: float, scaling: dict[str, Any] | None, max_seq_len: int = 16384) -> ModelArgs:
    return ModelArgs(dim=4 * h, n_heads=4, rope_theta=theta, rope_scaling=scaling, max_seq_len=max_seq_len)


def by_the_papers(h: int, theta: float, scaling: dict[str, Any], length: int) -> tuple[list[float], float]:
    """Frequency of each pair, one by one in float64, and the attention factor."""
    kind, s = scaling["rope_type"], scaling["factor"]
    found = []
    for i in range(h // 2):
        plain = theta ** (-2 * i / h)
        wavelength = 2 * math.pi / plain
        if kind == "linear":  # Chen et al. 2023: f(x, m / s)
            found.append(plain / s)
        elif kind in ("ntk", "dynamic"):  # Peng et al. 2023, section 3
            if kind == "dynamic":
                s = max(1.0, scaling["factor"] * length / scaling[LENGTH] - (scaling["factor"] - 1))
            found.append((theta * s ** (h / (h - 2))) ** (-2 * i / h))
        elif kind == "yarn":
            # The pair that turns r times within the original length, and the ramp of the released code.
            ends = []
            for r, rounded in ((scaling.get("beta_fast", 32), math.floor), (scaling.get("beta_slow", 1), math.ceil)):
                pair = h / 2 * math.log(scaling[LENGTH] / (2 * math.pi * r), theta)
                ends.append(rounded(pair) if scaling.get("truncate", True) else pair)
            low, high = max(ends[0], 0), min(ends[1], h - 1)
            ramp = min(1.0, max(0.0, (i - low) / (high - low or 0.001)))
            found.append(plain * ((1 - ramp) + ramp / s))
        else:  # Llama 3.1's three cases, by wavelength
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            if wavelength < scaling[LENGTH] / high:
                found.append(plain)
            elif wavelength > scaling[LENGTH] / low:
                found.append(plain / s)
            else:
                smooth = (scaling[LENGTH] / wavelength - low) / (high - low)
                found.append((1 - smooth) * plain / s + smooth * plain)
    attention = scaling.get("attention_factor", 0.1 * math.log(s) + 1 if s > 1 else 1.0) if kind == "yarn" else 1.0
    return found, attention


def by_transformers(h: int, theta: float, scaling: dict[str, Any], length: int) -> tuple[torch.Tensor, float]:
    kind = scaling["rope_type"]
    before = scaling[LENGTH] if kind == "dynamic" else 131072
    said = {key: value for key, value in scaling.items() if kind != "dynamic" or key != LENGTH}
    config = LlamaConfig(
        hidden_size=4 * h, num_attention_heads=4, max_position_embeddings=before,
        rope_parameters={"rope_theta": theta, **said},
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest relative difference of one entry."""
    assert found.shape == expected.shape
    return float(((found.double() - expected.double()) / expected.double()).abs().max())


# --- Frequencies -----------------------------------------------------------------------------------------------------


@each_kind
@each_shape
@pytest.mark.parametrize("length", [64, 16384])
def test_frequencies_are_those_of_the_papers(scaling: dict[str, Any], h: int, theta: float, length: int) -> None:
    found, attention = scaled_frequencies(args_of(h, theta, scaling, length))
    expected, expected_attention = by_the_papers(h, theta, scaling, length)
    assert found.dtype == torch.float32
    assert off(found, torch.tensor(expected, dtype=torch.float64)) <= TOLERANCE
    assert attention == pytest.approx(expected_attention, rel=1e-12)


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "ntk"])  # transformers has no name for that one
@each_shape
def test_frequencies_are_those_of_transformers(kind: str, h: int, theta: float) -> None:
    scaling = KINDS[kind]
    found, attention = scaled_frequencies(args_of(h, theta, scaling))
    expected, expected_attention = by_transformers(h, theta, scaling, 16384)
    assert off(found, expected) <= TOLERANCE
    assert attention == pytest.approx(expected_attention, rel=1e-12)


def test_frequencies_without_scaling_are_those_of_chapter_02() -> None:
    for h, theta in SHAPES:
        angles = torch.outer(torch.arange(3.0), frequencies(h, theta))
        assert torch.equal(torch.polar(torch.ones_like(angles), angles), precompute_freqs_cis(h, 3, theta))


def test_ntk_slows_the_slowest_pair_by_the_factor_and_the_fastest_not_at_all() -> None:
    plain = frequencies(128, 10000.0)
    found, _ = scaled_frequencies(args_of(128, 10000.0, NTK))
    assert found[0] == plain[0] == 1.0
    assert float(plain[-1] / found[-1]) == pytest.approx(4.0, rel=TOLERANCE)


def test_dynamic_changes_nothing_up_to_the_original_length_and_more_the_longer_the_text() -> None:
    plain = frequencies(64, 10000.0)
    for length in (1, 63, 64):
        assert torch.equal(scaled_frequencies(args_of(64, 10000.0, DYNAMIC, length))[0], plain)
    slowest = [scaled_frequencies(args_of(64, 10000.0, DYNAMIC, length))[0][-1] for length in (64, 65, 128, 1024)]
    assert slowest == sorted(slowest, reverse=True) and len(set(slowest)) == 4
    # (2 * 128 / 64) - (2 - 1) = 3 at twice the length
    assert float(plain[-1] / slowest[2]) == pytest.approx(3.0, rel=TOLERANCE)


@pytest.mark.parametrize("scaling", [YARN_64K, LLAMA31], ids=["yarn", "llama3"])
def test_fast_pairs_are_left_and_slow_ones_divided_by_the_factor(scaling: dict[str, Any]) -> None:
    plain = frequencies(128, 500000.0)
    found, _ = scaled_frequencies(args_of(128, 500000.0, scaling))
    assert torch.equal(found[:12], plain[:12])
    assert off(found[-8:], plain[-8:] / scaling["factor"]) <= TOLERANCE
    kept = found / plain
    assert (kept.diff() <= TOLERANCE).all() and len({*kept.tolist()}) >= 8  # and a ramp between


def test_yarn_attention_factor_is_the_paper_s() -> None:
    assert scaled_frequencies(args_of(64, 10000.0, YARN_64K))[1] == pytest.approx(
        1.2772588722, abs=1e-10
    )  # 1 + ln(16)/10


# --- The table -------------------------------------------------------------------------------------------------------


@each_kind
def test_table_has_the_angle_of_each_position(scaling: dict[str, Any]) -> None:
    args = args_of(64, 10000.0, scaling, 200)
    freqs, attention = scaled_frequencies(args)
    table = scaled_freqs_cis(args)
    assert table.shape == (200, 32) and table.dtype == torch.complex64
    angles = torch.arange(200, dtype=torch.float64)[:, None] * freqs.double()
    expected = attention * torch.polar(torch.ones_like(angles), angles)
    assert (table - expected).abs().max() <= 2e-5 * attention  # an angle of 200 in fp32 is good to 1.5e-5


def test_scaled_table_is_made_on_the_cpu_when_the_model_is_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Transformer(ModelArgs(dim=64, n_heads=4, n_layers=1, vocab_size=32, rope_scaling=YARN, max_seq_len=128))
    assert model.freqs_cis.device.type == "cpu"
    assert model.freqs_cis.abs().mean() == pytest.approx(0.1 * math.log(8) + 1, rel=1e-6)


# --- Whole models ----------------------------------------------------------------------------------------------------

TINY = dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=128, multiple_of=32, max_seq_len=256)


def weights_of(args: ModelArgs) -> dict[str, torch.Tensor]:
    """Weights of which attention prefers some keys, and logits of several units."""
    generator = torch.Generator().manual_seed(3)
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in Transformer(args).state_dict().items()}
    made = {}
    for key, shape in shapes.items():
        if len(shape) == 1:
            made[key] = torch.rand(shape, generator=generator) + 0.5
        else:
            gain = {"wq": 1.5, "wk": 1.5, "output": 2.0}.get(key.split(".")[-2], 1.0)
            scale = 1.0 if key.startswith("tok") else gain * shape[1] ** -0.5
            made[key] = torch.randn(shape, generator=generator) * scale
    return made


def ours(scaling: dict[str, Any] | None, **changes: Any) -> Transformer:
    args = ModelArgs(**TINY | changes, rope_scaling=scaling)
    model = Transformer(args)
    model.load_state_dict(weights_of(args))
    return model.eval()


def theirs(model: Transformer, rope_parameters: dict[str, Any], max_position_embeddings: int) -> LlamaForCausalLM:
    args = model.args
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = LlamaForCausalLM(LlamaConfig(
            vocab_size=args.vocab_size, hidden_size=args.dim, intermediate_size=args.hidden_dim,
            num_hidden_layers=args.n_layers, num_attention_heads=args.n_heads, num_key_value_heads=args.n_kv_heads,
            rms_norm_eps=args.norm_eps, max_position_embeddings=max_position_embeddings, tie_word_embeddings=False,
            rope_parameters=rope_parameters, attn_implementation="eager",
        ))  # fmt: skip
    names = {
        "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head", "layers": "model.layers",
        "attention": "self_attn", "wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wo": "o_proj",
        "feed_forward": "mlp", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj",
        "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    renamed = {}
    for key, weight in model.state_dict().items():
        heads = {"wq": args.n_heads, "wk": args.n_kv_heads}.get(key.split(".")[-2])
        if heads:  # pairs (0, 1), (2, 3), ... become (0, h/2), (1, h/2 + 1), ...
            weight = weight.view(heads, -1, 2, args.dim).transpose(1, 2).reshape(weight.shape)
        renamed[".".join(names.get(part, part) for part in key.split("."))] = weight
    other.load_state_dict(renamed)
    return other.eval()


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


WHOLE = {
    "linear": LINEAR, "dynamic": DYNAMIC, "yarn": YARN, "llama3": LLAMA3,
    "yarn, other numbers": YARN | {"beta_fast": 8.0, "beta_slow": 0.5, "attention_factor": 1.4, "truncate": False},
}  # fmt: skip


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", WHOLE.values(), ids=WHOLE)
@torch.no_grad()
def test_logits_beyond_the_original_length_are_those_of_transformers(scaling: dict[str, Any], theta: float) -> None:
    model = ours(scaling, rope_theta=theta)
    tokens = torch.randint(128, (2, 256), generator=torch.Generator().manual_seed(1))  # 4 times the original length
    dynamic = scaling["rope_type"] == "dynamic"
    said = {key: value for key, value in scaling.items() if not (dynamic and key == LENGTH)}
    expected = theirs(model, {"rope_theta": theta, **said}, 64 if dynamic else 256)(tokens).logits
    assert expected.abs().max() > 5  # near zero anything would agree
    assert difference(model(tokens), expected) <= LOGITS
    cache = KVCache.for_model(model, 2, 256)
    chunks = [model(tokens[:, :60], 0, cache), model(tokens[:, 60:255], 60, cache), model(tokens[:, 255:], 255, cache)]
    assert difference(torch.cat(chunks, 1), expected) <= LOGITS
    assert difference(ours(None, rope_theta=theta)(tokens), expected) > 1e-2  # and scaling is felt


@torch.no_grad()
def test_ntk_is_a_larger_theta_to_transformers() -> None:
    model = ours(NTK)
    tokens = torch.randint(128, (1, 256), generator=torch.Generator().manual_seed(2))
    theta = 10000.0 * 4.0 ** (16 / 14)
    expected = theirs(model, {"rope_type": "default", "rope_theta": theta}, 256)(tokens).logits
    assert difference(model(tokens), expected) <= LOGITS
    assert difference(ours(None)(tokens), expected) > 1e-2


@torch.no_grad()
def test_code_llama_theta_at_far_positions() -> None:
    theta, scaling = rope_scaling_from_hf(
        {"rope_theta": 1000000, "rope_scaling": None, "max_position_embeddings": 16384}
    )
    assert (theta, scaling) == (1e6, None)
    model = ours(scaling, rope_theta=theta, max_seq_len=1024)
    tokens = torch.randint(128, (1, 1024), generator=torch.Generator().manual_seed(4))
    expected = theirs(model, {"rope_type": "default", "rope_theta": 1e6}, 16384)(tokens).logits
    assert difference(model(tokens), expected) <= LOGITS
    assert difference(ours(None, max_seq_len=1024)(tokens), expected) > 1e-2


# --- params.json -----------------------------------------------------------------------------------------------------


@pytest.fixture
def from_params(tmp_path: Path) -> Callable[..., ModelArgs]:
    def read(**said: Any) -> ModelArgs:
        path = tmp_path / "params.json"
        path.write_text(json.dumps({"dim": 64, "n_layers": 2, "n_heads": 4} | said), encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return ModelArgs.from_json(path)

    return read


def test_meta_spelling_is_llama_3_1_s(from_params: Callable[..., ModelArgs]) -> None:
    said = from_params(use_scaled_rope=True, rope_theta=500000.0)
    assert said == from_params(rope_scaling=LLAMA31, rope_theta=500000.0)
    assert said.rope_scaling == LLAMA31
    assert from_params(use_scaled_rope=True, rope_scaling_factor=32).rope_scaling == LLAMA31 | {"factor": 32.0}
    sixteen = from_params(use_scaled_rope=True, rope_scaling_factor=16, rope_high_freq_factor=1.5).rope_scaling
    assert sixteen == LLAMA31 | {"factor": 16.0, "high_freq_factor": 1.5}


def test_scaling_that_is_not_asked_for_is_none(from_params: Callable[..., ModelArgs]) -> None:
    for said in ({}, {"use_scaled_rope": False}, {"use_scaled_rope": None}, {"rope_scaling": None},
                 {"rope_scaling": {"rope_type": "default"}}, {"rope_scaling_factor": None}):  # fmt: skip
        assert from_params(**said).rope_scaling is None


@each_kind
def test_args_written_and_read_again_are_the_same(
    scaling: dict[str, Any], from_params: Callable[..., ModelArgs]
) -> None:
    args = from_params(rope_scaling=scaling)
    assert args.rope_scaling == scaling
    assert from_params(rope_scaling=args.rope_scaling) == args == replace(args)
    assert torch.equal(scaled_freqs_cis(args), scaled_freqs_cis(from_params(rope_scaling=scaling)))


def test_args_keep_a_scaling_of_their_own() -> None:
    given = {"type": "linear", "factor": 2, "finetuned": True}
    args = ModelArgs(rope_scaling=given)
    assert args.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    assert given == {"type": "linear", "factor": 2, "finetuned": True}  # what was handed in is as it was


WRONG = [
    (7, "rope_scaling is 7"), ("linear", "rope_scaling is 'linear'"), ([], "rope_scaling is []"),
    ({}, "rope_type None; there are linear, ntk, dynamic, yarn, llama3"), ({"factor": 2.0}, "rope_type None"),
    ({"rope_type": "longrope", "factor": 2.0}, "'longrope'; there are linear, ntk, dynamic, yarn, llama3"),
    ({"rope_type": ["linear"], "factor": 2.0}, "there are linear"), ({"rope_type": 1}, "there are linear"),
    ({"rope_type": "default", "factor": 2.0}, "'default'; there are"),
    ({"rope_type": "linear"}, "linear needs factor, and does not say factor"),
    ({"rope_type": "linear", "factor": None}, "does not say factor"),
    ({"rope_type": "yarn", "factor": 2.0}, f"does not say {LENGTH}"),
    ({"rope_type": "dynamic", "factor": 2.0}, f"does not say {LENGTH}"),
    ({"rope_type": "llama3", "factor": 2.0}, f"does not say low_freq_factor, high_freq_factor, {LENGTH}"),
    (LINEAR | {"factor": 0}, "factor is 0; expected a number"), (LINEAR | {"factor": -2.0}, "factor is -2.0"),
    (LINEAR | {"factor": "2"}, "factor is '2'"), (LINEAR | {"factor": True}, "factor is True"),
    (LINEAR | {"factor": math.nan}, "factor is nan"), (LINEAR | {"factor": 1e30}, "factor is 1e+30"),
    (LINEAR | {"low_freq_factor": 1.0}, "linear takes factor, and not 'low_freq_factor'"),
    (YARN | {"mscale": 1.0}, "and not 'mscale'"), (LINEAR | {3: 4}, "and not '3'"),
    (YARN | {LENGTH: 2.5}, f"{LENGTH} is 2.5"), (YARN | {LENGTH: 0}, f"{LENGTH} is 0"),
    (YARN | {"truncate": 1}, "truncate is 1"), (YARN | {"attention_factor": 0}, "attention_factor is 0"),
    (YARN | {"beta_fast": 1.0}, "beta_slow is 1.0 and beta_fast 1.0"),
    (LLAMA3 | {"high_freq_factor": 1.0}, "low_freq_factor is 1.0 and high_freq_factor 1.0; expected more"),
]  # fmt: skip


@pytest.mark.parametrize(("scaling", "named"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_is_no_scaling_is_named(scaling: Any, named: str) -> None:
    with pytest.raises(ValueError) as error:
        ModelArgs(rope_scaling=scaling)
    assert named in str(error.value)


def test_scalings_that_a_shape_cannot_have_are_named() -> None:
    for kind in (NTK, DYNAMIC):
        with pytest.raises(ValueError, match="head_dim h is 2"):
            ModelArgs(dim=8, n_heads=4, rope_scaling=kind)
        ModelArgs(dim=16, n_heads=4, rope_scaling=kind)
    with pytest.raises(ValueError, match="rope_theta above 1, got 1.0"):
        ModelArgs(rope_theta=1.0, rope_scaling=YARN)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"use_scaled_rope": 1}, "use_scaled_rope is 1"),
        ({"use_scaled_rope": "yes"}, "use_scaled_rope is 'yes'"),
        ({"rope_scaling_factor": 8}, "rope_scaling_factor is 8"),
        ({"rope_scaling_factor": 8, "use_scaled_rope": False}, "use_scaled_rope not true"),
        ({"use_scaled_rope": True, "rope_scaling": LINEAR}, "use_scaled_rope and rope_scaling both"),
        ({"use_scaled_rope": True, "rope_scaling_factor": "8"}, "factor is '8'"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "'su'"),
    ],
    ids=str,
)
def test_params_that_scale_wrongly_are_named_with_the_file(
    said: dict[str, Any], named: str, from_params: Callable[..., ModelArgs]
) -> None:
    with pytest.raises(ValueError, match="params.json") as error:
        from_params(**said)
    assert named in str(error.value)


# --- config.json -----------------------------------------------------------------------------------------------------

BARE = {key: value for key, value in YARN_64K.items() if key != LENGTH}
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama 2": {"max_position_embeddings": 4096, "rope_scaling": None, "rope_theta": 10000.0},
    "nothing said": {"max_position_embeddings": 2048},
    "Llama 3.1 in 4's spelling": {
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": LLAMA31,
    },
    "Llama 3.1 in 5's spelling": {
        "max_position_embeddings": 131072, "rope_parameters": LLAMA31 | {"rope_theta": 500000.0},
    },
    "linear, long ago": {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 8.0}},
    "dynamic": {"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "dynamic that says its length": {
        "max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 2e4},
    },
    "yarn": {"max_position_embeddings": 65536, "rope_theta": 10000.0, "rope_scaling": YARN_64K | {"finetuned": True}},
    "yarn whose length is the config's": {"max_position_embeddings": 4096, "rope_scaling": BARE},
    "yarn whose length is beside it": {"max_position_embeddings": 65536, LENGTH: 2048, "rope_scaling": YARN_64K},
    "both words for its kind": {
        "max_position_embeddings": 4096, "rope_scaling": LINEAR | {"type": "linear", "rope_theta": 12345.0},
    },
    "theta twice": {
        "max_position_embeddings": 4096, "rope_theta": 5.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
    },
    "default": {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
}  # fmt: skip
SIZES = dict(hidden_size=512, num_attention_heads=4, intermediate_size=64, num_hidden_layers=1, vocab_size=16)


def table_of_transformers(config: dict[str, Any], length: int) -> torch.Tensor:
    """Its cosines and sines for a text of `length` tokens, as complex numbers (length, h/2)."""
    rotary = LlamaRotaryEmbedding(LlamaConfig(**SIZES, **json.loads(json.dumps(config))))
    cos, sin = rotary(torch.zeros(1), torch.arange(length)[None])
    return torch.complex(cos, sin)[0].chunk(2, -1)[0]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("length", [256, 8192])
def test_a_config_is_read_as_transformers_reads_it(config: dict[str, Any], length: int) -> None:
    before = json.dumps(config)
    theta, scaling = rope_scaling_from_hf(config)
    assert json.dumps(config) == before
    table = precompute_freqs_cis(128, length, theta)
    if scaling is not None:
        table = scaled_freqs_cis(args_of(128, theta, scaling, length))
    # transformers multiplies in another order: 1e-7 of a frequency is 1e-3 of the angle at position 8,191
    assert (table - table_of_transformers(config, length)).abs().max() <= 2e-7 * length


@each_kind
def test_what_is_written_into_a_config_turns_as_the_model_did(scaling: dict[str, Any]) -> None:
    args = args_of(128, 20000.0, scaling, 8192)
    config = rope_to_hf(args)
    theta, read = rope_scaling_from_hf(json.loads(json.dumps(config)))
    if scaling["rope_type"] == "ntk":
        assert read is None and theta == pytest.approx(20000.0 * 4 ** (128 / 126), rel=1e-12)
    else:
        assert (theta, read) == (20000.0, scaling)
    assert (scaled_freqs_cis(args) - table_of_transformers(config, 8192)).abs().max() <= 2e-7 * 8192


def test_a_config_without_scaling_is_written_and_read() -> None:
    config = rope_to_hf(args_of(128, 5e5, None, 4096))
    assert config == {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "max_position_embeddings": 4096,
    }  # fmt: skip
    assert rope_scaling_from_hf(config) == (5e5, None)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, LENGTH),  # and no max_position_embeddings
        ({"rope_scaling": {"factor": 2.0}}, "rope_type None"),
        ({"rope_scaling": "linear"}, "'linear'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_type None"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor is 0.25"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_read_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError) as error:
        rope_scaling_from_hf(config)
    assert named in str(error.value)


# --- A learner's table -----------------------------------------------------------------------------------------------


def a_learner_s(dim: int, end: int, theta: float) -> torch.Tensor:
    return precompute_freqs_cis(dim, end, theta)


@torch.no_grad()
def test_a_learner_s_table_goes_into_a_model_without_scaling_and_is_refused_by_one_with() -> None:
    tokens = torch.arange(8)[None]
    plain, scaled = ours(None), ours(YARN)
    expected = plain(tokens)
    with swapped(precompute_freqs_cis=a_learner_s):
        assert torch.allclose(plain(tokens), expected, atol=1e-5)
        with pytest.raises(PartError, match=r"angles are scaled \(yarn\)"):
            scaled(tokens)
    scaled(tokens)
