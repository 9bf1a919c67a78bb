"""The arithmetic of memory against what is really allocated."""

from __future__ import annotations

import pytest
import torch

from minillama.args import ModelArgs
from minillama.kv_cache import KVCache
from minillama.memory import gb, kv_cache_bytes, number_bytes, weight_bytes
from minillama.transformer import Transformer

SMALL = [
    ModelArgs(dim=64, n_layers=3, n_heads=8, n_kv_heads=2, vocab_size=300, multiple_of=32, max_seq_len=128),
    ModelArgs(dim=48, n_layers=1, n_heads=4, vocab_size=77, multiple_of=16, ffn_dim_multiplier=1.3, max_seq_len=64),
]


@pytest.mark.parametrize("args", SMALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weight_bytes_are_those_of_a_real_model(args, dtype):
    model = Transformer(args).to(dtype)
    assert weight_bytes(args, dtype) == sum(p.nbytes for p in model.parameters())
    assert args.n_params == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("args", SMALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch_size", "seq_len"), [(1, 1), (3, 17), (2, 64)])
def test_kv_cache_bytes_are_those_of_a_real_cache(args, dtype, batch_size, seq_len):
    cache = KVCache.for_model(Transformer(args).to(dtype), batch_size, seq_len)
    assert kv_cache_bytes(args, batch_size, seq_len, dtype) == cache.nbytes


@pytest.mark.parametrize(
    ("name", "n_params"), [("7B", 6_738_415_616), ("13B", 13_015_864_320), ("70B", 68_976_648_192)]
)
def test_presets_have_the_published_number_of_parameters(name, n_params):
    args = ModelArgs.preset(name)
    with torch.device("meta"):
        model = Transformer(args)
    assert args.n_params == n_params == sum(p.numel() for p in model.parameters())
    assert weight_bytes(args, torch.float16) == 2 * n_params


def test_the_70b_cache_of_32_full_contexts_is_42_9_gb():
    args = ModelArgs.preset("70B")
    whole = kv_cache_bytes(args, 32, 4096, torch.float16)
    assert whole == 42_949_672_960
    assert gb(whole) == "42.9 GB"
    per_rank = kv_cache_bytes(args, 32, 4096, torch.float16, ranks=8)
    assert per_rank * 8 == whole
    assert gb(per_rank) == "5.37 GB"


def test_weights_of_all_ranks_are_one_model_and_a_copy_of_the_norms_for_each_further_rank():
    args = ModelArgs.preset("70B")
    norms = sum(2 * args.dim for _ in range(args.n_layers)) + args.dim
    assert 8 * weight_bytes(args, 2, ranks=8) == weight_bytes(args, 2) + 7 * norms * 2


@pytest.mark.parametrize("ranks", [0, 3])
def test_ranks_that_cannot_share_the_model_are_refused_with_the_number(ranks):
    with pytest.raises(ValueError, match=str(ranks)):
        weight_bytes(ModelArgs.preset("70B"), 2, ranks=ranks)
    with pytest.raises(ValueError, match=str(ranks)):
        kv_cache_bytes(ModelArgs.preset("70B"), 1, 1, 2, ranks=ranks)


def test_a_dtype_and_its_number_of_bytes_mean_the_same():
    assert number_bytes(torch.float32) == number_bytes(4) == 4
    assert number_bytes(torch.bfloat16) == number_bytes(torch.float16) == 2


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1.00 kB"), (1_040_128, "1.04 MB"), (9_994, "9.99 kB"),
        (9_996, "10.0 kB"), (99_960, "100 kB"), (999_499, "999 kB"), (999_600, "1.00 MB"), (13_476_831_232, "13.5 GB"),
        (137_953_296_384, "138 GB"), (999_999_999_999, "1.00 TB"), (5 * 10**18, "5000 PB"),
    ],
)  # fmt: skip
def test_sizes_are_written_with_three_digits(n_bytes, text):
    assert gb(n_bytes) == text
