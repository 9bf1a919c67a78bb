"""minillama: Llama 2's inference stack, small enough to read and built to run real checkpoints.

import minillama
llama = minillama.demo()                                  # the trained checkpoint that comes with the package
for piece in llama.stream_text("Once upon a time"):
    print(piece.text, end="")
"""

from minillama.args import ModelArgs
from minillama.chat import Dialog, Message
from minillama.checkpoint import CheckpointError
from minillama.demo import demo
from minillama.generation import Llama, Piece, Score
from minillama.kv_cache import KVCache
from minillama.parallel import parallelize
from minillama.sampling import SamplingParams
from minillama.tokenizer import Tokenizer
from minillama.transformer import Transformer

__version__ = "0.1.0"

__all__ = [
    "CheckpointError", "Dialog", "KVCache", "Llama", "Message", "ModelArgs", "Piece", "SamplingParams", "Score",
    "Tokenizer", "Transformer", "demo", "parallelize",
]  # fmt: skip
