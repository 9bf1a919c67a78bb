"""What a GPU will be given, looked at without one; and the scripts that check a GPU and real sizes, run small.

No test here looks at a clock. What the scripts print has not been compared with a GPU's by anyone yet.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from watching import Watch

from minillama import KVCache, ModelArgs, Transformer, parallel
from minillama.bench import SHAPES
from minillama.decode import Row, decode, decode_step
from minillama.memory import kv_cache_bytes, weight_bytes

ROOT = Path(__file__).resolve().parents[1]
TINY = dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=320, multiple_of=32, max_seq_len=128)


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for what annotations mean
    spec.loader.exec_module(module)
    return module


# --- Flash attention --------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_prefill_and_step_reach_the_flash_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch takes it only without a mask, in one dtype, with neighbouring numbers of a head side by side."""
    model = Transformer(ModelArgs(**TINY)).bfloat16().eval()
    given: list[dict[str, Any]] = []
    attend = F.scaled_dot_product_attention

    def looked_at(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        given.append({"tensors": (q, k, v)} | options)
        return attend(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", looked_at)
    cache = KVCache.for_model(model, 2, 64)
    with Watch() as watch:
        model(torch.full((2, 40), 7), 0, cache)
        model(torch.full((2, 1), 7), 40, cache)
    for call in given:
        assert call["attn_mask"] is None
        assert {t.dtype for t in call["tensors"]} == {torch.bfloat16}
        assert all(t.stride(-1) == 1 for t in call["tensors"])
    assert [call.get("is_causal", False) for call in given] == [True, True, False, False]
    attention = [op.name for op in watch.ops if "attention" in op.name]
    assert attention == ["_scaled_dot_product_flash_attention_for_cpu"] * 4


@torch.no_grad()
def test_rows_of_different_lengths_reach_it_in_the_prefill() -> None:
    model = Transformer(ModelArgs(**TINY)).bfloat16().eval()
    with Watch() as watch:
        next(decode(model, [Row([7] * 30, 2), Row([7] * 20, 2)], lambda logits, rows: logits.argmax(-1), ()))
    assert [op.name for op in watch.ops if "attention" in op.name] == [
        "_scaled_dot_product_flash_attention_for_cpu"
    ] * 2


# --- tools/gpu_check --------------------------------------------------------------------------------------------------

SAID = (
    "machine", "versions", "bf16 in hardware", "bf16 here against fp32 on the CPU",
    "the same through the compiled step", "memory bandwidth", "weights", "a request, beside weights",
    "time to the first token", "prefill", "decoding, batch 1", "decoding, batch 1, compiled", "decoding, batch 3",
    "decoding, batch 3, compiled",
)  # fmt: skip


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which knows a tiny model and does not wait for g++."""
    script = tool("gpu_check")
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setattr(script, "bandwidth_probe", lambda device: lambda: 10.0)  # of 400 MB, for the other tests' sake
    monkeypatch.setattr(
        script, "compiled_step", lambda: torch.compile(decode_step, fullgraph=True, backend="eager")
    )  # fmt: skip
    torch._dynamo.reset()
    return script


def run_check(script: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> tuple[int, Any]:
    arguments = ["--device", "cpu", "--model", "tiny", "--prompt", "32", "--new-tokens", "4", "--repeats", "2"]
    monkeypatch.setattr(
        sys, "argv", ["gpu_check.py", *arguments, "--batch", "3", "--json", str(folder / "out.json"), *more]
    )
    code = script.main()
    return code, json.loads((folder / "out.json").read_text())


def test_every_line_of_the_gpu_check_comes_out_on_a_cpu(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run_check(gpu_check, monkeypatch, tmp_path)
    assert code == 0 and said["good"] is True
    lines = {line["what"]: line for line in said["lines"]}
    assert set(SAID) <= lines.keys()
    for what in ("bf16 here against fp32 on the CPU", "the same through the compiled step", "weights"):
        assert lines[what]["good"] is True
    assert said["weight_bytes"] == weight_bytes(ModelArgs(**TINY), torch.bfloat16)
    cache = kv_cache_bytes(ModelArgs(**TINY), 1, 32 + 4 + 1, torch.bfloat16)
    assert cache < said["request_bytes"] <= said["planned"]
    for name in ("decode_1", "decode_1_compiled", "decode_3", "decode_3_compiled"):
        assert said[name]["tokens_per_s"] > 0 and said[name]["gb_per_s"] > 0
    table = capsys.readouterr().out
    assert all(what in table for what in SAID)


def test_what_is_known_when_the_time_is_up_is_still_a_table(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(gpu_check, "speed", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as end:
            run_check(gpu_check, monkeypatch, tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end.value.code == 128 + signal.SIGTERM
    table = capsys.readouterr().out
    assert "bf16 here against fp32 on the CPU" in table and "not run: the time was up" in table


def test_a_device_that_computes_something_else_is_found_out(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = gpu_check.logits_of

    def wrong(model: Transformer, ids: torch.Tensor, step: Any = None) -> torch.Tensor:
        logits = right(model, ids, step)
        if step is not None:  # one position of the compiled step is that of its neighbour
            logits[3] = logits[4]
        return logits

    monkeypatch.setattr(gpu_check, "logits_of", wrong)
    code, said = run_check(gpu_check, monkeypatch, tmp_path)
    lines = {line["what"]: line["good"] for line in said["lines"]}
    assert code == 1 and said["good"] is False
    assert lines["bf16 here against fp32 on the CPU"] and not lines["the same through the compiled step"]
    assert "NO" in capsys.readouterr().out


def test_a_part_that_fails_is_a_line_and_the_others_are_told(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no such\nkernel")

    monkeypatch.setattr(gpu_check, "correctness", fails)
    code, said = run_check(gpu_check, monkeypatch, tmp_path, "--no-compile")
    lines = {line["what"]: line for line in said["lines"]}
    assert code == 1 and lines["correctness"]["beside"] == "RuntimeError: no such kernel"
    assert "decoding, batch 1" in lines


def test_what_there_is_no_time_for_is_said_to_be_missing(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, said = run_check(gpu_check, monkeypatch, tmp_path, "--minutes", "0.05")
    assert {line["found"] for line in said["lines"] if line["what"] in ("correctness", "speed")} == {
        "not run: no time left"
    }


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_the_shell_script_passes_its_arguments_on() -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "tools" / "gpu_check.sh"), "--help"], capture_output=True, text=True, timeout=300,
        env={"PYTHON": sys.executable, "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--new-tokens" in done.stdout


# --- tools/real_size --------------------------------------------------------------------------------------------------

only_linux = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="posix_fadvise is Linux's")


@pytest.fixture(scope="module")
def real_size() -> ModuleType:
    return tool("real_size")


def start(work: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "real_size.py"), str(work), "--prompt", "8", "--new-tokens", "2"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, "--repeats", "1", *more], capture_output=True, text=True, timeout=300, env=env)


@only_linux
def test_a_small_whole_model_and_one_rank_s_share_are_made_loaded_run_and_removed(
    tmp_path: Path, real_size: ModuleType
) -> None:
    done = start(tmp_path, "--case", "tiny", "--case", "tiny/8")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["real_size.json"]
    results = json.loads((tmp_path / "real_size.json").read_text())
    args = ModelArgs(**real_size.ALL["tiny"])
    for case, ranks in (("tiny", 1), ("tiny/8", 8)):
        found = results["cases"][case]
        weights = weight_bytes(args, torch.bfloat16, ranks)
        assert found["run"]["weights"] == weights
        assert weights < found["make"]["file_bytes"] == found["read"]["bytes"] < 1.1 * weights
        assert found["run"]["tokens_per_s"] > 0 and found["run"]["ready_s"] >= found["run"]["load_s"]
    assert done.stdout.rstrip() == real_size.report(results)
    assert "| tiny | tiny/8 |" in done.stdout
    again = start(tmp_path, "--case", "tiny", "--case", "tiny/8")  # all is done
    assert again.stdout == done.stdout and again.stderr == ""


@only_linux
def test_a_run_that_was_stopped_goes_on_where_it_was(
    tmp_path: Path, real_size: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file = tmp_path / "real_size.json", tmp_path / "tiny" / "consolidated.00.pth"

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    def go_on(in_child: Any, keep: bool = True) -> None:
        monkeypatch.setattr(real_size, "in_child", in_child)
        real_size.measure(argparse.Namespace(work=tmp_path, case=["tiny"], keep=keep))

    def done() -> set[str]:
        return set(json.loads(path.read_text())["cases"]["tiny"])

    monkeypatch.setattr(real_size, "report", str)
    with pytest.raises(KeyboardInterrupt):
        go_on(stopped)
    assert done() == {"make", "read"}
    made = file.stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt):
        go_on(stopped)
    assert file.stat().st_mtime_ns == made  # not made again
    file.write_bytes(file.read_bytes()[:1000])  # half a file is no file
    go_on(lambda *_: {"tokens_per_s": 1.0})
    assert done() == {"make", "read", "run"} and file.stat().st_size > 10**6
    go_on(stopped, keep=False)  # nothing is left to do but to remove the files
    assert not file.exists()


def test_the_table_goes_into_the_document_in_place_of_the_last_one(real_size: ModuleType) -> None:
    document = (ROOT / "docs" / "real-checkpoints.md").read_text()
    once = real_size.put_into(document, "| first |")
    assert "| first |" in once and once.startswith(document[:1000]) and once.endswith(document[-1000:])
    assert real_size.put_into(once, "| second |") == real_size.put_into(document, "| second |")
    with pytest.raises(SystemExit, match="real_size: begin"):
        real_size.put_into("no place", "| first |")


def test_without_room_on_the_disk_nothing_is_written(
    tmp_path: Path, real_size: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 14 * 10**9))
    with pytest.raises(SystemExit, match=r"7B takes 13\.5 GB and 1\.00 GB.*has 14\.0 GB"):
        real_size.make("7B", tmp_path / "7B")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["8B", "7B/x", "7B/-1"])
def test_a_case_that_is_none_is_refused_with_those_there_are(case: str, real_size: ModuleType) -> None:
    with pytest.raises(SystemExit, match="70B"):
        real_size.shape_of(case)


def test_the_shares_of_a_70b_are_17_gb(real_size: ModuleType) -> None:
    args, ranks = real_size.shape_of("70B/8")
    assert weight_bytes(args, torch.bfloat16, ranks) == pytest.approx(17.2e9, rel=0.01)
    assert parallel.split_dim("layers.0.attention.wo.weight") == 1
