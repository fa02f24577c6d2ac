"""Norms of feature maps: layer norm over channels and places, over channels alone, and group norm.

Maps have shape (cases, channels, places): where a place lies is of no matter to a normalizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lnverify.claims.balls import Array, ball, balls, drawn
from lnverify.claims.ledger import claim, listed
from lnverify.claims.normalizers import channel_norm, group_norm, layer_norm, standardise
from lnverify.claims.reading import Reading, equal, exactly, refute

AT_SCALE = "it needs networks at scale."


def _over_all(x: Any) -> Array:
    """Layer norm of each case over channels and places."""
    return standardise(x, (1, 2))


def _ranks(values: Any) -> list[int]:
    """The order of entries that differ, the smallest first."""
    return sorted(range(len(values)), key=lambda k: float(values[k]))


listed(
    "norms",
    "A60",
    "Section 11",
    "Layer norm does worse than batch norm in convolutional networks, where units at the border have other statistics.",
    "empirical",
    "The paper says so too, and gives no numbers.",
    without="it is measured, at a small scale, and not decided.",
)


@claim(
    "B60",
    "Method, CNNs; Limits 1",
    "Layer norm over channels and places loses the spatial information.",
    "false",
    "Literally: it loses two numbers per case, mean and deviation, and keeps the order of all pixels. It is layer norm "
    "over the channels alone that loses two numbers at each place, and the order within a channel. (About accuracy it "
    "says nothing; that is a matter of experiment.)",
)
def spatial_information(over_all: Callable[..., Any] = _over_all) -> Iterator[Reading]:
    """An increasing map of each number keeps their order; x is x̂ sigma + mu, with one sigma and mu per case.

    Smallest: one channel on two places, where (1, 0) and (0, 1) stay apart. Over two channels x̂ is 1 or -1, so that
    what a channel holds at its places is lost but for which of the two is larger there.
    """
    yield refute("norm of the maps (1, 0) and (0, 1)", over_all([[[1, 0]]]), over_all([[[0, 1]]]))
    x = balls([[[4, -7, 1], [0, 9, 2]]])
    y = over_all(x)
    flat = x.reshape(-1)
    mu = flat.sum() / 6
    sigma = (((flat - mu) ** 2).sum() / 6).sqrt()
    yield equal("maps rebuilt from normalised ones and two numbers", y * sigma + mu, x)
    yield exactly("order of the 6 pixels after, and before", _ranks(y.reshape(-1)), _ranks(flat))
    beside = "after norm over channels, beside a channel"
    yield equal(f"the channel (1, 2) {beside} (0, 0), and (1, 1)", channel_norm([[[1, 2], [0, 0]]])[0, 0], 1)
    yield equal(f"the channel (2, 1) {beside} (3, 0), and (-1, 1)", channel_norm([[[2, 1], [3, 0]]])[0, 0], [-1, 1])


@claim(
    "B61",
    "Method, CNNs",
    "Group norm and layer norm over the channels alone (as in ConvNeXt) are one thing.",
    "false",
    "They differ for every number of groups: group norm takes its statistics over the places too. They agree on maps "
    "of a single place, with one group.",
)
def group_is_not_channel(groups: Callable[..., Any] = group_norm) -> Iterator[Reading]:
    """Smallest: two channels, (0, 0) and (1, 2), on two places. Over channels they are -1 and 1 at both places."""
    small, x = balls([[[0, 0], [1, 2]]]), drawn(500, 2, 4, 3)
    yield refute("1 group and norm over channels, channels (0, 0) and (1, 2)", groups(small, 1), channel_norm(small))
    for count in (1, 2, 4):
        what = f"{count} group{'s' if count > 1 else ''} and norm over channels, 4 channels on 3 places"
        yield refute(what, groups(x, count), channel_norm(x))
    point = drawn(501, 2, 4, 1)
    yield equal("1 group and norm over channels, maps of one place", groups(point, 1), channel_norm(point))


@claim(
    "B62",
    "Limits 8",
    "Group norm generalises layer norm.",
    "conditional",
    "Its statistics do: one group is layer norm over channels and places, and as many groups as channels is instance "
    "norm. Its gain and bias do not: they are per channel, and those of layer norm per element.",
)
def groups_between(groups: Callable[..., Any] = group_norm) -> Iterator[Reading]:
    """By the definitions. A gain that differs between two places of a channel is no gain per channel."""
    x = drawn(502, 2, 4, 3)
    flat = layer_norm(x.reshape(2, 12)).reshape(x.shape)
    yield equal("1 group, and layer norm over channels and places", groups(x, 1), flat)
    yield equal("4 groups of 4 channels, and instance norm", groups(x, 4), standardise(x, (2,)))
    gain = balls(np.ones(12, int))
    gain[0] = ball(2)
    y = layer_norm(x.reshape(2, 12), gain).reshape(x.shape)
    quotient = y[0, 0] / groups(x, 1)[0, 0]
    what = "layer norm over group norm at two places of one channel, gain 2 at the first"
    yield refute(what, quotient[0], quotient[1])


listed(
    "norms",
    "B63",
    "Limits 1",
    "On ImageNet layer norm over maps is 2 to 3 % below batch norm.",
    "out of reach",
    "The paper has no such figure. Nothing here depends on it.",
    without=AT_SCALE,
)
