"""Grouped-query attention: chapter 03, `notebooks/03_grouped_query_attention.ipynb`.

Vaswani et al., "Attention Is All You Need" (2017), equation 1; Ainslie et al., "GQA" (2023) for the shared kv heads.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from minillama.args import ModelArgs
from minillama.rope import apply_rotary_emb


class Remembers(Protocol):
    """What attention asks of a cache: take the new keys and values, return all that may be looked at."""

    def update(
        self, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class Attention(nn.Module):
    """H query heads look at K kv heads; H/K neighbouring query heads share one."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.head_dim = args.head_dim
        self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * args.head_dim, args.dim, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        freqs_cis: torch.Tensor,
        mask: torch.Tensor | None,
        cache: Remembers | None = None,
    ) -> torch.Tensor:
        """x: (B, T, D) -> (B, T, D).

        positions: where the new tokens stand, (T,), or (B, T) where rows are at different places.
        mask: True where a query may look at a key, broadcast to (B, H, T, S); None: the new tokens are all there is
        and are causal (T = S), or there is one new token and it sees everything (T = 1).
        cache: keeps keys and values between calls; None: only the new tokens are seen.
        """
        B, T, _ = x.shape
        # Heads are counted from the projections' own width: a rank of a parallel run holds only some of them.
        xq = self.wq(x).view(B, T, -1, self.head_dim)  # (B, T, H*h) -> (B, T, H, h)
        xk = self.wk(x).view(B, T, -1, self.head_dim)  # (B, T, K*h) -> (B, T, K, h)
        xv = self.wv(x).view(B, T, -1, self.head_dim)  # (B, T, K*h) -> (B, T, K, h)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis)

        if cache is None:
            keys, values = xk.transpose(1, 2), xv.transpose(1, 2)  # (B, T, K, h) -> (B, K, T, h)
        else:
            keys, values = cache.update(xk, xv, positions)  # (B, K, S, h)

        if T == 1:
            # The queries of a group are neighbours: as rows of one matrix they read their kv head once, not each.
            group = xq.view(B, keys.shape[1], -1, self.head_dim)  # (B, 1, H, h) -> (B, K, H/K, h)
            if group.shape[2] == 1 and x.is_cpu and x.dtype != torch.float32:
                group = group.expand(-1, -1, 2, -1)  # torch's kernel takes nearly twice as long for one row as for two
            out = F.scaled_dot_product_attention(group, keys, values, attn_mask=mask)
            out = out[:, :, : xq.shape[2] // keys.shape[1]]
            return self.wo(out.reshape(B, 1, -1))  # (B, K, H/K, h) -> (B, 1, H*h)
        out = F.scaled_dot_product_attention(
            xq.transpose(1, 2),  # (B, T, H, h) -> (B, H, T, h)
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,  # query head i uses kv head i // (H/K), and no copy of the kv heads is made
        )
        return self.wo(out.transpose(1, 2).flatten(2))  # (B, H, T, h) -> (B, T, H*h)
