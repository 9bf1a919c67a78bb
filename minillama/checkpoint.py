"""A folder of weights to a model: looked over, checked key by key, mapped rather than read, cut for this rank.

Meta's folders are read here: `consolidated.NN.pth` and params.json. A folder of N files was written for N ranks; each
holds its slice of every weight (`parallel.SPLIT_DIM` says along which dimension) and a whole copy of the norms. Hugging
Face's are read in `huggingface`. From either come `weights.Weight`s, and those know how to be cut.
"""

from __future__ import annotations

import os
import re
import struct
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from minillama import huggingface
from minillama.args import ModelArgs, as_path, count, first_line, read_params, shown
from minillama.launch import pick_device
from minillama.memory import check_build
from minillama.packed import is_linear
from minillama.parallel import parallelize, part_of, rank, split_dim, world_size
from minillama.quantize import (
    FORMATS,
    check_device,
    check_format,
    format_of,
    put_quantized,
    quantized_shapes,
)  # fmt: skip
from minillama.transformer import Transformer
from minillama.weights import (
    FLOATS,
    GIT_LFS,
    POINTER,
    CheckpointError,
    Tensors,
    Weight,
    assemble,
    check_keys,
    first_bytes,
    some,
)

PATTERN = "consolidated.*.pth"
NOT_PARAMETERS = re.compile(r"(layers\.\d+\.attention\.inner_attention\.)?rope\.freqs")  # tables in Meta's early files
QUANTIZED = (torch.int8, torch.uint8)  # in folders that say so
DTYPES = {
    "float32": torch.float32, "fp32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
    "float16": torch.float16, "fp16": torch.float16,
}  # fmt: skip

# Anywhere else NaN reaches the logits and is met there. Here torch's attention on the CPU may make zeros of it.
UNSEEN = ("attention.wq.weight", "attention.wk.weight")
EMBEDDING = "tok_embeddings.weight"
DAMAGED = re.compile("PytorchStreamReader|unexpected EOF|Invalid argument")  # torch and seek() of such files
DESCRIPTOR = b"PK\x07\x08"  # after a record of a zip archive, where its flags announce one

Shapes = Mapping[str, tuple[int, ...]]
Share = Callable[[str, tuple[int, ...], ModelArgs], tuple[int | None, int, int]]


def resolve_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """A torch dtype from itself or its name ("bfloat16", "bf16", ...); None stays None: the dtype of the file."""
    if dtype is None or isinstance(dtype, torch.dtype) and dtype in FLOATS:
        return dtype
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if chosen is None:
        raise ValueError(f"dtype {shown(dtype)} is not one a model runs in; expected one of {', '.join(DTYPES)}")
    return chosen


def checkpoint_files(ckpt_dir: str | Path) -> list[Path]:
    """The model files of a folder in the order of their numbers; Meta's, or Hugging Face's where there are none.

    Raises FileNotFoundError, with folder and pattern, if there are none; CheckpointError if the numbers have gaps.
    """
    folder = as_path("ckpt_dir", ckpt_dir)
    if os.path.isfile(folder):
        raise FileNotFoundError(f"{folder} is a file; expected the folder with {PATTERN}: {folder.parent}, perhaps")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"no folder {folder}: expected one with {PATTERN} and params.json")
    if in_hugging_face_layout(folder):
        return huggingface.checkpoint_files(folder)
    numbered: dict[int, Path] = {}
    for path in folder.glob(PATTERN):
        match = re.fullmatch(r"consolidated\.(\d+)\.pth", path.name)
        if match is None or int(match[1]) in numbered or not path.is_file():
            if path.is_symlink() and not path.exists():
                raise CheckpointError(f"{path} is a link to a file that is not there")
            raise CheckpointError(f"{path} does not belong among the files {PATTERN} numbered from 00; move it away")
        numbered[int(match[1])] = path
    if not numbered:
        remedy = "a wrong folder, or a download that did not finish"
        if any(folder.glob("pytorch_model*.bin")):
            remedy = "of Hugging Face's files, model.safetensors are read and not pytorch_model.bin: download those"
        raise FileNotFoundError(f"no {PATTERN} in {folder}, and no model.safetensors with a config.json: {remedy}")
    missing = max(numbered) + 1 - len(numbered)
    if missing:
        gaps = [n for n in range(len(numbered) + min(missing, 8)) if n not in numbered]
        names = ", ".join(f"consolidated.{n:02d}.pth" for n in gaps[:8]) + " ..." * (missing > 8)
        raise CheckpointError(f"{folder} has {count(len(numbered), 'file')} and lacks {names}; finish the download")
    return [numbered[n] for n in sorted(numbered)]


def in_hugging_face_layout(folder: Path) -> bool:
    """Whether a folder is to be read as Hugging Face's: it has weights in that layout, and none in Meta's."""
    if any(folder.glob(PATTERN)) or not huggingface.has_weights(folder):
        return False
    return (folder / huggingface.CONFIG).exists() or not (folder / "params.json").exists()


def check_archive(path: Path) -> None:
    """Raise BadZipFile unless every record lies where the index says and the list of tensors has the right CRC.

    torch looks at neither, so one wrong bit there would give it other weights. The weights themselves are not read.
    """
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        records = sorted(archive.infolist(), key=lambda record: record.header_offset)
        ends = [record.header_offset for record in records[1:]] + [archive.start_dir]
        for record, end in zip(records, ends):
            if record.filename.endswith("data.pkl"):
                archive.read(record)
            else:
                archive.open(record).close()  # compares the names in the index and before the record
            file.seek(record.header_offset + 26)
            name_len, extra_len = struct.unpack("<HH", file.read(4))
            gap = end - file.seek(record.header_offset + 30 + name_len + extra_len + record.file_size)
            described = DESCRIPTOR if record.flag_bits & 8 and record.file_size else b""
            if not 0 <= gap <= 24 or file.read(min(gap, 4)) != described or record.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{record.filename} does not lie where the index says, or is compressed")


def read_file(path: Path, more_dtypes: Sequence[torch.dtype] = ()) -> Tensors:
    """The tensors of one file, mapped into memory and not yet read. Nothing in the file is run (weights-only)."""
    try:
        # Files from before torch 1.6 are not zip archives and cannot be mapped; they are read.
        mapped = zipfile.is_zipfile(path)
        if mapped:
            check_archive(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch, pickle and zipfile each raise their own for what a damaged file does to them
        reason = first_line(error) or type(error).__name__
        start = first_bytes(path)
        if start.startswith(GIT_LFS):
            reason = POINTER
        elif not start.startswith((b"PK", b"\x80")):
            reason = f"it is no file of PyTorch's (it begins with {start!r}); download it again"
        elif "Unsupported operand" in str(error):
            reason = "it is pickled in a newer protocol than torch's loader of weights reads; torch.save it again"
        elif "weights_only" in str(error) or "Weights only" in str(error):
            reason = "it holds objects other than tensors, which could run code; nothing was run"
        elif isinstance(error, (zipfile.BadZipFile, EOFError)) or DAMAGED.search(str(error)):
            reason = f"it is cut short or damaged ({reason.partition('. ')[0]}); download it again"
        raise CheckpointError(f"{path} cannot be read: {reason}") from None
    if not isinstance(tensors, dict) or not tensors:
        raise CheckpointError(f"{path} holds {shown(tensors)}; expected a dict of names and tensors")
    for key, value in tensors.items():
        if not isinstance(key, str):
            raise CheckpointError(f"{path} holds something under the key {shown(key)}; expected names of tensors")
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.device.type != "cpu":
            kind = f"{value.layout} on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise CheckpointError(f"{path}: {key} is {kind}; expected a plain tensor")
        if not NOT_PARAMETERS.fullmatch(key) and value.dtype not in (*FLOATS, *more_dtypes):
            raise CheckpointError(f"{path}: {key} is {value.dtype}; expected float32, bfloat16 or float16")
    return {key: value for key, value in tensors.items() if not NOT_PARAMETERS.fullmatch(key)}


def load_args(ckpt_dir: str | Path, files: list[Tensors], args: ModelArgs | None = None) -> ModelArgs:
    """ModelArgs of a folder in Meta's layout: params.json, with what it leaves open read off the weights, and checked.

    args: what params.json says, where it has been read already.
    """
    args = args or ModelArgs.from_json(Path(ckpt_dir) / "params.json")
    n = len(files)
    each = f"each of {n} files" if n > 1 else "the one file"
    for key in (EMBEDDING, "layers.0.feed_forward.w1.weight", "layers.0.attention.wq.weight"):
        if key not in files[0] or files[0][key].dim() != 2:
            raise CheckpointError(
                f"{ckpt_dir}: {key} is missing or not a matrix, so these are not Llama weights in Meta's names"
            )
    rows, columns = files[0][EMBEDDING].shape
    if embedding_dim(files, args) == 0:
        rows, columns = rows * n, columns // n
    if columns * n != args.dim:
        raise CheckpointError(
            f"{ckpt_dir}: params.json says dim {args.dim}, and the embedding of {each} is "
            f"{columns} wide (expected {args.dim} / {n}): files of different models, or one is missing"
        )
    queries = files[0]["layers.0.attention.wq.weight"].shape[0]
    if queries * n != args.dim:  # Llama 3's embedding does not show it
        raise CheckpointError(
            f"{ckpt_dir}: wq has {queries} rows in {each} (expected {args.dim} / {n}): files of different models, or "
            "one is missing"
        )
    if args.vocab_size not in (-1, rows):
        raise CheckpointError(
            f"{ckpt_dir}: params.json says vocab_size {args.vocab_size}, and the embedding has {rows} rows"
        )
    args.vocab_size = rows
    # Before a model is built: a wrong number here would otherwise build millions of layers.
    layers = {match[1] for key in files[0] if (match := re.match(r"layers\.(\d+)\.", key))}
    if len(layers) != args.n_layers:
        raise CheckpointError(
            f"{ckpt_dir}: params.json says n_layers {args.n_layers}, and the files hold {len(layers)} ({some(layers)})"
        )
    hidden = files[0]["layers.0.feed_forward.w1.weight"].shape[0] * n
    if hidden != args.hidden_dim:
        raise CheckpointError(
            f"{ckpt_dir}: w1 has {hidden} rows in {count(n, 'file')}, and params.json gives {args.hidden_dim} "
            f"(dim {args.dim}, multiple_of {args.multiple_of}, ffn_dim_multiplier {args.ffn_dim_multiplier})"
        )
    return args


def embedding_dim(files: list[Tensors], args: ModelArgs) -> int:
    """Along which dimension the files share the embedding: Llama 2's its columns, Llama 3's its rows."""
    return 0 if len(files) > 1 and files[0][EMBEDDING].shape[1] == args.dim else 1


def check_tensors(paths: list[Path], files: list[Tensors], wanted: Shapes) -> None:
    """Raise CheckpointError, naming keys and shapes, unless every file has exactly its piece of every parameter."""
    n = len(files)
    for path, tensors in zip(paths, files):
        check_keys(path, tensors.keys(), wanted.keys())
        for key, full in wanted.items():
            dim, tensor, first = split_dim(key), tensors[key], files[0][key]
            if key == EMBEDDING:
                part, fits = tuple(first.shape), tensor.shape == first.shape  # cut in one of two ways, see load_args
            else:
                part = tuple(size // n if d == dim else size for d, size in enumerate(full))
                fits = tuple(size * n if d == dim else size for d, size in enumerate(tensor.shape)) == full
            if not fits or tensor.dtype != first.dtype:
                raise CheckpointError(
                    f"{path}: {key} has the shape {tuple(tensor.shape)} in {tensor.dtype}; expected {part} in "
                    f"{first.dtype}: one of {n} parts of {full}"
                )
            if dim is None and tensor is not first and not torch.equal(tensor, first):
                warnings.warn(f"{path}: {key} differs from {paths[0].name}'s; files of different models?", stacklevel=2)


@dataclass
class Checkpoint:
    """A folder that was looked over. The tensors of its files, in the folder's own names, are mapped, not yet read."""

    folder: Path
    paths: list[Path]
    files: list[Tensors]
    args: ModelArgs
    hugging_face: bool = False
    quantized: str | None = None

    @property
    def dtype(self) -> torch.dtype:
        if self.hugging_face:
            return huggingface.dtype_of(self.files)
        return self.files[0][EMBEDDING].dtype

    def weights(self, shapes: Shapes | None = None) -> dict[str, Weight]:
        """Every weight by Meta's name. Raises CheckpointError unless the files hold exactly these and nothing else.

        shapes: of the whole model's parameters, where they are known.
        """
        shapes = shapes or shapes_of(meta_model(self.args))
        if self.hugging_face:
            return huggingface.weights(self.folder, self.paths, self.files, self.args, shapes)
        check_tensors(self.paths, self.files, shapes)
        found = {}
        for key in shapes:
            dim = embedding_dim(self.files, self.args) if key == EMBEDDING else split_dim(key)
            holders = self.files[:1] if dim is None else self.files
            found[key] = Weight([tensors[key] for tensors in holders], dim or 0)
        return found


def look_over(
    ckpt_dir: str | Path,
    max_seq_len: int | None = None,
    max_batch_size: int | None = None,
) -> Checkpoint:
    """What is in a folder of either layout, before a weight is read.

    Raises FileNotFoundError for what is not there and CheckpointError (a ValueError) for what does not fit.
    """
    paths = checkpoint_files(ckpt_dir)
    folder, limits = Path(ckpt_dir), dict(max_seq_len=max_seq_len, max_batch_size=max_batch_size)
    if in_hugging_face_layout(folder):
        config = folder / "config.json"
        args = ModelArgs.from_params(huggingface.params_of(config), config, **limits)
        files = huggingface.read_files(paths)
        huggingface.check_layers(config, files, args)
        warn_of_mixture(folder, files, huggingface.dtype_of(files))
        return Checkpoint(folder, paths, files, args, hugging_face=True)
    if huggingface.has_weights(folder):
        warnings.warn(
            f"{folder} has weights in Meta's layout and in Hugging Face's; {PATTERN} and params.json are read: to have "
            f"model*.safetensors and {huggingface.CONFIG}, move {PATTERN} away",
            stacklevel=2,
        )
    args = ModelArgs.from_json(folder / "params.json", **limits)
    format = quantized_as(folder)
    files = [read_file(path, QUANTIZED if format else ()) for path in paths]
    args = load_args(folder, files, args)
    if not format:
        warn_of_mixture(folder, files, files[0][EMBEDDING].dtype)
    return Checkpoint(folder, paths, files, args, quantized=format)


def warn_of_mixture(folder: Path, files: Sequence[Tensors], chosen: torch.dtype) -> None:
    """Say so where weights of a folder are in several dtypes: all become `chosen`, unless another is asked for."""
    found = Counter(str(t.dtype).removeprefix("torch.") for tensors in files for t in tensors.values())
    if len(found) > 1:
        counts = ", ".join(f"{n} in {name}" for name, n in found.most_common())
        name = str(chosen).removeprefix("torch.")
        warnings.warn(f"{folder}: weights are {counts}; all become {name}, unless dtype says otherwise", stacklevel=3)


def share_of(key: str, shape: tuple[int, ...], args: ModelArgs) -> tuple[int | None, int, int]:
    """Of the weight `key`: the dimension along which ranks share it, and which (part, parts) are this one's."""
    return (split_dim(key), *part_of(key, args.n_kv_heads, rank(), world_size()))


class Unfilled(TorchFunctionMode):
    """New weights are not filled: without memory there is nothing to fill, but torch loads its compiler to try."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def meta_model(args: ModelArgs) -> Transformer:
    """The model without its numbers: names and shapes."""
    with torch.device("meta"), Unfilled():
        return Transformer(args)


def shapes_of(model: nn.Module) -> Shapes:
    return {key: tuple(p.shape) for key, p in model.state_dict().items()}


@torch.inference_mode(False)  # weights made inside `inference_mode` could never be trained or cast outside it
def load_model(
    ckpt_dir: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    max_seq_len: int | None = None,
    max_batch_size: int | None = None,
    n_words: int | None = None,
    share: Share | None = None,
) -> Transformer:
    """The model in a folder of Meta's or Hugging Face's layout, this rank's share of it, ready to run.

    dtype: None keeps the file's. On the CPU, weights of the file's dtype that lie there as they are wanted stay mapped:
    read when first used. The file must stay as it is meanwhile; to save over it, write another file first and move it
    there (`os.replace`).
    n_words: pieces of the tokenizer that goes with it, where that is known; checked before a weight is read.
    share: of a weight, by its key and shape, the dimension that ranks cut and the (part, parts) of this one; None: what
    `parallel` says.
    Raises FileNotFoundError for what is not there and CheckpointError (a ValueError) for what does not fit.
    """
    dtype, device = resolve_dtype(dtype), pick_device(device)
    found = look_over(ckpt_dir, max_seq_len, max_batch_size)
    args, parts, format = found.args, world_size(), found.quantized
    if n_words is not None:
        args.check_tokenizer(n_words)
    if format is not None:
        check_device(device)
        if len(found.paths) * parts > 1:
            raise CheckpointError(
                f"{ckpt_dir} is quantized, which is one file for one process, and there are "
                f"{count(len(found.paths), 'file')} and {count(parts, 'rank')}; several ranks quantize as they load: "
                f"give them the full weights and quantize={format}"
            )
        return load_quantized(found.paths[0], found.files[0], meta_model(args), format, dtype).eval()
    args.check_ranks(parts)
    model = meta_model(args)
    weights = found.weights(shapes_of(model))
    parallelize(model)
    dtype = dtype or found.dtype
    # Where nothing is cast and no files are put together, weights stay in their files, which takes no memory.
    as_is = dtype == found.dtype and (len(found.paths) <= parts or in_hugging_face_layout(Path(ckpt_dir)))
    check_build(args, device, dtype=dtype, ranks=parts, mapped=as_is and device.type == "cpu")
    with warnings.catch_warnings():
        # Mapped weights are backed by the file, copy-on-write; torch warns in case someone wrote to them.
        warnings.simplefilter("ignore")
        for key in model.state_dict():
            owner, _, name = key.rpartition(".")
            place = (share or share_of)(key, weights[key].shape, args)
            weight = assemble(weights[key], *place, dtype=dtype, device=device)
            if key.endswith(UNSEEN) and not (weight.min().isfinite() and weight.max().isfinite()):
                raise CheckpointError(f"{ckpt_dir}: {key} holds NaN or inf: damaged, or too large for {dtype}")
            setattr(model.get_submodule(owner), name, nn.Parameter(weight, requires_grad=True))
    return model.eval()


def quantized_as(ckpt_dir: str | Path) -> str | None:
    """The format of a folder that `minillama convert --quantize` wrote; None: its weights are whole."""
    path = Path(ckpt_dir) / "params.json"
    if in_hugging_face_layout(path.parent):
        return None
    format = read_params(path).get("quantized")
    try:
        return check_format(format)
    except ValueError:
        known = " and ".join(FORMATS)
        raise CheckpointError(f"{path} says quantized {shown(format)}; this version knows {known}") from None


def load_quantized(
    path: Path, tensors: Tensors, model: Transformer, format: str, dtype: torch.dtype | None
) -> Transformer:
    """Fill `model`, on the meta device, from a quantized file, checked like any other."""
    embedding = tensors["tok_embeddings.weight"].dtype
    dtype = dtype or (embedding if embedding in FLOATS else torch.float32)  # another is refused below
    wanted = {key: (tuple(p.shape), dtype) for key, p in model.state_dict().items()}
    for key, (shape, _) in list(wanted.items()):
        name = key.removesuffix(".weight")
        if is_linear(model.get_submodule(name)):
            del wanted[key]
            fields = quantized_shapes(shape[0], shape[1], format_of(name.rpartition(".")[2], format))
            wanted |= {f"{name}.{field}": kind for field, kind in fields.items()}
    check_keys(path, tensors.keys(), wanted.keys())
    for key, (shape, kind) in wanted.items():
        tensor = tensors[key]
        fits = tensor.dtype in FLOATS if kind.is_floating_point else tensor.dtype == kind
        if tuple(tensor.shape) != shape or not fits:
            found = f"{tuple(tensor.shape)} in {tensor.dtype}"
            raise CheckpointError(f"{path}: {key} has the shape {found}; expected {shape} in {kind}")
        if key.endswith((".scale", ".zero")) and not (tensor.min().isfinite() and tensor.max().isfinite()):
            raise CheckpointError(f"{path}: {key} holds NaN or inf: damaged")
        if key.endswith(".scale") and tensor.min() <= 0:
            raise CheckpointError(f"{path}: {key} holds numbers of 0 or less: damaged")
    put_quantized(model, format, lambda key: tensors[key].to(wanted[key][1]))
    for key in model.state_dict():
        owner, _, name = key.rpartition(".")
        setattr(model.get_submodule(owner), name, nn.Parameter(tensors[key].to(dtype), requires_grad=False))
    return model
