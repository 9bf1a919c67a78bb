"""Files to tensors: Meta's `consolidated.NN.pth`, checked key by key, mapped rather than read, cut for this rank.

A folder of N files was written for N ranks: each file holds its slice of every weight (`parallel.SPLIT_DIM` says along
which dimension) and a whole copy of the norms. They are put together, or cut further, for the ranks that there are.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path

import torch
from torch import nn

from minillama.args import ModelArgs
from minillama.parallel import parallelize, rank, shard, split_dim, world_size
from minillama.transformer import Transformer

PATTERN = "consolidated.*.pth"
NOT_PARAMETERS = {"rope.freqs"}  # a table that Meta's early files carry along; it is computed here
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = {
    "float32": torch.float32, "fp32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
    "float16": torch.float16, "fp16": torch.float16,
}  # fmt: skip

Tensors = dict[str, torch.Tensor]


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message says which file, what was found and what was expected."""


def resolve_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """A torch dtype from itself or its name ("bfloat16", "bf16", ...); None stays None: the dtype of the file."""
    if dtype is None or dtype in FLOATS:
        return dtype  # type: ignore[return-value]
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if chosen is None:
        raise ValueError(f"dtype {dtype!r} is not one a model runs in; expected one of {', '.join(DTYPES)}")
    return chosen


def checkpoint_files(ckpt_dir: str | Path) -> list[Path]:
    """The model files of a folder in the order of their numbers.

    Raises FileNotFoundError, with folder and pattern, if there are none; CheckpointError if the numbers have gaps.
    """
    folder = Path(ckpt_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}: expected one with {PATTERN} and params.json")
    numbered: dict[int, Path] = {}
    for path in folder.glob(PATTERN):
        match = re.fullmatch(r"consolidated\.(\d+)\.pth", path.name)
        if match is None or int(match[1]) in numbered:
            raise CheckpointError(f"{path} does not belong among {PATTERN} numbered from 00; move it away")
        numbered[int(match[1])] = path
    if not numbered:
        raise FileNotFoundError(f"no {PATTERN} in {folder}: a wrong folder, or a download that did not finish")
    gaps = sorted(set(range(max(numbered) + 1)) - numbered.keys())
    if gaps:
        names = ", ".join(f"consolidated.{n:02d}.pth" for n in gaps[:8])
        raise CheckpointError(f"{folder} has {len(numbered)} files and lacks {names}{' ...' * (len(gaps) > 8)}; finish the download")
    return [numbered[n] for n in sorted(numbered)]


def read_file(path: Path) -> Tensors:
    """The tensors of one file, mapped into memory and not yet read. Nothing in the file is run (weights-only)."""
    try:
        # Files from before torch 1.6 are not zip archives and cannot be mapped; they are read.
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch, pickle and zipfile each raise their own for what a damaged file does to them
        reason = str(error).split("\n")[0][:200] or type(error).__name__
        if "weights_only" in str(error) or "Weights only" in str(error):
            reason = "it holds objects other than tensors, which could run code; nothing was run"
        raise CheckpointError(f"{path} cannot be read: {reason}") from None
    if not isinstance(tensors, dict) or not all(isinstance(key, str) for key in tensors):
        raise CheckpointError(f"{path} holds a {type(tensors).__name__}; expected a dict of names and tensors")
    for key, value in tensors.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.device.type != "cpu":
            raise CheckpointError(f"{path}: {key} is {type(value).__name__}; expected a plain tensor")
        if key not in NOT_PARAMETERS and value.dtype not in FLOATS:
            raise CheckpointError(f"{path}: {key} is {value.dtype}; expected float32, bfloat16 or float16")
    return {key: value for key, value in tensors.items() if key not in NOT_PARAMETERS}


def load_args(ckpt_dir: str | Path, files: list[Tensors], max_seq_len: int | None = None, max_batch_size: int | None = None) -> ModelArgs:
    """ModelArgs of the folder: params.json, with what it leaves open read off the weights and checked against them."""
    args = ModelArgs.from_json(Path(ckpt_dir) / "params.json", max_seq_len=max_seq_len, max_batch_size=max_batch_size)
    n = len(files)
    for key, tensors in (("tok_embeddings.weight", files[0]), ("layers.0.feed_forward.w1.weight", files[0])):
        if key not in tensors or tensors[key].dim() != 2:
            raise CheckpointError(f"{ckpt_dir}: {key} is missing or not a matrix, so these are not Llama weights in Meta's names")
    rows, columns = files[0]["tok_embeddings.weight"].shape
    if n > 1 and columns == args.dim:
        rows, columns = rows * n, columns // n  # Llama 3 cuts the embedding by vocabulary
    if columns * n != args.dim:
        raise CheckpointError(
            f"{ckpt_dir}: params.json says dim {args.dim}, and the embedding of each of {n} file(s) is {columns} wide "
            f"(expected {args.dim} / {n}): files of different models, or one is missing"
        )
    if args.vocab_size not in (-1, rows):
        raise CheckpointError(f"{ckpt_dir}: params.json says vocab_size {args.vocab_size}, and the embedding has {rows} rows")
    args.vocab_size = rows
    # Before a model is built: a wrong number here would otherwise build millions of layers.
    layers = {int(match[1]) for key in files[0] if (match := re.match(r"layers\.(\d+)\.", key))}
    if layers != set(range(args.n_layers)) and max(layers) + 1 != args.n_layers:
        raise CheckpointError(f"{ckpt_dir}: params.json says n_layers {args.n_layers}, and the files hold layers up to {max(layers)}")
    hidden = files[0]["layers.0.feed_forward.w1.weight"].shape[0] * n
    if hidden != args.hidden_dim:
        raise CheckpointError(
            f"{ckpt_dir}: w1 has {hidden} rows, and params.json gives {args.hidden_dim} (dim {args.dim}, multiple_of "
            f"{args.multiple_of}, ffn_dim_multiplier {args.ffn_dim_multiplier})"
        )
    return args


def check_tensors(paths: list[Path], files: list[Tensors], model: nn.Module) -> None:
    """Raise CheckpointError, naming keys and shapes, unless every file has exactly its piece of every parameter."""
    wanted = {key: tuple(p.shape) for key, p in model.state_dict().items()}
    n = len(files)
    for path, tensors in zip(paths, files):
        missing, unexpected = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
        if missing or unexpected:
            said = [f"{kind} {_some(keys)}" for kind, keys in (("lacks", missing), ("has unexpected", unexpected)) if keys]
            raise CheckpointError(f"{path} {' and '.join(said)}")
        for key, full in wanted.items():
            fits = {tuple(size // n if d == split_dim(key) else size for d, size in enumerate(full))}
            if key == "tok_embeddings.weight":
                fits.add((full[0] // n, full[1]))
            if tuple(tensors[key].shape) not in fits:
                raise CheckpointError(
                    f"{path}: {key} has the shape {tuple(tensors[key].shape)}; expected {' or '.join(map(str, sorted(fits)))}"
                )


def assemble(key: str, files: list[Tensors], part: int, parts: int) -> torch.Tensor:
    """Rank `part` of `parts`' slice of one weight, from the files that hold it and no others."""
    dim, n = split_dim(key), len(files)
    if dim is None:
        return files[0][key]
    if key == "tok_embeddings.weight" and n > 1 and files[0][key].shape[1] == files[0]["norm.weight"].shape[0]:
        return shard(torch.cat([tensors[key] for tensors in files], 0), dim, part, parts)  # Llama 3's cut, see load_args
    if n >= parts:  # several files make one rank
        pieces = [tensors[key] for tensors in files[part * n // parts : (part + 1) * n // parts]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
    per_file = parts // n  # several ranks share one file
    return shard(files[part // per_file][key], dim, part % per_file, per_file)


def load_model(
    ckpt_dir: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    max_seq_len: int | None = None,
    max_batch_size: int | None = None,
) -> Transformer:
    """The model in a folder of Meta's layout, this rank's share of it, ready to run.

    dtype: None keeps the file's. On the CPU, weights of the file's dtype stay mapped: they are read when first used.
    Raises FileNotFoundError for what is not there and CheckpointError (a ValueError) for what does not fit.
    """
    dtype = resolve_dtype(dtype)
    paths = checkpoint_files(ckpt_dir)
    parts = world_size()
    if len(paths) % parts and parts % len(paths):
        fits = [n for n in range(1, 17) if n % len(paths) == 0 or len(paths) % n == 0]
        raise CheckpointError(
            f"{ckpt_dir} has {len(paths)} files and there are {parts} ranks; one must divide the other: "
            f"start {', '.join(map(str, fits))} ranks"
        )
    files = [read_file(path) for path in paths]
    args = load_args(ckpt_dir, files, max_seq_len, max_batch_size)
    with torch.device("meta"):
        model = Transformer(args)
    check_tensors(paths, files, model)
    parallelize(model)
    dtype = dtype or files[0]["tok_embeddings.weight"].dtype
    with warnings.catch_warnings():
        # Mapped weights are backed by the file, copy-on-write; torch warns in case someone wrote to them.
        warnings.simplefilter("ignore")
        for key in model.state_dict():
            owner, _, name = key.rpartition(".")
            weight = assemble(key, files, rank(), parts).to(device=device, dtype=dtype)
            setattr(model.get_submodule(owner), name, nn.Parameter(weight, requires_grad=True))
    return model.eval()


def _some(keys: set[str]) -> str:
    names = sorted(keys)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
