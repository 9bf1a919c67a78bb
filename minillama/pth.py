"""A `.pth` file written one tensor at a time. `torch.save` wants all of them in memory, and a 70B has 140 GB.

Such a file is a zip archive: `data.pkl` says how to make the tensors, each from the numbers in `data/0`, `data/1`, ...
So the pickle is written first, of stand-ins that say what torch's own tensors would, and then the numbers.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2

STORAGES = {
    torch.float32: torch.FloatStorage, torch.bfloat16: torch.BFloat16Storage, torch.float16: torch.HalfStorage
}  # fmt: skip


class Storage:
    """Stands in the pickle for the numbers in `data/key`."""

    def __init__(self, key: int, numel: int, dtype: torch.dtype):
        self.said = ("storage", STORAGES[dtype], str(key), "cpu", numel)


class Tensor:
    """Stands in the pickle for a tensor."""

    def __init__(self, storage: Storage, shape: tuple[int, ...]):
        self.storage, self.shape = storage, shape

    def __reduce__(self) -> tuple[Any, ...]:
        strides = torch.empty(self.shape, device="meta").stride()
        return _rebuild_tensor_v2, (self.storage, 0, self.shape, strides, False, OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, thing: Any) -> Any:
        return thing.said if isinstance(thing, Storage) else None


class PthWriter:
    """Tensors of these names and shapes, all of `dtype`, given to `write` in their order, inside `with`; then `close`.

    A file that was not closed lacks tensors that its pickle names, and no program takes it for whole.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype):
        self.shapes, self.written = list(shapes.values()), 0
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        tensors = {
            key: Tensor(Storage(i, size, dtype), shape)
            for i, (key, shape, size) in enumerate(zip(shapes, self.shapes, sizes))
        }
        pickled = io.BytesIO()
        Pickler(pickled, protocol=2).dump(tensors)
        self.path = path
        self.disk = path.open("wb")  # torch opens files as well, but does not say why one cannot be written
        self.file = torch._C.PyTorchFileWriter(self.disk)  # puts each record where a mapped tensor may begin
        self._record("data.pkl", pickled.getvalue(), pickled.tell())
        self._record("byteorder", sys.byteorder.encode(), len(sys.byteorder))

    def write(self, tensor: torch.Tensor) -> None:
        if tuple(tensor.shape) != self.shapes[self.written]:
            raise ValueError(f"the shape is {tuple(tensor.shape)}; expected {self.shapes[self.written]}")
        whole = tensor.contiguous()
        storage = whole.untyped_storage()
        if storage.nbytes() != whole.nbytes:  # a part of something larger
            storage = whole.clone().untyped_storage()
        self._record(f"data/{self.written}", storage, whole.nbytes)
        self.written += 1

    def close(self) -> None:
        if self.written != len(self.shapes):
            raise ValueError(f"{self.written} tensors were written; expected {len(self.shapes)}")
        with naming(self.path):
            self.file.write_end_of_file()
            self.disk.close()

    def __enter__(self) -> PthWriter:
        return self

    def __exit__(self, *_: object) -> None:
        # What is not ended is ended by torch's destructor; if that meets an error, it ends the process.
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            self.file.write_end_of_file()
        with contextlib.suppress(OSError):
            self.disk.close()

    def _record(self, name: str, content: Any, size: int) -> None:
        try:
            with naming(self.path):
                self.file.write_record(name, content, size)
        except BaseException:
            self.__exit__()
            raise


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name on what the system says of a write, which leaves it out."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """`torch.save`, and where the file cannot be written, the system's reason instead of torch's frames."""
    with naming(path), path.open("wb") as file:
        try:
            torch.save(tensors, file)
        except RuntimeError as error:
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
