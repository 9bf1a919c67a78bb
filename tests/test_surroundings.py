"""What the program around us does must not reach in: torch's global settings, closed streams, odd launches, links."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import make_checkpoint

from minillama import CheckpointError, Llama, Score, Transformer
from minillama.checkpoint import read_file
from minillama.storyteller import demo_dir

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = [[1, 300, 301], [1, 290]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("surroundings") / "random")


@pytest.fixture
def llama(folder: Path) -> Llama:
    return Llama.build(folder, device="cpu")


def run(*args: str, redirect: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m minillama ARGS` through a shell, which can close streams."""
    words = " ".join([f"'{sys.executable}'", "-m", "minillama", *args, redirect])
    env = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK")} | variables
    return subprocess.run(["sh", "-c", words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("logprobs", [False, True])
def test_torchs_defaults_for_dtype_and_device_change_nothing(llama: Llama, logprobs: bool) -> None:
    def results() -> tuple[object, object]:
        generated = llama.generate(PROMPTS, 8, logprobs=logprobs, echo=logprobs, seed=3, frequency_penalty=0.5)
        return generated, [score.logprobs for score in llama.score(PROMPTS)]

    expected = results()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert results() == expected
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert results() == expected
        assert len(llama.generate(PROMPTS, 4)[0]) == 2  # a seed of its own


def test_a_model_built_inside_inference_mode_can_be_cast_and_trained_outside(folder: Path) -> None:
    with torch.inference_mode():
        model = Transformer.from_checkpoint(folder)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert model.output.weight.grad is not None
    assert model.bfloat16()(torch.tensor([[1, 2, 3]])).dtype == torch.float32


def test_a_stream_begun_inside_inference_mode_goes_on_outside(llama: Llama) -> None:
    expected = [piece.tokens for piece in llama.stream_text("the cat", seed=1, max_gen_len=6)]
    with torch.inference_mode():
        stream = llama.stream_text("the cat", seed=1, max_gen_len=6)
        first = next(stream)
    assert [first.tokens, *(piece.tokens for piece in stream)] == expected


def test_tables_that_meta_keeps_in_old_files_are_passed_over(folder: Path, tmp_path: Path) -> None:
    weights = torch.load(folder / "consolidated.00.pth", weights_only=True)
    old = weights | {f"layers.{i}.attention.inner_attention.rope.freqs": torch.ones(4) for i in range(2)}
    torch.save(old | {"rope.freqs": torch.ones(4)}, tmp_path / "consolidated.00.pth")
    assert read_file(tmp_path / "consolidated.00.pth").keys() == weights.keys()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "git lfs pull"),
        (b"<!DOCTYPE html><title>Sign in</title>", "no file of PyTorch's"),
        (pickle.dumps({"a": print}, 2), "could run code"),
    ],
)
def test_what_a_file_is_instead_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "consolidated.00.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        read_file(path)


def test_a_newer_pickle_protocol_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "consolidated.00.pth"
    torch.save({"a": torch.ones(2)}, path, pickle_protocol=5)
    with pytest.raises(CheckpointError, match="newer protocol"):
        read_file(path)


def test_perplexity_beyond_floats_is_infinite() -> None:
    assert Score([1, 2], [0.0, -800.0]).perplexity == math.inf
    assert math.isclose(Score([1, 2, 3], [0.0, -1.0, -2.0]).perplexity, math.exp(1.5))


def test_numpys_numbers_are_numbers(llama: Llama) -> None:
    assert llama.tokenizer.decode(np.int64(300)) == llama.tokenizer.decode(300) == llama.tokenizer.decode([300])
    assert llama.generate(PROMPTS, np.int64(3), 0, logprobs=np.bool_(True)) == llama.generate(
        PROMPTS, 3, 0, logprobs=True
    )


def test_a_linked_folder_finds_the_tokenizer_beside_the_link(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "data" / "7b"
    elsewhere.mkdir(parents=True)
    for name in ("consolidated.00.pth", "params.json"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tokenizer.model").write_bytes((folder / "tokenizer.model").read_bytes())
    try:
        (tmp_path / "models" / "7b").symlink_to(elsewhere)
    except OSError:
        pytest.skip("no links on this file system")
    assert Llama.build(tmp_path / "models" / "7b", device="cpu").tokenizer.n_words == 400


@pytest.mark.skipif(os.name != "posix", reason="closes streams as a POSIX shell does")
def test_closed_streams_and_odd_launches_are_no_traceback(folder: Path) -> None:
    short = ("--ckpt-dir", f"'{folder}'", "--max-gen-len", "2")
    for redirect in ("<&-", ">&-", "2>&-"):
        assert run("complete", "Once", *short, redirect=redirect).returncode == 0
    for size in ("x", "2"):
        failed = run("complete", "Once", *short, WORLD_SIZE=size)
        assert (failed.returncode, failed.stdout) == (2, "")
        assert "WORLD_SIZE" in failed.stderr and "torchrun" in failed.stderr and failed.stderr.count("\n") == 1
    not_text = run("complete", "\"$(printf 'caf\\351')\"", *short)
    assert not_text.returncode == 2 and "UTF-8" in not_text.stderr


def test_the_demo_checkpoint_can_be_copied_and_saved_over(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    for path in demo_dir().iterdir():
        if path.suffix in (".pth", ".json", ".model"):
            (folder / path.name).write_bytes(path.read_bytes())
    llama = Llama.build(folder, device="cpu")
    with torch.no_grad():
        llama.model.output.weight.mul_(0.5)  # copy on write: the file is not touched
    torch.save(llama.model.state_dict(), folder / "new")
    (folder / "new").replace(folder / "consolidated.00.pth")
    again = Llama.build(folder, device="cpu")
    assert torch.equal(again.model.output.weight, llama.model.output.weight)
