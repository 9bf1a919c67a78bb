"""What the tests share: the test data beside the checkout, and a small model with random weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillama import Llama, ModelArgs, Tokenizer, Transformer

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what is expected is a CPU's; for a GPU there is tools/gpu_check.sh
torch.set_num_threads(1)  # pytest's workers share the cores; the models here are too small to gain from more


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with checkpoints/, tokenizers/ and cases/ that MINILLAMA_TEST_DATA names."""
    name = os.environ.get("MINILLAMA_TEST_DATA")
    if not name:
        pytest.skip("set MINILLAMA_TEST_DATA to the folder with checkpoints/, tokenizers/ and cases/")
    folder = Path(name)
    missing = [part for part in ("checkpoints", "tokenizers", "cases") if not (folder / part).is_dir()]
    if missing:  # a mistake in the setting: skipping would hide it
        pytest.fail(f"MINILLAMA_TEST_DATA is {folder}, which lacks {', '.join(missing)}")
    return folder


@pytest.fixture(scope="session")
def stories260k(shared_data: Path) -> Llama:
    """A real trained Llama: dim 64, 5 layers, 8 heads, 4 kv heads, 512 pieces."""
    return Llama.build(shared_data / "checkpoints" / "stories260K")


@pytest.fixture(scope="session")
def llama2_tokenizer(shared_data: Path) -> Tokenizer:
    """Llama 2's own tokenizer, 32,000 pieces."""
    return Tokenizer(shared_data / "tokenizers" / "llama2" / "tokenizer.model")


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Transformer]:
    """`tiny_model(seed=0, **overrides)`: random fp32 weights, the same for the same arguments.

    overrides: fields of ModelArgs, such as n_kv_heads=1.
    """

    def make(seed: int = 0, **overrides: Any) -> Transformer:
        shape = dict(dim=64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=32000, multiple_of=32, max_seq_len=256)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Transformer(ModelArgs(**{**shape, **overrides}))
            for p in model.parameters():
                if p.dim() == 1:  # norms start at 1, where a forgotten weight would go unnoticed
                    torch.nn.init.uniform_(p, 0.5, 1.5)
        return model.eval()

    return make
