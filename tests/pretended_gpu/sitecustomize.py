"""Pretended GPUs for a Python that is started with this folder on PYTHONPATH: it imports a module of this name first.

PRETENDED_GPU_LIBRARY  gpu.cpp, compiled. It has to be there before torch is imported, which asks once for CUDA.
PRETENDED_GPUS         how many there are
PRETENDED_GPU_BYTES    the memory of each
"""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

BOTH = "cpu:gloo,cuda:gloo"


def pretend(library: str, n_gpus: int, n_bytes: int) -> None:
    ctypes.CDLL(library)

    import torch
    import torch.cuda.nccl
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    gpu, cuda = torch.ops.pretended_gpu, torch.cuda
    gpu.set_up(n_bytes, n_gpus)

    def index(device: Any = None) -> int:
        found = device if device is None or isinstance(device, int) else torch.device(device).index
        return gpu.current_device() if found is None else found

    def properties(device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name="pretended", total_memory=n_bytes, major=9, minor=0)

    instead = {
        "_lazy_init": lambda: None,
        "_initialized": True,
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "device_count": lambda: n_gpus,
        "current_device": lambda: gpu.current_device(),
        "set_device": lambda device: gpu.set_device(index(device)),
        "get_device_properties": properties,
        "get_rng_state": lambda device=None: gpu.generator_state(),
        "set_rng_state": lambda state, device=None: gpu.set_generator_state(state),
        "manual_seed": lambda seed: gpu.seed(seed % 2**63),
        "manual_seed_all": lambda seed: gpu.seed(seed % 2**63),
        "memory_allocated": lambda device=None: gpu.allocated(index(device)),
        "memory_reserved": lambda device=None: gpu.allocated(index(device)),
        "max_memory_allocated": lambda device=None: gpu.highest(index(device)),
        "reset_peak_memory_stats": lambda device=None: gpu.forget_highest(index(device)),
        "mem_get_info": lambda device=None: (n_bytes - gpu.allocated(index(device)), n_bytes),
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: None,
    }
    for name, value in instead.items():
        if not hasattr(cuda, name):
            raise AttributeError(f"torch.cuda has no {name} to be pretended")
        setattr(cuda, name, value)
    torch.cuda.nccl.version = lambda: (2, 27, 0)

    init, backend_of = dist.init_process_group, dist.get_backend

    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
        init(BOTH if backend == "nccl" else backend, *args, **options)

    def get_backend(group: Any = None) -> str:
        return "nccl" if str(distributed_c10d.get_backend_config(group)) == BOTH else backend_of(group)

    dist.init_process_group, dist.get_backend = init_process_group, get_backend


if os.environ.get("PRETENDED_GPU_LIBRARY"):
    pretend(
        os.environ["PRETENDED_GPU_LIBRARY"],
        int(os.environ.get("PRETENDED_GPUS", "1")),
        int(os.environ.get("PRETENDED_GPU_BYTES", str(24 * 10**9))),
    )
