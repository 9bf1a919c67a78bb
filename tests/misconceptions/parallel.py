"""Wrong answers to chapter 09 as people write them, by the name of the mistake that they should be told of."""

import math
from fractions import Fraction

import numpy
import torch
import torch.nn.functional as F
from torch import nn


def cuts_inputs(w, rank, ranks):
    n = w.shape[1] // ranks
    return w[:, rank * n : (rank + 1) * n]


def deals_rows(w, rank, ranks):
    return torch.stack([w[i] for i in range(len(w)) if i % ranks == rank])


def first_part(w, rank, ranks):
    n = w.size(0) // ranks
    return w[:n]


def from_one(w, rank, ranks):
    n = w.shape[0] // ranks
    start = (rank - 1) * n
    return w[start : start + n] if rank else w[-n:]


def part_of_ranks(w, rank, ranks):
    start = rank * ranks
    return w.narrow(0, min(start, len(w)), min(ranks, len(w) - min(start, len(w))))


def split_by_ranks(w, rank, ranks):
    pieces = torch.split(w, ranks)
    return pieces[min(rank, len(pieces) - 1)]


def to_the_end(w, rank, ranks):
    return w[len(w) // ranks * rank :, :]


def on_its_side(w, rank, ranks):
    return w.t().chunk(ranks, 1)[rank]


def all_parts(w, rank, ranks):
    return list(torch.tensor_split(w, ranks))


def single_row(w, rank, ranks):
    return w.select(0, rank)


def single_row_kept(w, rank, ranks):
    return w[[rank]]


def the_whole(w, rank, ranks):
    return torch.cat(w.chunk(ranks))


def from_the_start(w, rank, ranks):
    return torch.cat(torch.tensor_split(w, ranks)[: rank + 1])


def row_short(w, rank, ranks):
    n = w.shape[0] // ranks
    return w.narrow(0, rank * n, n - 1)


def row_more(w, rank, ranks):
    n = w.shape[0] // ranks
    return torch.stack([w[i] for i in range(rank * n, min(len(w), (rank + 1) * n + 1))])


def from_the_back(w, rank, ranks):
    return w.reshape(ranks, -1, w.shape[1])[-1 - rank]


def zeros_elsewhere(w, rank, ranks):
    n = len(w) // ranks
    out = torch.zeros_like(w)
    out[rank * n : (rank + 1) * n] = w[rank * n : (rank + 1) * n]
    return out


def size_of_columns(w, rank, ranks):
    n = w.size(1) // ranks
    start = n * rank
    return w[start : start + n, :]


def column_right(w, rank, ranks):
    n = w.shape[0] // ranks
    return w[rank * n : (rank + 1) * n, :]


def column_reshaped(w, rank, ranks):
    return w.reshape(ranks, -1, w.shape[1])[rank]


def one_part(x, w1, w2, w3):
    return F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2)


def forgets_the_others(x, shards):
    w1, w2, w3 = shards[0]
    return one_part(x, w1, w2, w3)


def beside_one_another(x, shards):
    out = one_part(x, *shards[0])
    for part in shards[1:]:
        out = torch.cat((out, one_part(x, *part)), dim=-1)
    return out


def list_of_parts(x, shards):
    return torch.stack([one_part(x, *part) for part in shards], 0)


def parts_in_a_list(x, shards):
    parts = []
    for w1, w2, w3 in shards:
        parts.append(one_part(x, w1, w2, w3))
    return parts


def parts_in_a_tuple(x, shards):
    return tuple(one_part(x, *part) for part in shards)


def averages(x, shards):
    total = 0
    for part in shards:
        total = total + one_part(x, *part)
    return total / len(shards)


def early_sum(x, shards):
    gates, values = 0, 0
    for w1, _, w3 in shards:
        gates = gates + F.linear(x, w1)
        values = values + F.linear(x, w3)
    hidden = nn.functional.silu(gates) * values
    return torch.stack([F.linear(hidden, w2) for _, w2, _ in shards]).sum(0)


def sum_of_neurons(x, shards):
    hidden = torch.stack([F.silu(F.linear(x, w1)) * F.linear(x, w3) for w1, _, w3 in shards]).sum(0)
    return F.linear(hidden, torch.stack([w2 for _, w2, _ in shards]).sum(0))


def sum_for_rank_zero(x, shards):
    hidden = 0
    for w1, _, w3 in shards:
        hidden = hidden + F.silu(F.linear(x, w1)) * F.linear(x, w3)
    return F.linear(hidden, shards[0][1])


def in_a_row(x, shards):
    for part in shards:
        x = one_part(x, *part)
    return x


def stream_in_a_row(x, shards):
    for part in shards:
        x = x + one_part(x, *part)
    return x


def stream_once(x, shards):
    total = x.clone()
    for part in shards:
        total += one_part(x, *part)
    return total


def summed_by_each(x, shards):
    return sum(sum(one_part(x, *part) for part in shards) for _ in shards)


def from_rank_one(x, shards):
    out = torch.zeros_like(x)
    for r in range(1, len(shards)):
        out += one_part(x, *shards[r])
    return out


def sum_from_rank_one(x, shards):
    return sum(one_part(x, *part) for part in shards[1:])


def before_the_last(x, shards):
    out = torch.zeros_like(x)
    for r in range(len(shards) - 1):
        out += one_part(x, *shards[r])
    return out


def other_order(x, shards):
    return sum(one_part(x, w1, w2, w3) for w1, w3, w2 in shards)


def no_transpose(x, shards):
    out = torch.zeros_like(x)
    for w1, w2, w3 in shards:
        out = out + torch.matmul(F.silu(torch.matmul(x, w1)) * torch.matmul(x, w3), w2)
    return out


def no_transpose_behind(x, shards):
    return sum((F.silu(F.linear(x, w1)) * F.linear(x, w3)) @ w2 for w1, w2, w3 in shards)


def no_transpose_in_front(x, shards):
    return sum(F.linear(F.silu(x @ w1) * (x @ w3), w2) for w1, w2, w3 in shards)


def bent_product(x, shards):
    return sum(F.linear(F.silu(F.linear(x, w1) * F.linear(x, w3)), w2) for w1, w2, w3 in shards)


def two_matrices(x, shards):
    return sum(F.linear(F.silu(F.linear(x, w1)), w2) for w1, w2, _ in shards)


def gate_plus_value(x, shards):
    return sum(F.linear(F.silu(F.linear(x, w1)) + F.linear(x, w3), w2) for w1, w2, w3 in shards)


def plain_glu(x, shards):
    return sum(F.linear(F.linear(x, w1).sigmoid() * F.linear(x, w3), w2) for w1, w2, w3 in shards)


def bend_on_w3(x, shards):
    return sum(F.linear(F.linear(x, w1) * F.silu(F.linear(x, w3)), w2) for w1, w2, w3 in shards)


def bilinear(x, shards):
    return sum(F.linear(F.linear(x, w1) * F.linear(x, w3), w2) for w1, w2, w3 in shards)


def with_the_stream(x, shards):
    total = torch.zeros_like(x)
    for part in shards:
        total += x
        total += one_part(x, *part)
    return total


def swiglu_right(x, shards):
    return sum(one_part(x, *part) for part in shards)


def swiglu_packed(x, shards):
    total = torch.zeros_like(x)
    for w1, w2, w3 in shards:
        gate, value = F.linear(x, torch.cat([w1, w3])).chunk(2, -1)  # a rank's own two, in one product
        total += F.linear(F.silu(gate) * value, w2)
    return total


def swiglu_together(x, shards):
    w1, w3 = torch.cat([part[0] for part in shards]), torch.cat([part[2] for part in shards])
    w2 = torch.cat([part[1] for part in shards], 1)
    return one_part(x, w1, w2, w3)


def bytes_half(dim, n_layers, tokens, number_bytes, ranks):
    piece = tokens * dim * number_bytes // ranks
    return n_layers * 2 * piece * (ranks - 1)


def bytes_plain(dim, n_layers, tokens, number_bytes, ranks):
    return n_layers * 2 * tokens * dim * number_bytes


def bytes_everyone(dim, n_layers, tokens, number_bytes, ranks):
    total = 0
    for _ in range(2 * n_layers):
        for _ in range(ranks - 1):
            total += tokens * dim * number_bytes
    return total


def bytes_token(dim, n_layers, tokens, number_bytes, ranks):
    return 4 * n_layers * (ranks - 1) * dim * number_bytes // ranks


def bytes_layer(dim, n_layers, tokens, number_bytes, ranks):
    return 4 * (ranks - 1) * tokens * dim * number_bytes // ranks


def bytes_numbers(dim, n_layers, tokens, number_bytes, ranks):
    return 4 * n_layers * tokens * (ranks - 1) * dim // ranks


def bytes_narrow(dim, n_layers, tokens, number_bytes, ranks):
    own = dim // ranks
    return 4 * n_layers * (ranks - 1) * tokens * own * number_bytes // ranks


def bytes_seven(dim, n_layers, tokens, number_bytes, ranks):
    matrices = len(("wq", "wk", "wv", "wo", "w1", "w2", "w3"))
    return matrices * n_layers * 2 * (ranks - 1) * tokens * dim * number_bytes // ranks


def bytes_together(dim, n_layers, tokens, number_bytes, ranks):
    piece = tokens * dim * number_bytes // ranks
    return ranks * (2 * n_layers * 2 * (ranks - 1) * piece)


def bytes_quarter(dim, n_layers, tokens, number_bytes, ranks):
    piece = tokens * dim * number_bytes // ranks
    return sum(piece for _ in range(n_layers) for _ in range(ranks - 1))


def bytes_both_ways(dim, n_layers, tokens, number_bytes, ranks):
    sent = 4 * n_layers * (ranks - 1) * tokens * dim * number_bytes // ranks
    received = sent
    return sent + received


def bytes_upside_down(dim, n_layers, tokens, number_bytes, ranks):
    size = tokens * dim * number_bytes
    return n_layers * 4 * size * (ranks / (ranks - 1))


def bytes_two_vectors(dim, n_layers, tokens, number_bytes, ranks):
    vector = dim * number_bytes * tokens
    return sum(2 * vector for _ in range(2 * n_layers))


def bytes_early(dim, n_layers, tokens, number_bytes, ranks):
    vectors = (2 * ranks - 2) // ranks
    return vectors * 2 * n_layers * tokens * dim * number_bytes


def bytes_nothing(dim, n_layers, tokens, number_bytes, ranks):
    return 2 * ((ranks - 1) // ranks) * tokens * dim * number_bytes * 2 * n_layers


def bytes_in_bits(dim, n_layers, tokens, number_bytes, ranks):
    bits = tokens * dim * number_bytes * 8
    return 4 * n_layers * (ranks - 1) * bits // ranks


def bytes_embedding(dim, n_layers, tokens, number_bytes, ranks):
    reduces = 1 + 2 * n_layers
    return reduces * 2 * (ranks - 1) * tokens * dim * number_bytes / ranks


def bytes_exact(dim, n_layers, tokens, number_bytes, ranks):
    return Fraction(2 * (ranks - 1), ranks) * 2 * n_layers * tokens * dim * number_bytes


def bytes_float(dim, n_layers, tokens, number_bytes, ranks):
    return 4 * n_layers * (1 - 1 / ranks) * tokens * dim * number_bytes


def bytes_right(dim, n_layers, tokens, number_bytes, ranks):
    piece = dim * tokens * number_bytes // ranks
    return 2 * n_layers * (2 * ranks - 2) * piece


def looks_outside(tokens, part, first):
    return part[tokens]


def row_zero(tokens, part, first):
    row = tokens - first
    row[(row < 0) | (row >= len(part))] = 0
    return F.embedding(row, part)


def nearest(tokens, part, first):
    last = first + len(part) - 1
    return F.embedding(tokens.clamp(first, last) - first, part)


def wrapped(tokens, part, first):
    return F.embedding(torch.remainder(tokens - first, part.shape[0]), part)


def no_offset(tokens, part, first):
    out = torch.zeros(*tokens.shape, part.shape[1])
    for place, token in enumerate(tokens.flatten().tolist()):
        if token < len(part):
            out.view(-1, part.shape[1])[place] = part[token]
    return out


def larger_than_first(tokens, part, first):
    out = torch.zeros(*tokens.shape, part.shape[1])
    mine = (tokens > first) & (tokens < first + len(part))
    out[mine] = part[tokens[mine] - first]
    return out


def zero_where_row_is(tokens, part, first):
    row = tokens - first
    mine = (row >= 0) & (row < len(part))
    out = part[row * mine]
    out[row * mine == 0] = 0
    return out


def one_beyond(tokens, part, first):
    row = tokens - first
    mine = (row >= 0) & (row <= part.shape[0])
    return F.embedding(row.masked_fill(~mine, 0), part) * mine.unsqueeze(-1)


def one_beyond_clamped(tokens, part, first):
    outside = (tokens < first) | (tokens > first + len(part))
    row = (tokens - first).clamp(min=0, max=len(part) - 1)
    return F.embedding(row, part).masked_fill(outside[..., None], 0.0)


def no_lower_stops(tokens, part, first):
    outside = tokens >= first + len(part)
    row = (tokens - first).masked_fill(outside, 0)
    return F.embedding(row, part).masked_fill(outside[..., None], 0.0)


def no_lower_clamped(tokens, part, first):
    outside = tokens > first + len(part) - 1
    row = torch.maximum(tokens - first, torch.tensor(0)).minimum(torch.tensor(len(part) - 1))
    return F.embedding(row, part).masked_fill(outside[..., None], 0.0)


def no_lower_negative(tokens, part, first):
    out = torch.zeros(*tokens.shape, part.shape[1])
    mine = tokens < first + len(part)
    out[mine] = part[tokens[mine] - first]
    return out


def no_upper_stops(tokens, part, first):
    mine = ~(tokens < first)
    return part[(tokens - first) * mine] * mine.unsqueeze(-1)


def no_upper_clamped(tokens, part, first):
    row = (tokens - first).clamp(max=len(part) - 1)
    outside = row < 0
    return F.embedding(row.masked_fill(outside, 0), part).masked_fill(outside[..., None], 0.0)


def width_for_rows(tokens, part, first):
    n = part.shape[-1]
    mine = (tokens >= first) & (tokens < first + n)
    out = torch.zeros(*tokens.shape, n)
    out[mine] = part[tokens[mine] - first]
    return out


def width_for_rows_clamped(tokens, part, first):
    outside = (tokens < first) | (tokens >= first + part.size(1))
    row = (tokens - first).clamp(0, part.size(0) - 1)
    return F.embedding(row, part).masked_fill(outside[..., None], 0.0)


def below_last(tokens, part, first):
    out = torch.zeros(*tokens.shape, part.shape[1])
    mine = (tokens >= first) & (tokens < first + len(part) - 1)
    out[mine] = part[tokens[mine] - first]
    return out


def selected(tokens, part, first):
    rows = [part[t - first] for t in tokens.flatten().tolist() if first <= t < first + len(part)]
    return torch.stack(rows) if rows else part[:0]


def other_way_round(tokens, part, first):
    row = tokens - first
    outside = (row < 0) | (row > len(part) - 1)
    found = F.embedding(row.clamp(min=0, max=len(part) - 1), part)
    return found.masked_fill(~outside[..., None], 0.0)


def lookup_right(tokens, part, first):
    outside = (tokens < first) | (tokens >= first + len(part))
    row = (tokens - first).masked_fill(outside, 0)
    return F.embedding(row, part).masked_fill(outside[..., None], 0.0)


def heads_in_turn(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        n = n_kv_heads // ranks
        return [rank * n + i for i in range(n)]
    while rank >= n_kv_heads:
        rank -= n_kv_heads
    return [rank]


def heads_like_cards(rank, ranks, n_kv_heads):
    if ranks >= n_kv_heads:
        return [rank // (ranks // n_kv_heads)]
    return [head for head in range(n_kv_heads) if head % ranks == rank]


def heads_none(rank, ranks, n_kv_heads):
    n = n_kv_heads // ranks
    return [rank * n + i for i in range(n)]


def heads_one_each(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        return heads_none(rank, ranks, n_kv_heads)
    return [rank] if rank < n_kv_heads else [n_kv_heads - 1]


def heads_rank(rank, ranks, n_kv_heads):
    n = max(1, n_kv_heads // ranks)
    return [rank * n + i for i in range(n)]


def heads_by_k(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        return heads_none(rank, ranks, n_kv_heads)
    return [int(rank / n_kv_heads)]


def heads_first(rank, ranks, n_kv_heads):
    return heads_none(rank, ranks, n_kv_heads) or [0] if ranks != n_kv_heads else [0]


def heads_all(rank, ranks, n_kv_heads):
    return [*range(n_kv_heads)]


def heads_all_shared(rank, ranks, n_kv_heads):
    return heads_none(rank, ranks, n_kv_heads) if ranks < n_kv_heads else [*range(n_kv_heads)]


def heads_by_ends(rank, ranks, n_kv_heads):
    start, end = rank * n_kv_heads // ranks, (rank + 1) * n_kv_heads // ranks
    return [head for head in range(n_kv_heads) if start <= head < end]


def heads_both_ends(rank, ranks, n_kv_heads):
    start, end = rank * n_kv_heads // ranks, (rank + 1) * n_kv_heads // ranks
    return [head for head in range(n_kv_heads + 1) if start <= head <= end]


def heads_first_copy(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        return heads_none(rank, ranks, n_kv_heads)
    head, rest = divmod(rank, ranks // n_kv_heads)
    return [] if rest else [head]


def heads_while_they_last(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        return heads_none(rank, ranks, n_kv_heads)
    return [head for head in range(n_kv_heads) if head == rank]


def heads_dealt_and_none(rank, ranks, n_kv_heads):
    return [*range(n_kv_heads)][rank::ranks]


def heads_ceiling(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        return heads_none(rank, ranks, n_kv_heads)
    return [math.ceil(rank / (ranks / n_kv_heads))]


def heads_nearest(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        return heads_none(rank, ranks, n_kv_heads)
    return [round(rank / (ranks / n_kv_heads))]


def heads_half_up(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        return heads_none(rank, ranks, n_kv_heads)
    return [int(rank * n_kv_heads / ranks + 0.5)]


def heads_in_pieces(rank, ranks, n_kv_heads):
    if ranks < n_kv_heads:
        return heads_none(rank, ranks, n_kv_heads)
    return [rank / (ranks / n_kv_heads)]


def heads_numpy(rank, ranks, n_kv_heads):
    first = rank * n_kv_heads // ranks
    return list(numpy.arange(first, first + max(1, n_kv_heads // ranks)))


def heads_tuple(rank, ranks, n_kv_heads):
    return tuple(heads_right(rank, ranks, n_kv_heads))


def heads_single(rank, ranks, n_kv_heads):
    return [int(rank / ranks * n_kv_heads)]


def heads_right(rank, ranks, n_kv_heads):
    copies = max(1, ranks // n_kv_heads)
    n = max(1, n_kv_heads // ranks)
    first = rank // copies * n
    return [first + i for i in range(n)]


WRONG = {
    "column_shard": {
        "cuts the inputs": cuts_inputs,
        "every R-th": deals_rows,
        "always the first": first_part,
        "counts from 1": from_one,
        "parts of R rows": part_of_ranks,
        "chunks of size R": split_by_ranks,
        "to the end": to_the_end,
        "transposed": on_its_side,
        "all parts": all_parts,
        "one row": (single_row, single_row_kept),
        "the whole": the_whole,
        "from the start": from_the_start,
        "one row short": row_short,
        "one row more": row_more,
        "backwards": from_the_back,
        "zeros for the others": zeros_elsewhere,
        "n from the columns": size_of_columns,
    },
    "parallel_swiglu": {
        "no all-reduce": forgets_the_others,
        "concatenates": beside_one_another,
        "stacks": (list_of_parts, parts_in_a_list, parts_in_a_tuple),
        "mean": averages,
        "sums too early": early_sum,
        "sums the neurons": (sum_of_neurons, sum_for_rank_zero),
        "one after another": (in_a_row, stream_in_a_row),
        "w1 and w3 swapped": bend_on_w3,
        "no bend": bilinear,
        "adds x on every rank": with_the_stream,
        "adds x": stream_once,
        "summed R times": summed_by_each,
        "a rank left out": (from_rank_one, sum_from_rank_one, before_the_last),
        "w2 and w3 swapped": other_order,
        "not transposed": (no_transpose, no_transpose_behind, no_transpose_in_front),
        "bends the product": bent_product,
        "no value": two_matrices,
        "adds gate and value": gate_plus_value,
        "sigmoid": plain_glu,
    },
    "all_reduce_bytes": {
        "half of it": bytes_half,
        "no ring": bytes_plain,
        "everyone to everyone": bytes_everyone,
        "one token": bytes_token,
        "one layer": bytes_layer,
        "numbers": bytes_numbers,
        "a part of D": bytes_narrow,
        "all matrices": bytes_seven,
        "of all ranks": bytes_together,
        "a quarter": bytes_quarter,
        "doubled": bytes_both_ways,
        "upside down": bytes_upside_down,
        "always two vectors": bytes_two_vectors,
        "divides too early": (bytes_early, bytes_nothing),
        "bits": bytes_in_bits,
        "the embedding too": bytes_embedding,
    },
    "vocab_lookup": {
        "looks outside": looks_outside,
        "not zeroed": row_zero,
        "clamped": nearest,
        "wraps around": wrapped,
        "first not subtracted": no_offset,
        "one row too few": (larger_than_first, zero_where_row_is),
        "last row missing": below_last,
        "only its own": selected,
        "the others": other_way_round,
        "one row too many": (one_beyond, one_beyond_clamped),
        "no lower end": (no_lower_stops, no_lower_clamped, no_lower_negative),
        "no upper end": (no_upper_stops, no_upper_clamped),
        "D for the rows": (width_for_rows, width_for_rows_clamped),
    },
    "my_kv_heads": {
        "in turn": heads_in_turn,
        "every R-th": heads_like_cards,
        "none left": (heads_none, heads_while_they_last, heads_dealt_and_none),
        "one each": heads_one_each,
        "the rank's number": heads_rank,
        "divides by K": heads_by_k,
        "always the first": heads_first,
        "all of them": (heads_all, heads_all_shared),
        "only the first of them": heads_single,
        "empty ranges": heads_by_ends,
        "one head too many": heads_both_ends,
        "none between": heads_first_copy,
        "rounded up": (heads_ceiling, heads_nearest, heads_half_up),
        "not whole": heads_in_pieces,
    },
}

RIGHT = {
    "column_shard": [column_right, column_reshaped],
    "parallel_swiglu": [swiglu_right, swiglu_packed, swiglu_together],
    "all_reduce_bytes": [bytes_right, bytes_exact, bytes_float],
    "vocab_lookup": [lookup_right],
    "my_kv_heads": [heads_right, heads_numpy, heads_tuple],
}
