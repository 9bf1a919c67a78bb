"""`Llama`: text at the edge, ids inside. The names and defaults of Meta's `llama/generation.py`, and additions."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from typing_extensions import NotRequired, Unpack

from minillama import launch, memory, parallel
from minillama.args import as_index, as_path, shown, whole_number
from minillama.chat import UNSAFE_ERROR, Dialog, Message, check_dialog
from minillama.chat_llama3 import template_of
from minillama.checkpoint import checkpoint_files, load_model, quantized_as
from minillama.collectives import for_inference
from minillama.decode import (
    SCORED_AT_ONCE,
    Row,
    Step,
    check_numbers,
    decode,
    decode_step,
    padded,
    static_window,
    token_logprobs,
)
from minillama.packed import fits, pack
from minillama.quantize import check_device, check_format
from minillama.quantize import quantize as quantize_model
from minillama.sampling import Sampler, SamplingParams
from minillama.tokenizer import Tokenizer
from minillama.tokenizer_llama3 import load_tokenizer, stop_ids_of, stream_decoder
from minillama.transformer import Transformer

if TYPE_CHECKING:
    from minillama.teach.ranks import OwnParts

LARGEST_SEED = 2**62 - 1  # row r of a batch draws from seed + r, and torch takes 64 bits


class CompletionPrediction(TypedDict):
    generation: str
    finish_reason: str  # "stop" or "length"
    tokens: NotRequired[list[str]]  # not required, as in the reference: with logprobs=True
    logprobs: NotRequired[list[float]]


class ChatPrediction(TypedDict):
    generation: Message
    finish_reason: str  # "stop", "length", or "unsafe" for a dialog with special tags, which is not run
    tokens: NotRequired[list[str]]
    logprobs: NotRequired[list[float]]


class Options(TypedDict, total=False):
    """What every method that generates takes besides the reference's arguments; see `Llama.generate`."""

    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    stop: str | Sequence[str]
    stop_ids: Sequence[int] | None
    seed: int | None


@dataclass
class Piece:
    """What a stream yields at each step: new text (may be ""), the ids it came from, the reason at the end."""

    text: str
    tokens: list[int]
    finish_reason: str | None = None


@dataclass
class Score:
    """Log-probability (natural) of each token given those before it; the first has none before it and gets 0."""

    tokens: list[int]
    logprobs: list[float]

    @property
    def perplexity(self) -> float:
        mean = -sum(self.logprobs) / max(1, len(self.logprobs) - 1)  # the first token's 0 is no prediction
        return math.exp(mean) if mean < 700 else math.inf


class Llama:
    """A model and its tokenizer, with what people do with them."""

    @staticmethod
    def build(
        ckpt_dir: str | Path,
        tokenizer_path: str | Path | None = None,
        max_seq_len: int | None = None,
        max_batch_size: int | None = None,
        model_parallel_size: int | None = None,
        seed: int = 1,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype | None = None,
        quantize: str | None = None,
        compile: bool = False,
        parts: str | Mapping[str, Callable[..., Any]] | None = None,
    ) -> Llama:
        """Load a checkpoint folder. Under `torchrun` each process takes its share; otherwise no launcher is needed.

        tokenizer_path: None looks beside the checkpoint and in the parent folder, where Meta's download puts it.
        A file of Llama 3's is known by its content, and brings Llama 3's chat template and stop ids with it.
        max_seq_len: None takes the file's, or 4096; max_batch_size: None sets no limit (memory is taken per request).
        dtype: None takes the file's on a CPU; on a GPU bf16, or fp16 where the card has no bf16.
        seed: requests that bring no seed of their own draw theirs from it, so a program repeats itself.
        quantize: "int8" or "int4" for weights of fewer bits, on the CPU; a folder that `minillama convert` quantized is
        loaded as it is. compile: put the step of decoding through `torch.compile`, for a GPU: the first tokens take
        minutes, those after them are launched as one.
        parts: "mine" runs the model on the functions that you have written in the course so far (`teach.promote_mine`),
        a dict of functions on those.
        Raises FileNotFoundError and ValueError before any weight is read where the folder or the launch does not fit,
        and memory.OutOfMemory, a ValueError that tells the plan, where the weights do not fit what is free.
        """
        checkpoint_files(ckpt_dir)  # an empty folder is said to be one before ranks are joined or tokenizers looked for
        tokenizer = load_tokenizer(find_tokenizer(ckpt_dir) if tokenizer_path is None else tokenizer_path)
        whole_number("seed", seed, least=0, most=LARGEST_SEED)
        held = check_together(quantize, compile, ckpt_dir)
        own = None if parts is None else _own_parts(parts, compile)
        chosen = launch.start(model_parallel_size, device)
        if quantize is not None:
            check_device(chosen)
        dtype = launch.usual_dtype(chosen) if dtype is None else dtype
        model = load_model(
            ckpt_dir, device=chosen, dtype=dtype, max_seq_len=max_seq_len, max_batch_size=max_batch_size,
            n_words=tokenizer.n_words, share=None if own is None else own.share,
        )  # fmt: skip
        if quantize is not None and held is None:
            kept, ranks = model.norm.weight.dtype, parallel.world_size()
            memory.check_build(model.args, chosen, dtype=kept, ranks=ranks, quantize=quantize)
        if held is None:
            for_this_machine(model, quantize, compile, mapped=dtype is None)
        if own is not None:
            own.put_on(model)
        return Llama(model, tokenizer, seed=seed, max_batch_size=max_batch_size, compile=compile)

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        seed: int = 1,
        max_batch_size: int | None = None,
        compile: bool = False,
    ):
        model.args.check_tokenizer(tokenizer.n_words)
        self.model = model
        self.tokenizer = tokenizer
        self.max_batch_size = None if max_batch_size is None else whole_number("max_batch_size", max_batch_size)
        self._step = compiled_step() if compile else None
        self._seeds = torch.Generator("cpu").manual_seed(whole_number("seed", seed, least=0, most=LARGEST_SEED))

    def generate(
        self,
        prompt_tokens: Sequence[Sequence[int]],
        max_gen_len: int | None = None,
        temperature: float = 0.6,
        top_p: float = 0.9,
        logprobs: bool = False,
        echo: bool = False,
        *,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] | None = None,
        seed: int | None = None,
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """Continue each prompt; returns the new ids of every row and, with logprobs, their log-probabilities.

        Every row gets at most `max_gen_len` new tokens (None: what max_seq_len leaves); the prompt comes along with
        `echo`. logprobs are the model's own (temperature 1, nothing filtered), as in the reference.

        temperature, top_p, top_k, min_p and the penalties: see `SamplingParams`.
        stop: strings at which a row ends; they may begin or end inside a token. Ids whose text begins before the stop
        string are returned. stop_ids: ids at which a row ends, None for the tokenizer's EOS (Llama 3: its end of a turn
        too); they are not returned.
        seed: row r draws from seed + r, alone or in a batch, in any process.

        Raises ValueError, before anything is computed, for a prompt that is empty, too long or not ids of this model,
        for more rows than max_batch_size, and for options out of range.
        """
        penalties = (repetition_penalty, frequency_penalty, presence_penalty)
        params = SamplingParams(temperature, top_p, top_k, min_p, *penalties)
        job = _Job(self, prompt_tokens, max_gen_len, params, stop, stop_ids, seed, logprobs, echo)
        for _ in job.steps():
            pass
        tokens = [row.prompt * echo + row.tokens[: text.kept] for row, text in zip(job.rows, job.texts)]
        if not logprobs:
            return tokens, None
        scores = [row.prompt_logprobs * echo + row.logprobs[: text.kept] for row, text in zip(job.rows, job.texts)]
        return tokens, scores

    def text_completion(
        self,
        prompts: Sequence[str],
        temperature: float = 0.6,
        top_p: float = 0.9,
        max_gen_len: int | None = None,
        logprobs: bool = False,
        echo: bool = False,
        **options: Unpack[Options],
    ) -> list[CompletionPrediction]:
        """Continue each text. `generation` goes on from the prompt, its first space included (with echo: the whole).

        options: those of `generate`. With logprobs, `tokens` are the pieces of `generation`, one for each value.
        """
        encoded = self._encode_prompts(prompts)
        job = self._job(encoded, max_gen_len, temperature, top_p, logprobs, echo, options)
        for _ in job.steps():
            pass
        results = []
        for row, text in zip(job.rows, job.texts):
            result = CompletionPrediction(generation=text.text, finish_reason=row.finish_reason or "length")
            before = list(self.tokenizer.decode_stream(row.prompt)) if echo else []
            if echo:
                result["generation"] = "".join(before) + text.text
            if logprobs:
                # decode_stream's last piece is the flush, which belongs to no token of its own
                result["tokens"] = _joined(before) + text.pieces[: text.kept]
                result["logprobs"] = row.prompt_logprobs * echo + row.logprobs[: text.kept]
            results.append(result)
        return results

    def chat_completion(
        self,
        dialogs: Sequence[Dialog],
        temperature: float = 0.6,
        top_p: float = 0.9,
        max_gen_len: int | None = None,
        logprobs: bool = False,
        **options: Unpack[Options],
    ) -> list[ChatPrediction]:
        """Answer each dialog: [system,] user, assistant, ..., user. options: those of `generate`.

        A dialog with one of the template's tags in any message is not run: its answer is the reference's error text and
        its finish_reason "unsafe"; the others are answered as if it were not there. Raises ValueError, with index and
        role, for a wrong order of roles.
        """
        dialogs = _as_list("dialogs", dialogs)
        if any(isinstance(dialog, dict) for dialog in dialogs):
            raise ValueError("expected a list of dialogs, each a list of messages; for a single one pass [dialog]")
        template = template_of(self.tokenizer)
        safe: dict[int, list[int]] = {}  # ids of the dialogs that are run
        for i, dialog in enumerate(dialogs):
            try:
                check_dialog(dialog)
                if not template.has_special_tags(dialog):
                    safe[i] = self._check_prompt(i, template.encode_dialog(dialog, self.tokenizer))
            except ValueError as error:
                raise ValueError(f"dialog {i}: {error}") from None
        job = self._job(list(safe.values()), max_gen_len, temperature, top_p, logprobs, False, options, fresh=True)
        for _ in job.steps():
            pass
        refused = Message(role="assistant", content=UNSAFE_ERROR)
        results = [ChatPrediction(generation=refused, finish_reason="unsafe") for _ in dialogs]
        for i, row, text in zip(safe, job.rows, job.texts):
            answer = Message(role="assistant", content=text.text)
            results[i] = ChatPrediction(generation=answer, finish_reason=row.finish_reason or "length")
            if logprobs:
                results[i]["tokens"] = text.pieces[: text.kept]
                results[i]["logprobs"] = row.logprobs[: text.kept]
        return results

    def stream_text(
        self,
        prompt: str,
        temperature: float = 0.6,
        top_p: float = 0.9,
        max_gen_len: int | None = None,
        **options: Unpack[Options],
    ) -> Iterator[Piece]:
        """Continue one text, a `Piece` for every step; joined, their texts are `text_completion`'s."""
        job = self._job(self._encode_prompts([prompt]), max_gen_len, temperature, top_p, False, False, options)
        return job.pieces()

    def stream_chat(
        self,
        dialog: Dialog,
        temperature: float = 0.6,
        top_p: float = 0.9,
        max_gen_len: int | None = None,
        **options: Unpack[Options],
    ) -> Iterator[Piece]:
        """Answer one dialog, a `Piece` for every step. Raises ValueError for special tags in it."""
        encoded = template_of(self.tokenizer).encode_dialog(dialog, self.tokenizer)
        job = self._job([encoded], max_gen_len, temperature, top_p, False, False, options, fresh=True)
        return job.pieces()

    @torch.no_grad()
    def score(self, texts_or_tokens: Sequence[str] | Sequence[Sequence[int]]) -> list[Score]:
        """Log-probability of every token given those before it, all rows in one forward. Text gets a BOS before it."""
        given = _as_list("texts or of ids", texts_or_tokens)
        rows = [self._check_prompt(i, self._encode(i, x) if isinstance(x, str) else x) for i, x in enumerate(given)]
        self._check_batch(len(rows))
        if not rows:
            return []
        length = max(map(len, rows))
        self._check_memory(len(rows), length, length, cached=False, scored=True)
        tokens = padded(rows).to(self.model.device)  # (B, T)
        scores = token_logprobs(self.model, self.model.features(tokens), tokens).tolist()
        return [Score(row, check_numbers(i, scores[i][: len(row)])) for i, row in enumerate(rows)]

    def _job(
        self,
        encoded: Sequence[Sequence[int]],
        max_gen_len: int | None,
        temperature: float,
        top_p: float,
        logprobs: bool,
        echo: bool,
        options: Options,
        *,
        fresh: bool = False,
    ) -> _Job:
        rest: dict[str, Any] = dict(options)
        stop, stop_ids, seed = rest.pop("stop", ()), rest.pop("stop_ids", None), rest.pop("seed", None)
        params = SamplingParams(temperature, top_p, **rest)
        return _Job(self, encoded, max_gen_len, params, stop, stop_ids, seed, logprobs, echo, fresh=fresh)

    def _encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        return [self._encode(i, prompt) for i, prompt in enumerate(_as_list("prompts", prompts))]

    def _encode(self, i: int, prompt: str) -> list[int]:
        try:
            return self.tokenizer.encode(prompt, bos=True, eos=False)
        except ValueError as error:
            raise ValueError(f"prompt {i}: {error}") from None

    def _check_prompt(self, i: int, prompt: Sequence[int]) -> list[int]:
        """`prompt` as a list of ints. Raises ValueError, naming row i, for one that the model cannot take."""
        try:
            ids = _as_list("token ids", prompt)
        except ValueError as error:
            raise ValueError(f"prompt {i}: {error}") from None
        limit = self.model.args.max_seq_len
        if not ids:
            bos = f"BOS, {self.tokenizer.bos_id}"
            raise ValueError(f"prompt {i} is empty; the model needs at least one token to go on from ({bos})")
        if len(ids) > limit:
            remedy = "shorten it, or build with a larger max_seq_len"
            raise ValueError(f"prompt {i} has {len(ids)} tokens, more than max_seq_len {limit}; {remedy}")
        return [self._check_id(f"prompt {i}", t) for t in ids]

    def _check_id(self, holder: str, t: Any) -> int:
        index, n = as_index(t), self.model.args.vocab_size
        if index is None or not 0 <= index < n:
            raise ValueError(f"{holder} holds the id {shown(t)}; this model's ids are whole numbers from 0 to {n - 1}")
        return index

    def _check_batch(self, n: int) -> None:
        if self.max_batch_size is not None and n > self.max_batch_size:
            raise ValueError(f"batch {n} > max_batch_size {self.max_batch_size}; send fewer, or build with more")

    def _check_memory(self, rows: int, length: int, prompt: int, cached: bool = True, scored: bool = False) -> None:
        """Raise OutOfMemory, before anything is made, if a request does not fit what is free on every rank."""
        model = self.model
        free = memory.share_of_free(model.device)
        if free is None or not rows:
            return
        free = launch.smallest(free)
        logits = rows * min(prompt, SCORED_AT_ONCE) * model.args.vocab_size * 12 * scored  # in dtype, fp32, log_softmax
        needed = memory.plan(
            model.args, ranks=parallel.world_size(), batch_size=rows, seq_len=length, prompt_len=prompt, extra=logits,
            dtype=model.norm.weight.dtype, weights=0, cached=cached, budget=free,
            joined=hasattr(model.get_submodule("layers.0.feed_forward.w1"), "shared"),
        )  # fmt: skip
        if not needed.fits:
            raise memory.OutOfMemory(
                f"the request does not fit beside the weights: {needed.sentence(str(model.device))}"
            )

    def _fresh_seed(self) -> int:
        return int(torch.randint(2**62, (1,), generator=self._seeds, device="cpu"))


def check_together(quantize: str | None, compile: bool, ckpt_dir: str | Path | None = None) -> str | None:
    """The format of a folder that is quantized already. Raises ValueError for choices that do not go together."""
    check_format(quantize)
    held = None if ckpt_dir is None else quantized_as(ckpt_dir)
    if held is not None and quantize not in (None, held):
        raise ValueError(f"{ckpt_dir} is quantized as {held}; {quantize} has to start from the full weights")
    if compile and (quantize or held):
        raise ValueError("torch.compile does not take quantized weights; leave out compile, or quantize")
    return held


def _own_parts(parts: str | Mapping[str, Callable[..., Any]], compile: bool) -> OwnParts:
    """A learner's functions, found and checked, to be put on a model."""
    if compile:
        raise ValueError("torch.compile does not take parts of your own; leave out compile, or parts")
    from minillama.teach import own, ranks  # only who asks for it pays for the course

    return ranks.OwnParts(own.parts_of(parts))


def for_this_machine(
    model: Transformer, quantize: str | None = None, compile: bool = False, mapped: bool = False
) -> Transformer:
    """Put in place of `model`'s linears what is fastest here: quantized ones if asked for, packed ones on a CPU.

    mapped: the weights lie in a file and need not stay in memory beside a packed copy.
    """
    if quantize is not None:
        quantize_model(model, quantize, leave_file=mapped)
    elif compile:
        for_inference(model)
    elif fits(model):
        pack(model, leave_file=mapped)
    return model


def compiled_step() -> Step:
    """`decode_step` as one compiled function; on a GPU replayed as a CUDA graph."""
    mode = "reduce-overhead" if torch.cuda.is_available() else None
    compiled = torch.compile(decode_step, fullgraph=True, mode=mode)

    def step(
        model: Transformer, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, window: Any
    ) -> torch.Tensor:
        # A graph that writes to what it is given is not recorded, unless that is said to stay where it is. A request's
        # cache does; for the cache of the next request, the graph is recorded once more.
        for tensor in (model.freqs_cis, *(t for layer in window for t in (layer.keys, layer.values))):
            torch._dynamo.mark_static_address(tensor)
        return compiled(model, tokens, positions, mask, window)

    return step


class _Job:
    """One request: rows of ids being decoded, and the text that each has come to."""

    def __init__(
        self,
        llama: Llama,
        prompts: Sequence[Sequence[int]],
        max_gen_len: int | None,
        params: SamplingParams,
        stop: str | Sequence[str],
        stop_ids: Sequence[int] | None,
        seed: int | None,
        logprobs: bool,
        echo: bool,
        *,
        fresh: bool = False,
    ):
        prompts = _as_list("prompts", prompts)
        llama._check_batch(len(prompts))
        if max_gen_len is not None:  # None: as many as fit
            max_gen_len = whole_number("max_gen_len", max_gen_len, least=0, most=2**62)
        for name, flag in (("logprobs", logprobs), ("echo", echo)):
            if isinstance(flag, float) or flag not in (False, True):
                raise ValueError(f"{name} is {shown(flag)}; expected True or False")
        stops = [stop] if isinstance(stop, str) else _as_list("stop strings", stop, (Sequence, Set))
        if not all(isinstance(s, str) and s for s in stops):
            raise ValueError(f"stop is {shown(stop)}; expected text, or a list of texts that are not empty")
        ends = stop_ids_of(llama.tokenizer) if stop_ids is None else _as_list("stop_ids", stop_ids, (Sequence, Set))
        checked = [llama._check_prompt(i, prompt) for i, prompt in enumerate(prompts)]
        room = [llama.model.args.max_seq_len - len(prompt) for prompt in checked]
        self.rows = [Row(p, min(r, r if max_gen_len is None else max_gen_len)) for p, r in zip(checked, room)]
        self.texts = [_Text(llama.tokenizer, stops, continuing=not fresh) for _ in checked]
        self.stop_ids = {llama._check_id("stop_ids", t) for t in ends}
        self.llama, self.params = llama, params
        self.seed = llama._fresh_seed() if seed is None else whole_number("seed", seed, 0, LARGEST_SEED)
        self.logprobs, self.score_prompts = logprobs, logprobs and echo
        prompt = max((len(row.prompt) for row in self.rows), default=0)
        length = max((len(row.prompt) + row.max_new for row in self.rows), default=0)
        if llama._step is not None:
            length = min(llama.model.args.max_seq_len, static_window(length))
        llama._check_memory(len(self.rows), length, prompt, scored=self.score_prompts)

    @torch.no_grad()
    def steps(self) -> Iterator[None]:
        """Run to the end; after each step the texts are up to date."""
        if not self.rows:
            return
        device = self.llama.model.device
        seed = launch.tell_everyone(self.seed)
        own = getattr(self.llama.model, "own_loop", None)  # a learner's pieces, put there by `minillama.teach`
        make_sampler, loop_of = (Sampler, decode) if own is None else own()
        sampler = make_sampler(
            self.params, [row.prompt for row in self.rows], max(row.max_new for row in self.rows),
            self.llama.model.args.vocab_size, [seed + r for r in range(len(self.rows))], device,
        )  # fmt: skip

        def choose(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
            return launch.same_everywhere(sampler(logits, rows))

        loop = loop_of(
            self.llama.model, self.rows, choose, self.stop_ids, logprobs=self.logprobs,
            score_prompts=self.score_prompts, step=self.llama._step,
        )  # fmt: skip
        with launch.explained():
            for _ in loop:
                for row, text in zip(self.rows, self.texts):
                    text.follow(row)
                yield
        for row, text in zip(self.rows, self.texts):
            text.follow(row)

    def pieces(self) -> Iterator[Piece]:
        """The steps of a single row as a stream."""
        row, text = self.rows[0], self.texts[0]
        sent_text = sent_tokens = 0
        ended = False
        for _ in self.steps():
            ended = row.finish_reason is not None
            yield Piece(text.text[sent_text:], row.tokens[sent_tokens : text.kept], row.finish_reason)
            sent_text, sent_tokens = len(text.text), text.kept
        if not ended:  # no room for a single token
            yield Piece("", [], row.finish_reason)


class _Text:
    """The text of one row: decoded as ids arrive, held back while it may become a stop string, cut where it does.

    text: what is certain. pieces: the text of each id. kept: how many ids `text` accounts for.
    """

    def __init__(self, tokenizer: Tokenizer, stops: list[str], continuing: bool):
        self.decoder = stream_decoder(tokenizer, continuing)
        self.stops = stops
        self.text = ""
        self.pieces: list[str] = []
        self.starts: list[int] = []  # where in the row's text each id's begins
        self.kept = 0
        self.whole = ""  # text decoded so far, held back or not
        self.done = False

    def follow(self, row: Row) -> None:
        """Take in what the row has gained; set its finish_reason if that completes a stop string."""
        if self.done:
            return
        for token in row.tokens[len(self.pieces) :]:
            self._add(self.decoder.feed(token), new=True)
        if row.finish_reason is not None:
            self._add(self.decoder.flush(), new=False)
        cut = self._cut(len(self.text))
        if cut is not None:
            row.finish_reason = "stop"
        self.done = row.finish_reason is not None
        end = cut if cut is not None else len(self.whole) if self.done else len(self.whole) - self._may_become_stop()
        self.text = self.whole[:end]
        if self.done and cut is None:
            self.kept = len(self.starts)
        else:
            self.kept = sum(start < end for start in self.starts)
        if cut is not None and self.kept:  # the stop string may begin inside the last piece
            self.pieces[self.kept - 1] = self.text[self.starts[self.kept - 1] :]

    def _add(self, text: str, new: bool) -> None:
        if new:
            self.starts.append(len(self.whole))
            self.pieces.append(text)
        elif self.pieces:
            self.pieces[-1] += text
        self.whole += text

    def _cut(self, certain: int) -> int | None:
        """Where the earliest stop string begins. None of them can begin in text that was let go."""
        places = [place for stop in self.stops if (place := self.whole.find(stop, certain)) >= 0]
        return min(places, default=None)

    def _may_become_stop(self) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        longest = min(max(map(len, self.stops), default=0), len(self.whole))
        return next((n for n in range(longest, 0, -1) if any(s.startswith(self.whole[-n:]) for s in self.stops)), 0)


def find_tokenizer(ckpt_dir: str | Path) -> Path:
    """tokenizer.model beside the checkpoint, or in its parent folder, where Meta's download puts it."""
    folder = as_path("ckpt_dir", ckpt_dir)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"no folder {folder}: expected one with consolidated.*.pth and params.json")
    for place in (folder, folder.absolute().parent, folder.resolve().parent):  # a link has two parents
        if (place / "tokenizer.model").is_file():
            return place / "tokenizer.model"
    raise FileNotFoundError(f"no tokenizer.model in {folder} or its parent folder; pass tokenizer_path")


def fresh_seed() -> int:
    """A seed from the system's randomness, for programs that want a new story every time."""
    return secrets.randbelow(2**62)


def _joined(pieces: list[str]) -> list[str]:
    """decode_stream's pieces with the final flush added to the last id's."""
    return [*pieces[:-2], pieces[-2] + pieces[-1]] if len(pieces) > 1 else []


def _as_list(what: str, value: Any, kinds: tuple[type, ...] = (Sequence,)) -> list[Any]:
    """A list, tuple, array or tensor as a list. Sets have no order and generators no length: not lists here."""
    items: Any = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, kinds) and not isinstance(items, (str, bytes, bytearray)):
        return [*items]  # type: ignore[misc]
    raise ValueError(f"expected a list of {what}, got {shown(value)}; wrap a single one in [ ]")
