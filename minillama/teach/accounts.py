"""What one forward pass costs, line by line: shapes, parameters, operations, bytes.

>>> from minillama.teach.accounts import ledger
>>> ledger("7B", B=1, T=1, start_pos=1023)  # nothing is allocated: the model is on the meta device
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from minillama.args import ModelArgs, shown, whole_number
from minillama.kv_cache import KVCache
from minillama.memory import gb
from minillama.rope import apply_rotary_emb
from minillama.teach import slots
from minillama.transformer import Transformer, causal_mask

ID_BYTES = 8  # of a token's id, int64


@dataclass(frozen=True)
class Row:
    """One operation. before, after: shapes; letters: the same in the course's. All numbers are of one layer's.

    held: bytes of the weights as they are stored; weights: bytes of them that are read; cache: bytes of keys and values
    that are read or written. times: layers that this row stands for.
    """

    name: str
    letters: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    params: int = 0
    flops: int = 0
    held: int = 0
    weights: int = 0
    activations: int = 0
    cache: int = 0
    times: int = 1

    @property
    def bytes(self) -> int:
        """What is moved between memory and processor."""
        return self.weights + self.activations + self.cache


@dataclass(frozen=True, repr=False)
class Ledger:
    """The rows of one pass of `args` over B x T tokens behind `start_pos` others; the totals count every layer."""

    args: ModelArgs
    B: int
    T: int
    start_pos: int
    rows: tuple[Row, ...] = field(repr=False)

    @property
    def params(self) -> int:
        return self._sum(lambda row: row.params)

    @property
    def flops(self) -> int:
        return self._sum(lambda row: row.flops)

    @property
    def bytes(self) -> int:
        """What is moved between memory and processor: weights, activations, keys and values."""
        return self._sum(lambda row: row.bytes)

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory. Fewer are read: of the embedding, a row for each token."""
        return self._sum(lambda row: row.held)

    @property
    def cache_bytes(self) -> int:
        """Keys and values read or written."""
        return self._sum(lambda row: row.cache)

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def _sum(self, of: Callable[[Row], int]) -> int:
        return sum(row.times * of(row) for row in self.rows)

    def _title(self) -> str:
        return f"One forward pass: B = {self.B}, T = {self.T}, S = {self.start_pos + self.T}"

    def _cells(self) -> Iterator[list[str]]:
        for row in self.rows:
            times = f"x {row.times}" if row.times > 1 else ""
            shapes = f"{row.before} -> {row.after}"
            yield [row.name, times, row.letters, shapes, f"{row.params:,}", f"{row.flops:,}", gb(row.bytes)]
        yield ["total", "", "", "", f"{self.params:,}", f"{self.flops:,}", gb(self.bytes)]

    def __repr__(self) -> str:
        rows = [HEAD, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*rows)]
        aligned = [
            [cell.rjust(w) if i >= NUMBERS else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
            for row in rows
        ]
        lines = ["  ".join(row).rstrip() for row in aligned]
        return "\n".join([self._title(), "", *lines[:-1], "-" * max(map(len, lines)), lines[-1]])

    def _repr_html_(self) -> str:
        # No colour of its own: JupyterLab's light and dark themes bring theirs.
        style = "padding:1px 5px;border:1px solid;background:none;white-space:nowrap;text-align:"
        lines = []
        for row in [HEAD, *self._cells()]:
            cells = [
                f'<td style="{style}{"right" if i >= NUMBERS else "left"}">{html.escape(_short(cell))}</td>'
                for i, cell in enumerate(row)
            ]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        lines[0], lines[-1] = (line.replace("<td", "<th").replace("</td", "</th") for line in (lines[0], lines[-1]))
        look = "color:inherit;border-collapse:collapse;font-size:85%"
        table = f'<table style="{look}"><tbody>{"".join(lines)}</tbody></table>'
        return f'<div style="color:inherit;overflow-x:auto">{html.escape(self._title())}{table}</div>'


def _short(cell: str) -> str:
    """On a page there is less room: "layers.0.attention.wq" as "0.attention.wq"."""
    return cell.removeprefix("layers.")


HEAD = ["", "", "letters", "shapes", "parameters", "FLOPs", "bytes moved"]
NUMBERS = 4  # columns from here on are numbers


def ledger(
    model: Transformer | ModelArgs | str,
    B: int,
    T: int,
    start_pos: int = 0,
    *,
    every_layer: bool = False,
    dtype: torch.dtype | None = None,
) -> Ledger:
    """Run one pass over B rows of T tokens, with a cache that holds `start_pos` before them, and write down its costs.

    model: any Transformer, on the meta device too; or ModelArgs, or the name of a preset ("7B"), of which one is made
    there in `dtype`, bfloat16 if not said. every_layer: a row for each layer's, not one for all.

    FLOPs are those of products of matrices, two for a multiplication with its addition; what is done to each number by
    itself (norms, turning, softmax, silu) counts as none. Attention counts in full, T x S for each head, the half that
    the mask hides too: the kernels' usual count. Bytes are each operation's weights, read once, and its input and
    output, in the model's dtype; of the cache, slots 0 to S - 1 are read and the new ones written. The scores count
    none: a fused kernel keeps them to itself. Logits are made for all T positions.
    Raises ValueError where the tokens do not fit the model's max_seq_len.
    """
    made = _model(model, dtype)
    B, T = whole_number("B", B), whole_number("T", T)
    start_pos = whole_number("start_pos", start_pos, least=0)
    limit = made.args.max_seq_len
    if start_pos + T > limit:
        raise ValueError(
            f"start_pos {start_pos} and T {T} make {start_pos + T} positions, more than the model's max_seq_len {limit}"
        )
    rows = _Recorder(made, B, T, start_pos).record()
    return Ledger(made.args, B, T, start_pos, tuple(rows if every_layer else _folded(rows, len(made.layers))))


def flops_formula(args: ModelArgs, B: int, T: int, start_pos: int = 0) -> int:
    """The same FLOPs from the numbers alone: 2 for each weight of a linear and token, 4 T S h for each head and row."""
    a = args
    S = start_pos + T
    per_token = a.dim * a.head_dim * (2 * a.n_heads + 2 * a.n_kv_heads) + 3 * a.dim * a.hidden_dim
    attention = 2 * B * a.n_heads * T * S * a.head_dim  # q.k and p.v
    return 2 * (a.n_layers * (B * T * per_token + attention) + B * T * a.dim * a.vocab_size)


def _model(model: Any, dtype: torch.dtype | None) -> Transformer:
    if isinstance(model, Transformer):
        if dtype is not None:
            raise ValueError(f"dtype is {dtype}, and the model that is given has its own; leave dtype out")
        return model
    args = ModelArgs.preset(model) if isinstance(model, str) else model
    if not isinstance(args, ModelArgs):
        raise ValueError(f"model is {shown(model)}; expected a Transformer, ModelArgs, or a preset's name such as '7B'")
    with torch.device("meta"):
        return Transformer(args).to(dtype or torch.bfloat16)


def _folded(rows: Sequence[Row], n_layers: int) -> list[Row]:
    """One row for those of all layers, if the layers are alike."""

    def of(layer: int) -> list[Row]:
        prefix = f"layers.{layer}."
        return [replace(row, name=row.name[len(prefix) :]) for row in rows if row.name.startswith(prefix)]

    if any(of(layer) != of(0) for layer in range(1, n_layers)):
        return list(rows)
    folded = []
    for row in rows:
        if not row.name.startswith("layers."):
            folded.append(row)
        elif row.name.startswith("layers.0."):
            folded.append(replace(row, times=n_layers))
    return folded


class _Recorder:
    """Writes a row when a module or a slot of the model is done; what stands in it is what was seen there."""

    def __init__(self, model: Transformer, B: int, T: int, start_pos: int):
        self.model, self.B, self.T, self.start_pos = model, B, T, start_pos
        self.rows: list[Row] = []
        self.layer = "layers.0"
        self.number = model.norm.weight.itemsize  # bytes of a number in the stream
        a = model.args
        self.letters = {
            "B": B, "T": T, "S": start_pos + T, "D": a.dim, "H": a.n_heads, "K": a.n_kv_heads, "h": a.head_dim,
            "F": a.hidden_dim, "V": a.vocab_size,
        }  # fmt: skip

    @torch.no_grad()
    def record(self) -> list[Row]:
        model, device = self.model, self.model.device
        end = self.start_pos + self.T
        window = KVCache.for_model(model, self.B, end).window(self.B, end)
        tokens = torch.zeros(self.B, self.T, dtype=torch.long, device=device)
        positions = torch.arange(self.start_pos, end, device=device)
        parts: dict[str, Callable[..., Any]] = {
            "rotate": self.rotate, "remember": self.remember, "attend": self.attend, "swiglu": self.swiglu,
            "block": self.block,
        }  # fmt: skip
        hooks = []
        for name, module in model.named_modules():
            if any(True for _ in module.children()):
                continue
            hooks.append(module.register_forward_hook(self.hook(name)))
        try:
            h = slots.run(model, parts, tokens, positions, causal_mask(positions, end), window)
            model.logits(h)
        finally:
            for hook in hooks:
                hook.remove()
        return self.rows

    def hook(self, name: str) -> Callable[..., None]:
        def seen(module: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
            x = args[0]
            params, held = _weights(module, x, out)
            is_table = isinstance(module, nn.Embedding)
            is_linear = not is_table and len(_shape(module, x, out)) == 2
            self.layer = name.rpartition(".attention")[0] or self.layer
            kind = name.rpartition(".")[2]
            before, after = LETTERS.get(kind, ("B, T, D", "B, T, D"))
            self.add(
                name, before, after, x, out,
                params=params,
                flops=2 * x.numel() * out.shape[-1] if is_linear else 0,
                held=held,
                weights=out.nbytes if is_table else held,
                activations=(ID_BYTES * x.numel() if is_table else x.nbytes) + out.nbytes,
            )  # fmt: skip

        return seen

    def add(self, name: str, before: str, after: str, x: torch.Tensor, out: torch.Tensor, **numbers: int) -> None:
        letters = ""
        if self.says(before, x) and self.says(after, out):  # a rank of a parallel run has other widths than its args
            letters = f"({before}) -> ({after})"
        self.rows.append(Row(name, letters, tuple(x.shape), tuple(out.shape), **numbers))

    def says(self, letters: str, x: torch.Tensor) -> bool:
        """Whether `letters` are the shape of x."""
        axes = []
        for axis in letters.split(", "):
            size = 1
            for letter in axis.split("*"):
                size *= self.letters[letter]
            axes.append(size)
        return tuple(axes) == tuple(x.shape)

    def block(self, x: torch.Tensor, attention: Any, feed_forward: Any, first: Any, second: Any) -> torch.Tensor:
        h = x + (answer := attention(first(x)))
        self.sum("attention_sum", answer, h)
        out = h + (answer := feed_forward(second(h)))
        self.sum("ffn_sum", answer, out)
        return out

    def sum(self, name: str, answer: torch.Tensor, out: torch.Tensor) -> None:
        self.add(f"{self.layer}.{name}", "B, T, D", "B, T, D", answer, out, activations=3 * out.nbytes)

    def rotate(self, x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
        out = apply_rotary_emb(x, x, freqs_cis)[0]
        which = "keys" if self.rows[-1].name.endswith("rope_queries") else "queries"
        shape = f"B, T, {'K' if which == 'keys' else 'H'}, h"
        self.add(
            f"{self.layer}.attention.rope_{which}", shape, shape, x, out,
            activations=x.nbytes + freqs_cis.nbytes + out.nbytes,
        )  # fmt: skip
        return out

    def remember(
        self, keys: torch.Tensor, values: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys.index_copy_(2, positions, xk.transpose(1, 2))
        values.index_copy_(2, positions, xv.transpose(1, 2))
        self.add(
            f"{self.layer}.attention.cache", "B, T, K, h", "B, K, S, h", xk, keys,
            activations=xk.nbytes + xv.nbytes, cache=xk.nbytes + xv.nbytes,
        )  # fmt: skip
        return keys, values

    def attend(self, xq: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        K = keys.shape[1]
        q = xq.transpose(1, 2)  # (B, T, H, h) -> (B, H, T, h)
        # In two steps, though torch has one: the scores are to be seen. Groups of query heads meet their kv head.
        groups = q.unflatten(1, (K, -1)).flatten(2, 3)  # (B, H, T, h) -> (B, K, H/K*T, h)
        scores = (groups @ keys.mT).view(*q.shape[:3], -1)  # (B, H, T, S)
        self.add(
            f"{self.layer}.attention.scores", "B, T, H, h", "B, H, T, S", xq, scores,
            flops=2 * scores.numel() * q.shape[-1], activations=xq.nbytes, cache=keys.nbytes,
        )  # fmt: skip
        probs = (scores.float() * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1).type_as(scores)
        out = (probs.view(*groups.shape[:3], -1) @ values).view_as(q).transpose(1, 2)  # (B, T, H, h)
        self.add(
            f"{self.layer}.attention.values", "B, H, T, S", "B, T, H, h", probs, out,
            flops=2 * probs.numel() * values.shape[-1], activations=out.nbytes, cache=values.nbytes,
        )  # fmt: skip
        return out

    def swiglu(self, x: torch.Tensor, w1: Any, w2: Any, w3: Any) -> torch.Tensor:
        gate, up = w1(x), w3(x)
        hidden = F.silu(gate) * up
        self.add(
            f"{self.layer}.feed_forward.silu_times_gate", "B, T, F", "B, T, F", gate, hidden,
            activations=gate.nbytes + up.nbytes + hidden.nbytes,
        )  # fmt: skip
        return w2(hidden)


LETTERS = {
    "tok_embeddings": ("B, T", "B, T, D"),
    "wq": ("B, T, D", "B, T, H*h"),
    "wk": ("B, T, D", "B, T, K*h"),
    "wv": ("B, T, D", "B, T, K*h"),
    "wo": ("B, T, H*h", "B, T, D"),
    "w1": ("B, T, D", "B, T, F"),
    "w3": ("B, T, D", "B, T, F"),
    "w2": ("B, T, F", "B, T, D"),
    "output": ("B, T, D", "B, T, V"),
}


def _shape(module: Any, x: torch.Tensor, out: torch.Tensor) -> tuple[int, ...]:
    """Of the module's weight, also where quantization has hidden it."""
    weight = getattr(module, "weight", None)
    return (out.shape[-1], x.shape[-1]) if weight is None else tuple(weight.shape)


def _weights(module: Any, x: torch.Tensor, out: torch.Tensor) -> tuple[int, int]:
    """How many parameters a module has, and their bytes as they are stored; of quantized ones that share a product,
    the first is told the bytes of all."""
    weight = getattr(module, "weight", None)
    if weight is None:
        return out.shape[-1] * x.shape[-1], module.weight_bytes
    return weight.numel(), weight.nbytes
