"""Chapter 01's classic wrong answers, as people write them."""

import math

import torch


def _each(x, f):
    """f of every vector of x, put back together."""
    return torch.stack([f(v) for v in x.reshape(-1, x.shape[-1])])


def rms_length(x):
    return torch.linalg.norm(x, dim=-1, keepdim=True)


def rms_flat(x):
    return (x * x).sum(-1).div(x.shape[-1]) ** 0.5


def rms_variance(x):
    return torch.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1]


def rms_std(x):
    centred = x - x.mean(-1, keepdim=True)
    return (centred**2).mean(-1, keepdim=True) ** 0.5


def rms_mean_size(x):
    return x.abs().sum(-1, keepdim=True) / x.shape[-1]


def rms_all(x):
    one = torch.sqrt(torch.mean(x**2))
    return torch.full((*x.shape[:-1], 1), one.item())


def rms_tokens(x):
    return torch.sqrt((x**2).mean(dim=-2, keepdim=True))


def rms_mean_first(x):
    return (x.mean(dim=-1, keepdim=True) ** 2) ** 0.5


def rms_over_d(x):
    return torch.sqrt((x * x).sum(-1, keepdim=True)) / x.size(-1)


def rms_inverse(x):
    return 1 / torch.sqrt((x * x).mean(-1, keepdim=True))


def rms_divided(x):
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** 0.5


def rms_loop(x):
    return _each(x, lambda v: torch.tensor([math.sqrt(sum(a.item() ** 2 for a in v) / len(v))])).view(*x.shape[:-1], 1)


def layer_norm(x, weight, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, None, eps)


def norm_by_length(x, weight, eps):
    return (x.float() / (x.float().square().sum(-1, keepdim=True) + eps) ** 0.5).to(x.dtype) * weight


def norm_no_root(x, weight, eps):
    h = x.float()
    ms = (h * h).mean(dim=-1, keepdim=True) + eps
    return weight * (h / ms).to(x.dtype)


def norm_eps_outside(x, weight, eps):
    h = x.to(torch.float32)
    size = torch.sqrt(torch.mean(h**2, dim=-1, keepdim=True))
    return weight * (h * (1 / (size + eps))).to(x.dtype)


def norm_no_eps(x, weight, eps):
    h = x.to(torch.float32)
    return weight * (h / torch.sqrt(torch.mean(h**2, dim=-1, keepdim=True))).to(x.dtype)


def norm_eps_elsewhere(x, weight, eps):
    h = x.to(torch.float32)
    size = torch.maximum(h.square().mean(-1, keepdim=True).sqrt(), torch.tensor(eps))
    return weight * (h / size).to(x.dtype)


def norm_own_eps(x, weight, eps=1e-5):
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, 1e-5).to(x.dtype) * weight


def norm_multiplied(x, weight, eps):
    h = x.to(torch.float32)
    return weight * (h * torch.sqrt(torch.mean(h**2, dim=-1, keepdim=True) + eps)).to(x.dtype)


def norm_added(x, weight, eps):
    return weight + torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)


def norm_no_weight(x, weight, eps):
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)


def norm_gemma(x, weight, eps):
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype) * (weight + 1.0)


def norm_all(x, weight, eps):
    h = x.float()
    return (h / torch.sqrt((h**2).mean() + eps)).to(x.dtype) * weight


def norm_tokens(x, weight, eps):
    h = x.float()
    return (h / torch.sqrt((h**2).mean(dim=-2, keepdim=True) + eps)).to(x.dtype) * weight


def norm_half(x, weight, eps):
    variance = (x * x).mean(-1, keepdim=True)
    return weight * (x * (variance + eps).rsqrt())


def norm_fp32_out(x, weight, eps):
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, eps) * weight.to(torch.float32)


def norm_loop(x, weight, eps):
    def one(v):
        size = (v.double().dot(v.double()) / len(v) + eps).sqrt()
        return (v.double() / size).to(x.dtype) * weight

    return _each(x, one).view(x.shape)


def fold_rows(weight, w):
    return torch.diag(weight) @ w


def fold_divided(weight, w):
    return torch.einsum("oi,i->oi", w, 1 / weight)


def fold_product(weight, w):
    return torch.mv(w, weight)


def fold_transposed(weight, w):
    return torch.diag(weight) @ w.T


def fold_gemma(weight, w):
    return w @ torch.diag(1 + weight)


def fold_added(weight, w):
    return torch.stack([row + weight for row in w])


def fold_nothing(weight, w):
    return w.clone()


def fold_diagonal(weight, w):
    return w @ torch.diag(weight)


WRONG = {
    "rms": {
        "no keepdim": rms_flat,
        "sum, not mean": rms_length,
        "no root": rms_variance,
        "standard deviation": rms_std,
        "mean of sizes": rms_mean_size,
        "whole tensor": rms_all,
        "wrong axis": rms_tokens,
        "square after the mean": rms_mean_first,
        "length over D": rms_over_d,
        "one over it": rms_inverse,
        "already divided": rms_divided,
    },
    "rms_norm": {
        "subtracts the mean": layer_norm,
        "sum, not mean": norm_by_length,
        "no root": norm_no_root,
        "eps outside the root": norm_eps_outside,
        "no eps": norm_no_eps,
        "no weight": norm_no_weight,
        "eps elsewhere": norm_eps_elsewhere,
        "an eps of its own": norm_own_eps,
        "multiplies": norm_multiplied,
        "adds the weight": norm_added,
        "one plus weight": norm_gemma,
        "whole tensor": norm_all,
        "wrong axis": norm_tokens,
        "fp16 inside": norm_half,
        "stays in fp32": norm_fp32_out,
    },
    "fold_weight": {
        "rows": fold_rows,
        "divides": fold_divided,
        "multiplies through": fold_product,
        "transposed": fold_transposed,
        "one plus weight": fold_gemma,
        "adds": fold_added,
        "unchanged": fold_nothing,
    },
}

RIGHT = {"rms": [rms_loop], "rms_norm": [norm_loop], "fold_weight": [fold_diagonal]}
