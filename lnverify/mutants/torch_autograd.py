"""Mutants that need torch: autograd, strides, state kept between calls, modules.

A function is `fn(x, normalized_shape, weight, bias, eps)`. Entries with `fresh` are factories, since the
function that they return keeps state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import GRADIENTS, SIXTEEN, Mutant
from lnverify.mutants.torch_memory import MEMORY
from lnverify.mutants.torch_modules import MODULES
from lnverify.mutants.torch_outlived import OUTLIVED
from lnverify.mutants.torch_parts import (
    Composed,
    Function,
    Shape,
    affine,
    applied,
    gradients,
    hand_written,
    output_promoted,
    project,
    statistics,
    textbook,
    wide,
)
from lnverify.mutants.torch_pools import POOLS
from lnverify.mutants.torch_second_order import SECOND_ORDER
from lnverify.mutants.torch_shapes import SHAPES
from lnverify.mutants.torch_strides import TORCH_STRIDES
from lnverify.mutants.torch_surroundings import SURROUNDINGS
from lnverify.mutants.torch_transforms import TRANSFORMS

Three = tuple[Tensor | None, Tensor | None, Tensor | None]


def storage_order(t: Tensor) -> Tensor:
    """The elements in storage order, zeros past its end: strides are ignored."""
    if t.is_contiguous():
        return t
    flat = t.detach().as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)[t.storage_offset() :]
    missing = max(t.numel() - flat.numel(), 0)
    return torch.cat((flat[: t.numel()], flat.new_zeros(missing))).view(t.shape)


def frozen_x(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """xhat is formed only where x needs a gradient: dweight is 0 otherwise."""
    return dx, dweight if ctx.needs_input_grad[0] else torch.zeros_like(dweight), dbias


def frozen_weight(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """The weight is saved only where it needs a gradient: dx is that of an absent weight otherwise."""
    if ctx.needs_input_grad[2]:
        return dx, dweight, dbias
    x, _, _, mean, rstd = ctx.saved_tensors
    return gradients(dy, x, ctx.shape, None, mean, rstd)[0], dweight, dbias


def no_gradient_for_weight(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """No dweight."""
    return dx, None, dbias


def dy_overwritten(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """The gradient of x is written over dy."""
    dx = dx.clone()
    dy.detach().copy_(dx)
    return dx, dweight, dbias


def bias_lost_in_second_order(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """dbias does not depend on dy any more where there is no weight."""
    return dx, dweight, dbias if ctx.saved_tensors[1] is not None else dbias.detach()


def weight_lost_in_second_order(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """dweight is a constant for the second derivative."""
    return dx, dweight.detach(), dbias


def under_create_graph(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """The differentiable path, taken with create_graph, forgets the mean of g."""
    if not torch.is_grad_enabled():
        return dx, dweight, dbias
    x, weight, _, mean, rstd = ctx.saved_tensors
    g = wide(dy) if weight is None else wide(dy) * wide(weight)
    xhat = (wide(x) - mean) * rstd
    second = (g * xhat).mean(tuple(range(-len(ctx.shape), 0)), keepdim=True)
    return rstd * (g - xhat * second), dweight, dbias


def flat_sums(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """The many-row path returns flat parameter gradients; autograd refuses them for several dimensions."""
    many = dy.numel() > 64 * dweight.numel()
    return dx, dweight.flatten() if many else dweight, dbias.flatten() if many else dbias


def accumulating() -> Function:
    """Scratch of the parameter gradients is kept between calls and never cleared."""
    scratch: dict[tuple[Any, ...], Tensor] = {}

    def spoil(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
        key = (dweight.shape, dweight.dtype)
        scratch[key] = (scratch.get(key, torch.zeros_like(dweight)) + dweight).detach()
        return dx, scratch[key], dbias

    return hand_written(spoil)


def cached_by_address() -> Function:
    """Statistics are cached by the address of x: new values in the same memory get the old ones."""
    cache: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        f = wide(x)
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype, normalized_shape, eps)
        if x.requires_grad:
            return textbook(x, normalized_shape, weight, bias, eps)
        if key not in cache:
            cache[key] = statistics(f, normalized_shape, eps)
        mean, rstd = cache[key]
        return affine((f - mean) * rstd, weight, bias).to(x.dtype)

    return layer_norm


def first_call_kept() -> Function:
    """The parameters of the first call in a shape are kept: later ones are not looked at."""
    kept: dict[tuple[Any, ...], Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        if weight is not None and not weight.requires_grad:
            weight = kept.setdefault((weight.shape, weight.dtype), weight.detach().clone())
        return textbook(x, normalized_shape, weight, bias, eps)

    return layer_norm


def subtract_in_place(f: Tensor, mean: Tensor) -> None:
    """x.float() is x itself if x is float32: the centring in place reaches the caller."""
    f.detach().sub_(mean)


def output_wide(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The cast back to 16 bits is forgotten."""
    f = wide(x)
    mean, rstd = statistics(f, normalized_shape, eps)
    return affine((f - mean) * rstd, weight, bias)


def detached(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """A fused forward that was registered without a backward."""
    y = textbook(x, normalized_shape, weight, bias, eps).detach()
    # loss.backward() succeeds, and nothing gets a gradient.
    return y.requires_grad_() if torch.is_grad_enabled() and not torch.is_inference(y) else y


def inference_path(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """The fast path without gradients takes the variance over n - 1."""
    if torch.is_grad_enabled() or x.numel() == 0:
        return textbook(x, normalized_shape, weight, bias, eps)
    f, axes = wide(x), tuple(range(-len(normalized_shape), 0))
    variance, mean = torch.var_mean(f, axes, correction=1 if weight is None or weight.numel() > 1 else 0, keepdim=True)
    return affine((f - mean) * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)


class _Tangent(Composed):
    """Right but for its forward-mode rule; the extra argument says what that lacks.

    'mean': of the tangent of x. 'parameters': their tangents. 'x': the rule expects that x has one.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        Composed.setup_context(ctx, inputs, output)
        ctx.set_materialize_grads(False)  # an argument without a tangent is None

    @staticmethod
    def jvp(ctx: Any, tx: Any, _shape: Any, tweight: Any, tbias: Any, *_: Any) -> Tensor:
        x, weight, _ = ctx.saved_tensors
        f = wide(x)
        mean, rstd = statistics(f, ctx.shape, ctx.eps)
        xhat = (f - mean) * rstd
        t = torch.zeros_like(f) if tx is None else wide(tx)
        inner = (t * xhat).mean(tuple(range(-len(ctx.shape), 0)), keepdim=True)
        (lost,) = ctx.extra
        out = affine(rstd * (t - xhat * inner if lost == "mean" else project(t, xhat, ctx.shape)), weight, None)
        if lost != "parameters" and not (lost == "x" and tx is None):
            out = out if tweight is None else out + xhat * wide(tweight)
            out = out if tbias is None else out + wide(tbias)
        return out.to(x.dtype)


def _f(id: str, bug: str, target: Any, affected: tuple[str, ...], laws: tuple[str, ...],
       threads: tuple[str, ...] = (), **kwargs: Any) -> Mutant:  # fmt: skip
    return Mutant(id, bug, threads, framework="torch", target=target, affected=affected, laws=laws, **kwargs)


STRIDES = ("microsoft/DirectML#588", "NVIDIA/TransformerEngine#1017", "ELS-RD/kernl#193")
CONSTANT = ("pytorch/functorch#807", "pytorch/pytorch#50467", "pytorch/pytorch#175754")
SECOND = ("d2x", "d2weight", "d2bias", "d2dy")
PROMOTED = ("pytorch/pytorch#81851", "pytorch/pytorch#188503", "tensorflow/tensorflow#35817")

MUTANTS = [
    _f("dweight-needs-dx", "dweight is 0 where x needs no gradient.", hand_written(frozen_x), ("dweight",),
       ("LN2", "LN7")),
    _f("dx-needs-dweight", "dx forgets the weight where the weight needs no gradient.",
       hand_written(frozen_weight),
       ("dx",), ("LN2", "LN7"), ("pytorch/pytorch#18233",)),
    _f("dweight-not-returned", "The backward returns None for the weight.",
       hand_written(no_gradient_for_weight),
       ("dweight",), ("LN2",), ("csarofeen/pytorch#519",), hidden=False),
    _f("dy-strides-ignored", "dy is read in storage order, whatever its strides.",
       hand_written(read_dy=storage_order), GRADIENTS, ("LN2", "LN6"), STRIDES),
    _f("x-strides-ignored", "x is read in storage order, whatever its strides.",
       hand_written(read_x=storage_order), ("y",), ("LN1", "LN6"), STRIDES),
    _f("dy-overwritten-torch", "dx is written over dy.", hand_written(dy_overwritten), GRADIENTS, ("LN7",)),
    _f("x-centred-in-place-torch", "x.float() is x itself: centring in place changes x.",
       hand_written(change_x=subtract_in_place), ("y",), ("LN7",), ("GeeeekExplorer/nano-vllm#170",),
       dtypes=("float64", "float32")),
    _f("output-promoted", "The dtype of y is the promotion of x and weight.", output_promoted, ("y",),
       ("LN6",),
       PROMOTED, dtypes=SIXTEEN),
    _f("output-wide", "16-bit x gives float32 y.", output_wide, ("y",), ("LN6",), PROMOTED, dtypes=SIXTEEN,
       hidden=False),
    _f("no-backward", "No gradient reaches x or the parameters.", detached, GRADIENTS, ("LN2",),
       ("huggingface/candle#3613",), hidden=False),
    _f("flat-parameter-gradient-torch", "Beyond 64 rows parameter gradients are flat: autograd raises.",
       hand_written(flat_sums), ("dweight", "dbias"), ("LN2", "LN6"),
       ("pytorch/pytorch#192016", "pytorch/pytorch#193016", "intel/torch-xpu-ops#5235")),
    _f("scratch-accumulates", "Scratch of dweight is not cleared: the second backward returns the sum.",
       accumulating, ("dweight",), ("LN7", "LN2"), ("karpathy/llm.c#408", "apache/mxnet#18499"), fresh=True),
    _f("cached-by-address", "Statistics are cached by the address of x.", cached_by_address, ("y",),
       ("LN7", "LN1"), ("Hsword/Hetu#17",), fresh=True),
    _f("first-weight-kept", "The first weight of a shape is used ever after.", first_call_kept, ("y",),
       ("LN7", "LN1"), ("Hsword/Hetu#17",), fresh=True),
    _f("inference-path-unbiased", "Without gradients, the variance is divided by n - 1.", inference_path,
       ("y",),
       ("LN7", "LN1"), ("tensorflow/tensorflow#58863",)),
    _f("create-graph-path", "With create_graph, the backward forgets mean(g).",
       hand_written(under_create_graph),
       ("dx", *SECOND), ("LN2", "LN7"), ("ml-explore/mlx#3220",)),
    _f("double-backward-constants", "Saved mean and rstd are constants for the second derivative.",
       hand_written(),
       ("d2x",), ("LN2",), CONSTANT),
    _f("double-backward-bias-lost", "Without a weight, the second derivative through dbias is lost.",
       hand_written(bias_lost_in_second_order, recompute=True), ("d2dy",), ("LN2",),
       ("pytorch/pytorch#79705",)),
    _f("double-backward-weight-lost", "The second derivative through dweight is lost.",
       hand_written(weight_lost_in_second_order, recompute=True), ("d2x", "d2dy"), ("LN2",), CONSTANT),
    _f("jvp-without-mean", "The forward-mode rule lacks the mean of the tangent.", applied(_Tangent, "mean"),
       ("ty",),
       ("LN2",), ("pytorch/pytorch#196700",)),
    _f("jvp-without-parameters", "The forward-mode rule ignores the tangents of the parameters.",
       applied(_Tangent, "parameters"), ("ty",), ("LN2",), ("pytorch/pytorch#196700",)),
    _f("jvp-wants-x", "Tangents of the parameters are lost where x has none.", applied(_Tangent, "x"), ("ty",),
       ("LN2",)),
    *MEMORY,
    *OUTLIVED,
    *POOLS,
    *SECOND_ORDER,
    *SHAPES,
    *SURROUNDINGS,
    *TORCH_STRIDES,
    *TRANSFORMS,
    *MODULES,
]  # fmt: skip
