"""The arithmetic of memory: how many bytes a model's weights and its KV cache take, before anything is allocated.

All results are bytes. Units for people are decimal: 1 GB is 10^9 bytes, as in "80 GB" on a GPU's box.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from minillama.args import ModelArgs

if TYPE_CHECKING:  # `dtype.itemsize` is all that is needed of torch
    import torch

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def weight_bytes(args: ModelArgs, dtype: int | torch.dtype, ranks: int = 1) -> int:
    """Bytes of the weights on each of `ranks` ranks; dtype: a torch dtype, or the bytes of one number.

    n_params * bytes on one rank: 6.74e9 * 2 is 13.5 GB for 7B in fp16. On several, matrices are cut into equal parts,
    and the norms, (2L + 1) * D numbers, are on every rank.
    """
    _check_ranks(args, ranks)
    norms = (2 * args.n_layers + 1) * args.dim
    return ((args.n_params - norms) // ranks + norms) * number_bytes(dtype)


def kv_cache_bytes(args: ModelArgs, batch_size: int, seq_len: int, dtype: int | torch.dtype, ranks: int = 1) -> int:
    """Bytes of the KV cache on each of `ranks` ranks: 2 * L * B * S * K * h * bytes; the ranks share the K kv heads.

    The 2 is keys and values. 70B, batch 32, 4096 tokens in fp16: 2 * 80 * 32 * 4096 * 8 * 128 * 2 is 42.9 GB, and
    5.37 GB on each of 8 ranks. Without grouped-query attention K would be 64 and both eight times as much.
    """
    _check_ranks(args, ranks)
    numbers = 2 * args.n_layers * batch_size * seq_len * (args.n_kv_heads // ranks) * args.head_dim
    return numbers * number_bytes(dtype)


def number_bytes(dtype: int | torch.dtype) -> int:
    """Bytes of one number: 4 for float32, 2 for float16 and bfloat16."""
    return dtype if isinstance(dtype, int) else dtype.itemsize


def gb(n_bytes: int) -> str:
    """`n_bytes` for people, three digits and the unit that suits: 42949672960 -> "42.9 GB", 1040128 -> "1.04 MB"."""
    value = float(n_bytes)
    for unit in UNITS:
        if value < 999.5 or unit == UNITS[-1]:  # 999.5 kB would round to 1000 kB
            break
        value /= 1000
    if unit == "bytes":
        return f"{n_bytes} bytes"
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f} {unit}"


def proc_sizes(path: str) -> dict[str, int]:
    """The lines "Name:  123 kB" of a file in /proc, in bytes; {} on systems without."""
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    sizes = (line for line in lines if len(line) == 3 and line[1].isdigit() and line[2] == "kB")
    return {name.rstrip(":"): int(number) * 1024 for name, number, _ in sizes}


def _check_ranks(args: ModelArgs, ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; expected 1 or more")
    if ranks > 1:
        args.check_ranks(ranks)
