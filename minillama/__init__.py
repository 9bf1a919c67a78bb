"""minillama: Llama 2's inference stack, small enough to read and built to run real checkpoints.

>>> import minillama
>>> llama = minillama.demo()  # the trained checkpoint that comes with the package
>>> for piece in llama.stream_text("Once upon a time"):
...     print(piece.text, end="")
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillama.args import ModelArgs
    from minillama.chat import Dialog, Message
    from minillama.checkpoint import CheckpointError
    from minillama.generation import Llama, Piece, Score
    from minillama.kv_cache import KVCache
    from minillama.parallel import parallelize
    from minillama.sampling import SamplingParams
    from minillama.storyteller import demo
    from minillama.tokenizer import Tokenizer
    from minillama.transformer import Transformer

__version__ = "0.1.0"

__all__ = [
    "CheckpointError", "Dialog", "KVCache", "Llama", "Message", "ModelArgs", "Piece", "SamplingParams", "Score",
    "Tokenizer", "Transformer", "demo", "parallelize",
]  # fmt: skip

# Tensors above 2 MB go into memory of 2 MB pages, where Linux has them: with 4 kB ones, reading weights may wait for
# page tables (docs/speed.md). torch looks at this once, when it makes its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# Importing torch takes seconds, and `minillama --help` needs none of it: a name is fetched when it is first asked for.
_HOME = {
    "ModelArgs": "args", "Dialog": "chat", "Message": "chat", "CheckpointError": "checkpoint", "Llama": "generation",
    "Piece": "generation", "Score": "generation", "KVCache": "kv_cache", "parallelize": "parallel",
    "SamplingParams": "sampling", "demo": "storyteller", "Tokenizer": "tokenizer", "Transformer": "transformer",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'minillama' has no attribute {name!r}")
    value = getattr(import_module(f"minillama.{_HOME[name]}"), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
