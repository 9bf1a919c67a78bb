"""Files to tensors: Meta's `consolidated.NN.pth`, checked key by key, mapped rather than read, cut for this rank.

A folder of N files was written for N ranks: each file holds its slice of every weight (`parallel.SPLIT_DIM` says along
which dimension) and a whole copy of the norms. They are put together, or cut further, for the ranks that there are.
"""

from __future__ import annotations

import os
import re
import struct
import warnings
import zipfile
from collections.abc import Sequence, Set
from pathlib import Path

import torch
from torch import nn

from minillama.args import ModelArgs, as_path, read_params, shown
from minillama.packed import is_linear
from minillama.parallel import parallelize, pick_device, rank, shard, split_dim, world_size
from minillama.quantize import (
    FORMATS,
    check_device,
    check_format,
    format_of,
    put_quantized,
    quantized_shapes,
)  # fmt: skip
from minillama.transformer import Transformer

PATTERN = "consolidated.*.pth"
NOT_PARAMETERS = re.compile(r"(layers\.\d+\.attention\.inner_attention\.)?rope\.freqs")  # tables in Meta's early files
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
QUANTIZED = (torch.int8, torch.uint8)  # in folders that say so
DTYPES = {
    "float32": torch.float32, "fp32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
    "float16": torch.float16, "fp16": torch.float16,
}  # fmt: skip

# Anywhere else NaN reaches the logits and is met there. Here torch's attention on the CPU may make zeros of it.
UNSEEN = ("attention.wq.weight", "attention.wk.weight")
DESCRIPTOR = b"PK\x07\x08"  # after a record of a zip archive, where its flags announce one

Tensors = dict[str, torch.Tensor]


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message says which file, what was found and what was expected."""


def resolve_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """A torch dtype from itself or its name ("bfloat16", "bf16", ...); None stays None: the dtype of the file."""
    if dtype is None or isinstance(dtype, torch.dtype) and dtype in FLOATS:
        return dtype
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if chosen is None:
        raise ValueError(f"dtype {shown(dtype)} is not one a model runs in; expected one of {', '.join(DTYPES)}")
    return chosen


def checkpoint_files(ckpt_dir: str | Path) -> list[Path]:
    """The model files of a folder in the order of their numbers.

    Raises FileNotFoundError, with folder and pattern, if there are none; CheckpointError if the numbers have gaps.
    """
    folder = as_path("ckpt_dir", ckpt_dir)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"no folder {folder}: expected one with {PATTERN} and params.json")
    numbered: dict[int, Path] = {}
    for path in folder.glob(PATTERN):
        match = re.fullmatch(r"consolidated\.(\d+)\.pth", path.name)
        if match is None or int(match[1]) in numbered or not path.is_file():
            if path.is_symlink() and not path.exists():
                raise CheckpointError(f"{path} is a link to a file that is not there")
            raise CheckpointError(f"{path} does not belong among the files {PATTERN} numbered from 00; move it away")
        numbered[int(match[1])] = path
    if not numbered:
        raise FileNotFoundError(f"no {PATTERN} in {folder}: a wrong folder, or a download that did not finish")
    missing = max(numbered) + 1 - len(numbered)
    if missing:
        gaps = [n for n in range(len(numbered) + min(missing, 8)) if n not in numbered]
        names = ", ".join(f"consolidated.{n:02d}.pth" for n in gaps[:8]) + " ..." * (missing > 8)
        raise CheckpointError(f"{folder} has {len(numbered)} files and lacks {names}; finish the download")
    return [numbered[n] for n in sorted(numbered)]


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
        reason = str(error).split("\n")[0][:200] or type(error).__name__
        start = _first_bytes(path)
        if not start.startswith((b"PK", b"\x80")):
            reason = f"it is no file of PyTorch's (it begins with {start!r}); download it again"
        elif "Unsupported operand" in str(error):
            reason = "it is pickled in a newer protocol than torch's loader of weights reads; torch.save it again"
        elif "weights_only" in str(error) or "Weights only" in str(error):
            reason = "it holds objects other than tensors, which could run code; nothing was run"
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
    """ModelArgs of the folder: params.json, with what it leaves open read off the weights and checked against them.

    args: what params.json says, where it has been read already.
    """
    args = args or ModelArgs.from_json(Path(ckpt_dir) / "params.json")
    n = len(files)
    for key, tensors in (("tok_embeddings.weight", files[0]), ("layers.0.feed_forward.w1.weight", files[0])):
        if key not in tensors or tensors[key].dim() != 2:
            raise CheckpointError(
                f"{ckpt_dir}: {key} is missing or not a matrix, so these are not Llama weights in Meta's names"
            )
    rows, columns = files[0]["tok_embeddings.weight"].shape
    if n > 1 and columns == args.dim:
        rows, columns = rows * n, columns // n  # Llama 3 cuts the embedding by vocabulary
    if columns * n != args.dim:
        raise CheckpointError(
            f"{ckpt_dir}: params.json says dim {args.dim}, and the embedding of each of {n} file(s) is {columns} wide "
            f"(expected {args.dim} / {n}): files of different models, or one is missing"
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
            f"{ckpt_dir}: params.json says n_layers {args.n_layers}, and the files hold {len(layers)} ({_some(layers)})"
        )
    hidden = files[0]["layers.0.feed_forward.w1.weight"].shape[0] * n
    if hidden != args.hidden_dim:
        raise CheckpointError(
            f"{ckpt_dir}: w1 has {hidden} rows in {n} file(s), and params.json gives {args.hidden_dim} "
            f"(dim {args.dim}, multiple_of {args.multiple_of}, ffn_dim_multiplier {args.ffn_dim_multiplier})"
        )
    return args


def check_tensors(paths: list[Path], files: list[Tensors], model: nn.Module) -> None:
    """Raise CheckpointError, naming keys and shapes, unless every file has exactly its piece of every parameter."""
    wanted = {key: tuple(p.shape) for key, p in model.state_dict().items()}
    n = len(files)
    for path, tensors in zip(paths, files):
        _check_keys(path, tensors, wanted.keys())
        for key, full in wanted.items():
            dim, tensor, first = split_dim(key), tensors[key], files[0][key]
            if key == "tok_embeddings.weight":
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


def assemble(key: str, files: list[Tensors], part: int, parts: int) -> torch.Tensor:
    """Rank `part` of `parts`' slice of one weight, from the files that hold it and no others."""
    dim, n = split_dim(key), len(files)
    if dim is None:
        return files[0][key]
    if key == "tok_embeddings.weight" and n > 1 and files[0][key].shape[1] == files[0]["norm.weight"].shape[0]:
        return shard(torch.cat([tensors[key] for tensors in files], 0), dim, part, parts)  # Llama 3's cut
    if n >= parts:  # several files make one rank
        pieces = [tensors[key] for tensors in files[part * n // parts : (part + 1) * n // parts]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
    per_file = parts // n  # several ranks share one file
    return shard(files[part // per_file][key], dim, part % per_file, per_file)


@torch.inference_mode(False)  # weights made inside `inference_mode` could never be trained or cast outside it
def load_model(
    ckpt_dir: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    max_seq_len: int | None = None,
    max_batch_size: int | None = None,
    n_words: int | None = None,
) -> Transformer:
    """The model in a folder of Meta's layout, this rank's share of it, ready to run.

    dtype: None keeps the file's. On the CPU, weights of the file's dtype stay mapped: read when first used. The file
    must stay as it is meanwhile; to save over it, write another file first and move it there (`os.replace`).
    n_words: pieces of the tokenizer that goes with it, where that is known; checked before a weight is read.
    Raises FileNotFoundError for what is not there and CheckpointError (a ValueError) for what does not fit.
    """
    dtype, device = resolve_dtype(dtype), pick_device(device)
    paths = checkpoint_files(ckpt_dir)
    args = ModelArgs.from_json(Path(ckpt_dir) / "params.json", max_seq_len=max_seq_len, max_batch_size=max_batch_size)
    parts = world_size()
    format = quantized_as(ckpt_dir)
    files = [read_file(path, QUANTIZED if format else ()) for path in paths]
    args = load_args(ckpt_dir, files, args)
    if n_words is not None:
        args.check_tokenizer(n_words)
    if not _divide(len(paths), parts):
        fits = [n for n in range(1, args.n_kv_heads + 1) if args.fits_ranks(n) and _divide(len(paths), n)]
        raise CheckpointError(
            f"{ckpt_dir} has {len(paths)} files and there are {parts} ranks; one must divide the other: "
            f"start {' or '.join(map(str, fits))}"
        )
    with torch.device("meta"):
        model = Transformer(args)
    if format is not None:
        check_device(device)
        if len(paths) * parts > 1:
            raise CheckpointError(
                f"{ckpt_dir} is quantized, which is one file for one process, and there are {len(paths)} files and "
                f"{parts} ranks; several ranks quantize as they load: give them the full weights and quantize={format}"
            )
        return load_quantized(paths[0], files[0], model, format, dtype).eval()
    check_tensors(paths, files, model)
    parallelize(model)
    dtype = dtype or files[0]["tok_embeddings.weight"].dtype
    with warnings.catch_warnings():
        # Mapped weights are backed by the file, copy-on-write; torch warns in case someone wrote to them.
        warnings.simplefilter("ignore")
        for key in model.state_dict():
            owner, _, name = key.rpartition(".")
            weight = assemble(key, files, rank(), parts).to(device=device, dtype=dtype)
            if key.endswith(UNSEEN) and not (weight.min().isfinite() and weight.max().isfinite()):
                raise CheckpointError(f"{ckpt_dir}: {key} holds NaN or inf: damaged, or too large for {dtype}")
            setattr(model.get_submodule(owner), name, nn.Parameter(weight, requires_grad=True))
    return model.eval()


def quantized_as(ckpt_dir: str | Path) -> str | None:
    """The format of a folder that `minillama convert --quantize` wrote; None: its weights are whole."""
    path = Path(ckpt_dir) / "params.json"
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
    _check_keys(path, tensors, wanted.keys())
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


def _check_keys(path: Path, tensors: Tensors, wanted: Set[str]) -> None:
    missing, unexpected = wanted - tensors.keys(), tensors.keys() - wanted
    if missing or unexpected:
        kinds = (("lacks", missing), ("has unexpected", unexpected))
        raise CheckpointError(f"{path} {' and '.join(f'{kind} {_some(keys)}' for kind, keys in kinds if keys)}")


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError:
        return b""


def _divide(a: int, b: int) -> bool:
    return a % b == 0 or b % a == 0


def _some(keys: Set[str]) -> str:
    names = sorted(keys)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
