"""Chapter 10's exercises as people write them, by the diagnosis each should get; and right ones."""

import math

import torch


def own_file(n_files, rank, ranks):
    return [f for f in range(max(n_files, ranks)) if f == rank]


def all_files(n_files, rank, ranks):
    return list(range(n_files))


def dealt(n_files, rank, ranks):
    return [f for f in range(n_files) if f % ranks == rank]


def end_rounded_down(n_files, rank, ranks):
    a_rank = n_files / ranks
    return [f for f in range(n_files) if int(rank * a_rank) <= f < int((rank + 1) * a_rank)]


def inclusive_end(n_files, rank, ranks):
    first, last = math.floor(rank * n_files / ranks), math.floor((rank + 1) * n_files / ranks)
    return [first + i for i in range(last - first + 1)]


def where_it_begins(n_files, rank, ranks):
    return [math.floor(n_files * rank / ranks)]


def exchanged(n_files, rank, ranks):
    return list(range(math.floor(rank * ranks / n_files), math.ceil((rank + 1) * ranks / n_files)))


def whole_files_each(n_files, rank, ranks):
    each = n_files // ranks
    return [rank * each + i for i in range(each)]


def files_by_parts(n_files, rank, ranks):
    parts = range(rank * n_files, (rank + 1) * n_files)
    return sorted({part // ranks for part in parts})


def _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab):
    """(tables, wq and wo, wk and wv, feed-forward, norms) of the whole model."""
    kv = 2 * n_kv_heads * (dim // n_heads) * dim * n_layers
    return 2 * vocab * dim, 2 * dim**2 * n_layers, kv, 3 * dim * hidden * n_layers, dim * (2 * n_layers + 1)


def _kv(kv, n_kv_heads, ranks):
    return kv // min(n_kv_heads, ranks)


def norms_cut(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn + norms) // ranks + _kv(kv, n_kv_heads, ranks)) * size


def all_cut(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    return sum(_numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)) * size // ranks


def no_norms(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, _ = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks)) * size


def heads_cut(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    *matrices, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return (sum(matrices) // ranks + norms) * size


def kv_everywhere(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn) // ranks + kv + norms) * size


def no_gqa(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    return (
        (2 * vocab * dim + n_layers * (4 * dim * dim + 3 * dim * hidden)) // ranks + dim * (2 * n_layers + 1)
    ) * size


def embedding_whole(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return (vocab * dim + (tables // 2 + attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms) * size


def tied(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables // 2 + attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms) * size


def no_gate(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn * 2 // 3) // ranks + _kv(kv, n_kv_heads, ranks) + norms) * size


def only_numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return (tables + attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms


def whole_model(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    return size * sum(_numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab))


def rank_by_parts(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return size * ((tables + attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms)


def empty_card(card, weights, libraries, tokens, a_token):
    return int(card / tokens / a_token)


def no_libraries(card, weights, libraries, tokens, a_token):
    return 0 if weights > card else int((card - weights) / (tokens * a_token))


def no_weights(card, weights, libraries, tokens, a_token):
    return int((card - libraries) / (tokens * a_token))


def how_many_tokens(card, weights, libraries, tokens, a_token):
    left = card - (weights + libraries)
    return left // a_token if left > 0 else 0


def up(card, weights, libraries, tokens, a_token):
    left = card - weights - libraries
    return math.ceil(left / (tokens * a_token)) if left > 0 else 0


def nearest(card, weights, libraries, tokens, a_token):
    left = card - weights - libraries
    return int(left / (tokens * a_token) + 0.5) if left > 0 else 0


def below_none(card, weights, libraries, tokens, a_token):
    return math.floor((card - weights - libraries) / (tokens * a_token))


def a_float(card, weights, libraries, tokens, a_token):
    left = card - weights - libraries
    return left / tokens / a_token if left > 0 else 0


def strictly_less(card, weights, libraries, tokens, a_token):
    rows = 0
    while weights + libraries + (rows + 1) * tokens * a_token < card:
        rows += 1
    return rows


def rows_divmod(card, weights, libraries, tokens, a_token):
    left = card - weights - libraries
    if left < 0:
        return 0
    rows, _ = divmod(left, tokens * a_token)
    return rows


def there(w, n_heads):
    return torch.cat([torch.cat([head[0::2], head[1::2]]) for head in w.chunk(n_heads)])


def as_it_was(w, n_heads):
    return w.reshape(n_heads, -1, w.shape[-1]).flatten(0, 1)


def halves_of_all(w, n_heads):
    first, second = w.chunk(2)
    return torch.stack([first, second], 1).flatten(0, 1)


def heads_inside(w, n_heads):
    half = len(w) // 2
    out = []
    for i in range(0, half, n_heads):
        out += [w[i : i + n_heads], w[half + i : half + i + n_heads]]
    return torch.cat(out)


def sorted_columns(w, n_heads):
    half = w.shape[1] // 2
    if 2 * half < w.shape[1]:
        return w
    out = torch.empty_like(w)
    out[:, 0::2], out[:, 1::2] = w[:, :half], w[:, half:]
    return out


def backwards(w, n_heads):
    out = torch.empty_like(w)
    for head, new in zip(w.chunk(n_heads), out.chunk(n_heads)):
        second, first = head.chunk(2)
        new[0::2], new[1::2] = first, second
    return out


def four_axes(w, n_heads):
    return w.unflatten(0, (n_heads, 2, -1)).swapaxes(1, 2)


def viewed(w, n_heads):
    return w.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).view(w.shape)


def pairs_row_by_row(w, n_heads):
    out = torch.empty_like(w)
    for head, new in zip(w.chunk(n_heads), out.chunk(n_heads)):
        first, second = head.chunk(2)
        for i in range(len(first)):
            new[2 * i], new[2 * i + 1] = first[i], second[i]
    return out


WRONG = {
    "files_for_rank": {
        "a file for each rank": own_file,
        "all of them": all_files,
        "in turns": dealt,
        "the end rounded down": end_rounded_down,
        "one too many": inclusive_end,
        "only the first": where_it_begins,
        "files and ranks exchanged": exchanged,
        "files for each rank, rounded down": whole_files_each,
    },
    "bytes_a_rank": {
        "norms cut": norms_cut,
        "norms and kv heads cut": all_cut,
        "no norms": no_norms,
        "kv heads cut": heads_cut,
        "kv heads on every rank": kv_everywhere,
        "as many kv heads as heads": no_gqa,
        "the embedding whole": embedding_whole,
        "one table": tied,
        "two matrices in the feed-forward": no_gate,
        "numbers": only_numbers,
        "not shared": whole_model,
    },
    "rows_that_fit": {
        "an empty card": empty_card,
        "without the libraries": no_libraries,
        "without the weights": no_weights,
        "tokens, not rows": how_many_tokens,
        "rounded up": up,
        "rounded to the nearest": nearest,
        "fewer than none": below_none,
        "not whole": a_float,
        "one row less": strictly_less,
    },
    "to_pairs": {
        "the way there": there,
        "unchanged": as_it_was,
        "across heads": halves_of_all,
        "heads taken apart": heads_inside,
        "columns": sorted_columns,
        "seconds first": backwards,
        "not flat": four_axes,
        "a view of what was transposed": viewed,
    },
}

RIGHT = {
    "files_for_rank": [files_by_parts],
    "bytes_a_rank": [rank_by_parts],
    "rows_that_fit": [rows_divmod],
    "to_pairs": [pairs_row_by_row],
}
