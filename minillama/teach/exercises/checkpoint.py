"""Chapter 10: real checkpoints."""

from __future__ import annotations

from functools import partial

import torch

from minillama.teach.exercise import Attempt, Case, Exercise, Mistake
from minillama.teach.slots import Function


def _right_as_a_float(attempt: Attempt) -> bool:
    """Whether every number is right but for its type: 4.0 for 4."""
    got = [(attempt.outcomes[i].value, attempt.expected[i].value) for i in attempt.failed]
    return all(isinstance(value, float) and value == expected for value, expected in got)


def _as_floats(mistakes: list[Mistake]) -> list[Mistake]:
    """Each mistake as it looks with `/` for `//`: 4.0 is never 4, and the mistake is the same."""

    def as_float(wrong: Function) -> Function:
        return lambda *args: float(wrong(*args))

    return [Mistake(m.name, m.says, as_float(m.wrong)) for m in mistakes if m.wrong is not None]


# 10.1 -----------------------------------------------------------------------------------------------------------------


def files_for_rank(n_files: int, rank: int, ranks: int) -> list[int]:
    first = rank * n_files // ranks
    end = -(-(rank + 1) * n_files // ranks)  # rounded up: a file that is begun has to be opened
    return list(range(first, end))


def _overlapping(n_files: int, rank: int, ranks: int) -> list[int]:
    """In parts of 1/(n_files * ranks): file f holds [f R, (f + 1) R), the rank wants [r N, (r + 1) N)."""
    low, high = rank * n_files, (rank + 1) * n_files
    return [f for f in range(n_files) if f * ranks < high and low < (f + 1) * ranks]


def _block(rank: int, n: int) -> list[int]:
    return list(range(rank * n, (rank + 1) * n))


def _touching(n_files: int, rank: int, ranks: int, first: bool, last: bool) -> list[int]:
    """With the files whose end, or whose beginning, only touches the share."""
    low, high = rank * n_files - first, (rank + 1) * n_files + last
    return [f for f in range(n_files) if f * ranks < high and low < (f + 1) * ranks]


FILES_FOR_RANK = Exercise(
    number="10.1",
    hints=(
        "Let the weight be 1 long. File f holds what lies between f / n_files and (f + 1) / n_files. Between what does "
        "the share of the rank lie?",
        "The share begins at rank / ranks. Measured in files that is rank * n_files / ranks, so the first file is "
        "`rank * n_files // ranks`.",
        "It ends at (rank + 1) * n_files / ranks. A file that is only begun has to be opened too: round up, for "
        "instance with `-(-a // b)`.",
    ),
    answer=files_for_rank,
    expected=_overlapping,
    cases=lambda: [
        Case("8 files, rank 0 of 2", (8, 0, 2)),
        Case("8 files, rank 1 of 2", (8, 1, 2)),
        Case("8 files, rank 3 of 8", (8, 3, 8)),
        Case("2 files, rank 5 of 8", (2, 5, 8)),
        Case("1 file, rank 3 of 4", (1, 3, 4)),
        Case("4 files, rank 1 of 3", (4, 1, 3)),
        Case("8 files, rank 2 of 3", (8, 2, 3)),
        Case("8 files, one rank", (8, 0, 1)),
        Case("2 files, rank 1 of 8", (2, 1, 8)),
        Case("2 files, rank 1 of 3", (2, 1, 3)),
    ],
    mistakes=[
        Mistake(
            "a file for each rank",
            "Rank r opened file r. That is how the reference does it, and why it wants as many GPUs as files; here a "
            "rank may need several files, or a part of one.",
            lambda n_files, rank, ranks: [rank],
        ),
        Mistake(
            "all of them",
            "You open every file. With 70B that is 138 GB read by each rank; it needs those that its share lies in.",
            lambda n_files, rank, ranks: list(range(n_files)),
        ),
        Mistake(
            "in turns",
            "You dealt the files out like cards: rank, rank + ranks, ... A share is one piece of the weight, so its "
            "files are neighbours.",
            lambda n_files, rank, ranks: list(range(rank, n_files, ranks)),
        ),
        Mistake(
            "the end rounded down",
            "The end of the share is rounded down, so a file that the rank needs only a part of is left out: with more "
            "ranks than files most get none at all. Round the end up.",
            lambda n_files, rank, ranks: list(range(rank * n_files // ranks, (rank + 1) * n_files // ranks)),
        ),
        Mistake(
            "the end rounded down, or one",
            "The end of the share is rounded down, and where nothing is left you take one file. Round the end up, and "
            "there is always one.",
            lambda n_files, rank, ranks: (
                list(range(rank * n_files // ranks, (rank + 1) * n_files // ranks)) or [rank * n_files // ranks]
            ),
        ),
        Mistake(
            "one too many",
            "You open the file that begins where the share ends. Of 8 files, rank 0 of 2 needs 0 to 3, and not 4.",
            lambda n_files, rank, ranks: list(range(rank * n_files // ranks, (rank + 1) * n_files // ranks + 1)),
        ),
        Mistake(
            "only the first",
            "You found the file in which the share begins. It may go on in the next ones.",
            lambda n_files, rank, ranks: [rank * n_files // ranks],
        ),
        Mistake(
            "files and ranks exchanged",
            "You divided by the number of files. Shares are counted in ranks: a place in files is "
            "rank * n_files / ranks.",
            lambda n_files, rank, ranks: list(range(rank * ranks // n_files, -(-(rank + 1) * ranks // n_files))),
        ),
        Mistake(
            "files for each rank, rounded down",
            "You gave every rank n_files // ranks files. That is 0 where there are more ranks than files, and leaves "
            "some over where they do not divide.",
            lambda n_files, rank, ranks: _block(rank, n_files // ranks),
        ),
        Mistake(
            "the start rounded up",
            "The start of the share is rounded up, so the file in which it begins is left out. Round the start down, "
            "the end up.",
            lambda n_files, rank, ranks: list(range(-(-rank * n_files // ranks), -(-(rank + 1) * n_files // ranks))),
        ),
        Mistake(
            "whole files only",
            "You open the files that lie whole in the share. One of which it has a part is needed too.",
            lambda n_files, rank, ranks: list(range(-(-rank * n_files // ranks), (rank + 1) * n_files // ranks)),
        ),
        *[
            Mistake(
                "a block, one at least",
                "Each rank has a block of its own. With more ranks than files neighbours share one: rank 5 of 8 wants "
                "file 1 of 2; there is no file 5.",
                wrong,
            )
            for wrong in (
                lambda n_files, rank, ranks: _block(rank, max(1, n_files // ranks)),
                lambda n_files, rank, ranks: [f for f in _block(rank, max(1, n_files // ranks)) if f < n_files],
            )
        ],
        Mistake(
            "a block, rounded up",
            "Each rank has a block of ceil(n_files / ranks). The last ones get none, though their share is as large.",
            lambda n_files, rank, ranks: [f for f in _block(rank, -(-n_files // ranks)) if f < n_files],
        ),
        Mistake(
            "a block or one",
            "Right where one number divides the other. With 4 files and 3 ranks a share begins and ends inside a file.",
            lambda n_files, rank, ranks: _block(rank, n_files // ranks) or [rank * n_files // ranks],
        ),
        *[
            Mistake(
                "as many as a share is long",
                "From the first file on you open as many as a share is long. One that begins inside a file may need "
                "one more: with 2 files, rank 1 of 3 needs both.",
                wrong,
            )
            for wrong in (
                lambda n_files, rank, ranks: [rank * n_files // ranks + i for i in range(-(-n_files // ranks))],
                lambda n_files, rank, ranks: [rank * n_files // ranks + i for i in range(max(1, n_files // ranks))],
            )
        ],
        *[
            Mistake(
                "touching",
                "A file that begins where the share ends, or ends where it begins, has nothing of it: `<`, not `<=`.",
                touches,
            )
            for touches in (
                lambda n_files, rank, ranks: _touching(n_files, rank, ranks, first=True, last=True),
                lambda n_files, rank, ranks: _touching(n_files, rank, ranks, first=False, last=True),
                lambda n_files, rank, ranks: _touching(n_files, rank, ranks, first=True, last=False),
            )
        ],
        Mistake(
            "from one",
            "Files are counted from 0, as in consolidated.00.pth.",
            lambda n_files, rank, ranks: [f + 1 for f in _overlapping(n_files, rank, ranks)],
        ),
        Mistake(
            "how many",
            "That is how many. Asked is which.",
            lambda n_files, rank, ranks: len(_overlapping(n_files, rank, ranks)),
        ),
        Mistake(
            "two ends",
            "The first and the last; those between are missing.",
            lambda n_files, rank, ranks: [_overlapping(n_files, rank, ranks)[i] for i in (0, -1)],
        ),
        Mistake(
            "two ends",
            "The first and the last; those between are missing.",
            lambda n_files, rank, ranks: sorted({_overlapping(n_files, rank, ranks)[i] for i in (0, -1)}),
        ),
        Mistake(
            "first and end",
            "Those are the ends. Asked are all numbers: `list(range(first, end))`.",
            lambda n_files, rank, ranks: (rank * n_files // ranks, -(-(rank + 1) * n_files // ranks)),
        ),
    ],
)

# 10.2 -----------------------------------------------------------------------------------------------------------------


def bytes_a_rank(
    dim: int,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int,
    hidden_dim: int,
    vocab_size: int,
    ranks: int,
    bytes_of_a_number: int,
) -> int:
    head_dim = dim // n_heads
    kv_width = max(n_kv_heads // ranks, 1) * head_dim  # a kv head is never cut
    layer = 2 * dim * dim // ranks + 2 * dim * kv_width + 3 * dim * hidden_dim // ranks
    norms = (2 * n_layers + 1) * dim  # whole on every rank
    return (2 * vocab_size * dim // ranks + n_layers * layer + norms) * bytes_of_a_number


def _rank_bytes(
    D: int, L: int, H: int, K: int, F: int, V: int, R: int, size: int, *, without: tuple[str, ...] = ()
) -> int:
    """From shapes; without: what is believed wrongly."""
    h = D // H
    kv_rows = K * h // R if R <= K else h
    believed = {
        "copies": K * h // R,
        "kv cut": K * h,
        "gqa": D // R,
        "one at least": K // R * h,
        "one at most": K * h // R if R <= K else K * h,
        "head width": max(K // R, 1),
    }
    for idea in without:
        kv_rows = believed.get(idea, kv_rows)
    kv = [(kv_rows, D)] * (1 if "wv" in without else 2)
    wo = (D, D) if "wo cut" in without else (D, D // R)
    w2 = (D, F) if "w2 cut" in without else (D, F // R)
    w1_and_w3 = [(F // R, D)] * (1 if "w3" in without else 2)
    tables = [(V if "embedding cut" in without else V // R, D), (V if "head cut" in without else V // R, D)]
    if "tables" in without:
        tables = []
    elif "head" in without:
        tables = tables[1:]
    wq = [] if "wq" in without else [(D // R, D)]
    layer = [*wq, *kv, wo, *w1_and_w3, w2] * (1 if "layers" in without else L)
    total = sum(rows * columns for rows, columns in tables + layer)
    norms = (2 * L + 1) * D
    if "norms" in without:
        norms = 0
    elif "norms whole" in without:
        norms //= R
    return (total + norms) * size


def _other_norms(D: int, L: int, H: int, K: int, F: int, V: int, R: int, size: int, *, a_layer: int, last: int) -> int:
    return _rank_bytes(D, L, H, K, F, V, R, size, without=("norms",)) + (a_layer * L + last) * D * size


BYTES_A_RANK = Exercise(
    number="10.2",
    hints=(
        "Exercise 6.4 counted the numbers of a whole model: embedding and head, 2 V D; a layer, 2 D D for wq and wo, "
        "2 D K h for wk and wv, 3 D F; norms, (2 L + 1) D. Which of these are cut, and which not?",
        "Matrices are divided by `ranks`. A norm is not: every rank has the whole vector to normalize.",
        "wk and wv are cut between heads, never inside one. With 2 kv heads and 8 ranks: what does a rank hold?",
        "The width of wk and wv on a rank is `max(n_kv_heads // ranks, 1) * head_dim`.",
    ),
    answer=bytes_a_rank,
    expected=_rank_bytes,
    cases=lambda: [
        Case("a tiny model on one rank", (8, 1, 4, 2, 16, 10, 1, 4)),
        Case("the demo on 2 ranks", (192, 6, 8, 2, 384, 1536, 2, 4)),
        Case("the demo on 8 ranks: more than kv heads", (192, 6, 8, 2, 384, 1536, 8, 4)),
        Case("7B in 16 bits, one rank", (4096, 32, 32, 32, 11008, 32000, 1, 2)),
        Case("13B in 16 bits on 2 ranks", (5120, 40, 40, 40, 13824, 32000, 2, 2)),
        Case("70B in 16 bits on 8 ranks", (8192, 80, 64, 8, 28672, 32000, 8, 2)),
        Case("70B in 16 bits on 16 ranks: more than kv heads", (8192, 80, 64, 8, 28672, 32000, 16, 2)),
    ],
    tolerance=0.0,
    mistakes=[
        Mistake(
            "a float",
            "The number is right, as a float. Bytes are whole: `//`.",
            sees=_right_as_a_float,
        ),
        Mistake(
            "norms cut",
            "You divided everything by the number of ranks. The norms, (2L + 1) D numbers, are whole on each.",
            partial(_rank_bytes, without=("norms whole",)),
        ),
        Mistake(
            "norms and kv heads cut",
            "You divided everything by the number of ranks. Two things are not divided: the norms, whole on each rank, "
            "and a kv head where there are more ranks than those.",
            partial(_rank_bytes, without=("norms whole", "copies")),
        ),
        Mistake(
            "no norms",
            "The norms are missing: two in each layer and one at the end, D numbers each, whole on every rank.",
            partial(_rank_bytes, without=("norms",)),
        ),
        Mistake(
            "kv heads cut",
            "With more ranks than kv heads you cut a head into pieces. A head is never cut: each rank holds one whole, "
            "and neighbours hold copies.",
            partial(_rank_bytes, without=("copies",)),
        ),
        Mistake(
            "kv heads on every rank",
            "You put all of wk and wv on every rank. Ranks share the kv heads, as long as there are enough of them.",
            partial(_rank_bytes, without=("kv cut",)),
        ),
        Mistake(
            "as many kv heads as heads",
            "wk and wv are counted as large as wq. They have K heads, not H: K h columns come out of them.",
            partial(_rank_bytes, without=("gqa",)),
        ),
        Mistake(
            "the embedding whole",
            "One of the two large tables is whole on every rank in your count. Embedding and head are both cut.",
            partial(_rank_bytes, without=("embedding cut",)),
        ),
        Mistake(
            "one table",
            "You counted the embedding or the head, and there are both: Llama 2 does not tie them.",
            partial(_rank_bytes, without=("head",)),
        ),
        Mistake(
            "two matrices in the feed-forward",
            "The feed-forward block has three matrices: w1, w3 (the gate makes it a third) and w2.",
            partial(_rank_bytes, without=("w3",)),
        ),
        Mistake(
            "numbers",
            "Those are numbers. Asked are bytes: each takes `bytes_of_a_number`.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, 1),
        ),
        Mistake(
            "not shared",
            "That is the whole model. The ranks share the matrices.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, 1, size),
        ),
        Mistake(
            "both tables whole",
            "Embedding and head are whole on every rank in your count; both are cut.",
            partial(_rank_bytes, without=("embedding cut", "head cut")),
        ),
        Mistake(
            "no kv head left",
            "With more ranks than kv heads `n_kv_heads // ranks` is 0, and wk and wv vanish. One whole head stays.",
            partial(_rank_bytes, without=("one at least",)),
        ),
        Mistake(
            "all kv heads where they are few",
            "With more ranks than kv heads you gave each rank all of them. It needs one.",
            partial(_rank_bytes, without=("one at most",)),
        ),
        Mistake(
            "w2 whole",
            "w2 is whole on every rank in your count, or w1, or w3. All three are cut, w2 by columns.",
            partial(_rank_bytes, without=("w2 cut",)),
        ),
        Mistake(
            "wo whole",
            "wo is whole on every rank in your count, or wq. Both are cut, wo by columns.",
            partial(_rank_bytes, without=("wo cut",)),
        ),
        Mistake(
            "wo and w2 whole",
            "It looks as if wo and w2 were whole on every rank in your count. They are cut too, by columns.",
            partial(_rank_bytes, without=("wo cut", "w2 cut")),
        ),
        Mistake(
            "all ranks together",
            "That is what all hold together. Asked is one.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size) * R,
        ),
        *[
            Mistake(
                "some norms",
                "Two norms in each layer, and one after the last.",
                partial(_other_norms, a_layer=a_layer, last=last),
            )
            for a_layer, last in ((2, 0), (1, 1), (1, 0), (0, 1), (2, 2), (0, 3))
        ],
        *[
            Mistake("one layer", "That is one layer; there are n_layers.", wrong)
            for wrong in (
                partial(_rank_bytes, without=("layers",)),
                lambda D, L, H, K, F, V, R, size: _rank_bytes(D, 1, H, K, F, V, R, size),
            )
        ],
        Mistake(
            "no tables",
            "Embedding and head are missing, V D numbers each. Both are cut.",
            partial(_rank_bytes, without=("tables",)),
        ),
        Mistake(
            "one of wq and wo",
            "wq and wo are two matrices.",
            partial(_rank_bytes, without=("wq",)),
        ),
        Mistake(
            "one of wk and wv",
            "wk and wv are two matrices.",
            partial(_rank_bytes, without=("wv",)),
        ),
        Mistake(
            "head width left out",
            "The size of a head, dim // n_heads, is left out.",
            partial(_rank_bytes, without=("head width",)),
        ),
    ],
)

# 10.3 -----------------------------------------------------------------------------------------------------------------


def rows_that_fit(card: int, weights: int, libraries: int, tokens: int, bytes_a_token: int) -> int:
    free = card - weights - libraries
    return max(free // (tokens * bytes_a_token), 0)


def _counted_up(card: int, weights: int, libraries: int, tokens: int, bytes_a_token: int) -> int:
    """One row after the other, until one does not fit."""
    rows = 0
    while weights + libraries + (rows + 1) * tokens * bytes_a_token <= card:
        rows += 1
    return rows


ROWS_THAT_FIT = Exercise(
    number="10.3",
    hints=(
        "What is left of the card when weights and libraries are on it?",
        "One row of the batch takes tokens * bytes_a_token. A row that fits by half does not fit.",
        "`//` rounds down, for negative numbers as well: where the weights do not fit, the answer is 0, not -3.",
    ),
    answer=rows_that_fit,
    expected=_counted_up,
    cases=lambda: [
        Case("7B on 24 GB", (24 * 10**9, 13_476_831_232, 10**9, 4096, 524_288)),
        Case("7B on 80 GB", (80 * 10**9, 13_476_831_232, 10**9, 4096, 524_288)),
        Case("one of 8 ranks of 70B on 80 GB", (80 * 10**9, 17_246_470_144, 10**9, 4096, 40_960)),
        Case("13B on 24 GB: the weights do not fit", (24 * 10**9, 26_031_728_640, 10**9, 4096, 819_200)),
        Case("70B on 24 GB: far from fitting", (24 * 10**9, 137_953_296_384, 10**9, 4096, 327_680)),
        Case("a row that fits to the byte", (1000, 300, 100, 10, 20)),
        Case("a row that lacks one byte", (999, 300, 100, 10, 20)),
    ],
    tolerance=0.0,
    mistakes=[
        Mistake(
            "a float",
            "The number is right, as a float. Rows are whole: `//` between whole numbers.",
            sees=_right_as_a_float,
        ),
        Mistake(
            "an empty card",
            "You shared out the whole card. The weights are on it already, and the libraries.",
            lambda card, weights, libraries, tokens, a_token: card // (tokens * a_token),
        ),
        Mistake(
            "without the libraries",
            "You left the libraries out. CUDA's and NCCL's own memory is on the card too, and the batch that ignores "
            "it fails in the middle of a request.",
            lambda card, weights, libraries, tokens, a_token: max((card - weights) // (tokens * a_token), 0),
        ),
        Mistake(
            "without the weights",
            "The weights are missing: they are on the card before the first request.",
            lambda card, weights, libraries, tokens, a_token: max((card - libraries) // (tokens * a_token), 0),
        ),
        Mistake(
            "tokens, not rows",
            "That is how many tokens fit. A row of the batch has `tokens` of them.",
            lambda card, weights, libraries, tokens, a_token: max((card - weights - libraries) // a_token, 0),
        ),
        Mistake(
            "rounded up",
            "You rounded up. A row that fits by half does not fit: it ends in `out of memory`.",
            lambda card, weights, libraries, tokens, a_token: max(
                -(-(card - weights - libraries) // (tokens * a_token)), 0
            ),
        ),
        Mistake(
            "rounded to the nearest",
            "You rounded to the nearest. A row that fits by more than half does not fit either.",
            lambda card, weights, libraries, tokens, a_token: max(
                round((card - weights - libraries) / (tokens * a_token)), 0
            ),
        ),
        Mistake(
            "fewer than none",
            "Where the weights do not fit you get a negative batch. None fits: 0.",
            lambda card, weights, libraries, tokens, a_token: (card - weights - libraries) // (tokens * a_token),
        ),
        Mistake(
            "not whole",
            "Rows are counted in whole numbers: `//` divides and rounds down.",
            lambda card, weights, libraries, tokens, a_token: max((card - weights - libraries) / (tokens * a_token), 0),
        ),
        Mistake(
            "one row less",
            "A row that fits to the byte fits. You left one row out.",
            lambda card, weights, libraries, tokens, a_token: max(
                (card - weights - libraries - 1) // (tokens * a_token), 0
            ),
        ),
        Mistake(
            "towards zero",
            "`int` cuts towards 0: -85.6 becomes -85, and that is no batch. Where nothing fits the answer is 0.",
            lambda card, weights, libraries, tokens, a_token: int((card - weights - libraries) / (tokens * a_token)),
        ),
        Mistake(
            "plus libraries",
            "Libraries take room: they are subtracted, like the weights.",
            lambda card, weights, libraries, tokens, a_token: max(
                (card - weights + libraries) // (tokens * a_token), 0
            ),
        ),
        Mistake(
            "at least one",
            "Where not one row fits the answer is 0.",
            lambda card, weights, libraries, tokens, a_token: max(
                (card - weights - libraries) // (tokens * a_token), 1
            ),
        ),
        *[
            Mistake(
                "brackets", "`a // b * c` multiplies at the end. Put brackets around tokens * bytes_a_token.", wrong
            )
            for wrong in (
                lambda card, weights, libraries, tokens, a_token: max(
                    (card - weights - libraries) // tokens * a_token, 0
                ),
                lambda card, weights, libraries, tokens, a_token: max(
                    (card - weights - libraries) / tokens * a_token, 0
                ),
            )
        ],
        Mistake(
            "weights for each row",
            "Weights are there once, not once a row.",
            lambda card, weights, libraries, tokens, a_token: card // (weights + libraries + tokens * a_token),
        ),
        Mistake(
            "keys and values again",
            "bytes_a_token counts both already.",
            lambda card, weights, libraries, tokens, a_token: max(
                (card - weights - libraries) // (2 * tokens * a_token), 0
            ),
        ),
        *[
            Mistake("left over", "Those are the bytes left over. How many rows is that?", wrong)
            for wrong in (
                lambda card, weights, libraries, tokens, a_token: card - weights - libraries,
                lambda card, weights, libraries, tokens, a_token: max(card - weights - libraries, 0),
            )
        ],
    ],
)

# 10.4 -----------------------------------------------------------------------------------------------------------------


def to_pairs(w: torch.Tensor, n_heads: int) -> torch.Tensor:
    halves = w.view(n_heads, 2, -1, w.shape[-1])  # (K, 2, h/2, D)
    return halves.transpose(1, 2).reshape(w.shape)


def _order_of_pairs(w: torch.Tensor, n_heads: int) -> torch.Tensor:
    h = len(w) // n_heads
    order = [head * h + i + half * h // 2 for head in range(n_heads) for i in range(h // 2) for half in (0, 1)]
    return w[order]


def _heads_apart(w: torch.Tensor, n_heads: int) -> torch.Tensor:
    return w.view(2, -1, n_heads, w.shape[-1]).transpose(0, 1).reshape(w.shape)


def _matrix(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(rows * columns, dtype=torch.float32).view(rows, columns).to(dtype)


def _raises_for_views(attempt: Attempt) -> bool:
    """Whether it stops everywhere with torch's complaint that a view of transposed numbers cannot be had."""
    return all(o.error is not None and "view size is not compatible" in str(o.error) for o in attempt.outcomes)


TO_PAIRS = Exercise(
    number="10.4",
    hints=(
        "It is 2.4 the other way round. One head of 8 rows lies in the file as 0 2 4 6 1 3 5 7. Row 1 of the result is "
        "the first row of the second half.",
        "Give the halves an axis: `w.view(n_heads, 2, -1, w.shape[-1])` is (K, 2, h/2, D). Row i of one half has to "
        "come beside row i of the other.",
        "`.transpose(1, 2)` makes it (K, h/2, 2, D), and `.reshape(w.shape)` a matrix again.",
    ),
    answer=to_pairs,
    expected=_order_of_pairs,
    cases=lambda: [
        Case("one head of 8", (_matrix(8, 2), 1)),
        Case("two heads of 8", (_matrix(16, 3), 2)),
        Case("four heads of 6", (_matrix(24, 6), 4)),
        Case("two kv heads of 24, as in the demo's wk", (_matrix(48, 5), 2)),
        Case("three heads of 10, in bf16", (_matrix(30, 4, torch.bfloat16), 3)),
    ],
    mistakes=[
        Mistake(
            "the way there",
            "This is 2.4 again, from neighbours to halves. Back is the other view: (K, 2, h/2, D), not (K, h/2, 2, D), "
            "before you transpose.",
            lambda w, n_heads: w.view(n_heads, -1, 2, w.shape[-1]).transpose(1, 2).reshape(w.shape),
        ),
        Mistake(
            "unchanged",
            "The rows are where they were. Row 1 of the result is the first of the second half.",
            lambda w, n_heads: w.clone(),
        ),
        Mistake(
            "across heads",
            "You took the halves of the whole matrix. Each head has two halves of its own: give the heads an axis.",
            lambda w, n_heads: w.view(2, -1, w.shape[-1]).transpose(0, 1).reshape(w.shape),
        ),
        Mistake(
            "heads taken apart",
            "Neighbours are read as rows of different heads. A head is a block of h rows: its axis comes first.",
            _heads_apart,
        ),
        Mistake(
            "columns",
            "You sorted the columns. They are the D numbers that come in; the pairs are among those that come out, and "
            "these are the rows.",
            lambda w, n_heads: w.view(len(w), 2, -1).transpose(1, 2).reshape(w.shape) if w.shape[1] % 2 == 0 else w,
        ),
        Mistake(
            "seconds first",
            "The second half's rows come first in your pairs. Then sine and cosine meet the wrong numbers.",
            lambda w, n_heads: w.view(n_heads, 2, -1, w.shape[-1]).flip(1).transpose(1, 2).reshape(w.shape),
        ),
        Mistake(
            "not flat",
            "The order is right, and the axes are still apart. `.reshape(w.shape)` makes it a matrix again.",
            lambda w, n_heads: w.view(n_heads, 2, -1, w.shape[-1]).transpose(1, 2),
        ),
        Mistake(
            "a view of what was transposed",
            "The order is right, and `.view` cannot make a matrix of transposed axes without copying. `.reshape` can.",
            sees=_raises_for_views,
        ),
        Mistake(
            "axes 0 and 1",
            "You exchanged heads and halves; exchange halves and rows, axes 1 and 2.",
            lambda w, n_heads: w.view(n_heads, 2, -1, w.shape[-1]).transpose(0, 1).reshape(w.shape),
        ),
        Mistake(
            "axes 2 and 3",
            "You exchanged rows and inputs. A row stays a row: axes 1 and 2.",
            lambda w, n_heads: w.view(n_heads, 2, -1, w.shape[-1]).transpose(2, 3).reshape(w.shape),
        ),
        Mistake(
            "the first head only",
            "Only the first head is sorted.",
            lambda w, n_heads: torch.cat([to_pairs(w[: len(w) // n_heads], 1), w[len(w) // n_heads :]]),
        ),
        *[
            Mistake("numbers of rows", "Those are numbers of rows; `w[order]` takes them.", wrong)
            for wrong in (
                lambda w, n_heads: _order_of_pairs(torch.arange(len(w)), n_heads),
                lambda w, n_heads: _order_of_pairs(torch.arange(len(w)), n_heads).tolist(),
            )
        ],
    ],
)

for exercise in BYTES_A_RANK, ROWS_THAT_FIT:
    exercise.mistakes += _as_floats(exercise.mistakes)

EXERCISES = [FILES_FOR_RANK, BYTES_A_RANK, ROWS_THAT_FIT, TO_PAIRS]
