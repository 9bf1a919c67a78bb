"""Chapter 10: real checkpoints."""

from __future__ import annotations

import torch

from minillama.teach.exercise import Attempt, Case, Exercise, Mistake

# 10.1 -----------------------------------------------------------------------------------------------------------------


def files_for_rank(n_files: int, rank: int, ranks: int) -> list[int]:
    first = rank * n_files // ranks
    end = -(-(rank + 1) * n_files // ranks)  # rounded up: a file that is begun has to be opened
    return list(range(first, end))


def _overlapping(n_files: int, rank: int, ranks: int) -> list[int]:
    """In parts of 1/(n_files * ranks): file f holds [f R, (f + 1) R), the rank wants [r N, (r + 1) N)."""
    low, high = rank * n_files, (rank + 1) * n_files
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
        Case("4 files, rank 1 of 3: a share from the middle of a file to the middle of another", (4, 1, 3)),
        Case("8 files, rank 2 of 3", (8, 2, 3)),
        Case("8 files, one rank", (8, 0, 1)),
        Case("2 files, rank 1 of 8", (2, 1, 8)),
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
            lambda n_files, rank, ranks: list(range(rank * (n_files // ranks), (rank + 1) * (n_files // ranks))),
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
    h, total = D // H, 0
    kv_rows = K * h // R if R <= K else h
    if "copies" in without:
        kv_rows = K * h // R
    elif "kv cut" in without:
        kv_rows = K * h
    elif "gqa" in without:
        kv_rows = D // R
    shapes = [(V // R, D), (V // R, D), (D,)]
    if "head" in without:
        shapes = shapes[1:]
    if "embedding cut" in without:
        shapes[0] = (V, D)
    if "w3" in without:
        layer = [(F // R, D)] * 2
    else:
        layer = [(F // R, D)] * 3
    for _ in range(L):
        shapes += [(D // R, D), (kv_rows, D), (kv_rows, D), (D, D // R), *layer, (D,), (D,)]
    for shape in shapes:
        if "norms" in without and len(shape) == 1:
            continue
        count = 1
        for n in shape:
            count *= n
        total += count // R if "norms whole" in without and len(shape) == 1 else count
    return total * size


BYTES_A_RANK = Exercise(
    number="10.2",
    hints=(
        "Exercise 6.4 counted the numbers of a whole model: embedding and head, 2 V D; a layer, 2 D D for wq and wo, "
        "2 D K h for wk and wv, 3 D F; norms, (2 L + 1) D. Which of these are cut, and which not?",
        "All matrices are divided by `ranks`, and the norms are not. One exception: with more ranks than kv heads, "
        "each rank still has a whole kv head.",
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
            "norms cut",
            "You divided everything by the number of ranks. The norms, (2L + 1) D numbers, are whole on each.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("norms whole",)),
        ),
        Mistake(
            "norms and kv heads cut",
            "You divided everything by the number of ranks. Two things are not divided: the norms, whole on each rank, "
            "and a kv head where there are more ranks than those.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("norms whole", "copies")),
        ),
        Mistake(
            "no norms",
            "The norms are missing: two in each layer and one at the end, D numbers each, whole on every rank.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("norms",)),
        ),
        Mistake(
            "kv heads cut",
            "With more ranks than kv heads you cut a head into pieces. A head is never cut: each rank holds one whole, "
            "and neighbours hold copies.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("copies",)),
        ),
        Mistake(
            "kv heads on every rank",
            "You put all of wk and wv on every rank. Ranks share the kv heads, as long as there are enough of them.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("kv cut",)),
        ),
        Mistake(
            "as many kv heads as heads",
            "wk and wv are counted as large as wq. They have K heads, not H: K h columns come out of them.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("gqa",)),
        ),
        Mistake(
            "the embedding whole",
            "One of the two large tables is whole on every rank in your count. Embedding and head are both cut.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("embedding cut",)),
        ),
        Mistake(
            "one table",
            "You counted the embedding or the head, and there are both: Llama 2 does not tie them.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("head",)),
        ),
        Mistake(
            "two matrices in the feed-forward",
            "The feed-forward block has three matrices: w1, w3 (the gate makes it a third) and w2.",
            lambda D, L, H, K, F, V, R, size: _rank_bytes(D, L, H, K, F, V, R, size, without=("w3",)),
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
        Case("a row that fits to the byte", (1000, 300, 100, 10, 20)),
        Case("a row that lacks one byte", (999, 300, 100, 10, 20)),
    ],
    tolerance=0.0,
    mistakes=[
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
    ],
)

EXERCISES = [FILES_FOR_RANK, BYTES_A_RANK, ROWS_THAT_FIT, TO_PAIRS]
