"""Text to ids and back: chapter 07, `notebooks/07_tokenizer_and_chat.ipynb`.

Kudo & Richardson, "SentencePiece" (2018); the interface is that of Meta's `llama/tokenizer.py`.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from minillama.args import as_index, as_path, shown


class Tokenizer:
    """A SentencePiece model with byte fallback, as Llama 2's `tokenizer.model`.

    Raises FileNotFoundError without the file, ValueError if it is not a SentencePiece model that can serve.
    """

    def __init__(self, model_path: str | Path):
        path = as_path("tokenizer_path", model_path)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"no tokenizer at {path}: expected a SentencePiece file, usually tokenizer.model")
        self.sp_model = SentencePieceProcessor()
        try:
            self.sp_model.LoadFromSerializedProto(path.read_bytes())
            self.n_words: int = self.sp_model.vocab_size()
            self._bytes = [self._piece_bytes(i) for i in range(self.n_words)]
        except Exception as error:  # sentencepiece raises RuntimeError, protobuf errors of its own besides
            raise ValueError(f"{path} is not a SentencePiece model ({error}); download it again") from None
        self.bos_id: int = self.sp_model.bos_id()
        self.eos_id: int = self.sp_model.eos_id()
        self.pad_id: int = self.sp_model.pad_id()  # -1 in Llama 2: there is no pad piece
        if self.n_words == 0 or self.bos_id < 0 or self.eos_id < 0:
            raise ValueError(f"{path} has {self.n_words} pieces, bos {self.bos_id}, eos {self.eos_id}: both needed")
        for control in (self.bos_id, self.eos_id):
            spelled = self.sp_model.id_to_piece(control)
            if control in self.sp_model.encode(spelled):
                raise ValueError(f"{path} turns the text {spelled!r} into control id {control}: users could forge it")

    def encode(self, s: str, bos: bool, eos: bool) -> list[int]:
        """Ids of `s`, with BOS before and EOS behind if asked for. Text never yields control ids."""
        if not isinstance(s, str):
            raise ValueError(f"expected text (str), got {shown(s)}")
        try:
            s.encode()
        except UnicodeEncodeError as error:
            half = f"{s[error.start]!r} at character {error.start}"
            raise ValueError(f"the text holds {half}, half of a surrogate pair, which is not a character") from None
        return [self.bos_id] * bos + self.sp_model.encode(s) + [self.eos_id] * eos

    def decode(self, t: Sequence[int] | int) -> str:
        """Text of `t`; control ids are silent, the space that encoding puts before the first word is dropped."""
        ids = [t] if as_index(t) is not None else t
        return "".join(self.decode_stream(ids))  # type: ignore[arg-type]

    def decode_stream(self, ids: Iterable[int], continuing: bool = False) -> Iterator[str]:
        """Yield for each id the text that it completes (perhaps ""), and at the end whatever was held back.

        continuing: the ids go on from other text, so the space before the first word is kept.
        """
        stream = StreamDecoder(self, continuing)
        for i in ids:
            yield stream.feed(i)
        yield stream.flush()

    def id_bytes(self, i: int) -> bytes:
        """The UTF-8 bytes that one id stands for: a byte piece may be a third of a character."""
        index = as_index(i)
        if index is None or not 0 <= index < self.n_words:
            raise ValueError(f"id {shown(i)} is not in the vocabulary of {self.n_words} pieces")
        return self._bytes[index]

    def _piece_bytes(self, i: int) -> bytes:
        if self.sp_model.is_control(i):
            return b""
        if self.sp_model.is_unknown(i):
            return " \u2047 ".encode()  # SentencePiece's own sign for <unk>
        piece: str = self.sp_model.id_to_piece(i)
        if self.sp_model.is_byte(i):
            return bytes([int(piece[3:5], 16)])  # "<0x0A>"
        return piece.replace("\u2581", " ").encode()


class StreamDecoder:
    """Decode one id at a time. `feed` returns the text that became certain, `flush` the rest."""

    def __init__(self, tokenizer: Tokenizer, continuing: bool = False):
        self.tokenizer = tokenizer
        # Encoding puts a space before the first word ("Hello" is the piece "_Hello"); the decoder takes it away again.
        self.drop_space = not continuing
        # Bytes of an unfinished character wait inside; bytes that can finish none become U+FFFD.
        self.utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, i: int) -> str:
        raw = self.tokenizer.id_bytes(i)
        if self.drop_space and raw:
            self.drop_space = False
            if self.tokenizer.sp_model.id_to_piece(int(i)).startswith("\u2581"):
                raw = raw[1:]
        return self.utf8.decode(raw)

    def flush(self) -> str:
        return self.utf8.decode(b"", final=True)
