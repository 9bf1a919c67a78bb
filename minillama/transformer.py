"""The block, the stack and the head: chapter 06, `notebooks/06_transformer.ipynb`.

Touvron et al., "LLaMA" (2023), section 2.2. Module names are the keys of Meta's `consolidated.NN.pth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from minillama.args import ModelArgs, shown, whole_number
from minillama.attention import Attention, Remembers
from minillama.feed_forward import FeedForward
from minillama.kv_cache import KVCache
from minillama.norm import RMSNorm
from minillama.rope import precompute_freqs_cis


class TransformerBlock(nn.Module):
    """Attention, then feed-forward; each reads a normalized copy of the stream and adds its answer to it."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.attention = Attention(args)
        self.feed_forward = FeedForward(args.dim, args.hidden_dim)
        self.attention_norm = RMSNorm(args.dim, eps=args.norm_eps)
        self.ffn_norm = RMSNorm(args.dim, eps=args.norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        freqs_cis: torch.Tensor,
        mask: torch.Tensor | None,
        cache: Remembers | None = None,
    ) -> torch.Tensor:
        """x: (B, T, D) -> (B, T, D)."""
        h = x + self.attention(self.attention_norm(x), positions, freqs_cis, mask, cache)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    """Token ids in, fp32 logits of the next token out."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        if args.vocab_size == -1:
            raise ValueError("vocab_size is -1 (not said); a model needs the number of rows of its embedding")
        self.args = self.params = args  # `params` is the reference's name for it
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList(TransformerBlock(args) for _ in range(args.n_layers))
        self.norm = RMSNorm(args.dim, eps=args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        # Not a buffer: `model.to(torch.bfloat16)` would drop the imaginary parts of its numbers.
        if args.rope_scaling is None:
            self.freqs_cis = precompute_freqs_cis(args.head_dim, args.max_seq_len, args.rope_theta)
        else:
            from minillama.rope_scaling import scaled_freqs_cis  # for models that were stretched to longer texts

            self.freqs_cis = scaled_freqs_cis(args)

    def forward(
        self, tokens: torch.Tensor, start_pos: int | torch.Tensor = 0, cache: KVCache | None = None
    ) -> torch.Tensor:
        """tokens: (B, T) int64 -> logits (B, T, V) fp32.

        start_pos: position of the first token, an int, or a tensor (B,) for rows at different positions (best on the
        CPU: it steers indexing). cache: what came before, `KVCache.for_model(model, B, max_len)`; None: a stateless
        pass, through which autograd can go. Raises ValueError where tokens do not fit the cache or `max_seq_len`.
        """
        return self.logits(self.features(tokens, start_pos, cache))

    def features(
        self, tokens: torch.Tensor, start_pos: int | torch.Tensor = 0, cache: KVCache | None = None
    ) -> torch.Tensor:
        """All but the head: tokens (B, T) -> (B, T, D). A loop that wants one position's logits need not make all."""
        check_tokens(tokens, self.args.vocab_size, self.device)
        B, T = tokens.shape
        start_pos = checked_start(start_pos, B)
        end = T + (start_pos if isinstance(start_pos, int) else int(start_pos.max()))
        if end > self.args.max_seq_len:
            raise ValueError(f"{end} tokens are more than the model's max_seq_len {self.args.max_seq_len}")
        if cache is not None:
            cache.check_room(self, B, end)
        elif end != T:
            raise ValueError("start_pos without a cache: a stateless pass begins at position 0")

        positions = torch.arange(T, device="cpu")  # (T,), or (B, T) where rows are at different positions
        positions = positions + (start_pos if isinstance(start_pos, int) else start_pos.cpu()[:, None])
        mask = causal_mask(positions, end).to(tokens.device) if needs_mask(start_pos, T) else None
        window = None if cache is None else cache.window(B, end)
        self.freqs_cis = self.freqs_cis.to(tokens.device)
        return self.stack(tokens, positions.to(tokens.device), mask, window)

    def stack(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        window: Sequence[Remembers] | None = None,
    ) -> torch.Tensor:
        """`features`, for a caller who has checked the tokens and made the mask: tokens (B, T) -> (B, T, D).

        positions: (T,) or (B, T); window: a cache for each layer. Only tensors decide what happens here, never their
        values: `torch.compile` takes it whole, and a CUDA graph can replay it.
        """
        freqs_cis = self.freqs_cis[positions]  # (T, h/2) or (B, T, h/2)
        h = self.tok_embeddings(tokens)  # (B, T) -> (B, T, D)
        for i, layer in enumerate(self.layers):
            h = layer(h, positions, freqs_cis, mask, None if window is None else window[i])
        return self.norm(h)

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        """(..., D) -> (..., V) in fp32, whatever the weights are in: softmax and sampling want the bits."""
        return self.output(h).float()

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @classmethod
    def from_checkpoint(
        cls, ckpt_dir: str | Path, *, device: str | torch.device = "cpu", dtype: str | torch.dtype | None = None
    ) -> Transformer:
        """Build the model in `ckpt_dir` and load its weights; see `minillama.checkpoint.load_model`."""
        from minillama.checkpoint import load_model  # the model does not depend on file formats

        return load_model(ckpt_dir, device=device, dtype=dtype)


def check_tokens(tokens: torch.Tensor, vocab_size: int, device: torch.device) -> None:
    """Raise ValueError, with shape, device or id, for anything but ids (B, T) of this vocabulary on `device`."""
    if not isinstance(tokens, torch.Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens are {shown(tokens)}; expected a tensor of ids, int64")
    if tokens.dim() != 2 or tokens.numel() == 0:
        raise ValueError(f"tokens have the shape {tuple(tokens.shape)}; expected (B, T), each 1 or more")
    if tokens.device != device:
        raise ValueError(f"tokens are on {tokens.device}, the model on {device}; expected both on one device")
    if tokens.device.type == "cpu":  # on a GPU, looking would stop it at every token
        for t in tokens.aminmax():
            whole_number("an id in tokens", t, least=0, most=vocab_size - 1)


def checked_start(start_pos: int | torch.Tensor, B: int) -> int | torch.Tensor:
    """`start_pos`, as an int where all rows agree: level rows need no mask and no scattered writes."""
    if not isinstance(start_pos, torch.Tensor):
        return whole_number("start_pos", start_pos, least=0)
    if start_pos.shape != (B,):
        raise ValueError(f"start_pos is {shown(start_pos)}; expected a whole number, or one for each of {B} rows")
    first = whole_number("start_pos", start_pos.min(), least=0)
    return first if bool((start_pos == first).all()) else start_pos


def needs_mask(start_pos: int | torch.Tensor, T: int) -> bool:
    """Level rows need none for one token (it sees all) nor for a prefill from 0 (plain causal attention)."""
    return not isinstance(start_pos, int) or (T > 1 and start_pos > 0)


def causal_mask(positions: torch.Tensor, end: int) -> torch.Tensor:
    """True where a query may look: key position <= query position.

    positions: (T,) or (B, T) -> (1, 1, T, S) or (B, 1, T, S) with S = end.
    Three tokens after four cached ones (x: may look):

        key       0 1 2 3 4 5 6
        query 4   x x x x x . .
        query 5   x x x x x x .
        query 6   x x x x x x x
    """
    mask = torch.arange(end, device=positions.device) <= positions[..., None]  # (..., T, S)
    return mask.view(-1, 1, *mask.shape[-2:])
