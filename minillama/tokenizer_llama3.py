"""Text to ids and back for Llama 3's `tokenizer.model`: byte-level BPE in tiktoken's format.

The file is text: on each line the bytes of a piece in base64 and its id, in the order in which pieces were merged. The
regular expression that cuts a text before merging, and the names of the 256 special ids, are not in it; they are those
of Meta's `llama3/llama/tokenizer.py`. Unlike SentencePiece, no space is put before the first word.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from minillama.args import as_path, shown
from minillama.tokenizer import StreamDecoder, Tokenizer

# English endings; a word with one sign before it; up to three digits; other signs; line ends; spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
N_SPECIAL = 256
# Those that have a meaning in text and chat, by their place behind the last piece: 128,000 is <|begin_of_text|>.
NAMED = {
    "<|begin_of_text|>": 0, "<|end_of_text|>": 1, "<|start_header_id|>": 6, "<|end_header_id|>": 7, "<|eom_id|>": 8,
    "<|eot_id|>": 9,
}  # fmt: skip
# As Meta's tokenizer cuts them: tiktoken's regex overflows its stack on longer runs of spaces.
LONGEST_TEXT, LONGEST_RUN = 400_000, 25_000
LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) ([0-9]{1,9})\r?")


class Llama3Tokenizer(Tokenizer):
    """The interface of `Tokenizer`, but for its `sp_model`. Special ids are silent, and no text yields one.

    special: ids by name. stop_ids: where an answer or a text ends.
    Raises FileNotFoundError without the file, ValueError if it is not tiktoken's or tiktoken is not installed.
    """

    def __init__(self, model_path: str | Path):
        path = as_path("tokenizer_path", model_path)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no tokenizer at {path}: expected a tiktoken file, usually tokenizer.model")
        try:
            import tiktoken
        except ImportError as error:
            raise ValueError(f"{path} is Llama 3's, which needs tiktoken: pip install tiktoken ({error})") from None
        pieces = read_pieces(path)
        first = len(pieces)
        self._bytes = [*pieces, *[b""] * N_SPECIAL]
        self.n_words = len(self._bytes)
        self.special = {name: first + place for name, place in NAMED.items()}
        self.bos_id, self.eos_id = self.special["<|begin_of_text|>"], self.special["<|end_of_text|>"]
        self.pad_id = -1  # as in Llama 2: rows are filled up with what nobody reads
        # <|eom_id|> ends a turn of Llama 3.1 that waits for a tool's answer; Llama 3 never says it.
        self.stop_ids = [self.eos_id, self.special["<|eot_id|>"], self.special["<|eom_id|>"]]
        ranks = {piece: i for i, piece in enumerate(pieces)}
        self._bpe = tiktoken.Encoding(path.name, pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=self.special)

    def encode(self, s: str, bos: bool, eos: bool) -> list[int]:
        """Ids of `s`, with BOS before and EOS behind if asked for. Text never yields special ids."""
        if not isinstance(s, str):
            raise ValueError(f"expected text (str), got {shown(s)}")
        try:
            s.encode()
        except UnicodeEncodeError as error:
            half = f"{s[error.start]!r} at character {error.start}"
            raise ValueError(f"the text holds {half}, half of a surrogate pair, which is not a character") from None
        ids = [i for part in parts(s) for i in self._bpe.encode_ordinary(part)]
        return [self.bos_id] * bos + ids + [self.eos_id] * eos

    def decode_stream(self, ids: Iterable[int], continuing: bool = False) -> Iterator[str]:
        """As `Tokenizer.decode_stream`; no space was put before the first word, so `continuing` changes nothing."""
        return super().decode_stream(ids, continuing=True)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file of either kind, SentencePiece's or tiktoken's, told apart by what is in it."""
    path = as_path("tokenizer_path", path)
    return Llama3Tokenizer(path) if is_tiktoken(path) else Tokenizer(path)


def stream_decoder(tokenizer: Tokenizer, continuing: bool) -> StreamDecoder:
    """A `StreamDecoder` for either kind. Llama 3's pieces carry their own spaces: there is never one to drop."""
    return StreamDecoder(tokenizer, continuing or isinstance(tokenizer, Llama3Tokenizer))


def stop_ids_of(tokenizer: Tokenizer) -> list[int]:
    """The ids at which a text ends unless others are asked for."""
    return tokenizer.stop_ids if isinstance(tokenizer, Llama3Tokenizer) else [tokenizer.eos_id]


def is_tiktoken(path: Path) -> bool:
    """True if the file begins with a line of tiktoken's. SentencePiece's begin with a byte that no such line has."""
    if not os.path.isfile(path):
        return False
    with path.open("rb") as file:
        return LINE.fullmatch(file.readline(1000).rstrip(b"\n")) is not None


def read_pieces(path: Path) -> list[bytes]:
    """The bytes of each piece, by id. Raises ValueError, with the line, unless it has all bytes and ids from 0."""
    pieces: list[bytes] = []
    for n, line in enumerate(path.read_bytes().rstrip(b"\n").split(b"\n"), start=1):
        match = LINE.fullmatch(line)
        try:
            piece = base64.b64decode(match[1], validate=True) if match else b""
        except ValueError:  # of a wrong length
            piece = b""
        if not match or not piece:
            raise ValueError(f"{path}, line {n} is {shown(line)}; expected base64 and an id: download it again")
        if int(match[2]) != len(pieces):
            raise ValueError(f"{path}, line {n} has the id {int(match[2])}; expected {len(pieces)}: download it again")
        pieces.append(piece)
    missing = 256 - len({piece for piece in pieces if len(piece) == 1})
    if missing or len(set(pieces)) < len(pieces):
        what = f"lacks {missing} of the 256 bytes" if missing else "has a piece twice"
        raise ValueError(f"{path} {what}; download it again")
    return pieces


def parts(s: str) -> Iterator[str]:
    """`s` in parts of at most LONGEST_TEXT characters, in none of which a run of spaces, or of anything else, is longer
    than LONGEST_RUN."""
    for start in range(0, len(s), LONGEST_TEXT):
        text = s[start : start + LONGEST_TEXT]
        begin = 0
        for run in re.finditer(r"\s+|\S+", text):
            for cut in range(run.start() + LONGEST_RUN, run.end(), LONGEST_RUN):
                yield text[begin:cut]
                begin = cut
        yield text[begin:]
