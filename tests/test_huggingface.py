"""In and out of Hugging Face's layout. The oracle is transformers: it loads what we write, and we load what it saves.

Logits: within 1e-5 of the largest one, see test_parity.py. Weights that only change their places are compared bit for
bit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_parity import FP32_TOLERANCE, difference, random_weights
from test_real_checkpoints import as_rank, expected_share, write
from toys import make_checkpoint, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, MistralConfig
from typer.testing import CliRunner

from minillama import Llama, ModelArgs, Tokenizer, Transformer, cli
from minillama.chat import Message, encode_dialog
from minillama.checkpoint import CheckpointError, checkpoint_files, load_model, look_over
from minillama.convert import rewrite
from minillama.huggingface import feed_forward_rule, halves_of_pairs, name_of, params_of, shards_of
from minillama.huggingface_tokenizer import write_tokenizer
from minillama.weights import pairs_of_halves

pytestmark = pytest.mark.filterwarnings("ignore:no tokenizer.model")

TOKENS = torch.randint(240, (2, 33), generator=torch.Generator().manual_seed(2))
CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# name -> heads, kv heads
HEADS = {"MHA": (8, 8), "GQA 4 to 1": (8, 2), "MQA": (8, 1)}


def shape(n_heads: int = 8, n_kv_heads: int = 2, **others: Any) -> ModelArgs:
    numbers = dict(dim=8 * n_heads, n_layers=2, vocab_size=240, multiple_of=48, max_seq_len=64, norm_eps=2e-5)
    return ModelArgs(n_heads=n_heads, n_kv_heads=n_kv_heads, **numbers | others)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(TOKENS)
    return found if isinstance(found, torch.Tensor) else found.logits


def theirs(**changes: Any) -> LlamaForCausalLM:
    """A random model of transformers' own, at the scale of trained ones."""
    config = dict(
        vocab_size=240, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**config | changes))
        for p in model.parameters():
            torch.nn.init.uniform_(p, 0.5, 1.5) if p.dim() == 1 else torch.nn.init.normal_(
                p, std=1.5 * p.shape[1] ** -0.5
            )
    return model.eval()


@pytest.fixture
def meta_folder(tmp_path: Path) -> Path:
    args = shape()
    return write(tmp_path / "meta", args, random_weights(args), 1)


@pytest.fixture
def hf_folder(tmp_path: Path, meta_folder: Path) -> Path:
    """In four shards or so."""
    rewrite(meta_folder, tmp_path / "hf", "hf", shard_bytes=120_000)
    return tmp_path / "hf"


# --- The order of rows


def test_rows_of_a_head_change_places_as_rope_wants() -> None:
    rows = torch.arange(16.0)[:, None].expand(16, 3)  # two heads of 8
    found = halves_of_pairs(rows, 8)
    assert found[:, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert torch.equal(pairs_of_halves(found, 8).reshape(16, 3), rows)


def test_the_wrong_number_of_heads_for_wk_gives_other_rows() -> None:
    """The classic mistake with 70B: wk turned as if it had as many heads as wq."""
    wk = torch.randn(2 * 8, 64)
    assert not torch.equal(halves_of_pairs(wk, 8), halves_of_pairs(wk, 2))


# --- There and back


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("heads", ["MHA", "GQA 4 to 1"])
def test_meta_to_hugging_face_to_meta_is_bit_equal(tmp_path: Path, heads: str, files: int, dtype: torch.dtype) -> None:
    args = shape(*HEADS[heads], rope_theta=1e6, ffn_dim_multiplier=0.4)  # narrower than 8/3 of dim
    weights = {key: weight.to(dtype) for key, weight in random_weights(args).items()}
    src = write(tmp_path / "src", args, weights, files)
    (src / "params.json").write_text(json.dumps(json.loads((src / "params.json").read_text()) | {"rope_theta": 1e6}))
    rewrite(src, tmp_path / "hf", "hf", shard_bytes=50_000)
    rewrite(tmp_path / "hf", tmp_path / "back", "meta", mp=files)
    for i in range(files):
        name = f"consolidated.{i:02d}.pth"
        before, after = (torch.load(folder / name, weights_only=True) for folder in (src, tmp_path / "back"))
        assert list(after) == list(before)
        for key in before:
            assert after[key].dtype == dtype and torch.equal(after[key], before[key]), key
        assert zipfile.ZipFile(tmp_path / "back" / name).testzip() is None  # its checksums are right
    one, other = (look_over(folder).args for folder in (src, tmp_path / "back"))
    for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "vocab_size", "norm_eps", "max_seq_len"):
        assert getattr(one, name) == getattr(other, name), name
    assert (one.rope_theta, other.rope_theta) == (1e6, 1e6)


@pytest.mark.parametrize("files", [1, 2, 4])
def test_meta_files_are_cut_again(tmp_path: Path, files: int) -> None:
    """As Llama 2's are, also where the source was cut as Llama 3's; params.json stays as it was."""
    args = shape(8, 4)
    weights = random_weights(args)
    src = write(tmp_path / "src", args, weights, 2, embedding=0)
    expected = write(tmp_path / "expected", args, weights, files)
    rewrite(src, tmp_path / "dst", "meta", mp=files)
    assert len(checkpoint_files(tmp_path / "dst")) == files
    for path in checkpoint_files(expected):
        before, after = torch.load(path), torch.load(tmp_path / "dst" / path.name, weights_only=True, mmap=True)
        assert all(torch.equal(after[key], before[key]) for key in before)
    assert json.loads((tmp_path / "dst" / "params.json").read_text()) == json.loads((src / "params.json").read_text())


def test_a_dtype_is_converted_on_the_way_and_one_too_small_is_refused(tmp_path: Path, meta_folder: Path) -> None:
    for to in ("hf", "meta"):
        rewrite(meta_folder, tmp_path / f"{to} bf16", to, dtype="bf16")
        found, whole = load_model(tmp_path / f"{to} bf16").state_dict(), load_model(meta_folder).state_dict()
        assert all(torch.equal(found[key], whole[key].bfloat16()) for key in whole)
    weights = torch.load(meta_folder / "consolidated.00.pth")
    weights["output.weight"][3, 3] = 1e6  # fp16 ends at 65504
    torch.save(weights, meta_folder / "consolidated.00.pth")
    with pytest.raises(CheckpointError, match="output.weight.*float16"):
        rewrite(meta_folder, tmp_path / "dst", "hf", dtype="fp16")
    assert not (tmp_path / "dst").exists()


# --- transformers reads ours


@pytest.mark.parametrize("shard_bytes", [None, 60_000])
@pytest.mark.parametrize("heads", HEADS)
def test_transformers_computes_the_same_from_what_we_write(tmp_path: Path, heads: str, shard_bytes: int | None) -> None:
    args = shape(*HEADS[heads], rope_theta=5000.0)
    src = write(tmp_path / "src", args, random_weights(args), 1)
    (src / "params.json").write_text(json.dumps(json.loads((src / "params.json").read_text()) | {"rope_theta": 5e3}))
    rewrite(src, tmp_path / "hf", "hf", shard_bytes=shard_bytes)
    assert (tmp_path / "hf" / INDEX).exists() == (shard_bytes is not None)
    other, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values()), info  # nothing missing, nothing over
    assert type(other) is LlamaForCausalLM and other.config.rope_parameters["rope_theta"] == 5e3
    expected = logits(Transformer.from_checkpoint(src))
    assert expected.abs().max() > 5
    assert difference(logits(other), expected) <= FP32_TOLERANCE
    assert torch.equal(logits(Transformer.from_checkpoint(tmp_path / "hf")), expected)


SCALINGS = [
    {"rope_type": "linear", "factor": 4.0}, {"rope_type": "ntk", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_scaled_rope_goes_there_and_back(tmp_path: Path, meta_folder: Path, scaling: dict[str, Any]) -> None:
    params = json.loads((meta_folder / "params.json").read_text())
    unscaled = logits(Transformer.from_checkpoint(meta_folder))
    (meta_folder / "params.json").write_text(json.dumps(params | {"rope_scaling": scaling}))
    expected = logits(Transformer.from_checkpoint(meta_folder))
    assert difference(unscaled, expected) > 1e-3
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rewrite(meta_folder, tmp_path / "hf", "hf")
        rewrite(tmp_path / "hf", tmp_path / "back", "meta")
    about = [str(one.message) for one in said if "RoPE scaling" in str(one.message)]
    assert len(about) == (scaling["rope_type"] == "ntk") and all("larger rope_theta" in one for one in about)
    assert difference(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "hf")), expected) <= FP32_TOLERANCE
    assert difference(logits(Transformer.from_checkpoint(tmp_path / "back")), expected) <= FP32_TOLERANCE


TEXTS = [
    "Once upon a time", " a space first", "  two  spaces ", "", "\n\nlines\n", "tab\there", "a ball! 1234567 89",
    "[INST] Hi [/INST]", "日本語 🔥 é", "\ufb01\u212b", *(" " * n + "x" for n in range(1, 40)), "\u2581 already",
]  # fmt: skip


@pytest.fixture(params=["toy", "llama2"])
def ours(tmp_path: Path, request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "toy":
        make_tokenizer(tmp_path / "tokenizer.model")
    else:
        shared = request.getfixturevalue("shared_data")
        shutil.copy(shared / "tokenizers" / "llama2" / "tokenizer.model", tmp_path)
    return Tokenizer(tmp_path / "tokenizer.model")


def test_transformers_splits_text_as_we_do(tmp_path: Path, ours: Tokenizer) -> None:
    assert write_tokenizer(tmp_path, ours, 64) is None
    other = AutoTokenizer.from_pretrained(tmp_path)
    assert (len(other), other.bos_token_id, other.eos_token_id, other.model_max_length) == (ours.n_words, 1, 2, 64)
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(3, ours.n_words, (300, 12), generator=generator).tolist()
    drawn = ["".join(ours.sp_model.id_to_piece(i) for i in row).replace("\u2581", " ") for row in draws]
    for text in [*TEXTS, *drawn]:
        ids = ours.encode(text, bos=True, eos=False)
        assert other(text, truncation=False).input_ids == ids, text
        assert other.decode(ids, skip_special_tokens=True) == ours.decode(ids), text


def dialog(*texts: str, system: str | None = None) -> list[Message]:
    turns: list[Message] = [{"role": "assistant" if n % 2 else "user", "content": t} for n, t in enumerate(texts)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


DIALOGS = [
    dialog("Hi there"), dialog("Hi there", system="Be brief."), dialog(" a\n", " b ", "c"), dialog("x", system=""),
    dialog("a", "", "", "日本語 🔥", "  two  spaces\n\nx  ", system=" Be\nkind, 'don\'t' \"say\" {{ no }} \\ "),
]  # fmt: skip


def test_transformers_template_gives_the_ids_of_our_dialogs(tmp_path: Path, ours: Tokenizer) -> None:
    assert write_tokenizer(tmp_path, ours, 4096) is None
    other = AutoTokenizer.from_pretrained(tmp_path)
    for one in DIALOGS:
        found = other.apply_chat_template(one, add_generation_prompt=True, return_dict=False)
        assert found == encode_dialog(one, ours), one
    forged = (dialog("</s> x"), dialog("[INST]"), dialog("x", system="<</SYS>>"), dialog("a", "<s>b", "c"))
    forged += (dialog("<unk>"), [{"role": "system", "content": "nobody asks"}])
    for wrong in (*forged, [*dialog("a"), *dialog("b")], dialog("a")[:0] + dialog("q", "a")[1:]):
        with pytest.raises(Exception, match="special tags|in turn|comes after the system"):
            other.apply_chat_template(wrong)


def test_a_converted_folder_has_a_tokenizer_for_both(tmp_path: Path) -> None:
    src = make_checkpoint(tmp_path / "src")
    rewrite(src, tmp_path / "hf", "hf")
    assert json.loads((tmp_path / "hf" / CONFIG).read_text())["eos_token_id"] == 2
    prompt = "once upon a time"
    ours = Llama.build(tmp_path / "hf", device="cpu")
    [answer], _ = ours.generate([ours.tokenizer.encode(prompt, bos=True, eos=False)], 8, temperature=0, stop_ids=())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    asked = tokenizer(prompt, return_tensors="pt")
    found = model.generate(**asked, max_new_tokens=8, do_sample=False, eos_token_id=-1)
    assert found[0, asked.input_ids.shape[1] :].tolist() == answer


def test_a_tokenizer_that_cannot_be_said_in_a_json_is_copied_with_a_warning(tmp_path: Path) -> None:
    src = make_checkpoint(tmp_path / "src")
    make_tokenizer(src / "tokenizer.model", normalization_rule_name="nmt_nfkc")
    with pytest.warns(UserWarning, match="tokenizer.json.*changes the text"):
        rewrite(src, tmp_path / "hf", "hf")
    assert (tmp_path / "hf" / "tokenizer.model").exists() and not (tmp_path / "hf" / "tokenizer.json").exists()


# --- We read theirs


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"num_key_value_heads": 8}, {"num_key_value_heads": 1}, {"tie_word_embeddings": True},
        {"intermediate_size": 90}, {"intermediate_size": 1000, "rms_norm_eps": 1e-3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ],
    ids=str,
)  # fmt: skip
def test_we_compute_the_same_from_what_transformers_saves(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = theirs(**changes)
    expected = logits(model)
    assert expected.abs().max() > 3
    for folder, size in (("whole", "1GB"), ("shards", "100KB")):
        model.save_pretrained(tmp_path / folder, max_shard_size=size)
        found = Transformer.from_checkpoint(tmp_path / folder)
        assert difference(logits(found), expected) <= FP32_TOLERANCE
    assert (tmp_path / "shards" / INDEX).exists() and not (tmp_path / "whole" / INDEX).exists()
    rewrite(tmp_path / "shards", tmp_path / "meta", "meta")
    assert difference(logits(Transformer.from_checkpoint(tmp_path / "meta")), expected) <= FP32_TOLERANCE


@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 2.0}], ids=str)
def test_both_spellings_of_rope_are_read(tmp_path: Path, scaling: dict[str, Any] | None) -> None:
    """transformers 4: rope_theta and rope_scaling side by side; 5: both in rope_parameters."""
    new = {"rope_theta": 777.0, **({"rope_type": "linear", "factor": 2.0} if scaling else {"rope_type": "default"})}
    model = theirs(rope_parameters=new)
    model.save_pretrained(tmp_path / "five")
    config = json.loads((tmp_path / "five" / CONFIG).read_text())
    assert config.pop("rope_parameters")["rope_theta"] == 777
    shutil.copytree(tmp_path / "five", tmp_path / "four")
    (tmp_path / "four" / CONFIG).write_text(json.dumps(config | {"rope_theta": 777.0, "rope_scaling": scaling}))
    for folder in ("four", "five"):
        assert difference(logits(Transformer.from_checkpoint(tmp_path / folder)), logits(model)) <= FP32_TOLERANCE


def test_what_a_config_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"model_type": "llama"}')
    args, meant = ModelArgs.from_params(params_of(tmp_path / CONFIG), tmp_path / CONFIG), LlamaConfig()
    assert (args.dim, args.n_layers, args.n_heads) == (
        meant.hidden_size, meant.num_hidden_layers, meant.num_attention_heads
    )  # fmt: skip
    assert (args.n_kv_heads, args.vocab_size, args.norm_eps) == (32, meant.vocab_size, meant.rms_norm_eps)
    assert (args.hidden_dim, args.max_seq_len) == (meant.intermediate_size, meant.max_position_embeddings)
    assert args.rope_theta == meant.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("dim", "width", "rule"),
    [
        (4096, 11008, (256, None)), (5120, 13824, (256, None)), (8192, 22016, (256, None)), (8192, 28672, (4096, 1.3)),
        (4096, 14336, (1024, 1.3)), (2048, 8192, (256, 1.5)), (64, 90, None), (64, 1000, None), (64, 1, None),
    ],
)  # fmt: skip
def test_any_feed_forward_width_is_said_in_metas_terms(dim: int, width: int, rule: tuple[int, Any] | None) -> None:
    found = feed_forward_rule(dim, width, Path(CONFIG))
    assert rule is None or found == rule
    args = ModelArgs(dim=dim, n_heads=dim // 32, multiple_of=found[0], ffn_dim_multiplier=found[1], vocab_size=8)
    assert args.hidden_dim == width


def test_a_mistral_without_sliding_window_is_a_llama(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    said = MistralConfig(
        **{k: v for k, v in model.config.to_dict().items() if k not in ("model_type", "architectures")}
    )
    (tmp_path / CONFIG).write_text(json.dumps(said.to_dict() | {"model_type": "mistral", "sliding_window": None}))
    expected = logits(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert difference(logits(Transformer.from_checkpoint(tmp_path)), expected) <= FP32_TOLERANCE


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_get_their_shares_of_a_hugging_face_folder(meta_folder: Path, hf_folder: Path, ranks: int) -> None:
    """2 kv heads, so 4 and 8 ranks hold copies. What they compute is in test_real_checkpoints.py."""
    args, weights = shape(), torch.load(meta_folder / "consolidated.00.pth")
    assert len(checkpoint_files(hf_folder)) > 2
    for rank in range(ranks):
        with as_rank(rank, ranks):
            found = load_model(hf_folder).state_dict()
        for key, weight in weights.items():
            assert torch.equal(found[key], expected_share(key, weight, args, rank, ranks)), f"{key}, rank {rank}"


def test_metas_files_are_taken_where_both_layouts_lie_in_one_folder(meta_folder: Path, hf_folder: Path) -> None:
    for path in hf_folder.iterdir():
        shutil.copy(path, meta_folder)
    assert [path.name for path in checkpoint_files(meta_folder)] == ["consolidated.00.pth"]


# --- Folders that cannot be

UNSUPPORTED: dict[str, Any] = {
    "model_type": "gpt2", "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", "head_dim": 16,
    "quantization_config": {"quant_method": "awq"}, "rope_scaling": {"rope_type": "longrope"},
    "partial_rotary_factor": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_what_is_no_llama_is_refused_with_a_sentence(hf_folder: Path, key: str) -> None:
    config = json.loads((hf_folder / CONFIG).read_text())
    (hf_folder / CONFIG).write_text(json.dumps(config | {key: UNSUPPORTED[key]}))
    with pytest.raises(
        CheckpointError, match=f"{CONFIG}: .*{key.removeprefix('rope_').replace('scaling', 'longrope')}"
    ):
        Transformer.from_checkpoint(hf_folder)


def test_a_mistral_with_a_sliding_window_is_refused(hf_folder: Path) -> None:
    config = json.loads((hf_folder / CONFIG).read_text()) | {"model_type": "mistral"}
    for window in ({}, {"sliding_window": 4096}):  # silent about it, a Mistral has one
        (hf_folder / CONFIG).write_text(json.dumps(config | window))
        with pytest.raises(CheckpointError, match="sliding_window is 4096"):
            Transformer.from_checkpoint(hf_folder)


def first_shard(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[0]


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(first_shard(folder))
    change(tensors)
    save_file(tensors, first_shard(folder))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


EMBED = "model.embed_tokens.weight"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a shard missing": (lambda f: first_shard(f).unlink(), "lacks model-00001-of-.*finish the download"),
    "no index": (lambda f: (f / INDEX).unlink(), f"no {INDEX}"),
    "no config": (lambda f: (f / CONFIG).unlink(), f"no {CONFIG}"),
    "a stray shard": (
        lambda f: shutil.copy(first_shard(f), f / "model-00001-of-00099.safetensors"), "model-00001-of-00099.*another"
    ),
    "whole and shards": (lambda f: shutil.copy(first_shard(f), f / WHOLE), "shards as well"),
    "a shard cut short": (lambda f: os.truncate(first_shard(f), 5000), "model-00001.*download it again"),
    "an empty shard": (lambda f: os.truncate(first_shard(f), 0), "model-00001.*download it again"),
    "a pointer of Git LFS": (
        lambda f: first_shard(f).write_text("version https://git-lfs.github.com/spec/v1"), "git lfs pull"
    ),
    "a name out of the folder": (
        lambda f: edit(f / INDEX, lambda said: said["weight_map"].update({EMBED: "../elsewhere.safetensors"})),
        "elsewhere.*expected files of this folder",
    ),
    "an index of a list": (lambda f: (f / INDEX).write_text("[]"), "holds a list"),
    "an index that is no JSON": (lambda f: (f / INDEX).write_text("{"), "not valid JSON"),
    "a config that is no JSON": (lambda f: (f / CONFIG).write_text("<html>"), "not valid JSON"),
    "a tensor more": (lambda f: changed(f, lambda t: t.update({"foo.bias": t[EMBED][0].clone()})), "unexpected foo"),
    "a tensor less": (lambda f: changed(f, lambda t: t.pop(EMBED)), EMBED),
    "another shape": (lambda f: changed(f, lambda t: t.update({EMBED: t[EMBED][:9].clone()})), "240.* 9 rows"),
    "another dtype": (lambda f: changed(f, lambda t: t.update({EMBED: t[EMBED].double()})), "is torch.float64"),
    "more layers": (lambda f: edit(f / CONFIG, lambda said: said.update(num_hidden_layers=10**8)), "num_hidden_layers"),
    "fewer layers": (lambda f: edit(f / CONFIG, lambda said: said.update(num_hidden_layers=1)), "num_hidden_layers"),
    "tied, and not the same": (
        lambda f: edit(f / CONFIG, lambda said: said.update(tie_word_embeddings=True)), "tie_word_embeddings.*lm_head"
    ),
    "a width that is text": (lambda f: edit(f / CONFIG, lambda said: said.update(hidden_size="64")), "hidden_size"),
    "no heads": (lambda f: edit(f / CONFIG, lambda said: said.update(num_attention_heads=0)), "expected .* 64 / 0"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused_with_a_sentence(hf_folder: Path, damage: str) -> None:
    change, said = DAMAGE[damage]
    change(hf_folder)
    with pytest.raises((ValueError, FileNotFoundError), match=said) as caught:
        Transformer.from_checkpoint(hf_folder)
    assert len(str(caught.value)) < 1200


def test_a_pickle_of_hugging_faces_is_told_what_would_do(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(FileNotFoundError, match="pytorch_model.bin"):
        Transformer.from_checkpoint(tmp_path)


def test_a_folder_of_both_layouts_is_read_as_metas_and_says_so_once(meta_folder: Path, hf_folder: Path) -> None:
    expected = logits(Transformer.from_checkpoint(hf_folder))
    weights = torch.load(meta_folder / "consolidated.00.pth")
    torch.save(weights | {"norm.weight": weights["norm.weight"] * 2}, hf_folder / "consolidated.00.pth")
    shutil.copy(meta_folder / "params.json", hf_folder)
    with pytest.warns(UserWarning, match=r"consolidated.*are read: to have model\*\.safetensors.*move") as said:
        found = logits(Transformer.from_checkpoint(hf_folder))
    assert len(said) == 1 and torch.allclose(found, 2 * expected)
    (hf_folder / "consolidated.00.pth").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(logits(Transformer.from_checkpoint(hf_folder)), expected)


def test_tables_of_early_files_are_passed_over(hf_folder: Path) -> None:
    expected = logits(Transformer.from_checkpoint(hf_folder))
    table = "model.layers.0.self_attn.rotary_emb.inv_freq"
    changed(hf_folder, lambda tensors: tensors.update({table: torch.rand(4)}))
    edit(hf_folder / INDEX, lambda said: said["weight_map"].update({table: first_shard(hf_folder).name}))
    assert torch.equal(logits(Transformer.from_checkpoint(hf_folder)), expected)


# --- Converting


def test_names_of_weights_are_those_of_transformers() -> None:
    with torch.device("meta"):
        ours, others = Transformer(shape()), theirs().state_dict()
    assert sorted(map(name_of, ours.state_dict())) == sorted(others)


def test_shards_are_filled_in_order() -> None:
    assert shards_of({"a": 3, "b": 3, "c": 9, "d": 1, "e": 1}, 6) == [["a", "b"], ["c"], ["d", "e"]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(to="gguf"), "to is 'gguf'; expected meta or hf"), (dict(to="hf", mp=2), "mp is for Meta's"),
        (dict(to="meta", shard_bytes=5), "shard size is for"), (dict(to="meta", mp=4), "mp is 4.*into 1, 2 equal"),
        (dict(to="meta", mp=0.5), "mp is 0.5"), (dict(to="hf", dtype="int8"), "dtype 'int8'"),
        (dict(to="hf", shard_bytes=-1), "shard size is -1"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_named_before_anything_is_written(
    tmp_path: Path, meta_folder: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        rewrite(meta_folder, tmp_path / "new" / "dst", **options)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_there_is_not_written_over(meta_folder: Path, hf_folder: Path) -> None:
    for to in ("hf", "meta"):
        with pytest.raises(ValueError, match="is there already"):
            rewrite(meta_folder, hf_folder, to)


class Stopped(Exception):
    pass


def stopping(keys: Iterable[str]) -> Iterator[str]:
    for n, key in enumerate(keys):
        if n == 9:
            raise Stopped
        yield key


@pytest.mark.parametrize("to", ["hf", "meta"])
def test_a_conversion_that_is_ended_leaves_nothing_behind(tmp_path: Path, meta_folder: Path, to: str) -> None:
    with pytest.raises(Stopped):
        rewrite(meta_folder, tmp_path / "dst", to, progress=stopping)
    assert [path.name for path in tmp_path.iterdir()] == ["meta"]


KILLED = """
import os, signal, sys
from minillama.convert import rewrite

def killing(keys):
    for n, key in enumerate(keys):
        if n == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield key

rewrite(sys.argv[1], sys.argv[2], sys.argv[3], progress=killing)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
@pytest.mark.parametrize("to", ["hf", "meta"])
def test_a_killed_conversion_leaves_no_folder_that_loads(tmp_path: Path, meta_folder: Path, to: str) -> None:
    """Killed at the last weight, when all files but the one that makes sense of them are nearly there."""
    n = len(torch.load(meta_folder / "consolidated.00.pth"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, meta_folder, tmp_path / "dst", to, n - 1]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "dst").exists()
    (left,) = tmp_path.glob(".dst-*/whole")  # hidden, and nobody's name; even so
    assert list(left.iterdir())
    with pytest.raises((ValueError, FileNotFoundError)):
        Transformer.from_checkpoint(left)


def run(*args: object) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def test_the_command_converts_both_ways_and_info_reads_both(tmp_path: Path) -> None:
    src = make_checkpoint(tmp_path / "src")
    said = run("convert", src, tmp_path / "hf", "--to", "hf", "--shard-size", "0.00003", "--json")
    assert (said.exit_code, said.stderr) == (0, "")
    files = len(checkpoint_files(tmp_path / "hf"))
    found = json.loads(said.stdout)
    assert (found["layout"], found["files"]) == ("hf", files) and files > 2 and found["dst_bytes"] > 0
    said = run("convert", tmp_path / "hf", tmp_path / "meta", "--to", "meta", "--mp", "2", "--dtype", "bf16")
    assert said.exit_code == 0 and "2 files" in said.stdout
    shapes = []
    for folder in (src, tmp_path / "hf", tmp_path / "meta"):
        found = json.loads(run("info", "--ckpt-dir", folder, "--json").stdout)
        assert found["files"] == len(checkpoint_files(folder))
        shapes.append({key: found[key] for key in ("dim", "n_heads", "n_kv_heads", "hidden_dim", "n_params")})
    assert shapes[0] == shapes[1] == shapes[2]
    ask = ("once upon", "--max-gen-len", "4", "--temperature", "0", "--device", "cpu")
    one, other = (run("complete", *ask, "--ckpt-dir", folder).stdout for folder in (src, tmp_path / "hf"))
    assert one == other and one


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--quantize int8 or int4, or --to"), (("--to", "hf", "--quantize", "int8"), "not both"),
        (("--to", "gguf"), "--to is 'gguf'"), (("--quantize", "int8", "--mp", "2"), "go with --to"),
        (("--to", "hf", "--shard-size", "0"), "--shard-size is 0"), (("--to", "hf", "--mp", "2"), "mp is for Meta's"),
    ],
)  # fmt: skip
def test_the_command_names_options_that_do_not_fit(
    tmp_path: Path, meta_folder: Path, options: tuple[str, ...], said: str
) -> None:
    result = run("convert", meta_folder, tmp_path / "dst", *options)
    assert result.exit_code == 2 and said in " ".join(result.stderr.split()), result.stderr
    assert not (tmp_path / "dst").exists()
