"""Backward: the gradient of layer norm, the formula in circulation that is wrong, and what gradients cannot see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from lnverify.claims.balls import ball, balls, drawn, norm
from lnverify.claims.ledger import claim
from lnverify.claims.normalizers import jacobian, layer_norm, statistics, vjp
from lnverify.claims.reading import Reading, at_most, equal, refute

Backward = Callable[..., dict[str, Any]]


def _means(values: Any) -> Any:
    """The mean of each row, as a column."""
    return values.sum(axis=1, keepdims=True) / values.shape[1]


def _two_means(hat: Any, r: Any, g: Any) -> Any:
    """r (g - mean g - x̂ mean(x̂ g)), row by row."""
    return r[:, None] * (g - _means(g) - hat * _means(hat * g))


@claim(
    "B30",
    "Method, backward pass",
    "dx_i = (gamma_i/sigma) [dy_i - mean dy - x̂_i mean(x̂ dy)].",
    "false",
    "gamma belongs inside the means: dx_i = (1/sigma) [g_i - mean g - x̂_i mean(x̂ g)] with g = gamma dy and sigma = "
    "sqrt(var + eps). The two agree if gamma is the same for all units. What right less wrong is, is known: "
    "mean_j of (gamma_i - gamma_j) dy_j (1 + x̂_i x̂_j), over sigma.",
    proofs=("closed-form", "gamma-outside-uniform", "gamma-outside-defect"),
    laws=("LN201",),
)
def gamma_in_the_means(backward: Backward = vjp) -> Iterator[Reading]:
    """dx is the derived reverse mode. Smallest: one 1 in each of x, gamma and dy, three units.

    With fewer ones x is constant, or gamma uniform, or dy 0; with two units and eps = 0 both sides are 0.
    """
    x, gamma, dy = balls([[0, 0, 1]]), balls([0, 1, 0]), balls([[1, 0, 0]])
    found = statistics(x)
    wrong, right = gamma * _two_means(found["xhat"], found["r"], dy), backward(x, dy, gamma)["x_bar"]
    yield refute("the formula and dx at x = (0, 0, 1), gamma = (0, 1, 0), dy = (1, 0, 0)", wrong, right)
    x, gamma, dy = drawn(200, 3, 6), drawn(201, 6), drawn(202, 3, 6)
    found = statistics(x, 2)
    hat, r = found["xhat"], found["r"]
    right = backward(x, dy, gamma, eps=2)["x_bar"]
    yield equal("with gamma inside the means, and dx", _two_means(hat, r, gamma * dy), right)
    wrong = gamma * _two_means(hat, r, dy)
    yield refute("the formula and dx, six units", wrong, right)
    pairs = (gamma[:, None] - gamma[None, :]) * dy[:, None, :] * (1 + hat[:, :, None] * hat[:, None, :])
    yield equal("dx less the formula, and what it should be", right - wrong, r[:, None] * pairs.sum(axis=2) / 6)
    uniform = backward(x, dy, balls([5] * 6), eps=2)["x_bar"]
    yield equal("gamma = 5 for all units: the formula and dx", 5 * _two_means(hat, r, dy), uniform)


@claim(
    "B31",
    "Method, backward pass",
    "The gradient is itself normalised, and its variance reduced.",
    "conditional",
    "It loses its component along a common shift, and (eps 0, gamma uniform) that along x̂. Its length is at most "
    "max|gamma|/sigma times that of dy, which for small sigma is an amplification.",
    proofs=("gradient-sum", "projection"),
    laws=("LN206",),
)
def projected_gradient(backward: Backward = vjp) -> Iterator[Reading]:
    """sigma J is diag(gamma) times a projection for eps = 0, and less otherwise: its norm is at most max|gamma|.

    J 1 = 0 and J x̂ = gamma x̂ eps/sigma^3, both by inserting into the Jacobian. Where dy has no component along 1 and
    x̂, dx = dy/sigma for gamma = 1.
    """
    x, gamma, dy = drawn(203, 3, 5), drawn(204, 5), drawn(205, 3, 5)
    found = statistics(x, 2)
    dx = backward(x, dy, gamma, eps=2)["x_bar"]
    yield equal("sum of dx in each row", dx.sum(axis=1), 0)
    for row in range(3):
        limit = max(abs(gamma), key=float) * found["r"][row] * norm(dy[row])
        yield at_most(f"|dx| of row {row}, and max|gamma| |dy|/sigma", norm(dx[row]), limit)
    jac, hat, r = jacobian(x[0], gamma, 2), found["xhat"][0], found["r"][0]
    yield equal("J 1", jac @ balls([1] * 5), 0)
    yield equal("J x̂, and gamma x̂ eps/sigma^3", jac @ hat, gamma * hat * 2 * r**3)
    square = jacobian(x[0]) / statistics(x)["r"][0]
    yield equal("sigma J applied twice, and once: eps = 0, gamma = 1", square @ square, square)
    small, eps = balls([[-1, 1, -1, 1]]) / 100, Fraction(1, 100_000)
    across = backward(small, [[1, 1, -1, -1]], eps=eps)["x_bar"]
    gain = norm(across[0]) / norm(balls([1, 1, -1, -1]))
    due = 1 / ball(Fraction(1, 10_000) + eps).sqrt()
    yield equal("|dx|/|dy| at sigma = 0.01, eps = 1e-5, dy across 1 and x̂", gain, due)
    yield at_most("what a reduction would allow, and that", 1, gain)


@claim(
    "B32",
    "Method, backward pass",
    "The means that are taken away decouple the gradients of the units.",
    "false",
    "They couple them: without these terms the Jacobian would be diagonal, and with them each unit acts on each other "
    "one by -gamma_i (1 + x̂_i x̂_j)/(H sigma).",
    proofs=("jacobian", "jacobian-off-diagonal"),
)
def coupled_units(jac: Callable[..., Any] = jacobian) -> Iterator[Reading]:
    """The Jacobian by the derived forward mode, and by its closed form. Smallest: the row (0, 0, 1)."""
    yield refute("dy_0/dx_1 at (0, 0, 1), and 0", jac([0, 0, 1])[0, 1], 0)
    x, gamma = drawn(206, 5), drawn(207, 5)
    found = statistics(x[None], 2)
    hat, r = found["xhat"][0], found["r"][0]
    closed = gamma[:, None] * r * (np.eye(5, dtype=int) - (1 + hat[:, None] * hat[None, :]) / 5)
    yield equal("dy_i/dx_j and gamma_i/sigma (delta_ij - (1 + x̂_i x̂_j)/H)", jac(x, gamma, 2), closed)
    away = closed - np.diag(np.diag(closed))
    yield refute("the entries away from the diagonal, and 0", away, 0)


@claim(
    "B33",
    "Method, backward pass",
    "Left out there: dgamma sums dy x̂ over the cases, and dbeta sums dy.",
    "true",
    laws=("LN202", "LN203"),
)
def parameter_gradients(backward: Backward = vjp) -> Iterator[Reading]:
    """y is affine in gamma and beta, so that a finite change of them is the derivative, exactly."""
    x, gamma, beta, dy = drawn(208, 3, 4), drawn(209, 4), drawn(210, 4), drawn(211, 3, 4)
    found = backward(x, dy, gamma, beta, 2)
    before = layer_norm(x, gamma, beta, 2)
    for name, step in (("gamma", (1, 0)), ("beta", (0, 1))):
        for unit in (0, 3):
            e = balls(np.eye(4, dtype=int)[unit])
            after = layer_norm(x, gamma + step[0] * e, beta + step[1] * e, 2)
            change = (dy * (after - before)).sum()
            got = found[f"{name}_bar"][unit]
            yield equal(f"d{name}[{unit}], and the change of <dy, y> for a step of 1", got, change)


@claim("X04", "gradients", "The entries of dx sum to 0.", "true", proofs=("gradient-sum",), laws=("LN206",))
def gradient_sum(backward: Backward = vjp) -> Iterator[Reading]:
    """y does not see a common shift, so that its derivative along one is 0, whatever eps and gamma."""
    dx = backward(drawn(212, 3, 5), drawn(213, 3, 5), drawn(214, 5), eps=2)["x_bar"]
    yield equal("sum of dx in each row", dx.sum(axis=1), 0)


@claim(
    "X05",
    "gradients",
    "The derivative of the loss along x itself is eps/sigma^3 times the sum of gamma dy d, with the deviations d.",
    "true",
    "With eps = 0 it is 0: the scale of x cannot be seen. What eps breaks of the invariance, this says exactly.",
    proofs=("euler-defect",),
)
def euler_defect(backward: Backward = vjp) -> Iterator[Reading]:
    """By inserting: of the three terms of dx only the part of x̂ that eps keeps from being a unit vector is left."""
    x, gamma, dy = drawn(215, 3, 5), drawn(216, 5), drawn(217, 3, 5)
    found = statistics(x, 2)
    due = 2 * found["r"] ** 3 * (gamma * dy * (x - found["mu"][:, None])).sum(axis=1)
    along = (x * backward(x, dy, gamma, eps=2)["x_bar"]).sum(axis=1)
    yield equal("sum of x dx, and eps/sigma^3 sum of gamma dy d", along, due)
    yield equal("sum of x dx, eps = 0", (x * backward(x, dy, gamma)["x_bar"]).sum(axis=1), 0)


@claim(
    "X06",
    "gradients",
    "dbeta beta + dgamma gamma, summed over the units, is dy y, summed over all.",
    "true",
    proofs=("parameters-euler",),
)
def parameters_euler(backward: Backward = vjp) -> Iterator[Reading]:
    """y is homogeneous of degree 1 in (gamma, beta): Euler's identity."""
    x, gamma, beta, dy = drawn(218, 3, 5), drawn(219, 5), drawn(220, 5), drawn(221, 3, 5)
    found = backward(x, dy, gamma, beta, 2)
    left = (found["gamma_bar"] * gamma + found["beta_bar"] * beta).sum()
    yield equal("sum of dgamma gamma + dbeta beta, and of dy y", left, (dy * layer_norm(x, gamma, beta, 2)).sum())
