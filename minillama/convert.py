"""A checkpoint folder written again in another form: `minillama convert`."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from minillama.args import as_path, read_params
from minillama.checkpoint import Tensors, checkpoint_files, load_model, quantized_as
from minillama.generation import find_tokenizer
from minillama.packed import is_linear, page_out
from minillama.quantize import format_of, named_format, quantized


def convert(
    src: str | Path, dst: str | Path, format: str, progress: Callable[[Iterable[str]], Iterable[str]] = iter
) -> None:
    """Write the folder `src` again as `dst` with its linears in `format`, "int8" or "int4", and its tokenizer.

    progress: wraps the keys while they are worked on (`tqdm`). `dst` appears when it is whole, never before.
    Raises ValueError and FileNotFoundError, before anything is written, where `src` cannot be read or `dst` is there.
    """
    src, dst = as_path("src", src), as_path("dst", dst)
    named_format(format)
    if os.path.lexists(dst):
        raise ValueError(f"{dst} is there already; name a folder that is not")
    checkpoint_files(src)
    if quantized_as(src) is not None:
        raise ValueError(f"{src} is quantized already; start from the full weights")
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
    params = read_params(src / "params.json")
    dst.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dst.parent, prefix=f".{dst.name}-") as work:
        whole = Path(work) / "whole"
        whole.mkdir()
        torch.save(tensors, whole / "consolidated.00.pth")
        (whole / "params.json").write_text(json.dumps(params | {"quantized": format}, indent=2), encoding="utf-8")
        try:
            shutil.copy(find_tokenizer(src), whole / "tokenizer.model")
        except FileNotFoundError as error:
            warnings.warn(f"{error}; the new folder has none either", stacklevel=2)
        os.replace(whole, dst)
