"""What runs on a CPU runs on a GPU: looked at without one, on GPUs that are pretended (pretended_gpu/gpu.cpp).

There a tensor is on cuda:0, its memory is counted and limited, and an operation on tensors of two devices fails as it
would on a GPU. The numbers are those of the CPU's kernels, and gloo stands for NCCL: speed, rounding and CUDA's own
kernels are not seen here, nor is code that torch.compile would make for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import torch
from rerun import CHAPTER_10, run, said
from toys import make_checkpoint

from minillama import convert
from minillama.memory import GPU_LIBRARIES

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests" / "pretended_gpu"
GB = 10**9

PINNED = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)[1]

pytestmark = [
    pytest.mark.skipif(torch.__version__.split("+")[0] != PINNED, reason="written for the insides of torch " + PINNED),
    pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="compiled with g++, on Linux"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA's own kernels"),
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pretended") / "libpretended_gpu.so"
    include, lib = (Path(torch.__file__).parent / name for name in ("include", "lib"))
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", str(HERE / "gpu.cpp"), "-o", str(made)]
    command += [f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"]
    command += [f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch_cpu", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def gpus(library: Path, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """`gpus(n, n_bytes)`: the environment of a process that has them."""

    def environment(n: int = 1, n_bytes: int = 24 * GB) -> dict[str, str]:
        paths = [str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return os.environ | {
            "PRETENDED_GPU_LIBRARY": str(library),
            "PRETENDED_GPUS": str(n),
            "PRETENDED_GPU_BYTES": str(n_bytes),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "MY_MINILLAMA": str(tmp_path / "my_minillama"),
            "OMP_NUM_THREADS": "1",
        }

    return environment


def python(env: dict[str, str], *arguments: str, code: int = 0) -> str:
    """What `python ARGUMENTS` prints, the errors after the answer."""
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- The pretended GPU itself -----------------------------------------------------------------------------------------

REFUSED = """
import torch
x, w = torch.ones(3, 4, device="cuda"), torch.nn.Linear(4, 5)
def why(what):
    try:
        print("NOT REFUSED:", what())
    except (RuntimeError, TypeError) as error:
        print(type(error).__name__, str(error).split(chr(10))[0])
why(lambda: x + torch.ones(3, 4))
why(lambda: w(x))
why(lambda: torch.where(torch.ones(4, dtype=torch.bool), x, x))
why(lambda: x.numpy())
why(lambda: torch.rand(3, device="cuda", generator=torch.Generator()))
why(lambda: torch.empty(10**9, device="cuda"))
why(lambda: torch.empty(1, device="cuda:1"))
"""


def test_what_a_gpu_refuses_is_refused(gpus: Callable[..., dict[str, str]]) -> None:
    said = python(gpus(n_bytes=GB), "-c", REFUSED).splitlines()
    expected = [
        r"RuntimeError .*same device.*cuda:0 and cpu!",
        r"RuntimeError .*same device.*cuda:0 and cpu!",
        r"RuntimeError .*same device.*cuda:0 and cpu!",
        r"TypeError can't convert cuda:0 device type tensor to numpy",
        r"RuntimeError Expected a 'cuda' device type for generator",
        r"OutOfMemoryError CUDA out of memory",
        r".*invalid device ordinal",
    ]
    assert len(said) == len(expected)
    for line, pattern in zip(said, expected):
        assert re.match(pattern, line), line


COMPUTED = """
import torch
torch.manual_seed(0)
x, w = torch.randn(2, 8, requires_grad=True), torch.nn.Linear(8, 8)
def work(x, w):
    held = torch.zeros(3, 8, device=x.device)
    held[1:] = w(x)
    turned = torch.view_as_real(torch.view_as_complex(held.view(3, 4, 2)) * 1j).flatten(1)
    top = turned.topk(3).values.cumsum(-1)[torch.tensor([2, 0])]
    return (top.transpose(0, 1) @ torch.cat([turned[:, ::2], held[:, 1::2]], 1)[:2]).sum() + turned.max()
here = work(x, w); here.backward()
y, v = x.detach().cuda().requires_grad_(), torch.nn.Linear(8, 8).cuda()
v.load_state_dict(w.state_dict())
before = torch.cuda.memory_allocated()
there = work(y, v); there.backward()
print(y.device, v.weight.grad.device, there.item() == here.item(), y.grad.cpu().equal(x.grad))
del there; y.grad = v.weight.grad = v.bias.grad = None
print(torch.cuda.memory_allocated() == before < torch.cuda.max_memory_allocated())
"""


def test_what_it_computes_is_what_the_cpu_computes(gpus: Callable[..., dict[str, str]]) -> None:
    """Views, writing into a part, numbers by index, gradients: to the bit, for the kernels are the same."""
    assert python(gpus(), "-c", COMPUTED).split() == ["cuda:0", "cuda:0", "True", "True", "True"]


# --- The package ------------------------------------------------------------------------------------------------------

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ASKED = ["-m", "minillama", "complete", "Once upon a time", "--dtype", "float32", "--max-gen-len", "24"]


@pytest.mark.parametrize("how", [["--temperature", "0"], ["--seed", "4", "--top-p", "0.9"]], ids=["greedy", "drawn"])
def test_one_gpu_and_two_tell_the_story_of_the_cpu(how: list[str], gpus: Callable[..., dict[str, str]]) -> None:
    """The dice are thrown on the CPU, from the logits: the same story wherever those are the same."""
    here = python(gpus(), *ASKED, *how, "--device", "cpu")
    assert python(gpus(1), *ASKED, *how) == here  # where `auto` is the GPU
    assert here.strip() in python(gpus(2), *TORCHRUN, *ASKED, *how)  # with what torchrun has to say beside it


PEAK = """
import sys, torch
from minillama import Llama
from minillama.memory import weight_bytes
llama = Llama.build(sys.argv[1])
weights = weight_bytes(llama.model.args, torch.bfloat16)
print(llama.model.device, weights, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
"""


@pytest.mark.parametrize("layout", ["meta", "hf"])
def test_a_load_takes_the_weights_and_one_tensor_more(
    layout: str, gpus: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """From a file in fp32 to bf16 on the GPU, where neither the file nor a second copy of the model ever is."""
    folder = make_checkpoint(tmp_path / "toy", dim=256, n_layers=4, n_heads=8, n_kv_heads=4)
    if layout == "hf":
        convert.rewrite(folder, tmp_path / "hf", "hf")
        folder = tmp_path / "hf"
    device, *numbers = python(gpus(), "-c", PEAK, str(folder)).split()
    weights, allocated, highest = map(int, numbers)
    one_tensor = 4 * 256 * 704  # w1 in fp32; the embedding is smaller
    assert device == "cuda:0"
    assert weights <= allocated < weights + 100_000  # freqs_cis and norms; allocations are of whole 512 bytes
    assert highest <= allocated + one_tensor + 512


TOKENS = """
import torch, minillama
llama = minillama.demo()
model, ids = llama.model, torch.tensor([llama.tokenizer.encode("Once upon a time", bos=True, eos=False)])
try:
    model(ids)
except ValueError as error:
    print(error)
with torch.inference_mode():
    there = model(ids.cuda())
    here = minillama.demo(device="cpu", dtype=torch.bfloat16).model(ids)
print(there.device, float((there.cpu() - here).abs().max() / here.abs().max()) < 0.02)
"""


def test_tokens_on_the_other_device_are_told_and_the_model_is_none_the_worse(
    gpus: Callable[..., dict[str, str]],
) -> None:
    """2%: bf16 in two orders of summing, for the CPU's own path packs its weights."""
    told, found = python(gpus(), "-c", TOKENS).splitlines()
    assert told == "tokens are on cpu, the model on cuda:0; expected both on one device"
    assert found == "cuda:0 True"


COMPILED = """
import torch, minillama
from minillama.storyteller import demo_dir
compile = torch.compile
def without_triton(step, mode, **options):
    assert mode == "reduce-overhead", mode
    return compile(step, backend="aot_eager", **options)
torch.compile = without_triton
asked = dict(max_gen_len=24, temperature=0)
for how in (False, True):
    llama = minillama.Llama.build(demo_dir(), dtype=torch.float32, compile=how)
    print(llama.model.device, llama.text_completion(["Once upon a time"], **asked)[0])
print(torch._dynamo.utils.counters["stats"]["unique_graphs"], dict(torch._dynamo.utils.counters["graph_break"]))
"""


def test_the_step_is_traced_whole_on_a_gpu(gpus: Callable[..., dict[str, str]]) -> None:
    """Traced and taken apart for autograd; code for a GPU is not made, nor a CUDA graph recorded."""
    plain, compiled, counted = python(gpus(), "-c", COMPILED).splitlines()
    assert plain.startswith("cuda:0 {'generation': ', in the") and compiled == plain
    assert counted == "1 {}"


TOO_LARGE = """
import torch, minillama
try:
    minillama.demo(dtype=torch.float32)
except minillama.memory.OutOfMemory as error:
    print(torch.cuda.max_memory_allocated(), error)
"""


def test_a_model_that_does_not_fit_is_refused_before_any_of_it_is_there(gpus: Callable[..., dict[str, str]]) -> None:
    small = gpus(n_bytes=GPU_LIBRARIES // 2 + 5 * 10**6)  # 5 MB beside the libraries, for weights of 20
    assert re.match(r"0 the model does not fit.* 5\.00 MB are free on cuda:0", python(small, "-c", TOO_LARGE))
    said = python(small, *ASKED, code=2)
    assert said.startswith("minillama: error: the model does not fit") and "Traceback" not in said


def test_the_check_for_a_real_gpu_comes_to_its_end(gpus: Callable[..., dict[str, str]]) -> None:
    small = ["--model", "110M", "--prompt", "32", "--new-tokens", "4", "--batch", "2", "--repeats", "1", "--no-compile"]
    said = python(gpus(), str(ROOT / "tools" / "gpu_check.py"), *small)
    lines = dict(re.findall(r"^(\S.*?)  +(\S.*)$", said, re.M))
    assert lines["machine"].startswith("pretended")
    for what in ("bf16 here against fp32 on the CPU", "weights", "a request, beside weights"):
        assert lines[what].endswith("ok"), said
    assert "decoding, batch 2" in lines


# --- Chapter 10, which takes a GPU where there is one -----------------------------------------------------------------

LOOK = "print(DEVICE.type, torch.ops.pretended_gpu.operations() > 10_000)"


@pytest.mark.parametrize("n", [1, 2])
def test_every_cell_of_chapter_10_goes_through(
    n: int, gpus: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in gpus(n).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(CHAPTER_10, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(LOOK))
    run(notebook)
    loud = [cell.id for cell in notebook.cells for output in cell.get("outputs", []) if output.get("name") == "stderr"]
    assert not loud
    shown = said(notebook)
    assert shown[notebook.cells[-1].id].split() == ["cuda", "True"]
    assert f"--nproc_per_node {n} " in shown["loads-ranks-code"]
