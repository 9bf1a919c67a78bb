"""The command line: `minillama complete`, `chat`, `info` and `bench`, for people and, with --json, for machines.

Answers go to stdout and everything else to stderr. What the user can mend is one line and exit code 2. Under
`torchrun` every rank runs the same command, and rank 0 reads and speaks for all. torch is imported when a command needs
it, so that `--help` and `--version` answer at once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from minillama.args import count

if TYPE_CHECKING:
    from minillama.args import ModelArgs
    from minillama.chat import Message
    from minillama.generation import Llama, Piece

WIDTH = 80
KEEP_ALIVE = 60.0  # seconds: ranks that wait for a person's next line hear this often that there is none yet
GIVE_WAY = 5.0  # seconds: a failing rank lets the one that failed first (torchrun then ends this one) speak alone

# Typer carries its own click and does not export the base class of usage errors.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """The commands, with our manners in place of typer's: plain one-line errors, quiet ranks, no traceback."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **__: Any) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            stream = getattr(sys, name)
            if stream is None:  # closed by whoever started us
                setattr(sys, name, open(os.devnull, mode))
            elif hasattr(stream, "reconfigure"):
                # A terminal without the character should not end the story; what comes in has to be text.
                stream.reconfigure(errors="strict" if name == "stdin" else "replace")
        with _plain_warnings(), _only_rank_0_speaks():
            sys.exit(_status(lambda: self._run(arguments)))

    def _run(self, arguments: list[str]) -> int:
        try:
            with self.make_context("minillama", arguments) as context:
                self.invoke(context)
            status = 0
        except typer.Exit as done:
            status = done.exit_code
        sys.stdout.flush()
        _leave_ranks()
        return status


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 all went well, 2 something you can mend (one line on stderr says what; MINILLAMA_DEBUG=1 "
    "shows the traceback), 130 after Ctrl-C. In parallel: torchrun --nproc_per_node 2 -m minillama complete ...",
)


def main() -> None:
    """The entry point of the `minillama` command and of `python -m minillama`."""
    get_command(app).main()


# The options, each written once -------------------------------------------------------------------------------------

CkptDir = Annotated[
    Path | None,
    typer.Option(help="Folder with params.json and consolidated.*.pth.", show_default="the demo checkpoint"),
]
TokenizerPath = Annotated[
    Path | None,
    typer.Option(help="SentencePiece's or Llama 3's.", show_default="tokenizer.model beside the checkpoint or above"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0 or mps.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16.", show_default="the checkpoint's; on a GPU 16 bits")
]
Quantize = Annotated[
    str | None, typer.Option(help="int8 or int4: weights of fewer bits, on the CPU.", show_default="as they are")
]
Mine = Annotated[
    bool, typer.Option("--mine", help="Run on the functions that you have written in the course (my_minillama/).")
]
MaxSeqLen = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Most tokens, prompt and answer together.", show_default="the checkpoint's"),
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=0, max=2**62 - 1, help="The same seed tells the same story.", show_default="a fresh one"
    ),
]
Compile = Annotated[bool, typer.Option("--compile", help="Decode through torch.compile: slow to start; for GPUs.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of text.")]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token; higher is wilder.")]
TopP = Annotated[float, typer.Option(help="Draw from the likeliest tokens that hold this share; 1 is off.")]
MaxGenLen = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Most new tokens.", show_default="as many as fit")
]
TopK = Annotated[int, typer.Option(metavar="N", min=0, help="Draw from this many likeliest tokens; 0 is off.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the likeliest one's; 0 is off.")]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Above 1: tokens seen before, prompt included, are less likely.")
]
FrequencyPenalty = Annotated[float, typer.Option(help="Lower a token's logit by this for each time it was generated.")]
PresencePenalty = Annotated[float, typer.Option(help="Lower the logit of every token generated before by this.")]
Stop = Annotated[
    list[str] | None, typer.Option(help="End at this text, which is left out; repeatable.", show_default=False)
]


def _print_version(asked: bool) -> None:
    if asked:
        from minillama import __version__

        _say(f"minillama {__version__}\n")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def _top(version: Version = False) -> None:
    """Llama 2 on the command line: continue a text, talk, look a checkpoint over, or measure its speed."""


@app.command(short_help="Continue one text or several.")
def complete(
    prompts: Annotated[
        list[str],
        typer.Argument(metavar="PROMPT...", help="Text to go on from; - reads it from stdin.", show_default=False),
    ],
    ckpt_dir: CkptDir = None,
    tokenizer_path: TokenizerPath = None,
    device: Device = "auto",
    dtype: Dtype = None,
    quantize: Quantize = None,
    mine: Mine = False,
    max_seq_len: MaxSeqLen = None,
    seed: Seed = None,
    temperature: Temperature = 0.6,
    top_p: TopP = 0.9,
    max_gen_len: MaxGenLen = None,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    presence_penalty: PresencePenalty = 0.0,
    stop: Stop = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text, written as it is made; several texts are continued together, in one batch."""
    if any("\udc80" <= c <= "\udcff" for prompt in prompts for c in prompt):  # how Python passes on bytes of argv
        raise typer.BadParameter("a prompt is not UTF-8 text")
    if prompts.count("-") > 1:
        raise typer.BadParameter("- stands for all of stdin and can be given once")
    options = _options(
        max_gen_len, stop, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
        repetition_penalty=repetition_penalty, frequency_penalty=frequency_penalty, presence_penalty=presence_penalty,
    )  # fmt: skip
    llama = _build(ckpt_dir, tokenizer_path, device, dtype, quantize, max_seq_len, mine)
    seed = _seed(seed)
    if "-" in prompts:
        text = _stdin_text()
        prompts = [text if prompt == "-" else prompt for prompt in prompts]
    if len(prompts) > 1:
        result = _complete_together(llama, prompts, seed, options)
        if not as_json:
            texts = [one["prompt"] + one["text"] for one in result["completions"]]
            _say(f"\n{'-' * 40}\n".join(texts) + "\n")
    else:
        started = time.perf_counter()
        pieces = llama.stream_text(prompts[0], seed=seed, **options)
        say = _nothing if as_json else _say
        prompt_tokens = len(llama.tokenizer.encode(prompts[0], bos=True, eos=False))
        result = {"prompt": prompts[0]} | _followed(pieces, started, say, prompt_tokens, prompts[0]) | {"seed": seed}
        say("\n")
    if as_json:
        _say_json(result)


@app.command(short_help="Talk with a chat model.")
def chat(
    message: Annotated[
        str | None, typer.Option(help="Answer this one message and exit; - reads it from stdin.", show_default=False)
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model is to be.", show_default=False)] = None,
    ckpt_dir: CkptDir = None,
    tokenizer_path: TokenizerPath = None,
    device: Device = "auto",
    dtype: Dtype = None,
    quantize: Quantize = None,
    mine: Mine = False,
    max_seq_len: MaxSeqLen = None,
    seed: Seed = None,
    temperature: Temperature = 0.6,
    top_p: TopP = 0.9,
    max_gen_len: MaxGenLen = None,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    presence_penalty: PresencePenalty = 0.0,
    stop: Stop = None,
    as_json: AsJson = False,
) -> None:
    """Talk with a chat model: a message a line on stdin, answers as they are made.

    /reset forgets what was said; /exit, Ctrl-D and Ctrl-C end. When the talk outgrows --max-seq-len, its oldest turns
    are forgotten; the system message stays. With --json, every answer is an object on a line of its own.
    """
    options = _options(
        max_gen_len, stop, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
        repetition_penalty=repetition_penalty, frequency_penalty=frequency_penalty, presence_penalty=presence_penalty,
    )  # fmt: skip
    tags = _special_tags(ckpt_dir, tokenizer_path)
    _refuse_tags("the system message", system or "", tags)
    if message is not None:
        _refuse_tags("the message", message, tags)  # before a model is loaded
    llama = _build(ckpt_dir, tokenizer_path, device, dtype, quantize, max_seq_len, mine)
    talk = Conversation(llama, system, _seed(seed), options)
    say = _nothing if as_json else _say

    def answer(text: str) -> None:
        result = talk.answer(text, say)
        say("\n")
        if result["forgotten_turns"]:
            turns = count(result["forgotten_turns"], "oldest turn")
            _note(f"the talk no longer fits in {llama.model.args.max_seq_len} tokens; forgot its {turns}")
        if as_json:
            _say_json(result)

    if message is not None:
        answer(_stdin_text() if message == "-" else message)
        return
    if sys.stdin.isatty() and not as_json:
        _note("/reset forgets what was said; /exit or Ctrl-D ends")
    for line in _lines(marker=not as_json):
        text = line.strip()
        if text == "/exit":
            break
        if text == "/reset":
            talk.reset()
        elif text:
            try:
                answer(text)
            except ValueError as error:  # this turn cannot be; the talk goes on, as if it had not been said
                _note(f"error: {_one_line(error)}")
                if as_json:  # whoever sent the line waits for an object
                    _say_json({"message": text, "error": _one_line(error)})


@app.command(short_help="Show a model's shape and memory.")
def info(
    model: Annotated[
        str | None, typer.Option(help="110M, 1.1B, 7B, 13B or 70B instead of a checkpoint.", show_default=False)
    ] = None,
    ckpt_dir: CkptDir = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of weights and cache: float32, bfloat16 or float16.", show_default="the checkpoint's, or float16"
        ),
    ] = None,
    quantize: Quantize = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Sequences at once.")] = 1,
    seq_len: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of each.", show_default="as many as the model takes")
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", "--mp", metavar="N", min=1, help="Processes that share it.")] = 1,
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of each rank's GPU, as 80GB: what fits in it?", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a model's shape and the memory that it takes. Weights are not read.

    Weights and KV cache are exact; activations are those of a prompt as long as --seq-len, all rows at once.
    """
    if model is not None and ckpt_dir is not None:
        raise typer.BadParameter("--model and --ckpt-dir name two models; give one")
    from minillama.args import ModelArgs
    from minillama.checkpoint import DTYPES, resolve_dtype
    from minillama.memory import GPU_LIBRARIES, gb, parse_size, plan
    from minillama.quantize import FORMATS, check_format

    budget = None if gpu_memory is None else parse_size(gpu_memory)
    chosen = resolve_dtype(dtype) or DTYPES["float16"]
    if model is not None:
        from minillama.bench import SHAPES, known_shape

        about: dict[str, Any] = {"model": known_shape(model)}
        args = ModelArgs(**SHAPES[about["model"]])
    else:
        args, about, kept = _looked_over(_checkpoint(ckpt_dir))
        chosen = chosen if dtype else kept
    weights = None
    if about.get("file_dtype", "") in FORMATS:
        if ranks > 1:
            raise typer.BadParameter("a quantized checkpoint runs in one process")
        if quantize not in (None, about["file_dtype"]):
            raise typer.BadParameter(f"the checkpoint is quantized as {about['file_dtype']} already")
        quantize = about["file_dtype"]
        weights = about["file_bytes"]  # the embedding and the norms are as they were, in another dtype than the rest
    needed = plan(
        args, ranks=ranks, batch_size=batch, seq_len=seq_len, dtype=chosen, budget=budget, weights=weights,
        quantize=check_format(quantize), extra=0 if budget is None else GPU_LIBRARIES,
    )  # fmt: skip
    name = needed.dtype
    if as_json:
        shape = {
            key: getattr(args, key)
            for key in ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size",
                        "max_seq_len", "norm_eps", "rope_theta", "n_params")
        }  # fmt: skip
        asked = {"dtype": name, "quantize": quantize, "batch": batch, "seq_len": needed.seq_len, "ranks": ranks}
        _say_json(about | shape | asked | needed.as_dict())
        return
    if model is not None:
        rows = [("model", about["model"])]
    else:
        on_disk = f"{count(about['files'], 'file')}, {gb(about['file_bytes'])}, {about['file_dtype']}"
        rows = [("checkpoint", about["ckpt_dir"]), ("on disk", on_disk)]
    each = f" on each of {ranks} ranks" if ranks > 1 else ""
    rows += [
        ("layers", f"{args.n_layers}"),
        ("width", f"{args.dim}, feed-forward {args.hidden_dim}"),
        ("attention", f"{args.n_heads} heads of {args.head_dim}, {count(args.n_kv_heads, 'kv head')}"),
        ("vocabulary", f"{args.vocab_size:,} pieces"),
        ("context", f"{args.max_seq_len:,} tokens, RoPE theta {args.rope_theta:g}"),
        ("parameters", f"{args.n_params:,}"),
        ("weights", f"{gb(needed.weights)} in {quantize or name}{each}"),
        ("KV cache", f"{gb(needed.kv_cache)} in {name}{each}, batch {batch} x {needed.seq_len:,} tokens"),
        ("activations", f"{gb(needed.activations)}{each}, where prompts are as long"),
        ("workspace", f"{gb(needed.workspace)}{each}"),
        ("together", f"{gb(needed.total)}{each}"),
    ]
    if budget is not None:
        rows += [("in " + gb(budget), "it fits" if needed.fits else "it does not fit")]
        fitting = [f"a batch of {needed.largest_batch}"] * bool(needed.largest_batch)
        all_of_it = ", all of the context" * (needed.largest_seq_len == args.max_seq_len)
        fitting += [f"{needed.largest_seq_len:,} tokens at batch {batch}{all_of_it}"] * bool(needed.largest_seq_len)
        smaller = ", or a smaller --dtype" * (chosen == DTYPES["float32"])
        rows += [("what fits", " or ".join(fitting) or f"nothing: take more ranks{smaller}")]
    label = max(len(left) for left, _ in rows) + 2
    for left, right in rows:
        if label + len(right) > WIDTH:  # the end of a long path says more than its beginning
            right = "..." + right[label + 3 - WIDTH :]
        _say(f"{left:<{label}}{right}\n")


@app.command(short_help="Measure speed and memory.")
def bench(
    model: Annotated[
        str | None, typer.Option(help="Random weights of a shape: 110M, 1.1B, 7B, 13B or 70B.", show_default=False)
    ] = None,
    ckpt_dir: CkptDir = None,
    device: Device = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16.", show_default="the checkpoint's; bfloat16 for random weights"
        ),
    ] = None,
    quantize: Quantize = None,
    compile: Compile = False,
    against: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Others on the same weights: transformers,llamacpp.", show_default=False),
    ] = "",
    prompt: Annotated[
        str, typer.Option(metavar="N,...", help="Tokens of the prompts.", show_default="64,512, or what fits")
    ] = "",
    new_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Decoded after the first prompt.")] = 32,
    batch: Annotated[str, typer.Option(metavar="N,...", help="Decode this many rows at once.")] = "1",
    at_position: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Decode after so many tokens as well.", show_default=False)
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="What is shown are medians of these.")] = 5,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=4096, help="Of each engine.", show_default="torch's choice")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure prefill and decode speed, memory, and how near decoding comes to the machine's read bandwidth.

    The bandwidth is measured in the same run. --against runs other engines in turn with ours (pip install
    'minillama[bench]') and checks first that they compute the same.
    """
    if model is not None and ckpt_dir is not None:
        raise typer.BadParameter("--model and --ckpt-dir name two models; give one")
    import torch

    from minillama.bench import Plan, table
    from minillama.bench import bench as measured

    peers = [name.strip() for name in against.split(",") if name.strip()]
    plan = Plan(_numbers("--prompt", prompt), _numbers("--batch", batch), new_tokens, repeats, at_position)
    if threads is not None:
        torch.set_num_threads(threads)
    with _progress() as tick:
        result = measured(
            plan, ckpt_dir=None if model else _checkpoint(ckpt_dir), shape=model, device=device, dtype=dtype,
            quantize=quantize, compile=compile, against=peers, tick=tick,
        )  # fmt: skip
    if as_json:
        _say_json(result)
    else:
        _say(table(result) + "\n")


@app.command(short_help="Write a checkpoint in fewer bits, another layout, other files.")
def convert(
    src: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of Meta's or Hugging Face's.", show_default=False)],
    dst: Annotated[Path, typer.Argument(metavar="DST", help="Folder to make.", show_default=False)],
    quantize: Annotated[str | None, typer.Option(help="int8 or int4.", show_default=False)] = None,
    to: Annotated[str | None, typer.Option(help="Layout: meta or hf.", show_default=False)] = None,
    mp: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Files, in Meta's layout.", show_default="1")
    ] = None,
    dtype: Dtype = None,
    shard_size: Annotated[
        float | None, typer.Option(metavar="GB", help="Of a file, in Hugging Face's layout.", show_default="5")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint again, with its tokenizer, into a new folder: --quantize or --to says as what.

    --quantize: its linear layers in int8 or int4. --to meta: consolidated.NN.pth, --mp of them. --to hf: what
    transformers loads. The other commands take any of these folders as it is.
    """
    from tqdm import tqdm

    from minillama import convert as work
    from minillama.checkpoint import checkpoint_files
    from minillama.memory import gb
    from minillama.quantize import FORMATS

    if (quantize is None) == (to is None):
        raise typer.BadParameter("give --quantize int8 or int4, or --to meta or hf, and not both")
    if quantize not in (None, *FORMATS):
        raise typer.BadParameter(f"--quantize is {quantize!r}; expected {' or '.join(FORMATS)}")
    if to not in (None, *work.LAYOUTS):
        raise typer.BadParameter(f"--to is {to!r}; expected {' or '.join(work.LAYOUTS)}")
    if quantize is not None and (mp, dtype, shard_size) != (None, None, None):
        raise typer.BadParameter("--mp, --dtype and --shard-size go with --to, not with --quantize")
    if shard_size is not None and not 0 < shard_size < 10**6:
        raise typer.BadParameter(f"--shard-size is {shard_size}; expected GB, more than 0")
    if _ranks() > 1:
        raise typer.BadParameter("convert is the work of one process; start it without torchrun")

    def bar(keys: Iterable[str]) -> Iterable[str]:
        return tqdm(keys, unit="tensor", leave=False, disable=None)

    if quantize is not None:
        made_at = work.convert(src, dst, quantize, bar)
    else:
        shard_bytes = None if shard_size is None else max(1, int(shard_size * 10**9))
        made_at = work.rewrite(src, dst, to or "", mp=mp, dtype=dtype, shard_bytes=shard_bytes, progress=bar)
    before, after = (sum(path.stat().st_size for path in checkpoint_files(folder)) for folder in (src, made_at))
    if as_json:
        made = {"quantized": quantize} if quantize else {"layout": to, "files": len(checkpoint_files(made_at))}
        _say_json({"src": str(src), "dst": str(dst)} | made | {"src_bytes": before, "dst_bytes": after})
    elif quantize is not None:
        _say(f"{dst}: {gb(after)} instead of {gb(before)}\n")
    else:
        _say(f"{dst}: {count(len(checkpoint_files(made_at)), 'file')}, {gb(after)}\n")


class Conversation:
    """What was said, and the next answer; keeps within max_seq_len by forgetting its oldest turns.

    The answer number n since the beginning draws from seed + n, so that a talk can be repeated.
    """

    def __init__(self, llama: Llama, system: str | None, seed: int, options: dict[str, Any]):
        from minillama.chat_llama3 import template_of

        self.llama, self.seed, self.options = llama, seed, options
        self.template = template_of(llama.tokenizer)
        self.opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        self.history: list[Message] = []
        self.answers = 0

    def answer(self, text: str, say: Callable[[str], None]) -> dict[str, Any]:
        """Say the answer to `text` and remember both. Raises ValueError, with nothing changed, where it cannot."""
        started = time.perf_counter()
        _refuse_tags("the message", text, self.template.special_tags)
        question: Message = {"role": "user", "content": text}
        forgotten, ids = self._forget(question)
        dialog = [*self.opening, *self.history[2 * forgotten :], question]
        seed = (self.seed + self.answers) % 2**62
        result = _followed(self.llama.stream_chat(dialog, seed=seed, **self.options), started, say, len(ids))
        answer = _without_tags(result["text"], self.template.special_tags).strip()
        said: Message = {"role": "assistant", "content": answer}
        self.history = [*self.history[2 * forgotten :], question, said]
        self.answers += 1
        return {"message": text} | result | {"forgotten_turns": forgotten, "seed": seed}

    def _forget(self, question: Message) -> tuple[int, list[int]]:
        """How many of the oldest turns have to go, and the ids of what remains with `question`."""
        limit = self.llama.model.args.max_seq_len
        # A history that leaves no room for the answer is of no use: a quarter is kept free, or all that was asked for.
        room = max(1, min(limit // 4, self.options["max_gen_len"] or limit))
        turns = len(self.history) // 2
        for forgotten in range(turns + 1):
            dialog = [*self.opening, *self.history[2 * forgotten :], question]
            ids = self.template.encode_dialog(dialog, self.llama.tokenizer)
            if len(ids) + room <= limit:
                return forgotten, ids
        if len(ids) >= limit:
            raise ValueError(f"the message takes {len(ids)} tokens and max_seq_len is {limit}: no room for an answer")
        return turns, ids


def _followed(
    pieces: Iterator[Piece], started: float, say: Callable[[str], None], prompt_tokens: int, prompt: str = ""
) -> dict[str, Any]:
    """Say the prompt, and the pieces as they come; what they were, and how fast."""
    text, reason, first = "", None, None
    tokens: list[int] = []
    say(prompt)
    try:
        for piece in pieces:
            if first is None:
                first = time.perf_counter() - started
            say(piece.text)
            text, reason = text + piece.text, piece.finish_reason
            tokens += piece.tokens
    except Exception:  # what is said of it begins a line of its own
        if prompt or text:
            say("\n")
            if _rank() > 0 and say is _say:  # whose stdout nobody sees: the line to end is rank 0's
                print(file=sys.stderr)
        raise
    return {
        "text": text, "tokens": tokens, "finish_reason": reason, "prompt_tokens": prompt_tokens,
        "new_tokens": len(tokens), **_speed(first, time.perf_counter() - started, len(tokens)),
    }  # fmt: skip


def _complete_together(llama: Llama, prompts: list[str], seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """All prompts in one batch. Each has the seed that repeats it alone."""
    started = time.perf_counter()
    rest = dict(options)
    limit, temperature, top_p = rest.pop("max_gen_len"), rest.pop("temperature"), rest.pop("top_p")
    encoded = llama._encode_prompts(prompts)
    job = llama._job(encoded, limit, temperature, top_p, False, False, rest | {"seed": seed})  # type: ignore[arg-type]
    first = None
    for _ in job.steps():
        if first is None:
            first = time.perf_counter() - started
    total = time.perf_counter() - started
    completions = [
        {
            "prompt": prompt, "text": text.text, "tokens": row.tokens[: text.kept], "finish_reason": row.finish_reason,
            "prompt_tokens": len(row.prompt), "new_tokens": text.kept, "seed": seed + r,
        }
        for r, (prompt, row, text) in enumerate(zip(prompts, job.rows, job.texts))
    ]  # fmt: skip
    new = sum(text.kept for text in job.texts)
    return {"completions": completions, "new_tokens": new, **_speed(first, total, new), "seed": seed}


def _speed(first: float | None, total: float, new_tokens: int) -> dict[str, Any]:
    return {
        "seconds_to_first_token": round(first, 6) if first is not None and new_tokens else None,
        "seconds": round(total, 6),
        "tokens_per_second": round(new_tokens / total, 2),
    }


# What the commands share --------------------------------------------------------------------------------------------


def _options(max_gen_len: int | None, stop: list[str] | None, **params: Any) -> dict[str, Any]:
    """What a generating method of `Llama` takes, checked before minutes go into loading a model."""
    from minillama.sampling import SamplingParams

    SamplingParams(**params)
    if stop and not all(stop):
        raise typer.BadParameter("--stop needs a text that is not empty")
    return {**params, "max_gen_len": max_gen_len, "stop": stop or []}


def _seed(seed: int | None) -> int:
    """The user's seed or a fresh one; rank 0's on every rank."""
    from minillama.generation import fresh_seed
    from minillama.launch import tell_everyone

    # 32 bits of it are enough, can be typed again, and survive JSON readers that keep numbers as doubles
    return tell_everyone(fresh_seed() % 2**32 if seed is None else seed)


def _checkpoint(ckpt_dir: Path | None) -> Path:
    if ckpt_dir is not None:
        return ckpt_dir
    from minillama.storyteller import demo_dir

    try:
        return demo_dir()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}, or name one with --ckpt-dir") from None


def _build(
    ckpt_dir: Path | None,
    tokenizer_path: Path | None,
    device: str,
    dtype: str | None,
    quantize: str | None,
    max_seq_len: int | None,
    mine: bool,
) -> Llama:
    from minillama.checkpoint import resolve_dtype
    from minillama.generation import Llama

    resolve_dtype(dtype)
    folder = _checkpoint(ckpt_dir)
    parts = "mine" if mine else None
    if mine:
        from minillama.teach.own import mine as own_parts

        names = ", ".join(own_parts(ranks=_ranks() > 1))
        if names:  # with none, or one that does not pass, `build` says what to do
            _note(f"on your {names}")
    return Llama.build(folder, tokenizer_path, max_seq_len, device=device, dtype=dtype, quantize=quantize, parts=parts)


def _looked_over(ckpt_dir: Path) -> tuple[ModelArgs, dict[str, Any], Any]:
    """Args, what is on disk, and the dtype of a checkpoint whose weights stay unread."""
    from minillama.checkpoint import look_over

    found = look_over(ckpt_dir)
    if not found.quantized:
        found.weights()  # keys and shapes, all of them; no number is read
    size = sum(path.stat().st_size for path in found.paths)
    name = found.quantized or str(found.dtype).removeprefix("torch.")
    about = {"ckpt_dir": str(ckpt_dir), "files": len(found.paths), "file_bytes": size, "file_dtype": name}
    return found.args, about, found.dtype


def _special_tags(ckpt_dir: Path | None, tokenizer_path: Path | None) -> Sequence[str]:
    """The tags of the chat template that goes with a checkpoint's tokenizer; its model stays unread."""
    from minillama.chat_llama3 import LLAMA2, LLAMA3
    from minillama.generation import find_tokenizer
    from minillama.tokenizer_llama3 import is_tiktoken

    path = find_tokenizer(_checkpoint(ckpt_dir)) if tokenizer_path is None else tokenizer_path
    return (LLAMA3 if is_tiktoken(path) else LLAMA2).special_tags


def _refuse_tags(what: str, text: str, tags: Sequence[str]) -> None:
    if any(tag in text for tag in tags):
        listed = " ".join(tags)
        raise ValueError(f"{what} holds one of the chat template's own tags ({listed}), which could forge a turn")


def _without_tags(text: str, tags: Sequence[str]) -> str:
    """A model may write the template's tags; in the history they would be turns that nobody took."""
    while any(tag in text for tag in tags):  # again, because taking one away may close up another
        for tag in tags:
            text = text.replace(tag, "")
    return text


# stdin, stdout and stderr -------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _nothing(text: str) -> None:
    pass


def _say_json(thing: dict[str, Any]) -> None:
    _say(json.dumps(thing) + "\n")  # ASCII: good in every locale


def _note(text: str) -> None:
    """A line on stderr, from rank 0."""
    if _rank() == 0:
        print(f"minillama: {text}", file=sys.stderr, flush=True)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{option} is {text!r}; expected whole numbers of 1 or more with commas between them")
    return tuple(map(int, parts))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on rank 0's stderr, where that is a terminal."""
    from tqdm import tqdm

    form, hidden = "{desc} {bar} {n_fmt}/{total_fmt}, {elapsed}", _rank() > 0 or not sys.stderr.isatty()
    with tqdm(total=1, leave=False, bar_format=form, disable=hidden) as bar:

        def tick(done: int, total: int, what: str) -> None:
            bar.total, bar.n = total, done
            bar.set_description_str(f"{what:<24}")

        yield tick


def _stdin_text() -> str:
    """All of rank 0's stdin, without the newline that `echo` puts at its end, on every rank."""
    from minillama.launch import tell_everyone

    text = sys.stdin.read() if _rank() == 0 else ""
    return tell_everyone(text.removesuffix("\n").removesuffix("\r"))


def _lines(marker: bool) -> Iterator[str]:
    """Rank 0's stdin, line by line, on every rank. marker: "> " where a person types."""
    from minillama.launch import tell_everyone
    from minillama.parallel import world_size

    if world_size() == 1:
        yield from _typed(marker)
        return
    mine = itertools.chain(_typed_slowly(marker), [()]) if _rank() == 0 else itertools.repeat(None)
    for line in map(tell_everyone, mine):  # a line, None: not yet, or (): there are no more
        if line == ():
            return
        if line is not None:
            yield line  # type: ignore[misc]


def _typed(marker: bool) -> Iterator[str]:
    if marker and sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # arrow keys and history for input()
        with contextlib.suppress(EOFError):
            while True:
                yield input("> ")
        _say("\n")
    else:
        yield from iter(sys.stdin.readline, "")


def _typed_slowly(marker: bool) -> Iterator[str | None]:
    """Lines of stdin, and None every KEEP_ALIVE seconds without one: ranks give up on a silent rank 0 after minutes."""
    fd, read, more = sys.stdin.fileno(), b"", b"."
    while True:
        if marker and sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        while more and b"\n" not in read:
            if select.select([fd], [], [], KEEP_ALIVE)[0]:
                more = os.read(fd, 65536)
                read += more
            else:
                yield None
        if not read:
            return
        line, _, read = read.partition(b"\n")
        yield line.decode(errors="replace")


# Ranks, warnings and errors -----------------------------------------------------------------------------------------


def _ranks() -> int:
    return _variable("WORLD_SIZE", 1)


def _rank() -> int:
    """This process among those that torchrun started; also before they have found each other."""
    return _variable("RANK", 0) if _ranks() > 1 else 0


def _variable(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else otherwise  # `launch.start` says what is wrong with it


@contextlib.contextmanager
def _only_rank_0_speaks() -> Iterator[None]:
    if _rank() == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings in one line, without the source line that raised them."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        _note(f"warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # other packages' words to their programmers
        warnings.showwarning = show
        yield


def _status(work: Callable[[], int]) -> int:
    """Run `work`; the exit code, with what there is to say about it said."""
    try:
        return work()
    except (KeyboardInterrupt, typer.Abort):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the shell's prompt begins on a line of its own
        return 130
    except BrokenPipeError:  # the reader of our stdout has seen enough
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return 141
    except Exception as error:
        line = _mendable(error)
        if _ranks() > 1 and (_rank() > 0 or line is None or _lost(error)):
            time.sleep(GIVE_WAY)
        if line is None or os.environ.get("MINILLAMA_DEBUG", "0") not in ("", "0"):
            raise
        which = f"rank {_rank()}: " if _rank() else ""
        print(f"minillama: error: {which}{line}", file=sys.stderr, flush=True)
        return 2


def _mendable(error: Exception) -> str | None:
    """What to tell the user, in one line; None for an error that is ours to mend."""
    if isinstance(error, UsageError):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "minillama"
        said = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
        if getattr(error, "option_name", "") in ("--mp", "--ranks", "--nproc-per-node"):
            said += "; ranks are started by torchrun: torchrun --nproc_per_node N -m minillama ..."
        return f"{said} (see {command} --help)"
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in str(error) or "can't allocate memory" in str(error))
    ):
        return (
            "out of memory: lower --max-gen-len or --max-seq-len, send fewer prompts at once, take --dtype bfloat16, "
            "or share the model among processes (torchrun --nproc_per_node N -m minillama ...); "
            "`minillama info` says how much is needed"
        )
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return f"the input is not {error.encoding} text (byte 0x{error.object[error.start]:02x} at {error.start})"
    if isinstance(error, (OSError, ValueError)) or _lost(error):
        return _one_line(error) or type(error).__name__
    return None


def _lost(error: Exception) -> bool:
    """Whether it only says that another rank is gone, which has more to say itself."""
    launch = sys.modules.get("minillama.launch")
    return launch is not None and isinstance(error, launch.LostRanks)


def _leave_ranks() -> None:
    """Leave the other ranks, if there are any; a failed rank just goes, others may be stuck."""
    if (launch := sys.modules.get("minillama.launch")) is not None:
        launch.leave()
