"""From logits to a token: distributions against float64 and against transformers, draws against their distribution."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from toys import make_checkpoint, make_tokenizer, scripted
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import minillama
from minillama import Llama, SamplingParams, Tokenizer
from minillama.sampling import Sampler, distribution, draw, penalize

# fp32 softmax and cumulative sums of up to 64 terms, each with a relative rounding error of 2^-24: 64 * 6e-8 = 4e-6.
TOLERANCE = 5e-6
OFF = dict(top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)


def params(**chosen: Any) -> SamplingParams:
    """Everything off but `chosen`."""
    return SamplingParams(**({"temperature": 1.0} | OFF | chosen))


def probabilities(logits: torch.Tensor | Sequence[float], chosen: SamplingParams) -> torch.Tensor:
    """The distribution by token id, (B, V), that minillama draws from."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    probs, ids = distribution(logits.view(-1, logits.shape[-1]), chosen)
    return torch.zeros_like(probs).scatter(-1, ids, probs)


# --- An independent implementation: Python floats (float64), one token at a time, no sorting. -------------------------


def normalized(probs: list[float]) -> list[float]:
    total = math.fsum(probs)
    return [p / total for p in probs]


def better(probs: list[float], i: int) -> list[int]:
    """Tokens that come before token i: more likely ones, and equal ones with a smaller id (as argmax breaks ties)."""
    return [j for j, p in enumerate(probs) if p > probs[i] or (p == probs[i] and j < i)]


def by_temperature(probs: list[float], t: float) -> list[float]:
    best = max(probs)
    return normalized([(p / best) ** (1 / t) if p else 0.0 for p in probs])


def by_top_k(probs: list[float], k: int) -> list[float]:
    return normalized([p if len(better(probs, i)) < k else 0.0 for i, p in enumerate(probs)]) if k else probs


def by_top_p(probs: list[float], top_p: float) -> list[float]:
    if top_p == 1:
        return probs
    before = [math.fsum(probs[j] for j in better(probs, i)) for i in range(len(probs))]
    return normalized([p if mass <= top_p and (top_p or not mass) else 0.0 for p, mass in zip(probs, before)])


def by_min_p(probs: list[float], min_p: float) -> list[float]:
    return normalized([p if p >= min_p * max(probs) else 0.0 for p in probs])


def softmax64(logits: Sequence[float]) -> list[float]:
    best = max(logits)
    return normalized([math.exp(x - best) for x in logits])


STEPS: dict[str, Callable[..., list[float]]] = {
    "temperature": by_temperature, "top_k": by_top_k, "top_p": by_top_p, "min_p": by_min_p,
}  # fmt: skip


def oracle(logits: Sequence[float], order: Sequence[str] = tuple(STEPS), **values: float) -> list[float]:
    probs = softmax64(logits)
    for name in order:
        if name in values:
            probs = STEPS[name](probs, values[name])
    return probs


def near_a_line(logits: Sequence[float], values: dict[str, float]) -> bool:
    """True where fp32 and float64 may rightly differ about whether a token is in: within 1e-5 of a threshold."""
    probs = by_top_k(by_temperature(softmax64(logits), values["temperature"]), int(values["top_k"]))
    top_p, min_p = values["top_p"], values["min_p"]
    distinct = sorted(set(probs))
    if any(b - a < 1e-6 * b for a, b in zip(distinct, distinct[1:])):
        return True  # almost a tie: fp32 may see one, and rank by id
    for i in range(len(probs)):
        before = math.fsum(probs[j] for j in better(probs, i))
        if top_p < 1 and before and abs(before - top_p) < 1e-5:
            return True
    return any(abs(p - min_p * max(probs)) < 1e-5 * max(probs) for p in probs if p < max(probs) and min_p)


# --- The distribution ------------------------------------------------------------------------------------------------

logit_lists = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=24)
choices = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.05, 5),
        "top_k": st.integers(0, 30),
        "top_p": st.floats(0.001, 1),
        "min_p": st.one_of(st.just(0.0), st.floats(0.001, 1)),
    }
)


@settings(deadline=None, max_examples=200)
@given(logit_lists, choices)
@example([0.0] * 8, {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "min_p": 0.0})
def test_distribution_equals_a_float64_implementation(logits: list[float], values: dict[str, float]) -> None:
    assume(not near_a_line(logits, values))
    ours = probabilities(logits, params(**values))[0].double()
    wanted = torch.tensor(oracle(logits, **values), dtype=torch.float64)
    # exp((x - max) / t) magnifies fp32's rounding of (x - max) by its own size, at most 60 / 0.05 = 1200 for a token
    # that then holds no mass; what has mass (p > 1e-9) sits within 21 of the maximum: 21 * 2^-24 = 1.3e-6 on p.
    assert (ours - wanted).abs().max() < TOLERANCE


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("repetition_penalty", [1.0, 1.3, 0.7])
def test_distribution_equals_that_of_transformers(temperature: float, repetition_penalty: float) -> None:
    # transformers keeps a token while the mass before it is < p, we while it is <= p: the same without exact ties.
    generator = torch.Generator().manual_seed(int(100 * temperature))
    logits = 4 * torch.randn(6, 64, generator=generator)
    seen = torch.randint(64, (6, 10), generator=generator)  # 7 prompt tokens and 3 generated, repeats among them
    prompt = torch.zeros(6, 64, dtype=torch.bool).scatter(1, seen[:, :7], True)
    counts = torch.zeros(6, 64).scatter_add(1, seen[:, 7:], torch.ones(6, 3))
    for top_k, top_p, min_p in itertools.product([0, 1, 5, 64], [1.0, 0.9, 0.3, 0.01], [0.0, 0.05, 0.5]):
        theirs = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(repetition_penalty)])
        theirs.append(TemperatureLogitsWarper(temperature))
        if top_k:
            theirs.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            theirs.append(TopPLogitsWarper(top_p))
        if min_p:
            theirs.append(MinPLogitsWarper(min_p))
        wanted = torch.softmax(theirs(seen, logits.clone()), -1)
        chosen = params(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
        )
        ours = probabilities(penalize(logits, prompt, counts, chosen), chosen)
        assert torch.equal(ours > 0, wanted > 0), chosen
        assert (ours - wanted).abs().max() < TOLERANCE, chosen


def test_top_p_keeps_the_token_that_crosses_the_line() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()  # exact in binary, so the lines are as well
    kept = {p: int((probabilities(logits, params(top_p=p)) > 0).sum()) for p in (0.01, 0.49, 0.51, 0.74, 0.76, 0.99)}
    assert kept == {0.01: 1, 0.49: 1, 0.51: 2, 0.74: 2, 0.76: 3, 0.99: 4}
    # Exactly on the line, with masses of 0, 0.25, 0.5 and 0.75 before: 0.5 is not more than 0.5.
    assert probabilities([0.0] * 4, params(top_p=0.5))[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_steps_run_in_the_documented_order() -> None:
    logits = [2.5, 0.8, 0.6, 0.1, -0.3, -0.7, -0.8]
    values = {"temperature": 1.6, "top_k": 4, "top_p": 0.6, "min_p": 0.3}
    documented = oracle(logits, **values)
    assert probabilities(logits, params(**values))[0].tolist() == pytest.approx(documented, abs=TOLERANCE)
    # The example tells all orders apart that can be told apart, by far more than the tolerance. (Temperature and top-k
    # commute, and so do top-k and min-p: neither looks at more than ranks or ratios.)
    for order in itertools.permutations(STEPS):
        at = {name: order.index(name) for name in order}
        same = max(at["temperature"], at["top_k"]) < at["top_p"] < at["min_p"]
        gap = max(abs(a - b) for a, b in zip(oracle(logits, order, **values), documented))
        assert (gap < 1e-9) if same else (gap > 0.1), order


def test_penalties_come_before_temperature_and_the_repetition_penalty_before_the_others() -> None:
    chosen = params(temperature=0.5, top_k=2, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    sampler = Sampler(chosen, [[0]], 4, 4, [0])
    sampler.counts[0, 1] = 2
    # id 0: prompt, 4 / 2 = 2. id 1: generated twice, 3 / 2 - 2 * 0.5 - 0.25 = 0.25. ids 2, 3: untouched, 1.5 and -1.
    penalized = penalize(torch.tensor([[4.0, 3.0, 1.5, -1.0]]), sampler.prompt, sampler.counts, chosen)
    assert penalized.tolist() == [[2.0, 0.25, 1.5, -1.0]]
    # Temperature 0.5 doubles, top-k 2 keeps ids 0 and 2: e^(4 - 3) to 1.
    share = math.e / (1 + math.e)
    assert probabilities(penalized, chosen)[0].tolist() == pytest.approx([share, 0, 1 - share, 0], abs=TOLERANCE)


def test_repetition_penalty_lowers_negative_logits_too() -> None:
    everything = torch.ones(1, 3, dtype=torch.bool)
    lowered = penalize(torch.tensor([[4.0, -1.0, 0.0]]), everything, torch.zeros(1, 3), params(repetition_penalty=2.0))
    assert lowered.tolist() == [[2.0, -2.0, 0.0]]


# --- Off is off ------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(logit_lists, st.floats(0.05, 5))
def test_off_values_leave_the_distribution_bit_for_bit(logits: list[float], temperature: float) -> None:
    x = torch.tensor([logits])
    probs, ids = distribution(x, params(temperature=temperature))
    untouched = torch.softmax((x - x.max()) / temperature, -1)
    assert torch.equal(torch.zeros_like(probs).scatter(-1, ids, probs), untouched)
    assert sorted(ids[0].tolist()) == list(range(len(logits)))
    some = torch.arange(len(logits))[None] % 2
    assert torch.equal(penalize(x, some == 1, some.float(), params()), x)


@pytest.mark.parametrize(
    "active",
    [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}, {"repetition_penalty": 1.5}, {"frequency_penalty": 0.5},
     {"presence_penalty": -0.5}, {"temperature": 0.0}],
)  # fmt: skip
def test_off_values_of_the_other_options_change_no_token(active: dict[str, float]) -> None:
    logits = torch.randn(40, 1, 12, generator=torch.Generator().manual_seed(3)).mul(2)
    alone = Sampler(SamplingParams(**({"temperature": 0.9, "top_p": 1.0} | active)), [[1, 2]], 40, 12, [7])
    spelled_out = Sampler(params(**({"temperature": 0.9} | active)), [[1, 2]], 40, 12, [7])
    assert [int(alone(x)) for x in logits] == [int(spelled_out(x)) for x in logits]


def test_penalties_with_values_off_are_not_computed_at_all() -> None:
    assert not params().penalizes
    assert all(params(**{name: 0.5}).penalizes for name in OFF if name.endswith("penalty"))


# --- Penalties against numbers worked out by hand --------------------------------------------------------------------


def greedy_walk(logits: list[float], prompt: list[int], steps: int, **penalty: float) -> list[int]:
    sampler = Sampler(params(temperature=0.0, **penalty), [prompt], steps, len(logits), [0])
    return [int(sampler(torch.tensor([logits]))) for _ in range(steps)]


@pytest.mark.parametrize("prompt", [[2], [0, 0, 0], [1, 0, 1]], ids=str)  # what the prompt holds must not matter
def test_frequency_penalty_counts_generated_tokens_only(prompt: list[int]) -> None:
    # 3.0 2.5 | 0 -> 2.6 2.5 | 0 -> 2.2 2.5 | 1 -> 2.2 2.1 | 0 -> 1.8 2.1 | 1 -> 1.8 1.7 | 0
    assert greedy_walk([3.0, 2.5, -9.0], prompt, 6, frequency_penalty=0.4) == [0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("prompt", [[2], [0, 0, 0], [1, 0, 1]], ids=str)
def test_presence_penalty_counts_generated_tokens_only_and_once(prompt: list[int]) -> None:
    # 3.0 2.5 | 0 -> 2.3 2.5 | 1 -> 2.3 1.8 | 0 -> the same | 0
    assert greedy_walk([3.0, 2.5, -9.0], prompt, 5, presence_penalty=0.7) == [0, 1, 0, 0, 0]


def test_repetition_penalty_looks_at_the_prompt_as_well() -> None:
    # id 0 is in the prompt: 3 / 2 = 1.5 from the start; id 1 wins once, then 2.5 / 2 = 1.25 < 1.5.
    assert greedy_walk([3.0, 2.5, -9.0], [0], 4, repetition_penalty=2.0) == [1, 0, 0, 0]
    assert greedy_walk([3.0, 2.5, -9.0], [2], 4, repetition_penalty=2.0) == [0, 1, 0, 0]


def test_negative_penalties_favour_what_was_said() -> None:
    assert greedy_walk([1.0, 0.9], [0], 4, presence_penalty=-1.0) == [0, 0, 0, 0]
    assert greedy_walk([1.0, 1.4, 0.0], [0], 4, frequency_penalty=-2.0) == [1, 1, 1, 1]


def test_penalties_of_one_row_leave_the_others_alone() -> None:
    sampler = Sampler(params(temperature=0.0, repetition_penalty=2.0), [[0], [2]], 3, 3, [0, 1])
    steps = [sampler(torch.tensor([[3.0, 2.5, -9.0]]).expand(2, 3)).tolist() for _ in range(3)]
    assert [list(row) for row in zip(*steps)] == [[1, 0, 0], [0, 1, 0]]


# --- Draws -----------------------------------------------------------------------------------------------------------

N = 20_000
ONE_IN_A_MILLION = math.log(1e6)


def assert_drawn_from(counts: torch.Tensor, wanted: Sequence[float]) -> None:
    """Counts of N draws fit the distribution `wanted`; a right sampler fails with probability below 2e-6.

    Total variation: E[TV] <= 1/2 sum sqrt(p (1 - p) / n) <= 1/2 sqrt((k - 1) / n) by Jensen and Cauchy-Schwarz; one
    draw moves TV by at most 1/n, so P(TV > E[TV] + t) <= exp(-2 n t^2) (McDiarmid), 1e-6 at t = sqrt(ln(1e6) / (2 n)).
    Pearson: chi-square of k - 1 degrees exceeds k - 1 + 2 sqrt((k - 1) x) + 2 x with probability below exp(-x)
    (Laurent & Massart, 2000), x = ln(1e6); every expected count here is above 20, where the approximation is good.
    """
    n, k = int(counts.sum()), sum(p > 0 for p in wanted)
    p = torch.tensor(wanted, dtype=torch.float64)
    assert n == N
    assert (counts[p == 0] == 0).all(), "a token without mass was drawn"
    variation = 0.5 * (counts.double() / n - p).abs().sum()
    assert variation < 0.5 * math.sqrt((k - 1) / n) + math.sqrt(ONE_IN_A_MILLION / (2 * n))
    expected = n * p[p > 0]
    assert expected.min() > 20
    pearson = ((counts[p > 0] - expected) ** 2 / expected).sum()
    assert pearson < k - 1 + 2 * math.sqrt((k - 1) * ONE_IN_A_MILLION) + 2 * ONE_IN_A_MILLION


@pytest.mark.parametrize(
    "values",
    [{"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}, {"temperature": 1.5, "top_k": 3},
     {"temperature": 1.0, "min_p": 0.3}, {"temperature": 1.2, "top_k": 5, "top_p": 0.8, "min_p": 0.1}],
    ids=str,
)  # fmt: skip
def test_20000_draws_fit_the_distribution(values: dict[str, float]) -> None:
    logits, rows = [1.5, 0.2, -0.5, 1.4, -2.0, 0.9, 0.0, -1.0], 50
    sampler = Sampler(params(**values), [[0]] * rows, N // rows, len(logits), range(1000, 1000 + rows))
    x = torch.tensor([logits]).expand(rows, -1)
    drawn = torch.cat([sampler(x) for _ in range(N // rows)])
    assert_drawn_from(torch.bincount(drawn, minlength=len(logits)), oracle(logits, **values))


def test_20000_numbers_of_one_seed_fit_the_distribution() -> None:
    sampler = Sampler(params(), [[0]], N, 16, [3])
    probs, ids = distribution(torch.arange(16.0)[None] / 8, params())
    drawn = draw(probs.expand(N, -1), ids.expand(N, -1), sampler.uniform[:, 0])
    assert_drawn_from(torch.bincount(drawn, minlength=16), softmax64([i / 8 for i in range(16)]))


def test_first_draws_of_neighbouring_seeds_are_independent() -> None:
    logits = torch.zeros(N, 7)
    drawn = Sampler(params(), [[0]] * N, 1, 7, range(N))(logits)
    assert_drawn_from(torch.bincount(drawn, minlength=7), [1 / 7] * 7)
    pairs = 7 * drawn[:-1] + drawn[1:]  # consecutive seeds: all 49 pairs equally often
    pairs = torch.cat([pairs, pairs[:1]])
    assert_drawn_from(torch.bincount(pairs, minlength=49), [1 / 49] * 49)


def test_numbers_are_fine_enough_for_tokens_rarer_than_fp32_can_say() -> None:
    u = Sampler(params(), [[0]], 100, 4, [0]).uniform[:, 0]
    assert u.dtype == torch.float64
    assert ((u * 2**30) % 1 != 0).all()  # an fp32 number has 24 bits, and so could not reach most of 32,000 rare tokens


def test_draw_inverts_the_cumulative_distribution() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).expand(6, 4)
    ids = torch.tensor([[3, 1, 0, 2]]).expand(6, 4)
    u = torch.tensor([0.0, 0.4999, 0.5, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert draw(probs, ids, u).tolist() == [3, 3, 1, 1, 0, 0]


@settings(deadline=None, max_examples=100)
@given(logit_lists, choices, st.one_of(st.just(0.0), st.just(1 - 2**-53), st.floats(0, 1, exclude_max=True)))
def test_draw_never_returns_a_token_without_mass(logits: list[float], values: dict[str, float], u: float) -> None:
    probs, ids = distribution(torch.tensor([logits]), params(**values))
    token = int(draw(probs, ids, torch.tensor([u], dtype=torch.float64)))
    assert float(probs[ids == token]) > 0


# --- Seeds -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def llama(folder: Path) -> Llama:
    return Llama.build(folder, device="cpu")


PROMPTS = [[1, 300, 310], [1, 333], [1, 280, 290, 301, 305, 310, 311]]
HOT = dict(max_gen_len=20, temperature=1.0, top_p=0.95, stop_ids=[])


def test_a_seed_gives_the_same_tokens_in_another_process(folder: Path, llama: Llama) -> None:
    program = (
        "import sys, torch; from minillama import Llama\n"
        "torch.manual_seed(99)\n"  # of no concern to us
        f"llama = Llama.build(sys.argv[1], device='cpu', seed=5)\n"
        f"print([llama.generate({PROMPTS}, seed=s, **{HOT})[0] for s in (11, None)])\n"
    )
    root = str(Path(minillama.__file__).parent.parent)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n" + program, str(folder)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    here = Llama.build(folder, device="cpu", seed=5)
    assert printed.strip() == str([here.generate(PROMPTS, seed=s, **HOT)[0] for s in (11, None)])


def test_the_global_generator_is_neither_read_nor_moved(llama: Llama) -> None:
    torch.manual_seed(1)
    seed, state = torch.initial_seed(), torch.get_rng_state()
    first = llama.generate(PROMPTS, seed=3, **HOT)
    list(llama.stream_text("once upon", temperature=1.0, max_gen_len=5))
    assert torch.initial_seed() == seed
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    torch.rand(5)
    assert llama.generate(PROMPTS, seed=3, **HOT) == first


def test_loading_leaves_the_global_generator_alone(folder: Path) -> None:
    state = torch.get_rng_state()
    Llama.build(folder, device="cpu", seed=123)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "penalty", [{}, {"repetition_penalty": 1.3, "frequency_penalty": 0.2}], ids=["plain", "penalized"]
)
def test_a_longer_answer_begins_like_a_shorter_one(llama: Llama, penalty: dict[str, float]) -> None:
    longest = llama.generate(PROMPTS, seed=4, **(HOT | {"max_gen_len": 60}), **penalty)[0]
    for n in (1, 2, 7, 15, 16, 17, 33):  # torch fills tensors of 16 and more in another loop
        shorter = llama.generate(PROMPTS, seed=4, **(HOT | {"max_gen_len": n}), **penalty)[0]
        assert shorter == [row[:n] for row in longest]
    assert all(len(row) == 60 for row in longest)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_row_r_of_a_batch_draws_what_a_single_run_with_seed_plus_r_draws(llama: Llama, order: tuple[int, ...]) -> None:
    options = HOT | {"repetition_penalty": 1.2, "top_k": 50, "min_p": 0.01}
    batch = llama.generate([PROMPTS[i] for i in order], seed=50, **options)[0]
    assert batch == [llama.generate([PROMPTS[i]], seed=50 + r, **options)[0][0] for r, i in enumerate(order)]


def test_requests_without_a_seed_differ_and_a_program_repeats_itself(folder: Path) -> None:
    def program(seed: int) -> list[list[list[int]]]:
        llama = Llama.build(folder, device="cpu", seed=seed)
        return [llama.generate(PROMPTS, **HOT)[0] for _ in range(3)]

    first = program(1)
    assert first[0] != first[1] != first[2] != first[0]
    assert program(1) == first
    assert program(2)[0] != first[0]


def test_different_seeds_give_different_rows(llama: Llama) -> None:
    rows = llama.generate([PROMPTS[0]] * 8, seed=0, **HOT)[0]
    assert len(set(map(tuple, rows))) == 8


@pytest.mark.parametrize("seed", [-1, 2**62, 1.5, "3", True])
def test_seeds_that_are_not_whole_numbers_in_range_are_refused(folder: Path, llama: Llama, seed: Any) -> None:
    with pytest.raises(ValueError, match="seed"):
        llama.generate(PROMPTS, seed=seed)
    with pytest.raises(ValueError, match="seed"):
        Llama.build(folder, device="cpu", seed=seed)


def test_the_largest_seed_serves_a_whole_batch(llama: Llama) -> None:
    assert len(llama.generate(PROMPTS, seed=2**62 - 1, **HOT)[0]) == 3


# --- Edges -----------------------------------------------------------------------------------------------------------


def draws(logits: Any, chosen: SamplingParams, seeds: int = 100) -> set[int]:
    """What 100 seeds draw, with every warning an error."""
    x = torch.as_tensor(logits)
    x = x.expand(seeds, x.shape[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return set(Sampler(chosen, [[0]] * seeds, 1, x.shape[-1], range(seeds))(x).tolist())


@pytest.mark.parametrize(
    "chosen", [{"top_p": 0.0}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}]
)
def test_settings_that_leave_one_token_are_greedy(chosen: dict[str, float]) -> None:
    assert draws([0.0, 1.0, 5.0, 2.0], params(**chosen)) == {2}
    assert (
        draws([0.0, 1.0, 5.0, 2.0], params(temperature=2.0, **({"top_p": 0.0} | chosen))) == {2}
        if "temperature" not in chosen
        else True
    )


@pytest.mark.parametrize("other", [{"top_p": 0.5}, {"top_k": 7}, {"min_p": 0.5}, {"top_p": 1.0, "top_k": 0}], ids=str)
def test_temperature_zero_is_argmax_whatever_else_is_set(other: dict[str, float]) -> None:
    x = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    sampler = Sampler(params(temperature=0.0, **other), [[0]] * 50, 1, 9, range(50))
    assert torch.equal(sampler(x), x.argmax(-1))


def test_top_p_zero_keeps_one_token_where_the_first_holds_all_the_mass() -> None:
    probs, _ = distribution(torch.tensor([[60.0, 0.0, -60.0]]), params(top_p=0.0))
    assert probs.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("temperature", [1e-4, 1e-8, 1e-30, 1e-45, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tiny_temperatures_are_greedy_without_nan(temperature: float, dtype: torch.dtype) -> None:
    assert draws(torch.tensor([60.0, 59.0, 0.0], dtype=dtype), params(temperature=temperature)) == {0}
    probs, _ = distribution(torch.tensor([[60.0, 59.0, 0.0]], dtype=dtype), params(temperature=temperature, top_p=1e-4))
    assert probs.tolist() == [[1.0, 0.0, 0.0]]


def test_tiny_temperatures_share_between_equal_maxima() -> None:
    assert draws([3.0, 3.0, 2.0], params(temperature=1e-8)) == {0, 1}


def test_huge_temperatures_are_uniform() -> None:
    assert probabilities([9.0, -9.0, 0.0, 3.0], params(temperature=1e30))[0].tolist() == [0.25] * 4


def test_equal_logits_are_cut_in_the_order_of_their_ids() -> None:
    same = [1.0] * 10
    assert draws(same, params(), 500) == set(range(10))
    assert draws(same, params(top_k=3)) == {0, 1, 2}
    assert draws(same, params(top_p=0.25)) == {0, 1, 2}  # mass before: 0, 0.1, 0.2, 0.3
    assert draws(same, params(min_p=1.0), 500) == set(range(10))
    assert draws(same, params(temperature=0.0)) == {0}


def test_minus_infinity_is_never_drawn() -> None:
    logits = [-math.inf, 1.0, -math.inf, 0.0]
    for values in ({}, {"top_p": 0.99}, {"top_k": 4}, {"min_p": 1e-9}, {"temperature": 1e-8}, {"temperature": 100.0}):
        assert draws(logits, params(**values)) <= {1, 3}
    penalized = params(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.5)
    assert draws(logits, penalized) <= {1, 3}


@pytest.mark.parametrize(
    "values", [{}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.5}, {"temperature": 1e-8}, {"top_p": 0.0}], ids=str
)
def test_a_single_finite_logit_is_always_drawn(values: dict[str, float]) -> None:
    assert draws([-math.inf, -math.inf, -5.0, -math.inf], params(**values)) == {2}


@pytest.mark.parametrize("values", [{"top_k": 100}, {"top_k": 5}, {"top_k": 10**12}], ids=str)
def test_top_k_of_the_vocabulary_or_more_cuts_nothing(values: dict[str, Any]) -> None:
    logits = [1.0, 0.0, -1.0, 2.0, 0.5]
    assert probabilities(logits, params(**values))[0].tolist() == pytest.approx(softmax64(logits), abs=TOLERANCE)


@pytest.mark.parametrize(
    "values", [{}, {"top_k": 3, "top_p": 0.5, "min_p": 0.5}, {"temperature": 0.0}, {"presence_penalty": 1.0}], ids=str
)
def test_a_vocabulary_of_one_is_always_drawn(values: dict[str, float]) -> None:
    assert draws([-3.0], params(**values)) == {0}


def test_fp16_extremes_do_not_overflow() -> None:
    assert draws(torch.tensor([65504.0, -65504.0, 0.0], dtype=torch.float16), params(temperature=0.01)) == {0}


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"frequency_penalty": 1e308}, [0, 1, 2]), ({"presence_penalty": 1e308}, [0, 1, 2]),
     ({"frequency_penalty": -1e308}, [0, 0, 0]), ({"presence_penalty": -1e308}, [0, 0, 0]),
     ({"repetition_penalty": 1e300}, [0, 1]), ({"repetition_penalty": 1e-300}, [0, 0, 0])],
    ids=str,
)  # fmt: skip
def test_penalties_of_any_finite_size_do_what_they_say(values: dict[str, float], expected: list[int]) -> None:
    try:
        params(**values)
    except ValueError as refused:  # as good: a limit that is named
        assert next(iter(values)) in str(refused)
    else:
        assert greedy_walk([1.0, 0.5, 0.0, -math.inf], [2], len(expected), **values) == expected


def test_a_temperature_of_any_finite_size_keeps_minus_infinity_out() -> None:
    for temperature in (1e30, 1e38, 1e39, 1e308):
        assert draws([-math.inf, 1.0, 0.0, -math.inf], params(temperature=temperature)) == {1, 2}


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_p", -0.01), ("top_p", 1.01),
     ("top_p", math.nan), ("top_k", -1), ("top_k", 1.5), ("top_k", math.inf), ("top_k", math.nan), ("min_p", -0.1),
     ("min_p", 1.1), ("min_p", math.nan), ("repetition_penalty", 0.0), ("repetition_penalty", -1.0),
     ("repetition_penalty", math.nan), ("frequency_penalty", math.nan), ("frequency_penalty", math.inf),
     ("presence_penalty", -math.inf), ("presence_penalty", math.nan)],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(llama: Llama, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})
    with pytest.raises(ValueError, match=name):
        llama.generate(PROMPTS, **{name: value})


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"temperature": 0.8}, {"presence_penalty": 0.5}], ids=str)
def test_logits_that_are_not_numbers_raise_value_error(tmp_path: Path, broken: float, values: dict[str, float]) -> None:
    tokenizer = Tokenizer(make_tokenizer(tmp_path / "tokenizer.model"))
    llama = scripted(tokenizer, [300, 301, 302, 303])
    fine = llama.model.logits

    def breaks(h: torch.Tensor) -> torch.Tensor:  # at the third position; -inf everywhere, NaN or inf in one place
        at = h[..., :1] == 2
        return torch.where(at if broken == -math.inf else at & (torch.arange(tokenizer.n_words) == 5), broken, fine(h))

    llama.model.logits = breaks
    with pytest.raises(ValueError, match=r"not numbers \(row 0, position 3\)"):
        llama.generate([[1]], **values)
    assert llama.generate([[1]], max_gen_len=2, **values)[0] == [[300, 301]]  # until then it went well


def test_damaged_weights_raise_value_error(folder: Path) -> None:
    llama = Llama.build(folder, device="cpu")
    with torch.no_grad():
        llama.model.output.weight[7] = math.nan
    for temperature in (0.0, 0.8):
        with pytest.raises(ValueError, match="not numbers"):
            llama.generate(PROMPTS, temperature=temperature)
