"""Grouped-query attention: chapter 03, `notebooks/03_grouped_query_attention.ipynb`.

Vaswani et al., "Attention Is All You Need" (2017), equation 1; Ainslie et al., "GQA" (2023) for the shared kv heads.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from minillama.args import ModelArgs
from minillama.rope import apply_rotary_emb


class Remembers(Protocol):
    """What attention asks of a cache: take the new keys and values, return all that may be looked at."""

    def update(
        self, xk: torch.Tensor, xv: torch.Tensor, start_pos: int | torch.Tensor
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
        start_pos: int | torch.Tensor,
        freqs_cis: torch.Tensor,
        mask: torch.Tensor | None,
        cache: Remembers | None = None,
    ) -> torch.Tensor:
        """x: (B, T, D) -> (B, T, D).

        start_pos: position of the first new token, an int or one for each row, (B,).
        mask: True where a query may look at a key, broadcast to (B, H, T, S); None: the new tokens are all there is
        and are causal (T = S), or there is one new token and it sees everything (T = 1).
        cache: keeps keys and values between calls; None: only the new tokens are seen.
        """
        # Heads are counted from the projections' own width: a rank of a parallel run holds only some of them.
        xq = rearrange(self.wq(x), "B T (H h) -> B T H h", h=self.head_dim)
        xk = rearrange(self.wk(x), "B T (K h) -> B T K h", h=self.head_dim)
        xv = rearrange(self.wv(x), "B T (K h) -> B T K h", h=self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis)

        if cache is None:
            keys, values = xk.transpose(1, 2), xv.transpose(1, 2)  # (B, T, K, h) -> (B, K, T, h)
        else:
            keys, values = cache.update(xk, xv, start_pos)  # (B, K, S, h)

        out = F.scaled_dot_product_attention(
            xq.transpose(1, 2),  # (B, T, H, h) -> (B, H, T, h)
            keys,
            values,
            attn_mask=mask,
            # torch aligns its causal triangle to the first key, which is wrong for one query after S cached keys.
            is_causal=mask is None and x.shape[1] > 1,
            enable_gqa=True,  # query head i uses kv head i // (H/K), and no copy of the kv heads is made
        )
        return self.wo(rearrange(out, "B H T h -> B T (H h)"))
