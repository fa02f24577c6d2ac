"""Mutants in torch that only a transform shows: forward over forward mode, third derivatives, vmap."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import Composed, Shape, applied, cast, gradients, project, statistics, textbook, wide


def second_order(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Value and first derivative are right; the second one is off by a constant."""
    return textbook(x, normalized_shape, weight, bias, eps) + (x - x.detach()) ** 2


def third_order(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Value, first and second derivative are right; the third one is off by a constant."""
    return textbook(x, normalized_shape, weight, bias, eps) + (x - x.detach()) ** 3


def _sample(t: Any, dim: int | None, number: int) -> Any:
    """One sample of a batched tensor, or the tensor where it has no batch."""
    return t if t is None or dim is None else t.select(dim, number)


class _Batched(Composed):
    """A batching rule of its own; the extra argument says what it forgets.

    'parameters': that they have a batch. 'bias': that it may have one where the weight has none. 'alone': that they may
    have one where x has none. 'dimension': that the batch of x need not come first, whose memory is read as if it did.
    'x': the same, where x alone has a batch, which is then more rows.
    'result': that what it returns has the batch first. 'rows': that a weight for each sample is none for each row,
    where there are as many.
    """

    @staticmethod
    def vmap(
        _info: Any, in_dims: tuple[Any, ...], x: Tensor, shape: Shape, weight: Any, bias: Any, eps: float,
        lost: str,
    ) -> tuple[Tensor, int]:  # fmt: skip
        dims = [in_dims[0], in_dims[2], in_dims[3]]
        if lost == "dimension" and dims[0]:
            x, dims[0] = x.reshape(-1, *(size for dim, size in enumerate(x.shape) if dim != dims[0])), 0
        if lost == "x" and dims[0] is not None and dims[1:] == [None, None]:
            return _Batched.apply(x, shape, weight, bias, eps, lost), 0
        if lost == "rows" and dims == [0, 0, 0] and x.dim() == 3 and x.shape[1] == x.shape[0]:
            return textbook(x, shape, None, None, eps) * weight + bias, 0
        first = lost == "parameters" or (lost == "alone" and dims[0] is None)
        first |= lost == "bias" and dims[1] is None and weight is not None
        ys = [
            _Batched.apply(_sample(x, dims[0], i), shape, *(
                _sample(t, dim, 0 if first else i) for t, dim in ((weight, dims[1]), (bias, dims[2]))
            ), eps, lost)
            for i in range(_info.batch_size)
        ]  # fmt: skip
        return torch.stack(ys), (in_dims[0] or 0) if lost == "result" else 0


class _NoTangent(torch.autograd.Function):
    """The identity; its forward-mode rule loses the tangent."""

    @staticmethod
    def forward(t: Tensor) -> Tensor:
        return t.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return torch.zeros_like(t)


class _WeightMoves(Composed):
    """Right, but for the forward mode: where the weight moves and x does not, the tangent of the bias is lost."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """A tangent that is not given is None."""
        Composed.setup_context(ctx, inputs, output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def jvp(ctx: Any, tx: Any, _shape: Any, tweight: Any, tbias: Any, *_: Any) -> Tensor:
        x, weight, bias = ctx.saved_tensors
        moves = tx is not None
        tx, tweight, tbias = (v if t is None and v is None else torch.zeros_like(v) if t is None else t
                              for v, t in ((x, tx), (weight, tweight), (bias, tbias)))  # fmt: skip
        mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
        xhat = (wide(x) - mean) * rstd
        along = rstd * project(wide(tx), xhat, ctx.shape)
        tangent = along if weight is None else along * weight + xhat * tweight
        if bias is None or (weight is not None and not moves):
            return tangent.to(x.dtype)
        return (tangent + tbias).to(x.dtype)


class _Backward(Composed):
    """Right, but for the forward mode of its backward, which loses the tangent of the weight."""

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        held = None if weight is None else _NoTangent.apply(weight)
        mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
        dx, dweight, dbias = gradients(dy, x, ctx.shape, held, mean, rstd)
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None

    @staticmethod
    def jvp(ctx: Any, tx: Any, _shape: Any, tweight: Any, tbias: Any, *_: Any) -> Tensor:
        x, weight, bias = ctx.saved_tensors
        given = [(x, tx), (weight, tweight), (bias, tbias)]
        chosen = [(v, t) for v, t in given if v is not None and t is not None]

        def y(*moved: Tensor) -> Tensor:
            rest = iter(moved)
            x, weight, bias = (v if v is None or t is None else next(rest) for v, t in given)
            return textbook(x, ctx.shape, weight, bias, ctx.eps)

        tangent: Tensor = torch.func.jvp(y, tuple(v for v, _ in chosen), tuple(t for _, t in chosen))[1]
        return tangent


class _Shared(Composed):
    """A batching rule that treats samples as rows, where the parameters have no batch: dweight is that of all."""

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        dx, dweight, dbias = _Rows.apply(dy, x, weight, bias, ctx.shape, ctx.eps)
        return dx, None, dweight, dbias, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, shape: Shape, weight: Any, bias: Any, eps: float
    ) -> tuple[Tensor, int]:
        dims = (in_dims[0], in_dims[2], in_dims[3])
        ys = []
        for number in range(info.batch_size):
            one, w, b = (_sample(t, dim, number) for t, dim in zip((x, weight, bias), dims, strict=True))
            ys.append(_Shared.apply(one, shape, w, b, eps))
        return torch.stack(ys), 0


class _Rows(torch.autograd.Function):
    """The gradients as a kernel of its own."""

    @staticmethod
    def forward(dy: Tensor, x: Tensor, weight: Any, bias: Any, shape: Shape, eps: float) -> tuple[Any, ...]:
        mean, rstd = statistics(wide(x), shape, eps)
        dx, dweight, dbias = gradients(dy, x, shape, weight, mean, rstd)
        return cast(dx.clone(), x), cast(dweight.clone(), weight), cast(dbias.clone(), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Differentiable once."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], dy: Tensor, x: Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
        if in_dims[2] is None and in_dims[3] is None:
            moved = [t if d is None else t.movedim(d, 0) for t, d in zip((dy, x), in_dims, strict=False)]
            moved = [t if d is not None else t.expand(info.batch_size, *t.shape) for t, d in
                     zip(moved, in_dims, strict=False)]  # fmt: skip
            found = _Rows.apply(*moved, weight, bias, *rest)
            return found, tuple(None if f is None else 0 if i == 0 else None for i, f in enumerate(found))
        each = [
            _Rows.apply(*(_sample(t, d, i) for t, d in zip((dy, x, weight, bias), in_dims, strict=False)), *rest)
            for i in range(info.batch_size)
        ]
        stacked = tuple(None if parts[0] is None else torch.stack(parts) for parts in zip(*each, strict=True))
        return stacked, tuple(None if part is None else 0 for part in stacked)


def _m(id: str, bug: str, target: Any, laws: tuple[str, ...], threads: tuple[str, ...]) -> Mutant:
    return Mutant(id, bug, threads, framework="torch", target=target, affected=("y",), laws=laws,
                  dtypes=("float64", "float32"))  # fmt: skip


TRANSFORMS = [
    _m("second-derivative-off", "The second derivative is wrong, value and first derivative are right.", second_order,
       ("LN213", "LN214", "LN209"), ("pytorch/pytorch#196700",)),
    _m("third-derivative-off", "The third derivative is wrong, all lower ones are right.", third_order, ("LN215",),
       ("pytorch/pytorch#175754", "pytorch/pytorch#176218")),
    _m("tangent-lost-in-backward", "The forward mode of the backward loses the tangent of the weight.",
       applied(_Backward), ("LN218",), ()),
    _m("vmap-samples-as-rows", "Under vmap with shared parameters, dweight is the sum over all samples.",
       applied(_Shared), ("LN216",), ("pytorch/functorch#534",)),
    _m("vmap-first-parameters", "The batching rule takes the parameters of the first sample for all.",
       applied(_Batched, "parameters"), ("LN216",), ("pytorch/functorch#534",)),
    _m("vmap-parameters-alone", "Where x has no batch, the parameters of the first sample serve all.",
       applied(_Batched, "alone"), ("LN216",), ("pytorch/functorch#534",)),
    _m("vmap-bias-alone", "Where the weight has no batch, the bias of the first sample serves all.",
       applied(_Batched, "bias"), ("LN220",), ("pytorch/functorch#534",)),
    _m("vmap-of-x-first", "A batch of x alone is taken for more rows, that come first.", applied(_Batched, "x"),
       ("LN220",), ("pytorch/functorch#534",)),
    _m("vmap-other-dimension", "The batch is taken to come first.", applied(_Batched, "dimension"), ("LN216",),
       ("pytorch/functorch#534",)),
    _m("vmap-weight-for-rows", "A weight for each sample is taken for one of each row, where there are as many.",
       applied(_Batched, "rows"), ("LN216",), ()),
    _m("jvp-weight-without-bias", _WeightMoves.__doc__ or "", applied(_WeightMoves), ("LN208",), ()),
    _m("vmap-result-elsewhere", "The batch of y is said to be where that of x is; it comes first.",
       applied(_Batched, "result"), ("LN216",), ("pytorch/functorch#534",)),
]  # fmt: skip
