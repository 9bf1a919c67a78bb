"""Folders of any number of files into any number of ranks: what each rank holds, what they compute, what it costs.

Ranks that compute are processes that talk through gloo. Where it is only asked what a rank holds, this process is told
that it is rank r of R (`as_rank`) and loads: 16 ranks need no 16 processes. Cutting copies numbers, so weights are
compared bit for bit; logits may differ by 1e-5 of the largest one, see test_parity.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fairscale.nn.model_parallel import initialize as mpu
from ranks import folders_in_ranks, run_ranks
from test_parity import FP32_TOLERANCE, difference, random_weights
from torch.testing._internal.distributed.fake_pg import FakeStore

from minillama import ModelArgs, Transformer, parallelize
from minillama.checkpoint import CheckpointError, checkpoint_files, load_model
from minillama.convert import rewrite
from minillama.memory import kv_cache_bytes, weight_bytes
from minillama.weights import Weight, assemble

pytestmark = pytest.mark.filterwarnings("ignore:no tokenizer.model")  # most folders here need none

CUT = dict.fromkeys(("wq", "wk", "wv", "w1", "w3", "output"), 0) | dict.fromkeys(("wo", "w2", "tok_embeddings"), 1)
Weights = dict[str, torch.Tensor]


def shape(n_heads: int = 16, n_kv_heads: int = 8, **others: Any) -> ModelArgs:
    numbers = dict(dim=8 * n_heads, n_layers=2, vocab_size=240, multiple_of=48, max_seq_len=64)
    return ModelArgs(n_heads=n_heads, n_kv_heads=n_kv_heads, **numbers | others)


def write(
    folder: Path, args: ModelArgs, weights: Weights, files: int, embedding: int = 1, name: str = "{:02d}"
) -> Path:
    """A folder as Meta would publish it, cut by `torch.chunk`; embedding: along which dimension that one is cut."""
    folder.mkdir()
    dims = CUT | {"tok_embeddings": embedding}
    for i in range(files):
        part = {
            key: weight if (dim := dims.get(key.split(".")[-2])) is None else weight.chunk(files, dim)[i].clone()
            for key, weight in weights.items()
        }
        torch.save(part, folder / f"consolidated.{name.format(i)}.pth")
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "multiple_of", "ffn_dim_multiplier", "norm_eps", "max_seq_len")
    (folder / "params.json").write_text(json.dumps({name: getattr(args, name) for name in names}))
    return folder


def expected_share(key: str, weight: torch.Tensor, args: ModelArgs, rank: int, ranks: int) -> torch.Tensor:
    """What a rank must hold, told from its query heads: those of its part, and every kv head that one looks at."""
    name = key.split(".")[-2]
    if name not in CUT:
        return weight
    if name not in ("wk", "wv"):
        return weight.chunk(ranks, CUT[name])[rank]
    queries = range(args.n_heads)[rank * args.n_heads // ranks : (rank + 1) * args.n_heads // ranks]
    kv_heads = sorted({query // (args.n_heads // args.n_kv_heads) for query in queries})
    return weight.unflatten(0, (args.n_kv_heads, -1))[kv_heads].flatten(0, 1)


@contextlib.contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    """This process is rank `rank` of `ranks`, the others do not exist: for all that needs no answer from them."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            mpu.initialize_model_parallel(ranks)
        yield
    finally:
        mpu.destroy_model_parallel()
        dist.destroy_process_group()


def check_shares(folder: Path, args: ModelArgs, weights: Weights, ranks: int) -> None:
    for rank in range(ranks):
        with as_rank(rank, ranks):
            found = load_model(folder).state_dict()
        assert found.keys() == weights.keys()
        for key, weight in weights.items():
            assert torch.equal(found[key], expected_share(key, weight, args, rank, ranks)), f"{key}, rank {rank}"


# --- What a rank holds


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("files", "embedding"), [(1, 1), (2, 1), (4, 1), (8, 1), (2, 0), (4, 0), (8, 0)])
def test_every_rank_gets_its_share_of_any_number_of_files(
    tmp_path: Path, files: int, embedding: int, ranks: int
) -> None:
    """70B's ratio of heads: 8 kv heads, which 16 ranks hold twice. embedding 1: Llama 2's cut, 0: Llama 3's."""
    args = shape()
    weights = random_weights(args)
    check_shares(write(tmp_path / "folder", args, weights, files, embedding), args, weights, ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_kv_heads_are_repeated_where_there_are_more_ranks(tmp_path: Path, kv_heads: int, ranks: int) -> None:
    args = shape(8, kv_heads)
    weights = random_weights(args)
    check_shares(write(tmp_path / "folder", args, weights, 1), args, weights, ranks)


@pytest.mark.parametrize(("files", "ranks"), [(3, 2), (2, 3), (3, 6), (6, 4), (12, 4)])
@pytest.mark.parametrize("embedding", [0, 1])
def test_files_and_ranks_need_not_divide_each_other(tmp_path: Path, files: int, ranks: int, embedding: int) -> None:
    args = shape(12, 12)
    weights = random_weights(args)
    check_shares(write(tmp_path / "folder", args, weights, files, embedding), args, weights, ranks)


@pytest.mark.parametrize("name", ["{}", "{:02d}", "{:03d}"])
def test_files_are_ordered_by_their_number_whatever_its_padding(tmp_path: Path, name: str) -> None:
    args = shape(16, 16)
    weights = random_weights(args)
    folder = write(tmp_path / "folder", args, weights, 16, name=name)
    assert [path.name for path in checkpoint_files(folder)][9:11] == [
        f"consolidated.{name.format(n)}.pth" for n in (9, 10)
    ]
    check_shares(folder, args, weights, 1)


def test_a_rank_touches_only_the_files_and_rows_that_it_needs() -> None:
    pieces = [torch.arange(40.0).view(4, 10) + 100 * i for i in range(4)]  # 16 rows in 4 files
    for parts, part, holders in ((2, 1, {2, 3}), (4, 3, {3}), (8, 5, {2}), (16, 0, {0})):
        views = Weight(pieces).cut(0, part, parts)
        homes = {i for i, piece in enumerate(pieces) for v in views if v.data_ptr() - piece.data_ptr() in range(160)}
        assert homes == holders and sum(map(len, views)) == 16 // parts
    one = assemble(Weight(pieces), 0, 3, 4)
    assert one.data_ptr() == pieces[3].data_ptr()  # what lies there as it is wanted is not copied


@pytest.mark.parametrize("embedding", [0, 1])
def test_a_missing_last_file_is_named_as_missing(tmp_path: Path, embedding: int) -> None:
    args = shape()
    folder = write(tmp_path / "folder", args, random_weights(args), 8, embedding)
    (folder / "consolidated.07.pth").rename(folder / "consolidated.07.pth.part")
    with pytest.raises(CheckpointError, match="each of 7 files.*one is missing"):
        load_model(folder)


def test_one_file_of_several_is_counted_as_one(tmp_path: Path) -> None:
    args = shape()
    folder = write(tmp_path / "folder", args, random_weights(args), 2)
    (folder / "consolidated.00.pth").unlink()
    with pytest.raises(CheckpointError, match=r"has 1 file and lacks consolidated\.00\.pth"):
        load_model(folder)


@pytest.mark.parametrize(("zipped", "kept"), [(True, 0.999), (True, 0.5), (True, 0.0001), (False, 0.999), (False, 0.5)])
def test_a_file_cut_short_is_said_to_be_in_a_whole_sentence(tmp_path: Path, zipped: bool, kept: float) -> None:
    args = shape()
    folder = write(tmp_path / "folder", args, random_weights(args), 1)
    file = folder / "consolidated.00.pth"
    torch.save(torch.load(file), file, _use_new_zipfile_serialization=zipped)  # the other kind is from before 1.6
    os.truncate(file, int(file.stat().st_size * kept))
    with pytest.raises(CheckpointError, match=r"it is cut short or damaged \([^()]+\); download it again$"):
        load_model(folder)


def test_heads_that_ranks_cannot_share_are_an_error_that_names_what_would_do(tmp_path: Path) -> None:
    args = shape(12, 4)
    folder = write(tmp_path / "folder", args, random_weights(args), 1)
    for ranks, said in ((6, "n_kv_heads 4 and 6 ranks"), (8, "n_heads 12 is not divisible by 8 ranks")):
        with as_rank(0, ranks), pytest.raises(ValueError, match=f"{said}.*runs on 1, 2, 4, 12$"):
            load_model(folder)


# --- The published shapes

CODE_LLAMA_34B = dict(
    dim=8192, n_layers=48, n_heads=64, n_kv_heads=8, vocab_size=32000, multiple_of=256, ffn_dim_multiplier=1.0,
    rope_theta=1e6, max_seq_len=16384,
)  # fmt: skip
# name -> (feed-forward width, the numbers of ranks up to 16 that can share it)
PUBLISHED = {
    "7B": (11008, [1, 2, 4, 8, 16]), "13B": (13824, [1, 2, 4, 8]), "34B": (22016, [1, 2, 4, 8, 16]),
    "70B": (28672, [1, 2, 4, 8, 16]),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes_are_shared_by_every_number_of_ranks_or_refused(name: str) -> None:
    """On the meta device: layers are really put in place, and no number is allocated."""
    args = ModelArgs(**CODE_LLAMA_34B) if name == "34B" else ModelArgs.preset(name)
    width, fits = PUBLISHED[name]
    assert args.hidden_dim == width
    assert [ranks for ranks in range(1, 17) if args.fits_ranks(ranks)] == fits
    with torch.device("meta"):
        whole = {key: weight.shape for key, weight in Transformer(args).state_dict().items()}
    for ranks in range(1, 17):
        if ranks not in fits:
            with pytest.raises(ValueError, match=f"{ranks} ranks.*runs on {', '.join(map(str, fits))}"):
                args.check_ranks(ranks)
            continue
        with as_rank(ranks - 1, ranks), torch.device("meta"):
            model = parallelize(Transformer(args))
        kv = max(args.n_kv_heads // ranks, 1) * args.head_dim
        for key, weight in model.state_dict().items():
            kind, expected = key.split(".")[-2], list(whole[key])
            if kind in CUT:
                expected[CUT[kind]] = kv if kind in ("wk", "wv") else expected[CUT[kind]] // ranks
            assert weight.is_meta and list(weight.shape) == expected, key
        assert sum(p.numel() for p in model.parameters()) * 2 == weight_bytes(args, torch.bfloat16, ranks)
        numbers = 2 * args.n_layers * 3 * 100 * kv
        assert kv_cache_bytes(args, 3, 100, torch.bfloat16, ranks) == 2 * numbers


# --- What ranks compute

TOKENS = torch.randint(240, (2, 21), generator=torch.Generator().manual_seed(1))
# name -> (kv heads, files, which dimension of the embedding is cut)
FOLDERS = {
    "MQA, 1 file": (1, 1, 1), "2 kv heads, 2 files": (2, 2, 1), "8 kv heads, 8 files": (8, 8, 1),
    "8 kv heads, 4 files of Llama 3's cut": (8, 4, 0),
}  # fmt: skip


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made, home = {}, tmp_path_factory.mktemp("folders")
    for name, (kv_heads, files, embedding) in FOLDERS.items():
        args = shape(n_kv_heads=kv_heads)
        made[name] = str(write(home / name, args, random_weights(args), files, embedding))
    rewrite(made["2 kv heads, 2 files"], home / "hf", "hf", shard_bytes=100_000)
    return made | {"2 kv heads, Hugging Face's layout": str(home / "hf")}


@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_compute_what_one_process_computes(model_folders: dict[str, str], ranks: int) -> None:
    """Ranks that hold copies of kv heads, files merged and split, both layouts: through gloo, cache or none."""
    said = run_ranks(ranks, folders_in_ranks, model_folders, TOKENS, method="fork")
    for name, folder in model_folders.items():
        with torch.no_grad():
            expected = Transformer.from_checkpoint(folder)(TOKENS)
        assert expected.abs().max() > 5
        for rank, found in enumerate(said):
            for way in ("stateless", "cached", "parallelized"):
                assert difference(found[name][way], expected) <= FP32_TOLERANCE, f"{name}, {way}, rank {rank}"
            kv_heads = int(name.split(" ")[0]) if name[0].isdigit() else 1
            assert found[name]["kv heads"] == max(kv_heads // ranks, 1)


# --- What it costs

MEASURE = """
import ctypes, gc, json, sys, threading, time
import torch
from minillama import checkpoint, convert
from minillama.memory import proc_sizes
from test_real_checkpoints import as_rank

def now():
    return proc_sizes("/proc/self/status")["RssAnon"]

def peak_of(work):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what an earlier case left would hide what this one takes
    before = peak = now()
    over = False
    def watch():
        nonlocal peak
        while not over:
            peak = max(peak, now())
            time.sleep(0.0005)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = work()
        peak = max(peak, now())
    finally:
        over = True
        watcher.join()
    return result, peak - before

# What torch takes when it first makes a model on the meta device, some 60 MB of its own modules, is not the loader's.
checkpoint.meta_model(checkpoint.ModelArgs(dim=32, n_layers=1, n_heads=16, n_kv_heads=4, vocab_size=16))
torch.ones(2**20).bfloat16().aminmax()
said = json.loads(sys.argv[1])
for name, folder, rank, ranks, dtype in said["loads"]:
    with as_rank(rank, ranks):
        model, peak = peak_of(lambda: checkpoint.load_model(folder, dtype=dtype))
    sizes = [p.nbytes for p in model.parameters()]
    print(json.dumps({"peak": peak, "own": sum(sizes), "largest": max(sizes)}))
    del model
for name, folder, dst, to, mp in said["conversions"]:
    print(json.dumps({"peak": peak_of(lambda: convert.rewrite(folder, dst, to, mp=mp))[1]}))
"""
MIDDLE = ModelArgs(
    dim=1024, n_layers=6, n_heads=16, n_kv_heads=4, vocab_size=16000, multiple_of=256, max_seq_len=128
)  # 101 million weights, 202 MB in bf16
LARGEST = 16000 * 1024 * 2  # bytes of its embedding
# What the interpreter itself takes meanwhile (imports, tables, the pickle of a file); not measured as weights.
OVERHEAD = 8_000_000

linux_only = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One checkpoint of some 200 MB in random bf16 weights: one file, four, and Hugging Face's layout."""
    home = tmp_path_factory.mktemp("middle")
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in Transformer(MIDDLE).state_dict().items()}
    weights = {
        key: torch.empty(size, dtype=torch.bfloat16).uniform_(-1, 1, generator=generator)
        for key, size in shapes.items()
    }
    write(home / "one", MIDDLE, weights, 1)
    rewrite(home / "one", home / "four", "meta", mp=4)
    rewrite(home / "one", home / "hf", "hf", shard_bytes=60_000_000)
    return {name: str(home / name) for name in ("one", "four", "hf")}


LOADS = [
    ("one", 0, 1, None), ("four", 0, 1, None), ("hf", 0, 1, None), ("one", 1, 2, None), ("four", 1, 2, None),
    ("hf", 1, 2, None), ("hf", 5, 8, None), ("four", 7, 16, None), ("one", 0, 1, "float16"), ("hf", 0, 2, "fp32"),
]  # fmt: skip
CONVERSIONS = [("one", "hf", None), ("four", "hf", None), ("hf", "meta", 2)]


@pytest.fixture(scope="module")
def measured(middle: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Any, ...], dict[str, int]]:
    """What each case took, in a process that does nothing else; one after the other, for its start takes seconds."""
    home = tmp_path_factory.mktemp("conversions")
    loads = [(name, middle[name], *rest) for name, *rest in LOADS]
    conversions = [
        (name, middle[name], str(home / str(i)), *rest) for i, (name, *rest) in enumerate(CONVERSIONS)
    ]  # fmt: skip
    cases = json.dumps({"loads": loads, "conversions": conversions})
    places = [str(Path(__file__).parent), *filter(None, sys.path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, cases], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(zip([*LOADS, *CONVERSIONS], map(json.loads, done.stdout.splitlines())))


@linux_only
@pytest.mark.parametrize("case", LOADS, ids=str)
def test_loading_peaks_at_the_ranks_own_weights(
    measured: dict[tuple[Any, ...], dict[str, int]], case: tuple[Any, ...]
) -> None:
    """At most 1.15 x its own weights and the largest tensor, in memory that nobody else can have.

    That is anonymous memory (RssAnon). Pages of the mapped files are counted in a process's resident size as well, but
    they are the system's cache of the disk: shared by the ranks, and given up when memory is wanted.
    """
    found = measured[case]
    assert found["peak"] <= 1.15 * found["own"] + found["largest"], found
    # The promise leaves room that is not used: beside the weights there is never a second copy of a tensor.
    assert found["peak"] <= found["own"] + OVERHEAD, found
    if case == ("one", 0, 1, None):
        assert found["peak"] <= OVERHEAD, found  # all of it stays in the file
    if case in (("four", 0, 1, None), ("one", 0, 1, "float16"), ("hf", 0, 2, "fp32")):
        assert found["peak"] > 0.6 * found["own"], (
            found
        )  # or nothing was seen: merged or in another dtype, it is copied


@linux_only
@pytest.mark.parametrize("case", CONVERSIONS, ids=str)
def test_converting_holds_one_tensor_at_a_time(
    measured: dict[tuple[Any, ...], dict[str, int]], case: tuple[Any, ...]
) -> None:
    """One assembled, and a copy of it, or of its part, on the way to the file; the whole model is six times as much."""
    assert measured[case]["peak"] <= 2 * LARGEST + OVERHEAD, measured[case]
