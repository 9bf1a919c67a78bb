"""Hugging Face's layout, read and written: `config.json` and `model.safetensors`, whole or in shards with an index.

The numbers are those of Meta's files under other names, but for one thing. RoPE turns pairs of numbers in a head: in
Meta's order 2i and 2i + 1, in Hugging Face's i and i + h/2. So the rows of each head of wq and wk change places:

    Meta           0  1  2  3  4  5  6  7      a head of 8: pairs (0 1) (2 3) (4 5) (6 7)
    Hugging Face   0  2  4  6  1  3  5  7      pairs are 4 apart: (0 1) is now first and fifth

wk has n_kv_heads heads, not n_heads: with the wrong number the model talks fluent nonsense.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open

from minillama.args import ModelArgs, ffn_hidden_dim, first_line, shown
from minillama.rope_scaling import rope_scaling_from_hf, rope_to_hf
from minillama.weights import FLOATS, GIT_LFS, POINTER, CheckpointError, Tensors, Weight, check_keys, first_bytes, some

WHOLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
SHARD = re.compile(r"model-\d+-of-(\d+)\.safetensors")
NAMES = {
    "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
TURNED = ("attention.wq.weight", "attention.wk.weight")  # their rows are in the order that RoPE wants
NOT_PARAMETERS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # tables in early files
# What config.json calls the fields of ModelArgs, and what it means where it is silent (transformers' defaults).
FIELDS: dict[str, tuple[str, Any]] = {
    "dim": ("hidden_size", 4096), "n_layers": ("num_hidden_layers", 32), "n_heads": ("num_attention_heads", 32),
    "n_kv_heads": ("num_key_value_heads", None), "vocab_size": ("vocab_size", 32000),
    "norm_eps": ("rms_norm_eps", 1e-6), "max_seq_len": ("max_position_embeddings", 2048),
}  # fmt: skip
FEED_FORWARD = "intermediate_size"
# (multiple_of, ffn_dim_multiplier) of models that Meta has published: most widths follow from one of them.
PUBLISHED = ((256, None), (256, 1.5), (4096, 1.3), (1024, 1.3))
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


# Names ---------------------------------------------------------------------------------------------------------------


def name_of(key: str) -> str:
    """Hugging Face's name of the weight that Meta calls `key`: layers.3.attention.wq.weight and so on."""
    layer, name = re.fullmatch(r"(layers\.\d+\.)?(.+)\.weight", key).groups()  # type: ignore[union-attr]
    return f"{'model.' + layer if layer else ''}{NAMES[name]}.weight"


def halves_of_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """wq or wk in Meta's order (n*h, in) with its rows in Hugging Face's; `weights.pairs_of_halves` goes back."""
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).reshape(weight.shape)


# config.json ---------------------------------------------------------------------------------------------------------


def params_of(path: Path) -> dict[str, Any]:
    """What a config.json says, in the names of Meta's params.json.

    Raises FileNotFoundError without the file, CheckpointError for a model that is computed in another way.
    """
    config = _read_json(path)
    check_supported(path, config)
    params = {name: config.get(theirs, default) for name, (theirs, default) in FIELDS.items()}
    params["max_seq_len"] = config.get("max_seq_len", params["max_seq_len"])  # ours, where theirs means another length
    try:
        params["rope_theta"], params["rope_scaling"] = rope_scaling_from_hf(config)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    params["multiple_of"], params["ffn_dim_multiplier"] = feed_forward_rule(
        params["dim"], config.get(FEED_FORWARD, 11008), path
    )
    return params


def check_supported(path: Path, config: Mapping[str, Any]) -> None:
    """Raise CheckpointError, with the key, for whatever would give other numbers than a Llama's."""
    kind = config.get("model_type")
    if kind not in ("llama", "mistral"):
        raise CheckpointError(f"{path}: model_type is {shown(kind)}; expected llama, or mistral without sliding_window")
    if kind == "mistral" and config.get("sliding_window", 4096) is not None:
        raise CheckpointError(f"{path}: sliding_window is {shown(config.get('sliding_window', 4096))}; expected null")
    for key, plain in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if config.get(key, plain) != plain:
            raise CheckpointError(f"{path}: {key} is {shown(config[key])}; expected {json.dumps(plain)}")
    if config.get("quantization_config"):
        raise CheckpointError(f"{path}: quantization_config is there; download the full weights, then quantize those")
    dim, heads, head_dim = (config.get(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    fits = isinstance(head_dim, int) and isinstance(dim, int) and isinstance(heads, int) and head_dim * heads == dim
    if head_dim is not None and not fits:
        raise CheckpointError(
            f"{path}: head_dim is {shown(head_dim)}; expected hidden_size / num_attention_heads, {dim} / {heads}"
        )


def feed_forward_rule(dim: Any, width: Any, path: Path) -> tuple[int, float | None]:
    """(multiple_of, ffn_dim_multiplier) from which Meta's rule makes `width`: a published pair, or one that will do."""
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n < 2**31 for n in (dim, width)):
        raise CheckpointError(
            f"{path}: hidden_size is {shown(dim)} and {FEED_FORWARD} {shown(width)}; expected whole numbers above 0"
        )
    for multiple_of, multiplier in PUBLISHED:
        if ffn_hidden_dim(dim, multiple_of, multiplier) == width:
            return multiple_of, multiplier
    # Rounded up to a multiple of itself, anything up to `width` becomes `width`.
    return width, None if ffn_hidden_dim(dim, 1) <= width else width / ffn_hidden_dim(dim, 1)


def config_of(args: ModelArgs, dtype: torch.dtype, ids: Mapping[str, int]) -> dict[str, Any]:
    """The config.json of a model; ids: bos_token_id and eos_token_id. RoPE is said as transformers 5 and 4 read it."""
    shape = {theirs: getattr(args, name) for name, (theirs, _) in FIELDS.items()}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", **shape, FEED_FORWARD: args.hidden_dim,
        "head_dim": args.head_dim, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "torch_dtype": str(dtype).removeprefix("torch."), **ids, **rope_to_hf(args),
    }  # fmt: skip
    if config["max_position_embeddings"] != args.max_seq_len:
        config["max_seq_len"] = args.max_seq_len  # or the way back would give a shorter model, with other angles
    rope = dict(config["rope_parameters"])
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope == {"rope_type": "default"} else {**rope, "type": rope["rope_type"]}
    return config


# The files -----------------------------------------------------------------------------------------------------------


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights in this layout, or some of them."""
    return any((folder / name).exists() for name in (WHOLE, INDEX)) or any(_shards(folder))


def checkpoint_files(folder: Path) -> list[Path]:
    """model.safetensors, or the shards that the index names, in order.

    Raises FileNotFoundError without config.json, CheckpointError for shards that are missing, or that the index does
    not name.
    """
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"no {CONFIG} in {folder}: without it nobody knows what the weights are of; download it"
        )
    shards = _shards(folder)
    if (folder / WHOLE).exists():
        if (folder / INDEX).exists() or shards:
            raise CheckpointError(f"{folder} has {WHOLE} and shards as well; move one of them away")
        return [folder / WHOLE]
    if not (folder / INDEX).exists():
        raise CheckpointError(f"{folder} has {some({path.name for path in shards})} and no {INDEX}; download it")
    names = set(_index(folder).values())
    if missing := {name for name in names if not (folder / name).is_file()}:
        raise CheckpointError(f"{folder} lacks {some(missing)}, which {INDEX} names; finish the download")
    if stray := {path.name for path in shards} - names:
        raise CheckpointError(f"{folder}: {some(stray)} are of another model, {INDEX} does not name them; move them")
    return [folder / name for name in sorted(names)]


def _shards(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("model-*.safetensors") if SHARD.fullmatch(path.name))


def _index(folder: Path) -> dict[str, str]:
    """Names of tensors, and in which file each is."""
    files = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise CheckpointError(f"{folder / INDEX} has no weight_map of names and files; download it again")
    for name in files.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{folder / INDEX} names {shown(name)}; expected files of this folder")
    return files


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: a folder of Hugging Face's layout needs it")
    try:
        said = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download it again") from None
    if not isinstance(said, dict):
        raise CheckpointError(f"{path} holds a {type(said).__name__}; expected an object")
    return said


def read_files(paths: Iterable[Path]) -> list[Tensors]:
    """The tensors of each file, mapped and not yet read."""
    return [read_file(path) for path in paths]


def read_file(path: Path) -> Tensors:
    """The tensors of one file, mapped into memory and not yet read. There is no code in such a file."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}
    except Exception as error:  # safetensors has its own, and passes on Rust's and the system's
        reason = first_line(error) or type(error).__name__
        begins = first_bytes(path)
        remedy = POINTER if begins.startswith(GIT_LFS) else "download it again"
        raise CheckpointError(
            f"{path} cannot be read as safetensors: {reason} (it begins with {begins!r}); {remedy}"
        ) from None
    for key, value in tensors.items():
        if not NOT_PARAMETERS.fullmatch(key) and value.dtype not in FLOATS:
            raise CheckpointError(f"{path}: {key} is {value.dtype}; expected float32, bfloat16 or float16")
    return {key: value for key, value in tensors.items() if not NOT_PARAMETERS.fullmatch(key)}


def dtype_of(files: Iterable[Tensors]) -> torch.dtype:
    """The dtype of the embedding: the model's."""
    embedding = name_of("tok_embeddings.weight")
    for tensors in files:
        if embedding in tensors:
            return tensors[embedding].dtype
    raise CheckpointError(f"no file has {embedding}, so these are not Llama weights in Hugging Face's names")


def check_layers(path: Path, files: Iterable[Tensors], args: ModelArgs) -> None:
    """Raise CheckpointError unless config.json has the layers of the files: a wrong number would build millions."""
    found = {match[1] for tensors in files for key in tensors if (match := re.match(r"model\.layers\.(\d+)\.", key))}
    if len(found) != args.n_layers:
        raise CheckpointError(
            f"{path}: num_hidden_layers is {args.n_layers}, and the files hold {len(found)} layers ({some(found)})"
        )
    embedding = name_of("tok_embeddings.weight")
    rows = [len(tensors[embedding]) for tensors in files if embedding in tensors]
    if rows and rows[0] != args.vocab_size:
        raise CheckpointError(f"{path}: vocab_size is {args.vocab_size}, and the embedding has {rows[0]} rows")


def weights(
    folder: Path, paths: list[Path], files: list[Tensors], args: ModelArgs, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Weight]:
    """Every weight by Meta's name. Raises CheckpointError unless the files hold exactly those, in these shapes."""
    if len(paths) > 1 or paths[0].name != WHOLE:
        placed = _index(folder)
        for path, tensors in zip(paths, files):
            check_keys(path, tensors.keys(), {k for k, n in placed.items() if n == path.name and _is_weight(k)})
    found = {key: tensor for tensors in files for key, tensor in tensors.items()}
    embedding, head = name_of("tok_embeddings.weight"), name_of("output.weight")
    if _read_json(folder / CONFIG).get("tie_word_embeddings", False) and embedding in found:
        if head in found and not torch.equal(found[head], found[embedding]):
            raise CheckpointError(f"{folder}: tie_word_embeddings is true, and {head} is not {embedding}")
        found[head] = found[embedding]
    check_keys(paths[0] if len(paths) == 1 else folder, found.keys(), {name_of(key) for key in shapes})
    result = {}
    for key, shape in shapes.items():
        tensor = found[name_of(key)]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{folder}: {name_of(key)} has the shape {tuple(tensor.shape)}; {CONFIG} makes it {shape}"
            )
        result[key] = Weight([tensor], halves=args.head_dim if key.endswith(TURNED) else 0)
    return result


def _is_weight(name: str) -> bool:
    return not NOT_PARAMETERS.fullmatch(name)


# Writing -------------------------------------------------------------------------------------------------------------


def shards_of(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in their order, put into files of at most `most` bytes; a larger tensor has one to itself."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= size
    return shards


def begin_file(file: BinaryIO, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
    """Write the head of a safetensors file; the tensors follow in the order of `shapes`, one after the other.

    The library's own `save_file` wants all of them in memory.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers looks for it
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + shape_bytes(shape, dtype)
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def shape_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def write_tensor(file: BinaryIO, tensor: torch.Tensor) -> None:
    file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def write_index(folder: Path, shards: Mapping[str, list[str]], total: int) -> None:
    """model.safetensors.index.json: which tensor is in which file."""
    placed = {name: file for file, names in shards.items() for name in names}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
