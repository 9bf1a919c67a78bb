"""Processes: how ranks start, keep in step, and say why they end. One process has no process group and needs none."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from fairscale.nn.model_parallel import initialize as mpu

from minillama.args import count, first_line, shown, whole_number
from minillama.parallel import world_size

TIMEOUT = 600.0  # seconds a rank waits for the others; MINILLAMA_TIMEOUT has another say. Loading may take minutes.
# How torch's collectives, gloo, NCCL and the store that ranks meet at say that another rank is gone or silent.
GONE = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed? ?out|failed to connect|connection refused|remote process exited"
    r"|clients joined|socket closed|gloo",
    re.IGNORECASE,
)
DRIVER = Path("/proc/driver/nvidia/version")  # is there where NVIDIA's driver is

Thing = TypeVar("Thing")


class LostRanks(RuntimeError):
    """Another rank ended or fell silent; what it said itself tells why."""


def start(model_parallel_size: int | None = None, device: str | torch.device = "auto") -> torch.device:
    """Join the other ranks, if `torchrun` started any, and return this rank's device.

    NCCL between GPUs, gloo between CPUs; nothing at all for a single process. Raises ValueError, before any process
    group exists, where the launch does not fit the machine or `model_parallel_size`.
    """
    launched = launched_ranks()
    wanted = launched if model_parallel_size is None else whole_number("model_parallel_size", model_parallel_size)
    if wanted != launched:
        raise ValueError(
            f"model_parallel_size is {wanted}, and {launched} process{'es' * (launched > 1)} started; "
            f"start it with: torchrun --nproc_per_node {wanted} ..."
        )
    chosen = pick_device(device)
    if chosen.type == "cuda" and (here := os.environ.get("LOCAL_WORLD_SIZE") or "1") != "1":
        if chosen.index != _local_rank():
            raise ValueError(
                f"device {chosen} is one GPU, and {here} processes were started on this machine; say cuda, and each "
                "takes its own"
            )
    if launched > 1 and not dist.is_initialized():
        if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
            raise ValueError(f"WORLD_SIZE is {launched} without {', '.join(missing)}: start with torchrun, or unset it")
        with explained():
            backend = "nccl" if chosen.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=patience()))
    if launched > 1 and not mpu.model_parallel_is_initialized():
        with contextlib.redirect_stdout(io.StringIO()), _patient_groups():  # fairscale prints its groups
            mpu.initialize_model_parallel(launched)
        if chosen.type == "cuda":
            # NCCL sets itself up, and takes its memory, at the first exchange: now, before anything is planned or read.
            with explained():
                dist.all_reduce(torch.zeros(1, device=chosen), group=mpu.get_model_parallel_group())
                torch.cuda.synchronize(chosen)
    return chosen


@contextlib.contextmanager
def _patient_groups() -> Iterator[None]:
    # fairscale makes groups of its own for the model's exchanges, and says nothing of how long to wait in them: torch
    # would wait for half an hour.
    new_group = dist.new_group
    dist.new_group = functools.partial(new_group, timeout=timedelta(seconds=patience()))
    try:
        yield
    finally:
        dist.new_group = new_group


def leave() -> None:
    """End this process's part in the ranks, if it has one: every rank calls it once it is done."""
    if dist.is_initialized():
        # CUDA graphs with exchanges in them, which torch keeps: NCCL would wait for their end without end.
        if "torch._inductor.cudagraph_trees" in sys.modules:
            torch._dynamo.reset()
            gc.collect()
        # fairscale's groups first: they would keep gloo's threads alive, and a thread that lets go of a tensor while
        # Python is being taken down ends the process with SIGABRT.
        mpu.destroy_model_parallel()
        dist.destroy_process_group()


def patience() -> float:
    """Seconds that a rank waits for the others before it gives up: MINILLAMA_TIMEOUT, or TIMEOUT."""
    said = os.environ.get("MINILLAMA_TIMEOUT") or str(TIMEOUT)
    if not re.fullmatch(r"\d+(\.\d*)?", said.strip()) or not 1 <= float(said) <= 10**6:
        raise ValueError(f"MINILLAMA_TIMEOUT is {shown(said)}; expected seconds from 1 to a million, for instance 600")
    return float(said)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn what torch says when another rank is gone or silent into LostRanks, in words, with its own after them.

    What NCCL says of itself (two ranks on a GPU, too little shared memory, a wrong network card) is a ConnectionError.
    Of a rank that goes while GPUs exchange, Python hears nothing: torch ends the process after MINILLAMA_TIMEOUT.
    """
    try:
        yield
    except LostRanks:
        raise
    except RuntimeError as error:  # torch's DistErrors are RuntimeErrors, and gloo's are nothing more
        gone, theirs = GONE.search(str(error)), isinstance(error, dist.DistError)
        if launched_ranks() == 1 or not (gone or theirs):
            raise
        me, said = os.environ.get("RANK", "0"), str(error).rpartition("Last error:")[2].strip()
        if isinstance(error, dist.DistBackendError) and not gone:
            raise ConnectionError(
                f"rank {me} cannot exchange with the others: {first_line(said)} (NCCL_DEBUG=INFO tells more)"
            ) from error
        raise LostRanks(
            f"rank {me} lost the others: one of {launched_ranks()} ended, or was silent for {patience():g} s "
            f"(MINILLAMA_TIMEOUT); the rank that failed first says why ({first_line(said)})"
        ) from error


def launched_ranks() -> int:
    """How many processes `torchrun` started: 1 without it. Raises ValueError for an environment it would not leave."""
    size = os.environ.get("WORLD_SIZE") or "1"
    if not size.isdecimal() or int(size) < 1:
        raise ValueError(f"WORLD_SIZE is {size!r}; torchrun sets it to a number: start with torchrun, or unset it")
    return int(size)


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """ "auto" is this rank's GPU where there is one, else the CPU. Raises ValueError for a device that is not there."""
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        chosen = torch.device(("cuda" if n_gpus else "cpu") if device == "auto" else device)
    except (RuntimeError, TypeError):
        chosen = torch.device("meta")  # holds no numbers, and is refused below as well
    if chosen.type not in ("cpu", "cuda", "mps") or (chosen.type == "mps" and not torch.backends.mps.is_available()):
        raise ValueError(f"device {shown(device)} is not available here; expected auto, cpu, cuda, cuda:0 or mps")
    if chosen.type == "cuda":
        if chosen.index is None:
            _check_gpus(n_gpus)
        index = _local_rank() if chosen.index is None else chosen.index
        if index >= n_gpus:
            _warn_of_driver()
            ranks, cure = launched_ranks() > 1, "use --device cpu"
            wants = f"rank {os.environ.get('RANK', '0')} wants" if ranks else "asked for is"
            if n_gpus:
                fewer = f"start at most {n_gpus} here (torchrun --nproc_per_node {n_gpus})"
                cure = f"{fewer}, or {cure}" if ranks else "use --device cuda or cpu"
            raise ValueError(f"{wants} cuda:{index}, and this machine has {count(n_gpus, 'GPU')}; {cure}")
        torch.cuda.set_device(index)
        # On an H100 torch would ask cuDNN first, which makes a plan for every length of the cache, at each step one.
        torch.backends.cuda.enable_cudnn_sdp(False)
        return torch.device("cuda", index)
    if device == "auto" and chosen.type == "cpu":
        _warn_of_driver()
    return chosen


def _local_rank() -> int:
    """Which of this machine's processes this is, and so which GPU is its own."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _warn_of_driver() -> None:
    """Say so where NVIDIA's driver is and torch finds no GPU: on the CPU it is slow, and nobody would know why."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if torch.version.cuda is not None and DRIVER.exists() and not torch.cuda.is_available() and not hidden:
        warnings.warn(
            f"NVIDIA's driver is here, and torch, built for CUDA {torch.version.cuda}, finds no GPU: the driver is "
            "too old for it (nvidia-smi shows the CUDA that it takes), or the container was given none",
            stacklevel=3,
        )


def usual_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype for a model on `device` where nobody asked for one; None: the file's.

    On a GPU bf16 where the card computes in it and fp16 elsewhere: half the bytes of fp32, and Llama was trained in
    bf16. On a CPU the file's own, which needs no copy.
    """
    if device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def _check_gpus(n_gpus: int) -> None:
    """Raise ValueError on every rank alike, before any waits for another, if there are fewer GPUs than ranks here."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if here.isdecimal() and 0 < n_gpus < int(here):
        raise ValueError(
            f"{here} processes were started on this machine, which has {count(n_gpus, 'GPU')}; "
            f"start at most {n_gpus} (torchrun --nproc_per_node {n_gpus}), more machines (--nnodes), "
            "or use --device cpu"
        )


def smallest(number: int) -> int:
    """The smallest of the ranks' numbers: what all of them can afford."""
    if world_size() == 1:
        return number
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    box = torch.tensor(number, device=device)
    with explained():
        dist.all_reduce(box, dist.ReduceOp.MIN, group=mpu.get_model_parallel_group())
    return int(box)


def same_everywhere(value: torch.Tensor) -> torch.Tensor:
    """Rank 0's `value` on every rank. A token that ranks disagreed on would let their caches drift apart."""
    if world_size() > 1:
        with explained():
            dist.broadcast(value, src=0, group=mpu.get_model_parallel_group())
    return value


def tell_everyone(thing: Thing) -> Thing:
    """Rank 0's `thing` (any small object) on every rank: what was typed on one keyboard."""
    if world_size() == 1:
        return thing
    box: list[Any] = [thing]
    with explained():
        dist.broadcast_object_list(box, src=0, group=mpu.get_model_parallel_group())
    return box[0]
