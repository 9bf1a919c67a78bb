"""Bad input: each kind ends in one of our errors that names what is wrong, before a weight is read or a token computed.

The tables come first; `Case.named` is what the message must hold. What is unusual but right has tables of its own.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import json
import math
import os
import pickle
import random
import shutil
import signal
import subprocess
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import make_checkpoint, make_tokenizer

from minillama import KVCache, Llama, ModelArgs, SamplingParams, Tokenizer, Transformer
from minillama.checkpoint import CheckpointError, checkpoint_files, load_model, read_file

# torch speaks of pickle protocols and of storage classes before it refuses a file.
pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore:TypedStorage is deprecated")

OURS = (ValueError, FileNotFoundError, CheckpointError)
SHAPE = dict(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, multiple_of=32, norm_eps=1e-5, max_seq_len=128)
PTH, PARAMS, MODEL = "consolidated.00.pth", "params.json", "tokenizer.model"
SECONDS = 60  # a test that takes longer hangs

# What people have in place of a file: a page that asks them to log in, a pointer that git left, a cut download.
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>This model is restricted.</body></html>\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 13476925163\n"
NOISE = [random.Random(seed).randbytes(5000) for seed in range(4)]

BIG = {"2^31": 2**31, "2^63": 2**63, "10^400": 10**400}
NOT_TEXT = {
    "none": None, "int": 5, "float": 1.5, "true": True, "bytes": b"Hello", "list": ["a"], "dict": {"a": 1},
    "set": {"a"}, "array": np.zeros(2), "tensor": torch.zeros(2), "object": object(), "class": str,
}  # fmt: skip


PLAIN = {kind: thing for kind, thing in NOT_TEXT.items() if kind not in ("array", "tensor")}


class Case(NamedTuple):
    id: str
    bad: Any
    named: tuple[str, ...]


def table(*rows: tuple[Any, ...]) -> list[Case]:
    return [Case(name, bad, named) for name, bad, *named_list in rows for named in [tuple(named_list)]]


def each(cases: Sequence[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])


@contextlib.contextmanager
def refused(*named: str, either: Sequence[str] = ("",)) -> Iterator[None]:
    """What is inside must raise one of our errors; its message is short, with all of `named` and one of `either`."""
    try:
        yield
    except OURS as error:
        assert type(error) in OURS, f"{type(error).__name__} is a stranger's: {error}"
        said = str(error)
        assert len(said) < 1200, f"{len(said)} characters"
        for name in named:
            assert name in said, f"{name!r} is not named in: {said}"
        assert any(name in said for name in either), f"none of {either} is named in: {said}"
    else:
        pytest.fail("it was accepted")


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still busy after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that is in order."""
    return make_checkpoint(tmp_path_factory.mktemp("original") / "model", n_kv_heads=2)


@pytest.fixture(scope="session")
def weights(original: Path) -> dict[str, torch.Tensor]:
    return torch.load(original / PTH, weights_only=True)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "model"))


@pytest.fixture(scope="session")
def llama(original: Path) -> Llama:
    return Llama.build(original, device="cpu")


@pytest.fixture
def idle(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> Llama:
    """A Llama whose model may not compute anything."""
    monkeypatch.setattr(llama.model, "features", _not_yet)
    return llama


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight may be read."""
    monkeypatch.setattr("minillama.checkpoint.assemble", _not_yet)


def _not_yet(*_: Any, **__: Any) -> None:
    raise AssertionError("work was done before the input was looked at")


def build(folder: Path, **options: Any) -> Llama:
    return Llama.build(folder, **({"device": "cpu"} | options))


# --- params.json -----------------------------------------------------------------------------------------------------

_NO_COUNT: dict[str, Any] = {
    "zero": 0, "negative": -7, "fraction": 2.5, "text": "32", "true": True, "list": [32], "object": {"n": 32}, **BIG,
    "nan": math.nan, "infinity": math.inf, "minus infinity": -math.inf, "null": None,
}  # fmt: skip
_NO_SIZE: dict[str, Any] = {
    "zero": 0, "negative": -1.0, "text": "1e-5", "true": True, "list": [1.0], "object": {}, "10^400": 10**400,
    "1e300": 1e300, "1e-300": 1e-300, "nan": math.nan, "infinity": math.inf, "null": None,
}  # fmt: skip
_MAY_BE_NULL = {"n_kv_heads", "ffn_dim_multiplier"}
_COUNTS = ("dim", "n_layers", "n_heads", "n_kv_heads", "multiple_of", "vocab_size", "max_seq_len", "max_batch_size")
_SIZES = ("norm_eps", "rope_theta", "ffn_dim_multiplier")
_SCALINGS = ("rope_scaling", "use_scaled_rope", "rope_scaling_factor")

PARAM_VALUES = [
    Case(f"{key} {kind}", {key: value}, (PARAMS, f"{key} is"))
    for keys, values in ((_COUNTS, _NO_COUNT), (_SIZES, _NO_SIZE))
    for key, (kind, value) in itertools.product(keys, values.items())
    if not (value is None and key in _MAY_BE_NULL)
]

PARAMS_THAT_DO_NOT_FIT = table(
    ("n_heads does not divide dim", {"n_heads": 3}, "dim 32", "n_heads 3"),
    ("more heads than dim", {"n_heads": 64}, "dim 32", "n_heads 64"),
    ("n_kv_heads does not divide n_heads", {"n_kv_heads": 3}, "n_heads 4", "n_kv_heads 3"),
    ("more kv heads than heads", {"n_kv_heads": 8}, "n_heads 4", "n_kv_heads 8"),
    ("head_dim 1", {"n_heads": 32}, "head_dim 1"),
    ("head_dim 5", {"dim": 20}, "head_dim 5"),
    ("feed-forward width past 2^31", {"ffn_dim_multiplier": 1e29}, "ffn_dim_multiplier 1e+29"),
    ("feed-forward width 0", {"ffn_dim_multiplier": 1e-29}, "ffn_dim_multiplier 1e-29"),
    ("multiple_of past the width", {"multiple_of": 2**31 - 1, "dim": 2**31 - 2, "n_heads": 1, "n_kv_heads": 1}, PARAMS),
    ("context that no memory holds", {"max_seq_len": 2**31 - 1}, "max_seq_len", "2147483647"),
    ("one layer of two", {"n_layers": 1}, "n_layers 1", "hold 2"),
    ("three layers of two", {"n_layers": 3}, "n_layers 3", "hold 2"),
    ("two thousand million layers", {"n_layers": 2**31 - 1}, "n_layers 2147483647", "hold 2"),
    ("vocab_size one less", {"vocab_size": 399}, "vocab_size 399", "400 rows"),
    ("vocab_size of Llama 2", {"vocab_size": 32000}, "vocab_size 32000", "rows"),
    ("dim twice", {"dim": 64}, "dim 64", "32 wide"),
    ("dim half", {"dim": 16}, "dim 16", "32 wide"),
    ("7B", {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": None, "multiple_of": 256}, "dim 4096", "32 wide"),
    ("multiple_of too large", {"multiple_of": 256}, "multiple_of 256", "256"),
    ("multiple_of too small", {"multiple_of": 5}, "multiple_of 5", "85"),
    ("ffn_dim_multiplier 2", {"ffn_dim_multiplier": 2.0}, "ffn_dim_multiplier 2.0", "192"),
    ("ffn_dim_multiplier 0.1", {"ffn_dim_multiplier": 0.1}, "ffn_dim_multiplier 0.1", "w1 has 96"),
    ("kv heads not shared", {"n_kv_heads": None}, "layers.0.attention.wk.weight", "(16, 32)", "(32, 32)"),
    ("one kv head", {"n_kv_heads": 1}, "layers.0.attention.wk.weight", "(16, 32)", "(8, 32)"),
    ("two wide heads", {"n_heads": 2}, "layers.0.attention.wk.weight", "(16, 32)", "(32, 32)"),
    ("use_scaled_rope twice", {"use_scaled_rope": True, "rope_scaling": {"type": "linear", "factor": 2.0}}, "both"),
    ("use_scaled_rope 1", {"use_scaled_rope": 1}, "use_scaled_rope is 1", PARAMS),
    ("rope_scaling unknown", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope", "linear, ntk, dynamic"),
    ("rope_scaling without factor", {"rope_scaling": {"type": "linear"}}, "does not say factor", PARAMS),
    ("rope_scaling by nothing", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0", PARAMS),
    ("rope_scaling a word", {"rope_scaling": "linear"}, "rope_scaling is 'linear'", PARAMS),
    ("rope_scaling_factor", {"rope_scaling_factor": 8}, "rope_scaling_factor is 8", "use_scaled_rope"),
    ("no dim", {"dim": ...}, PARAMS, "dim"),
    ("no n_layers", {"n_layers": ...}, PARAMS, "n_layers"),
    ("no n_heads", {"n_heads": ...}, PARAMS, "n_heads"),
    ("nothing but eps", {"dim": ..., "n_layers": ..., "n_heads": ...}, "dim, n_layers, n_heads"),
)

_GOOD_JSON = json.dumps(SHAPE).encode()
NOT_PARAMS = [
    Case(f"params.json {name}", content, (PARAMS,))
    for name, content in {
        "empty": b"", "of spaces": b" \n ", "null": b"null", "true": b"true", "a list": b"[]",
        "a list of it": b"[" + _GOOD_JSON + b"]", "a number": b"3", "text": b'"dim"', "nan": b"NaN",
        "python": b"{'dim': 32}", "yaml": b"dim: 32\nn_layers: 2\n", "twice": _GOOD_JSON + _GOOD_JSON,
        "with a comma too many": _GOOD_JSON[:-1] + b",}", "with a comment": _GOOD_JSON + b"// 7B", "html": PAGE,
        "pointer": POINTER, "utf-16": _GOOD_JSON.decode().encode("utf-16"),
        "utf-32": _GOOD_JSON.decode().encode("utf-32"), "latin-1": _GOOD_JSON[:-1] + b', "note": "caf\xe9"}',
        "half a character": _GOOD_JSON[:-1] + b', "note": "\xf0\x9f"}',
        "1e400": b'{"dim": 1e400, "n_layers": 2, "n_heads": 4}', "of 5000 digits": b'{"dim": ' + b"9" * 5000 + b"}",
        "deep list": b"[" * 100_000, "deep object": b'{"dim":' * 100_000, "closed deep list": b"[" * 990 + b"]" * 990,
        "deep value": b'{"n_layers": 2, "n_heads": 4, "dim": ' + b"[" * 500 + b"]" * 500 + b"}", "of zeros": bytes(200),
        "noise": NOISE[0], **{f"cut at {n}": _GOOD_JSON[:n] for n in (1, 2, 8, 11, 40, len(_GOOD_JSON) - 1)},
    }.items()
]  # fmt: skip


def _write_params(folder: Path, **changes: Any) -> None:
    params = {key: value for key, value in (SHAPE | changes).items() if value is not ...}
    (folder / PARAMS).write_text(json.dumps(params), encoding="utf-8")


@each(PARAM_VALUES + PARAMS_THAT_DO_NOT_FIT)
@pytest.mark.usefixtures("unread")
def test_params_that_cannot_be_are_named(folder: Path, case: Case) -> None:
    _write_params(folder, **case.bad)
    with refused(*case.named):
        build(folder)
    with refused(*case.named):
        Transformer.from_checkpoint(folder)


@each(PARAM_VALUES)
def test_args_that_cannot_be_are_named(case: Case) -> None:
    with refused(*case.named[1:]):
        ModelArgs(**case.bad)


@each(NOT_PARAMS)
@pytest.mark.usefixtures("unread")
def test_a_file_that_is_no_params_is_named(folder: Path, case: Case) -> None:
    (folder / PARAMS).write_bytes(case.bad)
    with refused(*case.named):
        build(folder)


@pytest.mark.parametrize("name", [None, 7, "7", "llama", "", ["7B"], b"7B"], ids=repr)
def test_a_preset_that_there_is_not_is_named(name: Any) -> None:
    with refused("7B, 13B, 70B", str(name)):
        ModelArgs.preset(name)


@pytest.mark.parametrize("text", [
    _GOOD_JSON[:-1] + b', "dim": 32}', b'{"dim": 7, ' + _GOOD_JSON[1:], b"\xef\xbb\xbf" + _GOOD_JSON,
    _GOOD_JSON.replace(b"32", b"32.0"), _GOOD_JSON[:-1] + b', "vocab_size": -1}',
    _GOOD_JSON[:-1] + b', "use_scaled_rope": false, "rope_scaling": null, "ffn_dim_multiplier": null}',
], ids=["same key twice", "last of two counts", "byte order mark", "floats", "vocab_size -1", "scaling"])  # fmt: skip
def test_unusual_params_load(folder: Path, text: bytes) -> None:
    (folder / PARAMS).write_bytes(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = build(folder).model.args
    assert (args.dim, args.n_layers, args.multiple_of) == (32, 2, 32)
    assert all(type(n) is int for n in (args.dim, args.n_layers, args.n_heads, args.max_seq_len))


def test_unknown_keys_are_named_in_a_warning(folder: Path) -> None:
    _write_params(folder, attention_bias=False, tie=[1])
    with pytest.warns(UserWarning, match=r"params.json.*attention_bias, tie$"):
        build(folder)


# --- consolidated.*.pth: files that are none -------------------------------------------------------------------------

NOT_WEIGHTS = [
    Case(f"pth {name}", content, (PTH,))
    for name, content in {
        "empty": b"", "one byte": b"P", "zip magic": b"PK\x03\x04", "an empty zip": b"PK\x05\x06" + bytes(18),
        "zeros": bytes(5000), "ones": b"\xff" * 5000, "html": PAGE, "pointer": POINTER, "json": _GOOD_JSON,
        "text": b"Once upon a time", "gzip": b"\x1f\x8b\x08" + NOISE[0],
        "safetensors": (8).to_bytes(8, "little") + b"{}".ljust(8), "gguf": b"GGUF\x03" + NOISE[0],
        "elf": b"\x7fELF" + NOISE[0],
        "pickle magic": b"\x80\x02" + NOISE[1], "legacy magic": pickle.dumps(0x1950A86A20F9469CFC6C, 2),
        "pickled stop": b".", "pickled none": pickle.dumps(None, 2), "pickled recursion": b"(" * 100_000,
        "pickled deep tuple": b"N" + b"\x85" * 100_000 + b".", **{f"noise {i}": noise for i, noise in enumerate(NOISE)},
    }.items()
]  # fmt: skip

# Of the file's length; the last are in the zip archive's index, without which nothing can be found.
CUTS = [0.0001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9999]
LEGACY_CUTS = [0.0001, 0.001, 0.005, 0.01, 0.02, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.9999]


def _zip(names: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return file.getvalue()


NOT_WEIGHTS += [
    Case("pth zip of texts", _zip({"readme.txt": b"Hello"}), (PTH,)),
    Case("pth zip of params", _zip({"archive/params.json": _GOOD_JSON, "archive/version": b"3"}), (PTH,)),
    Case("pth zip with noise for data.pkl", _zip({"archive/data.pkl": NOISE[2], "archive/version": b"3\n"}), (PTH,)),
    Case("pth zip with an empty data.pkl", _zip({"archive/data.pkl": b"", "archive/version": b"3\n"}), (PTH,)),
]


@each(NOT_WEIGHTS)
@pytest.mark.usefixtures("unread")
def test_a_file_that_holds_no_weights_is_named(folder: Path, case: Case) -> None:
    (folder / PTH).write_bytes(case.bad)
    with refused(*case.named):
        build(folder)


@pytest.mark.parametrize("part", CUTS)
@pytest.mark.usefixtures("unread")
def test_a_cut_file_is_named(folder: Path, part: float) -> None:
    whole = (folder / PTH).read_bytes()
    (folder / PTH).write_bytes(whole[: math.ceil(part * len(whole)) - (part > 0.999)])
    with refused(PTH):
        build(folder)


@pytest.mark.parametrize("part", LEGACY_CUTS)
@pytest.mark.usefixtures("unread")
def test_a_cut_legacy_file_is_named(folder: Path, weights: dict[str, torch.Tensor], part: float) -> None:
    torch.save(weights, folder / PTH, _use_new_zipfile_serialization=False)
    whole = (folder / PTH).read_bytes()
    (folder / PTH).write_bytes(whole[: int(part * len(whole))])
    with refused(PTH):
        build(folder)


def test_a_legacy_file_loads(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    torch.save(weights, folder / PTH, _use_new_zipfile_serialization=False)
    loaded = build(folder).model.state_dict()
    assert all(torch.equal(loaded[key], weights[key]) for key in weights)


def _around_the_weights(file: Path) -> list[int]:
    """Offsets of every byte that is not a weight: headers, the list of tensors, the index."""
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        outside = set(range(len(whole)))
        for record in archive.infolist():
            if "/data/" in record.filename:
                names = whole[record.header_offset + 26 : record.header_offset + 30]
                start = record.header_offset + 30 + sum(np.frombuffer(names, "<u2").tolist())
                outside -= set(range(start, start + record.file_size))
    return sorted(outside)


@pytest.mark.parametrize("part", range(20))
def test_a_flipped_bit_is_found_or_harmless(folder: Path, weights: dict[str, torch.Tensor], part: int) -> None:
    whole = (folder / PTH).read_bytes()
    offsets = _around_the_weights(folder / PTH)
    draws = random.Random(part)
    for offset in draws.sample(offsets, 40):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << draws.randrange(8)
        (folder / PTH).write_bytes(damaged)
        try:
            found = read_file(folder / PTH)
        except CheckpointError as error:
            assert PTH in str(error)
            continue
        assert found.keys() == weights.keys(), offset
        assert all(torch.equal(found[key], weights[key]) for key in weights), offset


def test_a_shifted_record_is_found_at_every_bit(folder: Path) -> None:
    """The length of a header's padding says where the weights begin; torch believes it."""
    whole = (folder / PTH).read_bytes()
    with zipfile.ZipFile(folder / PTH) as archive:
        records = [record for record in archive.infolist() if "/data/" in record.filename]
    for record in random.Random(0).sample(records, 4):
        for bit in range(16):
            damaged = bytearray(whole)
            damaged[record.header_offset + 28 + bit // 8] ^= 1 << bit % 8
            (folder / PTH).write_bytes(damaged)
            with refused(PTH):
                read_file(folder / PTH)


# --- consolidated.*.pth: code ----------------------------------------------------------------------------------------


class Payload:
    """Pickles to a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


PAYLOADS: dict[str, Callable[[str], Any]] = {
    "os.system": lambda mark: Payload(os.system, f"touch {mark}"),
    "os.mkdir": lambda mark: Payload(os.mkdir, mark),
    "eval": lambda mark: Payload(eval, f"open({mark!r}, 'w')"),
    "exec": lambda mark: Payload(exec, f"open({mark!r}, 'w')"),
    "open": lambda mark: Payload(builtins.open, mark, "w"),
    "subprocess": lambda mark: Payload(subprocess.call, ["touch", mark]),
    "getattr": lambda mark: Payload(list, Payload(map, Payload(getattr, Path(mark), "mkdir"), [0o777])),
}

PLACES: dict[str, Callable[[dict[str, torch.Tensor], Any], Any]] = {
    "alone": lambda weights, payload: payload,
    "in a list": lambda weights, payload: [payload],
    "as a weight": lambda weights, payload: weights | {"norm.weight": payload},
    "beside the weights": lambda weights, payload: weights | {"note": payload},
    "nested": lambda weights, payload: {"model": weights, "extra": {"deep": [{"deeper": (payload,)}]}},
    "as an attribute of a dict": lambda weights, payload: _DictWith(weights, payload),
}


class _DictWith(dict[str, torch.Tensor]):
    def __init__(self, weights: dict[str, torch.Tensor], payload: Any):
        super().__init__(weights)
        self.payload = payload


def _write(path: Path, thing: Any, form: str) -> None:
    if form.startswith("pickle"):
        path.write_bytes(pickle.dumps(thing, int(form.removeprefix("pickle "))))
    elif form == "zip":
        data = pickle.dumps(thing, 2)
        path.write_bytes(_zip({"archive/data.pkl": data, "archive/version": b"3\n", "archive/byteorder": b"little"}))
    else:
        torch.save(thing, path, _use_new_zipfile_serialization=form == "torch")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_payloads_are_live(tmp_path: Path, payload: str) -> None:
    """Under plain pickle they do run; otherwise the tests below would show nothing."""
    mark = tmp_path / "it-ran"
    pickle.loads(pickle.dumps(PAYLOADS[payload](str(mark))))
    assert mark.exists()


PAYLOAD_TABLE = [
    *itertools.product(PAYLOADS, PLACES, ["torch"]),
    *itertools.product(PAYLOADS, ["alone", "as a weight"], ["legacy torch", "zip", "pickle 0", "pickle 2", "pickle 5"]),
]


@pytest.mark.parametrize(("payload", "place", "form"), PAYLOAD_TABLE)
@pytest.mark.usefixtures("unread")
def test_nothing_in_a_checkpoint_runs(
    folder: Path, weights: dict[str, torch.Tensor], payload: str, place: str, form: str
) -> None:
    mark = folder / "it-ran"
    _write(folder / PTH, PLACES[place](dict(weights), PAYLOADS[payload](str(mark))), form)
    with refused(PTH):
        build(folder)
    assert not mark.exists()


@pytest.mark.parametrize("form", ["torch", "legacy torch", "zip", "pickle 0", "pickle 2", "pickle 5"])
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", [MODEL, PARAMS])
@pytest.mark.usefixtures("unread")
def test_nothing_in_other_files_runs(folder: Path, name: str, payload: str, form: str) -> None:
    mark = folder / "it-ran"
    _write(folder / name, PAYLOADS[payload](str(mark)), form)
    with refused(name):
        build(folder)
    assert not mark.exists()


@pytest.mark.parametrize("opcodes", [
    b"cposix\nsystem\n(S'touch {}'\ntR.", b"cbuiltins\nopen\n(S'{}'\nS'w'\ntR.", b"(S'touch {}'\niposix\nsystem\n.",
    b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR(S'touch {}'\ntR.",
    b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x7ftouch {}\x85R.",
], ids=["GLOBAL", "open", "INST", "getattr", "STACK_GLOBAL"])  # fmt: skip
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.usefixtures("unread")
def test_no_opcode_runs(folder: Path, opcodes: bytes, zipped: bool) -> None:
    mark = folder / "it-ran"
    code = opcodes.replace(b"{}", str(mark).encode())
    (folder / PTH).write_bytes(_zip({"archive/data.pkl": code, "archive/version": b"3\n"}) if zipped else code)
    with refused(PTH):
        build(folder)
    assert not mark.exists()


# --- consolidated.*.pth: other things than weights -------------------------------------------------------------------

Weights = dict[str, torch.Tensor]
WQ, WK, WV = (f"layers.1.attention.w{x}.weight" for x in "qkv")
W1, W2 = "layers.0.feed_forward.w1.weight", "layers.0.feed_forward.w2.weight"
EMBEDDING, NORM, OUTPUT = "tok_embeddings.weight", "norm.weight", "output.weight"


def _quantized(tensor: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to part with them; files of them remain
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


WRONG_CONTENTS = table(
    ("none", lambda w: None, PTH),
    ("a number", lambda w: 5, PTH),
    ("a text", lambda w: "weights", PTH),
    ("a list of tensors", lambda w: list(w.values()), PTH),
    ("one tensor", lambda w: w[WQ], PTH),
    ("an empty dict", lambda w: {}, PTH),
    ("weights under model", lambda w: {"model": w}, PTH, "model"),
    ("weights under state_dict", lambda w: {"state_dict": w, "epoch": 3}, PTH, "state_dict"),
    ("a key that is a number", lambda w: w | {3: w[NORM]}, PTH, "3"),
    ("a key that is a tuple", lambda w: w | {("a", "b"): w[NORM]}, PTH, "('a', 'b')"),
    ("an array of numpy", lambda w: w | {NORM: w[NORM].numpy()}, PTH),
    ("a number of numpy", lambda w: w | {"step": np.float64(3)}, PTH),
    ("a number for a weight", lambda w: w | {NORM: 1.0}, PTH, NORM),
    ("a list for a weight", lambda w: w | {NORM: [1.0] * 32}, PTH, NORM),
    ("none for a weight", lambda w: w | {NORM: None}, PTH, NORM),
    ("a text beside the weights", lambda w: w | {"author": "me"}, PTH, "author"),
    ("a sparse weight", lambda w: w | {WQ: w[WQ].to_sparse()}, PTH, WQ),
    ("a compressed sparse weight", lambda w: w | {WQ: w[WQ].to_sparse_csr()}, PTH, WQ),
    ("a quantized weight", lambda w: w | {WQ: _quantized(w[WQ])}, PTH, WQ),
    ("an int8 weight", lambda w: w | {WQ: (w[WQ] * 100).to(torch.int8)}, PTH, WQ, "int8"),
    ("an int64 weight", lambda w: w | {WQ: w[WQ].long()}, PTH, WQ, "int64"),
    ("a bool weight", lambda w: w | {WQ: w[WQ] > 0}, PTH, WQ, "bool"),
    ("a complex weight", lambda w: w | {WQ: w[WQ] * 1j}, PTH, WQ, "complex64"),
    ("a float64 weight", lambda w: w | {WQ: w[WQ].double()}, PTH, WQ, "float64"),
    ("a float8 weight", lambda w: w | {WQ: w[WQ].to(torch.float8_e4m3fn)}, PTH, WQ, "float8"),
    ("a weight without numbers", lambda w: w | {WQ: w[WQ].to("meta")}, PTH, WQ, "meta"),
    ("all float64", lambda w: {k: v.double() for k, v in w.items()}, PTH, "float64"),
    ("all int8", lambda w: {k: v.to(torch.int8) for k, v in w.items()}, PTH, "int8"),
    *((f"no {key}", lambda w, key=key: {k: v for k, v in w.items() if k != key}, key) for key in (
        EMBEDDING, NORM, OUTPUT, WQ, WK, WV, "layers.1.attention.wo.weight", W1, W2, "layers.0.feed_forward.w3.weight",
        "layers.0.attention_norm.weight", "layers.1.ffn_norm.weight")),
    ("no layer 0", lambda w: {k: v for k, v in w.items() if "layers.0" not in k}, "layers.0"),
    ("no layer 1", lambda w: {k: v for k, v in w.items() if "layers.1" not in k}, "n_layers 2", "hold 1"),
    ("a third layer", lambda w: w | {k.replace("s.1", "s.2"): v for k, v in w.items()}, "n_layers 2", "hold 3"),
    ("a layer in the sky", lambda w: w | {"layers.99999999999.x": w[NORM]}, "n_layers 2", "hold 3"),
    ("only the embedding", lambda w: {EMBEDDING: w[EMBEDDING]}, W1),
    ("one key more", lambda w: w | {"foo": w[NORM]}, PTH, "foo"),
    ("a bias more", lambda w: w | {WQ.replace("weight", "bias"): w[NORM]}, PTH, "wq.bias"),
    ("an empty key more", lambda w: w | {"": w[NORM]}, PTH, "unexpected"),
    ("a hundred keys more", lambda w: w | {f"x{i}": w[NORM] for i in range(100)}, PTH, "x0", "94 more"),
    ("keys of Hugging Face", lambda w: {k.replace("tok_embeddings", "model.embed_tokens"): v for k, v in w.items()},
        EMBEDDING),
    ("keys of a wrapper", lambda w: {f"module.{k}": v for k, v in w.items()}, EMBEDDING),
    ("keys in capitals", lambda w: {k.upper(): v for k, v in w.items()}, EMBEDDING),
    *((f"transposed {key}", lambda w, key=key: w | {key: w[key].T}, key) for key in (WK, WV, W2, OUTPUT)),
    ("transposed w1", lambda w: w | {W1: w[W1].T}, "w1 has 32", "96"),
    ("transposed embedding", lambda w: w | {EMBEDDING: w[EMBEDDING].T}, "dim 32"),
    ("all transposed", lambda w: {k: v.T if v.dim() == 2 else v for k, v in w.items()}, "dim 32"),
    ("wq and wk swapped", lambda w: w | {WQ: w[WK], WK: w[WQ]}, PTH, WQ, "(16, 32)", "(32, 32)"),
    ("w1 and w2 swapped", lambda w: w | {W1: w[W2], W2: w[W1]}, "w1 has 32", "96"),
    ("embedding and norm swapped", lambda w: w | {EMBEDDING: w[NORM], NORM: w[EMBEDDING]}, EMBEDDING),
    ("a row too many", lambda w: w | {WQ: torch.cat([w[WQ], w[WQ][:1]])}, PTH, WQ, "(33, 32)", "(32, 32)"),
    ("a row too few", lambda w: w | {WV: w[WV][:-1]}, PTH, WV, "(15, 32)", "(16, 32)"),
    ("flat", lambda w: w | {WQ: w[WQ].flatten()}, PTH, WQ, "(1024,)"),
    ("in heads", lambda w: w | {WQ: w[WQ].view(4, 8, 32)}, PTH, WQ, "(4, 8, 32)"),
    ("norm as a column", lambda w: w | {NORM: w[NORM][:, None]}, PTH, NORM, "(32, 1)", "(32,)"),
    ("an output of fewer pieces", lambda w: w | {OUTPUT: w[OUTPUT][:100]}, PTH, OUTPUT, "(100, 32)"),
    ("no rows", lambda w: w | {WQ: w[WQ][:0]}, PTH, WQ, "(0, 32)"),
    ("an embedding without rows", lambda w: w | {EMBEDDING: w[EMBEDDING][:0]}, "0"),
    ("an embedding of another tokenizer", lambda w: w | {k: w[k][:99] for k in (EMBEDDING, OUTPUT)}, "99 rows",
        "pieces"),
    *((f"0-d {key}", lambda w, key=key: w | {key: w[key].mean()}, key) for key in (EMBEDDING, NORM, OUTPUT, WQ, W1)),
)  # fmt: skip


@each(WRONG_CONTENTS)
@pytest.mark.usefixtures("unread")
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_file_of_other_things_is_named(folder: Path, weights: Weights, case: Case) -> None:
    torch.save(case.bad(dict(weights)), folder / PTH)
    with refused(*case.named):
        build(folder)


# --- The folder ------------------------------------------------------------------------------------------------------


def _rename(folder: Path, *names: str) -> None:
    for name in names:
        shutil.copy(folder / PTH, folder / name)
    (folder / PTH).unlink()


def _replace(path: Path, content: bytes | None = None) -> None:
    """A directory, or a file of `content`, in its place."""
    path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


def _other(folder: Path, name: str, **params: int) -> None:
    """A file of another model beside the right one."""
    other = make_checkpoint(folder / "other", seed=1, **params)
    shutil.move(other / PTH, folder / name)
    shutil.rmtree(other)


def _halves(folder: Path, change: Callable[[Weights], Weights]) -> None:
    """Two files, as for two ranks; the second one changed."""
    dims = dict.fromkeys(("wq", "wk", "wv", "w1", "w3", "output"), 0) | dict.fromkeys(("wo", "w2", "tok_embeddings"), 1)
    whole = torch.load(folder / PTH, weights_only=True)
    for part in range(2):
        half = {}
        for key, value in whole.items():
            dim = dims.get(key.split(".")[-2])
            half[key] = value if dim is None else value.chunk(2, dim)[part].contiguous()
        torch.save(change(half) if part else half, folder / f"consolidated.{part:02d}.pth")


SECOND = "consolidated.01.pth"
WRONG_FOLDERS = table(
    ("no params.json", lambda f: (f / PARAMS).unlink(), PARAMS),
    ("no weights", lambda f: (f / PTH).unlink(), "consolidated.*.pth"),
    ("no tokenizer", lambda f: (f / MODEL).unlink(), MODEL),
    ("params.json a directory", lambda f: _replace(f / PARAMS), PARAMS),
    ("the weights a directory", lambda f: _replace(f / PTH), PTH),
    ("the tokenizer a directory", lambda f: _replace(f / MODEL), MODEL),
    ("a dead link", lambda f: (_replace(f / PTH, b""), (f / PTH).unlink(), (f / PTH).symlink_to(f / "gone")), PTH),
    ("a link to itself", lambda f: ((f / PTH).unlink(), (f / PTH).symlink_to(f / PTH)), PTH),
    ("a pipe", lambda f: ((f / PTH).unlink(), os.mkfifo(f / PTH)), PTH),
    ("params.json a pipe", lambda f: ((f / PARAMS).unlink(), os.mkfifo(f / PARAMS)), PARAMS),
    ("numbered from 1", lambda f: _rename(f, SECOND), "lacks consolidated.00.pth"),
    ("a gap", lambda f: _rename(f, PTH[:-5] + "0.pth.bak", "consolidated.02.pth", SECOND), "lacks consolidated.00.pth"),
    ("the second of three lost", lambda f: shutil.copy(f / PTH, f / "consolidated.02.pth"), "lacks " + SECOND),
    ("the last of two lost", lambda f: (_halves(f, dict), (f / SECOND).unlink()), "the one file is 16 wide"),
    ("two of four lost", lambda f: shutil.copy(f / PTH, f / "consolidated.03.pth"), SECOND, "consolidated.02.pth"),
    ("one of a thousand million", lambda f: shutil.copy(f / PTH, f / "consolidated.999999999.pth"), SECOND, "..."),
    ("one of 10^200", lambda f: shutil.copy(f / PTH, f / f"consolidated.1{'0' * 200}.pth"), SECOND, "..."),
    ("a number twice", lambda f: shutil.copy(f / PTH, f / "consolidated.0.pth"), "consolidated.0", "move it away"),
    ("a number in letters", lambda f: shutil.copy(f / PTH, f / "consolidated.one.pth"), "consolidated.one.pth"),
    ("a negative number", lambda f: shutil.copy(f / PTH, f / "consolidated.-1.pth"), "consolidated.-1.pth"),
    ("a copy", lambda f: shutil.copy(f / PTH, f / "consolidated.00 (1).pth"), "consolidated.00 (1).pth"),
    ("a shard's name in Hugging Face's style", lambda f: _rename(f, "pytorch_model.bin"), "consolidated.*.pth"),
    ("the same file twice", lambda f: shutil.copy(f / PTH, f / SECOND), "wq has 32 rows in each of 2 files"),
    ("a wider model's file", lambda f: _other(f, SECOND, dim=64), "wq has 32 rows in each of 2 files"),
    ("a deeper model's file", lambda f: (_halves(f, dict), _other(f, SECOND, n_layers=3)), SECOND, "layers.2"),
    ("a narrower model's file", lambda f: (_halves(f, dict), _other(f, SECOND, dim=16)), SECOND, "shape"),
    ("half a file more", lambda f: (_halves(f, dict), shutil.copy(f / SECOND, f / "consolidated.02.pth")), "3 files"),
    ("a whole file for a half", lambda f: (_halves(f, dict), _other(f, SECOND)), SECOND, "shape"),
    ("halves in two dtypes", lambda f: _halves(f, lambda w: {k: v.half() for k, v in w.items()}), SECOND, "float16"),
    ("a half without a norm", lambda f: _halves(f, lambda w: {k: v for k, v in w.items() if k != NORM}), SECOND, NORM),
    ("a half with a key more", lambda f: _halves(f, lambda w: w | {"foo": w[NORM]}), SECOND, "foo"),
    ("a half with half a norm", lambda f: _halves(f, lambda w: w | {NORM: w[NORM][:16]}), SECOND, NORM, "(16,)"),
    ("halves cut in two ways", lambda f: _halves(f, lambda w: w | {OUTPUT: w[OUTPUT].T}), SECOND, OUTPUT),
    ("embeddings cut in two ways", lambda f: _halves(f, lambda w: w | {EMBEDDING: w[OUTPUT]}), SECOND, EMBEDDING),
    ("a half cut short", lambda f: (_halves(f, dict), _replace(f / SECOND, NOISE[0])), SECOND),
    ("a half of html", lambda f: (_halves(f, dict), _replace(f / SECOND, PAGE)), SECOND),
)  # fmt: skip


@each(WRONG_FOLDERS)
@pytest.mark.usefixtures("unread")
def test_a_folder_that_is_not_in_order_is_named(folder: Path, case: Case) -> None:
    case.bad(folder)
    with refused(*case.named):
        build(folder)


def test_two_halves_load(folder: Path, weights: Weights) -> None:
    _halves(folder, dict)
    loaded = build(folder).model.state_dict()
    assert all(torch.equal(loaded[key], weights[key]) for key in weights)


def test_a_half_of_another_model_of_the_same_shape_is_warned_of(folder: Path) -> None:
    _halves(folder, lambda w: w | {NORM: w[NORM] * 1.01})
    with pytest.warns(UserWarning, match=rf"{SECOND}.*{NORM}.*different models"):
        build(folder)


# --- tokenizer.model -------------------------------------------------------------------------------------------------

_WORDPIECE = {"version": "1.0", "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "the": 1}}}
NOT_TOKENIZERS = [
    Case(f"tokenizer {name}", content, (MODEL,))
    for name, content in {
        "empty": b"", "zeros": bytes(3000), "html": PAGE, "pointer": POINTER,
        "text": b"once upon a time there was a cat\n",
        "list of pieces": "\n".join(["<unk>", "<s>", "</s>", "\u2581the"]).encode(),
        "wordpiece": json.dumps(_WORDPIECE).encode(), "list and scores": b"<unk>\t0\n<s>\t0\n</s>\t0\n",
        "ranks of tiktoken": b"IQ== 0\nIg== 1\nIw== 2\n", "zip": _zip({"a": b"b"}), "pickle": pickle.dumps({"<s>": 1}),
        "gzip": b"\x1f\x8b\x08" + NOISE[0], "gguf": b"GGUF\x03" + NOISE[1],
        **{f"noise {i}": noise for i, noise in enumerate(NOISE)},
    }.items()
]  # fmt: skip
TOKENIZER_CUTS = [0.001, 0.005, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999]

# Trained, and whole, but not for this model.
OTHER_TOKENIZERS = table(
    ("fewer pieces", {"vocab_size": 350}, "350 pieces", "400 rows"),
    ("no bos", {"bos_id": -1}, MODEL, "bos -1"),
    ("no eos", {"eos_id": -1}, MODEL, "eos -1"),
    ("neither", {"bos_id": -1, "eos_id": -1}, MODEL, "bos -1", "eos -1"),
    ("a pad piece more", {"pad_id": 3, "vocab_size": 401}, "401 pieces", "rows"),
    ("no byte pieces", {"byte_fallback": False, "vocab_size": 60, "hard_vocab_limit": False}, "pieces", "rows"),
)  # fmt: skip


@each(NOT_TOKENIZERS)
@pytest.mark.usefixtures("unread")
def test_a_file_that_is_no_tokenizer_is_named(folder: Path, case: Case) -> None:
    (folder / MODEL).write_bytes(case.bad)
    with refused(*case.named):
        Tokenizer(folder / MODEL)
    with refused(*case.named):
        build(folder)


@pytest.mark.parametrize("part", TOKENIZER_CUTS)
@pytest.mark.usefixtures("unread")
def test_a_cut_tokenizer_is_refused(folder: Path, part: float) -> None:
    whole = (folder / MODEL).read_bytes()
    (folder / MODEL).write_bytes(whole[: int(part * len(whole))])
    with refused(either=[MODEL, "400 rows and the tokenizer"]):  # what is left may be a smaller tokenizer
        build(folder)


@pytest.mark.parametrize("part", range(8))
@pytest.mark.usefixtures("unread")
def test_a_tokenizer_with_a_flipped_bit_serves_or_is_refused(folder: Path, part: int) -> None:
    whole = (folder / MODEL).read_bytes()
    draws = random.Random(part)
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[draws.randrange(len(whole))] ^= 1 << draws.randrange(8)
        (folder / MODEL).write_bytes(damaged)
        try:
            tokenizer = Tokenizer(folder / MODEL)
        except ValueError as error:
            assert type(error) is ValueError and MODEL in str(error)
            continue
        ids = tokenizer.encode("once upon a time there was a \U0001f525", bos=True, eos=True)
        assert all(0 <= i < tokenizer.n_words for i in ids)
        assert isinstance(tokenizer.decode(range(tokenizer.n_words)), str)


@each(OTHER_TOKENIZERS)
@pytest.mark.usefixtures("unread")
def test_a_tokenizer_of_another_model_is_named(folder: Path, case: Case) -> None:
    make_tokenizer(folder / MODEL, **case.bad)
    with refused(*case.named):
        build(folder)


@pytest.mark.parametrize(
    "path", [5, 1.5, b"tokenizer.model", ["a"], {}, True, "", object()], ids=lambda path: type(path).__name__
)
def test_a_path_that_is_none_is_named(original: Path, path: Any) -> None:
    with refused("tokenizer_path"):
        Tokenizer(path)
    with refused("tokenizer_path"):
        build(original, tokenizer_path=path)


# --- Llama.build and what it hands on --------------------------------------------------------------------------------

BUILD_OPTIONS = [
    Case(f"{option} {kind}", {option: value}, (option, *named))
    for option, values in {
        "max_seq_len": {
            "0": 0, "-1": -1, "text": "x", "number in text": "64", "fraction": 2.5, "nan": math.nan, "inf": math.inf,
            "true": True, "list": [64], "past any table": 2**21, **BIG,
        },
        "max_batch_size": {
            "0": 0, "-1": -1, "text": "x", "fraction": 1.5, "nan": math.nan, "true": True, "list": [4], **BIG,
        },
        "model_parallel_size": {
            "0": 0, "-1": -1, "two": 2, "text": "x", "number in text": "1", "fraction": 1.5, "true": True, **BIG,
        },
        "seed": {
            "-1": -1, "fraction": 1.5, "whole fraction": 1.0, "text": "x", "none": None, "2^62": 2**62, "nan": math.nan,
            "true": True, "list": [1], **BIG,
        },
        "device": {
            "empty": "", "gpu": "gpu", "capitals": "CPU", "nonsense": "toaster", "cuda:x": "cuda:x",
            "cuda:-1": "cuda:-1", "cuda:99": "cuda:99", "meta": "meta", "xla": "xla", "99": 99, "-1": -1,
            "fraction": 1.5, "none": None, "list": ["cpu"], "dict": {}, "object": object(),
            "meta of torch": torch.device("meta"),
        },
        "dtype": {
            "empty": "", "int8": "int8", "torch.int8": torch.int8, "float64": "float64", "torch.float64": torch.float64,
            "torch.complex64": torch.complex64, "torch.bool": torch.bool, "float": float, "object": object,
            "nonsense": "brain", "capitals": "FP16", "spelled out": "torch.float32", "16": 16, "list": ["float16"],
            "dict": {}, "numpy": np.float32, "dtype of numpy": np.dtype("float32"), "array": np.zeros(2),
            "tensor": torch.zeros(2),
        },
    }.items()
    for kind, value in values.items()
    for named in [("cuda:99",) if kind in ("cuda:99", "99") and torch.cuda.is_available() else ()]
    if not (option == "seed" and value == 2**31)
]  # fmt: skip

FOLDERS = table(
    ("none", None, "ckpt_dir"),
    ("a number", 5, "ckpt_dir is 5"),
    ("true", True, "ckpt_dir is True"),
    ("bytes", b"model", "ckpt_dir"),
    ("a list", ["model"], "ckpt_dir"),
    ("empty", "", "ckpt_dir is ''"),
    ("an object", object(), "ckpt_dir"),
    ("not there", "no/such/folder", "no/such/folder"),
    ("with a NUL", "a\0b", "no folder a"),
    ("half a character", "a\ud83d", "no folder a"),
    ("very long", "x" * 300, "no folder xxx"),
    ("longer than any path", "x/" * 400, "no folder x/x"),
    ("the file itself", ..., f"{PTH} is a file; expected the folder with"),
)


@each(BUILD_OPTIONS)
@pytest.mark.usefixtures("unread")
def test_build_options_out_of_range_are_named(original: Path, case: Case) -> None:
    with refused(*case.named):
        build(original, **case.bad)


@each(FOLDERS)
@pytest.mark.usefixtures("unread")
def test_a_folder_that_is_none_is_named(original: Path, case: Case) -> None:
    path = original / PTH if case.bad is ... else case.bad
    for call in (build, Transformer.from_checkpoint, checkpoint_files):
        with refused(*case.named):
            call(path)
    with refused(*case.named):
        build(path, tokenizer_path=original / MODEL)


def test_an_option_is_refused_before_a_process_group_or_a_model_is_made(
    original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "init_process_group", _not_yet)
    monkeypatch.setattr("minillama.checkpoint.Transformer", _not_yet)
    for option, bad in dict(max_seq_len=0, max_batch_size=0, seed=-1, device="toaster", dtype="int8").items():
        with refused(option):
            build(original, **{option: bad})


@pytest.mark.parametrize("option", ["device", "dtype", "max_seq_len", "max_batch_size", "n_words"])
@pytest.mark.usefixtures("unread")
def test_the_loader_looks_at_its_options_too(original: Path, option: str) -> None:
    with refused("399" if option == "n_words" else option):
        load_model(original, **{option: 399 if option == "n_words" else "toaster"})


@pytest.mark.parametrize(("option", "bad"), [("max_seq_len", 2**21), ("max_seq_len", 0), ("max_batch_size", 0)])
def test_an_option_out_of_range_is_not_blamed_on_the_file(original: Path, option: str, bad: int) -> None:
    with pytest.raises(ValueError, match=f"^{option} is {bad}"):
        build(original, **{option: bad})


def test_an_option_makes_up_for_a_file_that_has_it_wrong(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_text(json.dumps(json.loads((original / "params.json").read_text()) | {"max_seq_len": -5}))
    with pytest.raises(ValueError, match=r"params\.json: max_seq_len is -5"):
        ModelArgs.from_json(path)
    assert ModelArgs.from_json(path, max_seq_len=64).max_seq_len == 64


def test_a_tokenizer_of_another_model_is_refused_by_llama_itself(llama: Llama, tmp_path: Path) -> None:
    with refused("400 rows", "350 pieces"):
        Llama(llama.model, Tokenizer(make_tokenizer(tmp_path / MODEL, vocab_size=350)))


@pytest.mark.parametrize("bad", [0, -1, 1.5, "4", True, [4]], ids=repr)
def test_llama_s_own_options_out_of_range_are_named(llama: Llama, bad: Any) -> None:
    with refused("max_batch_size", str(bad)):
        Llama(llama.model, llama.tokenizer, max_batch_size=bad)
    if bad != 0:
        with refused("seed", str(bad)):
            Llama(llama.model, llama.tokenizer, seed=bad)


# --- Prompts ---------------------------------------------------------------------------------------------------------

# A batch of ids, each time with one row that is wrong.
ID_PROMPTS = table(
    *((f"row {kind}", [[1, 5], thing], "prompt 1") for kind, thing in PLAIN.items()),
    ("row of text", [[1, 5], "Hello"], "prompt 1", "Hello"),
    ("row a generator", [[1, 5], (i for i in range(3))], "prompt 1"),
    ("row empty", [[1, 5], []], "prompt 1", "empty"),
    ("row an empty array", [[1, 5], np.zeros(0, dtype=int)], "prompt 1", "empty"),
    ("row an empty tensor", [[1, 5], torch.zeros(0, dtype=torch.long)], "prompt 1", "empty"),
    ("row of fractions", [[1, 5], [1.0, 2.0]], "prompt 1", "1.0"),
    ("row of fractions in numpy", [[1, 5], np.array([1.0, 2.0])], "prompt 1", "1.0"),
    ("row of fractions in torch", [[1, 5], torch.tensor([1.5])], "prompt 1", "1.5"),
    ("row of nan", [[1, 5], [math.nan]], "prompt 1", "nan"),
    ("row of bools", [[1, 5], [True, False]], "prompt 1", "True"),
    ("row of bools in torch", [[1, 5], torch.tensor([True])], "prompt 1", "True"),
    ("row of texts", [[1, 5], ["a", "b"]], "prompt 1", "'a'"),
    ("row of numbers in text", [[1, 5], ["1"]], "prompt 1", "'1'"),
    ("row of nothing", [[1, 5], [None]], "prompt 1", "None"),
    ("row of rows", [[1, 5], [[1, 5]]], "prompt 1", "[1, 5]"),
    ("row a matrix of numpy", [[1, 5], np.ones((2, 2), dtype=int)], "prompt 1"),
    ("row a matrix of torch", [[1, 5], torch.ones(2, 2, dtype=torch.long)], "prompt 1"),
    ("row one number of torch", [[1, 5], torch.tensor(5)], "prompt 1"),
    ("row of complex numbers", [[1, 5], torch.tensor([1j])], "prompt 1"),
    ("row a bytearray", [[1, 5], bytearray(b"ab")], "prompt 1"),
    ("id -1", [[1, 5], [1, -1]], "prompt 1", "-1", "0 to 399"),
    ("id of the pad piece there is not", [[1, -1, -1]], "prompt 0", "-1"),
    ("id one past the last", [[1, 400]], "prompt 0", "400", "0 to 399"),
    ("id of another vocabulary", [[1, 31999]], "prompt 0", "31999"),
    ("id 2^31", [[1, 2**31]], "prompt 0", "2147483648"),
    ("id 2^63", [[1, 2**63]], "prompt 0", "9223372036854775808"),
    ("id -2^63", [[1, -(2**63)]], "prompt 0", "-9223372036854775808"),
    ("id 10^400", [[1, 10**400]], "prompt 0", "1000000000"),
    ("one token too long", [[1] * 129], "prompt 0", "129", "128"),
    ("far too long", [[1, 5], [1] * 1_000_000], "prompt 1", "1000000", "128"),
    ("batch none", None, "prompts", "None"),
    ("batch a number", 5, "prompts", "5"),
    ("batch text", "Hello", "prompts", "Hello"),
    ("batch bytes", b"Hello", "prompts"),
    ("batch a dict", {0: [1, 5]}, "prompts"),
    ("batch a set", {(1, 5)}, "prompts"),
    ("batch a generator", ([1, 5] for _ in range(2)), "prompts"),
    ("batch one number of torch", torch.tensor(5), "prompts"),
    ("batch one row", [1, 5, 9], "prompt 0", "1"),
    ("batch one row of torch", torch.tensor([1, 5, 9]), "prompt 0", "1"),
    ("batch a cube", torch.ones(2, 2, 2, dtype=torch.long), "prompt 0"),
    ("batch of fractions", torch.ones(2, 2), "prompt 0", "1.0"),
)  # fmt: skip

TEXT_PROMPTS = table(
    *((f"text {kind}", ["Once", thing], "prompt 1") for kind, thing in NOT_TEXT.items()),
    ("half a pair at the start", ["Once", "\ud83d upon"], "prompt 1", "'\\ud83d' at character 0"),
    ("half a pair behind", ["Once", "upon " * 9 + "\udc00"], "prompt 1", "'\\udc00' at character 45"),
    ("too long", ["Once", "a cat. " * 100], "prompt 1", "max_seq_len 128"),
    ("texts none", None, "prompts", "None"),
    ("texts a number", 5, "prompts", "5"),
    ("texts a text", "Once upon", "prompts", "Once upon"),
    ("texts bytes", b"Once", "prompts"),
    ("texts a dict", {"Once": 1}, "prompts"),
    ("texts a set", {"Once"}, "prompts"),
    ("texts a generator", (t for t in ["Once"]), "prompts"),
)  # fmt: skip


@each(ID_PROMPTS)
def test_prompts_of_ids_that_cannot_be_are_named(idle: Llama, case: Case) -> None:
    with refused(*case.named):
        idle.generate(case.bad, max_gen_len=2)
    if case.id != "row of text" and "generator" not in case.id:  # a text may be scored; a generator is at its end
        with refused(*(name for name in case.named if name != "prompts")):
            idle.score(case.bad)


@each(TEXT_PROMPTS)
def test_prompts_of_text_that_cannot_be_are_named(idle: Llama, case: Case) -> None:
    with refused(*case.named):
        idle.text_completion(case.bad, max_gen_len=2)


@pytest.mark.parametrize("kind", list(NOT_TEXT))
def test_one_prompt_that_is_no_text_is_refused(idle: Llama, kind: str) -> None:
    with refused("prompt 0"):
        idle.stream_text(NOT_TEXT[kind])


def test_more_rows_than_max_batch_size_are_named(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = Llama(llama.model, llama.tokenizer, max_batch_size=2)
    monkeypatch.setattr(llama.model, "features", _not_yet)
    dialog = [{"role": "user", "content": "Hi"}]
    for call in (
        lambda: limited.generate([[1]] * 3),
        lambda: limited.text_completion(["a"] * 3),
        lambda: limited.chat_completion([dialog] * 3),
        lambda: limited.score(["a"] * 3),
    ):
        with refused("batch 3", "max_batch_size 2"):
            call()


USUAL_PROMPTS: dict[str, Any] = {
    "tuples": ((1, 5, 9), (1, 7)), "ranges": [range(1, 4)], "numpy": [np.array([1, 5, 9])],
    "small numpy": [np.array([1, 5], "u1")], "numbers of numpy": [[np.int64(1), np.int32(5)]],
    "matrix of numpy": np.array([[1, 5], [1, 7]]), "tensor": [torch.tensor([1, 5, 9])],
    "int32": [torch.tensor([1, 5], dtype=torch.int32)], "matrix": torch.tensor([[1, 5], [1, 7]]),
    "numbers of torch": [[torch.tensor(1), torch.tensor(5)]], "mixed": [[1], (1, 5), np.array([1, 2])],
    "full": [[1] * 128], "every special id": [[0, 1, 2]],
}  # fmt: skip


@pytest.mark.parametrize("kind", USUAL_PROMPTS)
def test_unusual_prompts_of_ids_work(llama: Llama, kind: str) -> None:
    prompts = USUAL_PROMPTS[kind]
    plain = [[int(t) for t in row] for row in prompts]
    made = llama.generate(prompts, max_gen_len=3, temperature=0, logprobs=True, echo=True)
    assert made == llama.generate(plain, max_gen_len=3, temperature=0, logprobs=True, echo=True)
    assert all(type(t) is int for row in made[0] for t in row)
    assert [score.tokens for score in llama.score(prompts)] == plain


@pytest.mark.parametrize(
    "text", ["", " ", "\0", "a\0b", "\ufeff", "\u2581", "</s>", "\U0001f525" * 9, "\n\r\t\x7f\x85", "\uffff"]
)
def test_unusual_texts_work(llama: Llama, text: str) -> None:
    assert llama.text_completion([text], max_gen_len=2)[0]["finish_reason"] in ("stop", "length")
    assert llama.score([text])[0].tokens[0] == 1
    answer = llama.chat_completion([[{"role": "user", "content": text}]], max_gen_len=2)[0]
    assert answer["generation"]["role"] == "assistant"


@pytest.mark.parametrize("empty", [[], (), np.zeros((0, 3), dtype=int), torch.zeros(0, 3, dtype=torch.long)], ids=type)
def test_an_empty_batch_gives_an_empty_answer(idle: Llama, empty: Any) -> None:
    assert idle.generate(empty) == ([], None)
    assert idle.generate(empty, logprobs=True) == ([], [])
    assert idle.text_completion(empty) == idle.chat_completion(empty) == idle.score(empty) == []


# --- Dialogs ---------------------------------------------------------------------------------------------------------


def _said(*roles: Any) -> list[dict[str, Any]]:
    return [{"role": role, "content": "Hi"} for role in roles]


USER = _said("user")
DIALOGS = table(
    *((f"dialog {kind}", thing, "a dialog is a list") for kind, thing in NOT_TEXT.items()
        if kind not in ("list", "dict")),
    ("dialog text", "Hello", "Hello"),
    ("dialog a generator", (m for m in USER), "generator"),
    ("dialog empty", [], "no user message"),
    *((f"message {kind}", [*_said("user", "assistant"), thing], "message 2") for kind, thing in NOT_TEXT.items()),
    ("message text", [*_said("user", "assistant"), "Hello"], "message 2", "Hello"),
    ("message a pair", [("user", "Hello")], "message 0"),
    ("message empty", [{}], "message 0", "'role' and 'content'"),
    ("no role", [{"content": "Hi"}], "message 0", "'role'"),
    ("no content", [{"role": "user"}], "message 0", "'content'"),
    ("keys in capitals", [{"Role": "user", "Content": "Hi"}], "message 0", "'role'"),
    ("parts in the style of others", [{"from": "human", "value": "Hi"}], "message 0", "'role'"),
    *((f"role {kind}", _said(thing), "message 0", "'user'") for kind, thing in PLAIN.items()),
    *((f"role {role!r}", _said(role), "message 0", repr(role)) for role in (
        "", "User", "human", "tool", "user ", "ipython", "assistant")),
    *((f"content {kind}", [{"role": "user", "content": thing}], "message 0: content")
        for kind, thing in NOT_TEXT.items()),
    ("content of parts", [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "message 0", "content"),
    ("content half a pair", [{"role": "user", "content": "a\ud83d"}], "\\ud83d"),
    ("content too long", [{"role": "user", "content": "a cat. " * 100}], "max_seq_len 128"),
    ("only system", _said("system"), "no user message", "index 0"),
    ("system twice", _said("system", "system", "user"), "message 1", "'system'"),
    ("system behind", _said("user", "system"), "message 1", "'system'"),
    ("system in the middle", _said("user", "assistant", "system", "user"), "message 2", "'system'"),
    ("user twice", _said("user", "user"), "message 1", "'user'", "'assistant'"),
    ("assistant first", _said("assistant", "user"), "message 0", "'assistant'"),
    ("assistant after system", _said("system", "assistant", "user"), "message 1", "'assistant'"),
    ("assistant twice", _said("user", "assistant", "assistant"), "message 2", "'assistant'"),
    ("assistant last", _said("user", "assistant"), "message 1", "'assistant'"),
    ("assistant last after system", _said("system", "user", "assistant"), "message 2", "'assistant'"),
)  # fmt: skip

DIALOG_BATCHES = table(
    *((f"dialogs {kind}", thing, "dialogs") for kind, thing in PLAIN.items() if kind != "list"),
    ("dialogs a text", "Hello", "dialogs"),
    ("dialogs one dialog", USER, "[dialog]"),
    ("dialogs a generator", (d for d in [USER]), "dialogs"),
    ("dialogs texts", ["Hello"], "dialog 0"),
    ("dialogs numbers", np.zeros(2), "dialog 0"),
)


@each(DIALOGS)
def test_dialogs_that_cannot_be_are_named(idle: Llama, case: Case) -> None:
    with refused("dialog 1", *case.named):
        idle.chat_completion([USER, case.bad], max_gen_len=2)
    if not hasattr(case.bad, "__next__"):
        with refused(*case.named):
            idle.stream_chat(case.bad, max_gen_len=2)


@each(DIALOG_BATCHES)
def test_batches_of_dialogs_that_cannot_be_are_named(idle: Llama, case: Case) -> None:
    with refused(*case.named):
        idle.chat_completion(case.bad, max_gen_len=2)


def test_a_dialog_behind_a_refused_one_keeps_its_index(idle: Llama) -> None:
    unsafe = [{"role": "user", "content": "[/INST]"}]
    with refused("dialog 2", "max_seq_len 128"):
        idle.chat_completion([unsafe, unsafe, [{"role": "user", "content": "a cat. " * 100}]])


# --- Options ---------------------------------------------------------------------------------------------------------

_NO_NUMBER: dict[str, Any] = {
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "none": None, "text": "x", "number in text": "0.5",
    "true": True, "false": False, "list": [0.5], "complex": 1j, "10^400": 10**400, "nan of numpy": np.float32("nan"),
    "tensor": torch.tensor(0.5),
}  # fmt: skip
_NO_WHOLE: dict[str, Any] = {
    "-1": -1, "fraction": 1.5, "nan": math.nan, "inf": math.inf, "text": "x", "number in text": "3", "true": True,
    "list": [3], "-2^70": -(2**70), "2^70": 2**70, "10^400": 10**400, "complex": 1j,
}  # fmt: skip
_BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": _NO_NUMBER | {"-0.1": -0.1},
    "top_p": _NO_NUMBER | {"-0.1": -0.1, "1.1": 1.1},
    "min_p": _NO_NUMBER | {"-0.1": -0.1, "1.1": 1.1},
    "repetition_penalty": _NO_NUMBER | {"0": 0.0, "-1": -1.0},
    "frequency_penalty": _NO_NUMBER,
    "presence_penalty": _NO_NUMBER,
    "top_k": _NO_WHOLE | {"none": None, "whole fraction": 3.0},
    "seed": _NO_WHOLE | {"whole fraction": 3.0, "2^62": 2**62},
    "max_gen_len": _NO_WHOLE | {"whole fraction": 3.0},
    "stop": {
        "empty": "", "a list of empty": [""], "empty among others": ["a", ""], "numbers": [1], "number": 1,
        "none": None, "none in a list": [None], "bytes": b"a", "a list of bytes": [b"a"], "nested": [["a"]],
        "dict": {"a": 1}, "true": True, "generator": (s for s in ["a"]),
    },
    "stop_ids": {
        "text": "abc", "number in text": "2", "texts": ["2"], "number": 2, "fractions": [2.0], "nan": [math.nan],
        "none in it": [None], "nested": [[2]], "negative": [2, -1], "past the last": [400], "10^400": [10**400],
        "dict": {2: 1}, "true": True, "trues": [True], "bytes": b"a", "matrix": torch.ones(2, 2, dtype=torch.long),
        "generator": (i for i in [2]),
    },
    "logprobs": {"none": None, "text": "yes", "2": 2, "fraction": 1.0, "list": [True], "nan": math.nan},
    "echo": {"none": None, "text": "yes", "2": 2, "fraction": 1.0, "list": [True], "nan": math.nan},
}  # fmt: skip
OPTIONS = [
    Case(f"{option} {kind}", {option: value}, (option,))
    for option, values in _BAD_OPTIONS.items()
    for kind, value in values.items()
]


@each(OPTIONS)
def test_options_out_of_range_are_named(idle: Llama, case: Case) -> None:
    calls: list[Callable[..., Any]] = [
        lambda **options: idle.generate([[1, 5]], **options),
        lambda **options: idle.generate([], **options),
        lambda **options: idle.text_completion(["Once"], **options),
    ]
    if "echo" not in case.bad:
        calls.append(lambda **options: idle.chat_completion([USER], **options))
        if "logprobs" not in case.bad:
            calls.append(lambda **options: idle.stream_text("Once", **options))
            calls.append(lambda **options: idle.stream_chat(USER, **options))
    for call in calls:
        with refused(*case.named):
            call(**case.bad)
    if case.bad.keys() <= SamplingParams.__dataclass_fields__.keys():
        with refused(*case.named):
            SamplingParams(**case.bad)


@pytest.mark.parametrize("options", [
    {"top_k": 10**6}, {"top_k": 2**62}, {"top_k": np.int64(3)}, {"temperature": 0}, {"temperature": 1},
    {"temperature": 1e308}, {"temperature": 5e-324}, {"temperature": np.float32(0.5)}, {"top_p": 1}, {"top_p": 5e-324},
    {"min_p": 1}, {"seed": 2**62 - 1}, {"seed": np.int64(7)}, {"repetition_penalty": 1e308},
    {"repetition_penalty": 1e-308}, {"frequency_penalty": 1e308}, {"presence_penalty": -1e308}, {"max_gen_len": 10**9},
    {"max_gen_len": np.int32(3)}, {"max_gen_len": 0}, {"stop": []}, {"stop": ("a", "b")}, {"stop": {"a"}},
    {"stop": "\0"}, {"stop": "x" * 10_000}, {"stop_ids": []}, {"stop_ids": {2, 5}}, {"stop_ids": np.array([2])},
    {"stop_ids": torch.tensor([2])}, {"stop_ids": range(10)}, {"logprobs": 1}, {"echo": 0},
], ids=str)  # fmt: skip
def test_unusual_options_work(llama: Llama, options: dict[str, Any]) -> None:
    made = llama.text_completion(["Once upon", "a"], **({"max_gen_len": 3} | options))
    assert [one["finish_reason"] in ("stop", "length") for one in made] == [True, True]


# --- The model and its cache, used by hand ---------------------------------------------------------------------------

Call = Callable[[Transformer], Any]
IDS = torch.tensor([[1, 5, 9], [1, 7, 8]])


def _cache(model: Transformer, batch_size: Any = 2, max_len: Any = 8) -> KVCache:
    return KVCache.for_model(model, batch_size, max_len)


WHOLE = _NO_WHOLE.items()
MISUSE: list[Case] = table(
    ("a list", lambda m: m([[1, 5]]), "[[1, 5]]"),
    ("an array", lambda m: m(IDS.numpy()), "tokens"),
    ("none", lambda m: m(None), "None"),
    ("text", lambda m: m("Hello"), "Hello"),
    ("fractions", lambda m: m(IDS.float()), "tokens", "int64"),
    ("bools", lambda m: m(IDS > 1), "tokens", "int64"),
    ("bytes", lambda m: m(IDS.to(torch.uint8)), "tokens", "int64"),
    ("one row", lambda m: m(IDS[0]), "(3,)", "(B, T)"),
    ("one id", lambda m: m(IDS[0, 0]), "()", "(B, T)"),
    ("a cube", lambda m: m(IDS[None]), "(1, 2, 3)", "(B, T)"),
    ("no ids", lambda m: m(IDS[:, :0]), "(2, 0)", "(B, T)"),
    ("no rows", lambda m: m(IDS[:0]), "(0, 3)", "(B, T)"),
    ("ids on another device", lambda m: m(IDS.to("meta")), "on meta", "on cpu"),
    ("id -1", lambda m: m(torch.tensor([[1, -1]])), "-1"),
    ("id 400", lambda m: m(torch.tensor([[1, 400]])), "400", "399"),
    ("too long", lambda m: m(torch.ones(1, 129, dtype=torch.long)), "129", "max_seq_len 128"),
    ("start without a cache", lambda m: m(IDS, 4), "start_pos", "cache"),
    ("starts without a cache", lambda m: m(IDS, torch.tensor([0, 4])), "start_pos", "cache"),
    *((f"start {kind}", lambda m, bad=bad: m(IDS, bad, _cache(m)), "start_pos") for kind, bad in {
        "-1": -1, "fraction": 1.5, "text": "0", "none": None, "list": [0, 0], "true": True, "2^70": -(2**70),
        "tensors -1": torch.tensor([0, -1]), "fractions": torch.tensor([0.0, 1.0]), "one tensor": torch.tensor(3),
        "one start for two rows": torch.tensor([3]), "three starts for two rows": torch.tensor([1, 2, 3]),
        "a column": torch.tensor([[1], [2]]), "empty": torch.zeros(0, dtype=torch.long)}.items()),
    ("start past the end", lambda m: m(IDS, 126, _cache(m)), "129", "max_seq_len 128"),
    ("start 2^40", lambda m: m(IDS, 2**40, _cache(m)), "start_pos"),
    ("starts past the end", lambda m: m(IDS, torch.tensor([0, 126]), _cache(m)), "129", "max_seq_len 128"),
    ("past the cache", lambda m: m(IDS, 6, _cache(m)), "9 tokens", "8"),
    ("one row past the cache", lambda m: m(IDS, torch.tensor([0, 6]), _cache(m)), "9 tokens", "8"),
    ("longer than the cache", lambda m: m(torch.ones(2, 9, dtype=torch.long), 0, _cache(m)), "9 tokens", "8"),
    ("a cache of more rows", lambda m: m(IDS, 0, _cache(m, 3)), "batch of 2", "3"),
    ("a cache of fewer rows", lambda m: m(IDS, 0, _cache(m, 1)), "batch of 2", "1"),
    ("a cache of more layers", lambda m: m(IDS, 0, KVCache(3, 2, 8, 2, 8)), "for_model", "(3, 2, 8"),
    ("a cache of fewer layers", lambda m: m(IDS, 0, KVCache(1, 2, 8, 2, 8)), "for_model", "(1, 2, 8"),
    ("a cache of all heads", lambda m: m(IDS, 0, KVCache(2, 2, 8, 4, 8)), "for_model", "(2, 4, 8"),
    ("a cache of other heads", lambda m: m(IDS, 0, KVCache(2, 2, 8, 2, 16)), "for_model", "(2, 2, 16"),
    ("a cache in another dtype", lambda m: m(IDS, 0, KVCache(2, 2, 8, 2, 8, torch.bfloat16)), "for_model", "bfloat16"),
    *((f"cache of batch {kind}", lambda m, bad=bad: _cache(m, batch_size=bad), "batch_size is") for kind, bad in WHOLE),
    *((f"cache of length {kind}", lambda m, bad=bad: _cache(m, max_len=bad), "max_len is") for kind, bad in WHOLE),
    ("cache of batch 0", lambda m: _cache(m, batch_size=0), "batch_size is 0"),
    ("cache of length 0", lambda m: _cache(m, max_len=0), "max_len is 0"),
    ("cache past max_seq_len", lambda m: _cache(m, max_len=129), "129", "max_seq_len 128"),
    ("cache without layers", lambda m: KVCache(0, 2, 8, 2, 8), "n_layers is 0"),
    ("a model without vocabulary", lambda m: Transformer(ModelArgs(dim=32, n_heads=4)), "vocab_size is -1"),
)  # fmt: skip


@each(MISUSE)
def test_the_model_names_what_does_not_fit(llama: Llama, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in llama.model.layers:
        monkeypatch.setattr(layer, "forward", _not_yet)
    with refused(*case.named):
        case.bad(llama.model)


def test_a_cache_is_untouched_by_a_call_that_is_refused(llama: Llama) -> None:
    cache = _cache(llama.model)
    for bad in (IDS.float(), IDS + 399, torch.ones(2, 9, dtype=torch.long)):
        with refused():
            llama.model(bad, 0, cache)
    assert all(not layer.keys.any() and not layer.values.any() for layer in cache.layers)


NOT_IDS: dict[str, Any] = {
    "none": None, "text": "a", "fraction": 1.0, "-1": -1, "400": 400, "10^400": 10**400, "true": True, "list": [1],
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_IDS)
def test_what_is_no_id_has_no_text(llama: Llama, kind: str) -> None:
    with refused("vocabulary of 400 pieces"):
        llama.tokenizer.decode([1, NOT_IDS[kind]])


# --- Weights that are not numbers ------------------------------------------------------------------------------------

BROKEN = [EMBEDDING, NORM, OUTPUT, WV, "layers.1.attention.wo.weight", W1, W2, "layers.0.attention_norm.weight"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("key", BROKEN)
def test_weights_that_are_not_numbers_give_an_error_and_no_text(
    folder: Path, weights: Weights, key: str, value: float
) -> None:
    torch.save(weights | {key: torch.full_like(weights[key], value)}, folder / PTH)
    llama = build(folder)
    for options in ({"temperature": 0}, {"temperature": 0.8}, {"temperature": 0.8, "presence_penalty": 0.5}):
        with refused("not numbers", "row 0", "position 3"):
            llama.generate([[1, 5, 9]], **options)
    with refused("not numbers", "row 0", "position 1"):
        llama.generate([[1, 5, 9]], max_gen_len=0, logprobs=True, echo=True)
    with refused("not numbers", "row 0", "position 1"):
        llama.score([[1, 5, 9]])
    for stream in (llama.stream_text("Once"), llama.stream_chat(USER)):
        with refused("not numbers", "row 0", "position"):
            list(stream)
    for call in (lambda: llama.text_completion(["Once"]), lambda: llama.chat_completion([USER])):
        with refused("not numbers", "row 0", "position"):
            call()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", [WQ, WK])
def test_one_broken_number_that_attention_would_hide_is_found_at_loading(
    folder: Path, weights: Weights, key: str, value: float
) -> None:
    """Over fewer than 16 keys, torch's kernel gives zeros where all scores are NaN, and the text goes on."""
    broken = weights[key].clone()
    broken[3, 5] = value
    torch.save(weights | {key: broken}, folder / PTH)
    with refused(key):
        build(folder)


def test_weights_too_large_for_the_dtype_are_named(folder: Path, weights: Weights) -> None:
    torch.save(weights | {WQ: weights[WQ] * 1e6}, folder / PTH)
    with refused(WQ, "torch.float16"):
        build(folder, dtype="fp16")


def test_the_broken_row_is_named_and_a_sound_one_goes_on(folder: Path, weights: Weights) -> None:
    embedding = weights[EMBEDDING].clone()
    embedding[7] = math.nan
    torch.save(weights | {EMBEDDING: embedding}, folder / PTH)
    llama = build(folder)
    with refused("row 1", "position 2"):
        llama.generate([[1, 5], [1, 7]], temperature=0)
    with refused("row 2", "position"):
        llama.score([[1, 5], [1, 6], [1, 5, 7, 9]])
    assert len(llama.generate([[1, 5]], max_gen_len=1, temperature=0, stop_ids=())[0][0]) == 1


# --- Anything at all -------------------------------------------------------------------------------------------------

any_number = st.one_of(
    st.integers(), st.floats(), st.integers(-3, 80), st.sampled_from([2**31 - 1, 2**31, 2**63, -(2**63), 10**400])
)
any_json = st.recursive(
    st.one_of(st.none(), st.booleans(), any_number, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)
proved = settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@proved
@given(changes=st.dictionaries(st.sampled_from([*_COUNTS, *_SIZES, *_SCALINGS, "x"]), any_json, min_size=1, max_size=3))
def test_any_params_load_or_are_refused(folder: Path, changes: dict[str, Any]) -> None:
    _write_params(folder, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            build(folder)
        except OURS as error:
            assert type(error) in OURS and PARAMS in str(error) or WK in str(error).replace("s.0", "s.1"), str(error)


@proved
@given(content=st.binary(max_size=300), name=st.sampled_from([PTH, PARAMS, MODEL]))
def test_any_bytes_are_refused(folder: Path, original: Path, content: bytes, name: str) -> None:
    (folder / name).write_bytes(content)
    try:
        with refused(name):
            build(folder)
    finally:
        shutil.copy(original / name, folder / name)


@proved
@given(
    prompts=st.lists(st.one_of(st.lists(st.one_of(any_number, st.integers(0, 399)), max_size=3), any_json), max_size=3)
)
def test_any_prompts_work_or_are_refused(llama: Llama, prompts: list[Any]) -> None:
    fine = all(type(row) is list and row and all(type(t) is int and 0 <= t < 400 for t in row) for row in prompts)
    try:
        assert len(llama.generate(prompts, max_gen_len=1)[0]) == len(prompts)
    except OURS as error:
        assert not fine and type(error) in OURS and "prompt" in str(error)
    else:
        assert fine


@proved
@given(
    data=st.data(),
    option=st.sampled_from([*SamplingParams.__dataclass_fields__, "seed", "max_gen_len", "stop", "stop_ids"]),
)
def test_any_option_works_or_is_refused(llama: Llama, data: st.DataObject, option: str) -> None:
    options = {"max_gen_len": 2} | {option: data.draw(any_json)}
    try:
        text = llama.text_completion(["Once"], **options)[0]["generation"]
        assert isinstance(text, str)
    except OURS as error:
        assert type(error) in OURS and option in str(error)


message = st.fixed_dictionaries(
    {}, optional={"role": st.one_of(st.sampled_from(["system", "user", "assistant"]), any_json), "content": any_json}
)


@proved
@given(dialog=st.one_of(any_json, st.lists(st.one_of(message, any_json), max_size=4)))
def test_any_dialog_is_answered_or_refused(llama: Llama, dialog: Any) -> None:
    try:
        assert llama.chat_completion([USER, dialog], max_gen_len=1)[1]["generation"]["role"] == "assistant"
    except OURS as error:
        assert type(error) in OURS and ("dialog 1" in str(error) or "[dialog]" in str(error))


# --- The tables themselves -------------------------------------------------------------------------------------------

TABLES = {
    "params": PARAM_VALUES + PARAMS_THAT_DO_NOT_FIT + NOT_PARAMS,
    "weights": NOT_WEIGHTS + WRONG_CONTENTS + WRONG_FOLDERS,
    "cuts": [Case(f"{kind} {part}", part, ()) for kind, parts in
             {"zip": CUTS, "legacy": LEGACY_CUTS, "tokenizer": TOKENIZER_CUTS}.items() for part in parts],
    "payloads": [Case(" ".join(row), row, ()) for row in PAYLOAD_TABLE],
    "tokenizers": NOT_TOKENIZERS + OTHER_TOKENIZERS,
    "build": BUILD_OPTIONS + FOLDERS,
    "prompts": ID_PROMPTS + TEXT_PROMPTS,
    "dialogs": DIALOGS + DIALOG_BATCHES,
    "options": OPTIONS,
    "model": MISUSE,
}  # fmt: skip


def test_the_tables_hold_hundreds_of_bad_inputs_each_once() -> None:
    for name, cases in TABLES.items():
        ids = [case.id for case in cases]
        assert len(ids) == len(set(ids)), f"{name}: {sorted(i for i in ids if ids.count(i) > 1)}"
        assert len(ids) >= 20, f"{name}: {len(ids)}"
    assert sum(map(len, TABLES.values())) >= 200
    assert len(TABLES["params"]) + len(TABLES["weights"]) + len(TABLES["cuts"]) >= 200  # files alone
