"""A checkpoint folder written again in another form: `minillama convert`.

In fewer bits, in the other layout, in another number of files or another dtype. One tensor is worked on at a time; the
new folder appears when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from minillama import huggingface
from minillama.args import ModelArgs, as_path, read_params, shown, whole_number
from minillama.checkpoint import (
    Shapes,
    Tensors,
    checkpoint_files,
    in_hugging_face_layout,
    load_model,
    look_over,
    meta_model,
    quantized_as,
    resolve_dtype,
    shapes_of,
)
from minillama.generation import find_tokenizer
from minillama.huggingface_tokenizer import write_tokenizer
from minillama.memory import gb
from minillama.packed import is_linear, page_out
from minillama.parallel import split_dim
from minillama.pth import PthWriter, naming, save
from minillama.quantize import format_of, named_format, quantized
from minillama.tokenizer import Tokenizer
from minillama.weights import CheckpointError, Weight, assemble

LAYOUTS = ("meta", "hf")
SHARD_BYTES = 5_000_000_000
LONGEST_NAME = 240  # bytes; systems take 255, and the folder has some more while it is made
FULL = {
    errno.ENOSPC: "the disk is full", errno.EDQUOT: "your share of the disk is full",
    errno.EFBIG: "a file may not be so large there",
}  # fmt: skip
Progress = Callable[[Iterable[str]], Iterable[str]]


def convert(src: str | Path, dst: str | Path, format: str, progress: Progress = iter) -> Path:
    """Write the folder `src` again as `dst` with its linears in `format`, "int8" or "int4", and its tokenizer.

    progress: wraps the keys while they are worked on (`tqdm`). `dst` appears when it is whole, never before, and is
    returned.
    Raises ValueError and FileNotFoundError, before anything is written, where `src` cannot be read or `dst` is there.
    """
    named_format(format)
    src, dst = _folders(src, dst)
    model = load_model(src)
    tensors: Tensors = {}
    linears = {name + ".weight" for name, module in model.named_modules() if is_linear(module)}
    for key in progress(model.state_dict()):
        weight, name = model.get_parameter(key).detach(), key.removesuffix(".weight")
        if key in linears:
            fields = quantized(weight, format_of(name.rpartition(".")[2], format))
            tensors |= {f"{name}.{field}": tensor for field, tensor in fields.items()}
            page_out(weight)
        else:
            tensors[key] = weight.clone()
    params = params_of(src)
    with new_folder(dst) as folder:
        save(tensors, folder / "consolidated.00.pth")
        _copy_tokenizer(src, folder)
        _write_json(folder / "params.json", params | {"quantized": format})  # without which nothing loads
    return dst


def rewrite(
    src: str | Path,
    dst: str | Path,
    to: str,
    *,
    mp: int | None = None,
    dtype: str | torch.dtype | None = None,
    shard_bytes: int | None = None,
    progress: Progress = iter,
) -> Path:
    """Write the folder `src`, of either layout, again as `dst` in the layout `to`, "meta" or "hf", with its tokenizer.

    mp: into how many files, in Meta's layout (one if it is not said); shard_bytes: how large files may be, in the
    other. dtype: None keeps the file's. progress: wraps the keys while they are worked on (`tqdm`).
    `dst` appears when it is whole, never before; one tensor is in memory at a time. Raises ValueError and
    FileNotFoundError, before anything is written, where `src` cannot be read, `dst` is there or options do not fit.
    """
    dtype = resolve_dtype(dtype)
    if to not in LAYOUTS:
        raise ValueError(f"to is {shown(to)}; expected {' or '.join(LAYOUTS)}")
    if to == "hf" and mp is not None:
        raise ValueError("mp is for Meta's layout; Hugging Face's files are not cut for ranks: leave it out")
    if to == "meta" and shard_bytes is not None:
        raise ValueError("a shard size is for Hugging Face's layout; Meta's files are as many as mp says: leave it out")
    files = 1 if mp is None else whole_number("mp", mp)
    shard_bytes = SHARD_BYTES if shard_bytes is None else whole_number("shard size", shard_bytes, most=2**63)
    src, dst = _folders(src, dst)
    found = look_over(src)
    check_files(found.args, files)
    shapes = shapes_of(meta_model(found.args))
    weights = found.weights(shapes)
    dtype = dtype or found.dtype
    check_disk(dst, found.args.n_params * dtype.itemsize)
    params = params_of(src) if to == "meta" else {}  # now, as the weights' shapes are
    with new_folder(dst) as folder:
        if to == "meta":
            write_meta(folder, weights, shapes, dtype, files, progress)
            _copy_tokenizer(src, folder)
            _write_json(folder / "params.json", params)
        else:
            if (found.args.rope_scaling or {}).get("rope_type") == "ntk":
                warnings.warn(
                    f"{dst}: RoPE scaling ntk has no name in Hugging Face's layout; config.json has the larger "
                    "rope_theta that it comes to, and the text is the same",
                    stacklevel=2,
                )
            write_hugging_face(folder, weights, shapes, dtype, shard_bytes, found.args.head_dim, progress)
            ids = _tokenizer_for_transformers(src, folder, found.args)
            _write_json(folder / huggingface.CONFIG, huggingface.config_of(found.args, dtype, ids))
    return dst


def check_disk(dst: Path, needed: int) -> None:
    """Raise ValueError, with both sizes, unless `needed` bytes fit on the disk where `dst` is to be."""
    free = shutil.disk_usage(_place(dst)).free
    if needed > free:
        raise ValueError(
            f"{dst} will take {gb(needed)}, and {gb(free)} are free on its disk; make room, or name another"
        )


def check_files(args: ModelArgs, files: int) -> None:
    """Raise ValueError unless Meta's layout has such a number of files: each has kv heads of its own."""
    if files > args.n_kv_heads or not args.fits_ranks(files):
        fits = [n for n in range(1, args.n_kv_heads + 1) if args.fits_ranks(n)]
        raise ValueError(f"mp is {files}; this model can be cut into {', '.join(map(str, fits))} equal files")


def write_meta(
    folder: Path, weights: dict[str, Weight], shapes: Shapes, dtype: torch.dtype, files: int, progress: Progress
) -> None:
    """consolidated.00.pth and on, cut as Llama 2's are. Every weight is read once, for all files together."""
    parts = {
        key: tuple(size // files if d == split_dim(key) else size for d, size in enumerate(shape))
        for key, shape in shapes.items()
    }
    with contextlib.ExitStack() as begun:
        writers = [
            begun.enter_context(PthWriter(folder / f"consolidated.{i:02d}.pth", parts, dtype)) for i in range(files)
        ]
        for key in progress(shapes):
            whole = _checked(key, assemble(weights[key], dtype=dtype))
            for i, writer in enumerate(writers):
                dim = split_dim(key)
                writer.write(whole if dim is None else whole.chunk(files, dim)[i])
            _let_go(weights[key])
        for writer in writers:
            writer.close()


def write_hugging_face(
    folder: Path,
    weights: dict[str, Weight],
    shapes: Shapes,
    dtype: torch.dtype,
    shard_bytes: int,
    head_dim: int,
    progress: Progress,
) -> None:
    """model.safetensors, or shards of at most `shard_bytes` and their index."""
    names = {key: huggingface.name_of(key) for key in shapes}
    shards = huggingface.shards_of(
        {key: huggingface.shape_bytes(shape, dtype) for key, shape in shapes.items()}, shard_bytes
    )
    keys = iter(progress(shapes))
    placed = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else huggingface.WHOLE
        placed[name] = [names[key] for key in shard]
        with naming(folder / name), (folder / name).open("wb") as file:
            huggingface.begin_file(file, {names[key]: shapes[key] for key in shard}, dtype)
            for _ in shard:
                key = next(keys)
                whole = _checked(key, assemble(weights[key], dtype=dtype))
                turned = key.endswith(huggingface.TURNED)
                huggingface.write_tensor(file, huggingface.halves_of_pairs(whole, head_dim) if turned else whole)
                _let_go(weights[key])
    next(keys, None)  # the bar ends where its loop does
    if len(shards) > 1:
        huggingface.write_index(folder, placed, sum(huggingface.shape_bytes(shape, dtype) for shape in shapes.values()))


def params_of(folder: Path) -> dict[str, Any]:
    """What goes into params.json: Meta's own as it was, or Hugging Face's config in Meta's names."""
    if not in_hugging_face_layout(folder):
        return read_params(folder / "params.json")
    said = huggingface.params_of(folder / huggingface.CONFIG)
    return {key: value for key, value in said.items() if value is not None}


@contextlib.contextmanager
def new_folder(dst: Path) -> Iterator[Path]:
    """A folder that gets the name `dst` when all is done, and is gone if it was not.

    Raises OSError, in our words and with the file's name, where the disk is full before that.
    """
    dst.parent.mkdir(parents=True, exist_ok=True)
    with _signals_raise(), tempfile.TemporaryDirectory(dir=dst.parent, prefix=_hidden(dst)) as work:
        whole = Path(work) / "whole"
        whole.mkdir()
        try:
            yield whole
        except OSError as error:
            if error.errno not in FULL:
                raise
            said = f"{FULL[error.errno]} ({error.strerror}); nothing was kept: make room, or name a folder elsewhere"
            raise OSError(error.errno, said, str(dst / Path(error.filename or "").name)) from None
        try:
            os.replace(whole, dst)
        except OSError as error:
            kept = tempfile.mkdtemp(dir=dst.parent, prefix=f"{dst.name}-")
            os.replace(whole, kept)
            raise ValueError(
                f"{dst} was made by something else meanwhile ({error.strerror}); the finished folder is {kept}: "
                "move it to a name that is free"
            ) from None


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Let signals that by themselves end the process at once end it as Ctrl-C does: with what is half made removed."""
    named = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]  # the latter: a terminal was closed
    ours = [one for one in named if one is not None and signal.getsignal(one) == signal.SIG_DFL]  # others are seen to
    if threading.current_thread() is not threading.main_thread():  # where Python sets no handlers
        yield
        return

    def end(number: int, _: object) -> None:
        for one in (*ours, signal.SIGINT):
            signal.signal(one, signal.SIG_IGN)  # another one would end the removing
        sys.exit(128 + number)

    interrupted = signal.getsignal(signal.SIGINT)
    for one in ours:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
        signal.signal(signal.SIGINT, interrupted)


def _hidden(dst: Path) -> str:
    """How the folder is called, before some random letters, while it is made."""
    return f".{dst.name}-"


def _place(dst: Path) -> Path:
    """The nearest folder above `dst` that is there."""
    place = dst.absolute().parent
    while not os.path.exists(place):
        place = place.parent
    return place


def check_place(dst: Path) -> None:
    """Raise ValueError unless a folder can be made where `dst` is to be. It is tried: /proc calls itself writable."""
    for name in dst.parts:
        if (size := len(os.fsencode(name))) > LONGEST_NAME:
            raise ValueError(f"dst has the name {shown(name)} of {size} bytes; expected {LONGEST_NAME} at most")
    place = _place(dst)
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=_hidden(dst)):
            pass
    except OSError as error:
        raise ValueError(
            f"{dst} cannot be made: {place} takes no new folder ({error.strerror}); name one elsewhere"
        ) from None


def _folders(src: str | Path, dst: str | Path) -> tuple[Path, Path]:
    """Both as paths. Raises ValueError and FileNotFoundError unless full weights are in one and the other is free."""
    src, dst = as_path("src", src), as_path("dst", dst)
    if ".." in dst.parts:  # a folder that is made beside its own parent could not be given its name in the end
        dst = Path(os.path.realpath(dst))
    if os.path.lexists(dst):
        raise ValueError(f"{dst} is there already; name a folder that is not")
    checkpoint_files(src)
    if quantized_as(src) is not None:
        raise ValueError(f"{src} is quantized already; start from the full weights")
    check_place(dst)
    return src, dst


def _checked(key: str, weight: torch.Tensor) -> torch.Tensor:
    low, high = weight.aminmax()
    if not (low.isfinite() and high.isfinite()):
        raise CheckpointError(f"{key} holds NaN or inf: damaged, or too large for {weight.dtype}")
    return weight


def _let_go(weight: Weight) -> None:
    for piece in weight.pieces:
        if piece.is_contiguous():
            page_out(piece)


def _copy_tokenizer(src: Path, folder: Path) -> Path | None:
    try:
        return Path(shutil.copy(find_tokenizer(src), folder / "tokenizer.model"))
    except FileNotFoundError as error:
        warnings.warn(f"{error}; the new folder has none either", stacklevel=3)
        return None


def _tokenizer_for_transformers(src: Path, folder: Path, args: ModelArgs) -> dict[str, int]:
    """Copy the tokenizer, in both forms; returns what config.json says of its ids."""
    copied = _copy_tokenizer(src, folder)
    if copied is None:
        return {}
    try:
        tokenizer = Tokenizer(copied)
        reason = write_tokenizer(folder, tokenizer, args.max_seq_len)
    except ValueError:
        warnings.warn("no tokenizer.json is written: tokenizer.model is not SentencePiece's", stacklevel=3)
        return {}
    if reason is not None:
        warnings.warn(f"no tokenizer.json is written, transformers may split text otherwise: {reason}", stacklevel=3)
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}


def _write_json(path: Path, said: dict[str, Any]) -> None:
    path.write_text(json.dumps(said, indent=2), encoding="utf-8")
