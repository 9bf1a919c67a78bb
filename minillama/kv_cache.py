"""The KV cache: chapter 04, `notebooks/04_kv_cache.ipynb`.

Keys and values of past tokens never change (attention is causal), so each is computed once and kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from minillama.args import whole_number

if TYPE_CHECKING:
    from minillama.transformer import Transformer


class LayerCache:
    """Keys and values of one layer: two tensors (B, K, S_max, h); the slot of a token is its position."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor):
        self.keys = keys
        self.values = values

    def window(self, rows: int, end: int) -> LayerCache:
        """The first `rows` rows and `end` slots, as views: what is not filled is never read."""
        return LayerCache(self.keys[:rows, :, :end], self.values[:rows, :, :end])

    def update(self, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values, each (B, T, K, h), at their positions; return all slots, (B, K, S, h).

        positions: (T,), or (B, T) where rows are at different places. Rows that are shorter than the longest see slots
        beyond their own end; the mask hides those, and the row overwrites them when it gets there. A cache is for
        inference: no gradient goes through it (`cache=None` is the pass to train with).
        """
        if positions.dim() == 1:
            self.keys.index_copy_(2, positions, xk.detach().transpose(1, 2))
            self.values.index_copy_(2, positions, xv.detach().transpose(1, 2))
        else:
            rows = torch.arange(len(positions), device=xk.device)[:, None]  # (B, 1)
            self.keys[rows, :, positions] = xk.detach()
            self.values[rows, :, positions] = xv.detach()
        return self.keys, self.values


class KVCache:
    """One LayerCache a layer, made for one request and sized to it: 2 * L * B * S * K * h numbers."""

    @torch.inference_mode(False)  # a stream may begin inside `inference_mode` and go on outside
    def __init__(
        self,
        n_layers: int,
        batch_size: int,
        max_len: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.batch_size = whole_number("a cache's batch_size", batch_size)
        self.max_len = whole_number("a cache's max_len", max_len)
        shape = (batch_size, n_kv_heads, max_len, head_dim)
        # Zeros, not empty: a masked slot is multiplied by 0, and 0 times a leftover NaN would be NaN.
        self.layers = [
            LayerCache(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(whole_number("a cache's n_layers", n_layers))
        ]

    @classmethod
    def for_model(cls, model: Transformer, batch_size: int, max_len: int) -> KVCache:
        """A cache that fits `model`: its layers, dtype, device, and the kv heads that this rank holds."""
        limit = model.args.max_seq_len
        if whole_number("a cache's max_len", max_len) > limit:
            raise ValueError(f"a cache of length {max_len} is longer than the model's max_seq_len {limit}")
        n_layers, n_kv_heads, head_dim, dtype, device = _needs(model)
        return cls(n_layers, batch_size, max_len, n_kv_heads, head_dim, dtype, device)

    def window(self, rows: int, end: int) -> list[LayerCache]:
        """`LayerCache.window` of every layer."""
        return [layer.window(rows, end) for layer in self.layers]

    def move_row(self, source: int, target: int, end: int) -> None:
        """Copy the first `end` slots of one row over another's: the last row takes the place of one that is done."""
        for layer in self.layers:
            layer.keys[target, :, :end] = layer.keys[source, :, :end]
            layer.values[target, :, :end] = layer.values[source, :, :end]

    def check_room(self, model: Transformer, batch_size: int, end: int) -> None:
        """Raise ValueError, before anything is written, if `batch_size` rows up to position `end` do not fit."""
        keys = self.layers[0].keys
        made_for = (len(self.layers), keys.shape[1], keys.shape[3], keys.dtype, keys.device)
        if made_for != _needs(model):
            raise ValueError(
                f"the cache has layers, kv heads, head_dim, dtype and device {made_for}, the model {_needs(model)}; "
                "make it with KVCache.for_model"
            )
        if batch_size != self.batch_size:
            raise ValueError(f"a batch of {batch_size} rows does not fit the cache, made for {self.batch_size}")
        if end > self.max_len:
            raise ValueError(f"{end} tokens do not fit in the cache, which was made for {self.max_len}")

    @property
    def nbytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)


def _needs(model: Transformer) -> tuple[int, int, int, torch.dtype, torch.device]:
    """Layers, kv heads (those that this rank holds), head_dim, dtype and device of a cache for `model`."""
    wk: Any = model.get_submodule("layers.0.attention.wk")
    rows = wk.weight.shape[0] if hasattr(wk, "weight") else wk.out_features  # (K*h, D); quantized ones hide theirs
    norm = model.norm.weight
    return len(model.layers), rows // model.args.head_dim, model.args.head_dim, norm.dtype, norm.device
