"""The arithmetic of memory: how many bytes a model and a request take on each rank, before anything is allocated.

All results are bytes. Units for people are decimal: 1 GB is 10^9 bytes, as in "80 GB" on a GPU's box. Weights and KV
cache are exact. What the layers make on their way is a formula, `activation_bytes`, held against torch's own record of
what it allocates (`tests/test_memory_plan.py`); what a GPU's libraries take is an allowance, GPU_LIBRARIES.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillama.args import ModelArgs, shown, whole_number

if TYPE_CHECKING:  # `dtype.itemsize` is nearly all that is needed of torch
    import torch

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")
CGROUP = Path("/sys/fs/cgroup")  # where Linux (cgroup v2) says what a container may take
# What cuBLAS, NCCL and the pieces between allocations may take on a GPU beside what we count: a guess to the safe side,
# not yet measured.
GPU_LIBRARIES = 1_000_000_000
# Bytes for each word of the vocabulary while a token is chosen: 37 for the choice with all options on a CPU (fp32
# logits, softmax, order, cumulative sums), and 11 for the last step's logits and a sort that needs room.
CHOICE = 48


class OutOfMemory(ValueError):
    """What was asked for does not fit in the memory that is free; the message is the plan. Nothing was allocated."""


def weight_bytes(args: ModelArgs, dtype: int | torch.dtype, ranks: int = 1, quantize: str | None = None) -> int:
    """Bytes of the weights on each of `ranks` ranks; dtype: a torch dtype, or the bytes of one number.

    n_params * bytes on one rank: 6.74e9 * 2 is 13.5 GB for 7B in fp16. On several, matrices are cut into equal parts,
    the norms, (2L + 1) * D numbers, are on every rank, and so is a kv head where there are more ranks than kv heads.
    quantize: "int8" or "int4": the linears' share in that format; embedding and norms stay in `dtype`.
    """
    _check_ranks(args, ranks)
    size = number_bytes(dtype)
    rest = ((2 * args.n_layers + 1) * args.dim + args.vocab_size * args.dim // ranks) * size
    kinds = linear_shapes(args, ranks).items()
    return rest + sum(
        (1 if name == "output" else args.n_layers) * _matrix_bytes(name, *shape, size, quantize)
        for name, shape in kinds
    )


def linear_shapes(args: ModelArgs, ranks: int = 1) -> dict[str, tuple[int, int]]:
    """(out, in) of each linear of a layer, and of the head, on each of `ranks` ranks."""
    D, F, q, kv = args.dim, args.hidden_dim // ranks, args.dim // ranks, kv_heads(args, ranks) * args.head_dim
    return {
        "wq": (q, D), "wk": (kv, D), "wv": (kv, D), "wo": (D, q),
        "w1": (F, D), "w3": (F, D), "w2": (D, F), "output": (args.vocab_size // ranks, D),
    }  # fmt: skip


def _matrix_bytes(name: str, out: int, in_: int, size: int, quantize: str | None) -> int:
    if quantize is None:
        return out * in_ * size
    from minillama.quantize import format_of, named_format, quantized_shapes

    fields = quantized_shapes(out, in_, format_of(name, named_format(quantize))).values()
    return sum(_product(shape) * dtype.itemsize for shape, dtype in fields)


def _product(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def kv_heads(args: ModelArgs, ranks: int = 1) -> int:
    """kv heads that each rank holds: its share, and one at least; ranks beyond the kv heads hold copies."""
    return max(args.n_kv_heads // ranks, 1)


def kv_cache_bytes(args: ModelArgs, batch_size: int, seq_len: int, dtype: int | torch.dtype, ranks: int = 1) -> int:
    """Bytes of the KV cache on each of `ranks` ranks: 2 * L * B * S * K * h * bytes; the ranks share the K kv heads.

    The 2 is keys and values. 70B, batch 32, 4096 tokens in fp16: 2 * 80 * 32 * 4096 * 8 * 128 * 2 is 42.9 GB, and
    5.37 GB on each of 8 ranks. Without grouped-query attention K would be 64 and both eight times as much.
    """
    _check_ranks(args, ranks)
    numbers = 2 * args.n_layers * batch_size * seq_len * kv_heads(args, ranks) * args.head_dim
    return numbers * number_bytes(dtype)


def activation_bytes(
    args: ModelArgs, tokens: int, dtype: int | torch.dtype, ranks: int = 1, joined: bool = False
) -> int:
    """The most that a forward of `tokens` = B * T tokens holds at one time beside weights and cache, on each rank.

    Nothing is kept from layer to layer but the stream, tokens * D numbers, so the widest moment of one layer is the
    peak. There are five candidates. Streams are whole on every rank; the ranks share what is wider or narrower. Of
    numbers smaller than fp32, `.float()` makes copies.

        norm          two streams; x and its square or x / rms in fp32; the result, unscaled and scaled
        turning q     two streams, q k v, q in fp32 twice, q turned
        turning k     two streams, q k v, q turned, k in fp32 twice, k turned
        attention     two streams, q k v, the heads' answer, and a stream out of it
        feed-forward  three streams, silu(w1 x), w3 x, their product

    All along, the turns themselves: h/2 complex numbers a token. joined: q k v are parts of one product, and w1 x and
    w3 x too (packed linears), so none of them goes before all do. No matrix of scores is made.
    """
    size, streams = number_bytes(dtype), tokens * args.dim
    q, kv = streams // ranks, tokens * kv_heads(args, ranks) * args.head_dim
    wide = tokens * args.hidden_dim // ranks
    copies = 8 if size < 4 else 0
    moments = (
        (4 * size + copies) * streams,
        size * (2 * streams + 2 * q + 2 * kv) + copies * q,
        size * (2 * streams + 2 * q + 3 * kv) + copies * kv,
        size * (3 * streams + (3 * q + 3 * kv if joined else 2 * q + 2 * kv)),
        size * (3 * streams + (4 if joined else 3) * wide),
    )
    return max(moments) + tokens * args.head_dim // 2 * 8


def workspace_bytes(args: ModelArgs, batch_size: int) -> int:
    """What a step takes beside the layers: the logits of one position a row and the choice among them, RoPE's table."""
    return batch_size * args.vocab_size * CHOICE + args.max_seq_len * args.head_dim // 2 * 8


@dataclass(frozen=True)
class Plan:
    """What a model and a request take on each rank, in bytes, and what fits into `budget` (None: nobody said).

    largest_batch: at this length; largest_seq_len: at this batch, at most what the model takes. 0: not even one.
    """

    args: ModelArgs
    ranks: int
    batch_size: int
    seq_len: int
    dtype: str
    quantize: str | None
    budget: int | None
    weights: int
    kv_cache: int
    activations: int
    workspace: int
    largest_batch: int | None = None
    largest_seq_len: int | None = None

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.activations + self.workspace

    @property
    def fits(self) -> bool | None:
        return None if self.budget is None else self.total <= self.budget

    def parts(self) -> dict[str, int]:
        return {
            "weights": self.weights, "KV cache": self.kv_cache, "activations": self.activations,
            "workspace": self.workspace,
        }  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "weight_bytes": self.weights, "kv_cache_bytes": self.kv_cache, "activation_bytes": self.activations,
            "workspace_bytes": self.workspace, "total_bytes": self.total, "budget_bytes": self.budget,
            "fits": self.fits, "largest_batch": self.largest_batch, "largest_seq_len": self.largest_seq_len,
        }  # fmt: skip

    def sentence(self, where: str) -> str:
        """The plan in one line: what is needed and of what, what is free, and what would fit."""
        parts = ", ".join(f"{name} {gb(size)}" for name, size in self.parts().items() if size)
        on_each = f" on each of {self.ranks} ranks" if self.ranks > 1 else ""
        asked = f"batch {self.batch_size} x {self.seq_len:,} tokens in {self.quantize or self.dtype}"
        free = "" if self.budget is None else f", and {gb(self.budget)} are free on {where}"
        return f"{asked} takes {gb(self.total)}{on_each} ({parts}){free}; {self.remedy()}"

    def remedy(self) -> str:
        if self.largest_batch:
            batches = f"a batch of {self.largest_batch}" if self.largest_batch < self.batch_size else ""
            lengths = f"{self.largest_seq_len:,} tokens at this batch" if self.largest_seq_len else ""
            return f"what fits: {' or '.join(filter(None, (batches, lengths)))}"
        if self.largest_seq_len:
            return f"what fits: {self.largest_seq_len:,} tokens at this batch"
        more = "share the model among more ranks (torchrun --nproc_per_node N)"
        return f"{more}, take a smaller dtype, or quantize on a CPU"


def plan(
    args: ModelArgs,
    *,
    ranks: int = 1,
    batch_size: int = 1,
    seq_len: int | None = None,
    prompt_len: int | None = None,
    dtype: torch.dtype,
    budget: int | None = None,
    quantize: str | None = None,
    weights: int | None = None,
    joined: bool = False,
    cached: bool = True,
    extra: int = 0,
) -> Plan:
    """What `batch_size` rows of `seq_len` tokens take on each of `ranks` ranks, and what fits into `budget` bytes.

    seq_len: prompt and answer together, None for as many as the model takes; prompt_len: the part that goes through the
    model at once, None for all of it. weights: their bytes on a rank where they are known (0: they are there already).
    joined: see `activation_bytes`; cached: whether there is a KV cache; extra: workspace beyond the usual.
    """
    seq_len = args.max_seq_len if seq_len is None else seq_len
    held = weight_bytes(args, dtype, ranks, quantize) if weights is None else weights

    def parts(rows: int, length: int) -> tuple[int, int, int]:
        at_once = length if prompt_len is None else min(length, prompt_len)
        return (
            kv_cache_bytes(args, rows, length, dtype, ranks) if cached else 0,
            activation_bytes(args, rows * at_once, dtype, ranks, joined),
            workspace_bytes(args, rows) + extra,
        )

    def within(rows: int, length: int) -> bool:
        return budget is not None and held + sum(parts(rows, length)) <= budget

    cache, activations, workspace = parts(batch_size, seq_len)
    batches = lengths = None
    if budget is not None:
        length, most = seq_len, max(args.max_seq_len, seq_len)
        batches = largest(lambda rows: within(rows, length), 2**24)
        lengths = largest(lambda n: within(batch_size, n), most)
    name = str(dtype).removeprefix("torch.")
    return Plan(
        args, ranks, batch_size, seq_len, name, quantize, budget, held, cache, activations, workspace, batches, lengths
    )  # fmt: skip


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` that fits, where all below it fit as well; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


# What is free here ----------------------------------------------------------------------------------------------------


def free_memory(device: torch.device) -> int | None:
    """Bytes that this process could still take on `device`; None where the system does not say.

    On a GPU, what torch has kept for itself and does not use counts as free; half of GPU_LIBRARIES does not, because
    libraries take memory when they are first used, and what torch keeps lies in pieces. On a CPU it is what the system
    calls available, or what a container's limit leaves where that is less: pages of mapped files are, because they can
    be read again.
    """
    if device.type == "cuda":
        import torch

        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(torch.cuda.mem_get_info(device)[0] + kept - GPU_LIBRARIES // 2, 0)
    if device.type != "cpu":
        return None
    known = (proc_sizes("/proc/meminfo").get("MemAvailable"), container_room(CGROUP))
    return min((size for size in known if size is not None), default=None)


def container_room(folder: Path) -> int | None:
    """Bytes that the limit of the container whose cgroup (v2) is `folder` leaves; None where there is no limit."""
    try:
        limit, used, counts = ((folder / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
    except OSError:
        return None
    if not limit.strip().isdigit():  # "max"
        return None
    cached = [int(line.split()[1]) for line in counts.splitlines() if line.startswith(("active_file", "inactive_file"))]
    return max(int(limit) - int(used) + sum(cached), 0)


def share_of_free(device: torch.device) -> int | None:
    """This rank's share of `free_memory`: ranks on one machine's CPU share its memory, each has its own GPU."""
    free = free_memory(device)
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    sharing = int(local) if device.type == "cpu" and local.isdecimal() else 1
    return None if free is None else free // max(sharing, 1)


def check_build(
    args: ModelArgs,
    device: torch.device,
    *,
    dtype: torch.dtype,
    ranks: int = 1,
    quantize: str | None = None,
    mapped: bool = False,
) -> None:
    """Raise OutOfMemory, with the plan, if the weights and a request of one token do not fit what is free.

    mapped: weights stay in their file and are read as they are used, so they need not fit.
    """
    free = share_of_free(device)
    if free is None or mapped:
        return
    needed = plan(args, ranks=ranks, batch_size=1, seq_len=1, dtype=dtype, budget=free, quantize=quantize)
    if not needed.fits:
        raise OutOfMemory(f"the model does not fit: {needed.sentence(str(device))}")


def parse_size(text: str) -> int:
    """Bytes of "80GB", "80G" or "80" (10^9 each), "79.6GiB" or "79.6Gi" (2^30). Raises ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgtp])(i?)b?)?\s*", text, re.IGNORECASE | re.ASCII)
    power = " kmgtp".index((match[2] or "g").lower()) if match else 0
    size = float(match[1]) * (1024 if match[3] else 1000) ** power if match else 0.0
    if not 1 <= size < 2**63:
        raise ValueError(f"a size of memory is {shown(text)}; expected for instance 80GB, 80G, 79.6GiB or 40000MB")
    return int(size)


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
    whole_number("ranks", ranks)
    if ranks > 1:
        args.check_ranks(ranks)
