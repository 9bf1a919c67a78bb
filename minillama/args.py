"""The numbers that define a Llama: `params.json` in, every check that needs no weights.

Field names and defaults are those of Meta's `llama/model.py`; presets are Table 1 of Touvron et al., "Llama 2" (2023).
"""

from __future__ import annotations

import json
import operator
import os
import reprlib
import textwrap
import warnings
from dataclasses import dataclass, fields, replace
from numbers import Real
from pathlib import Path
from typing import Any

# Keys that Meta's and others' params.json files carry and that say nothing about the model's arithmetic.
HARMLESS_KEYS = {"model_type", "_name_or_path", "torch_dtype", "quantized"}  # the last is checkpoint.py's to read
# How Meta's params.json asks for scaled RoPE; `rope_scaling` is ours, with the keys of Hugging Face's config.json.
META_SCALING_KEYS = {"use_scaled_rope", "rope_scaling_factor", "rope_high_freq_factor"}
ORIGINAL_LENGTH = "original_max_position_embeddings"
# The kinds of RoPE scaling: the keys that each needs, and those that it may have.
ROPE_SCALINGS: dict[str, tuple[list[str], list[str]]] = {
    "linear": (["factor"], []),
    "ntk": (["factor"], []),
    "dynamic": (["factor", ORIGINAL_LENGTH], []),
    "yarn": (["factor", ORIGINAL_LENGTH], ["beta_fast", "beta_slow", "attention_factor", "truncate"]),
    "llama3": (["factor", "low_freq_factor", "high_freq_factor", ORIGINAL_LENGTH], []),
}
LLAMA2_CONTEXT = 4096
LONGEST_CONTEXT = 2**20  # RoPE's table has a row for every position: half a gigabyte here, at head_dim 128


def ffn_hidden_dim(dim: int, multiple_of: int, ffn_dim_multiplier: float | None = None) -> int:
    """Width F of the feed-forward block: 2/3 of 4*dim (SwiGLU has three matrices, not two), scaled, rounded up.

    Both `int`s matter: 70B is int(1.3 * int(2 * 4 * 8192 / 3)) rounded up to a multiple of 4096, that is 28672.
    """
    hidden = int(2 * (4 * dim) / 3)
    if ffn_dim_multiplier is not None:
        hidden = int(ffn_dim_multiplier * hidden)
    return multiple_of * ((hidden + multiple_of - 1) // multiple_of)


@dataclass
class ModelArgs:
    """Shape of a Llama. Raises ValueError, with the numbers, for any that cannot be built.

    `vocab_size` -1 means "not said": it is read off the embedding when a checkpoint is loaded.
    `max_seq_len` bounds positions (prompt and answer together); no memory is set aside for it.
    `rope_scaling` names a kind and its numbers, {"rope_type": "linear", "factor": 2.0}: see `minillama.rope_scaling`.
    """

    dim: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int = None  # type: ignore[assignment]  # None in a file means n_heads; an int from here on
    vocab_size: int = -1
    multiple_of: int = 256
    ffn_dim_multiplier: float | None = None
    norm_eps: float = 1e-5
    max_batch_size: int = 32
    max_seq_len: int = 2048
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.n_kv_heads is None:
            self.n_kv_heads = self.n_heads
        for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "multiple_of", "max_batch_size"):
            setattr(self, name, _count(name, getattr(self, name)))
        self.max_seq_len = _count("max_seq_len", self.max_seq_len, LONGEST_CONTEXT)
        if self.vocab_size != -1:
            self.vocab_size = _count("vocab_size", self.vocab_size)
        for name in ("norm_eps", "rope_theta"):
            setattr(self, name, _positive_number(name, getattr(self, name)))
        if self.ffn_dim_multiplier is not None:
            self.ffn_dim_multiplier = _positive_number("ffn_dim_multiplier", self.ffn_dim_multiplier)
        if self.dim % self.n_heads:
            raise ValueError(f"dim {self.dim} is not divisible by n_heads {self.n_heads}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.n_kv_heads}: "
                "every kv head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim {self.head_dim} (dim {self.dim} / n_heads {self.n_heads}) is odd: RoPE rotates pairs"
            )
        self.rope_scaling = checked_rope_scaling(self.rope_scaling)
        kind = self.rope_scaling and self.rope_scaling["rope_type"]
        if kind in ("ntk", "dynamic") and self.head_dim == 2:
            raise ValueError(f"rope_scaling {kind} raises theta to the power h / (h - 2), and head_dim h is 2")
        if kind == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"rope_scaling yarn needs a rope_theta above 1, got {self.rope_theta}")
        made_of = f"dim {self.dim}, multiple_of {self.multiple_of}, ffn_dim_multiplier {self.ffn_dim_multiplier}"
        whole_number(f"the feed-forward width from {made_of}", self.hidden_dim)

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def hidden_dim(self) -> int:
        return ffn_hidden_dim(self.dim, self.multiple_of, self.ffn_dim_multiplier)

    @property
    def n_params(self) -> int:
        """Number of weights: embedding and output (untied in Llama 2), the layers, the norms."""
        if self.vocab_size == -1:
            raise ValueError("vocab_size is -1 (not said), so the parameters cannot be counted; set it")
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.n_kv_heads * self.head_dim
        layer = attention + 3 * self.dim * self.hidden_dim + 2 * self.dim
        return 2 * self.vocab_size * self.dim + self.n_layers * layer + self.dim

    def check_ranks(self, world_size: int) -> None:
        """Raise ValueError, with the numbers, if the model cannot be shared by `world_size` ranks.

        Query heads, feed-forward and vocabulary are cut into equal parts. kv heads are too, or, where there are more
        ranks, each is repeated on as many.
        """
        if self.fits_ranks(world_size):
            return
        fits = [n for n in range(1, self.n_heads + 1) if self.fits_ranks(n)]
        remedy = f"this model runs on {', '.join(map(str, fits))}"
        for name in ("n_heads", "dim", "hidden_dim", "vocab_size"):
            if getattr(self, name) % world_size:
                raise ValueError(f"{name} {getattr(self, name)} is not divisible by {world_size} ranks; {remedy}")
        raise ValueError(f"n_kv_heads {self.n_kv_heads} and {world_size} ranks: neither divides the other; {remedy}")

    def check_tokenizer(self, n_words: int) -> None:
        """Raise ValueError, with both numbers, unless a tokenizer of `n_words` pieces has one for each row."""
        if n_words != self.vocab_size:
            raise ValueError(
                f"the model's embedding has {self.vocab_size} rows and the tokenizer {n_words} pieces: "
                "the tokenizer belongs to another model; pass the right one as tokenizer_path"
            )

    def fits_ranks(self, world_size: int) -> bool:
        parts = (self.n_heads, self.dim, self.hidden_dim, self.vocab_size)
        kv_heads_fit = self.n_kv_heads % world_size == 0 or world_size % self.n_kv_heads == 0
        return kv_heads_fit and all(part % world_size == 0 for part in parts)

    @classmethod
    def preset(cls, name: str) -> ModelArgs:
        """One of the Llama 2 family by name: "7B", "13B" or "70B"."""
        if not isinstance(name, str) or name.upper() not in PRESETS:
            raise ValueError(f"no preset {shown(name)}; there are {', '.join(PRESETS)}")
        return cls(**PRESETS[name.upper()])

    @classmethod
    def from_json(cls, path: str | Path, **overrides: Any) -> ModelArgs:
        """Read a params.json. Keys it does not know are named in a warning; `overrides` that are not None win.

        Raises FileNotFoundError without the file, ValueError for anything in it that cannot be a model.
        """
        return cls.from_params(read_params(path), as_path("path", path), **overrides)

    @classmethod
    def from_params(cls, params: dict[str, Any], path: Path, **overrides: Any) -> ModelArgs:
        """`from_json` for what a file says in the names of params.json; path: that file, for messages."""
        missing = [name for name in ("dim", "n_layers", "n_heads") if name not in params]
        if missing:
            raise ValueError(f"{path} does not say {', '.join(missing)}")
        known = {field.name for field in fields(cls)}
        overrides = {key: value for key, value in overrides.items() if value is not None}
        unknown = sorted(params.keys() - known - HARMLESS_KEYS - META_SCALING_KEYS)
        if unknown:
            warnings.warn(f"{path}: keys not used: {', '.join(unknown)}", stacklevel=3)
        chosen = {"max_seq_len": LLAMA2_CONTEXT} | {
            key: params[key] for key in params.keys() & (known - overrides.keys())
        }
        try:
            args = cls(**chosen | rope_scaling_from_meta(params))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return replace(args, **overrides)  # what is wrong there is not the file's fault


def checked_rope_scaling(scaling: Any) -> dict[str, Any] | None:
    """`scaling` with its kind under "rope_type" and its numbers checked; None for the kind "default", which is none.

    Raises ValueError, naming the keys, for a kind or a key that is not known and for one that is needed and missing.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, dict):
        raise ValueError(f"rope_scaling is {shown(scaling)}; expected null, or an object with rope_type, factor, ...")
    said = {key: value for key, value in scaling.items() if value is not None and key not in ("type", "finetuned")}
    kind = said.pop("rope_type", scaling.get("type"))  # "type" is the older spelling
    if kind == "default" and not said:
        return None
    if not isinstance(kind, str) or kind not in ROPE_SCALINGS:
        kinds = ", ".join(ROPE_SCALINGS)
        raise ValueError(f"rope_scaling {shown(scaling)} is of the rope_type {shown(kind)}; there are {kinds}")
    needed, optional = ROPE_SCALINGS[kind]
    missing, unknown = [key for key in needed if key not in said], [*map(str, said.keys() - {*needed, *optional})]
    if missing:
        raise ValueError(f"rope_scaling {kind} needs {', '.join(needed)}, and does not say {', '.join(missing)}")
    if unknown:
        unused = ", ".join(sorted(unknown))
        raise ValueError(f"rope_scaling {kind} takes {', '.join(needed + optional)}, and not {shown(unused)}")
    for key, value in said.items():
        name = f"rope_scaling {kind}: {key}"
        if key == "truncate":
            if not isinstance(value, bool):
                raise ValueError(f"{name} is {shown(value)}; expected true or false")
        elif key == ORIGINAL_LENGTH:
            said[key] = _count(name, value)
        else:
            said[key] = real_number(name, value, 1e-3, 1e6, "a number from 0.001 to 1,000,000")
    ends = {"beta_slow": 1.0, "beta_fast": 32.0} | said
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if low in ends and ends[low] >= ends[high]:
            raise ValueError(f"rope_scaling {kind}: {low} is {ends[low]} and {high} {ends[high]}; expected more")
    return {"rope_type": kind, **said}


def rope_scaling_from_meta(params: dict[str, Any]) -> dict[str, Any]:
    """What Meta's `use_scaled_rope` stands for, as keyword arguments of ModelArgs; {} where it is not asked for."""
    asked = params.get("use_scaled_rope")
    if asked is not None and not isinstance(asked, bool):
        raise ValueError(f"use_scaled_rope is {shown(asked)}; expected true or false")
    given = {key: params[key] for key in sorted(META_SCALING_KEYS & params.keys()) if params[key] is not None}
    if not asked:
        for key in ("rope_scaling_factor", "rope_high_freq_factor"):
            if key in given:
                remedy = "set that to true, or take this key away"
                raise ValueError(f"{key} is {shown(given[key])} and use_scaled_rope not true: {remedy}")
        return {}
    if params.get("rope_scaling") is not None:
        raise ValueError("use_scaled_rope and rope_scaling both say how to scale RoPE; take one away")
    return {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": given.get("rope_scaling_factor", 8.0),
            "low_freq_factor": 1.0,
            "high_freq_factor": given.get("rope_high_freq_factor", 4.0),
            ORIGINAL_LENGTH: 8192,
        }
    }


def read_params(path: str | Path) -> dict[str, Any]:
    """What a params.json says. Raises FileNotFoundError without the file, ValueError for one that is no JSON object."""
    path = as_path("path", path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no {path.name} in {path.parent}: a checkpoint folder needs Meta's params.json")
    try:
        params = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from None
    if not isinstance(params, dict):
        raise ValueError(f"{path} holds a {type(params).__name__}; expected an object with dim, n_layers, ...")
    return params


PRESETS: dict[str, dict[str, Any]] = {
    "7B": dict(dim=4096, n_layers=32, n_heads=32, vocab_size=32000, multiple_of=256, max_seq_len=4096),
    "13B": dict(dim=5120, n_layers=40, n_heads=40, vocab_size=32000, multiple_of=256, max_seq_len=4096),
    "70B": dict(
        dim=8192, n_layers=80, n_heads=64, n_kv_heads=8, vocab_size=32000,
        multiple_of=4096, ffn_dim_multiplier=1.3, max_seq_len=4096,
    ),
}  # fmt: skip


def whole_number(name: str, value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    """`value` as an int. Raises ValueError, with its name and itself, if it is no whole number or out of range."""
    number = as_index(value)
    if number is None or not least <= number <= most:
        limit = "" if most == 2**31 - 1 else f", at most {most}"
        raise ValueError(f"{name} is {shown(value)}; expected a whole number of {least} or more{limit}")
    return number


def real_number(name: str, value: Any, least: float, most: float, expected: str) -> float:
    """`value` as a float. Raises ValueError, with its name and itself, if it is no number, NaN or out of range."""
    number = value.item() if isinstance(value, Real) and hasattr(value, "item") else value  # of numpy
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not least <= number <= most:
        raise ValueError(f"{name} is {shown(value)}; expected {expected}")
    return float(number)


def as_index(value: Any) -> int | None:
    """`value` as an int if it is a whole number of Python, numpy or torch, otherwise None. True is no number here."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def as_path(name: str, value: Any) -> Path:
    """`value` as a Path. Raises ValueError, with its name and itself, if it is not one."""
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise ValueError(f"{name} is {shown(value)}; expected a path")
    return Path(value)


def count(n: int, what: str) -> str:
    """For a message: "1 file", "2 files"."""
    return f"{n} {what}{'s' * (n != 1)}"


def first_line(error: BaseException | str) -> str:
    """What an error says in its first line, cut between words where it is long, for a message of ours."""
    return textwrap.shorten(str(error).split("\n")[0], 200, placeholder=" ...")


def shown(value: Any) -> str:
    """`value` as it stands in a message: a long list or a number of 400 digits is cut short."""
    return reprlib.repr(value)


def _count(name: str, value: Any, most: int = 2**31 - 1) -> int:
    # JSON writers differ: 4096 and 4096.0 are both met.
    return whole_number(name, int(value) if isinstance(value, float) and value.is_integer() else value, most=most)


def _positive_number(name: str, value: Any) -> float:
    return real_number(name, value, 1e-30, 1e30, "a positive number that fp32 can hold")
