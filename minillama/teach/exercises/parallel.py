"""Chapter 09: tensor parallelism."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from minillama.teach.exercise import Attempt, Case, Exercise, Mistake

Shards = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def column_shard(w: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return w.chunk(ranks, 0)[rank]  # (out, in) -> (out/R, in)


def parallel_swiglu(x: torch.Tensor, shards: Shards) -> torch.Tensor:
    total = torch.zeros_like(x)
    for w1, w2, w3 in shards:
        mine = F.silu(x @ w1.T) * (x @ w3.T)  # (..., D) -> (..., F/R)
        total = total + mine @ w2.T  # (..., F/R) -> (..., D), a part of every sum
    return total


def all_reduce_bytes(dim: int, n_layers: int, tokens: int, number_bytes: int, ranks: int) -> int:
    size = tokens * dim * number_bytes  # of one all-reduce
    return 2 * n_layers * 2 * (ranks - 1) * size // ranks


def vocab_lookup(tokens: torch.Tensor, part: torch.Tensor, first: int) -> torch.Tensor:
    row = tokens - first
    mine = (row >= 0) & (row < len(part))  # (B, T)
    return part[row * mine] * mine[..., None]  # (B, T, D)


def my_kv_heads(rank: int, ranks: int, n_kv_heads: int) -> list[int]:
    if ranks >= n_kv_heads:
        return [rank * n_kv_heads // ranks]
    each = n_kv_heads // ranks
    return list(range(rank * each, (rank + 1) * each))


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _column_cases() -> list[Case]:
    counted = torch.arange(24.0)
    return [
        Case("a (4, 6) weight, rank 0 of 2", (counted.view(4, 6), 0, 2)),
        Case("a (4, 6) weight, rank 1 of 2", (counted.view(4, 6), 1, 2)),
        Case("a (12, 2) weight, rank 1 of 2", (counted.view(12, 2), 1, 2)),
        Case("a square weight, rank 2 of 4", (_numbers(8, 8), 2, 4)),
        Case("a (6, 12) weight, rank 1 of 3", (_numbers(6, 12, seed=1), 1, 3)),
        Case("the last of 8 ranks", (_numbers(16, 8, seed=2), 7, 8)),
        Case("one rank, which holds all", (_numbers(4, 4, seed=3), 0, 1)),
    ]


def _column_expected(w: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return torch.stack([row for i, row in enumerate(w) if i * ranks // len(w) == rank])


COLUMN_SHARD = Exercise(
    number="9.1",
    hints=(
        "The weight is stored as (out, in), and the product is x @ w.T. Which axis of w numbers the results?",
        "A column of w.T is a row of w. There are len(w) of them, and each rank gets len(w) / ranks neighbours.",
        "`w.chunk(ranks, 0)` is the list of parts; or the slice from `rank * n` on, with `n = len(w) // ranks`.",
    ),
    answer=column_shard,
    expected=_column_expected,
    cases=_column_cases,
    mistakes=[
        Mistake(
            "cuts the inputs",
            "You cut along `in`. That is the other cut, the one by rows, whose results are parts of sums. Columns of "
            "the product are axis 0 of the stored (out, in) weight.",
            lambda w, rank, ranks: w.chunk(ranks, 1)[rank],
        ),
        Mistake(
            "every R-th",
            "You deal the rows out like cards, rank, rank + ranks, ... A rank holds neighbours: a head is made of "
            "neighbouring rows, and dealing would take it apart.",
            lambda w, rank, ranks: w[rank::ranks],
        ),
        Mistake(
            "always the first",
            "Every rank gets the first part; `rank` has no say. All ranks would compute the same.",
            lambda w, rank, ranks: w.chunk(ranks, 0)[0],
        ),
        Mistake(
            "counts from 1",
            "Ranks are counted from 0: rank 0 holds the first part. Yours begin one part further on, or earlier.",
            lambda w, rank, ranks: w.chunk(ranks, 0)[rank - 1],
        ),
        Mistake(
            "counts from 1",
            "Ranks are counted from 0: rank 0 holds the first part. Yours begin one part further on, or earlier.",
            lambda w, rank, ranks: w[(rank + 1) * (len(w) // ranks) : (rank + 2) * (len(w) // ranks)],
        ),
        Mistake(
            "parts of R rows",
            "Your part has `ranks` rows. `ranks` is how many parts there are; a part has len(w) // ranks rows.",
            lambda w, rank, ranks: w[rank * ranks : (rank + 1) * ranks],
        ),
        Mistake(
            "chunks of size R",
            "`split` takes the size of a part, `chunk` their number. You made parts of `ranks` rows each.",
            lambda w, rank, ranks: w.split(ranks, 0)[rank] if rank * ranks < len(w) else w.split(ranks, 0)[-1],
        ),
        Mistake(
            "to the end",
            "You begin at the right place and go on to the end: the slice lacks its second number.",
            lambda w, rank, ranks: w[rank * (len(w) // ranks) :],
        ),
        Mistake(
            "transposed",
            "The part is the right one, and lies on its side. Stored weights are (out, in), shards too.",
            lambda w, rank, ranks: w.chunk(ranks, 0)[rank].T,
        ),
        Mistake(
            "all parts",
            "You return all parts. A rank keeps its own, and never needs the memory for the others.",
            lambda w, rank, ranks: w.chunk(ranks, 0),
        ),
        Mistake(
            "one row",
            "You return one row, number `rank`. A rank holds len(w) // ranks rows.",
            lambda w, rank, ranks: w[rank],
        ),
        Mistake(
            "one row",
            "You return one row, number `rank`. A rank holds len(w) // ranks rows.",
            lambda w, rank, ranks: w[rank : rank + 1],
        ),
        Mistake(
            "the whole",
            "You return all of w. Then nothing is saved: each rank would hold, and compute, everything.",
            lambda w, rank, ranks: w,
        ),
        Mistake(
            "from the start",
            "You end at the right place and begin at row 0: the slice lacks its first number.",
            lambda w, rank, ranks: w[: (rank + 1) * (len(w) // ranks)],
        ),
        Mistake(
            "one row short",
            "Your part ends one row too early. A slice leaves out its second number by itself: no `- 1`.",
            lambda w, rank, ranks: w[rank * (len(w) // ranks) : (rank + 1) * (len(w) // ranks) - 1],
        ),
        Mistake(
            "one row more",
            "Your part ends one row too late, with the first row of the next rank: no `+ 1` at the end of the slice.",
            lambda w, rank, ranks: w[rank * (len(w) // ranks) : (rank + 1) * (len(w) // ranks) + 1],
        ),
        Mistake(
            "backwards",
            "You count the parts from the last one. Rank 0 holds the first.",
            lambda w, rank, ranks: w.chunk(ranks, 0)[ranks - 1 - rank],
        ),
        Mistake(
            "zeros for the others",
            "Your part has the shape of the whole, with zeros for the other ranks. Then each rank needs the memory for "
            "all of it: return the rank's rows alone.",
            lambda w, rank, ranks: torch.cat([p if i == rank else 0 * p for i, p in enumerate(w.chunk(ranks, 0))]),
        ),
        Mistake(
            "n from the columns",
            "You cut along the right axis, and the size of your part comes from the other: `w.shape[1]` counts the "
            "inputs. There are w.shape[0], or len(w), rows to share.",
            lambda w, rank, ranks: w[rank * (w.shape[1] // ranks) : (rank + 1) * (w.shape[1] // ranks)],
        ),
    ],
)


def _shards(dim: int, hidden: int, ranks: int, seed: int) -> Shards:
    n = hidden // ranks
    return [
        (
            _numbers(n, dim, seed=seed + 3 * r) / dim**0.5 * 2,
            _numbers(dim, n, seed=seed + 3 * r + 1) / hidden**0.5,
            _numbers(n, dim, seed=seed + 3 * r + 2) / dim**0.5 * 2,
        )
        for r in range(ranks)
    ]


def _swiglu_cases() -> list[Case]:
    return [
        Case("two ranks, D = 4, F = 6", (_numbers(3, 4), _shards(4, 6, 2, 10))),
        Case("one rank", (_numbers(3, 4, seed=1), _shards(4, 6, 1, 20))),
        Case("four ranks of D neurons each", (_numbers(2, 3, 4, seed=2), _shards(4, 16, 4, 30))),
        Case("eight ranks of one neuron", (_numbers(2, 6, seed=3), _shards(6, 8, 8, 60))),
        Case("two ranks, numbers five times as large", (5 * _numbers(2, 4, seed=4), _shards(4, 8, 2, 90))),
    ]


def _swiglu_expected(x: torch.Tensor, shards: Shards) -> torch.Tensor:
    w1, w3 = (torch.cat([shard[i] for shard in shards]).double() for i in (0, 2))
    w2 = torch.cat([shard[1] for shard in shards], 1).double()
    gate, value = x.double() @ w1.T, x.double() @ w3.T
    return ((gate / (1 + torch.exp(-gate)) * value) @ w2.T).to(x.dtype)


def _parts(x: torch.Tensor, shards: Shards) -> list[torch.Tensor]:
    return [(F.silu(x @ w1.T) * (x @ w3.T)) @ w2.T for w1, w2, w3 in shards]


def _sum_first(x: torch.Tensor, shards: Shards) -> torch.Tensor:
    """Gate and value summed over ranks before they meet."""
    gate = torch.stack([x @ w1.T for w1, _, _ in shards]).sum(0)
    value = torch.stack([x @ w3.T for _, _, w3 in shards]).sum(0)
    return torch.stack([(F.silu(gate) * value) @ w2.T for _, w2, _ in shards]).sum(0)


def _sum_hidden(x: torch.Tensor, shards: Shards) -> torch.Tensor:
    hidden = torch.stack([F.silu(x @ w1.T) * (x @ w3.T) for w1, _, w3 in shards]).sum(0)
    return torch.stack([hidden @ w2.T for _, w2, _ in shards]).sum(0)


def _chained_onto_x(x: torch.Tensor, shards: Shards) -> torch.Tensor:
    for shard in shards:
        x = x + _parts(x, [shard])[0]
    return x


def _summed(part: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, Shards], torch.Tensor]:
    """The sum over ranks of what `part` makes of x, w1, w2, w3: for the mistakes."""
    return lambda x, shards: torch.stack([part(x, *shard) for shard in shards]).sum(0)


def _untransposed(which: Sequence[int]) -> Callable[[torch.Tensor, Shards], torch.Tensor]:
    def part(x: torch.Tensor, *shard: torch.Tensor) -> torch.Tensor:
        w1, w2, w3 = (w if i in which else w.T for i, w in enumerate(shard))
        return (F.silu(x @ w1) * (x @ w3)) @ w2

    return _summed(part)


class _Gluing(TorchFunctionMode):
    """Notes whether weights of two ranks are laid beside one another."""

    def __init__(self, shards: Shards) -> None:
        super().__init__()
        self.owners = {w.untyped_storage().data_ptr(): rank for rank, shard in enumerate(shards) for w in shard}
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.cat, torch.concat, torch.concatenate, torch.hstack, torch.vstack):
            pieces = args[0] if args else kwargs["tensors"]
            places = {piece.untyped_storage().data_ptr() for piece in pieces}
            self.seen |= len({self.owners[place] for place in places if place in self.owners}) > 1
        return func(*args, **(kwargs or {}))


def _glues(function: Callable[..., Any]) -> str | None:
    shards = _shards(4, 6, 2, 10)
    with _Gluing(shards) as gluing:
        function(_numbers(3, 4), shards)
    return "You put the weights together, though, which no rank has room for." if gluing.seen else None


def _chained(x: torch.Tensor, shards: Shards) -> torch.Tensor:
    for w1, w2, w3 in shards:
        x = (F.silu(x @ w1.T) * (x @ w3.T)) @ w2.T
    return x


PARALLEL_SWIGLU = Exercise(
    number="9.2",
    hints=(
        "Take one rank alone: chapter 05's block with its own w1, w3 and w2. What shape does it end in?",
        "Each rank's w2 brings its neurons back to D numbers, and each of these is a part of a sum.",
        "`(F.silu(x @ w1.T) * (x @ w3.T)) @ w2.T` is one rank's part; add the parts of all, once, at the end.",
    ),
    answer=parallel_swiglu,
    expected=_swiglu_expected,
    cases=_swiglu_cases,
    mistakes=[
        Mistake(
            "no all-reduce",
            "You return what one rank has. It is a part of every sum, and the other ranks' parts are missing.",
            lambda x, shards: _parts(x, shards)[0],
        ),
        Mistake(
            "no all-reduce",
            "You return what one rank has. It is a part of every sum, and the other ranks' parts are missing.",
            lambda x, shards: _parts(x, shards)[-1],
        ),
        Mistake(
            "concatenates",
            "You lay the ranks' results beside one another. After a cut by rows they are not parts of the vector but "
            "parts of every sum: same shape, to be added.",
            lambda x, shards: torch.cat(_parts(x, shards), -1),
        ),
        Mistake(
            "stacks",
            "You return the ranks' parts as a list or a stack; they have to be added into one (..., D).",
            lambda x, shards: torch.stack(_parts(x, shards)),
        ),
        Mistake(
            "stacks",
            "You return the ranks' parts as a list or a stack; they have to be added into one (..., D).",
            lambda x, shards: _parts(x, shards),
        ),
        Mistake(
            "mean",
            "You average. Each rank holds other neurons, not another opinion on the same: their parts add up.",
            lambda x, shards: torch.stack(_parts(x, shards)).mean(0),
        ),
        Mistake(
            "sums too early",
            "You add gates and values over the ranks before they meet. Each rank's are other neurons; only behind w2 "
            "do they speak of the same D numbers.",
            _sum_first,
        ),
        Mistake(
            "sums the neurons",
            "You add the ranks' neurons, and only then apply w2. Neuron 0 of rank 0 and neuron 0 of rank 1 have "
            "nothing in common but their number.",
            _sum_hidden,
        ),
        Mistake(
            "sums the neurons",
            "You add the ranks' neurons, and only then apply w2. Neuron 0 of rank 0 and neuron 0 of rank 1 have "
            "nothing in common but their number.",
            lambda x, shards: (
                torch.stack([F.silu(x @ w1.T) * (x @ w3.T) for w1, _, w3 in shards]).sum(0) @ shards[0][1].T
            ),
        ),
        Mistake(
            "one after another",
            "You hand one rank's result to the next, as if they were layers. All ranks read the same x.",
            _chained,
        ),
        Mistake(
            "one after another",
            "You hand one rank's result to the next, as if they were layers. All ranks read the same x.",
            _chained_onto_x,
        ),
        Mistake(
            "w1 and w3 swapped",
            "The bend is on w3's side. It belongs to the gate, w1; a shard is (w1, w2, w3).",
            lambda x, shards: torch.stack(_parts(x, [(w3, w2, w1) for w1, w2, w3 in shards])).sum(0),
        ),
        Mistake(
            "no bend",
            "The gate lacks its SiLU.",
            lambda x, shards: torch.stack([((x @ w1.T) * (x @ w3.T)) @ w2.T for w1, w2, w3 in shards]).sum(0),
        ),
        Mistake(
            "adds x on every rank",
            "x is in your sum. The stream is added outside, once: on every rank, inside, it would be added R times.",
            lambda x, shards: torch.stack([x + part for part in _parts(x, shards)]).sum(0),
        ),
        Mistake(
            "adds x",
            "x is in your result. The parts alone are asked for; the layer adds them to the stream, outside.",
            lambda x, shards: x + torch.stack(_parts(x, shards)).sum(0),
        ),
        Mistake(
            "summed R times",
            "Your sum is R times what it should be: each part belongs into it once.",
            lambda x, shards: torch.stack(_parts(x, shards)).sum(0) * len(shards),
        ),
        *(
            Mistake(
                "a rank left out",
                "One rank is missing from your sum. All have a part of it; rank 0 is a rank, and so is the last.",
                lambda x, shards, kept=kept, start=start: sum(_parts(x, shards[kept]), start(x)),
            )
            for kept in (slice(1, None), slice(None, -1))
            for start in (torch.zeros_like, lambda x: 0)
        ),
        Mistake(
            "w2 and w3 swapped",
            "A shard is (w1, w2, w3), in this order: you took w2 for w3.",
            _summed(lambda x, w1, w2, w3: (F.silu(x @ w1.T) * (x @ w2.T)) @ w3.T),
        ),
        *(
            Mistake(
                "not transposed",
                "Weights are stored (out, in): each product is `x @ w.T`.",
                _untransposed(which),
            )
            for n in (1, 2, 3)
            for which in combinations(range(3), n)
        ),
        Mistake(
            "bends the product",
            "You bend the product of gate and value. SiLU is for the gate alone, before they meet: `F.silu(g) * v`.",
            _summed(lambda x, w1, w2, w3: F.silu((x @ w1.T) * (x @ w3.T)) @ w2.T),
        ),
        Mistake(
            "no value",
            "w3 has no say. Each neuron's bent gate is multiplied by its value, `x @ w3.T`.",
            _summed(lambda x, w1, w2, w3: F.silu(x @ w1.T) @ w2.T),
        ),
        Mistake(
            "adds gate and value",
            "You add gate and value. The gate says how much of the value passes: they are multiplied.",
            _summed(lambda x, w1, w2, w3: (F.silu(x @ w1.T) + x @ w3.T) @ w2.T),
        ),
        Mistake(
            "sigmoid",
            "The gate's bend is a sigmoid. SiLU is `g * sigmoid(g)`.",
            _summed(lambda x, w1, w2, w3: (torch.sigmoid(x @ w1.T) * (x @ w3.T)) @ w2.T),
        ),
    ],
    remark=_glues,
)


def _bytes_cases() -> list[Case]:
    return [
        Case("D = 4, 1 layer, 1 token, 2 bytes, 2 ranks", (4, 1, 1, 2, 2)),
        Case("7B, one token, fp16, 2 ranks", (4096, 32, 1, 2, 2)),
        Case("13B, 512 tokens, fp16, 4 ranks", (5120, 40, 512, 2, 4)),
        Case("70B, 4096 tokens, fp16, 8 ranks", (8192, 80, 4096, 2, 8)),
        Case("the demo in fp32, 100 tokens, 4 ranks", (192, 6, 100, 4, 4)),
        Case("one rank, which sends nothing", (4096, 32, 1, 2, 1)),
    ]


ALL_REDUCE_BYTES = Exercise(
    number="9.3",
    hints=(
        "How large is what is summed? One stream: `tokens` vectors of `dim` numbers.",
        "A layer has two all-reduces. In a ring, each rank sends 2 (R - 1) pieces of 1/R for each of them.",
        "2 n_layers times 2 (R - 1) / R times tokens dim number_bytes; `//` by ranks last, so that it stays whole.",
    ),
    answer=all_reduce_bytes,
    # A float, and so are the wrong ones, because either kind of number is an answer.
    expected=lambda dim, n_layers, tokens, number_bytes, ranks: (
        sum(
            dim * tokens * number_bytes / ranks
            for _ in range(n_layers)
            for _ in ("attention", "feed_forward")
            for _ in ("share out", "collect")
            for _ in range(ranks - 1)
        )
        + 0.0
    ),
    cases=_bytes_cases,
    mistakes=[
        Mistake(
            "half of it",
            "That is half. There are two all-reduces a layer, one at the end of attention and one at the end of the "
            "feed-forward; and a ring goes round twice, R - 1 steps to make the sums and R - 1 to hand them out.",
            lambda d, n, t, b, r: n * 2 * (r - 1) * t * d * b / r,
        ),
        Mistake(
            "no ring",
            "You count the size of what is summed, whatever the ranks. In a ring each rank sends 2 (R - 1) / R times "
            "that; one rank sends nothing.",
            lambda d, n, t, b, r: float(2 * n * t * d * b),
        ),
        Mistake(
            "everyone to everyone",
            "You send the whole vector to each of the others, R - 1 times. The ring sends pieces of 1/R.",
            lambda d, n, t, b, r: float(2 * n * (r - 1) * t * d * b),
        ),
        Mistake(
            "one token",
            "You leave out the tokens: each has a vector of its own to be summed.",
            lambda d, n, t, b, r: 2 * n * 2 * (r - 1) * d * b / r,
        ),
        Mistake(
            "one layer",
            "You count a single layer; the model has n_layers.",
            lambda d, n, t, b, r: 2 * 2 * (r - 1) * t * d * b / r,
        ),
        Mistake(
            "numbers",
            "These are numbers, not bytes: each takes number_bytes.",
            lambda d, n, t, b, r: 2 * n * 2 * (r - 1) * t * d / r,
        ),
        Mistake(
            "a part of D",
            "You divide by the ranks twice. A rank holds 1/R of the weights, but its partial sums are D numbers wide: "
            "only the ring's pieces are 1/R.",
            lambda d, n, t, b, r: 2 * n * 2 * (r - 1) * t * (d // r) * b / r,
        ),
        Mistake(
            "all matrices",
            "You count an all-reduce for each of the seven matrices. Columns need none; only wo and w2 end in one.",
            lambda d, n, t, b, r: 7 * n * 2 * (r - 1) * t * d * b / r,
        ),
        Mistake(
            "of all ranks",
            "That is what all ranks send together. Asked is what each sends.",
            lambda d, n, t, b, r: float(2 * n * 2 * (r - 1) * t * d * b),
        ),
        Mistake(
            "a quarter",
            "That is a quarter: both twos are missing. A layer has two all-reduces, one at the end of attention and "
            "one at the end of the feed-forward, and the ring of each goes round twice.",
            lambda d, n, t, b, r: n * (r - 1) * t * d * b / r,
        ),
        Mistake(
            "doubled",
            "That is twice as much. Asked is what each rank sends; what it receives is as much again.",
            lambda d, n, t, b, r: 2 * (2 * n * 2 * (r - 1) * t * d * b / r),
        ),
        Mistake(
            "upside down",
            "Your fraction stands on its head: it is (R - 1) / R, R - 1 steps with a piece of 1/R each.",
            lambda d, n, t, b, r: 2 * n * 2 * r / (r - 1) * t * d * b,
        ),
        Mistake(
            "always two vectors",
            "You count two vectors for each all-reduce, whatever the ranks. It is 2 (R - 1) / R: one for two ranks, "
            "none for one.",
            lambda d, n, t, b, r: float(2 * n * 2 * t * d * b),
        ),
        Mistake(
            "divides too early",
            "Your `//` comes too early, and what it cuts off is missing from the product. Multiply first, divide last.",
            lambda d, n, t, b, r: float(2 * n * (2 * (r - 1) // r) * t * d * b),
        ),
        Mistake(
            "divides too early",
            "Your `//` comes too early, and what it cuts off is missing from the product. Multiply first, divide last.",
            lambda d, n, t, b, r: 0.0,
        ),
        Mistake(
            "bits",
            "These are bits: eight times as many. number_bytes counts bytes already.",
            lambda d, n, t, b, r: 8 * (2 * n * 2 * (r - 1) * t * d * b / r),
        ),
        Mistake(
            "the embedding too",
            "You count one all-reduce more than the layers have: two for each, and the embedding is in none of them.",
            lambda d, n, t, b, r: (2 * n + 1) * 2 * (r - 1) * t * d * b / r,
        ),
    ],
)


def _lookup_cases() -> list[Case]:
    table = _numbers(12, 5)  # as wide as no part has rows
    tokens = torch.tensor([[0, 5, 11, 6], [3, 4, 7, 8]])
    return [
        Case("rows 0 to 3 of 12", (tokens, table[:4], 0)),
        Case("rows 4 to 7 of 12", (tokens, table[4:8], 4)),
        Case("rows 8 to 11 of 12", (tokens, table[8:], 8)),
        Case("none of them mine", (torch.tensor([[0, 1], [2, 11]]), table[3:9], 3)),
        Case("all of them mine", (torch.tensor([[6, 11, 8]]), table[6:], 6)),
        Case("the whole table", (tokens, table, 0)),
    ]


def _lookup_expected(tokens: torch.Tensor, part: torch.Tensor, first: int) -> torch.Tensor:
    hot = tokens[..., None] == torch.arange(first, first + len(part))  # (B, T, V/R)
    return hot.to(part.dtype) @ part


def _index_error(attempt: Attempt) -> bool:
    return all(isinstance(attempt.outcomes[i].error, IndexError) for i in attempt.failed)


def _index_error_where(has: Callable[[torch.Tensor, int, int], torch.Tensor]) -> Callable[[Attempt], bool]:
    """Whether it stops at a row that is not there in just those cases that have such tokens."""

    def sees(attempt: Attempt) -> bool:
        cases = [i for i, case in enumerate(attempt.cases) if has(case.args[0], case.args[2], len(case.args[1])).any()]
        return attempt.failed == cases and _index_error(attempt)

    return sees


def _d_rows(row: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """D taken for the number of rows."""
    mine = (row >= 0) & (row < part.shape[1])
    return part[row * mine] * mine[..., None]


ONE_TOO_MANY = (
    "A token equal to `first + len(part)` counts as this rank's: it is the next rank's first. Rows run up to "
    "len(part) - 1 (`<`, not `<=`)."
)
NO_LOWER_END = (
    "Tokens below `first` pass as this rank's own. Their rows are negative: Python counts those from the end, or a "
    "clamp makes them row 0, and other words' vectors come. Both ends have to be asked for."
)
NO_UPPER_END = (
    "Tokens beyond the last row pass as this rank's own. A rank has len(part) rows: tokens from `first + len(part)` on "
    "are other ranks'. Both ends have to be asked for."
)


VOCAB_LOOKUP = Exercise(
    number="9.4",
    hints=(
        "Token 70 is row 6 of a part that begins with token 64. Which tokens have a row here at all?",
        "Rows run from 0 to len(part) - 1. For a token outside, what has to be added to the other ranks' answer?",
        "`row = tokens - first`; `mine = (row >= 0) & (row < len(part))`; look up `row * mine`, and "
        "multiply by `mine[..., None]`.",
    ),
    answer=vocab_lookup,
    expected=_lookup_expected,
    cases=_lookup_cases,
    mistakes=[
        Mistake("one row too many", ONE_TOO_MANY, sees=_index_error_where(lambda t, first, n: t == first + n)),
        Mistake(
            "one row too many",
            ONE_TOO_MANY,
            lambda tokens, part, first: (
                part[(tokens - first).clamp(0, len(part) - 1)]
                * ((tokens >= first) & (tokens <= first + len(part)))[..., None]
            ),
        ),
        Mistake("no lower end", NO_LOWER_END, sees=_index_error_where(lambda t, first, n: t < first)),
        Mistake(
            "no lower end",
            NO_LOWER_END,
            lambda tokens, part, first: (
                part[(tokens - first).clamp(0, len(part) - 1)] * (tokens < first + len(part))[..., None]
            ),
        ),
        Mistake(
            "no lower end",
            NO_LOWER_END,
            lambda tokens, part, first: (
                part[(tokens - first).clamp(max=len(part) - 1)] * (tokens < first + len(part))[..., None]
            ),
        ),
        Mistake("no upper end", NO_UPPER_END, sees=_index_error_where(lambda t, first, n: t >= first + n)),
        Mistake(
            "no upper end",
            NO_UPPER_END,
            lambda tokens, part, first: part[(tokens - first).clamp(0, len(part) - 1)] * (tokens >= first)[..., None],
        ),
        Mistake(
            "looks outside",
            "It looks for rows that this rank does not have. Find out first which tokens are its own, look up some "
            "safe row, 0 for instance, for the others, and put zeros there afterwards.",
            sees=_index_error,
        ),
        Mistake(
            "D for the rows",
            "You ask `part.shape[1]` how many rows there are. That is D, how wide a vector is; there are part.shape[0] "
            "rows, or len(part).",
            lambda tokens, part, first: _d_rows(tokens - first, part),
        ),
        Mistake(
            "D for the rows",
            "You ask `part.shape[1]` how many rows there are. That is D, how wide a vector is; there are part.shape[0] "
            "rows, or len(part).",
            # Clamped, as the parts with fewer rows than D lack one.
            lambda tokens, part, first: _d_rows(tokens - first, torch.cat([part, part[-1:]])),
        ),
        Mistake(
            "not zeroed",
            "Tokens of other ranks get the vector of row 0 here. It will be added to the right one: they need zeros.",
            lambda tokens, part, first: part[
                (tokens - first).where((tokens >= first) & (tokens < first + len(part)), torch.tensor(0))
            ],
        ),
        Mistake(
            "clamped",
            "Tokens of other ranks get the nearest row of this one. It will be added to the right one: they need "
            "zeros.",
            lambda tokens, part, first: part[(tokens - first).clamp(0, len(part) - 1)],
        ),
        Mistake(
            "wraps around",
            "You wrap tokens of other ranks around, or let negative rows count from the end. They need zeros.",
            lambda tokens, part, first: part[(tokens - first) % len(part)],
        ),
        Mistake(
            "first not subtracted",
            "Row 0 of the part is token `first`, not token 0: subtract it.",
            lambda tokens, part, first: part[tokens * (tokens < len(part))] * (tokens < len(part))[..., None],
        ),
        Mistake(
            "one row too few",
            "The vector of token `first` comes out as zeros. Row 0 is a row like any other: a mask with `>` loses it, "
            "and so does putting zeros wherever the row is 0. Ask whose the token is, not which row it got.",
            lambda tokens, part, first: _lookup_expected(tokens, part, first) * (tokens != first)[..., None],
        ),
        Mistake(
            "last row missing",
            "The last row of the part is missing: rows run up to len(part) - 1, and that one counts.",
            lambda tokens, part, first: (
                _lookup_expected(tokens, part, first) * (tokens != first + len(part) - 1)[..., None]
            ),
        ),
        Mistake(
            "only its own",
            "You return vectors for this rank's tokens only. The ranks' answers are added, so all need the shape "
            "(B, T, D), with zeros where another rank answers.",
            lambda tokens, part, first: part[tokens[(tokens >= first) & (tokens < first + len(part))] - first],
        ),
        Mistake(
            "the others",
            "Your mask is the wrong way round: zeros stand where this rank has the answer.",
            lambda tokens, part, first: (
                part[(tokens - first).clamp(0, len(part) - 1)]
                * ((tokens < first) | (tokens >= first + len(part)))[..., None]
            ),
        ),
    ],
)


def _kv_cases() -> list[Case]:
    return [
        Case("rank 0 of 2, 4 kv heads", (0, 2, 4)),
        Case("rank 1 of 2, 4 kv heads", (1, 2, 4)),
        Case("rank 3 of 8, 8 kv heads", (3, 8, 8)),
        Case("rank 3 of 8, 2 kv heads", (3, 8, 2)),
        Case("rank 5 of 8, 2 kv heads", (5, 8, 2)),
        Case("70B on 16 ranks, rank 13", (13, 16, 8)),
        Case("70B on 4 ranks, rank 2", (2, 4, 8)),
        Case("rank 6 of 8, 4 kv heads", (6, 8, 4)),
        Case("one kv head on 4 ranks", (2, 4, 1)),
    ]


def _kv_expected(rank: int, ranks: int, n_kv_heads: int) -> list[int]:
    """By the query heads: what those of the rank look at, for a model with twice as many as both need."""
    n_heads = 2 * ranks * n_kv_heads
    mine = range(rank * n_heads // ranks, (rank + 1) * n_heads // ranks)
    return sorted({head // (n_heads // n_kv_heads) for head in mine})


def _even(rank: int, ranks: int, n_kv_heads: int) -> list[int]:
    each = n_kv_heads // ranks
    return list(range(rank * each, (rank + 1) * each))


MY_KV_HEADS = Exercise(
    number="9.5",
    hints=(
        "Query heads are cut evenly; a rank needs the kv heads that its query heads look at (chapter 03: neighbours).",
        "Fewer ranks than kv heads: K / R neighbours each. More: R / K neighbouring ranks share one head.",
        "With more ranks, rank r holds head `r * K // R`; otherwise K // R heads from `r * (K // R)` on.",
    ),
    answer=my_kv_heads,
    expected=_kv_expected,
    cases=_kv_cases,
    mistakes=[
        Mistake(
            "in turn",
            "You deal the heads out in turn, rank % K. Neighbouring query heads share a kv head, and a rank's query "
            "heads are neighbours: rank 3 of 8 holds query heads that look at kv head 0 of 2.",
            lambda r, R, K: [r % K] if R >= K else _even(r, R, K),
        ),
        Mistake(
            "every R-th",
            "With fewer ranks than kv heads you deal them out like cards, r, r + R, ... A rank's query heads are "
            "neighbours, and so are the kv heads that they look at.",
            lambda r, R, K: list(range(r, K, R)) if R < K else [r * K // R],
        ),
        Mistake(
            "none left",
            "On some ranks yours is empty: with more ranks than kv heads there is not one for each. Such a rank needs "
            "a copy of the one that its query heads look at.",
            _even,
        ),
        Mistake(
            "one each",
            "You give one head to each rank as long as there are some. Its query heads may look at another: with 8 "
            "ranks and 2 kv heads, ranks 0 to 3 need head 0.",
            lambda r, R, K: [min(r, K - 1)] if R >= K else _even(r, R, K),
        ),
        Mistake(
            "the rank's number",
            "You take the rank for the head's number. With more ranks than kv heads there is no such head.",
            lambda r, R, K: [r] if R >= K else _even(r, R, K),
        ),
        Mistake(
            "divides by K",
            "You divide by the kv heads. A head is shared by R / K neighbouring ranks, so divide by that: "
            "r // (R // K), or r * K // R.",
            lambda r, R, K: [r // K] if R >= K else _even(r, R, K),
        ),
        Mistake(
            "always the first",
            "Every rank holds kv head 0. Half of the query heads were trained to look at another one.",
            lambda r, R, K: [0] if R >= K else _even(r, R, K),
        ),
        Mistake(
            "all of them",
            "Every rank holds all kv heads. It works, and the KV cache is then as large on each rank as it would be "
            "on one.",
            lambda r, R, K: list(range(K)),
        ),
        Mistake(
            "all of them",
            "Every rank holds all kv heads. It works, and the KV cache is then as large on each rank as it would be "
            "on one.",
            lambda r, R, K: list(range(K)) if R >= K else _even(r, R, K),
        ),
        Mistake(
            "only the first of them",
            "With fewer ranks than kv heads, each rank holds several: K // R of them.",
            lambda r, R, K: [r * K // R],
        ),
        Mistake(
            "empty ranges",
            "Both ends of your range are the same head on some ranks when ranks are more than kv heads: such a rank "
            "needs a copy of it.",
            lambda r, R, K: list(range(r * K // R, (r + 1) * K // R)),
        ),
        Mistake(
            "one head too many",
            "One head too many: `range` leaves out its second number.",
            lambda r, R, K: list(range(r * K // R, (r + 1) * K // R + 1)),
        ),
        Mistake(
            "none between",
            "Only the first of the ranks that share a head holds it. The ranks between have none, and their query "
            "heads look at one, too.",
            lambda r, R, K: ([r // (R // K)] if r % (R // K) == 0 else []) if R >= K else _even(r, R, K),
        ),
        *(
            Mistake(
                "rounded up",
                "You round up, or to the nearest. R / K neighbours share a head, and the last of them has the same one "
                "as the first: round down, `//`.",
                lambda r, R, K, rounded=rounded: [rounded(r * K / R)] if R >= K else _even(r, R, K),
            )
            for rounded in (math.ceil, round, lambda x: math.floor(x + 0.5))
        ),
        Mistake(
            "not whole",
            "`//`, not `/`: a head's number is whole.",
            lambda r, R, K: [r * K / R] if R >= K else _even(r, R, K),
        ),
    ],
)

EXERCISES: list[Any] = [COLUMN_SHARD, PARALLEL_SWIGLU, ALL_REDUCE_BYTES, VOCAB_LOOKUP, MY_KV_HEADS]
