"""Chapter 01: RMSNorm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from minillama.teach.exercise import Case, Exercise, Mistake


def rms(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2).mean(-1, keepdim=True).sqrt()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return normed.type_as(x) * weight


def fold_weight(weight: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * weight


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _rms_cases() -> list[Case]:
    return [
        Case("the vector (3, 4)", (torch.tensor([3.0, 4.0]),)),
        Case("two texts of three tokens", (_numbers(2, 3, 8),)),
        Case("as many tokens as numbers in a token", (_numbers(4, 4, seed=1),)),
        Case("a vector of equal numbers", (torch.full((1, 6), -2.0),)),
    ]


RMS = Exercise(
    number="1.1",
    hints=(
        "Three steps, and their names are in the title, read from right to left: square, mean, root.",
        "`x.pow(2)` squares, `.mean(-1)` is the mean over the last axis, `.sqrt()` the root.",
        "To divide `x` by the result, its last axis must still be there: `.mean(-1, keepdim=True)`.",
    ),
    answer=rms,
    expected=lambda x: (torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True) / x.shape[-1] ** 0.5).to(x.dtype),
    cases=_rms_cases,
    mistakes=[
        Mistake(
            "no keepdim",
            "The numbers are right, but the last axis is gone: `(2, 3)` where `(2, 3, 1)` is needed to divide `x` by "
            "it. `keepdim=True` keeps it.",
            lambda x: x.pow(2).mean(-1).sqrt(),
        ),
        Mistake(
            "sum, not mean",
            "You took the root of the sum of squares. That is the length of the vector, and it grows with D; "
            "RMS divides by D under the root.",
            lambda x: x.pow(2).sum(-1, keepdim=True).sqrt(),
        ),
        Mistake(
            "no root",
            "This is the mean of the squares. Its root is still to be taken: the RMS of (2, 2) is 2, not 4.",
            lambda x: x.pow(2).mean(-1, keepdim=True),
        ),
        Mistake(
            "standard deviation",
            "You took the standard deviation, which subtracts the mean first. For a vector of equal numbers that is 0, "
            "and its RMS is their size.",
            lambda x: x.std(-1, keepdim=True, unbiased=False),
        ),
        Mistake(
            "standard deviation",
            "You took the standard deviation, which subtracts the mean first. For a vector of equal numbers that is 0, "
            "and its RMS is their size.",
            lambda x: x.std(-1, keepdim=True),
        ),
        Mistake(
            "square after the mean",
            "You took the mean first and squared it: plus and minus cancel before they are squared. Read the name from "
            "right to left: square, mean, root.",
            lambda x: x.mean(-1, keepdim=True).pow(2).sqrt(),
        ),
        Mistake(
            "length over D",
            "You divided the length by D. The D is under the root: the length over the root of D.",
            lambda x: x.norm(dim=-1, keepdim=True) / x.shape[-1],
        ),
        Mistake(
            "one over it",
            "This is 1 over the RMS (`rsqrt`). The size itself is asked for: `sqrt`.",
            lambda x: x.pow(2).mean(-1, keepdim=True).rsqrt(),
        ),
        Mistake(
            "already divided",
            "You returned x divided by its RMS, which has the shape of x. The size itself is asked for, (..., 1).",
            lambda x: x / x.pow(2).mean(-1, keepdim=True).sqrt(),
        ),
        Mistake(
            "mean of sizes",
            "You took the mean of absolute values. Squaring comes first: a large number counts for more.",
            lambda x: x.abs().mean(-1, keepdim=True),
        ),
        Mistake(
            "whole tensor",
            "You took one RMS over all tokens together. Every vector has its own: the mean goes over the last axis "
            "only.",
            lambda x: x.pow(2).mean().sqrt().expand(*x.shape[:-1], 1),
        ),
        Mistake(
            "whole tensor",
            "You took one RMS over all tokens together. Every vector has its own: the mean goes over the last axis "
            "only.",
            lambda x: x.pow(2).mean().sqrt(),
        ),
        Mistake(
            "wrong axis",
            "Your mean goes over the tokens. It should go over the numbers of one token, the last axis: `.mean(-1)`.",
            lambda x: x.pow(2).mean(-2, keepdim=True).sqrt(),
        ),
    ],
)


def _rms_norm_cases() -> list[Case]:
    ones = torch.ones(8)
    weight = torch.linspace(0.5, 2.0, 8)
    return [
        Case("the vector (3, 4) with weight 1", (torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0)),
        Case("two texts of three tokens, weight 1", (_numbers(2, 3, 8), ones, 1e-5)),
        Case("a weight that is not 1", (_numbers(2, 3, 8, seed=1), weight, 1e-5)),
        Case("a mean far from zero", (_numbers(3, 8, seed=2) + 5, ones, 1e-5)),
        Case("numbers about as small as the root of eps", (_numbers(3, 8, seed=3) * 2e-3, ones, 1e-5)),
        Case(
            "numbers about as small as the root of eps, which is 1e-3 here", (_numbers(3, 8, seed=7) * 0.03, ones, 1e-3)
        ),
        Case("a vector of zeros", (torch.zeros(1, 8), ones, 1e-5)),
        Case(
            "as many tokens as numbers in a token", (_numbers(8, 8, seed=4) * torch.arange(1, 9)[:, None], ones, 1e-5)
        ),
        Case("numbers of 300 in fp16", ((_numbers(2, 8, seed=5) * 300).half(), weight.half(), 1e-5)),
        Case("bf16", (_numbers(2, 8, seed=6).bfloat16(), weight.bfloat16(), 1e-5)),
    ]


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _order(function: Any) -> str | None:
    """Whether a right answer multiplies before it rounds, which differs in bf16's last bit only."""
    x, weight = _numbers(64, 64, seed=8).bfloat16(), torch.linspace(0.5, 2.0, 64).bfloat16()
    if torch.equal(function(x, weight, 1e-5), rms_norm(x, weight, 1e-5)):
        return None
    return (
        "One thing to know: in bf16 the last bit differs from Llama's here and there, as it does where the weight "
        "comes before `.type_as(x)`; the chapter says why the cast comes first."
    )


RMS_NORM = Exercise(
    number="1.2",
    hints=(
        "Start with `x / rms(x)`, then see what the checker misses: eps, the weight, and what happens in fp16.",
        "eps is added to the mean of the squares, under the root. `torch.rsqrt(y)` is 1 / sqrt(y).",
        "`x32 = x.float()`, work on that, come back with `.type_as(x)`, and multiply by the weight last.",
    ),
    answer=rms_norm,
    expected=lambda x, weight, eps: F.rms_norm(x.double(), x.shape[-1:], None, eps).to(x.dtype) * weight,
    cases=_rms_norm_cases,
    remark=_order,
    mistakes=[
        Mistake(
            "subtracts the mean",
            "You subtract the mean first. That is LayerNorm; RMSNorm leaves the mean where it is.",
            lambda x, w, eps: _normed(x.float() - x.float().mean(-1, keepdim=True), eps).type_as(x) * w,
        ),
        Mistake(
            "sum, not mean",
            "You divide by the length of the vector: the mean of the squares is needed, not their sum. "
            "With the sum, every number shrinks as D grows.",
            lambda x, w, eps: (x.float() * torch.rsqrt(x.float().pow(2).sum(-1, keepdim=True) + eps)).type_as(x) * w,
        ),
        Mistake(
            "no root",
            "You divide by the mean square itself. The root is missing: `(3, 4)` should come out near 1, not near 0.3.",
            lambda x, w, eps: (x.float() / (x.float().pow(2).mean(-1, keepdim=True) + eps)).type_as(x) * w,
        ),
        Mistake(
            "eps outside the root",
            "You add eps after the root. It belongs under it: eps 1e-5 there is worth 0.003 here, and small vectors "
            "come out differently.",
            lambda x, w, eps: (x.float() / (x.float().pow(2).mean(-1, keepdim=True).sqrt() + eps)).type_as(x) * w,
        ),
        Mistake(
            "no eps",
            "eps is missing. A vector of zeros becomes 0/0, which is not a number, and small vectors are blown up.",
            lambda x, w, eps: _normed(x.float(), 0.0).type_as(x) * w,
        ),
        *[
            Mistake(
                "eps elsewhere",
                "eps is in it, but in another place. As it is, it is added to the mean of the squares, under the root.",
                wrong,
            )
            for wrong in (
                lambda x, w, eps: _normed(x.float(), eps**2).type_as(x) * w,
                lambda x, w, eps: (x.float() / (x.float() + eps).pow(2).mean(-1, keepdim=True).sqrt()).type_as(x) * w,
                lambda x, w, eps: (
                    (x.float() / x.float().pow(2).mean(-1, keepdim=True).sqrt().clamp(min=eps)).type_as(x) * w
                ),
                lambda x, w, eps: (x.float() / x.float().pow(2).mean(-1, keepdim=True).sqrt() + eps).type_as(x) * w,
                lambda x, w, eps: (x.float() / (x.float().pow(2) + eps).sum(-1, keepdim=True).sqrt()).type_as(x) * w,
            )
        ],
        Mistake(
            "an eps of its own",
            "You wrote 1e-5 into it. Use the `eps` that is passed in: models differ in it.",
            lambda x, w, eps: _normed(x.float(), 1e-5).type_as(x) * w,
        ),
        Mistake(
            "multiplies",
            "You multiply by the RMS. Divide by it: a long vector should become shorter.",
            lambda x, w, eps: (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + eps).sqrt()).type_as(x) * w,
        ),
        Mistake(
            "adds the weight",
            "You add the weight. It is a factor for each place: multiply.",
            lambda x, w, eps: _normed(x.float(), eps).type_as(x) + w,
        ),
        Mistake(
            "no weight",
            "The learned weight is missing: multiply the normed vector by `weight`.",
            lambda x, w, eps: _normed(x.float(), eps).type_as(x),
        ),
        Mistake(
            "one plus weight",
            "You multiply by `1 + weight`. Some models store their weight that way (Gemma does); Llama's is the factor "
            "itself.",
            lambda x, w, eps: _normed(x.float(), eps).type_as(x) * (1 + w),
        ),
        Mistake(
            "whole tensor",
            "All tokens are divided by one common size. Every vector has its own RMS: `mean(-1, keepdim=True)`.",
            lambda x, w, eps: (x.float() * torch.rsqrt(x.float().pow(2).mean() + eps)).type_as(x) * w,
        ),
        Mistake(
            "wrong axis",
            "Your mean goes over the tokens. It should go over the D numbers of one token, the last axis.",
            lambda x, w, eps: (x.float() * torch.rsqrt(x.float().pow(2).mean(-2, keepdim=True) + eps)).type_as(x) * w,
        ),
        Mistake(
            "fp16 inside",
            "In fp16 it goes wrong: 300 squared is 90,000, and fp16 ends at 65,504. Take the squares in fp32, with "
            "`x.float()`.",
            lambda x, w, eps: _normed(x, eps) * w,
        ),
        Mistake(
            "fp16 inside",
            "In fp16 it goes wrong: 300 squared is 90,000, and fp16 ends at 65,504. Take the squares in fp32, with "
            "`x.float()`.",
            lambda x, w, eps: x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w,
        ),
        Mistake(
            "stays in fp32",
            "The numbers are right, but half-precision input comes back as fp32. The model goes on in the dtype of x: "
            "`.type_as(x)`. (After `x = x.float()`, x itself is fp32: give the copy another name, `x32`.)",
            lambda x, w, eps: _normed(x.float(), eps) * w.float(),
        ),
    ],
)


def _fold_cases() -> list[Case]:
    return [
        Case("two numbers in, three out", (torch.tensor([2.0, 10.0]), torch.arange(1.0, 7.0).view(3, 2))),
        Case("a square matrix", (torch.linspace(0.5, 2.0, 4), _numbers(4, 4))),
        Case("a wide one", (torch.linspace(0.5, 2.0, 6), _numbers(3, 6, seed=1))),
    ]


FOLD_WEIGHT = Exercise(
    number="1.3",
    hints=(
        "What reaches the linear layer is `normed * weight`. Write out one number of its output as a sum.",
        "Output i is the sum over j of w[i, j] * weight[j] * normed[j]. Which numbers of w does weight[j] meet?",
        "weight[j] multiplies column j of w. Broadcasting lines up the last axis, which is the one of the columns.",
    ),
    answer=fold_weight,
    expected=lambda weight, w: torch.einsum("ij,j->ij", w, weight),
    cases=_fold_cases,
    mistakes=[
        Mistake(
            "rows",
            "You scaled the rows of w. Rows are outputs; the norm's weight meets the inputs, which are the columns.",
            lambda weight, w: w * weight[:, None],
        ),
        Mistake(
            "divides",
            "You divided by the weight. That undoes the norm's scale; folding does it inside w.",
            lambda weight, w: w / weight,
        ),
        Mistake(
            "multiplies through",
            "You multiplied the matrix by the vector, which gives one number for each output. A matrix is wanted, "
            "of the shape of w.",
            lambda weight, w: w @ weight,
        ),
        Mistake(
            "transposed",
            "You returned the transpose. `nn.Linear` keeps its matrix as (out, in).",
            lambda weight, w: (w * weight).T,
        ),
        Mistake(
            "one plus weight",
            "You folded in `1 + weight`. Llama's weight is the factor itself.",
            lambda weight, w: w * (1 + weight),
        ),
        Mistake(
            "adds",
            "You add the weight to w. What is normed gets multiplied by it, so its columns have to be.",
            lambda weight, w: w + weight,
        ),
        Mistake("unchanged", "w came back as it was: the weight is not in it yet.", lambda weight, w: w),
    ],
)


EXERCISES = [RMS, RMS_NORM, FOLD_WEIGHT]
