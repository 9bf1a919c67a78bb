"""Wrong answers to chapter 04's exercises as people write them, by the diagnosis each should get; and right ones."""

import torch


def all_that_is_read(prompt, new):
    total = 0
    length = prompt
    while new > 0:
        total += length
        length += 1
        new -= 1
    return total


def what_a_cache_reads(prompt, new):
    return len(range(prompt + new)) - 1


def only_the_prompt_is_new(prompt, new):
    return sum(range(prompt, prompt + new)) - prompt


def the_last_token_is_read(prompt, new):
    return sum(range(prompt, prompt + new)) - len(range(prompt + new))


def the_text_does_not_grow(prompt, new):
    return sum(prompt for _ in range(1, new))


def the_prompt_at_every_pass(prompt, new):
    total = 0
    for _ in range(new):
        total += prompt
    return total


def without_the_prompt(prompt, new):
    return sum(step - 1 for step in range(1, new))


def full_length_at_once(prompt, new):
    total = prompt + new
    return total * new - total + 1


def not_whole(prompt, new):
    return new * (prompt + (new - 1) / 2) - prompt - new + 1


def recomputed_step_by_step(prompt, new):
    again = 0
    for step in range(1, new):
        again += prompt + step - 1
    return again


def square(start, T):
    return torch.triu(torch.ones(T, T), diagonal=1) == 0


def triangle_from_slot_0(start, T):
    return torch.arange(start + T)[None, :] <= torch.arange(T)[:, None]


def blind_to_the_past(start, T):
    queries, keys = torch.arange(start, start + T)[:, None], torch.arange(start + T)[None]
    return (keys <= queries) & (keys >= start)


def turned_round(start, T):
    return torch.arange(start + T)[None] > torch.arange(start, start + T)[:, None]


def not_itself(start, T):
    return torch.arange(start + T)[None] < torch.arange(start, start + T)[:, None]


def one_too_far(start, T):
    return torch.arange(start + T)[None] <= torch.arange(start, start + T)[:, None] + 1


def sees_everything(start, T):
    return torch.full((T, start + T), True)


def upper_triangle(start, T):
    mask = torch.zeros(T, start + T).bool()
    for i in range(T):
        mask[i, :start] = True
        mask[i, start + i :] = True
    return mask


def past_on_the_right(start, T):
    mask = torch.zeros(T, start + T).bool()
    for i in range(T):
        mask[i, : i + 1] = True
        mask[i, T:] = True
    return mask


def transposed(start, T):
    return torch.arange(start + T)[:, None] <= torch.arange(start, start + T)[None]


def to_be_added(start, T):
    mask = torch.full((T, T), float("-inf")).triu(1)
    return torch.cat([torch.zeros(T, start), mask], 1)


def numbers_not_bools(start, T):
    return torch.cat([torch.ones(T, start), torch.ones(T, T).tril()], 1)


def past_only(start, T):
    return torch.full((T, start), True)


def a_list(start, T):
    rows = []
    for i in range(T):
        rows.append([True] * (start + i + 1) + [False] * (T - i - 1))
    return rows


def chunk_mask_by_positions(start, T):
    return torch.arange(start + T)[None] <= torch.arange(start, start + T)[:, None]


def chunk_mask_by_offset(start, T):
    return torch.ones(T, start + T, dtype=torch.bool).tril(diagonal=start)


def from_slot_0(keys, values, xk, xv, positions):
    T = xk.shape[1]
    keys[:, :, 0:T] = xk.permute(0, 2, 1, 3)
    values[:, :, 0:T] = xv.permute(0, 2, 1, 3)
    return keys, values


def one_late(keys, values, xk, xv, positions):
    for b in range(len(keys)):
        at = positions if positions.dim() == 1 else positions[b]
        for t, p in enumerate(at.tolist()):
            keys[b, :, p + 1] = xk[b, t]
            values[b, :, p + 1] = xv[b, t]
    return keys, values


def first_rows_places(keys, values, xk, xv, positions):
    at = positions.reshape(-1)[: xk.shape[1]]
    keys.index_copy_(2, at, xk.transpose(1, 2))
    values.index_copy_(2, at, xv.transpose(1, 2))
    return keys, values


def longest_rows_places(keys, values, xk, xv, positions):
    if positions.dim() == 2:
        positions = positions[positions[:, 0].argmax()]
    keys.index_copy_(2, positions, xk.transpose(1, 2))
    values.index_copy_(2, positions, xv.transpose(1, 2))
    return keys, values


def stops_where_rows_differ(keys, values, xk, xv, positions):
    keys[:, :, positions] = xk.transpose(1, 2)
    values[:, :, positions] = xv.transpose(1, 2)
    return keys, values


def stops_in_index_copy(keys, values, xk, xv, positions):
    keys.index_copy_(2, positions, xk.transpose(1, 2))
    values.index_copy_(2, positions, xv.transpose(1, 2))
    return keys, values


def transposed_where_rows_differ(keys, values, xk, xv, positions):
    xk, xv = xk.transpose(1, 2), xv.transpose(1, 2)
    if positions.dim() == 1:
        keys[:, :, positions], values[:, :, positions] = xk, xv
    else:
        rows = torch.arange(keys.shape[0]).unsqueeze(1)
        keys[rows, :, positions], values[rows, :, positions] = xk, xv
    return keys, values


def row_not_transposed(keys, values, xk, xv, positions):
    if positions.dim() == 1:
        keys[:, :, positions] = xk.transpose(1, 2)
        values[:, :, positions] = xv.transpose(1, 2)
    else:
        for b in range(len(keys)):
            keys[b, :, positions[b]] = xk[b]
            values[b, :, positions[b]] = xv[b]
    return keys, values


def stops_where_rows_are_level(keys, values, xk, xv, positions):
    for b in range(len(keys)):
        keys[b, :, positions[b]] = xk[b].transpose(0, 1)
        values[b, :, positions[b]] = xv[b].transpose(0, 1)
    return keys, values


def rows_as_they_are(keys, values, xk, xv, positions):
    for row, new_keys, new_values, at in zip(range(len(keys)), xk, xv, positions):
        keys[row, :, at] = new_keys
        values[row, :, at] = new_values
    return keys, values


def not_transposed(keys, values, xk, xv, positions):
    if positions.dim() == 1:
        keys[:, :, positions], values[:, :, positions] = xk, xv
    else:
        for b, at in enumerate(positions):
            keys[b, :, at], values[b, :, at] = xk[b], xv[b]
    return keys, values


def reshaped_not_transposed(keys, values, xk, xv, positions):
    B, T, K, h = xk.shape
    xk, xv = xk.view(B, K, T, h), xv.view(B, K, T, h)
    for b in range(B):
        at = positions if positions.dim() == 1 else positions[b]
        keys[b, :, at], values[b, :, at] = xk[b], xv[b]
    return keys, values


def keys_and_values_changed(keys, values, xk, xv, positions):
    for b in range(len(keys)):
        at = positions if positions.dim() == 1 else positions[b]
        values[b, :, at] = xk[b].transpose(0, 1)
        keys[b, :, at] = xv[b].transpose(0, 1)
    return keys, values


def keys_only(keys, values, xk, xv, positions):
    for b in range(len(keys)):
        at = positions if positions.dim() == 1 else positions[b]
        keys[b, :, at] = xk[b].transpose(0, 1)
    return keys, values


def right_remember(keys, values, xk, xv, positions):
    for b in range(len(keys)):
        at = positions if positions.dim() == 1 else positions[b]
        keys[b, :, at] = xk[b].transpose(0, 1)
        values[b, :, at] = xv[b].transpose(0, 1)
    return keys, values


def right_by_expanding(keys, values, xk, xv, positions):
    B, T, K, h = xk.shape
    where = positions.expand(B, T)[:, None, :, None].expand(B, K, T, h)
    keys.scatter_(2, where, xk.transpose(1, 2))
    values.scatter_(2, where, xv.transpose(1, 2))
    return keys, values


def keys_only_where_rows_differ(keys, values, xk, xv, positions):
    if positions.dim() == 1:
        return right_remember(keys, values, xk, xv, positions)
    for b, at in enumerate(positions):
        keys[b].index_copy_(1, at, xk[b].transpose(0, 1))
    return keys, values


def keys_only_where_rows_are_level(keys, values, xk, xv, positions):
    if positions.dim() == 2:
        return right_remember(keys, values, xk, xv, positions)
    for t, at in enumerate(positions.tolist()):
        keys[:, :, at] = xk[:, t]
    return keys, values


def xk_in_both(keys, values, xk, xv, positions):
    for kept in (keys, values):
        for b in range(len(kept)):
            at = positions if positions.dim() == 1 else positions[b]
            kept[b, :, at] = xk[b].transpose(0, 1)
    return keys, values


def returns_values_first(keys, values, xk, xv, positions):
    keys, values = right_remember(keys, values, xk, xv, positions)
    return values, keys


def returns_the_keys_only(keys, values, xk, xv, positions):
    right_remember(keys, values, xk, xv, positions)
    return keys


def index_copy_without_underscore(keys, values, xk, xv, positions):
    for b in range(len(keys)):
        at = positions if positions.dim() == 1 else positions[b]
        keys[b].index_copy(1, at, xk[b].transpose(0, 1))
        values[b].index_copy(1, at, xv[b].transpose(0, 1))
    return keys, values


def returns_the_new_ones(keys, values, xk, xv, positions):
    right_remember(keys, values, xk, xv, positions)
    return xk.permute(0, 2, 1, 3), xv.permute(0, 2, 1, 3)


def returns_nothing(keys, values, xk, xv, positions):
    right_remember(keys, values, xk, xv, positions)


def returns_the_filled_ones(keys, values, xk, xv, positions):
    right_remember(keys, values, xk, xv, positions)
    return keys[:, :, : 1 + positions.max()], values[:, :, : 1 + positions.max()]


def into_a_copy(keys, values, xk, xv, positions):
    new_keys, new_values = keys.clone(), values.clone()
    return right_remember(new_keys, new_values, xk, xv, positions)


def added(keys, values, xk, xv, positions):
    for b in range(len(keys)):
        at = positions if positions.dim() == 1 else positions[b]
        keys[b, :, at] += xk[b].transpose(0, 1)
        values[b, :, at] += xv[b].transpose(0, 1)
    return keys, values


def grows(keys, values, xk, xv, positions):
    keys = torch.cat((keys, xk.permute(0, 2, 1, 3)), dim=-2)
    values = torch.cat((values, xv.permute(0, 2, 1, 3)), dim=-2)
    return keys, values


def product(*factors):
    result = 1
    for factor in factors:
        result *= factor
    return result


WRONG = {
    "recomputed_tokens": {
        "all that is read": all_that_is_read,
        "what a cache reads": what_a_cache_reads,
        "only the prompt is new": only_the_prompt_is_new,
        "the last token is read": the_last_token_is_read,
        "the text does not grow": the_text_does_not_grow,
        "the prompt at every pass": the_prompt_at_every_pass,
        "without the prompt": without_the_prompt,
        "full length at once": full_length_at_once,
        "not whole": not_whole,
    },
    "chunk_mask": {
        "square": square,
        "triangle from slot 0": triangle_from_slot_0,
        "blind to the past": blind_to_the_past,
        "turned round": turned_round,
        "not itself": not_itself,
        "one too far": one_too_far,
        "sees everything": sees_everything,
        "upper triangle": upper_triangle,
        "past on the right": past_on_the_right,
        "transposed": transposed,
        "past only": past_only,
        "a list": a_list,
        "to be added": to_be_added,
        "numbers, not bools": numbers_not_bools,
    },
    "remember": {
        "from slot 0": from_slot_0,
        "one late": one_late,
        "first row's places": first_rows_places,
        "longest row's places": longest_rows_places,
        "stops where rows differ": stops_where_rows_differ,
        "transposed where rows differ": transposed_where_rows_differ,
        "row not transposed": row_not_transposed,
        "stops where rows are level": stops_where_rows_are_level,
        "rows as they are": rows_as_they_are,
        "not transposed": not_transposed,
        "reshaped, not transposed": reshaped_not_transposed,
        "keys and values changed": keys_and_values_changed,
        "keys only": keys_only,
        "keys only where rows differ": keys_only_where_rows_differ,
        "keys only where rows are level": keys_only_where_rows_are_level,
        "xk in both": xk_in_both,
        "returns values first": returns_values_first,
        "returns the keys only": returns_the_keys_only,
        "returns the new ones": returns_the_new_ones,
        "returns nothing": returns_nothing,
        "returns the filled ones": returns_the_filled_ones,
        "into a copy": into_a_copy,
        "nothing is written": index_copy_without_underscore,
        "added": added,
        "grows": grows,
    },
    "cache_bytes": {
        "keys only": lambda L, B, S, K, h, size: product(L, B, S, K, h, size),
        "numbers, not bytes": lambda L, B, S, K, h, size: 2 * torch.Size([L, B, S, K, h]).numel(),
        "bits": lambda L, B, S, K, h, size: product(2, L, B, S, K, h, 8 * size),
        "one layer": lambda L, B, S, K, h, size: sum(product(B, S, K, h, size) for _ in ("keys", "values")),
        "one row": lambda L, B, S, K, h, size: sum(product(L, S, K, h, size) for _ in ("keys", "values")),
        "one head": lambda L, B, S, K, h, size: L * B * (S * h + S * h) * size,
        "one number": lambda L, B, S, K, h, size: sum(product(L, B, S, K, size) for _ in ("keys", "values")),
        "one slot": lambda L, B, S, K, h, size: sum(product(L, B, K, h, size) for _ in ("keys", "values")),
        "always as many bytes": lambda L, B, S, K, h, size: 2 * 16 // 8 * product(L, B, S, K, h),
        "not whole": lambda L, B, S, K, h, size: product(L, B, S, K, h, size, 8) / 4,
        "squared": lambda L, B, S, K, h, size: product(2, L, B, K, h, size, S**2),
        "in gigabytes": lambda L, B, S, K, h, size: product(2, L, B, S, K, h, size) / 1e9,
    },
}


RIGHT = {
    "recomputed_tokens": [recomputed_step_by_step, lambda prompt, new: (new - 1) * (2 * prompt + new - 2) // 2],
    "chunk_mask": [chunk_mask_by_positions, chunk_mask_by_offset],
    "remember": [right_remember, right_by_expanding],
    "cache_bytes": [lambda L, B, S, K, h, size: sum(B * S * K * h * size * 2 for _ in range(L))],
}
