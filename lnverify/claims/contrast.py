"""Contrast: what layer norm shares with batch and weight norm, and where they part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from lnverify.claims.balls import balls, drawn, tanh
from lnverify.claims.ledger import claim
from lnverify.claims.normalizers import (
    batch_norm,
    group_norm,
    layer_norm,
    moments,
    standardise,
    statistics,
    weight_norm,
)
from lnverify.claims.reading import Reading, differ, equal, exactly

Normalizer = Callable[..., Any]
EPS = Fraction(1, 100_000)


@claim(
    "A02",
    "Section 2",
    "Batch norm standardises each unit over the cases, and takes the mini-batch for the expectation.",
    "true",
    "With the biased variance of the batch. (What frameworks keep as running variance for later is the unbiased one.)",
    proofs=("batch-norm",),
)
def batch_norm_is_transposed(batch: Normalizer = batch_norm) -> Iterator[Reading]:
    """Standardised over the rows, each column has mean 0 and mean square 1; it is layer norm of the transpose."""
    x = drawn(102, 6, 4)
    y = batch(x)
    yield equal("mean of each unit over the cases", y.sum(axis=0) / 6, 0)
    yield equal("mean square of each unit over the cases", (y * y).sum(axis=0) / 6, 1)
    yield equal("batch norm of X, and the transpose of layer norm of X'", y, layer_norm(x.T).T)


@claim(
    "A05",
    "Section 3",
    "Mean and deviation are common to the units of a layer, and differ from case to case.",
    "true",
    laws=("LN601", "LN605"),
)
def cases_are_apart(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """The statistics of a row are functions of that row alone."""
    x = drawn(107, 4, 5)
    other = x.copy()
    other[1:] = drawn(108, 3, 5)
    yield equal("case 0 after a change of all other cases", normalize(other)[0], normalize(x)[0])
    mu = statistics(x)["mu"]
    yield differ("means of case 0 and case 1", mu[0], mu[1])
    yield differ("batch norm of case 0 after that change", batch_norm(other)[0], batch_norm(x)[0])


@claim(
    "A06",
    "Section 3",
    "A batch of one is enough for layer norm, and inference computes what training does.",
    "true",
    laws=("LN601", "LN701"),
)
def batch_of_one(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """A row alone and in a batch is one computation. Batch norm with one case has variance 0: only beta is left."""
    x, gamma, beta = drawn(109, 4, 5), drawn(110, 5), drawn(111, 5)
    alone = normalize(x[2:3], gamma, beta, EPS)
    yield equal("a case alone, and in a batch of 4", alone[0], normalize(x, gamma, beta, EPS)[2])
    yield differ("a case alone, and beta", alone[0], beta)
    yield equal("batch norm of a case alone, and beta", batch_norm(x[2:3], gamma, beta, EPS)[0], beta)


def _rnn(normalize: Normalizer, x: Any, steps: int) -> Any:
    """States of h_t = tanh(LN(W h + V x_t)) for x of shape (steps, cases, inputs); small weights, fixed."""
    w, v = drawn(112, 4, 4) / 8, drawn(113, 4, x.shape[2]) / 8
    h, states = balls(np.zeros((x.shape[1], 4))), []
    for t in range(steps):
        h = tanh(normalize(h @ w.T + x[t] @ v.T))
        states.append(h)
    return np.asarray(states)


@claim(
    "A07",
    "Sections 1 and 4",
    "In a recurrent network batch norm needs statistics for each time step, layer norm does not.",
    "true",
    "By definition: the statistics of a step are computed from that step and that case.",
)
def steps_are_apart(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """A state depends on the inputs up to its step and on its own case; under batch norm on the other cases too."""
    x = drawn(114, 5, 3, 2)
    other = x.copy()
    other[3:], other[:, 1:] = drawn(115, 2, 3, 2), drawn(116, 5, 2, 2)
    yield equal(
        "states 0 to 2 of case 0 after a change of later steps and of other cases",
        _rnn(normalize, other, 5)[:3, 0], _rnn(normalize, x, 3)[:, 0],
    )  # fmt: skip
    yield differ("the same with batch norm", _rnn(batch_norm, other, 5)[:3, 0], _rnn(batch_norm, x, 3)[:, 0])


@claim(
    "B02",
    "Method",
    "Batch norm takes its statistics over the batch axis and layer norm over the feature axis, by the same formula.",
    "true",
    proofs=("batch-norm",),
)
def axes_swapped(batch: Normalizer = batch_norm) -> Iterator[Reading]:
    """One program with another set of indices: B and H change places, eps and all."""
    x = drawn(123, 6, 4)
    yield equal("batch norm of X and layer norm of X', transposed, eps = 2", batch(x, eps=2), layer_norm(x.T, eps=2).T)
    yield differ("batch norm and layer norm of X", batch(x, eps=2), layer_norm(x, eps=2))


@claim(
    "B06",
    "Key idea 5",
    "Batch norm has its gain and bias per channel, layer norm per neuron.",
    "conditional",
    "For convolutional networks. Between dense layers batch norm has them per unit, as layer norm has.",
)
def parameters_per_unit(batch: Normalizer = batch_norm) -> Iterator[Reading]:
    """A dense layer is a convolution on one place: channels are units, and batch norm of both is the same."""
    x, gamma, beta = drawn(128, 6, 4), drawn(129, 4), drawn(130, 4)
    maps = standardise(x.reshape(6, 4, 1), (0, 2)) * gamma[:, None] + beta[:, None]
    yield equal("batch norm per channel of 1 x 1 maps, and per unit", maps.reshape(6, 4), batch(x, gamma, beta))
    maps = drawn(131, 3, 2, 4)
    yield exactly("gains of batch norm on 2 channels of 4 places", standardise(maps, (0, 2))[0, :, :1].size, 2)
    yield exactly("gains of layer norm there", group_norm(maps, 1)[0].size, 8)


@claim(
    "B09",
    "Context",
    "Weight norm improves the conditioning, and does not normalise the activations themselves.",
    "true",
    "Shown is the second half.",
)
def activations_not_normalised(weight: Callable[..., Any] = weight_norm) -> Iterator[Reading]:
    """Standardised outputs do not change when the input doubles."""
    weights, x = drawn(135, 4, 3), drawn(136, 5, 3)
    yield differ("weight norm of 2x and of x", weight(weights, 2 * x), weight(weights, x))
    yield differ("mean square of a case, and 1", moments(weight(weights, x)[0])[1], 1)


@claim(
    "B10",
    "Key ideas 3 and 6",
    "There is no discrepancy between training and inference; any batch size and any length will do.",
    "true",
    laws=("LN601", "LN604", "LN701", "LN702"),
)
def any_batch_any_length(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """As A06 and A07: a case does not see the cases that pad the batch, nor a step the steps that pad the sequence."""
    x = drawn(137, 4, 3, 2)
    padded = np.concatenate([np.concatenate([x, drawn(138, 4, 2, 2)], axis=1), drawn(139, 2, 5, 2)])
    got = _rnn(normalize, padded, 6)[:4, :3]
    yield equal("3 sequences of length 4, alone and padded to 5 of length 6", got, _rnn(normalize, x, 4))
    yield differ("the same with batch norm", _rnn(batch_norm, padded, 6)[:4, :3], _rnn(batch_norm, x, 4))
