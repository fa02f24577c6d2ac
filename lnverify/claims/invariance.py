"""Invariances: what layer norm does not see, what it does see, and where eps and signs come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from lnverify.claims.balls import balls, drawn
from lnverify.claims.ledger import claim, listed
from lnverify.claims.normalizers import batch_norm, layer_norm, vjp, weight_norm
from lnverify.claims.reading import Reading, equal, exactly, floats, refute, unlike

Normalizer = Callable[..., Any]
EPS = Fraction(1, 100_000)


@claim(
    "A20",
    "Section 8",
    "Scaling the whole weight matrix by a factor, and adding one vector to the weights of every unit, leaves the "
    "output as it is.",
    "conditional",
    "The factor must be positive, and eps 0: a negative one flips the sign of every normalised unit. With eps, scaling "
    "a by d is the same as dividing eps by d^2, exactly. The shift holds for every eps; in floating point it costs "
    "digits, and with E[x^2] - E[x]^2 all of them.",
    proofs=("weight-matrix", "scaled-deviation", "scaled-variance", "scaled-root"),
    laws=("LN301", "LN302", "LN303", "LN305", "LN306", "LN104"),
)
def weight_matrix(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """With a = W x, (d W + 1 g') x = d a + c with the number c = g'x, common to all units.

    The mean takes c away, mean and deviation take d along, and so does sigma, as |d|. In float32 every step of two
    passes on (10000, 10001) is exact, while 10001^2 needs 27 bits.
    """
    weights, x, shift = drawn(1, 5, 3), drawn(2, 4, 3), drawn(3, 3)
    a = x @ weights.T
    moved = x @ (3 * weights + shift).T
    yield equal("LN of (3 W + 1 g') x and of W x, eps = 0", normalize(moved), normalize(a))
    yield equal("LN of -3 W x and of W x with the other sign", normalize(-3 * a), -normalize(a))
    yield equal("LN_eps(3 a) and LN_(eps/9)(a)", normalize(3 * a, eps=EPS), normalize(a, eps=EPS / 9))
    yield refute("LN_eps(3 a) and LN_eps(a), eps = 1", normalize(3 * a, eps=1), normalize(a, eps=1))
    shifted = x @ (weights + shift).T
    yield equal("LN_eps of (W + 1 g') x and of W x, eps = 1", normalize(shifted, eps=1), normalize(a, eps=1))
    large = np.array([10000, 10001], np.float32)
    d = large - large.mean()
    yield floats(
        "float32, two passes: (10000, 10001) standardised", d / np.sqrt(np.mean(d * d)), np.array([-1, 1], np.float32)
    )
    one_pass = np.mean(large * large) - large.mean() ** 2
    yield unlike("float32, one pass: its variance as E[x^2] - E[x]^2", float(one_pass), 0.25)


@claim(
    "B20",
    "Key idea 2",
    "Rescaling the weights of individual neurons does not change the output.",
    "false",
    "One unit's scale changes the mean and the variance that all units share. Batch norm and weight norm have this "
    "invariance. The exception is H = 2, where the normalised units are 1 and -1 whatever the scale, up to order.",
    laws=("LN307",),
)
def single_neuron(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """Smallest: a = (0, 1, 1), the second unit doubled. With two units x̂ = +-1, so that no scale shows."""
    yield refute("LN(0, 2, 1) and LN(0, 1, 1)", normalize([0, 2, 1]), normalize([0, 1, 1]))
    yield refute("LN(2, 2, 3) and LN(1, 2, 3)", normalize([2, 2, 3]), normalize([1, 2, 3]))
    yield equal("the exception: LN(2, 5) and LN(4, 5), H = 2", normalize([4, 5]), normalize([2, 5]))
    weights, x = drawn(4, 4, 3), drawn(5, 6, 3)
    scaled = weights * balls([3, 1, 1, 1])[:, None]
    yield equal("batch norm, first unit tripled", batch_norm(x @ scaled.T), batch_norm(x @ weights.T))
    yield equal("weight norm, first unit tripled", weight_norm(scaled, x), weight_norm(weights, x))


@claim(
    "A21",
    "Section 8",
    "Neither a scale of the weight matrix nor a shift of all incoming weights changes the output.",
    "conditional",
    "As A20; and the shift must be one vector, the same for every unit.",
    proofs=("weight-matrix",),
    laws=("LN305", "LN306"),
)
def same_shift_for_all(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """One vector g for all units adds the number g'x to each; vectors of their own add numbers of their own."""
    weights, x = drawn(6, 5, 3), drawn(7, 4, 3)
    a = x @ weights.T
    common = x @ (weights + drawn(8, 3)).T
    own = x @ (weights + drawn(9, 5, 3)).T
    yield equal("LN after one shift for all units", normalize(common), normalize(a))
    yield refute("LN after a shift of its own for each unit", normalize(own), normalize(a))


@claim(
    "A22",
    "Section 8",
    "Rescaling a single training case does not change the output for it.",
    "conditional",
    "The factor must be positive, eps 0, and no bias may come before the normalization. In a recurrent cell that "
    "normalises the sum W_h h + W_x x, rescaling x alone does change it; where both terms have a layer norm of their "
    "own, it does not.",
    proofs=("scaled-deviation", "scaled-variance", "scaled-root"),
    laws=("LN301",),
)
def single_case(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """a = W x takes the factor along, and (a - mu)/sigma loses it; a sum with another term does not take it along."""
    weights, x, bias = drawn(10, 5, 3), drawn(11, 3), drawn(12, 5)
    recurrent = drawn(13, 5, 5) @ drawn(14, 5)
    a = weights @ x
    yield equal("LN(W 7x) and LN(W x)", normalize(7 * a), normalize(a))
    yield equal("LN(W (-x)) and -LN(W x): a factor below 0 flips signs", normalize(-a), -normalize(a))
    yield refute("LN(W 7x + b) and LN(W x + b)", normalize(7 * a + bias), normalize(a + bias))
    yield refute("LN(W_h h + W_x 7x) and LN(W_h h + W_x x)", normalize(recurrent + 7 * a), normalize(recurrent + a))
    apart, scaled = normalize(recurrent) + normalize(a), normalize(recurrent) + normalize(7 * a)
    yield equal("LN(W_h h) + LN(W_x 7x) and LN(W_h h) + LN(W_x x)", scaled, apart)


@claim(
    "B21",
    "Key idea 2",
    "Thanks to its invariance, training depends less on the initialisation and on the learning rate.",
    "empirical",
    "What can be proved is that the gradient shrinks as the weights grow (and has no component along them, eps 0): a "
    "scale of the weights acts like a learning rate. Whether training profits is a matter of experiment.",
    proofs=("radial-gradient",),
)
def scale_and_gradient(backward: Callable[..., Any] = vjp) -> Iterator[Reading]:
    """L(dW) = L(W) for d > 0, so that grad L(dW) = grad L(W)/d, and the derivative along W itself is 0 (Euler)."""
    weights, x, dy = drawn(15, 5, 3), drawn(16, 4, 3), drawn(17, 4, 5)
    one = backward(x @ weights.T, dy)["x_bar"].T @ x
    two = backward(x @ (2 * weights).T, dy)["x_bar"].T @ x
    yield equal("gradient at 2W and half the gradient at W", two, one / 2)
    yield equal("<gradient, W>", (one * weights).sum(), 0)


@claim(
    "P01",
    "Section 5.1, text",
    "Every one of the three methods is invariant to rescaling the dataset.",
    "false",
    "Not weight norm, whose output scales with its input; the paper's own Table 1 says so.",
)
def dataset_rescaling(weight: Callable[..., Any] = weight_norm) -> Iterator[Reading]:
    """Smallest: one unit with weight 1, one case x = 1, doubled. Layer and batch norm lose the factor."""
    yield refute("weight norm of 2x and of x at W = 1, x = 1", weight([[1]], [[2]]), weight([[1]], [[1]]))
    weights, x = drawn(18, 5, 3), drawn(19, 4, 3)
    yield equal("weight norm of 2x, and twice that of x", weight(weights, 2 * x), 2 * weight(weights, x))
    a = x @ weights.T
    yield equal("layer norm of 2x and of x", layer_norm(2 * a), layer_norm(a))
    yield equal("batch norm of 2x and of x", batch_norm(2 * a), batch_norm(a))


listed(
    "invariance",
    "P06",
    "Section 5.1, Table 1",
    "Which of batch, weight and layer norm is invariant to which of six changes of weights and cases.",
    "true",
    "All 18 cells.",
    without="the command `lnverify table1` decides each cell, and shows the smallest counterexample for each no.",
)


@claim("X01", "symmetries", "Permuting the units permutes the output.", "true")
def permutation(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """Mean and variance are symmetric in the units, whatever eps."""
    x, to = balls([4, -7, 1, 0, 9, 2]), [3, 0, 5, 1, 4, 2]
    yield equal("LN of permuted units, and permuted LN", normalize(x[to], eps=1), normalize(x, eps=1)[to])


@claim("X02", "symmetries", "Without beta, layer norm is odd.", "true", proofs=("odd",), laws=("LN302",))
def odd(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """The deviations change sign, the variance does not, whatever eps."""
    x, gamma = drawn(21, 6), drawn(22, 6)
    yield equal("LN(-x) and -LN(x)", normalize(-x, gamma, eps=1), -normalize(x, gamma, eps=1))


@claim(
    "X03",
    "symmetries",
    "Without gain and bias, layer norm of its own output changes nothing more.",
    "conditional",
    "eps must be 0. With eps the second pass divides by sqrt(v/(v + eps) + eps).",
)
def idempotent(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """The output has mean 0 and variance v/(v + eps), which is 1 for eps = 0."""
    x = drawn(23, 6)
    yield equal("LN(LN(x)) and LN(x), eps = 0", normalize(normalize(x)), normalize(x))
    yield refute("LN(LN(x)) and LN(x), eps = 1", normalize(normalize(x, eps=1), eps=1), normalize(x, eps=1))


@claim(
    "X07",
    "range",
    "In float32, deviations beyond about 1.8e19 give beta, without a sign of trouble.",
    "true",
    "The square of the deviation overflows, 1/sqrt(infinity) is 0, and 0 times the deviation is 0. float32 keeps the "
    "scale invariance only between this and the next claim.",
    laws=("LN506",),
)
def overflow(root: Callable[[Any], Any] = np.sqrt) -> Iterator[Reading]:
    """IEEE 754: 2^65 squared is beyond the largest float32, (2 - 2^-23) 2^127, hence infinite; 2^63 squared is not.

    The rows are (2^k, -2^k): mean 0 and variance 4^k, exactly, so that the right answer is (1, -1).
    """
    for exponent, due in ((65, 0.0), (63, 1.0)):
        x = np.array([1, -1], np.float32) * np.float32(2.0**exponent)
        with np.errstate(all="ignore"):
            y = x * (np.float32(1) / root(np.mean(x * x) + np.float32(1e-5)))
        yield floats(f"float32 LN(2^{exponent}, -2^{exponent})", y, np.array([due, -due], np.float32))
    yield equal("the exact LN(2^65, -2^65)", layer_norm([2**65, -(2**65)]), [1, -1])


@claim(
    "X08",
    "range",
    "In float32, deviations below about 1e-23 are divided by sqrt(eps) alone, and without eps by 0.",
    "true",
    "The variance underflows to 0. With eps = 1e-5 nothing is lost, for the variance was negligible long before; a "
    "tiny eps, or none, does not get the invariance back.",
)
def underflow(root: Callable[[Any], Any] = np.sqrt) -> Iterator[Reading]:
    """IEEE 754: 2^-80 squared is below half of the smallest subnormal float32, 2^-149, and rounds to 0."""
    x = np.array([1, -1], np.float32) * np.float32(2.0**-80)
    with np.errstate(all="ignore"):
        variance = np.mean(x * x)
        yield exactly("float32 variance of (2^-80, -2^-80)", float(variance), 0.0)
        bare = x / root(variance)
        small = x / root(variance + np.float32(2.0**-20))
    yield floats("without eps", bare, np.array([np.inf, -np.inf], np.float32))
    yield floats("with eps = 2^-20", small, np.array([2.0**-70, -(2.0**-70)], np.float32))
