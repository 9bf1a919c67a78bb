"""`minillama bench`: it counts and compares what it says, whatever the times are; what it cannot do is one line."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from toys import make_checkpoint
from typer.testing import CliRunner

from minillama import ModelArgs, Transformer, bench_peers, cli
from minillama import bench as measuring
from minillama.bench import Job, Ours, Plan, bench, random_model, random_weight, table, times_as_fast
from minillama.bench_peers import Engine, LlamaCpp, Transformers
from minillama.checkpoint import load_model
from minillama.convert import convert
from minillama.decode import decode_step
from minillama.memory import kv_cache_bytes

CPU = torch.device("cpu")
SMALL = ("--prompt", "8,16", "--new-tokens", 3, "--repeats", 2, "--threads", 1)
GQA = [dict(n_heads=4, n_kv_heads=4), dict(n_heads=4, n_kv_heads=2), dict(n_heads=4, n_kv_heads=1)]


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("bench"))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> ModelArgs:
    """`--model tiny`, whose feed-forward (1 MB of bf16) is large enough to be packed where a machine packs."""
    shape = dict(dim=512, n_layers=2, n_heads=8, n_kv_heads=2, vocab_size=320, multiple_of=1024, max_seq_len=256)
    monkeypatch.setitem(measuring.SHAPES, "tiny", shape)
    return ModelArgs(**shape)


def run(*args: object, env: dict[str, str] | None = None) -> Any:
    return CliRunner(env=env).invoke(cli.app, ["bench", *map(str, args)])


def measured(*args: object) -> dict[str, Any]:
    result = run(*args, "--json")
    assert (result.exit_code, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    return dict(json.loads(result.stdout))


def fail(*args: object, env: dict[str, str] | None = None) -> str:
    """The one line of an error that the user can mend."""
    result = run(*args, env=env)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("minillama: error: ") and result.stderr.count("\n") == 1
    return str(result.stderr.removeprefix("minillama: error: ").rstrip("\n"))


def numbers(thing: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(thing, (dict, list)):
        for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
            yield from numbers(value, f"{path}/{key}")
    elif isinstance(thing, (int, float)) and not isinstance(thing, bool):
        yield path, thing


def check_figures(result: dict[str, Any]) -> None:
    """Every figure is a positive number, every median lies between the lowest and the highest."""
    for path, value in numbers(result):
        assert math.isfinite(value) and (value > 0 or "/largest_logit_difference/" in path), path
    for engine in result["engines"].values():
        spreads = [*engine["prefill_tokens_per_s"].values(), engine["first_token_ms"]]
        spreads += [job[key] for job in engine["decode"] for key in ("ms_per_token", "tokens_per_s")]
        for one in [*spreads, result["read_bandwidth_gb_per_s"]]:
            assert one["lowest"] <= one["median"] <= one["highest"]


# What is measured ---------------------------------------------------------------------------------------------------


def test_json_has_every_figure_of_a_checkpoint(ckpt):
    result = measured("--ckpt-dir", ckpt, *SMALL, "--batch", "1,3", "--at-position", 20)
    check_figures(result)
    assert (result["model"], result["weights"], result["dtype"]) == (str(ckpt), "checkpoint", "float32")
    assert (result["threads"], result["repeats"], result["ranks"], result["quantize"]) == (1, 2, 1, None)
    assert result["load_s"] > 0
    ours = result["engines"]["minillama"]
    assert list(ours["prefill_tokens_per_s"]) == ["8", "16"]
    places = [(job["name"], job["batch"], job["from_position"], job["to_position"]) for job in ours["decode"]]
    assert places == [("decode", 1, 8, 11), ("batch 3", 3, 8, 11), ("at 20", 1, 20, 26)]  # there the repeats go on
    for job in ours["decode"]:
        assert job["ms_per_token"]["median"] <= job["ms_per_token"]["p95"]
    if Path("/proc/self/status").exists():
        assert 0 < result["memory"]["anonymous"] <= result["memory"]["resident"]


def test_random_weights_of_a_shape_need_no_file_and_have_no_load_time():
    result = measured("--model", "TINY", *SMALL)
    assert (result["weights"], result["dtype"], result["load_s"]) == ("random", "bfloat16", None)
    check_figures({**result, "load_s": 1})


def test_without_a_checkpoint_it_is_the_demo_and_without_a_tokenizer_a_folder_will_do(ckpt, tmp_path):
    demo = measured("--prompt", 8, "--new-tokens", 2, "--repeats", 1, "--threads", 1)
    assert demo["model"] == "demo checkpoint"
    for name in ("params.json", "consolidated.00.pth"):
        (tmp_path / name).write_bytes((ckpt / name).read_bytes())
    assert measured("--ckpt-dir", tmp_path, *SMALL)["n_params"] == measured("--ckpt-dir", ckpt, *SMALL)["n_params"]


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_quantized_weights_are_fewer_bytes(quantize):
    full = measured("--model", "tiny", *SMALL)
    packed = measured("--model", "tiny", *SMALL, "--quantize", quantize)
    check_figures({**packed, "load_s": 1})
    bytes_read = [one["engines"]["minillama"]["decode"][0]["weight_bytes"] for one in (full, packed)]
    assert bytes_read[1] < 0.7 * bytes_read[0]
    assert packed["quantize"] == packed["engines"]["minillama"]["weights_in"] == quantize


def test_a_folder_of_quantized_weights_is_measured_as_it_is_and_not_against_peers(ckpt, tmp_path):
    folder = tmp_path / "int8"
    convert(ckpt, folder, "int8")
    result = measured("--ckpt-dir", folder, *SMALL)
    check_figures(result)
    assert (result["quantize"], result["dtype"]) == ("int8", "float32")
    assert "needs the full weights" in fail("--ckpt-dir", folder, *SMALL, "--against", "transformers")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_of_weights_are_all_but_the_rows_of_the_embedding_that_are_not_looked_up(tiny, dtype):
    ours = Ours(random_model(tiny, dtype, CPU), "")
    for rows in (1, 5):
        unread = (tiny.vocab_size - rows) * tiny.dim
        assert ours.weight_bytes(rows) == (tiny.n_params - unread) * dtype.itemsize


def test_bytes_of_the_cache_are_those_of_the_mean_position(ckpt):
    (job,) = measured("--ckpt-dir", ckpt, "--prompt", 8, "--new-tokens", 3, "--repeats", 1)["engines"]["minillama"][
        "decode"
    ]
    args = load_model(ckpt).args
    assert job["cache_bytes"] == kv_cache_bytes(args, 1, 10, torch.float32)  # steps that see 9, 10 and 11 tokens
    share = job["weights_and_cache_gb_per_s"] / job["weights_gb_per_s"]
    assert share == pytest.approx(1 + job["cache_bytes"] / job["weight_bytes"])


def test_what_a_module_says_of_its_weights_goes_before_its_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    module[0].weight_bytes = 5
    assert measuring.module_bytes(module) == 5 + 64


def test_random_weights_are_the_same_for_the_same_name_and_a_model_is_made_of_them(tiny):
    model = random_model(tiny, torch.float32, CPU)
    plain = Transformer(tiny).eval()
    plain.load_state_dict({k: random_weight(k, v.shape, v.dtype, CPU) for k, v in plain.state_dict().items()})
    ids = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids), plain(ids), rtol=0, atol=1e-5 * float(plain(ids).abs().max()))


def test_every_engine_runs_every_job_once_a_repeat_and_each_goes_first_in_turn():
    class Recorder(Engine):
        def __init__(self, name: str):
            self.name = name

        def steps(self, prompts: list[list[int]], new: int, kept: bool = False) -> Iterator[object]:
            seen.append((self.name, len(prompts), len(prompts[0]), new, kept))
            return iter(range(new))

    seen: list[tuple[str, int, int, int, bool]] = []
    engines: list[Engine] = [Recorder("a"), Recorder("b")]
    plan = Plan((4, 9), batches=(1, 2), new_tokens=3, repeats=2, at_position=50)
    far = {engine.name: measuring.warm_up(engine, plan, 100) for engine in engines}
    filled = [one for one in seen if one[4]]
    assert filled == [("a", 1, 50, 7, True), ("b", 1, 50, 7, True)]
    seen.clear()
    bandwidth, times = measuring.measure(engines, plan, 100, CPU, far, lambda what: None)
    each = [(1, 4, 4, False), (2, 4, 4, False), (1, 9, 1, False)]
    assert seen == [(name, *job) for name in ("a", "b", "b", "a") for job in each]
    assert len(bandwidth) == 2 and min(bandwidth) > 0
    wanted = {Job(1, 4, 3): 4, Job(2, 4, 3): 4, Job(1, 9, 0): 1, Job(1, 50, 3, kept=True): 3}
    for engine in engines:
        assert {job: [len(run) for run in runs] for job, runs in times[engine.name].items()} == {
            job: [n, n] for job, n in wanted.items()
        }


def test_compiled_decoding_is_what_is_measured_if_asked_for(ckpt, monkeypatch):
    calls = []

    def step(*args: Any) -> torch.Tensor:
        calls.append(1)
        return decode_step(*args)

    monkeypatch.setattr(measuring, "compiled_step", lambda: step)
    monkeypatch.setattr("minillama.generation.compiled_step", lambda: step)
    assert measured("--ckpt-dir", ckpt, "--prompt", 8, "--new-tokens", 3, "--repeats", 2, "--compile")["compile"]
    assert len(calls) >= 9  # three in each of two repeats, and before them all once to warm up


def test_results_are_medians_and_rates_of_the_times(ckpt):
    model = load_model(ckpt)
    ours, position = Ours(model, ""), kv_cache_bytes(model.args, 1, 1, torch.float32)
    plan = Plan((10,), batches=(2,), new_tokens=2, repeats=3)
    times = {Job(2, 10, 2): [[9, 0.5, 1.5], [9, 1, 1], [9, 4, 4]], Job(1, 10, 0): [[5.0], [2.0], [1.0]]}
    result = measuring.summary(ours, plan, times, 2.0, position)
    assert result["first_token_ms"] == {"median": 2000, "lowest": 1000, "highest": 5000}
    assert result["prefill_tokens_per_s"] == {"10": {"median": 5, "lowest": 2, "highest": 10}}
    (job,) = result["decode"]
    assert job["ms_per_token"] == {"median": 1000, "lowest": 1000, "highest": 4000, "p95": 4000}
    assert job["tokens_per_s"] == {"median": 2, "lowest": 0.5, "highest": 2}
    assert job["weights_gb_per_s"] == pytest.approx(ours.weight_bytes(2) / 1e9)  # two rows share the reading
    assert job["weights_of_bandwidth"] == pytest.approx(job["weights_gb_per_s"] / 2)


def test_ranks_measure_their_own_share(ckpt):
    one = measured("--ckpt-dir", ckpt, *SMALL)["engines"]["minillama"]["decode"][0]
    for result in run_ranks(2, bench, Plan((8,), new_tokens=2, repeats=1), ckpt):
        assert result["ranks"] == 2
        share = result["engines"]["minillama"]["decode"][0]
        assert 0.5 < share["weight_bytes"] / one["weight_bytes"] < 0.6  # a half, and all of the norms


# Peers --------------------------------------------------------------------------------------------------------------


def peer_of(kind: Callable[..., Engine], model: Transformer, dtype: torch.dtype, quantize: str | None = None) -> Engine:
    return kind(model.args, lambda key: model.get_parameter(key).detach().to(dtype), dtype, CPU, quantize)


def difference(peer: Engine, model: Transformer, ids: list[int]) -> float:
    expected = Ours(model, "").logits(ids)
    return float((peer.logits(ids) - expected).abs().max() / expected.abs().max())


@pytest.fixture
def llama_cpp() -> None:
    for package in ("gguf", "llama_cpp"):
        pytest.importorskip(package, reason="the extra package of `pip install 'minillama[bench]'`")


@pytest.mark.parametrize("heads", GQA)
def test_transformers_computes_the_same_logits(tiny_model, heads):
    model = tiny_model(**heads)
    ids = list(range(100, 140))
    assert difference(peer_of(Transformers, model, torch.float32), model, ids) < 1e-5


@pytest.mark.parametrize("heads", GQA)
def test_llama_cpp_computes_the_same_logits(llama_cpp, tiny_model, heads):
    # 1e-5 holds because it is made to compute in fp32 throughout: with its default cache and attention it is 1e-3.
    model = tiny_model(**heads)
    peer = peer_of(LlamaCpp, model, torch.float32)
    assert difference(peer, model, list(range(100, 140))) < 1e-5
    peer.close()


@pytest.mark.parametrize(("quantize", "least", "most"), [(None, 0, 0.01), ("int8", 1e-4, 0.05), ("int4", 1e-3, 0.5)])
def test_llama_cpp_runs_weights_of_as_many_bits(llama_cpp, tiny_model, quantize, least, most):
    model = tiny_model()
    peer = peer_of(LlamaCpp, model, torch.float16, quantize)
    bits = {None: 16, "int8": 8.5, "int4": 4.5}[quantize]
    norms = 5 * 64  # are fp32 in every file
    assert peer.weight_bytes(1) == (model.args.n_params - 31999 * 64 - norms) * bits / 8 + norms * 4
    assert least <= difference(peer, model, list(range(100, 140))) < most
    peer.close()


def test_llama_cpp_runs_without_its_special_layouts_where_those_crash(llama_cpp, tiny_model, monkeypatch):
    monkeypatch.setattr(bench_peers, "_survives", lambda c, path: False)
    model = tiny_model()
    peer = peer_of(LlamaCpp, model, torch.float16, "int8")
    assert peer.held == "q8_0 plain"
    assert difference(peer, model, list(range(100, 140))) < 0.05
    peer.close()


def test_whether_llama_cpp_crashes_is_tried_in_a_process_of_its_own_and_only_where_it_has_amx(monkeypatch, tmp_path):
    plain, amx = (SimpleNamespace(llama_print_system_info=lambda i=i: i) for i in (b"AVX512 = 1", b"AMX_INT8 = 1"))
    assert bench_peers._survives(plain, tmp_path / "none.gguf")
    assert not bench_peers._survives(amx, tmp_path / "none.gguf")  # there is no such file, so that process fails


@pytest.mark.parametrize("kind", [Transformers, LlamaCpp])
def test_a_peer_continues_rows_as_we_do(request, kind, ckpt):
    if kind is LlamaCpp:
        request.getfixturevalue("llama_cpp")
    model = load_model(ckpt)
    peer = peer_of(kind, model, torch.float32)
    prompts = [[5, 6, 7, 8], [300, 20, 10, 9]]
    for _ in range(2):  # and again, with the cache that it has
        rows = list(Ours(model, "").steps(prompts, 6))[-1]
        columns = list(peer.steps(prompts, 6))
        assert [list(row) for row in zip(*columns)] == [row.tokens for row in rows]
    peer.close()


def test_the_sequence_that_goes_on_is_not_touched_by_those_that_begin_anew(llama_cpp, ckpt):
    model = load_model(ckpt)
    peer = peer_of(LlamaCpp, model, torch.float32)
    alone = list(peer.steps([[5, 6, 7, 8]], 6))
    kept, mixed = peer.steps([[5, 6, 7, 8]], 6, kept=True), []
    for _ in range(6):
        mixed.append(next(kept))
        list(peer.steps([[9, 10, 11, 12]], 6))  # of the same size
    assert mixed == alone
    peer.close()


def test_ratios_are_quotients_of_the_medians_that_are_reported(ckpt):
    result = measured("--ckpt-dir", ckpt, *SMALL, "--batch", "1,2", "--against", "transformers")
    check_figures(result)
    ours, theirs = result["engines"]["minillama"], result["engines"]["transformers"]
    ratios = result["times_as_fast_as"]["transformers"]
    assert ratios == times_as_fast(ours, theirs)

    def medians(*path: Any) -> tuple[float, float]:
        a, b = ours, theirs
        for key in path:
            a, b = a[key], b[key]
        return a["median"], b["median"]

    pairs = {
        "prefill 8 tokens/s": medians("prefill_tokens_per_s", "8"),
        "prefill 16 tokens/s": medians("prefill_tokens_per_s", "16"),
        "first token ms": medians("first_token_ms")[::-1],
        "decode ms (p95)": medians("decode", 0, "ms_per_token")[::-1],
        "decode tokens/s": medians("decode", 0, "tokens_per_s"),
        "batch 2 tokens/s": medians("decode", 1, "tokens_per_s"),
    }
    assert ratios == {key: pytest.approx(a / b) for key, (a, b) in pairs.items()}
    assert result["largest_logit_difference"]["transformers"] < 1e-5


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_peers_get_the_same_random_weights_packed_or_quantized_as_ours_may_be(quantize):
    options = ("--quantize", quantize) if quantize else ()
    result = measured("--model", "tiny", *SMALL, "--against", "transformers", *options)
    assert result["largest_logit_difference"]["transformers"] < 0.05
    assert result["engines"]["transformers"]["weights_in"] == "bfloat16"


@pytest.mark.parametrize("options", [(), ("--quantize", "int8")])
def test_all_engines_in_one_run(llama_cpp, ckpt, options):
    result = measured("--ckpt-dir", ckpt, *SMALL, "--against", "transformers,llamacpp", "--at-position", 20, *options)
    check_figures(result)
    assert list(result["engines"]) == ["minillama", "transformers", "llamacpp"]
    assert result["engines"]["llamacpp"]["weights_in"] == ("q8_0" if options else "f32")


def test_a_peer_that_computes_something_else_is_an_error_and_not_a_comparison(ckpt, monkeypatch):
    class Wrong(Transformers):
        def logits(self, ids: list[int]) -> torch.Tensor:
            return super().logits(ids) * 1.01

    monkeypatch.setitem(bench_peers.PEERS, "transformers", Wrong)
    assert "transformers computes something else" in fail("--ckpt-dir", ckpt, *SMALL, "--against", "transformers")


def test_the_file_for_llama_cpp_goes_with_it(llama_cpp, tiny_model):
    peer = peer_of(LlamaCpp, tiny_model(), torch.float32)
    folder = Path(peer.folder.name)  # type: ignore[attr-defined]
    assert (folder / "model.gguf").is_file() or not folder.exists()
    peer.close()
    assert not folder.exists()


# For people ---------------------------------------------------------------------------------------------------------


def test_the_table_names_every_engine_and_column_in_100_characters_a_line(ckpt):
    result = bench(
        Plan((8, 16), batches=(1, 2, 3), new_tokens=2, repeats=2, at_position=20),
        ckpt_dir=ckpt,
        against=["transformers"],
    )
    text = table(result)
    assert max(map(len, text.splitlines())) <= max(100, len(text.splitlines()[0]))
    for words in ("minillama float32", "transformers float32", "vs transformers", "memory is read at", "peak memory"):
        assert words in text
    for head in ("prefill 8", "prefill 16", "first token", "ms (p95)", "batch 2", "batch 3", "at 20", "of memory"):
        assert head in text
    for ratio in result["times_as_fast_as"]["transformers"].values():
        assert f"{ratio:.2f}x" in text


def test_text_goes_to_stdout_and_no_bar_to_a_file(ckpt):
    result = run("--ckpt-dir", ckpt, *SMALL)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{ckpt}, float32, cpu, 1 thread; medians of 2 repeats\n")


def test_a_person_at_a_terminal_sees_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", screen := Terminal())
    with cli._progress() as tick:
        tick(1, 3, "loading")
    assert "loading" in screen.getvalue() and "1/3" in screen.getvalue()


def test_progress_counts_every_part_once(ckpt):
    seen = []
    plan = Plan((8,), new_tokens=2, repeats=2)
    bench(plan, ckpt_dir=ckpt, against=["transformers"], tick=lambda done, total, what: seen.append((done, total)))
    assert seen == [(i, 8) for i in range(9)]


# What cannot be -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--against", "vllm"), "no peer 'vllm' to run against; there are transformers, llamacpp"),
        (("--prompt", "64,x"), "--prompt is '64,x'"),
        (("--prompt", "64,,65"), "whole numbers of 1 or more with commas"),
        (("--batch", "0"), "--batch is '0'"),
        (("--batch", "2,2"), "batches are [2, 2]; expected one number or more, each once"),
        (("--prompt", "8,200"), "200 tokens and 1 new ones are more than the model's max_seq_len 128"),
        (("--prompt", "8", "--new-tokens", "200"), "8 tokens and 201 new ones are more than"),
        (("--at-position", "120"), "120 tokens and 161 new ones in all repeats are more than"),
        (("--quantize", "int3"), "quantize is 'int3'; expected int8 or int4"),
        (("--dtype", "int8"), "dtype 'int8' is not one a model runs in"),
        (("--model", "7B"), "--model and --ckpt-dir name two models; give one"),
        (("--repeats", "0"), "repeats"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(ckpt, args, says):
    assert says in fail("--ckpt-dir", ckpt, *args)


def test_unknown_shape_and_missing_folder_are_said_in_one_line(tmp_path):
    assert fail("--model", "8B").startswith("no shape '8B'; there are 110M, 1.1B, 7B, 13B, 70B")
    assert str(tmp_path / "none") in fail("--ckpt-dir", tmp_path / "none")


def test_a_peer_that_is_not_installed_is_named_with_the_command_that_installs_it(ckpt, monkeypatch):
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(bench_peers, "import_module", missing)
    line = fail("--ckpt-dir", ckpt, "--against", "llamacpp")
    assert line.startswith("--against llamacpp needs gguf") and "pip install 'minillama[bench]'" in line


def test_a_shape_that_does_not_fit_says_how_much_it_takes_before_any_of_it_is_taken(monkeypatch):
    monkeypatch.setattr(measuring, "free_memory", lambda device: 10**9)
    monkeypatch.setattr(measuring, "random_model", lambda *args: pytest.fail("memory was taken"))
    line = fail("--model", "70b", "--against", "transformers")
    assert re.fullmatch(r"70B in bfloat16 takes 27\d GB \(minillama 138 GB, .*\), and 1\.00 GB are free", line)


def test_peers_under_torchrun_are_refused_before_ranks_are_joined(ckpt):
    line = fail("--ckpt-dir", ckpt, "--against", "transformers", env={"WORLD_SIZE": "2"})
    assert line == "--against runs in one process; start it without torchrun"


def test_the_package_does_not_need_bench():
    folder = Path(measuring.__file__).parent
    users = {
        path.name for path in folder.glob("*.py") if re.search(r"import.*\bbench|minillama\.bench", path.read_text())
    }
    assert users <= {"bench.py", "bench_peers.py", "cli.py"}
    assert "llama_cpp" not in vars(importlib.import_module("minillama.bench_peers"))


@pytest.mark.parametrize("options", [["--quantize", "int4"], ["--compile"]], ids=" ".join)
def test_what_a_quantized_folder_cannot_be_is_refused_without_a_tokenizer_too(ckpt, tmp_path, options):
    with pytest.warns(UserWarning) if not any(Path(ckpt).glob("tokenizer.model")) else contextlib.nullcontext():
        convert(ckpt, tmp_path / "q", "int8")
    (tmp_path / "q" / "tokenizer.model").unlink(missing_ok=True)
    result = run("--ckpt-dir", tmp_path / "q", *SMALL, *options)
    assert result.exit_code == 2 and "quantize" in result.stderr and result.stderr.count("\n") == 1
