"""Depth: derivatives through many steps of a recurrent network, and residual blocks with layer norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lnverify.claims.balls import Array, ball, drawn, norm, tanh
from lnverify.claims.ledger import claim, listed
from lnverify.claims.normalizers import jacobian, layer_norm
from lnverify.claims.reading import Reading, at_most, equal

Normalizer = Callable[..., Any]
STEPS = 12
MEASURED = "it is measured, at a small scale, and not decided."


def _recurrent() -> Array:
    return np.asarray(drawn(450, 6, 6) / 16)


def _growth(scale: Any, normalize: Normalizer | None) -> Any:
    """Norm of the derivative of the state after STEPS steps along one direction, with W_hh times scale; no input."""
    w = scale * _recurrent()
    h, dh = drawn(451, 1, 6) / 8, drawn(452, 1, 6) / 8
    start = norm(dh)
    for _ in range(STEPS):
        a, da = h @ w.T, dh @ w.T
        if normalize is not None:
            da = da @ jacobian(a[0]).T
            a = normalize(a)
        h = tanh(a)
        dh = (1 - h * h) * da
    return norm(dh) / start


def _stability(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """d LN(s a)/da = d LN(a)/da for s > 0, so that s drops out of every step: with it the growth is the same at each s.

    Without layer norm the derivative over T steps is at most (s |W|)^T, for |1 - h^2| <= 1, with the Frobenius norm.
    """
    one = _growth(1, normalize)
    sixteenth = ball(1) / 16
    for scale in (sixteenth, ball(4)):
        what = f"growth over 12 steps with LN, W_hh times {float(scale):g}, and times 1"
        yield equal(what, _growth(scale, normalize), one)
    limit = (sixteenth * norm(_recurrent())) ** STEPS
    yield at_most("growth over 12 steps without LN, W_hh times 1/16", _growth(sixteenth, None), limit)
    yield at_most("1, and the growth with LN: it is no guarantee", 1, one)


claim(
    "A45",
    "Section 4",
    "With layer norm the states of a recurrent network behave better over time, and gradients explode or vanish less.",
    "conditional",
    "What is certain: without input and eps, the derivative through time does not depend on the scale of the recurrent "
    "weights, while without layer norm it does, exponentially. It is no guarantee: it may still grow or vanish.",
    proofs=("scaled-deviation", "scaled-variance", "scaled-root"),
)(_stability)


def _stability_again(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """The evidence is that of A45."""
    return _stability(normalize)


claim(
    "B45",
    "Key idea 4",
    "Gradients explode or vanish less because the magnitude of h_t is stable.",
    "conditional",
    "As A45. It is the invariance and not the magnitude of h_t that does it (see B07).",
)(_stability_again)


def _pre_ln(x: Array, branch: Callable[[Array], Array], normalize: Normalizer) -> Array:
    """Two residual branches, each behind a layer norm."""
    for _ in range(2):
        x = x + branch(normalize(x))
    return x


def _post_ln(x: Array, branch: Callable[[Array], Array], normalize: Normalizer) -> Array:
    """Two residual branches, each followed by a layer norm of the sum."""
    for _ in range(2):
        x = normalize(x + branch(x))
    return x


@claim(
    "B46",
    "Method, Transformers",
    "A Post-LN block normalises after each residual sum, a Pre-LN block before each branch.",
    "true",
    "A network of Pre-LN blocks needs one more layer norm at its end, which is left out there: its blocks do not bound "
    "what they pass on.",
)
def residual_blocks(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """With all weights 0 a branch is 0. Of what a Pre-LN block adds, nothing depends on the scale of x (eps = 0)."""
    x, w = drawn(460, 2, 5), drawn(461, 5, 5) / 8

    def dead(values: Array) -> Array:
        return values * 0

    def alive(values: Array) -> Array:
        return tanh(values @ w.T)

    yield equal("Pre-LN block with weights 0, and its input", _pre_ln(x, dead, normalize), x)
    yield equal("Post-LN block with weights 0, and LN(LN(x))", _post_ln(x, dead, normalize), normalize(normalize(x)))
    passed = _post_ln(x, alive, normalize)
    yield equal("mean square of what a Post-LN block passes on", (passed * passed).sum(axis=1) / 5, 1)
    yield equal("mean of it", passed.sum(axis=1) / 5, 0)
    grown = _pre_ln(1000 * x, alive, normalize) - 1000 * x
    yield at_most("what a Pre-LN block adds to 1000 x, two branches of tanh", abs(grown), 2)


listed(
    "depth",
    "B47",
    "Method, Transformers",
    "Pre-LN removes the problem of vanishing gradients in very deep Transformers.",
    "empirical",
    "Overstated as it stands: at initialisation it is the Post-LN gradient of the bottom layers that falls slowly with "
    "depth, and the Pre-LN gradient of the top layers that falls like one over its root. Neither vanishes there.",
    without=MEASURED,
)
