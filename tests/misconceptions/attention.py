"""Chapter 03: wrong answers as learners write them, by the name of their mistake, and right ones in other words."""

import math

import torch
import torch.nn.functional as F

# ---- attention_by_hand(q, k, v)


def _loop(q, k, v, score=None, sees=None, weigh=None, mix=None):
    """One query at a time; each learner below changes one thing."""
    T, h = q.shape
    score = score or (lambda i, j: torch.dot(q[i], k[j]) / math.sqrt(h))
    sees = sees or (lambda i, j: j <= i)
    weigh = weigh or (lambda scores: torch.softmax(scores, 0))
    mix = v if mix is None else mix
    out = torch.zeros_like(v)
    for i in range(T):
        places = [j for j in range(T) if sees(i, j)]
        if not places:
            out[i] = math.nan
            continue
        weights = weigh(torch.stack([score(i, j) for j in places]))
        for w, j in zip(weights, places):
            out[i] += w * mix[j]
    return out


def no_scale(q, k, v):
    return _loop(q, k, v, score=lambda i, j: (q[i] * k[j]).sum())


def divided_by_h(q, k, v):
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=1 / q.size(1))[0]


def root_of_the_example(q, k, v):
    scores = q @ k.T / 4**0.5
    scores[torch.ones_like(scores).triu(1) > 0] = float("-inf")
    return torch.softmax(scores, -1) @ v


def size_of_the_example(q, k, v):
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    return (q @ k.T / math.sqrt(q.shape[1])).masked_fill(later, float("-inf")).softmax(-1) @ v


def zero_times_inf(q, k, v):
    M = torch.ones(len(q), len(q)).triu(1) * -torch.inf
    return torch.softmax(q @ k.T / math.sqrt(q.shape[1]) + M, -1) @ v


def zero_taken_for_hidden(q, k, v):
    scores = torch.tril(q @ k.T / math.sqrt(q.shape[1]))
    scores[scores == 0] = float("-inf")
    return torch.softmax(scores, -1) @ v


def root_of_t(q, k, v):
    scores = torch.einsum("id,jd->ij", q, k) / math.sqrt(len(q))
    scores[torch.triu(torch.ones_like(scores), diagonal=1) > 0] = float("-inf")
    return torch.einsum("ij,jd->id", F.softmax(scores, dim=1), v)


def no_mask(q, k, v):
    return F.softmax(torch.matmul(q, k.transpose(0, 1)) / math.sqrt(q.shape[1]), dim=-1).matmul(v)


def mask_backwards(q, k, v):
    return _loop(q, k, v, sees=lambda i, j: j >= i)


def hides_itself(q, k, v):
    return _loop(q, k, v, sees=lambda i, j: j < i)


def zero_for_hidden(q, k, v):
    scores = q @ k.T / math.sqrt(q.shape[-1])
    T = len(q)
    for i in range(T):
        for j in range(i + 1, T):
            scores[i, j] = 0
    return F.softmax(scores, -1) @ v


def mask_after_softmax(q, k, v):
    weights = F.softmax(q @ k.T / math.sqrt(q.shape[-1]), -1)
    return (weights * (torch.arange(len(q))[None] <= torch.arange(len(q))[:, None])) @ v


def softmax_down(q, k, v):
    T = len(q)
    scores = q @ k.T / math.sqrt(q.shape[-1]) + torch.triu(torch.full((T, T), float("-inf")), 1)
    return F.softmax(scores, dim=0) @ v


def no_softmax(q, k, v):
    return _loop(q, k, v, weigh=lambda scores: scores)


def keys_ask(q, k, v):
    return _loop(q, k, v, score=lambda i, j: torch.dot(k[i], q[j]) / math.sqrt(q.shape[1]))


def weights_only(q, k, v):
    T = len(q)
    scores = torch.einsum("id,jd->ij", q, k) / math.sqrt(q.shape[1])
    return torch.softmax(scores + torch.triu(torch.full((T, T), float("-inf")), 1), 1)


def mixes_the_keys(q, k, v):
    return _loop(q, k, v, mix=k)


def exp_overflows(q, k, v):
    T, h = q.shape
    weights = torch.exp(torch.einsum("id,jd->ij", q, k) / math.sqrt(h))
    weights = torch.where(torch.ones(T, T).tril() == 1, weights, torch.zeros(T, T))
    return (weights / weights.sum(1)[:, None]) @ v


# ---- may_look(positions, end)


def _each(positions, rule, end):
    if positions.dim() == 2:
        return torch.stack([_each(row, rule, end) for row in positions])
    return torch.tensor([[rule(key, p) for key in range(end)] for p in positions.tolist()])


def look_hides_itself(positions, end):
    return _each(positions, lambda key, p: key < p, end)


def look_backwards(positions, end):
    return positions.unsqueeze(-1) <= torch.arange(end)


def look_hidden(positions, end):
    return ~(positions.unsqueeze(-1) >= torch.arange(end))


def look_ignores(positions, end):
    rows = torch.arange(positions.shape[-1]).expand(positions.shape)
    return _each(rows, lambda key, p: key <= p, end)


def look_from_the_end(positions, end):
    T = positions.shape[-1]
    rows = torch.arange(end - T, end).expand(positions.shape)
    return rows[..., None] >= torch.arange(end)


def look_from_the_first(positions, end):
    start = int(positions.min() if positions.dim() == 1 else positions[0, 0])
    rows = (start + torch.arange(positions.shape[-1])).expand(positions.shape)
    return rows[..., None] >= torch.arange(end)


def look_transposed(positions, end):
    if positions.dim() == 1:
        return torch.arange(end)[:, None] <= positions
    return torch.arange(end)[None, :, None] <= positions[:, None, :]


def look_to_add(positions, end):
    return torch.where(positions[..., None] >= torch.arange(end), 0.0, float("-inf"))


def look_no_axis(positions, end):
    return positions >= torch.arange(0, end)


def look_one_row(positions, end):
    return torch.stack([torch.arange(end) <= int(p) for p in positions])


def look_ones(positions, end):
    return _each(positions, lambda key, p: 1 if key <= p else 0, end)


# ---- repeat_kv_by_hand(x, n)


def repeat_tiled(x, n):
    return torch.cat([x] * n, dim=1)


def repeat_divided_by_k(x, n):
    K = x.shape[1]
    return torch.stack([x[:, i // K] for i in range(K * n)], dim=1)


def repeat_remainder(x, n):
    return torch.stack([x[:, i % n] for i in range(x.shape[1] * n)], dim=1)


def repeat_tokens(x, n):
    return torch.stack([x[:, :, j // n] for j in range(n * x.shape[2])], dim=2)


def repeat_batch(x, n):
    return torch.stack([row for row in x for _ in range(n)])


def repeat_numbers(x, n):
    return x.unsqueeze(-1).expand(*x.shape, n).flatten(-2)


def repeat_axis(x, n):
    return torch.stack([x] * n, dim=2)


def repeat_behind(x, n):
    return torch.stack([x[:, i // n] for i in range(n * x.shape[1])], dim=2)


def repeat_reshaped(x, n):
    B, K, S, h = x.shape
    return torch.stack([x] * n, dim=3).view(B, K * n, S, h)


def repeat_nothing(x, n):
    return x * 1.0


# ---- attend(xq, keys, values, mask)


def _heads(xq, keys, values, mask, kv=None, scale=None, one=None):
    """A row and a head at a time; each learner below changes one thing."""
    B, T, H, h = xq.shape
    kv = kv or (lambda i: i * keys.shape[1] // H)
    scale = scale or math.sqrt(h)
    one = one or (lambda scores, look: F.softmax(scores.masked_fill(~look, float("-inf")), dim=-1))
    out = torch.empty_like(xq)
    for b in range(B):
        look = mask[b if mask.shape[0] > 1 else 0, 0]  # (T, S)
        for i in range(H):
            k, v = keys[b, kv(i)].double(), values[b, kv(i)].double()
            out[b, :, i] = (one(xq[b, :, i].double() @ k.T / scale, look) @ v).to(xq.dtype)
    return out


def attend_tiled(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, kv=lambda i: i % keys.shape[1])


def attend_first(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, kv=lambda i: 0)


def attend_unshared(xq, keys, values, mask):
    scores = torch.einsum("bthd,bhsd->bhts", xq, keys) / math.sqrt(xq.shape[-1])
    weights = F.softmax(scores.float().masked_fill(~mask, float("-inf")), -1).to(xq.dtype)
    return torch.einsum("bhts,bhsd->bthd", weights, values)


def attend_no_scale(xq, keys, values, mask):
    return F.scaled_dot_product_attention(
        xq.transpose(1, 2), keys, values, attn_mask=mask, scale=1.0, enable_gqa=True
    ).transpose(1, 2)


def attend_by_h(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, scale=xq.shape[-1])


def attend_root_of_24(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, scale=math.sqrt(24))


def attend_two_copies(xq, keys, values, mask):
    keys, values = (torch.stack([x, x], 2).flatten(1, 2) for x in (keys, values))
    scores = torch.matmul(xq.transpose(1, 2), keys.mT).float() / math.sqrt(xq.shape[-1])
    weights = F.softmax(torch.where(mask, scores, float("-inf")), -1)
    return torch.matmul(weights.to(values.dtype), values).transpose(1, 2)


def attend_root_of_d(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, scale=math.sqrt(xq.shape[2] * xq.shape[3]))


def attend_no_mask(xq, keys, values, mask):
    return F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, enable_gqa=True).transpose(1, 2)


def attend_upside_down(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, one=lambda s, look: F.softmax(s.masked_fill(look, float("-inf")), -1))


def attend_added(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, one=lambda s, look: F.softmax(s + look, -1))


def attend_mask_after(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, one=lambda s, look: F.softmax(s, -1).masked_fill(~look, 0))


def attend_triangle(xq, keys, values, mask):
    return F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, is_causal=True, enable_gqa=True).transpose(
        1, 2
    )


def attend_triangle_at_the_end(xq, keys, values, mask):
    T, S = xq.shape[1], keys.shape[2]
    mine = ~torch.ones(T, S, dtype=torch.bool).triu(1 + S - T)
    return _heads(xq, keys, values, mine[None, None])


def attend_first_mask(xq, keys, values, mask):
    return _heads(xq, keys, values, mask[0:1])


def attend_over_queries(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, one=lambda s, look: F.softmax(s.masked_fill(~look, float("-inf")), dim=0))


def attend_over_heads(xq, keys, values, mask):
    n = xq.shape[2] // keys.shape[1]
    keys, values = keys.repeat_interleave(n, 1), values.repeat_interleave(n, 1)
    scores = torch.einsum("bthd,bhsd->bhts", xq, keys).float() / math.sqrt(xq.shape[-1])
    weights = F.softmax(scores.masked_fill(~mask, float("-inf")), dim=1).to(xq.dtype)
    return torch.einsum("bhts,bhsd->bthd", weights, values)


def attend_no_softmax(xq, keys, values, mask):
    return _heads(xq, keys, values, mask, one=lambda s, look: s * look)


def attend_in_front(xq, keys, values, mask):
    return F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=True)


def attend_viewed_back(xq, keys, values, mask):
    out = F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=True)
    return out.contiguous().view(*xq.shape)


def attend_viewed_in(xq, keys, values, mask):
    B, T, H, h = xq.shape
    out = F.scaled_dot_product_attention(xq.view(B, H, T, h), keys, values, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def attend_viewed_both(xq, keys, values, mask):
    B, T, H, h = xq.shape
    n = H // keys.shape[1]
    keys, values = keys.repeat_interleave(n, 1), values.repeat_interleave(n, 1)
    scores = torch.einsum("bhtd,bhsd->bhts", xq.reshape(B, H, T, h), keys).float() / math.sqrt(h)
    weights = F.softmax(scores.masked_fill(~mask, float("-inf")), -1).to(xq.dtype)
    return torch.einsum("bhts,bhsd->bhtd", weights, values).reshape(B, T, H, h)


def attend_keys(xq, keys, values, mask):
    return _heads(xq, keys, keys, mask)


def attend_fp32(xq, keys, values, mask):
    return _heads(xq.float(), keys, values, mask)


# ---- right, in other words


def right_by_hand_loops(q, k, v):
    return _loop(q, k, v)


def right_by_hand_torch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(len(q), len(q), dtype=torch.bool).tril())


def right_by_hand_own_softmax(q, k, v):
    T, h = q.shape
    scores = torch.einsum("id,jd->ij", q, k) * h**-0.5 + torch.full((T, T), float("-inf")).triu(1)
    e = torch.exp(scores - scores.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True) @ v


def right_look_loops(positions, end):
    return _each(positions, lambda key, p: key <= p, end)


def right_look_other_side(positions, end):
    return positions.unsqueeze(-1).ge(torch.arange(end))


def right_repeat_indexed(x, n):
    return x[:, torch.arange(x.shape[1] * n) // n]


def right_repeat_loops(x, n):
    return torch.stack([x[:, i] for i in range(x.shape[1]) for _ in range(n)], dim=1)


def right_attend_loops(xq, keys, values, mask):
    return _heads(xq, keys, values, mask)


def right_attend_grouped(xq, keys, values, mask):
    B, T, H, h = xq.shape
    groups = xq.view(B, T, keys.shape[1], -1, h)
    scores = torch.einsum("btkgd,bksd->bkgts", groups, keys) / math.sqrt(h)
    weights = scores.masked_fill(~mask[:, :, None], float("-inf")).softmax(-1)
    return torch.einsum("bkgts,bksd->btkgd", weights, values).reshape(B, T, H, h)


def right_attend_torch(xq, keys, values, mask):
    out = F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


WRONG = {
    "attention_by_hand": {
        "no scale": no_scale,
        "divided by h": divided_by_h,
        "root of the example's h": root_of_the_example,
        "the example's size": size_of_the_example,
        "root of T": root_of_t,
        "no mask": no_mask,
        "mask backwards": mask_backwards,
        "hides itself": hides_itself,
        "zero for hidden": zero_for_hidden,
        "0 times inf": zero_times_inf,
        "0 taken for hidden": zero_taken_for_hidden,
        "mask after softmax": mask_after_softmax,
        "softmax down the columns": softmax_down,
        "no softmax": no_softmax,
        "keys ask": keys_ask,
        "weights only": weights_only,
        "mixes the keys": mixes_the_keys,
        "exp overflows": exp_overflows,
    },
    "may_look": {
        "hides itself": look_hides_itself,
        "backwards": look_backwards,
        "true means hidden": look_hidden,
        "ignores positions": look_ignores,
        "counts from the end": look_from_the_end,
        "starts at the first position": look_from_the_first,
        "transposed": look_transposed,
        "numbers to add": look_to_add,
        "ones and zeros": look_ones,
        "no axis for the keys": look_no_axis,
        "one row of positions": look_one_row,
    },
    "repeat_kv_by_hand": {
        "tiled": repeat_tiled,
        "divided by K": repeat_divided_by_k,
        "remainder by n": repeat_remainder,
        "repeats the tokens": repeat_tokens,
        "repeats the batch": repeat_batch,
        "repeats the numbers": repeat_numbers,
        "an axis too many": repeat_axis,
        "heads behind tokens": repeat_behind,
        "reshaped": repeat_reshaped,
        "unchanged": repeat_nothing,
    },
    "attend": {
        "tiled": attend_tiled,
        "first kv head only": attend_first,
        "heads do not fit": attend_unshared,
        "no scale": attend_no_scale,
        "divided by h": attend_by_h,
        "a fixed number of copies": attend_two_copies,
        "root of the demo's h": attend_root_of_24,
        "root of D": attend_root_of_d,
        "no mask": attend_no_mask,
        "mask upside down": attend_upside_down,
        "mask added": attend_added,
        "mask after softmax": attend_mask_after,
        "triangle of its own": attend_triangle,
        "triangle at the end": attend_triangle_at_the_end,
        "first row's mask": attend_first_mask,
        "softmax over the queries": attend_over_queries,
        "softmax over the heads": attend_over_heads,
        "no softmax": attend_no_softmax,
        "heads left in front": attend_in_front,
        "reshaped at the end": attend_viewed_back,
        "reshaped at the start": attend_viewed_in,
        "reshaped both ways": attend_viewed_both,
        "mixes the keys": attend_keys,
        "stays in fp32": attend_fp32,
    },
}

RIGHT = {
    "attention_by_hand": [right_by_hand_loops, right_by_hand_torch, right_by_hand_own_softmax],
    "may_look": [right_look_loops, right_look_other_side],
    "repeat_kv_by_hand": [right_repeat_indexed, right_repeat_loops],
    "attend": [right_attend_loops, right_attend_grouped, right_attend_torch],
}
