"""What each trick of the fast path brings: each measured against its absence, in turns, in one process.

    python tools/speed/tricks.py --threads 1 > tricks-1.json

Shapes are those of the 1.1B model of `minillama bench`. Times are medians over rounds; every round runs every variant
once, over more weights than the caches hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import minillama  # noqa: F401  # before torch: it asks for large pages, see minillama/__init__.py

import torch  # isort: skip
import torch.nn.functional as F
from torch import nn

from minillama import packed, quantize
from minillama.args import ModelArgs
from minillama.decode import Row, decode
from minillama.transformer import Transformer

IN, OUT, COPIES = 2048, 5632, 8  # w1 of the 1.1B shape; 8 of them are beyond any cache
HEADS, KV_HEADS, HEAD_DIM = 32, 4, 64

Variants = dict[str, Callable[[], object]]


def medians(variants: Variants, rounds: int) -> dict[str, float]:
    """Seconds of each variant, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        call()
    for _ in range(rounds):
        for name, call in variants.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def linears(dtype: torch.dtype, rows: int, rounds: int) -> dict[str, float]:
    """GB of weights a second through torch's products and ours, and through a plain read."""
    weights = [torch.randn(OUT, IN).to(dtype) for _ in range(COPIES)]
    products = [packed.PackedProduct([nn.Parameter(weight, False)]) for weight in weights]
    x = torch.randn(rows, IN).to(dtype)
    large = torch.randn(100_000_000)
    variants: Variants = {
        "read": lambda: large.sum(),
        "F.linear": lambda: [F.linear(x, weight) for weight in weights],
        "packed": lambda: [product.part(x, 0) for product in products],
        "packed, not filled up": lambda: [product.product(x) for product in products],
    }
    if rows == 1:
        variants["torch.mv"] = lambda: [torch.mv(weight, x[0]) for weight in weights]
    size = COPIES * weights[0].nbytes
    return {
        name: (large.nbytes if name == "read" else size) / seconds / 1e9
        for name, seconds in medians(variants, rounds).items()
    }


def few_bits(rows: int, rounds: int) -> dict[str, float]:
    """Billions of weights a second through products of 8 and 4 bits, and through the packed bfloat16 one."""
    weights = [torch.randn(OUT, IN) for _ in range(COPIES)]
    x = torch.randn(rows, IN).bfloat16()
    eight = [quantize.quantize_int8(weight) for weight in weights]
    four = [quantize.quantize_int4(weight) for weight in weights]
    ours8 = [quantize.Int8Product([w], [s]) for w, s in eight]
    ours4 = [quantize.Int4Product([w], [s], [z]) for w, s, z in four]
    wide = [quantize.quantize_int4(weight, 128) for weight in weights]
    wide4 = [quantize.Int4Product([w], [s], [z]) for w, s, z in wide]
    half = [packed.PackedProduct([nn.Parameter(weight.bfloat16(), False)]) for weight in weights]
    variants: Variants = {
        "bfloat16, packed": lambda: [product.part(x, 0) for product in half],
        "int8, halves through oneDNN": lambda: [product.part(x, 0) for product in ours8],
        "int8, torch._weight_int8pack_mm": lambda: [torch._weight_int8pack_mm(x, w, s.bfloat16()) for w, s in eight],
        "int4, groups of 32": lambda: [product.part(x, 0) for product in ours4],
        "int4, groups of 128": lambda: [product.part(x, 0) for product in wide4],
    }
    return {name: COPIES * OUT * IN / seconds / 1e9 for name, seconds in medians(variants, rounds).items()}


def tried(rounds: int) -> dict[str, float]:
    """GB of weights a second at one row through products that were tried and not taken, beside the one that was."""
    weights = [torch.randn(OUT, IN) for _ in range(COPIES)]
    half = [weight.bfloat16() for weight in weights]
    fp16 = [weight.half() for weight in weights]
    turned = [weight.t().contiguous() for weight in half]
    x = torch.randn(1, IN)
    row, all_inputs, one_bag = x[0].bfloat16(), torch.arange(IN), torch.tensor([0])
    mkl = [torch.ops.mkl._mkl_reorder_linear_weight(weight, 1) for weight in weights]
    fbgemm = [torch.ops.quantized.linear_prepack_fp16(weight, None) for weight in weights]
    ours = [packed.PackedProduct([nn.Parameter(weight, False)]) for weight in half]
    generated = torch.compile(lambda weight, row: (weight.float() * row.float()).sum(-1), dynamic=False)

    def bag(weight: torch.Tensor) -> torch.Tensor:  # a sum of rows with weights is a product by the transpose
        return F.embedding_bag(all_inputs, weight, one_bag, mode="sum", per_sample_weights=row)

    variants: dict[str, tuple[int, Callable[[], object]]] = {
        "packed, bfloat16 (taken)": (2, lambda: [product.part(row[None], 0) for product in ours]),
        "F.linear, bfloat16": (2, lambda: [F.linear(row[None], weight) for weight in half]),
        "torch.mv, bfloat16": (2, lambda: [torch.mv(weight, row) for weight in half]),
        "embedding_bag, bfloat16": (2, lambda: [bag(weight) for weight in turned]),
        "row sums generated by inductor, bfloat16": (2, lambda: [generated(weight, row) for weight in half]),
        "F.linear, float16": (2, lambda: [F.linear(x.half(), weight) for weight in fp16]),
        "fbgemm, float16 weights": (2, lambda: [torch.ops.quantized.linear_dynamic_fp16(x, w) for w in fbgemm]),
        "MKL packed, float32": (
            4, lambda: [torch.ops.mkl._mkl_linear(x, p, weight, None, 1) for p, weight in zip(mkl, weights)]
        ),
        "row sums generated by inductor, float32": (4, lambda: [generated(weight, x[0]) for weight in weights]),
    }  # fmt: skip
    seconds = medians({name: call for name, (_, call) in variants.items()}, rounds)
    return {name: size * COPIES * OUT * IN / seconds[name] / 1e9 for name, (size, _) in variants.items()}


def single_rows(filled: int, rounds: int) -> dict[str, float]:
    """Microseconds of attention without groups (32 heads of 128, bfloat16): one query row a head, and two."""
    caches = [torch.randn(2, 1, 32, filled, 128).bfloat16() for _ in range(4)]
    q = torch.randn(1, 32, 1, 128).bfloat16()
    attend = F.scaled_dot_product_attention
    variants: Variants = {
        "one row": lambda: [attend(q, keys, values) for keys, values in caches],
        "two rows": lambda: [attend(q.expand(-1, -1, 2, -1), keys, values) for keys, values in caches],
    }
    return {name: seconds / 4 * 1e6 for name, seconds in medians(variants, rounds).items()}


def attention(dtype: torch.dtype, filled: int, rounds: int) -> dict[str, float]:
    """Microseconds of one layer's attention for one token: queries of a group together, alone, and over empty slots."""
    caches = [torch.randn(2, 1, KV_HEADS, 4096, HEAD_DIM).to(dtype) for _ in range(COPIES)]
    q = torch.randn(1, HEADS, 1, HEAD_DIM).to(dtype)
    group = q.view(1, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    whole = torch.arange(4096) < filled

    def each(call: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[], object]:
        return lambda: [call(keys, values) for keys, values in caches]

    attend = F.scaled_dot_product_attention
    variants = {
        "queries of a group together": each(lambda k, v: attend(group, k[:, :, :filled], v[:, :, :filled])),
        "enable_gqa": each(lambda k, v: attend(q, k[:, :, :filled], v[:, :, :filled], enable_gqa=True)),
        "together, all 4,096 slots": each(lambda k, v: attend(group, k, v, attn_mask=whole.view(1, 1, 1, -1))),
    }
    return {name: seconds / COPIES * 1e6 for name, seconds in medians(variants, rounds).items()}


def random_model(n_layers: int, dtype: torch.dtype) -> Transformer:
    with torch.device("meta"):
        model = Transformer(
            ModelArgs(dim=2048, n_layers=n_layers, n_heads=32, n_kv_heads=4, vocab_size=32000, max_seq_len=4096)
        )
    torch.manual_seed(0)
    for key, value in model.state_dict().items():
        owner, _, name = key.rpartition(".")
        weight = torch.ones(value.shape) if value.dim() == 1 else torch.randn(value.shape) * 0.02
        setattr(model.get_submodule(owner), name, nn.Parameter(weight.to(dtype), requires_grad=False))
    return model.eval()


@torch.no_grad()
def steps(model: Transformer, rows: list[Row]) -> list[float]:
    """Seconds of each step after the first."""
    stamps = [time.perf_counter() for _ in decode(model, rows, lambda logits, _: logits.argmax(-1), ())]
    return [after - before for before, after in itertools.pairwise(stamps)]


def prompt(r: int, length: int = 32) -> list[int]:
    return [(17 * r + 5 * i) % 31000 + 3 for i in range(length)]


def groups_joined(dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Milliseconds of a step of 8 layers: wq, wk, wv and w1, w3 as one product each, and alone."""
    joined = packed.pack(random_model(8, dtype))
    kept, packed.GROUPS = packed.GROUPS, ()
    alone = packed.pack(random_model(8, dtype))
    packed.GROUPS = kept
    plain = random_model(8, dtype)
    found: dict[str, list[float]] = {"joined": [], "alone": [], "not packed": []}
    for _ in range(rounds):
        for name, model in zip(found, (joined, alone, plain)):
            found[name] += steps(model, [Row(prompt(0), 12)])
    return {name: statistics.median(values) * 1e3 for name, values in found.items()}


def rows_that_end(rounds: int) -> dict[str, float]:
    """Seconds for 32 rows of which 24 end after 4 tokens and 8 after 32: with finished rows gone, and kept."""
    model = packed.pack(random_model(8, torch.bfloat16))

    def run(keep: bool) -> float:
        rows = [Row(prompt(r), 4 if r % 4 else 32) for r in range(32)]
        if keep:  # rows that go on though nobody wants them
            rows = [Row(row.prompt, 32) for row in rows]
        started = time.perf_counter()
        steps(model, rows)
        return time.perf_counter() - started

    found = {"gone": [run(False) for _ in range(rounds)], "kept": [run(True) for _ in range(rounds)]}
    return {name: statistics.median(values) for name, values in found.items()}


def pages(threads: int) -> dict[str, dict[str, float]]:
    """The bfloat16 product and the plain read in processes with large pages and without."""
    found = {}
    for name, value in (("2 MB pages", "1"), ("4 kB pages", "0")):
        command = [sys.executable, __file__, "--threads", str(threads), "--only", "pages"]
        out = subprocess.run(command, env=os.environ | {"THP_MEM_ALLOC_ENABLE": value}, capture_output=True, check=True)
        found[name] = json.loads(out.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    n, bf16, fp32 = options.rounds, torch.bfloat16, torch.float32
    if options.only == "pages":
        print(json.dumps(linears(bf16, 1, n)))
        return
    with torch.no_grad():
        result = {
            "threads": options.threads,
            "rounds": n,
            "linear": {
                f"{str(dtype).removeprefix('torch.')}, {rows} rows": linears(dtype, rows, n)
                for dtype in (fp32, bf16)
                for rows in (1, 4, 8, 32)
            },
            "few bits": {f"{rows} rows": few_bits(rows, n) for rows in (1, 4, 32)},
            "tried": tried(n),
            "single rows": single_rows(1000, n),
            "attention": {
                f"{str(dtype).removeprefix('torch.')}, {filled} filled": attention(dtype, filled, n)
                for dtype in (fp32, bf16)
                for filled in (128, 4000)
            },
            "groups": {str(dtype).removeprefix("torch."): groups_joined(dtype, 3) for dtype in (fp32, bf16)},
            "rows that end": rows_that_end(3),
            "pages": pages(options.threads),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
