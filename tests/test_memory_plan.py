"""The memory plan against what torch says it allocates, and what is refused because of it.

Weights and KV cache are exact. For what the layers make on their way, torch's own record of every allocation is the
oracle: its peak lies between NEVER_LESS and NEVER_MORE parts of the formula.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_cli import fail, succeed
from torch.autograd.profiler import profile
from toys import make_checkpoint

from minillama import KVCache, Llama, ModelArgs, SamplingParams, Transformer, generation, memory, packed
from minillama.memory import Plan, activation_bytes, kv_cache_bytes, plan, weight_bytes, workspace_bytes
from minillama.packed import has_kernel
from minillama.quantize import quantize
from minillama.sampling import Sampler

# The formula takes the widest moment of a layer and nothing else: torch's kernels add a little scratch of their own
# (attention's, a few kilobytes a head), and the last norm is not always as wide as the widest moment.
NEVER_LESS, NEVER_MORE = 0.95, 1.05

SHAPES = {
    "GQA": dict(dim=256, n_layers=2, n_heads=8, n_kv_heads=2, vocab_size=1000, multiple_of=32),
    "MHA, large vocabulary": dict(dim=128, n_layers=3, n_heads=4, vocab_size=32000, multiple_of=32),
    "wide": dict(dim=256, n_layers=1, n_heads=8, n_kv_heads=1, vocab_size=500, multiple_of=32, ffn_dim_multiplier=2.6),
    "narrow": dict(dim=256, n_layers=2, n_heads=4, vocab_size=500, multiple_of=8, ffn_dim_multiplier=0.1),
    "narrow, wide attention": dict(
        dim=256, n_layers=2, n_heads=4, vocab_size=500, multiple_of=8, ffn_dim_multiplier=0.4
    ),
}
DTYPES = [torch.float32, torch.bfloat16]


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most that torch's allocator had given out at one time while `work` ran, as its profiler recorded it."""
    with profile(profile_memory=True) as record:
        kept = work()
    events = [(e.start_ns(), e.nbytes()) for e in record.kineto_results.events() if e.name() == "[memory]"]
    del kept
    held = most = 0
    for _, size in sorted(events, key=lambda event: event[0]):
        held += size
        most = max(most, held)
    return most


def model_of(shape: str, dtype: torch.dtype) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Transformer(ModelArgs(**SHAPES[shape], max_seq_len=1024)).to(dtype).eval()


# --- The formula ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_what_a_prefill_makes_is_what_the_formula_says(
    shape: str, dtype: torch.dtype, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(shape, dtype)
    if joined:
        if not has_kernel(torch.zeros(1, dtype=dtype)):
            pytest.skip("oneDNN's packed products are not here")
        monkeypatch.setattr(packed, "WORTH_PACKING", 0)
        packed.pack(model)
    for B, T in ((1, 1000), (4, 250)):
        cache, tokens = KVCache.for_model(model, B, T), torch.full((B, T), 7)
        model.features(tokens, 0, cache)  # a first run may set up what is kept
        found = peak_bytes(lambda: model.features(tokens, 0, cache))  # noqa: B023
        said = activation_bytes(model.args, B * T, dtype, joined=joined)
        assert NEVER_LESS <= found / said <= NEVER_MORE, (B, T, found, said)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "params",
    [SamplingParams(0), SamplingParams(1.0, 0.9), SamplingParams(1.0, 0.9, 40, 0.05, 1.2, 0.5, 0.5)],
    ids=["greedy", "sampled", "everything at once"],
)
@torch.no_grad()
def test_choosing_a_token_takes_no_more_than_the_workspace(params: SamplingParams, dtype: torch.dtype) -> None:
    model = model_of("MHA, large vocabulary", dtype)
    args, B = model.args, 4
    h = torch.randn(B, args.dim).to(dtype)
    sampler = Sampler(params, [[1, 2]] * B, 4, args.vocab_size, range(B))
    found = peak_bytes(lambda: sampler(model.logits(h)))
    said = workspace_bytes(args, B)
    assert found <= said
    if params.penalizes:  # the most there can be; the formula is not a guess far above it
        assert said <= 1.5 * found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_the_plan_covers_a_whole_request_and_is_not_far_above_it(dtype: torch.dtype) -> None:
    model = model_of("GQA", dtype)
    tokens = torch.full((4, 200), 7)

    def request() -> Any:
        cache = KVCache.for_model(model, 4, 208)
        return cache, model.logits(model.features(tokens, 0, cache)[:, -1])

    request()
    found = peak_bytes(request)
    said = plan(model.args, batch_size=4, seq_len=208, prompt_len=200, dtype=dtype, weights=0)
    assert 0.8 <= found / said.total <= 1.0


def test_a_large_activation_is_seen_by_the_oracle() -> None:
    assert peak_bytes(lambda: torch.empty(10_000_000, dtype=torch.uint8)) >= 10_000_000


# --- Weights and cache, to the byte -----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["int8", "int4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantized_weights_are_those_of_a_real_model(format: str, dtype: torch.dtype) -> None:
    from minillama.bench import module_bytes

    args = ModelArgs(dim=128, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=320, multiple_of=32)
    model = Transformer(args).to(dtype)
    quantize(model, format)
    assert weight_bytes(args, dtype, quantize=format) == module_bytes(model)


def test_ranks_beyond_the_kv_heads_hold_a_whole_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    args = ModelArgs.preset("70B")
    monkeypatch.setattr(ModelArgs, "check_ranks", lambda self, n: None)  # which counts are allowed is not asked here
    eight, sixteen = (kv_cache_bytes(args, 32, 4096, 2, ranks) for ranks in (8, 16))
    assert eight == sixteen == 5_368_709_120
    kv = 2 * 80 * 8192 * 128 * 2  # wk and wv of one head in all layers, in fp16
    norms = (2 * 80 + 1) * 8192 * 2
    shared = 2 * args.n_params - norms - 8 * kv
    assert weight_bytes(args, 2, 16) == shared // 16 + norms + kv
    assert weight_bytes(args, 2, 8) == shared // 8 + norms + kv


# --- What fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [18 * 10**9, 40 * 10**9, 80 * 10**9])
def test_the_largest_batch_and_length_fit_and_the_next_do_not(budget: int) -> None:
    args = ModelArgs.preset("70B")

    def total(batch: int, length: int) -> int:
        return plan(args, ranks=8, batch_size=batch, seq_len=length, dtype=torch.float16).total

    said = plan(args, ranks=8, batch_size=32, seq_len=4096, dtype=torch.float16, budget=budget)
    assert said.total == total(32, 4096) and said.fits == (total(32, 4096) <= budget)
    batch, length = said.largest_batch, said.largest_seq_len
    assert batch is not None and length is not None
    assert batch > 0
    assert total(batch, 4096) <= budget < total(batch + 1, 4096)
    assert total(32, length) <= budget if length else total(32, 1) > budget
    assert length == args.max_seq_len or total(32, length + 1) > budget


def test_where_the_weights_alone_are_too_large_nothing_fits_and_more_ranks_are_the_advice() -> None:
    said = plan(ModelArgs.preset("70B"), dtype=torch.float16, budget=80 * 10**9)
    assert (said.fits, said.largest_batch, said.largest_seq_len) == (False, 0, 0)
    assert "torchrun --nproc_per_node" in said.sentence("cuda:0")


def test_without_a_budget_nothing_is_said_about_fitting() -> None:
    said = plan(ModelArgs.preset("7B"), dtype=torch.float16)
    assert (said.fits, said.largest_batch, said.largest_seq_len) == (None, None, None)
    assert "free" not in said.sentence("cuda:0")


@pytest.mark.parametrize(
    ("text", "size"),
    [("79.6 GiB", int(79.6 * 2**30)), ("40000mb", 40 * 10**9), ("8k", 8000), ("1TiB", 2**40)]
    + [(text, 80 * 10**9) for text in ("80", "80G", "80g", "80GB", "80gb", " 80 GB ")]
    + [(text, 80 * 2**30) for text in ("80Gi", "80gi", "80GiB", "80 GIB")],
)
def test_sizes_of_memory_as_people_write_them(text: str, size: int) -> None:
    assert memory.parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "eighty", "80 bananas", "-1GB", "0GB", "1e3GB", "80GBs", "80i", "80iB", "80B", "80bG"]
)
def test_other_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="80GB"):
        memory.parse_size(text)


# --- The command ------------------------------------------------------------------------------------------------------

ISSUE = ["--model", "70B", "--mp", 8, "--seq-len", 4096, "--batch", 32]


def test_info_plans_70b_on_eight_gpus() -> None:
    said = json.loads(succeed("info", *ISSUE, "--gpu-memory", "80GB", "--json"))
    assert said["kv_cache_bytes"] == 5_368_709_120
    assert said["weight_bytes"] == weight_bytes(ModelArgs.preset("70B"), 2, 8)
    parts = ("weight_bytes", "kv_cache_bytes", "activation_bytes", "workspace_bytes")
    assert said["total_bytes"] == sum(said[part] for part in parts)
    assert said["fits"] is True and said["budget_bytes"] == 80 * 10**9
    assert said["largest_batch"] > 32 and said["largest_seq_len"] == 4096
    table = succeed("info", *ISSUE, "--gpu-memory", "80GB")
    for part in ("5.37 GB", "activations", "workspace", "fits", f"batch of {said['largest_batch']}"):
        assert part in table
    assert max(map(len, table.splitlines())) <= 80


def test_info_says_what_would_fit_where_the_request_does_not() -> None:
    said = json.loads(succeed("info", *ISSUE, "--gpu-memory", "24GB", "--json"))
    assert said["fits"] is False and 0 < said["largest_batch"] < 32 and 0 < said["largest_seq_len"] < 4096
    table = succeed("info", *ISSUE, "--gpu-memory", "24GB")
    assert "does not fit" in table and f"{said['largest_seq_len']:,} tokens" in table
    said = json.loads(succeed("info", "--model", "70B", "--gpu-memory", "80GB", "--json"))
    assert (said["fits"], said["largest_batch"]) == (False, 0)


@pytest.mark.parametrize("model", ["110M", "1.1B", "7B"])
@pytest.mark.parametrize("format", ["int8", "int4"])
def test_info_knows_the_shapes_of_bench_and_fewer_bits(model: str, format: str) -> None:
    full = json.loads(succeed("info", "--model", model, "--dtype", "bf16", "--json"))
    fewer = json.loads(succeed("info", "--model", model, "--dtype", "bf16", "--quantize", format, "--json"))
    linears = full["n_params"] - 32000 * full["dim"]
    least = {"int8": 1.0, "int4": 0.5}[format] * linears
    assert least < fewer["weight_bytes"] < full["weight_bytes"]
    assert fewer["kv_cache_bytes"] == full["kv_cache_bytes"]
    assert format in succeed("info", "--model", model, "--quantize", format)


def test_info_refuses_a_size_of_memory_that_is_none() -> None:
    assert "80GB" in fail("info", "--model", "7B", "--gpu-memory", "lots")


# --- The plan as the error --------------------------------------------------------------------------------------------


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """`free(n)`: from here on the machine says that n bytes are free."""
    return lambda n: monkeypatch.setattr(memory, "free_memory", lambda device: n)


@pytest.fixture
def no_cache_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a cache was allocated")

    monkeypatch.setattr(KVCache, "__init__", made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("planned"))


@pytest.fixture(scope="module")
def llama(folder: Path) -> Llama:
    return Llama.build(folder, device="cpu")


def test_a_request_that_does_not_fit_is_the_plan_before_anything_is_made(
    llama: Llama, free: Callable[[int | None], None], no_cache_is_made: None
) -> None:
    args = llama.model.args
    cache = kv_cache_bytes(args, 3, 4 + 60, torch.float32)
    free(cache)
    with pytest.raises(memory.OutOfMemory, match=r"batch 3 x 64 tokens") as error:
        llama.generate([[1, 5, 6, 7]] * 3, 60)
    assert memory.gb(cache) in str(error.value) and "what fits" in str(error.value)
    with pytest.raises(memory.OutOfMemory):  # and not at the first piece, when a stream has begun
        llama.stream_text("once", max_gen_len=100)


def test_what_the_plan_says_fits_is_run(llama: Llama, free: Callable[[int | None], None]) -> None:
    expected = llama.generate([[1, 5, 6, 7]] * 3, 60, temperature=0)[0]
    needed = plan(llama.model.args, batch_size=3, seq_len=64, prompt_len=4, dtype=torch.float32, weights=0)
    for n in (needed.total, None):  # None: a system that does not say what is free
        free(n)
        assert llama.generate([[1, 5, 6, 7]] * 3, 60, temperature=0)[0] == expected
    free(needed.total - 1)
    with pytest.raises(memory.OutOfMemory):
        llama.generate([[1, 5, 6, 7]] * 3, 60, temperature=0)


def test_scores_that_do_not_fit_are_refused_as_well(llama: Llama, free: Callable[[int | None], None]) -> None:
    free(100_000)
    with pytest.raises(memory.OutOfMemory, match="activations"):
        llama.score([[1, 5, 6, 7] * 30] * 8)


def test_mapped_weights_need_no_memory_and_converted_ones_do(folder: Path, free: Callable[[int | None], None]) -> None:
    free(1000)
    Llama.build(folder, device="cpu")
    with pytest.raises(memory.OutOfMemory, match="bfloat16"):
        Llama.build(folder, device="cpu", dtype="bfloat16")
    with pytest.raises(memory.OutOfMemory, match="int8"):
        Llama.build(folder, device="cpu", quantize="int8")


def test_a_gpu_with_less_memory_than_the_weights_is_refused_with_the_plan(
    free: Callable[[int | None], None],
) -> None:
    args = ModelArgs.preset("7B")
    gpu = torch.device("cuda", 0)
    free(weight_bytes(args, 2) + 10**9)
    memory.check_build(args, gpu, dtype=torch.bfloat16)
    free(weight_bytes(args, 2) - 1)
    with pytest.raises(memory.OutOfMemory, match=r"13\.5 GB.*free on cuda:0.*nproc_per_node"):
        memory.check_build(args, gpu, dtype=torch.bfloat16)


def test_on_a_gpu_what_torch_keeps_unused_counts_as_free_and_something_is_left_for_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * 10**9)
    for free, left in ((20 * 10**9, 20.5e9), (10**8, 0.6e9), (0, 0.5e9)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 24 * 10**9))
        assert memory.free_memory(gpu) == left  # what is free, and what torch keeps unused, less half a GB
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3 * 10**9)
    assert memory.free_memory(gpu) == 0


def cgroup(folder: Path, limit: str, used: int, cached: int) -> Path:
    for name, said in (("max", limit), ("current", used), ("stat", f"anon 7\nactive_file {cached}\ninactive_file 3\n")):
        (folder / f"memory.{name}").write_text(f"{said}\n")
    return folder


def test_in_a_container_its_limit_says_what_is_free_where_that_is_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "proc_sizes", lambda path: {"MemAvailable": 10_000})
    assert memory.free_memory(cpu) == 10_000  # no container
    cgroup(tmp_path, "9000", 4000, 500)
    assert memory.free_memory(cpu) == 9000 - 4000 + 500 + 3  # pages of files can be read again
    cgroup(tmp_path, "90000", 4000, 500)
    assert memory.free_memory(cpu) == 10_000
    cgroup(tmp_path, "max", 4000, 500)
    assert memory.free_memory(cpu) == 10_000
    cgroup(tmp_path, "3000", 4000, 0)
    assert memory.free_memory(cpu) == 0
    monkeypatch.setattr(memory, "proc_sizes", lambda path: {})  # a system that does not say
    assert memory.free_memory(cpu) == 0


def test_ranks_on_one_machine_share_what_its_processors_have(
    free: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(1000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory.share_of_free(torch.device("cpu")) == 250
    assert memory.share_of_free(torch.device("cuda", 0)) == 1000


def test_the_command_says_the_plan_in_one_line(folder: Path, free: Callable[[int | None], None]) -> None:
    free(20_000)
    line = fail("complete", "once upon", "--ckpt-dir", folder, "--max-gen-len", 100)
    assert "does not fit" in line and "KV cache" in line


def test_a_plan_is_told_in_full(folder: Path) -> None:
    said = plan(ModelArgs.preset("7B"), batch_size=4, seq_len=2048, dtype=torch.bfloat16, budget=16 * 10**9)
    assert isinstance(said, Plan)
    text = said.sentence("cuda:0")
    for part in ("13.5 GB", "batch 4 x 2,048", "16.0 GB are free", "what fits: a batch of"):
        assert part in text
    assert dataclasses.replace(said, budget=80 * 10**9).fits is True
    assert generation.memory is memory
