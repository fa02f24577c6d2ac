"""Definition: what layer norm computes, from which numbers, and how it differs from batch and weight norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from lnverify.claims.balls import ball, balls, drawn, sqrt, tanh
from lnverify.claims.ledger import claim
from lnverify.claims.normalizers import (
    jacobian,
    layer_norm,
    moments,
    standardise,
    statistics,
    vjp,
)
from lnverify.claims.reading import Reading, at_most, differ, equal, exactly, refute

Normalizer = Callable[..., Any]
EPS = Fraction(1, 100_000)


def _summed_inputs(weights: Any, h: Any) -> Any:
    """a_i = w_i'h for each unit i."""
    return np.asarray([(row * h).sum() for row in balls(weights)], dtype=object)


@claim(
    "A01",
    "Section 2",
    "A unit's summed input is the product of its incoming weights with the layer's input; a bias and a nonlinearity "
    "follow.",
    "true",
)
def summed_input(summed: Callable[..., Any] = _summed_inputs) -> Iterator[Reading]:
    """The definition: unit i reads row i of W and no other, and W maps D inputs to H units."""
    weights, h = drawn(100, 4, 3), drawn(101, 3)
    other = weights.copy()
    other[2] = other[2] + 1
    a, moved = summed(weights, h), summed(other, h)
    yield exactly("number of units for W of shape 4 x 3", a.shape, (4,))
    yield equal("units 0, 1, 3 after a change of row 2", moved[[0, 1, 3]], a[[0, 1, 3]])
    yield equal("unit 2 after it, and before it plus the sum of h", moved[2], a[2] + h.sum())


@claim(
    "A03",
    "Section 3",
    "Layer norm standardises the H units of a layer with their own mean and their own variance, the sum of squares "
    "over H.",
    "conditional",
    "Without eps the row must not be constant: it gives 0/0, and so does H = 1. With eps > 0 such rows give beta, and "
    "gradients of zero.",
    proofs=("mean-zero", "second-moment"),
    laws=("LN101", "LN107", "LN401", "LN402", "LN503", "LN504"),
)
def standardised_units(normalize: Normalizer = layer_norm, backward: Callable[..., Any] = vjp) -> Iterator[Reading]:
    """mean x̂ = 0 and mean x̂^2 = var/(var + eps), by definition; a constant row has d = 0, so that x̂ = 0/sqrt(eps)."""
    mean, square = moments(normalize(drawn(103, 5)))
    yield equal("mean of the units, eps = 0", mean, 0)
    yield equal("mean square of the units, eps = 0", square, 1)
    bare = normalize([3, 3, 3])
    yield exactly("a constant row without eps has a value", bool(bare[0].is_finite()), False)
    for row in ([3, 3, 3], [7]):
        beta, gamma = drawn(104, len(row)), drawn(105, len(row))
        yield equal(f"LN of the row {row} with eps, and beta", normalize(row, gamma, beta, EPS), beta)
    found = backward([[7]], [[5]], [2], [1], EPS)
    yield equal("dx for H = 1", found["x_bar"], 0)
    yield equal("dgamma for H = 1", found["gamma_bar"], 0)


@claim(
    "A04",
    "Section 3",
    "The normalised unit i is written with a mean and a deviation that carry the index i.",
    "false",
    "A slip of notation: under layer norm neither depends on the unit. (Under batch norm both do.)",
)
def no_index_of_units(stats: Callable[..., Any] = statistics) -> Iterator[Reading]:
    """With (a_i - m_i)/s_i each unit could have statistics of its own; those of one row are two numbers."""
    x = drawn(106, 3, 5)
    found = stats(x)
    yield exactly("numbers of means and deviations for 3 cases of 5 units", (found["mu"].size, found["r"].size), (3, 3))
    yield equal("x̂ from these two numbers per case", (x - found["mu"][:, None]) * found["r"][:, None], layer_norm(x))
    small = balls([[0, 1], [-1, 0]])  # with smaller entries a row or a column is constant, and gives 0/0
    for what, a in (("the rows (0, 1) and (-1, 0)", small), ("3 cases of 5 units", x)):
        centred = a - a.sum(axis=0) / len(a)
        per_unit = centred / sqrt((centred**2).sum(axis=0) / len(a))
        yield refute(f"x̂ with a mean and a deviation for each unit, {what}", per_unit, layer_norm(a))


@claim(
    "A08",
    "Section 5",
    "LN(z; alpha, beta) standardises z of D entries, multiplies by the gain alpha and adds the bias beta.",
    "true",
    "Gain 1 and bias 0 are what training starts from.",
    laws=("LN101", "LN707"),
)
def gain_and_bias(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """The definition, entry by entry."""
    z, gain, bias = drawn(117, 6), drawn(118, 6), drawn(119, 6)
    hat = standardise(z, (0,))
    yield equal(
        "LN(z; alpha, beta), and alpha times standardised z, plus beta", normalize(z, gain, bias), gain * hat + bias
    )
    yield equal("alpha = 1, beta = 0, and standardised z", normalize(z), hat)


@claim(
    "P02",
    "Supplement",
    "The parameters alpha and beta are initialised to 0 and 1, and are called additive and multiplicative.",
    "false",
    "Read with the formula, where alpha multiplies, a cell starts dead: all gradients with respect to its input and "
    "its weights are 0. It is meant the other way round.",
)
def dead_start(backward: Callable[..., Any] = vjp) -> Iterator[Reading]:
    """The gradient for z is linear in alpha * dy, hence 0 for alpha = 0, and that for W is its product with h."""
    z, dy = drawn(120, 3, 5), drawn(121, 3, 5)
    dead = backward(z, dy, np.zeros(5, int), np.ones(5, int))["x_bar"]
    yield equal("gradient for the normalised input, alpha = 0, beta = 1", dead, 0)
    yield refute("gradient, alpha = 1, beta = 0", backward(z, dy, np.ones(5, int), np.zeros(5, int))["x_bar"], dead)


@claim(
    "B01",
    "Method",
    "Layer norm divides by sqrt(var + eps) with eps = 1e-5, multiplies by gamma (1 at first) and adds beta (0).",
    "true",
    "It follows that the normalised units have variance var/(var + eps), and not 1.",
    proofs=("second-moment",),
    laws=("LN101", "LN105", "LN402"),
)
def variance_with_eps(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """mean x̂^2 = var/(var + eps), by definition."""
    x = drawn(122, 6)
    variance = statistics(x[None])["var"][0]
    for eps in (EPS, 7):
        yield equal(
            f"mean square, eps = {eps}, and var/(var + eps)",
            moments(normalize(x, eps=eps))[1],
            variance / (variance + ball(eps)),
        )
    yield differ("mean square, eps = 7, and 1", moments(normalize(x, eps=7))[1], 1)


@claim(
    "B03",
    "Method, recurrent networks and CNNs",
    "The deviation in the formulas for cells and CNNs is std(a).",
    "conditional",
    "It must be the population standard deviation. The default of torch.std divides by H - 1, which makes every "
    "normalised unit smaller by sqrt((H - 1)/H).",
    laws=("LN107",),
)
def population_deviation(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """sum d^2/(H - 1) = var H/(H - 1)."""
    x = drawn(124, 5)
    centred = x - x.sum() / 5
    unbiased = centred / sqrt((centred * centred).sum() / 4)
    yield equal("with H - 1, and LN times sqrt(4/5)", unbiased, normalize(x) * sqrt(balls(4) / 5))
    yield refute("with H - 1, and LN", unbiased, normalize(x))


def _eps_outside(x: Any, eps: Any) -> Any:
    """(x - mu)/(sigma + eps)."""
    x = balls(x)
    centred = x - x.sum(axis=-1, keepdims=True) / x.shape[-1]
    return centred / (sqrt((centred * centred).sum(axis=-1, keepdims=True) / x.shape[-1]) + ball(eps))


@claim(
    "B04",
    "Method, recurrent networks and CNNs",
    "Dividing by sigma + eps there is what dividing by sqrt(sigma^2 + eps) is elsewhere.",
    "false",
    "They are different functions: at sigma = 1e-3 and eps = 1e-5 the deviation of the output is 0.990 with the one "
    "and 0.302 with the other. On a constant row the gradient of the second is finite by the chain rule; that of the "
    "first is 1/eps as a limit, but the chain rule meets 0/0 in the gradient of sigma.",
    laws=("LN105",),
)
def eps_outside_the_root(outside: Callable[..., Any] = _eps_outside) -> Iterator[Reading]:
    """Smallest: the row (-1, 1) with eps = 1, which gives 1/2 or 1/sqrt(2).

    Along (1, -1) from a constant row the first form is t/(|t| + eps), whose quotient 1/(t + eps) is within t/eps^2 of
    1/eps, so that the derivative is 1/eps. The chain rule gets there through d sigma = mean(d dx)/sigma, which is 0/0.
    """
    yield refute("the row (-1, 1), eps = 1", outside([-1, 1], 1), layer_norm([-1, 1], eps=1))
    thousandth = Fraction(1, 1000)
    row = balls([-1, 1]) * ball(thousandth)
    first, second = outside(row, EPS)[1], layer_norm(row, eps=EPS)[1]
    yield equal("sigma = 1e-3, eps = 1e-5: deviation with sigma + eps", first, thousandth / (thousandth + EPS))
    yield equal("with sqrt(sigma^2 + eps)", second, ball(thousandth) / ball(thousandth**2 + EPS).sqrt())
    step = Fraction(1, 10**12)
    quotient = outside([3 + step, 3 - step], EPS)[0] / ball(step)
    yield at_most("|quotient - 1/eps| on a constant row, sigma + eps", abs(quotient - ball(1 / EPS)), step / EPS**2)
    still = balls([0, 0])
    through = (still * balls([1, -1])).sum() / 2 / sqrt(still * still)[0]
    yield exactly("d sigma there has a value by the chain rule", bool(through.is_finite()), False)
    slope = jacobian([3, 3], eps=EPS)
    centring = np.eye(2, dtype=int) - balls(1) / 2
    yield equal("dy/dx there, sqrt form, and (I - 1/H)/sqrt(eps)", slope, centring / ball(EPS).sqrt())


@claim(
    "B05",
    "Key idea 5",
    "With gamma = 1 and beta = 0 the network can recover the identity.",
    "false",
    "That is the plain normalization. The identity needs gamma = sigma(h) and beta = mu(h), which depend on the "
    "input: h and 2h give the same output for every fixed gamma and beta (eps = 0), so that no choice is the identity.",
)
def not_the_identity(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """Smallest: h = (0, 1), whose layer norm is (-1, 1)."""
    yield refute("LN(0, 1) with gamma = 1, beta = 0, and (0, 1)", normalize([0, 1]), [0, 1])
    h, gamma, beta = drawn(125, 5), drawn(126, 5), drawn(127, 5)
    found = statistics(h[None])
    yield equal(
        "LN(h) with gamma = sigma(h), beta = mu(h), and h",
        normalize(h, 1 / found["r"] * (h * 0 + 1), found["mu"] * (h * 0 + 1)),
        h,
    )
    yield equal("LN(h) and LN(2h) for one gamma and beta", normalize(2 * h, gamma, beta), normalize(h, gamma, beta))


@claim(
    "B07",
    "Key idea 4",
    "Layer norm keeps the hidden state h_t at a mean of about 0 and a deviation of about 1.",
    "false",
    "The summed inputs are kept so, up to sigma/sqrt(sigma^2 + eps), and the state is not: tanh and gain and bias "
    "follow. What is bounded is each normalised unit, by sqrt(H - 1).",
    proofs=("mean-zero", "second-moment"),
    laws=("LN401", "LN402", "LN403"),
)
def hidden_state(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """tanh contracts: h deviates less than LN(a). x̂_i^2 <= H - 1 by Cauchy-Schwarz, and one-hot rows reach it."""
    a = drawn(132, 8)
    hat = normalize(a)
    mean, square = moments(hat)
    yield equal("mean of the normalised summed inputs", mean, 0)
    yield equal("their mean square", square, 1)
    for what, row in (("a = (0, 1)", balls([0, 1])), ("8 units", a)):
        mean, square = moments(tanh(normalize(row)))
        yield refute(f"deviation of h = tanh(LN(a)), and 1, {what}", sqrt(balls(square - mean * mean)), 1)
        shifted, _ = moments(tanh(normalize(row, beta=np.full(len(row), 1))))
        yield refute(f"mean of h = tanh(LN(a) + 1), and 0, {what}", shifted, 0)
    yield at_most("largest |x̂| for H = 8, and sqrt(7)", abs(hat), ball(7).sqrt())
    yield equal("x̂ of the one-hot row of 8, and sqrt(7)", normalize([1] + [0] * 7)[0], ball(7).sqrt())


@claim(
    "B08",
    "Method, recurrent networks",
    "The bias before the normalization is replaced by beta.",
    "conditional",
    "A bias common to all units is annihilated. One per unit is not absorbed: it moves mean and variance, and no beta "
    "makes up for it on all inputs.",
    proofs=("shift",),
    laws=("LN303",),
)
def bias_before(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """If LN(a + b) = LN(a) + beta for all a, then LN(a + b) - LN(a) is the same for two inputs a: it is not."""
    a, b = drawn(133, 2, 5), drawn(134, 5)
    yield equal("LN(a + 7) and LN(a)", normalize(a + 7), normalize(a))
    moved = normalize(a + b) - normalize(a)
    yield refute("LN(a + b) - LN(a) for two inputs a", moved[0], moved[1])
