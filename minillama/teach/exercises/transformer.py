"""Chapter 06: the block, the stack, the head, and what a model is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from minillama.teach.exercise import Case, Exercise, Mistake

Layer = Callable[[torch.Tensor], torch.Tensor]


def block(
    x: torch.Tensor, attention: Layer, feed_forward: Layer, attention_norm: Layer, ffn_norm: Layer
) -> torch.Tensor:
    h = x + attention(attention_norm(x))
    return h + feed_forward(ffn_norm(h))


def stack(tokens: torch.Tensor, embed: Layer, blocks: Sequence[Layer], norm: Layer) -> torch.Tensor:
    h = embed(tokens)
    for block in blocks:
        h = block(h)
    return norm(h)


def logit_lens(stream: torch.Tensor, norm: Layer, output: Layer) -> torch.Tensor:
    return output(norm(stream)).softmax(-1)


def count_params(dim: int, n_layers: int, n_heads: int, n_kv_heads: int, hidden_dim: int, vocab_size: int) -> int:
    head_dim = dim // n_heads
    attention = 2 * dim * dim + 2 * dim * n_kv_heads * head_dim
    feed_forward = 3 * dim * hidden_dim
    norms = 2 * dim
    return 2 * vocab_size * dim + n_layers * (attention + feed_forward + norms) + dim


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Small stand-ins for the layers, each with an effect of its own.
def _attention(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(-2) * 0.5


def _feed_forward(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2) - 1


def _first_norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:]) * 2


def _second_norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:]) * 0.7


PARTS = (_attention, _feed_forward, _first_norm, _second_norm)


def _block_cases() -> list[Case]:
    return [
        Case("one token of two numbers", (torch.tensor([[[1.0, -3.0]]]), *PARTS)),
        Case("two texts of three tokens", (_numbers(2, 3, 8), *PARTS)),
        Case("layers that add nothing", (_numbers(1, 2, 4, seed=1), torch.zeros_like, torch.zeros_like, *PARTS[2:])),
        Case("bf16", (_numbers(1, 3, 8, seed=2).bfloat16(), *PARTS)),
    ]


def _lets_gradients_through(function: Any) -> str | None:
    x = _numbers(1, 2, 4, seed=3).requires_grad_()
    if function(x, *PARTS).requires_grad:
        return None
    return "The numbers are right, but no gradient comes through (`no_grad`? `detach`?): it could not be trained."


BLOCK = Exercise(
    number="6.1",
    hints=(
        "All four are functions of a tensor: `attention_norm(x)` is what attention reads. Two lines are enough.",
        "Each of the two parts reads a normed copy of the stream, and its answer is *added* to the stream.",
        "`h = x + attention(attention_norm(x))`; the second line is the same with the other two, and with `h`.",
    ),
    answer=block,
    expected=lambda x, a, f, n1, n2: torch.add(torch.add(x, a(n1(x))), f(n2(torch.add(x, a(n1(x)))))),
    cases=_block_cases,
    also=_lets_gradients_through,
    mistakes=[
        Mistake(
            "norm after the sum",
            "You norm the sum. That is the post-norm block of the first Transformer (2017); Llama norms what a layer "
            "reads, and leaves the stream itself alone.",
            lambda x, a, f, n1, n2: n2(n1(x + a(x)) + f(n1(x + a(x)))),
        ),
        Mistake(
            "attention not added",
            "What attention says replaces the stream. It should be added to it: `x + ...`.",
            lambda x, a, f, n1, n2: a(n1(x)) + f(n2(a(n1(x)))),
        ),
        Mistake(
            "feed-forward not added",
            "What the feed-forward says replaces the stream. It should be added: `h + ...`.",
            lambda x, a, f, n1, n2: f(n2(x + a(n1(x)))),
        ),
        Mistake(
            "side by side",
            "Your feed-forward reads `x`, the stream before attention. In Llama it reads the stream after it. (GPT-J "
            "and PaLM do put the two side by side.)",
            lambda x, a, f, n1, n2: x + a(n1(x)) + f(n2(x)),
        ),
        Mistake(
            "forgets attention",
            "Your last line adds to `x` again, so that attention's answer reaches only the feed-forward and then is "
            "lost. Add to `h`.",
            lambda x, a, f, n1, n2: x + f(n2(x + a(n1(x)))),
        ),
        Mistake(
            "normed stream",
            "You add to the normed copy. The stream goes past the norms untouched: `x + attention(attention_norm(x))`.",
            lambda x, a, f, n1, n2: n2(n1(x) + a(n1(x))) + f(n2(n1(x) + a(n1(x)))),
        ),
        Mistake(
            "norms exchanged",
            "The two norms are exchanged: `attention_norm` stands before attention, `ffn_norm` before feed_forward.",
            lambda x, a, f, n1, n2: x + a(n2(x)) + f(n1(x + a(n2(x)))),
        ),
        Mistake(
            "layers exchanged",
            "The feed-forward comes first in yours. Attention is first: it brings what the feed-forward then works on.",
            lambda x, a, f, n1, n2: x + f(n2(x)) + a(n1(x + f(n2(x)))),
        ),
        Mistake(
            "attention reads the bare stream",
            "Attention reads the bare stream. It should read a normed copy: `attention(attention_norm(x))`.",
            lambda x, a, f, n1, n2: x + a(x) + f(n2(x + a(x))),
        ),
        Mistake(
            "feed-forward reads the bare stream",
            "The feed-forward reads the bare stream. It should read a normed copy: `feed_forward(ffn_norm(h))`.",
            lambda x, a, f, n1, n2: x + a(n1(x)) + f(x + a(n1(x))),
        ),
        Mistake(
            "one norm twice",
            "One norm stands in both places. `attention_norm` is attention's, `ffn_norm` the feed-forward's.",
            lambda x, a, f, n1, n2: x + a(n1(x)) + f(n1(x + a(n1(x)))),
        ),
        Mistake(
            "one norm twice",
            "One norm stands in both places. `attention_norm` is attention's, `ffn_norm` the feed-forward's.",
            lambda x, a, f, n1, n2: x + a(n2(x)) + f(n2(x + a(n2(x)))),
        ),
        Mistake(
            "norms the answer",
            "You norm what a part answers. Norm what it *reads*; the answer is added as it is.",
            lambda x, a, f, n1, n2: x + n1(a(x)) + n2(f(x + n1(a(x)))),
        ),
        Mistake(
            "norms the answer",
            "You norm what a part answers. Norm what it *reads*; the answer is added as it is.",
            lambda x, a, f, n1, n2: x + n1(a(x)) + f(n2(x + n1(a(x)))),
        ),
        Mistake(
            "adds x twice",
            "x is in it twice: `h` holds x already, so the last line adds to `h` alone.",
            lambda x, a, f, n1, n2: x + (x + a(n1(x))) + f(n2(x + a(n1(x)))),
        ),
        Mistake(
            "no norms",
            "The parts read the stream as it is. Each should read a normed copy.",
            lambda x, a, f, n1, n2: x + a(x) + f(x + a(x)),
        ),
    ],
)


def _stack_cases() -> list[Case]:
    table = _numbers(5, 4)

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        return table[tokens]

    blocks = [lambda h: h * 2 + 1, lambda h: h.pow(2), lambda h: h - h.cumsum(-2) / 3]
    tokens = torch.tensor([[0, 3, 4], [1, 1, 2]])
    return [
        Case("three blocks", (tokens, embed, blocks, _first_norm)),
        Case("seven blocks", (tokens, embed, [*blocks[::2], *blocks[::2], *blocks], _first_norm)),
        Case("one block", (tokens[:1], embed, blocks[1:2], _first_norm)),
        Case("no block at all", (tokens, embed, [], _first_norm)),
    ]


def _each_from_the_start(tokens: Any, embed: Any, blocks: Any, norm: Any) -> Any:
    h = embed(tokens)
    return norm(sum((block(h) for block in blocks), torch.zeros_like(h)))


def _norm_between(tokens: Any, embed: Any, blocks: Any, norm: Any) -> Any:
    return reduce(lambda h, block: norm(block(h)), blocks, embed(tokens))


STACK = Exercise(
    number="6.2",
    hints=(
        "`embed(tokens)` starts the stream, `blocks` is a list of functions, `norm` comes once, at the end.",
        "A loop with one line in it: each block gets what the one before it returned.",
        "`h = embed(tokens)`, `for block in blocks: h = block(h)`, `return norm(h)`.",
    ),
    answer=stack,
    expected=lambda tokens, embed, blocks, norm: norm(reduce(lambda h, block: block(h), blocks, embed(tokens))),
    cases=_stack_cases,
    mistakes=[
        Mistake(
            "no last norm",
            "The last norm is missing. The stream has grown through the layers, and the head was trained on normed "
            "vectors.",
            lambda tokens, embed, blocks, norm: reduce(lambda h, block: block(h), blocks, embed(tokens)),
        ),
        Mistake(
            "residual twice",
            "You add each block's result to the stream. A block has done that already, inside.",
            lambda tokens, embed, blocks, norm: norm(reduce(lambda h, block: h + block(h), blocks, embed(tokens))),
        ),
        Mistake(
            "each from the start",
            "All your blocks read the embedding. Each should read what the one before it returned: `h = block(h)`.",
            lambda tokens, embed, blocks, norm: norm(sum((block(embed(tokens)) for block in blocks), embed(tokens))),
        ),
        Mistake(
            "normed before each block",
            "You norm what goes into every block. Blocks have norms of their own; this one stands once, at the end.",
            lambda tokens, embed, blocks, norm: norm(reduce(lambda h, block: block(norm(h)), blocks, embed(tokens))),
        ),
        Mistake(
            "results dropped",
            "The blocks are called, but what they return is dropped: `h = block(h)`.",
            lambda tokens, embed, blocks, norm: norm(embed(tokens)),
        ),
        Mistake(
            "a block short",
            "The last block is left out.",
            lambda tokens, embed, blocks, norm: norm(reduce(lambda h, block: block(h), blocks[:-1], embed(tokens))),
        ),
        Mistake(
            "the first block again and again",
            "The first block runs in place of all of them.",
            lambda tokens, embed, blocks, norm: norm(reduce(lambda h, _: blocks[0](h), blocks, embed(tokens))),
        ),
        Mistake(
            "each from the start",
            "All your blocks read the embedding. Each should read what the one before it returned: `h = block(h)`.",
            _each_from_the_start,
        ),
        Mistake(
            "only the last",
            "Only the last block's work comes out: in the loop, `h` has to be handed on, `h = block(h)`.",
            lambda tokens, embed, blocks, norm: norm(blocks[-1](embed(tokens)) if blocks else embed(tokens)),
        ),
        Mistake(
            "backwards",
            "The blocks run from the last to the first.",
            lambda tokens, embed, blocks, norm: norm(reduce(lambda h, block: block(h), blocks[::-1], embed(tokens))),
        ),
        Mistake(
            "norm between blocks",
            "You norm after every block. This norm stands once, at the end; the blocks have norms of their own.",
            _norm_between,
        ),
        Mistake(
            "scaled embedding",
            "You multiply the embedding by the root of D. The first Transformer and Gemma do; Llama does not.",
            lambda tokens, embed, blocks, norm: norm(
                reduce(lambda h, block: block(h), blocks, embed(tokens) * embed(tokens).shape[-1] ** 0.5)
            ),
        ),
        Mistake(
            "stops early",
            "It returns after the first block: the `return` stands inside the loop.",
            lambda tokens, embed, blocks, norm: norm(blocks[0](embed(tokens)) if blocks else embed(tokens)),
        ),
    ],
)


def _lens_cases() -> list[Case]:
    head = _numbers(6, 4, seed=3) * 2

    def output(h: torch.Tensor) -> torch.Tensor:
        return h @ head.T

    return [
        Case("four layers, two tokens, the embedding first", (_numbers(5, 2, 4, seed=4) * 3, _first_norm, output)),
        Case("three layers, two tokens", (_numbers(3, 2, 4) * 5, _first_norm, output)),
        Case("as many layers as pieces", (_numbers(6, 6, 4, seed=1), _first_norm, output)),
        Case("one layer, one token", (_numbers(1, 1, 4, seed=2) * 20, _first_norm, output)),
    ]


LOGIT_LENS = Exercise(
    number="6.3",
    hints=(
        "Treat every layer's stream as if it were the last one. What happens to the last one?",
        "The final norm, then the head, then softmax over the pieces.",
        "All layers at once: `stream` is (L+1, T, D), and norm, output and `softmax(-1)` work on the last axis.",
    ),
    answer=logit_lens,
    expected=lambda stream, norm, output: torch.exp(
        output(norm(stream)) - torch.logsumexp(output(norm(stream)), -1, keepdim=True)
    ),
    cases=_lens_cases,
    mistakes=[
        Mistake(
            "no norm",
            "You put the bare stream into the head. It was trained on normed vectors: `output(norm(stream))`.",
            lambda stream, norm, output: output(stream).softmax(-1),
        ),
        Mistake(
            "logits",
            "These are logits. Softmax is missing: probabilities are positive and add up to 1.",
            lambda stream, norm, output: output(norm(stream)),
        ),
        Mistake(
            "softmax over tokens",
            "Your softmax goes over the tokens (or the layers). It should go over the pieces, the last axis.",
            lambda stream, norm, output: output(norm(stream)).softmax(1),
        ),
        Mistake(
            "softmax over tokens",
            "Your softmax goes over the tokens (or the layers). It should go over the pieces, the last axis.",
            lambda stream, norm, output: output(norm(stream)).softmax(0),
        ),
        Mistake(
            "log-probabilities",
            "These are logarithms of probabilities. `softmax` is asked for, not `log_softmax`.",
            lambda stream, norm, output: output(norm(stream)).log_softmax(-1),
        ),
        Mistake(
            "last layer only",
            "Only the last layer's probabilities are there. The lens looks at all of them: (L+1, T, V).",
            lambda stream, norm, output: output(norm(stream[-1])).softmax(-1),
        ),
        Mistake(
            "summed again",
            "You add up the layers. The stream at each height is that sum already.",
            lambda stream, norm, output: output(norm(stream.cumsum(0))).softmax(-1),
        ),
        Mistake(
            "embedding left out",
            "The first height, the embedding, is missing: (L+1, T, V), and the first of the L+1 counts.",
            lambda stream, norm, output: output(norm(stream[1:])).softmax(-1),
        ),
        Mistake(
            "norm after the head",
            "You norm the logits. The norm stands before the head.",
            lambda stream, norm, output: norm(output(stream)).softmax(-1),
        ),
    ],
)


def _count_cases() -> list[Case]:
    return [
        Case("the demo model", (192, 6, 8, 2, 384, 1536)),
        Case("7B", (4096, 32, 32, 32, 11008, 32000)),
        Case("70B", (8192, 80, 64, 8, 28672, 32000)),
        Case("a model of one layer", (8, 1, 2, 1, 16, 10)),
    ]


def _wrong_count(embeddings: int = 2, kv: bool = True, matrices: int = 3, norms: int = 2, last: int = 1) -> Any:
    def count(dim: int, n_layers: int, n_heads: int, n_kv_heads: int, hidden_dim: int, vocab_size: int) -> int:
        of_kv = dim // n_heads * n_kv_heads if kv else dim
        layer = 2 * dim * dim + 2 * dim * of_kv + matrices * dim * hidden_dim + norms * dim
        return embeddings * vocab_size * dim + n_layers * layer + last * dim

    return count


def _biases(dim: int, n_layers: int, n_heads: int, n_kv_heads: int, hidden_dim: int, vocab_size: int) -> int:
    own = count_params(dim, n_layers, n_heads, n_kv_heads, hidden_dim, vocab_size)
    biases = 2 * dim + 2 * dim // n_heads * n_kv_heads + 2 * hidden_dim + dim
    return own + n_layers * biases


COUNT_PARAMS = Exercise(
    number="6.4",
    hints=(
        "Go through the rows of the ledger above: the embedding, nine weights in each layer, a norm, the head.",
        "A layer: wq and wo are D x D, wk and wv are D x K*h, three matrices are D x F, two norms are D.",
        "The embedding and the head are V x D each (Llama 2 does not share them), and the last norm is D.",
    ),
    answer=count_params,
    expected=lambda dim, n_layers, n_heads, n_kv_heads, hidden_dim, vocab_size: sum(
        rows * columns
        for rows, columns in [(vocab_size, dim)] * 2
        + [(1, dim)]
        + n_layers
        * ([(dim, dim)] * 2 + [(dim // n_heads * n_kv_heads, dim)] * 2 + [(hidden_dim, dim)] * 3 + [(1, dim)] * 2)
    ),
    cases=_count_cases,
    mistakes=[
        Mistake(
            "head forgotten",
            "You counted V x D once. The embedding and the head are two matrices in Llama 2.",
            _wrong_count(embeddings=1),
        ),
        Mistake(
            "kv heads as many as heads",
            "You gave wk and wv as many rows as wq. They have K*h = dim // n_heads * n_kv_heads.",
            _wrong_count(kv=False),
        ),
        Mistake(
            "two matrices in the feed-forward",
            "You counted two matrices in the feed-forward block. SwiGLU has three: w1, w2, w3.",
            _wrong_count(matrices=2),
        ),
        Mistake(
            "norms forgotten",
            "The norms are missing: two of D in each layer and one at the end.",
            _wrong_count(norms=0, last=0),
        ),
        Mistake(
            "not a whole number",
            "The number is right, and its type is not: weights are counted in whole numbers. Use `//` for heads.",
            sees=lambda attempt: all(
                isinstance(o.value, (float, torch.Tensor)) and float(o.value) == e.value
                for o, e in zip(attempt.outcomes, attempt.expected)
            ),
        ),
        Mistake("last norm forgotten", "You are D short: the norm before the head.", _wrong_count(last=0)),
        Mistake("one norm a layer", "You counted one norm a layer. There are two.", _wrong_count(norms=1)),
        Mistake("biases", "You counted biases. Llama's linear layers have none.", _biases),
        Mistake(
            "wo forgotten",
            "You are D x D short in every layer: wo, which brings the heads back together.",
            lambda dim, n_layers, n_heads, n_kv_heads, hidden_dim, vocab_size: (
                count_params(dim, n_layers, n_heads, n_kv_heads, hidden_dim, vocab_size) - n_layers * dim * dim
            ),
        ),
    ],
)

EXERCISES = [BLOCK, STACK, LOGIT_LENS, COUNT_PARAMS]
