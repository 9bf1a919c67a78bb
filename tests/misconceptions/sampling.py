"""Chapter 08's classic wrong answers, as people write them."""

import functools
import math

import numpy as np
import torch


def _rows(f):
    """f, which takes one row, for any number of rows."""

    @functools.wraps(f)
    def each(x, *rest):
        rows = [f(row, *rest) for row in x.reshape(-1, x.shape[-1])]
        return torch.stack(rows).reshape(x.shape)

    return each


# --- 8.1 ---


def temperature_times(logits, t):
    scaled = logits * t
    scaled = scaled - scaled.max(dim=-1, keepdim=True)[0]
    return scaled.exp() / scaled.exp().sum(dim=-1, keepdim=True)


def temperature_after(logits, t):
    return logits.softmax(dim=-1).div(t)


def temperature_none(logits, t):
    probs = logits.softmax(dim=-1) / t
    return probs / probs.sum(dim=-1, keepdim=True)


def temperature_logits(logits, t):
    return torch.stack([row * (1 / t) for row in logits])


def temperature_log(logits, t):
    z = (logits - logits.amax(-1, keepdim=True)) / t
    return z - torch.logsumexp(z, -1, keepdim=True)


def temperature_flat(logits, t):
    z = (logits - logits.max()) / t
    return z.exp() / z.exp().sum()


def temperature_columns(logits, t):
    return torch.nn.functional.softmax(logits / t, dim=0)


def temperature_naive(logits, t):
    return torch.nn.Softmax(dim=-1)(logits.mul(1 / t) if t > 1e-30 else logits / t)


def temperature_exp(logits, t):
    e = torch.exp(logits / t)
    total = torch.einsum("...v->...", e)
    return e / total[..., None]


def temperature_powers(logits, t):
    powers = logits.softmax(dim=-1).pow(1 / t)
    return powers / powers.sum(dim=-1, keepdim=True)


def temperature_right(logits, t):
    shifted = logits - torch.logsumexp(logits, -1, keepdim=True)
    z = (shifted - shifted.amax(-1, keepdim=True)) / t
    return torch.exp(z) / torch.exp(z).sum(-1, keepdim=True)


# --- 8.2 ---


def pick_best(probs, u):
    return max(range(len(probs)), key=lambda i: probs[i].item())


def pick_own(probs, u):
    place = 0
    for p in probs.tolist():
        place += p <= u
    return place


def pick_further(probs, u):
    total, place = 0.0, 0
    for p in probs.tolist():
        place += 1
        total += p
        if total > u * probs.double().sum().item():
            return place
    return place + 1


def pick_line(probs, u):
    cdf = torch.cumsum(probs.double(), 0)
    return int(torch.searchsorted(cdf, torch.tensor(u, dtype=torch.float64) * cdf[-1]))


def pick_equal(probs, u):
    return math.floor(len(probs) * u)


def pick_sum(probs, u):
    left = u
    for place, p in enumerate(probs.tolist()):
        if left < p:
            return place
        left -= p
    return len(probs)


def pick_far(probs, u):
    end = 0.0
    beyond = 0
    for p in probs.double().tolist():
        end += p
        beyond += end > u * probs.double().sum().item()
    return beyond


def pick_own_dice(probs, u):
    return int(torch.multinomial(probs, 1))


def pick_tensor(probs, u):
    cdf = probs.double().cumsum(0)
    return torch.searchsorted(cdf, torch.tensor([u], dtype=torch.float64) * cdf[-1], right=True)[0]


def pick_first_above(probs, u):
    for i in range(len(probs)):
        if probs[i] > u:
            return i
    return 0


def pick_nearest(probs, u):
    return (torch.cumsum(probs, 0) - u).abs().argmin().item()


def pick_loop(probs, u):
    shares = probs.tolist()
    point = u * sum(shares)
    last = 0
    for place, share in enumerate(shares):
        if share and point < share:
            return place
        point -= share
        last = place if share else last
    return last


# --- 8.3 ---


def nucleus_with(probs, p):
    keep = probs.cumsum(dim=-1) <= p
    kept = probs * keep
    return kept / kept.sum(dim=-1, keepdim=True)


@_rows
def nucleus_spared(row, p):
    mass, kept = 0.0, []
    for place, share in enumerate(row.tolist()):
        mass += share
        kept.append(share if mass <= p or place == 0 else 0.0)
    return torch.tensor(kept) / sum(kept)


def nucleus_unscaled(probs, p):
    return probs.masked_fill(probs.cumsum(-1) - probs > p, 0.0)


def nucleus_tail(probs, p):
    tail = probs * ((torch.cumsum(probs, -1) - probs) > p)
    return tail / tail.sum(-1, keepdim=True)


def nucleus_threshold(probs, p):
    keep = probs >= 1 - p
    return probs * keep / (probs * keep).sum(-1, keepdim=True)


def nucleus_own(probs, p):
    keep = (probs <= p).float()
    return probs * keep / (probs * keep).sum(-1, keepdim=True)


def nucleus_above(probs, p):
    kept = probs.clone()
    kept[probs < p] = 0
    return kept / kept.sum(-1, keepdim=True)


def nucleus_all_rows(probs, p):
    kept = probs.clone()
    kept[probs.cumsum(-1) - probs > p] = 0
    return kept / torch.sum(kept)


def nucleus_shorter(probs, p):
    mass, n = 0.0, 0
    while n < len(probs) and mass <= p:
        mass += probs[n].item()
        n += 1
    return probs[:n] / probs[:n].sum()


@_rows
def nucleus_more(row, p):
    mass, n = 0.0, 0
    while n < len(row) and mass <= p:
        mass += row[n].item()
        n += 1
    kept = row.clone()
    kept[n + 1 :] = 0
    return kept / kept.sum()


def nucleus_over_p(probs, p):
    return torch.where(probs.cumsum(-1) - probs <= p, probs / p, 0.0)


def nucleus_softmax(probs, p):
    kept = probs * (probs.cumsum(-1) - probs <= p)
    return kept.exp() / kept.exp().sum(-1, keepdim=True)


@_rows
def nucleus_loop(row, p):
    kept, mass = [0.0] * len(row), 0.0
    for place, share in enumerate(row.tolist()):
        if mass > p:
            break
        kept[place] = share
        mass += share
    return torch.tensor(kept) / mass


# --- 8.4 ---


def penalty_divides(logits, seen, penalty):
    out = logits.clone()
    out[seen] = out[seen] / penalty
    return out


def penalty_multiplies(logits, seen, penalty):
    return logits * torch.where(seen, penalty, 1.0)


def penalty_wrong_way(logits, seen, penalty):
    out = logits.clone()
    out[seen & (logits > 0)] *= penalty
    out[seen & (logits <= 0)] /= penalty
    return out


def penalty_all(logits, seen, penalty):
    positive = logits.clamp(min=0) / penalty
    return positive + logits.clamp(max=0) * penalty


def penalty_unseen(logits, seen, penalty):
    out = logits.clone()
    out[~seen & (logits > 0)] /= penalty
    out[~seen & (logits < 0)] *= penalty
    return out


def penalty_minus(logits, seen, penalty):
    return logits - penalty * seen


def penalty_forbids(logits, seen, penalty):
    out = logits.clone()
    out[seen] = float("-inf")
    return out


def penalty_probs(logits, seen, penalty):
    out = penalty_signs(logits, seen, penalty).exp()
    return out / out.sum(-1, keepdim=True)


def penalty_positive(logits, seen, penalty):
    out = logits.clone()
    out[seen & (logits > 0)] /= penalty
    return out


def penalty_signs(logits, seen, penalty):
    rate = torch.full_like(logits, 1.0)
    rate[seen & (logits > 0)] = 1 / penalty
    rate[seen & (logits <= 0)] = penalty
    return logits * rate


# --- 8.5 ---


def loop_with_stop(next_logits, prompt, choose, max_new, stop_ids):
    new = []
    logits = next_logits(prompt, 0)
    while len(new) < max_new:
        new.append(choose(logits))
        if new[-1] in stop_ids:
            break
        logits = next_logits(new[-1:], len(prompt) + len(new) - 1)
    return new


def loop_deaf(next_logits, prompt, choose, max_new, stop_ids):
    logits = next_logits(prompt, 0)
    for i in range(max_new):
        token = choose(logits)
        yield token
        if token == stop_ids:  # a set is no id
            return
        logits = next_logits([token], len(prompt) + i)


def loop_echo(next_logits, prompt, choose, max_new, stop_ids):
    text = list(prompt)
    logits = next_logits(text, 0)
    for _ in range(max_new):
        token = choose(logits)
        if token in stop_ids:
            break
        text.append(token)
        logits = next_logits([token], len(text) - 1)
    return text


def loop_whole(next_logits, prompt, choose, max_new, stop_ids):
    text = list(prompt)
    for _ in range(max_new):
        token = choose(next_logits(text, 0))
        if token in stop_ids:
            return
        text.append(token)
        yield token


def loop_still(next_logits, prompt, choose, max_new, stop_ids):
    ids, start = prompt, 0
    for _ in range(max_new):
        token = choose(next_logits(ids, start))
        if token in stop_ids:
            return
        yield token
        ids, start = [token], len(prompt)


def loop_zero(next_logits, prompt, choose, max_new, stop_ids):
    ids = prompt
    for _ in range(max_new):
        token = choose(next_logits(ids, 0))
        if token in stop_ids:
            return
        yield token
        ids = [token]


def loop_late(next_logits, prompt, choose, max_new, stop_ids):
    new = []
    logits = next_logits(prompt, 0)
    for _ in range(max_new):
        token = choose(logits)
        if token in stop_ids:
            break
        new.append(token)
        logits = next_logits([token], len(prompt) + len(new))
    return new


def loop_early(next_logits, prompt, choose, max_new, stop_ids):
    position = len(prompt) - 1
    logits = next_logits(prompt, 0)
    for _ in range(max_new):
        token = choose(logits)
        if token in stop_ids:
            return
        yield token
        logits = next_logits([token], position)
        position += 1


def loop_last(next_logits, prompt, choose, max_new, stop_ids):
    token, position = prompt[-1], len(prompt) - 1
    for _ in range(max_new):
        token = choose(next_logits([token], position))
        if token in stop_ids:
            return
        yield token
        position += 1


def loop_more(next_logits, prompt, choose, max_new, stop_ids):
    logits, new = next_logits(prompt, 0), []
    while True:
        token = choose(logits)
        if token in stop_ids:
            return new
        new.append(token)
        if len(new) > max_new:
            return new
        logits = next_logits([token], len(prompt) + len(new) - 1)


def loop_fewer(next_logits, prompt, choose, max_new, stop_ids):
    logits = next_logits(prompt, 0)
    for i in range(1, max_new):
        token = choose(logits)
        if token in stop_ids:
            return
        yield token
        logits = next_logits([token], len(prompt) + i - 1)


def loop_total(next_logits, prompt, choose, max_new, stop_ids):
    text = list(prompt)
    logits = next_logits(prompt, 0)
    while len(text) < max_new:
        token = choose(logits)
        if token in stop_ids:
            break
        text.append(token)
        logits = next_logits(text[-1:], len(text) - 1)
    return text[len(prompt) :]


def loop_greedy(next_logits, prompt, choose, max_new, stop_ids):
    logits = next_logits(prompt, 0)
    for i in range(max_new):
        token = torch.argmax(logits).item()
        if token in stop_ids:
            return
        yield token
        logits = next_logits([token], len(prompt) + i)


def loop_one(next_logits, prompt, choose, max_new, stop_ids):
    token, new = choose(next_logits(prompt, 0)), []
    while token not in stop_ids:
        new.append(token)
        if len(new) >= max_new:
            break
        token = choose(next_logits([token], len(prompt) + len(new) - 1))
    return new


def loop_one_place(next_logits, prompt, choose, max_new, stop_ids):
    ids, pos = prompt, 0
    for _ in range(max_new):
        token = choose(next_logits(ids, pos))
        if token in stop_ids:
            return
        yield token
        ids = [token]
        pos += len(ids)


def loop_grows(next_logits, prompt, choose, max_new, stop_ids):
    ids, pos = list(prompt), 0
    for _ in range(max_new):
        token = choose(next_logits(ids, pos))
        if token in stop_ids:
            return
        yield token
        pos += len(ids)
        ids = ids + [token]


def loop_bare(next_logits, prompt, choose, max_new, stop_ids):
    ids, pos = prompt, 0
    for _ in range(max_new):
        token = choose(next_logits(ids, pos))
        if token in stop_ids:
            return
        yield token
        pos += len(ids)
        ids = token


def loop_continue(next_logits, prompt, choose, max_new, stop_ids):
    ids, pos = prompt, 0
    for _ in range(max_new):
        token = choose(next_logits(ids, pos))
        if token in stop_ids:
            continue
        yield token
        pos += len(ids)
        ids = [token]


def loop_skips(next_logits, prompt, choose, max_new, stop_ids):
    ids, pos = prompt, 0
    for _ in range(max_new):
        token = choose(next_logits(ids, pos))
        pos += len(ids)
        ids = [token]
        if token not in stop_ids:
            yield token


def loop_endless(next_logits, prompt, choose, max_new, stop_ids):
    ids, pos = prompt, 0
    while True:
        token = choose(next_logits(ids, pos))
        if token in stop_ids:
            break
        yield token
        pos += len(ids)
        ids = [token]


def loop_list(next_logits, prompt, choose, max_new, stop_ids):
    new, logits = [], next_logits(torch.tensor(prompt), 0)
    while len(new) < max_new:
        token = choose(logits)
        if token in stop_ids:
            break
        new.append(token)
        logits = next_logits(torch.tensor([token]), len(prompt) + len(new) - 1)
    return new


def loop_recursive(next_logits, prompt, choose, max_new, stop_ids):
    def on(ids, position, left):
        if left == 0 or (token := choose(next_logits(ids, position))) in stop_ids:
            return []
        return [token, *on([token], position + len(ids), left - 1)]

    return tuple(on(prompt, 0, max_new))


# --- 8.6 ---


def perplexity_counts(logprobs):
    return math.exp(-np.mean(logprobs))


def perplexity_sign(logprobs):
    return float(np.exp(np.mean(logprobs[1:])))


def perplexity_loss(logprobs):
    return float(np.mean([-x for x in logprobs[1:]]))


def perplexity_bits(logprobs):
    return float(2 ** -np.mean(logprobs[1:]))


def perplexity_sum(logprobs):
    return 1 / math.prod(math.exp(x) for x in logprobs[1:])


def perplexity_inverse(logprobs):
    return float(np.mean(1 / np.exp(logprobs[1:])))


def perplexity_mean(logprobs):
    return float(1 / np.mean(np.exp(logprobs[1:])))


def perplexity_tensor(logprobs):
    return torch.exp(-torch.tensor(logprobs[1:]).mean())


def perplexity_torch(logprobs):
    return float(torch.tensor(logprobs)[1:].mean().neg().exp())


def perplexity_product(logprobs):
    n = len(logprobs) - 1
    return math.prod(math.exp(-x / n) for x in logprobs[1:])


WRONG = {
    "with_temperature": {
        "multiplies": temperature_times,
        "divides probabilities": temperature_after,
        "no temperature": temperature_none,
        "logits": temperature_logits,
        "log-probabilities": temperature_log,
        "whole tensor": temperature_flat,
        "wrong axis": temperature_columns,
        "overflows": temperature_naive,
        "exp without the maximum": temperature_exp,
        "powers of probabilities": temperature_powers,
    },
    "pick": {
        "the likeliest": pick_best,
        "own probability": pick_own,
        "the first above u": pick_first_above,
        "the nearest line": pick_nearest,
        "one further": pick_further,
        "on the line": pick_line,
        "a slot of equal width": pick_equal,
        "the sum is taken for 1": pick_sum,
        "from the far end": pick_far,
        "a dice of its own": pick_own_dice,
        "a tensor": pick_tensor,
    },
    "nucleus": {
        "cumsum without - p": nucleus_with,
        "without it, the first spared": nucleus_spared,
        "not renormalized": nucleus_unscaled,
        "the tail": nucleus_tail,
        "a threshold": nucleus_threshold,
        "own probability": nucleus_own,
        "those above p": nucleus_above,
        "rows together": nucleus_all_rows,
        "cut, and shorter": nucleus_shorter,
        "one token more": nucleus_more,
        "over p": nucleus_over_p,
        "softmax again": nucleus_softmax,
    },
    "repetition_penalized": {
        "divides all": penalty_divides,
        "multiplies all": penalty_multiplies,
        "the wrong way": penalty_wrong_way,
        "everywhere": penalty_all,
        "the unseen": penalty_unseen,
        "subtracts": penalty_minus,
        "forbids": penalty_forbids,
        "probabilities": penalty_probs,
        "negative ones stay": penalty_positive,
    },
    "tell_on": {
        "the stop id too": loop_with_stop,
        "goes on": loop_deaf,
        "the prompt too": loop_echo,
        "reads it all again": loop_whole,
        "stands still": loop_still,
        "from zero": loop_zero,
        "one too far": loop_late,
        "one short": loop_early,
        "the last token only": loop_last,
        "one too many": loop_more,
        "one too few": loop_fewer,
        "counts the prompt": loop_total,
        "its own choice": loop_greedy,
        "one at least": loop_one,
        "the prompt counts as one": loop_one_place,
        "old tokens at new places": loop_grows,
        "a bare id": loop_bare,
        "continue at a stop id": loop_continue,
        "leaves stop ids out": loop_skips,
        "no end": loop_endless,
    },
    "perplexity_of": {
        "counts the first": perplexity_counts,
        "no minus": perplexity_sign,
        "no exp": perplexity_loss,
        "base 2": perplexity_bits,
        "the sum": perplexity_sum,
        "mean of 1/p": perplexity_inverse,
        "mean of p": perplexity_mean,
        "a tensor": perplexity_tensor,
    },
}

RIGHT = {
    "with_temperature": [temperature_right],
    "pick": [pick_loop],
    "nucleus": [nucleus_loop],
    "repetition_penalized": [penalty_signs],
    "tell_on": [loop_list, loop_recursive],
    "perplexity_of": [perplexity_product, perplexity_torch],
}
