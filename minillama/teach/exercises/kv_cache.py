"""Chapter 04: the KV cache."""

from __future__ import annotations

import itertools
import re
from typing import Any

import torch

from minillama.teach.exercise import Attempt, Case, Exercise, Function, Mistake
from minillama.teach.slots import blame

Both = tuple[torch.Tensor, torch.Tensor]


def recomputed_tokens(prompt: int, new: int) -> int:
    without_cache = sum(prompt + step for step in range(new))
    with_cache = prompt + new - 1  # the last token is never read
    return without_cache - with_cache


def remember(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if positions.dim() == 1:
        keys[:, :, positions] = xk.transpose(1, 2)  # (B, T, K, h) -> (B, K, T, h)
        values[:, :, positions] = xv.transpose(1, 2)
    else:
        rows = torch.arange(len(positions))[:, None]  # (B, 1), beside positions (B, T)
        keys[rows, :, positions] = xk  # (B, T, K, h)
        values[rows, :, positions] = xv
    return keys, values


def chunk_mask(start: int, T: int) -> torch.Tensor:
    past = torch.ones(T, start, dtype=torch.bool)
    new = torch.ones(T, T, dtype=torch.bool).tril()
    return torch.hstack([past, new])  # (T, start + T)


def cache_bytes(
    n_layers: int, batch_size: int, max_len: int, n_kv_heads: int, head_dim: int, bytes_of_a_number: int
) -> int:
    return 2 * n_layers * batch_size * max_len * n_kv_heads * head_dim * bytes_of_a_number


def _repeated(prompt: int, new: int) -> int:
    """Walk through the steps with a set of what was read already."""
    known: set[int] = set()
    again = 0
    for step in range(new):
        text = range(prompt + step)
        again += sum(place in known for place in text)
        known.update(text)
    return again


RECOMPUTED_TOKENS = Exercise(
    number="4.1",
    hints=(
        "Take prompt = 3, new = 4 and write down what each of the four passes reads: 3, then 4, then ... Add them up.",
        "How many tokens have to be read once? The prompt, and every new token that another one follows. The last new "
        "token is never read.",
        "What is read in all, `sum(prompt + step for step in range(new))`, less what has to be read once, "
        "`prompt + new - 1`.",
    ),
    answer=recomputed_tokens,
    expected=_repeated,
    cases=lambda: [
        Case("a prompt of 3 and 4 new tokens", (3, 4)),
        Case("one new token: nothing is read twice", (5, 1)),
        Case("a prompt of 16 and 100 new tokens", (16, 100)),
        Case("a prompt of 7 and 50 new tokens", (7, 50)),
    ],
    mistakes=[
        Mistake(
            "all that is read",
            "That is everything the model reads. The first time a token is read is not a repetition: with a cache, "
            "prompt + new - 1 of those readings are still there.",
            lambda prompt, new: new * prompt + new * (new - 1) // 2,
        ),
        Mistake(
            "what a cache reads",
            "That is what is read with a cache. Asked is what is done again without one: all that is read, less this.",
            lambda prompt, new: prompt + new - 1,
        ),
        Mistake(
            "only the prompt is new",
            "You left out the first reading of the prompt only. Each new token is read for a first time too, all but "
            "the last one.",
            lambda prompt, new: new * prompt + new * (new - 1) // 2 - prompt,
        ),
        Mistake(
            "the last token is read",
            "You took off prompt + new first readings. The last new token is handed out and never read: it is "
            "prompt + new - 1.",
            lambda prompt, new: new * prompt + new * (new - 1) // 2 - prompt - new,
        ),
        Mistake(
            "the text does not grow",
            "You count the prompt again at every step. The text grows: step i reads the i tokens that were added, too.",
            lambda prompt, new: (new - 1) * prompt,
        ),
        Mistake(
            "the prompt at every pass",
            "You count the prompt, once for each pass. The first of these readings is no repetition, and the text "
            "grows: step i reads the i tokens that were added, too.",
            lambda prompt, new: new * prompt,
        ),
        Mistake(
            "without the prompt",
            "You count the new tokens only. The prompt is read again at every step as well.",
            lambda prompt, new: (new - 1) * (new - 2) // 2,
        ),
        Mistake(
            "without the prompt",
            "You count the new tokens only. The prompt is read again at every step as well.",
            lambda prompt, new: new * (new - 1) // 2,
        ),
        Mistake(
            "full length at once",
            "You let every pass read prompt + new tokens. The text has that length only at the end; step i reads "
            "prompt + i.",
            lambda prompt, new: new * (prompt + new) - (prompt + new - 1),
        ),
        Mistake(
            "not whole",
            "The number is right, but it is a float: tokens are counted in whole numbers. `//` divides without one.",
            lambda prompt, new: (new - 1) * prompt + (new - 1) * (new - 2) / 2,
        ),
    ],
)


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _full(B: int, K: int, S: int, h: int, seed: int = 50) -> Both:
    """Slots with something in them: what a request or a filler left there."""
    return _numbers(B, K, S, h, seed=seed), _numbers(B, K, S, h, seed=seed + 1)


def _new(B: int, T: int, K: int, h: int, seed: int = 60) -> Both:
    return _numbers(B, T, K, h, seed=seed), _numbers(B, T, K, h, seed=seed + 1)


def _empty(B: int, K: int, S: int, h: int) -> Both:
    return torch.zeros(B, K, S, h), torch.zeros(B, K, S, h)


def _remember_cases() -> list[Case]:
    at = torch.tensor
    half = [x.bfloat16() for x in (*_full(2, 2, 6, 4), *_new(2, 1, 2, 4))]
    return [
        Case("a prompt of three tokens into empty slots", (*_empty(1, 2, 6, 2), *_new(1, 3, 2, 2), at([0, 1, 2]))),
        Case("one token at position 4", (*_full(1, 2, 6, 2), *_new(1, 1, 2, 2), at([4]))),
        Case("two rows, a chunk of three at 2, 3, 4", (*_full(2, 2, 7, 3), *_new(2, 3, 2, 3, seed=70), at([2, 3, 4]))),
        Case("as many tokens as kv heads", (*_full(2, 3, 7, 2), *_new(2, 3, 3, 2, seed=71), at([3, 4, 5]))),
        Case("bf16", (*half, at([2]))),
        Case("two rows at positions 2 and 4", (*_full(2, 3, 6, 2), *_new(2, 1, 3, 2, seed=72), at([[2], [4]]))),
        Case("three rows at 4, 1 and 3", (*_full(3, 2, 7, 2), *_new(3, 1, 2, 2, seed=73), at([[4], [1], [3]]))),
        Case(
            "three rows, each with two tokens of its own",
            (*_full(3, 2, 7, 2), *_new(3, 2, 2, 2, seed=74), at([[1, 2], [4, 5], [2, 3]])),
        ),
    ]


def _by_hand(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    """One vector at a time."""
    B, T, K, _ = xk.shape
    for b, t, k in itertools.product(range(B), range(T), range(K)):
        slot = int(positions[t] if positions.dim() == 1 else positions[b, t])
        keys[b, k, slot] = xk[b, t, k]
        values[b, k, slot] = xv[b, t, k]
    return keys, values


def _slots(keys: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row, and slot of each new token, (B, T) both, and all heads."""
    B = keys.shape[0]
    rows = torch.arange(B)[:, None]
    return rows, positions.expand(B, -1) if positions.dim() == 1 else positions, keys


def _put(keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor) -> Both:
    rows, slots, _ = _slots(keys, positions)
    keys[rows, :, slots] = xk
    values[rows, :, slots] = xv
    return keys, values


def _one_late(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return _put(keys, values, xk, xv, positions + 1)


def _from_zero(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return _put(keys, values, xk, xv, torch.arange(xk.shape[1]))


def _first_rows_places(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return _put(keys, values, xk, xv, positions if positions.dim() == 1 else positions[0])


def _longest_rows_places(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return _put(keys, values, xk, xv, positions if positions.dim() == 1 else positions.amax(0))


def _keys_and_values_changed(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return _put(keys, values, xv, xk, positions)


def _scrambled(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    B, T, K, h = xk.shape
    xk, xv = (x.reshape(B, K, T, h).transpose(1, 2) for x in (xk, xv))
    return _put(keys, values, xk, xv, positions)


def _xk_in_both(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return _put(keys, values, xk, xk, positions)


def _values_first(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    _put(keys, values, xk, xv, positions)
    return values, keys


def _only_keys_back(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    return _put(keys, values, xk, xv, positions)[0]


def _unwritten(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return keys, values


def _where(dim: int, wrong: Function) -> Function:
    """`wrong` where `positions` has `dim` axes, and right elsewhere."""

    def sometimes(
        keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
    ) -> Any:
        return (wrong if positions.dim() == dim else _put)(keys, values, xk, xv, positions)

    return sometimes


def _new_alone(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    _put(keys, values, xk, xv, positions)
    return xk.transpose(1, 2), xv.transpose(1, 2)


def _nothing(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> None:
    _put(keys, values, xk, xv, positions)


def _into_a_copy(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return _put(keys.clone(), values.clone(), xk, xv, positions)


def _added(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    rows, slots, _ = _slots(keys, positions)
    keys[rows, :, slots] += xk
    values[rows, :, slots] += xv
    return keys, values


def _grown(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    return torch.cat([keys, xk.transpose(1, 2)], 2), torch.cat([values, xv.transpose(1, 2)], 2)


def _keys_only(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    _put(keys, values.clone(), xk, xv, positions)
    return keys, values


def _only_so_far(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    _put(keys, values, xk, xv, positions)
    end = int(positions.max()) + 1
    return keys[:, :, :end], values[:, :, :end]


def _ragged(attempt: Attempt) -> list[int]:
    return [i for i, case in enumerate(attempt.cases) if case.args[4].dim() == 2]


def _stops_where_ragged(attempt: Attempt) -> bool:
    return attempt.failed == _ragged(attempt) and all(attempt.outcomes[i].error for i in attempt.failed)


def _stops_where_level(attempt: Attempt) -> bool:
    """Complaints about shapes or places, from level cases alone, and not because `index_copy_` is used wrongly."""
    if set(attempt.failed) & set(_ragged(attempt)):
        return False
    words = ("index", "indices", "shape", "size", "unpack", "expand")
    for i in attempt.failed:
        error = attempt.outcomes[i].error
        if error is None or not any(word in str(error) for word in words):
            return False
        at = blame(error, attempt.function)
        if "index_copy" in at and "positions[" not in at:
            return False
    return True


def _stops_untransposed(attempt: Attempt) -> bool:
    """A complaint about shapes from every level case, save where there are as many tokens as heads."""
    for case, outcome in zip(attempt.cases, attempt.outcomes):
        xk, positions = case.args[2], case.args[4]
        if positions.dim() == 1 and xk.shape[1] != xk.shape[2]:
            if not any(word in str(outcome.error) for word in ("shape", "size")):
                return False
    return True


def _transposed_where_ragged(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    if positions.dim() == 2:
        xk, xv = xk.transpose(1, 2), xv.transpose(1, 2)
    return _put(keys, values, xk, xv, positions)


def _rows_as_they_are(
    keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
) -> Both:
    for b in range(len(keys)):
        keys[b, :, positions[b]] = xk[b]
        values[b, :, positions[b]] = xv[b]
    return keys, values


def _axes_mixed_where_ragged(attempt: Attempt) -> bool:
    wrong = Mistake("transposed", "", _transposed_where_ragged)
    return REMEMBER._explains(wrong, attempt) == len(_ragged(attempt)) == len(attempt.failed)


def _four_axes_at_once(attempt: Attempt) -> bool:
    """Whether a complaint is of all rows together, and not of one in a loop."""
    return any(re.search(r"\[\d+(, \d+){3}\]", str(outcome.error)) for outcome in attempt.outcomes)


def _transposed_once_too_often(attempt: Attempt) -> bool:
    return _axes_mixed_where_ragged(attempt) and _four_axes_at_once(attempt)


def _row_not_transposed(attempt: Attempt) -> bool:
    return _axes_mixed_where_ragged(attempt) and not _four_axes_at_once(attempt)


REMEMBER = Exercise(
    number="4.3",
    hints=(
        "First the rows that are level, `positions` `(T,)`: `keys[:, :, positions]` is `(B, K, T, h)`, and can be "
        "assigned to. xk is `(B, T, K, h)`: which two axes have to change places?",
        "Where `positions` is `(B, T)`, every row has places of its own. A loop over rows would do, each row level in "
        "itself. Return `keys, values`, all their slots, at the end.",
        "Without a loop: `rows = torch.arange(B)[:, None]`, and `keys[rows, :, positions]` is `(B, T, K, h)`, in the "
        "order of xk.",
    ),
    answer=remember,
    expected=_by_hand,
    cases=_remember_cases,
    in_place=True,
    mistakes=[
        Mistake(
            "from slot 0",
            "Every chunk is written from slot 0 on, over what was there. The slot of a token is its position: use "
            "`positions`.",
            _from_zero,
        ),
        Mistake(
            "one late",
            "Everything stands one slot too far to the right. The slot is the position itself, and the first is 0.",
            _one_late,
        ),
        Mistake(
            "first row's places",
            "Every row is written where the first one is. With `positions` `(B, T)` each row has places of its own.",
            _first_rows_places,
        ),
        Mistake(
            "longest row's places",
            "Every row is written where the longest one is. With `positions` `(B, T)` each row has places of its own.",
            _longest_rows_places,
        ),
        Mistake(
            "stops where rows differ",
            "Level rows are right; with `positions` `(B, T)` it stops. `keys[:, :, positions]` takes all rows at the "
            "places of all rows. Each row needs its own: a loop over rows, or `keys[rows, :, positions]`.",
            sees=_stops_where_ragged,
        ),
        Mistake(
            "transposed where rows differ",
            "Level rows are right. Where rows differ you transpose as well, and there it is one too many: "
            "`keys[rows, :, positions]` is `(B, T, K, h)`, in the order of xk.",
            sees=_transposed_once_too_often,
        ),
        Mistake(
            "row not transposed",
            "Level rows are right. For one row, `keys[b, :, positions[b]]` is `(K, T, h)`, and `xk[b]`, as you were "
            "given it, `(T, K, h)`: transpose it once, `xk[b].transpose(0, 1)`.",
            sees=_row_not_transposed,
        ),
        Mistake(
            "stops where rows are level",
            "Rows that are apart are right. Where they are level, `positions` is `(T,)`, one list for all rows, and "
            "`positions[b]` is a single number of it. Ask `positions.dim()` first.",
            sees=_stops_where_level,
        ),
        Mistake(
            "rows as they are",
            "Two things. Where rows are level, `positions` is `(T,)`, one list for all of them: ask `positions.dim()` "
            "first. Where they are apart, `keys[b, :, positions[b]]` is `(K, T, h)` and `xk[b]` is `(T, K, h)`: "
            "`xk[b].transpose(0, 1)`.",
            _rows_as_they_are,
        ),
        Mistake(
            "not transposed",
            "It stops over shapes: xk is `(B, T, K, h)`, and a place in the cache `(B, K, T, h)`. "
            "`xk.transpose(1, 2)` makes them meet.",
            sees=_stops_untransposed,
        ),
        Mistake(
            "reshaped, not transposed",
            "You made `(B, K, T, h)` of xk with `view` or `reshape`, which cuts the same row of numbers at other "
            "places: heads and tokens get mixed. `transpose(1, 2)` moves the axes.",
            _scrambled,
        ),
        Mistake(
            "keys and values changed",
            "Keys are kept among the values, and values among the keys.",
            _keys_and_values_changed,
        ),
        Mistake(
            "keys only",
            "The keys are kept, the values are not: `values` is as it was.",
            _keys_only,
        ),
        Mistake(
            "keys only where rows differ",
            "Level rows are right. Where rows are apart the keys are kept and the values are not: `values` is as it "
            "was.",
            _where(2, _keys_only),
        ),
        Mistake(
            "keys only where rows are level",
            "Rows that are apart are right. Where they are level the keys are kept and the values are not: `values` "
            "is as it was.",
            _where(1, _keys_only),
        ),
        Mistake(
            "xk in both",
            "What is kept among the values is xk. The values are xv.",
            _xk_in_both,
        ),
        Mistake(
            "returns values first",
            "The cache is right, but you return `values, keys`. Whoever calls takes the first for the keys.",
            _values_first,
        ),
        Mistake(
            "returns the keys only",
            "The cache is right, but only `keys` comes back. Attention goes on with both: `return keys, values`.",
            _only_keys_back,
        ),
        Mistake(
            "returns the new ones",
            "The cache is right, but what comes back is only the new tokens' keys and values. Attention looks at all "
            "that is returned, and would forget the past: return `keys, values`.",
            _new_alone,
        ),
        Mistake(
            "returns nothing",
            "The cache is right, and nothing comes back. Attention goes on with what is returned: `return keys, "
            "values`.",
            _nothing,
        ),
        Mistake(
            "returns the filled ones",
            "The cache is right, but only the slots up to the last position come back. Return all that you were "
            "given; whoever calls has cut the window, and made the mask for it.",
            _only_so_far,
        ),
        Mistake(
            "into a copy",
            "What comes back is right, but `keys` and `values` themselves are as before, so that at the next token "
            "nothing is remembered. Assign into them, `keys[...] = `; of methods, those with a `_` at the end write "
            "in place.",
            _into_a_copy,
        ),
        Mistake(
            "into a copy",
            "What comes back is right, but `keys` and `values` themselves are as before, so that at the next token "
            "nothing is remembered. Assign into them, `keys[...] = `; of methods, those with a `_` at the end write "
            "in place.",
            _where(1, _into_a_copy),
        ),
        Mistake(
            "nothing is written",
            "Nothing is written: what comes back is as it was. `index_copy` makes a new tensor, `index_copy_` writes "
            "in place; and `keys[:, :, positions]` is a copy, unless `=` stands behind it.",
            _unwritten,
        ),
        Mistake(
            "nothing is written",
            "Nothing is written: what comes back is as it was. `index_copy` makes a new tensor, `index_copy_` writes "
            "in place; and `keys[:, :, positions]` is a copy, unless `=` stands behind it.",
            _where(1, _unwritten),
        ),
        Mistake(
            "nothing is written",
            "Nothing is written: what comes back is as it was. `index_copy` makes a new tensor, `index_copy_` writes "
            "in place; and `keys[:, :, positions]` is a copy, unless `=` stands behind it.",
            _where(2, _unwritten),
        ),
        Mistake(
            "added",
            "You add to what is in the slot. A slot may hold a filler's key; it has to be overwritten: `=`, not `+=`.",
            _added,
        ),
        Mistake(
            "grows",
            "The new ones are put behind the last slot. The slots are there already, one for each position: write "
            "into them.",
            _grown,
        ),
    ],
)


def _looks(start: int, T: int) -> torch.Tensor:
    """Entry by entry: key position <= query position."""
    return torch.tensor([[key <= start + i for key in range(start + T)] for i in range(T)])


def _additive(start: int, T: int) -> torch.Tensor:
    return torch.zeros(T, start + T).masked_fill(~_looks(start, T), -torch.inf)


CHUNK_MASK = Exercise(
    number="4.2",
    hints=(
        "Draw it for start = 4, T = 3: three rows, seven columns, and a cross where a query may look. Which part is "
        "all crosses, and which is a triangle?",
        "The past is `torch.ones(T, start, dtype=torch.bool)`. The chunk itself is a square with a triangle: `.tril()` "
        "keeps the lower one.",
        "`torch.hstack([past, new])` puts the two side by side, `(T, start + T)`.",
    ),
    answer=chunk_mask,
    expected=_looks,
    cases=lambda: [
        Case("three tokens behind four", (4, 3)),
        Case("the first chunk: nothing before it", (0, 4)),
        Case("one token behind five", (5, 1)),
        Case("a long chunk behind two tokens", (2, 6)),
        Case("as many new as old", (3, 3)),
    ],
    mistakes=[
        Mistake(
            "square",
            "This is `(T, T)`: the new tokens among themselves. The cache holds `start` more keys, so the mask needs "
            "as many columns more, on the left.",
            lambda start, T: torch.ones(T, T, dtype=torch.bool).tril(),
        ),
        Mistake(
            "triangle from slot 0",
            "The size is right, but the triangle stands at the left end: token i of the chunk sees slots 0 to i, and "
            "its position is start + i. That is the bug of this section.",
            lambda start, T: torch.ones(T, start + T, dtype=torch.bool).tril(),
        ),
        Mistake(
            "blind to the past",
            "The new tokens see each other and nothing of what came before: the left part has to be True.",
            lambda start, T: torch.hstack(
                [torch.zeros(T, start, dtype=torch.bool), torch.ones(T, T, dtype=torch.bool).tril()]
            ),
        ),
        Mistake(
            "turned round",
            "True and False have changed places. True is where a query may look.",
            lambda start, T: ~_looks(start, T),
        ),
        Mistake(
            "not itself",
            "A token does not see itself here. Key position equal to query position is allowed.",
            lambda start, T: torch.ones(T, start + T, dtype=torch.bool).tril(start - 1),
        ),
        Mistake(
            "one too far",
            "Every token sees the one that follows it. That one is what it has to foretell.",
            lambda start, T: torch.ones(T, start + T, dtype=torch.bool).tril(start + 1),
        ),
        Mistake(
            "sees everything",
            "All True. In a chunk of several tokens, the earlier ones must not see the later.",
            lambda start, T: torch.ones(T, start + T, dtype=torch.bool),
        ),
        Mistake(
            "upper triangle",
            "The triangle is the other one: a token sees itself and what comes after. `tril` keeps the lower, "
            "`triu` the upper.",
            lambda start, T: torch.hstack(
                [torch.ones(T, start, dtype=torch.bool), torch.ones(T, T, dtype=torch.bool).triu()]
            ),
        ),
        Mistake(
            "past on the right",
            "The past stands on the right of the new tokens. Columns are slots, in order of position: the past comes "
            "first.",
            lambda start, T: torch.hstack(
                [torch.ones(T, T, dtype=torch.bool).tril(), torch.ones(T, start, dtype=torch.bool)]
            ),
        ),
        Mistake(
            "transposed",
            "Rows and columns have changed places: a row for each query, a column for each key.",
            lambda start, T: _looks(start, T).T,
        ),
        Mistake(
            "past only",
            "Only the past may be seen. A token also looks at its own chunk, up to itself: that square, with its "
            "triangle, stands on the right of the past.",
            lambda start, T: torch.ones(T, start, dtype=torch.bool),
        ),
        Mistake(
            "past only",
            "Only the past may be seen. A token also looks at its own chunk, up to itself: that square, with its "
            "triangle, stands on the right of the past.",
            lambda start, T: torch.arange(start + T).expand(T, -1) < start,
        ),
        Mistake(
            "a list",
            "The places are right, but this is a list of lists. Attention wants a tensor: `torch.tensor(rows)`.",
            lambda start, T: _looks(start, T).tolist(),
        ),
        Mistake(
            "to be added",
            "This is a mask to be added to the scores, 0 and -inf. Asked is one of bool: True where a query may look.",
            _additive,
        ),
        Mistake(
            "numbers, not bools",
            "The places are right, but these are numbers. torch adds a mask of numbers to the scores, so that a 1 "
            "hides nothing; make it `dtype=torch.bool`.",
            lambda start, T: _looks(start, T).float(),
        ),
        Mistake(
            "numbers, not bools",
            "The places are right, but these are numbers. torch adds a mask of numbers to the scores, so that a 1 "
            "hides nothing; make it `dtype=torch.bool`.",
            lambda start, T: _looks(start, T).long(),
        ),
    ],
)


CACHE_BYTES = Exercise(
    number="4.4",
    hints=(
        "One slot of one row in one layer: how many numbers are the keys of all its kv heads?",
        "n_kv_heads * head_dim, and as many for the values. Then: how many such slots are there?",
        "2 * L * B * S * K * h numbers, each of `bytes_of_a_number` bytes.",
    ),
    answer=cache_bytes,
    expected=lambda L, B, S, K, h, size: len(("keys", "values")) * size * torch.Size([L, B, K, S, h]).numel(),
    cases=lambda: [
        Case("one layer, one row, one slot, one head of 4 numbers, fp32", (1, 1, 1, 1, 4, 4)),
        Case("the demo model, three rows of 512, fp32", (6, 3, 512, 2, 24, 4)),
        Case("7B at 4,096 tokens in 16 bits", (32, 1, 4096, 32, 128, 2)),
        Case("70B, a batch of 8", (80, 8, 4096, 8, 128, 2)),
    ],
    mistakes=[
        Mistake(
            "keys only",
            "Half of it: there are keys and values.",
            lambda L, B, S, K, h, size: L * B * S * K * h * size,
        ),
        Mistake(
            "numbers, not bytes",
            "That is how many numbers are kept. Each takes `bytes_of_a_number` bytes.",
            lambda L, B, S, K, h, size: 2 * L * B * S * K * h,
        ),
        Mistake(
            "bits",
            "That is bits, eight times too many. `bytes_of_a_number` is 2 for 16-bit numbers.",
            lambda L, B, S, K, h, size: 16 * L * B * S * K * h * size,
        ),
        Mistake(
            "one layer",
            "That is one layer's. Every layer makes keys and values of its own.",
            lambda L, B, S, K, h, size: 2 * B * S * K * h * size,
        ),
        Mistake(
            "one row",
            "That is one row's. Every row of the batch has a text of its own.",
            lambda L, B, S, K, h, size: 2 * L * S * K * h * size,
        ),
        Mistake(
            "one head",
            "That is one kv head's. There are `n_kv_heads` of them in each layer.",
            lambda L, B, S, K, h, size: 2 * L * B * S * h * size,
        ),
        Mistake(
            "one number",
            "You count one number for each kv head. A head's key is `head_dim` numbers.",
            lambda L, B, S, K, h, size: 2 * L * B * S * K * size,
        ),
        Mistake(
            "one slot",
            "That is for one token. There are `max_len` slots in each row.",
            lambda L, B, S, K, h, size: 2 * L * B * K * h * size,
        ),
        Mistake(
            "always as many bytes",
            "You count as many bytes for a number whatever its kind. Use `bytes_of_a_number`.",
            lambda L, B, S, K, h, size: 2 * L * B * S * K * h * 2,
        ),
        Mistake(
            "always as many bytes",
            "You count as many bytes for a number whatever its kind. Use `bytes_of_a_number`.",
            lambda L, B, S, K, h, size: 2 * L * B * S * K * h * 4,
        ),
        Mistake(
            "not whole",
            "The number is right, but it is a float. Bytes are counted in whole numbers; so write `2`, not `2.0`, and "
            "`//` where you divide.",
            lambda L, B, S, K, h, size: 2.0 * L * B * S * K * h * size,
        ),
        Mistake(
            "squared",
            "The length comes in twice. The scores of attention are S x S, but they are not kept; a key is kept once.",
            lambda L, B, S, K, h, size: 2 * L * B * S * S * K * h * size,
        ),
        Mistake(
            "in gigabytes",
            "You return gigabytes. Asked are bytes: the comparison will be to the byte.",
            lambda L, B, S, K, h, size: 2 * L * B * S * K * h * size / 1e9,
        ),
        Mistake(
            "in gigabytes",
            "You return gigabytes. Asked are bytes: the comparison will be to the byte.",
            lambda L, B, S, K, h, size: 2 * L * B * S * K * h * size / 2**30,
        ),
    ],
)


EXERCISES = [RECOMPUTED_TOKENS, CHUNK_MASK, REMEMBER, CACHE_BYTES]
