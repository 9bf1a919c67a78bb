"""Answers to chapter 02's exercises as learners write them, wrong and right."""

import math

import torch


def clockwise_pair(x, angle):
    matrix = torch.stack([torch.cos(angle), torch.sin(angle), -torch.sin(angle), torch.cos(angle)], -1)
    return torch.einsum("...ij,...j->...i", matrix.unflatten(-1, (2, 2)), x)


def pair_in_degrees(x, angle):
    radians = angle * math.pi / 180
    out = torch.empty_like(x)
    out[..., 0] = x[..., 0] * torch.cos(radians) - x[..., 1] * torch.sin(radians)
    out[..., 1] = x[..., 0] * torch.sin(radians) + x[..., 1] * torch.cos(radians)
    return out


def pair_exchanged(x, angle):
    s, c = torch.cos(angle), torch.sin(angle)  # the names are the wrong way round
    return torch.stack((x[..., 0] * c - x[..., 1] * s, x[..., 0] * s + x[..., 1] * c), -1)


def pair_no_minus(x, angle):
    out = torch.zeros_like(x)
    out[..., 0] = x[..., 0] * torch.cos(angle) + x[..., 1] * torch.sin(angle)
    out[..., 1] = x[..., 0] * torch.sin(angle) + x[..., 1] * torch.cos(angle)
    return out


def pair_too_early(x, angle):
    y = x.clone()
    y[..., 0] = y[..., 0] * torch.cos(angle) - y[..., 1] * torch.sin(angle)
    y[..., 1] = y[..., 0] * torch.sin(angle) + y[..., 1] * torch.cos(angle)
    return y


def pair_wrong_axis(x, angle):
    a, b = x[0], x[1]
    c, s = torch.cos(angle), torch.sin(angle)
    return torch.stack((c * a - s * b, s * a + c * b))


def pair_stacked_in_front(x, angle):
    c, s = torch.cos(angle), torch.sin(angle)
    return torch.stack((c * x[..., 0] - s * x[..., 1], s * x[..., 0] + c * x[..., 1]))


def pair_two_tensors(x, angle):
    c, s = torch.cos(angle), torch.sin(angle)
    return c * x[..., 0] - s * x[..., 1], s * x[..., 0] + c * x[..., 1]


def pair_complex(x, angle):
    return torch.complex(x[..., 0], x[..., 1]) * torch.exp(1j * angle)


def pair_by_matrix(x, angle):
    c, s = torch.cos(angle), torch.sin(angle)
    matrix = torch.stack([c, -s, s, c], -1).unflatten(-1, (2, 2))
    return torch.einsum("...ij,...j->...i", matrix, x)


def pair_by_pair(x, angle):
    out = []
    for (a, b), each in zip(x.reshape(-1, 2), angle.reshape(-1)):
        out += [a * torch.cos(each) - b * torch.sin(each), a * torch.sin(each) + b * torch.cos(each)]
    return torch.stack(out).reshape(x.shape)


def pair_by_stacked_matrices(x, angle):
    c, s = torch.cos(angle), torch.sin(angle)
    matrices = torch.stack([c, -s, s, c], -1).reshape(*x.shape[:-1], 2, 2)
    return (matrices @ x[..., None])[..., 0]


def pair_by_complex(x, angle):
    return torch.view_as_real(torch.view_as_complex(x) * torch.exp(1j * angle))


def table_by_loops(dim, end, theta):
    table = torch.zeros(end, dim // 2, dtype=torch.complex64)
    for m in range(end):
        for i in range(dim // 2):
            angle = m / theta ** (2 * i / dim)
            table[m, i] = complex(math.cos(angle), math.sin(angle))
    return table


def table_by_exp(dim, end, theta):
    i = torch.arange(dim // 2)
    m = torch.arange(end).unsqueeze(1)
    angles = m * torch.exp(-2 * i / dim * math.log(theta))
    return torch.complex(angles.cos(), angles.sin())


def table_one_for_each(dim, end, theta):
    freqs = torch.tensor([theta ** (-i / dim) for i in range(dim)])
    return torch.exp(1j * torch.arange(end)[:, None] * freqs)


def table_half_exponent(dim, end, theta):
    freqs = torch.tensor([theta ** (-i / dim) for i in range(dim // 2)])
    return torch.exp(1j * torch.arange(end)[:, None] * freqs)


def table_twice_exponent(dim, end, theta):
    half = dim // 2
    freqs = torch.tensor([theta ** (-2 * i / half) for i in range(half)])
    return torch.exp(1j * torch.arange(end)[:, None] * freqs)


def table_up_to_one(dim, end, theta):
    half = dim // 2
    freqs = torch.tensor([theta ** (-i / max(half - 1, 1)) for i in range(half)])
    return torch.exp(1j * torch.arange(end)[:, None] * freqs)


def table_faster(dim, end, theta):
    table = torch.zeros(end, dim // 2, dtype=torch.complex64)
    for m in range(end):
        for i in range(dim // 2):
            angle = m * theta ** (2 * i / dim)
            table[m, i] = complex(math.cos(angle), math.sin(angle))
    return table


def table_power_first(dim, end, theta):
    freqs = 1.0 / theta ** torch.arange(0, dim, 2) / dim
    angles = torch.outer(torch.arange(end), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def table_polar_exchanged(dim, end, theta):
    freqs = theta ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.arange(end)[:, None] * freqs
    return torch.polar(angles, torch.ones_like(angles))


def table_ignores_theta(dim, end, theta):
    freqs = 10000 ** (-torch.arange(0, dim, 2) / dim)
    return torch.exp(1j * torch.arange(end)[:, None] * freqs)


def table_from_one(dim, end, theta):
    freqs = theta ** (-torch.arange(0, dim, 2) / dim)
    return torch.exp(1j * torch.arange(1, end + 1)[:, None] * freqs)


def table_transposed(dim, end, theta):
    freqs = theta ** (-torch.arange(0, dim, 2) / dim)
    return torch.exp(1j * freqs[:, None] * torch.arange(end))


def table_clockwise(dim, end, theta):
    freqs = theta ** (-torch.arange(0, dim, 2) / dim)
    return torch.exp(-1j * torch.arange(end)[:, None] * freqs)


def table_angles_only(dim, end, theta):
    freqs = theta ** (-torch.arange(0, dim, 2) / dim)
    return torch.arange(end)[:, None] * freqs


def table_exchanged(dim, end, theta):
    angles = torch.arange(end)[:, None] * theta ** (-torch.arange(0, dim, 2) / dim)
    return torch.complex(angles.sin(), angles.cos())


def table_double(dim, end, theta):
    freqs = theta ** (-torch.arange(0, dim, 2).double() / dim)
    return torch.exp(1j * torch.arange(end)[:, None] * freqs)


def table_in_bf16(dim, end, theta):
    freqs = theta ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(end).bfloat16(), freqs.bfloat16()).float()
    return torch.polar(torch.ones_like(angles), angles)


def rotate_by_loops(x, freqs_cis):
    B, T, H, h = x.shape
    out = torch.empty_like(x)
    turns = freqs_cis.expand(B, T, h // 2)
    for i in range(h // 2):
        c, s = turns[..., i].real[..., None], turns[..., i].imag[..., None]  # (B, T, 1)
        a, b = x[..., 2 * i].float(), x[..., 2 * i + 1].float()
        out[..., 2 * i] = a * c - b * s
        out[..., 2 * i + 1] = a * s + b * c
    return out


def rotate_by_slices(x, freqs_cis):
    c, s = freqs_cis.real.unsqueeze(-2), freqs_cis.imag.unsqueeze(-2)
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(x.dtype)


def rotate_halves_as_hf(x, freqs_cis):
    cos = torch.cat([freqs_cis.real, freqs_cis.real], -1).unsqueeze(-2)
    sin = torch.cat([freqs_cis.imag, freqs_cis.imag], -1).unsqueeze(-2)
    half = x.shape[-1] // 2
    swapped = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x * cos + swapped * sin).to(x.dtype)


def rotate_written_as_halves(x, freqs_cis):
    c, s = freqs_cis.real.unsqueeze(-2), freqs_cis.imag.unsqueeze(-2)
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.cat((a * c - b * s, a * s + b * c), -1).to(x.dtype)


def rotate_read_as_halves(x, freqs_cis):
    c, s = freqs_cis.real.unsqueeze(-2), freqs_cis.imag.unsqueeze(-2)
    half = x.shape[-1] // 2
    a, b = x[..., :half].float(), x[..., half:].float()
    out = torch.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * c - b * s, a * s + b * c
    return out


def rotate_clockwise(x, freqs_cis):
    c, s = freqs_cis.real.unsqueeze(-2), freqs_cis.imag.unsqueeze(-2)
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * c + b * s, b * c - a * s), -1).flatten(-2).to(x.dtype)


def rotate_without_heads(x, freqs_cis):
    c, s = freqs_cis.real, freqs_cis.imag
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(x.dtype)


def rotate_for_one_text(x, freqs_cis):
    turn = freqs_cis.view(1, x.shape[1], 1, x.shape[3] // 2)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


def rotate_without_float(x, freqs_cis):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * freqs_cis.unsqueeze(-2)).flatten(-2).to(x.dtype)


def rotate_stays(x, freqs_cis):
    c, s = freqs_cis.real.unsqueeze(-2), freqs_cis.imag.unsqueeze(-2)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


def rotate_pairs_apart(x, freqs_cis):
    c, s = freqs_cis.real.unsqueeze(-2), freqs_cis.imag.unsqueeze(-2)
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * c - b * s, a * s + b * c), -1).to(x.dtype)


def rotate_still_complex(x, freqs_cis):
    return torch.complex(x[..., 0::2].float(), x[..., 1::2].float()) * freqs_cis.unsqueeze(-2)


def rotate_sizes_of_the_example(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().reshape(2, 5, 8, -1, 2))
    return torch.view_as_real(pairs * freqs_cis.unsqueeze(-2)).flatten(-2).to(x.dtype)


def rotate_nothing(x, freqs_cis):
    return x * 1


def halves_by_loops(w, n_heads):
    h = len(w) // n_heads
    rows = []
    for head in range(n_heads):
        block = w[head * h : (head + 1) * h]
        rows += [block[i] for i in range(0, h, 2)] + [block[i] for i in range(1, h, 2)]
    return torch.stack(rows)


def halves_by_einops(w, n_heads):
    from einops import rearrange

    return rearrange(w, "(H pair two) D -> (H two pair) D", H=n_heads, two=2)


def halves_back(w, n_heads):
    out = torch.empty_like(w)
    h = len(w) // n_heads
    for head in range(n_heads):
        out[head * h : (head + 1) * h : 2] = w[head * h : head * h + h // 2]
        out[head * h + 1 : (head + 1) * h : 2] = w[head * h + h // 2 : (head + 1) * h]
    return out


def halves_across(w, n_heads):
    return w.view(-1, 2, w.shape[1]).transpose(0, 1).reshape(w.shape)


def halves_apart(w, n_heads):
    pairs = len(w) // n_heads // 2
    order = [(2 * pair + k) * n_heads + head for k in range(2) for pair in range(pairs) for head in range(n_heads)]
    return w[order]


def halves_exchanged(w, n_heads):
    D = w.shape[1]
    rows = w.view(-1, n_heads, D)
    return torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1).reshape(-1, D)


def halves_columns(w, n_heads):
    order = [*range(0, w.shape[1], 2), *range(1, w.shape[1], 2)]
    return w[:, order]


def halves_seconds_first(w, n_heads):
    blocks = w.chunk(n_heads)
    return torch.cat([torch.cat([block[1::2], block[0::2]]) for block in blocks])


def halves_not_flat(w, n_heads):
    blocks = w.chunk(n_heads)
    return torch.stack([torch.stack([block[0::2], block[1::2]]) for block in blocks])


def halves_only_viewed(w, n_heads):
    return w.view(n_heads, 2, -1, w.shape[1]).reshape(w.shape)


WRONG = {
    "rotate_pair": {
        "clockwise": clockwise_pair,
        "degrees": pair_in_degrees,
        "sine and cosine exchanged": pair_exchanged,
        "no minus": pair_no_minus,
        "used too early": pair_too_early,
        "wrong axis": pair_wrong_axis,
        "stacked in front": pair_stacked_in_front,
        "two tensors": pair_two_tensors,
        "complex": pair_complex,
    },
    "rotation_table": {
        "one for each number": table_one_for_each,
        "half the exponent": table_half_exponent,
        "twice the exponent": table_twice_exponent,
        "exponents up to 1": table_up_to_one,
        "faster and faster": table_faster,
        "power before division": table_power_first,
        "length and angle exchanged": table_polar_exchanged,
        "ignores theta": table_ignores_theta,
        "from position 1": table_from_one,
        "transposed": table_transposed,
        "clockwise": table_clockwise,
        "angles only": table_angles_only,
        "sine and cosine exchanged": table_exchanged,
        "double precision": table_double,
        "too few digits": table_in_bf16,
    },
    "rotate": {
        "halves": rotate_halves_as_hf,
        "written as halves": rotate_written_as_halves,
        "read as halves": rotate_read_as_halves,
        "clockwise": rotate_clockwise,
        "no axis for the heads": rotate_without_heads,
        "one position for all texts": rotate_for_one_text,
        "bf16 cannot be complex": rotate_without_float,
        "stays in fp32": rotate_stays,
        "pairs left apart": rotate_pairs_apart,
        "still complex": rotate_still_complex,
        "not turned": rotate_nothing,
        "a size written in": rotate_sizes_of_the_example,
    },
    "to_halves": {
        "the other way": halves_back,
        "across heads": halves_across,
        "heads taken apart": halves_apart,
        "heads and rows exchanged": halves_exchanged,
        "columns": halves_columns,
        "seconds first": halves_seconds_first,
        "not flat": halves_not_flat,
        "unchanged": halves_only_viewed,
    },
}

RIGHT = {
    "rotate_pair": [pair_by_matrix, pair_by_pair, pair_by_stacked_matrices, pair_by_complex],
    "rotation_table": [table_by_loops, table_by_exp],
    "rotate": [rotate_by_loops, rotate_by_slices],
    "to_halves": [halves_by_loops, halves_by_einops],
}
