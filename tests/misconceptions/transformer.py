"""Chapter 06's classic wrong answers, as people write them."""

import math

import torch


def post_norm(x, attention, feed_forward, attention_norm, ffn_norm):
    h = attention_norm(attention(x) + x)
    return ffn_norm(feed_forward(h) + h)


def no_first_residual(x, attention, feed_forward, attention_norm, ffn_norm):
    x = attention(attention_norm(x))
    x = feed_forward(ffn_norm(x)) + x
    return x


def no_second_residual(x, attention, feed_forward, attention_norm, ffn_norm):
    x = x + attention(attention_norm(x))
    x = feed_forward(ffn_norm(x))
    return x


def parallel(x, attention, feed_forward, attention_norm, ffn_norm):
    return attention(attention_norm(x)) + feed_forward(ffn_norm(x)) + x


def adds_to_x(x, attention, feed_forward, attention_norm, ffn_norm):
    h = attention(attention_norm(x)) + x
    out = feed_forward(ffn_norm(h))
    return out + x


def adds_to_normed(x, attention, feed_forward, attention_norm, ffn_norm):
    x = attention_norm(x)
    x = x + attention(x)
    x = ffn_norm(x)
    x = x + feed_forward(x)
    return x


def norms_crossed(x, attention, feed_forward, attention_norm, ffn_norm):
    for norm, layer in ((ffn_norm, attention), (attention_norm, feed_forward)):
        x = x + layer(norm(x))
    return x


def layers_crossed(x, attention, feed_forward, attention_norm, ffn_norm):
    for norm, layer in ((ffn_norm, feed_forward), (attention_norm, attention)):
        x = x + layer(norm(x))
    return x


def attention_bare(x, attention, feed_forward, attention_norm, ffn_norm):
    x = attention(x) + x
    return feed_forward(ffn_norm(x)) + x


def feed_forward_bare(x, attention, feed_forward, attention_norm, ffn_norm):
    x = attention(attention_norm(x)) + x
    return feed_forward(x) + x


def same_norm(x, attention, feed_forward, attention_norm, ffn_norm):
    for layer in (attention, feed_forward):
        x = x + layer(attention_norm(x))
    return x


def answers_normed(x, attention, feed_forward, attention_norm, ffn_norm):
    for norm, layer in ((attention_norm, attention), (ffn_norm, feed_forward)):
        x = x + norm(layer(x))
    return x


def x_twice(x, attention, feed_forward, attention_norm, ffn_norm):
    h = x + attention(attention_norm(x))
    return h + x + feed_forward(ffn_norm(h))


def without_norms(x, attention, feed_forward, attention_norm, ffn_norm):
    for layer in (attention, feed_forward):
        x = x + layer(x)
    return x


def block_as_a_loop(x, attention, feed_forward, attention_norm, ffn_norm):
    for norm, layer in ((attention_norm, attention), (ffn_norm, feed_forward)):
        x = x + layer(norm(x))
    return x


def stack_without_norm(tokens, embed, blocks, norm):
    h = embed(tokens)
    for b in blocks:
        h = b(h)
    return h


def stack_residual(tokens, embed, blocks, norm):
    h = embed(tokens)
    for b in blocks:
        h = h + b(h)
    return norm(h)


def stack_from_start(tokens, embed, blocks, norm):
    h = embed(tokens)
    total = 0 * h
    for b in blocks:
        total = total + b(h)
    return norm(total)


def stack_last_only(tokens, embed, blocks, norm):
    h = out = embed(tokens)
    for b in blocks:
        out = b(h)
    return norm(out)


def stack_backwards(tokens, embed, blocks, norm):
    h = embed(tokens)
    for b in reversed(blocks):
        h = b(h)
    return norm(h)


def stack_norms_between(tokens, embed, blocks, norm):
    h = embed(tokens)
    for b in blocks:
        h = norm(b(h))
    return h


def stack_scaled(tokens, embed, blocks, norm):
    h = embed(tokens)
    h = h * math.sqrt(h.shape[-1])
    for b in blocks:
        h = b(h)
    return norm(h)


def stack_returns_inside(tokens, embed, blocks, norm):
    h = embed(tokens)
    for b in blocks:
        h = b(h)
        return norm(h)
    return norm(h)


def stack_norm_first(tokens, embed, blocks, norm):
    h = embed(tokens)
    for b in blocks:
        h = b(norm(h))
    return norm(h)


def stack_dropped(tokens, embed, blocks, norm):
    h = embed(tokens)
    for b in blocks:
        b(h)
    return norm(h)


def stack_short(tokens, embed, blocks, norm):
    h = embed(tokens)
    for i in range(len(blocks) - 1):
        h = blocks[i](h)
    return norm(h)


def stack_first_again(tokens, embed, blocks, norm):
    h = embed(tokens)
    for _ in range(len(blocks)):
        h = blocks[0](h)
    return norm(h)


def stack_recursive(tokens, embed, blocks, norm):
    def through(n):
        return embed(tokens) if n == 0 else blocks[n - 1](through(n - 1))

    return norm(through(len(blocks)))


def lens_bare(stream, norm, output):
    return torch.stack([torch.softmax(output(h), dim=-1) for h in stream])


def lens_logits(stream, norm, output):
    return torch.stack([output(norm(h)) for h in stream])


def lens_over_tokens(stream, norm, output):
    return torch.stack([torch.softmax(output(norm(h)), dim=0) for h in stream])


def lens_logs(stream, norm, output):
    return torch.log(torch.softmax(output(norm(stream)), dim=-1))


def lens_last(stream, norm, output):
    for h in stream:
        probs = torch.softmax(output(norm(h)), dim=-1)
    return probs


def lens_summed(stream, norm, output):
    total = torch.stack([stream[: i + 1].sum(0) for i in range(len(stream))])
    return torch.softmax(output(norm(total)), dim=-1)


def lens_no_embedding(stream, norm, output):
    return torch.stack([torch.softmax(output(norm(h)), dim=-1) for h in stream[1:]]) if len(stream) > 1 else stream[1:]


def lens_norm_late(stream, norm, output):
    return torch.softmax(norm(output(stream)), dim=-1)


def lens_layer_by_layer(stream, norm, output):
    odds = torch.stack([output(norm(h)).double().exp() for h in stream])
    return (odds / odds.sum(-1, keepdim=True)).float()


def params(dim, n_layers, n_heads, n_kv_heads, hidden_dim, vocab_size, leave_out=(), kv=None):
    kv_width = (n_kv_heads if kv is None else n_heads) * dim // n_heads
    weights = {
        "wq": dim * dim, "wk": dim * kv_width, "wv": dim * kv_width, "wo": dim * dim, "w1": dim * hidden_dim,
        "w2": dim * hidden_dim, "w3": dim * hidden_dim, "attention_norm": dim, "ffn_norm": dim,
    }  # fmt: skip
    ends = {"tok_embeddings": vocab_size * dim, "output": vocab_size * dim, "norm": dim}
    layer = sum(n for name, n in weights.items() if name not in leave_out)
    return n_layers * layer + sum(n for name, n in ends.items() if name not in leave_out)


def count_tied(*shape):
    return params(*shape, leave_out={"output"})


def count_all_heads(*shape):
    return params(*shape, kv="all")


def count_mlp(*shape):
    return params(*shape, leave_out={"w3"})


def count_matrices(*shape):
    return params(*shape, leave_out={"attention_norm", "ffn_norm", "norm"})


def count_float(dim, n_layers, n_heads, n_kv_heads, hidden_dim, vocab_size):
    kv = dim / n_heads * n_kv_heads
    return 2 * vocab_size * dim + n_layers * (2 * dim**2 + 2 * dim * kv + 3 * dim * hidden_dim + 2 * dim) + dim


def count_no_last_norm(*shape):
    return params(*shape, leave_out={"norm"})


def count_one_norm(*shape):
    return params(*shape, leave_out={"ffn_norm"})


def count_biases(dim, n_layers, n_heads, n_kv_heads, hidden_dim, vocab_size):
    kv = dim // n_heads * n_kv_heads
    with_bias = sum(out for out in (dim, kv, kv, dim, hidden_dim, hidden_dim, dim))
    return params(dim, n_layers, n_heads, n_kv_heads, hidden_dim, vocab_size) + n_layers * with_bias


def count_no_wo(*shape):
    return params(*shape, leave_out={"wo"})


WRONG = {
    "block": {
        "norm after the sum": post_norm,
        "attention not added": no_first_residual,
        "feed-forward not added": no_second_residual,
        "side by side": parallel,
        "forgets attention": adds_to_x,
        "normed stream": adds_to_normed,
        "norms exchanged": norms_crossed,
        "layers exchanged": layers_crossed,
        "no norms": without_norms,
        "attention reads the bare stream": attention_bare,
        "feed-forward reads the bare stream": feed_forward_bare,
        "one norm twice": same_norm,
        "norms the answer": answers_normed,
        "adds x twice": x_twice,
    },
    "stack": {
        "no last norm": stack_without_norm,
        "residual twice": stack_residual,
        "each from the start": stack_from_start,
        "only the last": stack_last_only,
        "backwards": stack_backwards,
        "norm between blocks": stack_norms_between,
        "scaled embedding": stack_scaled,
        "stops early": stack_returns_inside,
        "normed before each block": stack_norm_first,
        "results dropped": stack_dropped,
        "a block short": stack_short,
        "the first block again and again": stack_first_again,
    },
    "logit_lens": {
        "no norm": lens_bare,
        "logits": lens_logits,
        "softmax over tokens": lens_over_tokens,
        "log-probabilities": lens_logs,
        "last layer only": lens_last,
        "summed again": lens_summed,
        "embedding left out": lens_no_embedding,
        "norm after the head": lens_norm_late,
    },
    "count_params": {
        "head forgotten": count_tied,
        "kv heads as many as heads": count_all_heads,
        "two matrices in the feed-forward": count_mlp,
        "norms forgotten": count_matrices,
        "not a whole number": count_float,
        "last norm forgotten": count_no_last_norm,
        "one norm a layer": count_one_norm,
        "biases": count_biases,
        "wo forgotten": count_no_wo,
    },
}

RIGHT = {
    "block": [block_as_a_loop],
    "stack": [stack_recursive],
    "logit_lens": [lens_layer_by_layer],
    "count_params": [params],
}
