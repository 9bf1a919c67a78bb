"""RoPE beyond the length that a model was trained at: the table of angles, scaled by name.

    rope_type   what it does to a pair's angle per position
    linear      divides it by `factor`: position 8,000 looks like 4,000. Chen et al., "Position Interpolation" (2023)
    ntk         grows theta by factor^(h / (h - 2)): slow pairs slow down by `factor`, fast ones hardly. "NTK-aware"
    dynamic     ntk, by no more than the length needs; the name is transformers'. "Dynamic NTK"
    yarn        divides slow pairs' by `factor`, leaves fast ones', a ramp between; sharpens softmax. Peng et al. (2023)
    llama3      divides slow pairs' by `factor`, leaves fast ones', another ramp between. Llama 3.1 (2024)

A dynamic table depends on the length of the text. Here a table is made once, for `max_seq_len`: the angles are those
that transformers turns a text of `max_seq_len` tokens by. (transformers makes new ones while a text grows, and leaves
the keys in its cache as the old ones turned them.) With a `max_seq_len` of no more than the original, nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from minillama.args import ORIGINAL_LENGTH, ModelArgs, checked_rope_scaling, shown

HF_THETA = 10000.0  # what a config.json means that does not say


def scaled_freqs_cis(args: ModelArgs) -> torch.Tensor:
    """As `precompute_freqs_cis`, for args that have a rope_scaling: (max_seq_len, h/2) complex64.

    YaRN's entries are longer than 1: queries and keys grow by its attention factor as they are turned.
    """
    freqs, attention_factor = scaled_frequencies(args)
    angles = torch.outer(torch.arange(args.max_seq_len, dtype=torch.float32, device="cpu"), freqs)  # (end, h/2)
    return torch.polar(torch.full_like(angles, attention_factor), angles)


def scaled_frequencies(args: ModelArgs) -> tuple[torch.Tensor, float]:
    """The angle by which each pair turns from one position to the next, (h/2,) fp32, and the attention factor."""
    if args.rope_scaling is None:
        raise ValueError("these args have no rope_scaling")
    h, theta, scaling = args.head_dim, args.rope_theta, args.rope_scaling
    kind, factor = scaling["rope_type"], scaling["factor"]
    if kind == "linear":
        return frequencies(h, theta) / factor, 1.0
    if kind == "ntk":
        return frequencies(h, ntk_theta(h, theta, factor)), 1.0
    if kind == "dynamic":
        original = scaling[ORIGINAL_LENGTH]
        needed = factor * max(args.max_seq_len, original) / original - (factor - 1)  # 1 at the original length
        return frequencies(h, ntk_theta(h, theta, needed)), 1.0
    freqs = frequencies(h, theta)
    keep = yarn_keeps(h, theta, scaling) if kind == "yarn" else llama3_keeps(freqs, scaling)  # (h/2,)
    return (1 - keep) * freqs / factor + keep * freqs, yarn_attention(scaling) if kind == "yarn" else 1.0


def frequencies(dim: int, theta: float) -> torch.Tensor:
    """theta^(-2i/h) for each pair i: (h/2,) fp32, to the bit those inside `precompute_freqs_cis`."""
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)


def ntk_theta(dim: int, theta: float, factor: float) -> float:
    """The theta by which the slowest pair turns `factor` times slower: (factor^(h/(h-2)))^((h-2)/h) = factor."""
    return theta * factor ** (dim / (dim - 2))


def yarn_keeps(dim: int, theta: float, scaling: Mapping[str, Any]) -> torch.Tensor:
    """How much of each pair's own frequency YaRN keeps: 1 for fast pairs, 0 for slow ones, (h/2,).

    Fast ones turn `beta_fast` times or more within the original length, slow ones `beta_slow` times or less. The paper
    ramps over the number of turns; its code, by which models were trained, and transformers over the pair's number.
    """

    def pair_that_turns(times: float) -> float:
        # 2 pi theta^(2i/h) is the wavelength of pair i; the original length holds it `times` times.
        return dim * math.log(scaling[ORIGINAL_LENGTH] / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = (pair_that_turns(scaling.get(key, times)) for key, times in (("beta_fast", 32), ("beta_slow", 1)))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001
    ramp = (torch.arange(dim // 2, dtype=torch.float32, device="cpu") - first) / width
    return 1 - ramp.clamp(0, 1)


def yarn_attention(scaling: Mapping[str, Any]) -> float:
    """What queries and keys are multiplied by, so that softmax stays as sharp over more tokens."""
    if "attention_factor" in scaling:
        return scaling["attention_factor"]
    return 0.1 * math.log(max(scaling["factor"], 1.0)) + 1.0


def llama3_keeps(freqs: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """How much of each pair's own frequency Llama 3.1 keeps: all at `high_freq_factor` turns within the original length
    or more, nothing at `low_freq_factor` or fewer, (h/2,)."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling[ORIGINAL_LENGTH] / (2 * math.pi / freqs)
    return ((turns - low) / (high - low)).clamp(0, 1)


def rope_scaling_from_hf(config: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """theta and rope_scaling, as ModelArgs takes them, of a config.json: transformers 4's spelling or 5's.

    4 has rope_theta and rope_scaling side by side, 5 has both in rope_parameters. Raises ValueError for a scaling that
    is not known or lacks a number.
    """
    said = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(said, Mapping):
        raise ValueError(f"the config's RoPE is {shown(said)}; expected an object with rope_type, factor, ...")
    said = {key: value for key, value in said.items() if value is not None}
    theta = said.pop("rope_theta", None) or config.get("rope_theta") or HF_THETA
    part = said.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    if part != 1.0:
        raise ValueError(f"partial_rotary_factor is {shown(part)}: a Llama turns all of each head (1.0)")
    if not said:
        return theta, None
    kind, length = said.get("rope_type", said.get("type")), config.get("max_position_embeddings")
    if kind == "dynamic":  # there, the config's length is the one before scaling
        said[ORIGINAL_LENGTH] = length
    elif kind in ("yarn", "llama3"):
        said[ORIGINAL_LENGTH] = config.get(ORIGINAL_LENGTH) or said.get(ORIGINAL_LENGTH, length)
    else:
        said.pop(ORIGINAL_LENGTH, None)
    return theta, checked_rope_scaling(said)


def rope_to_hf(args: ModelArgs) -> dict[str, Any]:
    """The keys of a config.json that say what `args` say of RoPE, in transformers 5's spelling.

    A dynamic model's max_position_embeddings is its original length, as transformers reads it.
    """
    theta, scaling = args.rope_theta, args.rope_scaling or {"rope_type": "default"}
    length = args.max_seq_len
    if scaling["rope_type"] == "ntk":  # has no name there, and is nothing but a larger theta
        theta, scaling = ntk_theta(args.head_dim, theta, scaling["factor"]), {"rope_type": "default"}
    elif scaling["rope_type"] == "dynamic":
        length = scaling[ORIGINAL_LENGTH]
        scaling = {key: value for key, value in scaling.items() if key != ORIGINAL_LENGTH}
    return {"rope_parameters": {"rope_theta": theta, **scaling}, "max_position_embeddings": length}
