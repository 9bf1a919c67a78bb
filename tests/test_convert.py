"""What becomes of a conversion that cannot end well: a full disk, a signal, a name that is taken or cannot be one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import make_checkpoint
from typer.testing import CliRunner

from minillama import Transformer, cli
from minillama.convert import convert, rewrite
from minillama.pth import PthWriter, save

WAYS = {"hf": ("--to", "hf"), "meta": ("--to", "meta", "--mp", "2"), "int8": ("--quantize", "int8")}
posix_only = pytest.mark.skipif(os.name != "posix", reason="signals and limits as on POSIX")


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "src")


def made(src: Path, dst: Path, way: str, progress: Callable[[Iterable[str]], Iterable[str]] = iter) -> None:
    if way == "int8":
        convert(src, dst, way, progress)
    else:
        rewrite(src, dst, way, mp=2 if way == "meta" else None, progress=progress)


def python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


# --- A disk that fills meanwhile

LIMITED = """
import resource, sys
from minillama import cli, convert, huggingface
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), -1))
cli.main()
"""


@posix_only
@pytest.mark.parametrize("room", [0, 3000, 30_000])  # not the beginning of a file, the middle, the end
@pytest.mark.parametrize("way", WAYS)
def test_a_disk_that_fills_is_one_line_that_names_the_file_and_nothing_is_left(
    tmp_path: Path, src: Path, way: str, room: int
) -> None:
    """The system's limit on a file's size stands for the disk's: writes fail in the same places."""
    done = python(LIMITED, room, "convert", src, tmp_path / "dst", *WAYS[way])
    assert done.returncode == 2 and done.stdout == "", done.stderr
    name = "model.safetensors" if way == "hf" else "consolidated.00.pth"
    assert done.stderr.startswith(f"minillama: error: {tmp_path / 'dst' / name}: a file may not be so large there")
    assert done.stderr.count("\n") == 1 and "nothing was kept: make room" in done.stderr
    assert list(tmp_path.iterdir()) == [src]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_the_reason_of_the_system_comes_through_torchs_writer_with_the_name() -> None:
    full, tensor = Path("/dev/full"), torch.zeros(100_000)
    for write in (
        lambda: save({"a": tensor}, full),
        lambda: PthWriter(full, {"a": (100_000,)}, torch.float32).write(tensor),
    ):
        with pytest.raises(OSError, match="No space left") as caught:
            write()
        assert (caught.value.errno, caught.value.filename) == (28, "/dev/full")


def test_a_full_disk_is_called_one(tmp_path: Path, src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minillama.huggingface.write_tensor", full)
    said = CliRunner().invoke(cli.app, ["convert", str(src), str(tmp_path / "dst"), "--to", "hf"])
    file = tmp_path / "dst" / "model.safetensors"
    begins = f"minillama: error: {file}: the disk is full (No space left on device); nothing was kept"
    assert said.exit_code == 2 and said.stderr.startswith(begins)
    assert list(tmp_path.iterdir()) == [src]


# --- A name that is taken meanwhile


@pytest.mark.parametrize("taken_by", ["folder", "file"])
@pytest.mark.parametrize("way", WAYS)
def test_work_is_kept_beside_a_name_that_was_taken_meanwhile(
    tmp_path: Path, src: Path, way: str, taken_by: str
) -> None:
    dst = tmp_path / "dst"

    def taking(keys: Iterable[str]) -> Iterator[str]:
        yield from keys
        if taken_by == "folder":
            dst.mkdir()
        (dst / "theirs" if taken_by == "folder" else dst).write_text("theirs")

    with pytest.raises(ValueError, match="made by something else meanwhile.*move it") as caught:
        made(src, dst, way, taking)
    assert (dst / "theirs" if taken_by == "folder" else dst).read_text() == "theirs"
    (kept,) = set(tmp_path.iterdir()) - {src, dst}
    assert f"the finished folder is {kept}: " in str(caught.value)
    if way != "int8":
        tokens = torch.tensor([[1, 5, 9]])
        with torch.no_grad():
            one, other = (Transformer.from_checkpoint(folder)(tokens) for folder in (src, kept))
        assert torch.equal(one, other)
    assert (kept / "tokenizer.model").exists()


# --- Signals

SIGNALLED = """
import os, signal, sys
from minillama import convert

if int(sys.argv[4]) != signal.SIGKILL:
    signal.signal(int(sys.argv[4]), signal.SIG_DFL)  # whoever started the tests with nohup has SIGHUP ignored

def signalled(*args):
    os.kill(os.getpid(), int(sys.argv[4]))
    raise Exception("the signal did nothing")

def progress(keys):
    for n, key in enumerate(keys):
        if n == 9:
            signalled()
        yield key

src, dst, way = sys.argv[1:4]
if way == "int8":  # which writes in one go, and then the tokenizer
    convert._copy_tokenizer = signalled
    convert.convert(src, dst, way)
else:
    convert.rewrite(src, dst, way, progress=progress)
"""


@posix_only
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])  # the latter: an ssh session that is closed
def test_a_conversion_that_is_ended_by_a_signal_leaves_nothing_behind(
    tmp_path: Path, src: Path, way: str, name: str
) -> None:
    number = int(getattr(signal, name))
    done = python(SIGNALLED, src, tmp_path / "dst", way, number)
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert list(tmp_path.iterdir()) == [src]


@posix_only
def test_a_quantization_that_is_killed_leaves_no_folder_that_loads(tmp_path: Path, src: Path) -> None:
    done = python(SIGNALLED, src, tmp_path / "dst", "int8", int(signal.SIGKILL))
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "dst").exists()
    (left,) = tmp_path.glob(".dst-*/whole")
    assert [path.name for path in left.iterdir()] == ["consolidated.00.pth"]


@posix_only
def test_handlers_of_sigterm_are_as_before_afterwards(tmp_path: Path, src: Path) -> None:
    seen = []

    def looking(keys: Iterable[str]) -> Iterator[str]:
        seen.append(signal.getsignal(signal.SIGTERM))
        yield from keys

    def mine(*_: object) -> None:
        pass

    before = signal.getsignal(signal.SIGTERM)
    try:
        for n, handler in enumerate((signal.SIG_DFL, mine)):
            signal.signal(signal.SIGTERM, handler)
            made(src, tmp_path / f"dst{n}", "hf", looking)
            assert signal.getsignal(signal.SIGTERM) == handler
        assert callable(seen[0]) and seen[1] is mine  # a program that has its own keeps it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        thread = threading.Thread(target=made, args=(src, tmp_path / "dst in a thread", "hf", looking))
        thread.start()
        thread.join()
        assert seen[2] == signal.SIG_DFL and (tmp_path / "dst in a thread").exists()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("way", WAYS)
def test_a_name_with_two_dots_is_the_folder_that_they_lead_to(tmp_path: Path, src: Path, way: str) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    made(src, tmp_path / "link" / ".." / "dst", way)
    assert (tmp_path / "far" / "dst").is_dir() and not (tmp_path / "dst").exists()


# --- Names that no folder can have


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("file/dst", "file takes no new folder (Not a directory); name one elsewhere"),
        ("file/more/dst", "file takes no new folder (Not a directory); name one elsewhere"),
        ("x" * 300, "of 300 bytes; expected 240 at most"), ("ü" * 130 + "/dst", "of 260 bytes; expected 240 at most"),
        ("new/" + "x" * 250, "of 250 bytes; expected 240 at most"),
        pytest.param(
            "/proc/dst", "/proc/dst cannot be made: /proc takes no new folder",
            marks=pytest.mark.skipif(not os.path.exists("/proc/self"), reason="Linux's"),
        ),
    ],
)  # fmt: skip
def test_a_name_that_no_folder_can_have_is_one_line_before_any_work(
    tmp_path: Path, src: Path, way: str, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*_: Any, **__: Any) -> None:
        raise RuntimeError("work was done")

    monkeypatch.setattr("minillama.convert.load_model", worked)
    monkeypatch.setattr("minillama.convert.look_over", worked)
    (tmp_path / "file").write_text("mine")
    result = CliRunner().invoke(cli.app, ["convert", str(src), str(tmp_path / name), *WAYS[way]])
    assert result.exit_code == 2 and result.stdout == "" and result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("minillama: error: ") and said in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "src"]


def test_the_longest_name_does(tmp_path: Path, src: Path) -> None:
    made(src, tmp_path / ("x" * 240), "hf")
    assert (tmp_path / ("x" * 240) / "config.json").exists()
