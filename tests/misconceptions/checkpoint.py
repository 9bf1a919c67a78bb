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


def end_rounded_down_or_first(n_files, rank, ranks):
    first, end = int(rank * n_files / ranks), int((rank + 1) * n_files / ranks)
    return list(range(first, max(end, first + 1)))


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


def start_rounded_up(n_files, rank, ranks):
    a_rank = n_files / ranks
    return [f for f in range(n_files) if rank * a_rank <= f < (rank + 1) * a_rank]


def whole_files(n_files, rank, ranks):
    low, high = rank * n_files, (rank + 1) * n_files
    return [f for f in range(n_files) if low <= f * ranks and (f + 1) * ranks <= high]


def block_or_own(n_files, rank, ranks):
    if ranks > n_files:
        return [rank]
    each = n_files // ranks
    return [rank * each + i for i in range(each)]


def block_or_own_or_none(n_files, rank, ranks):
    each = n_files // ranks or 1
    return [f for f in range(n_files) if f // each == rank]


def block_of_ceil(n_files, rank, ranks):
    each = math.ceil(n_files / ranks)
    return list(range(n_files))[rank * each :][:each]


def block_or_shared(n_files, rank, ranks):
    if ranks > n_files:
        return [int(rank / ranks * n_files)]
    each = n_files // ranks
    return [rank * each + i for i in range(each)]


def ceil_from_the_first(n_files, rank, ranks):
    first = int(rank * n_files / ranks)
    return list(range(first, first + math.ceil(n_files / ranks)))


def floor_from_the_first(n_files, rank, ranks):
    first = int(rank * n_files / ranks)
    return [first, *range(first + 1, first + n_files // ranks)]


def touched(n_files, rank, ranks):
    start, end = rank / ranks, (rank + 1) / ranks
    return [f for f in range(n_files) if f / n_files <= end and (f + 1) / n_files >= start]


def touched_at_its_end(n_files, rank, ranks):
    return [f for f in range(n_files) if f * ranks <= (rank + 1) * n_files and rank * n_files < (f + 1) * ranks]


def touched_at_its_start(n_files, rank, ranks):
    return [f for f in range(n_files) if not (f * ranks >= (rank + 1) * n_files or rank * n_files > (f + 1) * ranks)]


def counted_from_one(n_files, rank, ranks):
    return list(range(rank * n_files // ranks + 1, math.ceil((rank + 1) * n_files / ranks) + 1))


def count_of_files(n_files, rank, ranks):
    return math.ceil((rank + 1) * n_files / ranks) - rank * n_files // ranks


def both_ends(n_files, rank, ranks):
    return rank * n_files // ranks, math.ceil((rank + 1) * n_files / ranks) - 1


def both_ends_once(n_files, rank, ranks):
    first, last = both_ends(n_files, rank, ranks)
    return [first] if first == last else [first, last]


def slice_ends(n_files, rank, ranks):
    return [math.floor(rank * n_files / ranks), math.ceil((rank + 1) * n_files / ranks)]


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


def divided(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn) / ranks + kv / min(n_kv_heads, ranks) + norms) * size


def divided_all(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    return sum(_numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)) * size / ranks


def divided_without_norms(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    return divided(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size) - size * dim * (2 * n_layers + 1)


def tables_whole(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return (tables + (attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms) * size


def kv_vanishes(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn) // ranks + (0 if ranks > n_kv_heads else kv // ranks) + norms) * size


def kv_cut_or_whole(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn) // ranks + (kv // ranks if n_kv_heads % ranks == 0 else kv) + norms) * size


def w2_whole(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn // 3 * 2) // ranks + ffn // 3 + _kv(kv, n_kv_heads, ranks) + norms) * size


def wo_whole(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention // 2 + ffn) // ranks + attention // 2 + _kv(kv, n_kv_heads, ranks) + norms) * size


def columns_whole(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    uncut = attention // 2 + ffn // 3
    return ((tables + attention + ffn - uncut) // ranks + uncut + _kv(kv, n_kv_heads, ranks) + norms) * size


def on_all_ranks(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return (tables + attention + ffn + kv * max(1, ranks // n_kv_heads) + norms * ranks) * size


def _with_norms(norms):
    def counted(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
        tables, attention, kv, ffn, _ = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
        return ((tables + attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms(dim, n_layers)) * size

    return counted


no_last_norm = _with_norms(lambda dim, n_layers: 2 * dim * n_layers)
one_norm_a_layer = _with_norms(lambda dim, n_layers: dim + dim * n_layers)
norms_of_layers = _with_norms(lambda dim, n_layers: dim * n_layers)
the_last_norm = _with_norms(lambda dim, n_layers: dim)
two_last_norms = _with_norms(lambda dim, n_layers: 2 * dim * (n_layers + 1))
norms_of_a_layer = _with_norms(lambda dim, n_layers: 3 * dim)


def a_layer(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, 1, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms) * size


def a_layer_and_all_norms(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    return a_layer(dim, 1, n_heads, n_kv_heads, hidden, vocab, ranks, size) + 2 * (n_layers - 1) * dim * size


def layers_alone(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    return rank_by_parts(dim, n_layers, n_heads, n_kv_heads, hidden, 0, ranks, size)


def queries_or_output(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention // 2 + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms) * size


def keys_or_values(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    return ((tables + attention + ffn) // ranks + _kv(kv // 2, n_kv_heads, ranks) + norms) * size


def heads_of_one(dim, n_layers, n_heads, n_kv_heads, hidden, vocab, ranks, size):
    tables, attention, kv, ffn, norms = _numbers(dim, n_layers, n_heads, n_kv_heads, hidden, vocab)
    kv = 2 * dim * n_kv_heads * n_layers
    return ((tables + attention + ffn) // ranks + _kv(kv, n_kv_heads, ranks) + norms) * size


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


def floored(card, weights, libraries, tokens, a_token):
    return max(float(math.floor((card - weights - libraries) / (tokens * a_token))), 0)


def floored_without_libraries(card, weights, libraries, tokens, a_token):
    return max((card - weights) // (1.0 * tokens * a_token), 0.0)


def truncated(card, weights, libraries, tokens, a_token):
    return math.trunc((card - weights - libraries) / tokens / a_token)


def libraries_added(card, weights, libraries, tokens, a_token):
    left = card - (weights - libraries)
    return left // (tokens * a_token) if left > 0 else 0


def never_none(card, weights, libraries, tokens, a_token):
    rows = 1
    while weights + libraries + (rows + 1) * tokens * a_token <= card:
        rows += 1
    return rows


def multiplied_last(card, weights, libraries, tokens, a_token):
    left = card - weights - libraries
    rows = 0 if left < 0 else left // tokens
    return rows * a_token


def divided_and_multiplied(card, weights, libraries, tokens, a_token):
    left = card - weights - libraries
    return left / tokens * a_token if left > 0 else 0


def weights_a_row(card, weights, libraries, tokens, a_token):
    a_row = weights + libraries + tokens * a_token
    return int(card / a_row)


def twice_the_cache(card, weights, libraries, tokens, a_token):
    keys = values = tokens * a_token
    left = card - weights - libraries
    return left // (keys + values) if left > 0 else 0


def bytes_left(card, weights, libraries, tokens, a_token):
    return card - (weights + libraries)


def bytes_left_or_none(card, weights, libraries, tokens, a_token):
    left = card - (weights + libraries)
    return 0 if left < 0 else left


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


def heads_and_halves(w, n_heads):
    halves = w.unflatten(0, (n_heads, 2, -1))
    return torch.cat([halves[:, 0].flatten(0, 1), halves[:, 1].flatten(0, 1)])


def rows_and_inputs(w, n_heads):
    return torch.cat([half.mT.reshape(half.shape) for half in w.chunk(2 * n_heads)])


def one_head(w, n_heads):
    out, h = w.clone(), len(w) // n_heads
    out[0:h:2], out[1:h:2] = w[: h // 2], w[h // 2 : h]
    return out


def their_places(w, n_heads):
    return torch.arange(len(w)).unflatten(0, (n_heads, 2, -1)).mT.flatten()


def list_of_places(w, n_heads):
    h, order = len(w) // n_heads, []
    for start in range(0, len(w), h):
        for i in range(h // 2):
            order += [start + i, start + h // 2 + i]
    return order


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
        "the end rounded down, or one": end_rounded_down_or_first,
        "one too many": inclusive_end,
        "only the first": where_it_begins,
        "files and ranks exchanged": exchanged,
        "files for each rank, rounded down": whole_files_each,
        "the start rounded up": start_rounded_up,
        "whole files only": whole_files,
        "a block, one at least": (block_or_own, block_or_own_or_none),
        "a block, rounded up": block_of_ceil,
        "a block or one": block_or_shared,
        "as many as a share is long": (ceil_from_the_first, floor_from_the_first),
        "touching": (touched, touched_at_its_end, touched_at_its_start),
        "from one": counted_from_one,
        "how many": count_of_files,
        "two ends": (both_ends, both_ends_once),
        "first and end": slice_ends,
    },
    "bytes_a_rank": {
        "norms cut": norms_cut,
        "norms and kv heads cut": (all_cut, divided_all),
        "no norms": (no_norms, divided_without_norms),
        "kv heads cut": heads_cut,
        "kv heads on every rank": kv_everywhere,
        "as many kv heads as heads": no_gqa,
        "the embedding whole": embedding_whole,
        "one table": tied,
        "two matrices in the feed-forward": no_gate,
        "numbers": only_numbers,
        "not shared": whole_model,
        "a float": divided,
        "both tables whole": tables_whole,
        "no kv head left": kv_vanishes,
        "all kv heads where they are few": kv_cut_or_whole,
        "w2 whole": w2_whole,
        "wo whole": wo_whole,
        "wo and w2 whole": columns_whole,
        "all ranks together": on_all_ranks,
        "some norms": (
            no_last_norm,
            one_norm_a_layer,
            norms_of_layers,
            the_last_norm,
            two_last_norms,
            norms_of_a_layer,
        ),
        "one layer": (a_layer, a_layer_and_all_norms),
        "no tables": layers_alone,
        "one of wq and wo": queries_or_output,
        "one of wk and wv": keys_or_values,
        "head width left out": heads_of_one,
    },
    "rows_that_fit": {
        "an empty card": empty_card,
        "without the libraries": (no_libraries, floored_without_libraries),
        "without the weights": no_weights,
        "tokens, not rows": how_many_tokens,
        "rounded up": up,
        "rounded to the nearest": nearest,
        "fewer than none": below_none,
        "not whole": a_float,
        "one row less": strictly_less,
        "a float": floored,
        "towards zero": truncated,
        "plus libraries": libraries_added,
        "at least one": never_none,
        "brackets": (multiplied_last, divided_and_multiplied),
        "weights for each row": weights_a_row,
        "keys and values again": twice_the_cache,
        "left over": (bytes_left, bytes_left_or_none),
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
        "axes 0 and 1": heads_and_halves,
        "axes 2 and 3": rows_and_inputs,
        "the first head only": one_head,
        "numbers of rows": (their_places, list_of_places),
    },
}

RIGHT = {
    "files_for_rank": [files_by_parts],
    "bytes_a_rank": [rank_by_parts],
    "rows_that_fit": [rows_divmod],
    "to_pairs": [pairs_row_by_row],
}
