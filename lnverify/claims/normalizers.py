"""The normalizers that claims are about, over arrays of balls. Layer norm comes from the derived formulas.

The others are written out here, in their own words and not as layer norm of something, so that "batch norm is layer
norm of the transpose" is a statement about two programs. eps is 0 unless it is given, as in the paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lnverify.claims.balls import Array, ball, balls, sqrt
from lnverify.formulas import layer_norm as formulas


def _affine(x: Array, gamma: Any, beta: Any) -> tuple[Array, Array]:
    n = x.shape[-1]
    return balls(np.ones(n) if gamma is None else gamma), balls(np.zeros(n) if beta is None else beta)


def statistics(x: Any, eps: Any = 0) -> dict[str, Any]:
    """mu, var, r, xhat of the rows of x, from the derived formulas."""
    return formulas.layer_norm_plain(balls(x), ball(eps))


def layer_norm(x: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Array:
    """y of each row of x; a vector is one row."""
    x = balls(x)
    rows = np.atleast_2d(x)
    y = formulas.layer_norm(rows, *_affine(rows, gamma, beta), ball(eps))["y"]
    return np.asarray(y.reshape(x.shape))


def moments(values: Any) -> tuple[Any, Any]:
    """Mean and mean square of all entries."""
    flat = balls(values).reshape(-1)
    return flat.sum() / flat.size, (flat * flat).sum() / flat.size


def vjp(x: Any, dy: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> dict[str, Any]:
    """x_bar, gamma_bar, beta_bar of the rows of x for the cotangents dy."""
    x = balls(x)
    return formulas.layer_norm_vjp(x, *_affine(x, gamma, beta), ball(eps), balls(dy))


def jvp(x: Any, dx: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Array:
    """The tangent of y along the tangent dx of x."""
    x = balls(x)
    gamma, beta = _affine(x, gamma, beta)
    still = gamma * 0
    return np.asarray(formulas.layer_norm_jvp(x, gamma, beta, ball(eps), balls(dx), still, still)["y_dot"])


def jacobian(x: Any, gamma: Any = None, eps: Any = 0) -> Array:
    """dy_i/dx_j of one row, shape (H, H), from the derived forward mode."""
    x = balls(x)
    n = x.shape[-1]
    return jvp(np.tile(x, (n, 1)), np.eye(n), gamma, None, eps).T


def standardise(x: Any, axes: tuple[int, ...], eps: Any = 0) -> Array:
    """x less its mean over `axes`, over sqrt(var + eps) with the variance over all of their entries."""
    x = balls(x)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    centred = x - x.sum(axis=axes, keepdims=True) / count
    variance = (centred * centred).sum(axis=axes, keepdims=True) / count
    return np.asarray(centred / sqrt(variance + ball(eps)))


def batch_norm(x: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Array:
    """Each column (unit) of x over its rows (cases)."""
    gamma, beta = _affine(balls(x), gamma, beta)
    return np.asarray(standardise(x, (0,), eps) * gamma + beta)


def weight_norm(weights: Any, x: Any) -> Array:
    """w_i x/|w_i| for each unit i and each case, shape (cases, units): weights are normalised, not outputs."""
    weights = balls(weights)
    length = sqrt((weights * weights).sum(axis=1))
    return np.asarray((balls(x) @ weights.T) / length)


def group_norm(x: Any, groups: int, eps: Any = 0) -> Array:
    """x of shape (cases, channels, places): statistics of each case over the places and channels of a group."""
    x = balls(x)
    cases, channels, places = x.shape
    parts = x.reshape(cases, groups, channels // groups, places)
    return standardise(parts, (2, 3), eps).reshape(x.shape)


def channel_norm(x: Any, eps: Any = 0) -> Array:
    """x of shape (cases, channels, places): statistics of each case and place over the channels."""
    return standardise(x, (1,), eps)
