"""Ranks that torchrun starts, on one machine and on several: the same answers, and an end when one of them fails.

Tolerance of logits: 1e-5 of the largest. Sums are taken in another order, which moves fp32 by about 1e-6 of it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launched import answers, built_for_the_compiler, compiled, one_leaves
from ranks import run_ranks
from toys import make_checkpoint
from watching import difference

from minillama import ModelArgs, cli, launch

TOLERANCE = 1e-5
REPO = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("launched.py")
HANG = 300  # seconds: no limit on speed, only an end to waiting for what hangs
ENV = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(REPO), str(SCRIPT.parent)])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight heads of each kind, so that eight ranks can share them."""
    shape = dict(dim=64, n_layers=2, n_heads=8, n_kv_heads=8, multiple_of=32)
    return str(make_checkpoint(tmp_path_factory.mktemp("eight"), seed=4, **shape))


@pytest.fixture(scope="module")
def alone(folder: str) -> dict[str, Any]:
    return answers(folder)


def check_same(found: dict[str, Any], alone: dict[str, Any], ranks: int) -> None:
    assert found["ranks"] == ranks
    assert found.keys() == alone.keys()
    for name, answer in alone.items():
        if name in ("logits", "cached"):
            assert difference(found[name], answer) <= TOLERANCE, name
        elif name not in ("ranks", "cache bytes", "weights"):
            assert found[name] == answer, name  # tokens, and the forwards it took: the same stop step


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_any_number_of_ranks_gives_one_process_s_logits_tokens_and_stop_step(
    ranks: int, folder: str, alone: dict[str, Any]
) -> None:
    for found in run_ranks(ranks, answers, folder):
        check_same(found, alone, ranks)
        assert found["cache bytes"] * ranks == alone["cache bytes"]
        assert found["weights"] < alone["weights"] or ranks == 1


def test_the_requests_of_the_tests_above_stop_early_and_differ(alone: dict[str, Any]) -> None:
    assert any(len(row) < 16 for row in alone["greedy, stop id"]["tokens"] + alone["greedy, stop string"]["tokens"])
    assert len({str(alone[name]["tokens"]) for name in ("greedy", "seed", "seeds that differ")}) == 3
    assert alone["logits"].abs().max() > 3


# --- Several machines -------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def two_nodes(*args: object, per_node: int = 1, env: dict[str, str] | None = None) -> list[tuple[int, str, str]]:
    """Two torchruns that find each other on loopback; exit code, stdout and stderr of each. NODE in args: 0 or 1."""
    port = free_port()
    started = []
    for node in (0, 1):
        launch = [
            "--nnodes", "2", "--node_rank", node, "--nproc_per_node", per_node, "--max_restarts", 0,
            "--rdzv_backend", "static", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "test",
        ]  # fmt: skip
        command = [sys.executable, "-m", "torch.distributed.run", *launch, SCRIPT, *args]
        started.append(
            subprocess.Popen(
                [str(part).replace("NODE", str(node)) for part in command],
                env=ENV | (env or {}), cwd=REPO, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    try:
        return [(*process.communicate(timeout=HANG), process.returncode)[::-1] for process in started]  # type: ignore[misc]
    finally:
        for process in started:
            process.kill()


def test_two_machines_of_two_ranks_give_one_process_s_answers(
    folder: str, alone: dict[str, Any], tmp_path: Path
) -> None:
    for code, stderr, _ in two_nodes(folder, tmp_path, per_node=2):
        assert code == 0, stderr
        assert "destroy_process_group" not in stderr  # torch's complaint where it was not
    for rank in range(4):
        check_same(torch.load(tmp_path / f"{rank}.pt"), alone, 4)


def test_a_machine_that_cannot_start_says_why_and_the_other_ends_and_names_the_timeout(folder: str) -> None:
    args = ["--cli", "complete", "once", "--ckpt-dir", f"{folder}/../NODE", "--device", "cpu", "--max-gen-len", 2]
    Path(folder, "..", "0").unlink(missing_ok=True)
    Path(folder, "..", "0").symlink_to(folder)
    (first, heard_first, _), (second, heard_second, _) = two_nodes(*args, env={"MINILLAMA_TIMEOUT": "6"})
    assert first != 0 and second != 0
    assert "minillama: error: rank 1: no folder" in heard_second
    assert "rank 0 lost the others" in heard_first and "6 s (MINILLAMA_TIMEOUT)" in heard_first


# --- Ranks that fail --------------------------------------------------------------------------------------------------


def test_a_rank_that_ends_is_noticed_by_the_others(folder: str) -> None:
    said, _ = run_ranks(2, one_leaves, folder, 0.0)
    assert "rank 0 lost the others" in said and "MINILLAMA_TIMEOUT" in said


def test_a_rank_that_is_silent_is_given_up_after_the_timeout(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLAMA_TIMEOUT", "2")
    said, _ = run_ranks(2, one_leaves, folder, 8.0)
    assert "silent for 2 s (MINILLAMA_TIMEOUT)" in said


def test_under_torchrun_the_rank_that_fails_speaks_for_itself_and_ends_the_others(folder: str) -> None:
    Path(folder, "..", "rank0").unlink(missing_ok=True)
    Path(folder, "..", "rank0").symlink_to(folder)
    args = ["--cli", "complete", "once", "--ckpt-dir", f"{folder}/../rankRANK", "--device", "cpu"]
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    done = subprocess.run(
        [sys.executable, *launch, str(SCRIPT), *args], env=ENV, cwd=REPO, capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.count("minillama: error: ") == 1  # one cause, told once
    assert "minillama: error: rank 1: no folder" in done.stderr


@pytest.mark.parametrize("said", ["soon", "-1", "0", "inf", "1e9", "99999999"])
def test_a_timeout_that_is_none_is_refused_with_its_name(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLAMA_TIMEOUT", said)
    with pytest.raises(ValueError, match="MINILLAMA_TIMEOUT"):
        launch.patience()


def test_only_what_other_ranks_do_is_told_as_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("Connection closed by peer")):
        with pytest.raises(type(error)) as caught, launch.explained():
            raise error
        assert caught.value is error
    for text in (
        "[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:9",
        "Timed out waiting 2000ms",
    ):
        with pytest.raises(launch.LostRanks, match="rank 0"), launch.explained():
            raise RuntimeError(text)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeError) as alone, launch.explained():
        raise RuntimeError("Timed out waiting 2000ms")
    assert not isinstance(alone.value, launch.LostRanks)


def test_what_nccl_says_of_itself_is_no_lost_rank_and_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    where = "NCCL error in: ProcessGroupNCCL.cpp:94, invalid usage, NCCL version 2.29.7\nncclInvalidUsage: see below.\n"
    with pytest.raises(ConnectionError, match="rank 0 cannot exchange.*Duplicate GPU detected.*NCCL_DEBUG"):
        with launch.explained():
            raise dist.DistBackendError(f"{where}Last error:\nDuplicate GPU detected : rank 0 and rank 1")
    with pytest.raises(launch.LostRanks, match=r"says why \(remote process exited or there was a network error\)"):
        with launch.explained():
            raise dist.DistBackendError(f"{where}Last error:\nremote process exited or there was a network error")
    assert cli._mendable(ConnectionError("rank 0 cannot exchange")) == "rank 0 cannot exchange"


def test_graphs_that_hold_exchanges_are_let_go_before_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's communicators wait for the CUDA graphs that use them, and torch keeps those."""
    order: list[str] = []
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", sys)  # as after a recording
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for owner, name in (
        (torch._dynamo, "reset"),
        (launch.mpu, "destroy_model_parallel"),
        (dist, "destroy_process_group"),
    ):
        monkeypatch.setattr(owner, name, lambda name=name: order.append(name))
    launch.leave()
    assert order == ["reset", "destroy_model_parallel", "destroy_process_group"]


def test_a_long_reason_is_cut_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(launch.LostRanks) as caught, launch.explained():
        raise RuntimeError("Connection closed by peer " + "elsewhere " * 100)
    said = str(caught.value)
    assert said.endswith(" elsewhere ...)") and len(said) < 500


def test_a_lost_rank_is_one_line_on_the_command_line() -> None:
    assert cli._mendable(launch.LostRanks("rank 0 lost\nthe others")) == "rank 0 lost the others"


# --- GPUs that are not there ------------------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`gpus(n)`: from here on torch says that this machine has n; touching one, or meeting other ranks, is an error."""

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("touched")

    for owner, name in ((dist, "init_process_group"), (torch.cuda, "set_device")):
        monkeypatch.setattr(owner, name, forbidden)

    def have(n: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)

    return have


@pytest.mark.parametrize("rank", range(4))
def test_more_ranks_than_gpus_is_the_same_error_on_every_rank_before_any_waits(
    rank: int, gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2)
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}.items():
        monkeypatch.setenv(name, value)
    for device in ("auto", "cuda"):
        with pytest.raises(ValueError, match=r"4 processes.*has 2 GPUs.*--nproc_per_node 2.*--nnodes.*--device cpu"):
            launch.start(None, device)


def test_ranks_on_other_machines_need_no_gpu_here(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "3", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert launch.pick_device() == torch.device("cuda", 1)


def test_one_gpu_for_all_ranks_of_a_machine_is_refused(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    for device in ("cuda:0", torch.device("cuda", 0)):
        with pytest.raises(ValueError, match="cuda:0 is one GPU, and 2 processes were started.*say cuda"):
            launch.start(None, device)

    def met(*_: Any, **__: Any) -> None:
        raise LookupError

    monkeypatch.setattr(dist, "init_process_group", met)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    for device in ("cuda", torch.device("cuda", 1)):  # rank 1's own: it goes on to meet the others
        with pytest.raises(LookupError):
            launch.start(None, device)


@pytest.mark.parametrize(
    ("n", "ranks", "cure"),
    [
        (0, "1", "asked for is cuda:9, .* 0 GPUs; use --device cpu"),
        (1, "1", "asked for is cuda:9, .* 1 GPU; use --device cuda or cpu"),
        (2, "4", "rank 1 wants cuda:9, .* 2 GPUs; start at most 2 here .*--nproc_per_node 2.*, or use --device cpu"),
    ],
)
def test_a_gpu_that_is_not_there_is_named_with_what_there_is(
    n: int, ranks: str, cure: str, gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(n)
    for name, value in {"WORLD_SIZE": ranks, "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=cure):
        launch.pick_device("cuda:9")


def test_attention_on_a_gpu_is_not_cudnn_s(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a plan for every length of the cache."""
    gpus(1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    torch.backends.cuda.enable_cudnn_sdp(True)
    launch.pick_device("cpu")
    assert torch.backends.cuda.cudnn_sdp_enabled()
    launch.pick_device()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)


def test_a_driver_for_which_torch_finds_no_gpu_is_told(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(launch, "DRIVER", tmp_path / "version")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert launch.pick_device().type == "cpu"  # a machine without one
    launch.DRIVER.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86\n")
    with pytest.warns(UserWarning, match=r"built for CUDA 13\.0, finds no GPU"):
        assert launch.pick_device().type == "cpu"
    with pytest.warns(UserWarning, match="finds no GPU"), pytest.raises(ValueError, match="has 0 GPUs"):
        launch.pick_device("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # somebody wants it so
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch.pick_device()
        launch.pick_device("cpu")


@pytest.mark.parametrize(("has_bf16", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_on_a_gpu_the_usual_dtype_is_bf16_where_the_card_has_it(
    has_bf16: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: has_bf16)
    assert launch.usual_dtype(torch.device("cuda", 0)) == dtype
    assert launch.usual_dtype(torch.device("cpu")) is None


def test_world_sizes_that_heads_cannot_share_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"40.*16 ranks"):
        ModelArgs.preset("13B").check_ranks(16)


# --- The compiler -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def through_the_compiler(folder: str) -> list[dict[str, Any]]:
    return run_ranks(2, compiled, folder, ["eager", "aot_eager"])


def test_the_compiler_takes_a_step_of_two_ranks_whole(through_the_compiler: list[dict[str, Any]]) -> None:
    for found in through_the_compiler:
        assert found["fairscale breaks the graph"]  # else for_inference would not be needed
        for backend in ("eager", "aot_eager"):
            assert difference(found[backend], found["fairscale"]) <= TOLERANCE


def test_without_the_compiler_its_exchanges_give_the_same_and_are_none_of_fairscale_s(
    through_the_compiler: list[dict[str, Any]],
) -> None:
    for found in through_the_compiler:
        assert found["the model is the same object"] and found["the names stay"]
        assert difference(found["eager"], found["fairscale"]) <= TOLERANCE
        assert found["fairscale's all-reduces"] == 0


def test_gradients_still_go_through(through_the_compiler: list[dict[str, Any]]) -> None:
    for found in through_the_compiler:
        assert len(found["gradients"]) == 2 * 9 + 3
        assert max(found["gradients"].values()) <= TOLERANCE


def test_ranks_agree_on_what_all_of_them_can_afford(through_the_compiler: list[dict[str, Any]]) -> None:
    assert [found["smallest"] for found in through_the_compiler] == [5 * 10**11] * 2
    # A request that one of them has no memory for is refused by both: one that went on would wait for the other.
    for found in through_the_compiler:
        assert "does not fit" in found["refused"] and "on each of 2 ranks" in found["refused"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's code for the CPU is compiled with g++")
def test_build_puts_them_on_for_the_compiler(folder: str) -> None:
    plain = answers(folder)["logits"][0, 2].argmax()
    for tokens in run_ranks(2, built_for_the_compiler, folder):
        assert tokens[0][0] == plain
