"""Chapter 03: grouped-query attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from minillama.teach.exercise import Case, Exercise, Mistake


def attention_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    T, h = q.shape
    scores = q @ k.T / h**0.5  # (T, h) @ (h, T) -> (T, T)
    later = torch.ones(T, T, dtype=torch.bool).triu(1)  # keys that come after the query
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return weights @ v  # (T, T) @ (T, h) -> (T, h)


def may_look(positions: torch.Tensor, end: int) -> torch.Tensor:
    return torch.arange(end, device=positions.device) <= positions[..., None]  # (S,) against (..., T, 1)


def repeat_kv_by_hand(x: torch.Tensor, n: int) -> torch.Tensor:
    return x[:, :, None].expand(-1, -1, n, -1, -1).flatten(1, 2)  # (B, K, S, h) -> (B, K, n, S, h) -> (B, K*n, S, h)


def attend(xq: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    n = xq.shape[2] // keys.shape[1]  # H/K query heads share a kv head
    keys, values = keys.repeat_interleave(n, 1), values.repeat_interleave(n, 1)  # (B, K, S, h) -> (B, H, S, h)
    scores = xq.transpose(1, 2) @ keys.transpose(2, 3) / xq.shape[-1] ** 0.5  # (B, H, T, h) @ (B, H, h, S)
    weights = scores.float().masked_fill(~mask, -torch.inf).softmax(-1).type_as(xq)  # (B, H, T, S)
    return (weights @ values).transpose(1, 2)  # (B, H, T, h) -> (B, T, H, h)


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- 3.1


def _by_hand_cases() -> list[Case]:
    q = torch.tensor([[2.0, 0, 0, 0], [0, 2, 0, 0], [2, 2, 0, 0]])
    k = torch.tensor([[2.0, 0, 0, 0], [0, 0, 2, 0], [2, 2, 0, 0]])
    v = torch.tensor([[10.0, 0, 0, 0], [0, 10, 0, 0], [0, 0, 10, 0]])
    return [
        Case("the three tokens above", (q, k, v)),
        Case("five tokens of eight numbers", (_numbers(5, 8), _numbers(5, 8, seed=1), _numbers(5, 8, seed=2))),
        Case("as many tokens as numbers", (_numbers(4, 4), _numbers(4, 4, seed=1), _numbers(4, 4, seed=2))),
        Case("a single token", (_numbers(1, 8), _numbers(1, 8, seed=1), _numbers(1, 8, seed=2))),
        Case(
            "scores of several hundred",
            (40 * _numbers(4, 8, seed=3), 10 * _numbers(4, 8, seed=4), _numbers(4, 8, seed=5)),
        ),
    ]


def _weights(
    q: torch.Tensor, k: torch.Tensor, scale: float | None = None, diagonal: int = 1, axis: int = -1
) -> torch.Tensor:
    """Attention weights (T, T) of one head, right unless told otherwise; diagonal: of the first key that is hidden."""
    scores = q @ k.T * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(torch.ones(scores.shape, dtype=torch.bool).triu(diagonal), -torch.inf).softmax(axis)


def _zeros_hidden(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.T / q.shape[-1] ** 0.5).tril()
    return scores.masked_fill(scores == 0, -torch.inf).softmax(-1) @ v


BY_HAND = Exercise(
    number="3.1",
    hints=(
        "The five steps above, in this order: scores, scale, mask, softmax, mixture of the values.",
        "`q @ k.T` is (T, T): row i has the scores of query i. `later = torch.ones(T, T, dtype=torch.bool).triu(1)` is "
        "True where the key comes after the query.",
        "`scores.masked_fill(later, -torch.inf).softmax(-1)` makes the weights, and `weights @ v` mixes the values.",
    ),
    answer=attention_by_hand,
    expected=lambda q, k, v: F.scaled_dot_product_attention(
        q.double()[None], k.double()[None], v.double()[None], is_causal=True
    )[0].to(q.dtype),
    cases=_by_hand_cases,
    mistakes=[
        Mistake(
            "no scale",
            "The scores are not divided by the root of h, so the softmax is sharper than it should be.",
            lambda q, k, v: _weights(q, k, 1.0) @ v,
        ),
        Mistake(
            "divided by h",
            "You divide the scores by h. It is the root of h: `q.shape[-1] ** 0.5`.",
            lambda q, k, v: _weights(q, k, 1 / q.shape[-1]) @ v,
        ),
        Mistake(
            "root of the example's h",
            "You divide by 2, the root of the example's h, and other vectors are longer or shorter: "
            "`q.shape[-1] ** 0.5`.",
            lambda q, k, v: _weights(q, k, 0.5) @ v,
        ),
        Mistake(
            "the example's size",
            "Right for the three tokens above, and for no other number: a 3 is written into your function. Take "
            "`T, h = q.shape`.",
            sees=lambda attempt: (
                0 not in attempt.failed and all("(3" in str(attempt.outcomes[i].error) for i in attempt.failed)
            ),
        ),
        Mistake(
            "root of T",
            "You divide by the root of the number of tokens. The sum in a score runs over the h numbers of a vector: "
            "`q.shape[-1]`, not `q.shape[0]`.",
            lambda q, k, v: _weights(q, k, q.shape[0] ** -0.5) @ v,
        ),
        Mistake(
            "no mask",
            "The first token sees the others, and they come after it: the mask is missing, or has no effect "
            "(`masked_fill` changes nothing in place: it returns a new tensor).",
            lambda q, k, v: _weights(q, k, diagonal=10**6) @ v,
        ),
        Mistake(
            "mask backwards",
            "Your tokens see themselves and what comes after. It is the other way round: hide what lies above the "
            "diagonal, `triu(1)`.",
            lambda q, k, v: (
                (q @ k.T / q.shape[-1] ** 0.5)
                .masked_fill(torch.ones(len(q), len(q), dtype=torch.bool).tril(-1), -torch.inf)
                .softmax(-1)
                @ v
            ),
        ),
        Mistake(
            "hides itself",
            "A token does not see itself, and the first one sees nothing at all: 0/0, which is nan. The diagonal stays "
            "visible: `triu(1)`, not `triu(0)`.",
            lambda q, k, v: _weights(q, k, diagonal=0) @ v,
        ),
        Mistake(
            "zero for hidden",
            "You put 0 where a score is hidden. 0 is a score like any other, and e to the 0 is 1; put -inf, whose "
            "exponential is 0.",
            lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).tril().softmax(-1) @ v,
        ),
        Mistake(
            "0 times inf",
            "Everything is nan: 0 · -inf is nan, so a mask of ones and zeros cannot be multiplied by -inf. Fill the "
            "places that are hidden, and no others: `scores.masked_fill(later, -torch.inf)`.",
            lambda q, k, v: torch.full_like(v, torch.nan),
        ),
        Mistake(
            "0 taken for hidden",
            "You hide every score that is 0, and a score can be 0 without being hidden: the second of the three tokens "
            "above has two of them. Hide by place, not by value: `triu(1)`.",
            _zeros_hidden,
        ),
        Mistake(
            "mask after softmax",
            "You hide after the softmax, so what later tokens were given is lost and a row no longer sums to 1. Hide "
            "before: -inf among the scores.",
            lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1).tril() @ v,
        ),
        Mistake(
            "softmax down the columns",
            "Your softmax runs down the columns, over the queries. Each query shares out its own attention: the last "
            "axis, `softmax(-1)`.",
            lambda q, k, v: _weights(q, k, axis=0) @ v,
        ),
        Mistake(
            "no softmax",
            "You mix the values by the bare scores, which need not sum to 1 and may be negative: a softmax is missing.",
            lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).tril() @ v,
        ),
        Mistake(
            "keys ask",
            "Your row i belongs to key i: you computed `k @ q.T`. Queries ask: `q @ k.T`.",
            lambda q, k, v: _weights(k, q) @ v,
        ),
        Mistake(
            "weights only",
            "These are the weights, (T, T). They still have to mix the values: `weights @ v`.",
            lambda q, k, v: _weights(q, k),
        ),
        Mistake(
            "mixes the keys",
            "You mix the keys. They are for being found; what is handed over are the values, `weights @ v`.",
            lambda q, k, v: _weights(q, k) @ k,
        ),
        Mistake(
            "exp overflows",
            "With scores of several hundred the exponential is inf, and inf/inf is nan. `softmax` takes the largest "
            "score of the row away first, which changes nothing and keeps the numbers small.",
            lambda q, k, v: _bare_softmax((q @ k.T / q.shape[-1] ** 0.5).tril(), q) @ v,
        ),
    ],
)


def _bare_softmax(scores: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    e = scores.exp() * torch.ones(len(q), len(q)).tril()
    return e / e.sum(-1, keepdim=True)


# ---- 3.2


def _look_cases() -> list[Case]:
    return [
        Case("four tokens from the start", (torch.arange(4), 4)),
        Case("three tokens after four others", (torch.tensor([4, 5, 6]), 7)),
        Case("one token after five others", (torch.tensor([5]), 6)),
        Case("two tokens, and slots beyond them", (torch.tensor([2, 3]), 8)),
        Case("two rows at different places", (torch.tensor([[4, 5], [1, 2]]), 6)),
        Case("three rows of one token", (torch.tensor([[0], [3], [1]]), 4)),
    ]


def _looked(positions: torch.Tensor, end: int) -> torch.Tensor:
    """By the meaning of it, one query and one key at a time."""
    rows = [[key <= int(place) for key in range(end)] for place in positions.flatten()]
    return torch.tensor(rows).view(*positions.shape, end)


def _triangle(positions: torch.Tensor, end: int, diagonal: int, whole: bool) -> torch.Tensor:
    """A triangle for each text, or (not `whole`) one for all."""
    T = positions.shape[-1]
    one = torch.ones(T, end, dtype=torch.bool).tril(diagonal)
    return one.expand(*positions.shape, end) if whole else one


def _triangles(name: str, says: str, diagonal: Callable[[torch.Tensor, int], int]) -> list[Mistake]:
    def wrong(whole: bool) -> Callable[[torch.Tensor, int], torch.Tensor]:
        return lambda positions, end: _triangle(positions, end, diagonal(positions, end), whole)

    return [Mistake(name, says, wrong(whole)) for whole in (True, False)]


MAY_LOOK = Exercise(
    number="3.2",
    hints=(
        "A key stands at one of the positions 0 to end - 1. Compare each with the position of each query.",
        "`torch.arange(end)` are the keys' positions. To compare every query with every key, give the queries one more "
        "axis: `positions[..., None]`.",
        "A query may look at keys that stand where it stands, or before: `<=`.",
    ),
    answer=may_look,
    expected=_looked,
    cases=_look_cases,
    mistakes=[
        Mistake(
            "hides itself",
            "A token may look at itself: `<=`, not `<`. As it is, the first token sees nothing. (Or do your keys start "
            "at position 1? They start at 0.)",
            lambda positions, end: torch.arange(end) < positions[..., None],
        ),
        Mistake(
            "backwards",
            "Yours looks at itself and what comes after. Keys at or *before* the query are what it may see.",
            lambda positions, end: torch.arange(end) >= positions[..., None],
        ),
        Mistake(
            "true means hidden",
            "Yours is True where a key is hidden. Here (and in `scaled_dot_product_attention`) True means: may look.",
            lambda positions, end: torch.arange(end) > positions[..., None],
        ),
        *_triangles(
            "ignores positions",
            "You drew a triangle that begins at slot 0, whatever `positions` says. The first of three tokens after "
            "four others stands at 4 and sees 0 to 4.",
            lambda positions, end: 0,
        ),
        *_triangles(
            "counts from the end",
            "You assume that the last query stands at the last slot. There can be slots beyond it, and rows at "
            "different places: compare with `positions`.",
            lambda positions, end: end - positions.shape[-1],
        ),
        *_triangles(
            "starts at the first position",
            "You count on from the first position of the first row. Each row has its own: compare with `positions` "
            "itself.",
            lambda positions, end: int(positions.flatten()[0]),
        ),
        Mistake(
            "transposed",
            "Keys and queries have changed places: row i is a query, column j a key. The queries get the new axis, "
            "`positions[..., None]`.",
            lambda positions, end: (torch.arange(end) <= positions[..., None]).transpose(-1, -2),
        ),
        Mistake(
            "numbers to add",
            "You made a mask of 0 and -inf, to be added to the scores. That works too; here True and False are wanted.",
            lambda positions, end: torch.zeros(*positions.shape, end).masked_fill(
                torch.arange(end) > positions[..., None], -torch.inf
            ),
        ),
        Mistake(
            "ones and zeros",
            "Right, but in numbers: as a mask, 1 and 0 would be *added* to the scores. Leave the comparison as it is, "
            "True and False.",
            lambda positions, end: (torch.arange(end) <= positions[..., None]).float(),
        ),
        Mistake(
            "ones and zeros",
            "Right, but in numbers: as a mask, 1 and 0 would be *added* to the scores. Leave the comparison as it is, "
            "True and False.",
            lambda positions, end: (torch.arange(end) <= positions[..., None]).long(),
        ),
        Mistake(
            "no axis for the keys",
            "Key j was compared with query j alone. Every key is to be compared with every query: give the queries one "
            "more axis, `positions[..., None]`.",
            lambda positions, end: torch.arange(end) <= positions,
        ),
        Mistake(
            "one row of positions",
            "Right while positions is (T,). Where texts are at different places it is (B, T): count the new axis from "
            "the back, `positions[..., None]`, and both fit.",
            sees=lambda attempt: all(attempt.cases[i].args[0].dim() == 2 for i in attempt.failed),
        ),
    ],
)


# ---- 3.3


def _repeat_cases() -> list[Case]:
    letters = torch.tensor([10.0, 20.0]).view(1, 2, 1, 1)
    return [
        Case("kv heads of one number, 10 and 20, for four query heads", (letters, 2)),
        Case("two texts, three kv heads, four tokens", (_numbers(2, 3, 4, 5), 2)),
        Case("one kv head for all", (_numbers(2, 1, 3, 4), 4)),
        Case("a kv head for each", (_numbers(1, 4, 3, 2), 1)),
        Case("as many tokens as kv heads", (_numbers(1, 3, 3, 2), 3)),
    ]


REPEAT = Exercise(
    number="3.3",
    hints=(
        "For kv heads a, b and n = 2 the order is a, a, b, b: query head i reads kv head i // n.",
        "Which heads are wanted, as numbers? `torch.arange(K * n) // n`. A tensor can be indexed by that.",
        "torch has it as one call: `x.repeat_interleave(n, dim=1)`; dimension 1 is that of the heads.",
    ),
    answer=repeat_kv_by_hand,
    expected=lambda x, n: torch.repeat_interleave(x, n, dim=1),
    cases=_repeat_cases,
    mistakes=[
        Mistake(
            "tiled",
            "You tiled: a, b, a, b. Then query head 1 reads kv head 1, and it was trained with kv head 0. "
            "Interleave: a, a, b, b.",
            lambda x, n: x.repeat(1, n, 1, 1),
        ),
        Mistake(
            "divided by K",
            "You divide by K, the number of kv heads. It is n query heads that share one: `torch.arange(K * n) // n`.",
            lambda x, n: x[:, torch.arange(x.shape[1] * n) // x.shape[1]],
        ),
        Mistake(
            "remainder by n",
            "You take the remainder, `% n`, which leads through the kv heads again and again. Neighbours share: the "
            "whole part, `// n`.",
            lambda x, n: x[:, torch.arange(x.shape[1] * n) % n],
        ),
        Mistake(
            "repeats the tokens",
            "You repeated the tokens. The axes are (B, K, S, h), and the heads are dimension 1.",
            lambda x, n: x.repeat_interleave(n, dim=2),
        ),
        Mistake(
            "repeats the batch",
            "You repeated whole texts. Dimension 0 is the batch; the heads are dimension 1.",
            lambda x, n: x.repeat_interleave(n, dim=0),
        ),
        Mistake(
            "repeats the numbers",
            "You repeated the numbers inside each vector. The last axis is h; the heads are dimension 1.",
            lambda x, n: x.repeat_interleave(n, dim=-1),
        ),
        Mistake(
            "an axis too many",
            "The order is right, but the copies still have an axis of their own, (B, K, n, S, h). `flatten(1, 2)` "
            "joins it to the heads.",
            lambda x, n: x[:, :, None].expand(-1, -1, n, -1, -1),
        ),
        Mistake(
            "heads behind tokens",
            "The heads come out behind the tokens, (B, S, K*n, h). They go in as (B, K, S, h), and come out so.",
            lambda x, n: x.repeat_interleave(n, dim=1).transpose(1, 2),
        ),
        Mistake(
            "reshaped",
            "The shape is right, but the copies got into the wrong places: the axis for them was not next to the heads "
            "when they were joined. It belongs behind them, `x[:, :, None]`.",
            lambda x, n: x[:, :, :, None].expand(-1, -1, -1, n, -1).reshape(x.shape[0], -1, *x.shape[2:]),
        ),
        Mistake("unchanged", "x came back as it was: nothing is repeated yet.", lambda x, n: x),
    ],
)


# ---- 3.4


def _attend_case(
    about: str,
    B: int,
    T: int,
    S: int,
    H: int,
    K: int,
    h: int = 4,
    rows: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Case:
    seed = 7 * H + T
    positions = torch.arange(S - T, S)
    if rows:  # every row one place further back, and a slot beyond the first
        positions = positions - 1 - torch.arange(B)[:, None]
    mask = torch.arange(S) <= positions[..., None]
    xq = 2 * _numbers(B, T, H, h, seed=seed)
    keys, values = _numbers(B, K, S, h, seed=seed + 1), _numbers(B, K, S, h, seed=seed + 2)
    return Case(about, (xq.to(dtype), keys.to(dtype), values.to(dtype), mask.view(-1, 1, T, S)))


def _attend_cases() -> list[Case]:
    return [
        _attend_case("one head, three tokens", 1, 3, 3, 1, 1),
        _attend_case("two texts, a kv head for each query head", 2, 5, 5, 4, 4),
        _attend_case("four query heads on two kv heads", 2, 5, 5, 4, 2),
        _attend_case("six query heads on three kv heads", 1, 4, 4, 6, 3),
        _attend_case("four query heads on one kv head", 2, 3, 3, 4, 1),
        _attend_case("as many tokens as heads", 1, 4, 4, 4, 2),
        _attend_case("three tokens after four others", 1, 3, 7, 4, 2),
        _attend_case("one token after five others", 2, 1, 6, 4, 2),
        _attend_case("two rows at different places", 2, 3, 7, 4, 2, rows=True),
        _attend_case("bf16", 1, 5, 5, 4, 2, h=8, dtype=torch.bfloat16),
    ]


def _attended(
    xq: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None = None,
    tile: bool = False,
    axis: int = -1,
) -> torch.Tensor:
    """(B, H, T, h), right unless told otherwise."""
    weights = _attention_weights(xq, keys, mask, scale, tile, axis)
    return weights.type_as(xq) @ _spread(values, xq.shape[2], tile)


def _spread(x: torch.Tensor, H: int, tile: bool = False) -> torch.Tensor:
    n = H // x.shape[1]
    return x.repeat(1, n, 1, 1) if tile else x.repeat_interleave(n, 1)


def _attention_weights(
    xq: torch.Tensor,
    keys: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None = None,
    tile: bool = False,
    axis: int = -1,
) -> torch.Tensor:
    scores = _scores(xq, keys, tile) * (xq.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~mask, -torch.inf).softmax(axis)


def _scores(xq: torch.Tensor, keys: torch.Tensor, tile: bool = False) -> torch.Tensor:
    return (xq.transpose(1, 2) @ _spread(keys, xq.shape[2], tile).transpose(2, 3)).float()  # (B, H, T, S)


def _copies(n: int) -> Callable[..., torch.Tensor]:
    """Attention in which every kv head is repeated n times."""

    def wrong(xq: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        keys, values = keys.repeat_interleave(n, 1), values.repeat_interleave(n, 1)
        scores = (xq.transpose(1, 2) @ keys.transpose(2, 3)).float() * xq.shape[-1] ** -0.5
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return _back(weights.type_as(xq) @ values)

    return wrong


def _has_older(case: Case) -> bool:
    """Whether there are keys of tokens that are not among the queries."""
    xq, keys = case.args[:2]
    return bool(keys.shape[2] > xq.shape[1])


def _back(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2)


ATTEND = Exercise(
    number="3.4",
    hints=(
        "It is attention_by_hand with two more axes in front, B and H. `@` multiplies the last two axes and leaves the "
        "others alone, so bring the heads to the front first: (B, T, H, h) -> (B, H, T, h).",
        "Give every query head its kv head: `keys.repeat_interleave(H // K, 1)`, and the values likewise. Where the "
        "mask is False the score becomes -inf: `scores.masked_fill(~mask, -torch.inf)`.",
        "The result of `weights @ values` is (B, H, T, h), and (B, T, H, h) is wanted: `.transpose(1, 2)` once more. "
        "Not `reshape`: that would not move a single number.",
    ),
    answer=attend,
    expected=lambda xq, keys, values, mask: (
        F.scaled_dot_product_attention(
            xq.double().transpose(1, 2),
            keys.double().repeat_interleave(xq.shape[2] // keys.shape[1], 1),
            values.double().repeat_interleave(xq.shape[2] // keys.shape[1], 1),
            attn_mask=mask,
        )
        .transpose(1, 2)
        .to(xq.dtype)
    ),
    cases=_attend_cases,
    mistakes=[
        Mistake(
            "tiled",
            "Your query heads read the kv heads in turn: 0, 1, 0, 1. Neighbours share: 0, 0, 1, 1, "
            "`repeat_interleave`. (`repeat` tiles.)",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, mask, tile=True)),
        ),
        Mistake(
            "first kv head only",
            "Every query head reads kv head 0. Query head i has kv head i // (H/K).",
            lambda xq, k, v, mask: _back(_attended(xq, k[:, :1], v[:, :1], mask)),
        ),
        Mistake(
            "heads do not fit",
            "It works where every query head has a kv head of its own, and stops where they are shared: keys and "
            "values need `H` heads each, every kv head `H/K` times, on dimension 1.",
            sees=lambda attempt: (
                all(isinstance(attempt.outcomes[i].error, (RuntimeError, IndexError)) for i in attempt.failed)
                and 1 not in attempt.failed
                and {2, 3} <= set(attempt.failed)
            ),
        ),
        *(
            Mistake(
                "a fixed number of copies",
                "Each kv head is written down a fixed number of times in your function. It is `H/K` times: "
                "`xq.shape[2] // keys.shape[1]`.",
                _copies(n),
            )
            for n in (2, 4)
        ),
        Mistake(
            "no scale",
            "The scores are not divided by the root of h.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, mask, 1.0)),
        ),
        Mistake(
            "divided by h",
            "You divide the scores by h. It is the root of h.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, mask, 1 / xq.shape[-1])),
        ),
        Mistake(
            "root of the demo's h",
            "You divide by the root of 24, the demo model's h. Take it from the queries: `xq.shape[-1] ** 0.5`.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, mask, 24**-0.5)),
        ),
        Mistake(
            "root of D",
            "You divide by the root of H*h, the width of all heads together. A score is a sum over the h numbers of "
            "one head.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, mask, (xq.shape[-1] * xq.shape[-2]) ** -0.5)),
        ),
        Mistake(
            "no mask",
            "The mask is not used: tokens see what comes after them.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, torch.ones_like(mask))),
        ),
        Mistake(
            "mask upside down",
            "You hide what may be seen. `mask` is True where a query may look, so the scores to hide are those at "
            "`~mask`.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, ~mask)),
        ),
        Mistake(
            "mask added",
            "You added `mask` to the scores: True counts as 1, False as 0, and nothing is hidden. Put -inf where it is "
            "False.",
            lambda xq, k, v, mask: _back(
                (_scores(xq, k) * xq.shape[-1] ** -0.5 + mask).softmax(-1).type_as(xq) @ _spread(v, xq.shape[2])
            ),
        ),
        Mistake(
            "mask after softmax",
            "You hide after the softmax, so a row no longer sums to 1. Put -inf among the scores, before it.",
            lambda xq, k, v, mask: _back(
                ((_scores(xq, k) * xq.shape[-1] ** -0.5).softmax(-1) * mask).type_as(xq) @ _spread(v, xq.shape[2])
            ),
        ),
        Mistake(
            "triangle of its own",
            "You hide what lies above the diagonal and do not look at `mask`. With older tokens in `keys`, or rows at "
            "different places, the diagonal is somewhere else.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, torch.ones_like(mask).tril())),
        ),
        Mistake(
            "triangle of its own",
            "You hide what lies above the diagonal and do not look at `mask`. With older tokens in `keys`, or rows at "
            "different places, the diagonal is somewhere else.",
            sees=lambda attempt: all(
                "must match the size" in str(attempt.outcomes[i].error) and _has_older(attempt.cases[i])
                for i in attempt.failed
            ),
        ),
        Mistake(
            "triangle at the end",
            "You draw the triangle so that it ends at the last key, and do not look at `mask`. Rows can stand at "
            "different places, with keys beyond them that nobody may see: each has a mask of its own.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, torch.ones_like(mask).tril(k.shape[2] - xq.shape[1]))),
        ),
        Mistake(
            "first row's mask",
            "You use the mask of the first row for all. It is (B, 1, T, S) where rows stand at different places; it "
            "broadcasts by itself.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, mask[:1])),
        ),
        Mistake(
            "softmax over the queries",
            "Your softmax runs over the queries. Each query shares out its own attention over the keys, the last axis.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, mask, axis=-2)),
        ),
        Mistake(
            "softmax over the heads",
            "Your softmax runs over the heads. Each head has its own, over the keys: the last axis.",
            lambda xq, k, v, mask: _back(_attended(xq, k, v, mask, axis=1)),
        ),
        Mistake(
            "no softmax",
            "You mix the values by the bare scores: the softmax is missing.",
            lambda xq, k, v, mask: _back(
                (_scores(xq, k) * xq.shape[-1] ** -0.5 * mask).type_as(xq) @ _spread(v, xq.shape[2])
            ),
        ),
        Mistake(
            "heads left in front",
            "The numbers are right, but they come as (B, H, T, h). Tokens go before heads: `.transpose(1, 2)`.",
            lambda xq, k, v, mask: _attended(xq, k, v, mask),
        ),
        Mistake(
            "reshaped at the end",
            "You got from (B, H, T, h) to (B, T, H, h) with `reshape` or `view`. That relabels the numbers and moves "
            "none, so heads and tokens are mixed up: `.transpose(1, 2)`.",
            lambda xq, k, v, mask: _attended(xq, k, v, mask).reshape(xq.shape),
        ),
        Mistake(
            "reshaped at the start",
            "You got from (B, T, H, h) to (B, H, T, h) with `reshape` or `view`. That relabels the numbers and moves "
            "none, so heads and tokens are mixed up: `.transpose(1, 2)`.",
            lambda xq, k, v, mask: _back(_attended(xq.reshape(_back(xq).shape).transpose(1, 2), k, v, mask)),
        ),
        Mistake(
            "reshaped both ways",
            "You swap heads and tokens with `reshape` or `view`, on the way in and on the way out. That relabels the "
            "numbers and moves none, so heads and tokens are mixed up: `.transpose(1, 2)`, both times.",
            lambda xq, k, v, mask: _attended(xq.reshape(_back(xq).shape).transpose(1, 2), k, v, mask).reshape(xq.shape),
        ),
        Mistake(
            "mixes the keys",
            "You mix the keys. What is handed over are the values.",
            lambda xq, k, v, mask: _back(_attended(xq, k, k, mask)),
        ),
        Mistake(
            "stays in fp32",
            "The numbers are right, but bf16 comes back as fp32. The model goes on in the dtype of xq: `.type_as(xq)`.",
            lambda xq, k, v, mask: _back(_attended(xq.float(), k.float(), v.float(), mask)),
        ),
    ],
)


EXERCISES = [BY_HAND, MAY_LOOK, REPEAT, ATTEND]
