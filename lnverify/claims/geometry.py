"""Geometry: the Fisher matrix of a small layer-normalised model, and the scale of its weights as a learning rate.

The model is softmax(LN(W x)): logits z of the classes from a case x. Along a direction Delta of W the derivative of
z comes from the derived forward mode, and with it, for labels y drawn from the model,
Delta'F Delta = E (d log p(y))^2 = Var_p(dz), where d log p(y) = dz_y - E_p dz. All cases count alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lnverify.claims.balls import Array, ball, balls, drawn, exp, log, norm
from lnverify.claims.ledger import claim
from lnverify.claims.normalizers import jvp, layer_norm, vjp
from lnverify.claims.reading import Reading, equal, order, refute

CLASSES, INPUTS, CASES = 4, 3, 3
LABELS = (2, 0, 2)
SMALL = 2**20
Normalizer = Callable[..., Any]


def _softmax(z: Array) -> Array:
    e = exp(z)
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _model() -> tuple[Array, Array, Array]:
    """Weights, a direction of theirs, and cases."""
    return drawn(300, CLASSES, INPUTS), drawn(301, CLASSES, INPUTS), drawn(302, CASES, INPUTS)


def _score(weights: Array, direction: Array, x: Array, eps: Any = 0) -> tuple[Array, Array]:
    """p(y|x), and d log p(y|x) along the direction, each of shape (cases, classes)."""
    p = _softmax(layer_norm(x @ weights.T, eps=eps))
    dz = jvp(x @ weights.T, x @ direction.T, eps=eps)
    return p, dz - (p * dz).sum(axis=1, keepdims=True)


def fisher(weights: Array, direction: Array, x: Array, eps: Any = 0) -> Any:
    """direction' F direction with labels drawn from the model."""
    p, score = _score(weights, direction, x, eps)
    return (p * score * score).sum() / len(x)


def fisher_of_data(weights: Array, direction: Array, x: Array, eps: Any = 0) -> Any:
    """The same with the labels of the data in the place of the model's: another matrix."""
    _, score = _score(weights, direction, x, eps)
    return sum(score[n, y] ** 2 for n, y in enumerate(LABELS)) / len(x)


def _divergence(weights: Array, other: Array, x: Array, eps: Any) -> Any:
    """KL(p || q), the mean over the cases."""
    p, q = (_softmax(layer_norm(x @ w.T, eps=eps)) for w in (weights, other))
    return (p * (log(p) - log(q))).sum() / len(x)


def _remainder(matrix: Callable[..., Any], step: Any) -> Any:
    """KL(p_W || p_(W + t Delta)) less t^2/2 Delta'F Delta, at eps = 1."""
    weights, direction, x = _model()
    return _divergence(weights, weights + step * direction, x, 1) - step**2 / 2 * matrix(weights, direction, x, 1)


def gradient(weights: Array, x: Array, backward: Callable[..., Any] = vjp) -> Array:
    """Gradient for W of the cross entropy with the labels of the data: dz = p - onehot, then the reverse mode."""
    a = x @ weights.T
    onehot = np.eye(CLASSES, dtype=int)[list(LABELS)]
    return np.asarray(backward(a, _softmax(layer_norm(a)) - onehot)["x_bar"].T @ x)


@claim(
    "A70",
    "Section 9",
    "The divergence KL between nearby parameters is about half of delta'F delta.",
    "true",
    "The remainder vanishes with the third power of the distance.",
)
def second_order(matrix: Callable[..., Any] = fisher) -> Iterator[Reading]:
    """KL and its first derivative are 0 at delta = 0, and the second derivative is F; t^3 is the next power."""
    step = ball(1) / SMALL
    for t in (step, step / SMALL):
        name = "2^-20" if t is step else "2^-40"
        coarse, fine = _remainder(matrix, t), _remainder(matrix, t / 2)
        yield order(f"order of KL - t^2/2 delta'F delta at t = {name}", 3, coarse, fine)


@claim(
    "A71",
    "Section 9",
    "F is the expectation of the outer product of the score with itself.",
    "conditional",
    "The expectation is over labels drawn from the model. With the labels of the data it is another matrix, for which "
    "A70 fails.",
)
def labels_of_the_model(of_data: Callable[..., Any] = fisher_of_data) -> Iterator[Reading]:
    """Under the model the score has mean 0, which it has not under the data."""
    weights, direction, x = _model()
    p, score = _score(weights, direction, x)
    yield equal("mean of the score under the model", (p * score).sum(axis=1), 0)
    data, model = of_data(weights, direction, x), fisher(weights, direction, x)
    yield refute("delta'F delta with labels of the data and of the model", data, model)
    step = ball(1) / SMALL
    coarse, fine = _remainder(of_data, step), _remainder(of_data, step / 2)
    yield order("order of KL - t^2/2 delta'F delta, labels of the data", 2, coarse, fine)


@claim(
    "A72",
    "Section 9",
    "Long weights learn slowly: their length acts on the learning rate.",
    "conditional",
    "eps must be 0, and the whole matrix must be scaled. Then W -> d W divides the gradient by d and F by d^2, and a "
    "step of rate e at d W does what one of rate e/d^2 does at W. Each step makes the weights longer.",
    proofs=("radial-gradient",),
)
def effective_rate(backward: Callable[..., Any] = vjp, quadratic: Callable[..., Any] = fisher) -> Iterator[Reading]:
    """d W - e grad(W)/d = d (W - e/d^2 grad(W)). <grad, W> = 0, hence |W - e grad|^2 = |W|^2 + e^2 |grad|^2."""
    weights, direction, x = _model()
    g = gradient(weights, x, backward)
    yield equal("gradient at 2W, and half of that at W", gradient(2 * weights, x, backward), g / 2)
    yield equal("<gradient, W>", (g * weights).sum(), 0)
    longer, shorter = (quadratic(w, direction, x) for w in (2 * weights, weights))
    yield equal("delta'F delta at 2W, and a quarter of that at W", longer, shorter / 4)
    far = layer_norm(x @ (2 * weights - 3 * gradient(2 * weights, x, backward)).T)
    yield equal("outputs after a step of 3 at 2W, and of 3/4 at W", far, layer_norm(x @ (weights - g * 3 / 4).T))
    yield equal("|W - grad|^2, and |W|^2 + |grad|^2", norm(weights - g) ** 2, norm(weights) ** 2 + norm(g) ** 2)
    longer, shorter = (quadratic(w, direction, x, 1) for w in (2 * weights, weights))
    yield refute("delta'F delta at 2W, and a quarter of that at W, eps = 1", longer, shorter / 4)


@claim(
    "P05",
    "Section 5.2.2, text",
    "If the weight vector of a unit becomes twice as long, the curvature along it changes by a factor of 1/2.",
    "false",
    "By 1/4, for the curvature has the scale twice. The mixed entries, between this unit and another, change by 1/2.",
)
def quarter_of_the_curvature(scale: int = 2) -> Iterator[Reading]:
    """A unit normalised by itself (z_i = w_i'x/|w_i|, as in weight norm) moves half as fast at 2 w_i, in any direction.

    F along a direction of unit 0 alone is Var_p of a dz that is 0 elsewhere; the mixed entry is the covariance of the
    dz of unit 0 and that of unit 1.
    """
    weights, direction, x = _model()
    longer = weights * balls([scale, 1, 1, 1])[:, None]

    def tangents(w: Array, unit: int) -> Array:
        length = norm(w[unit])
        across = direction[unit] - w[unit] * (w[unit] @ direction[unit]) / length**2
        dz = balls(np.zeros((CASES, CLASSES), int))
        dz[:, unit] = x @ across / length
        return dz

    def curvature(w: Array, i: int, j: int) -> Any:
        lengths = np.asarray([norm(row) for row in w], dtype=object)
        p = _softmax((x @ w.T) / lengths)
        u, v = tangents(w, i), tangents(w, j)
        return ((p * u * v).sum() - ((p * u).sum(axis=1) * (p * v).sum(axis=1)).sum()) / CASES

    before, after = curvature(weights, 0, 0), curvature(longer, 0, 0)
    yield refute("curvature of unit 0 after, and half of it before", after, before / 2)
    yield equal("curvature of unit 0 after, and a quarter of it before", after, before / 4)
    before, after = curvature(weights, 0, 1), curvature(longer, 0, 1)
    yield equal("entry of units 0 and 1 after, and half of it before", after, before / 2)


@claim(
    "A73",
    "Section 9",
    "Normalization tames the curvature, and gradients depend less on how large the parameters are.",
    "conditional",
    "For the whole matrix and eps 0: the gradient for the layer's input does not change when W is scaled, and that for "
    "W is divided by the factor. Without normalization the one is multiplied, and the other not divided.",
)
def gradients_and_scale(backward: Callable[..., Any] = vjp) -> Iterator[Reading]:
    """dL/dx = W' da, with da divided by d where W is multiplied by it."""
    weights, _, x = _model()
    dz = drawn(303, CASES, CLASSES)
    one, two = (backward(x @ w.T, dz)["x_bar"] for w in (weights, 2 * weights))
    yield equal("gradient for x at 2W, and at W", two @ (2 * weights), one @ weights)
    yield equal("gradient for W at 2W, and half of that at W", two.T @ x, one.T @ x / 2)
    yield refute("gradient for x at 2W, and at W, without normalization", dz @ (2 * weights), dz @ weights)
