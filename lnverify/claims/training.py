"""Training: what is said to go faster or better with layer norm. It can be measured, and neither proved nor refuted."""

from __future__ import annotations

from lnverify.claims.ledger import listed

MEASURED = "it is measured, at a small scale, and not decided."


def _empirical(id: str, place: str, statement: str, reason: str) -> None:
    listed("training", id, place, statement, "empirical", reason, without=MEASURED)


_empirical(
    "A80",
    "Section 12",
    "Training gets faster, and gradients flow better, above all in recurrent networks and on long sequences.",
    "The paper shows curves of it. What is certain about gradients through time is in A45.",
)
_empirical(
    "A81",
    "Sections 1 and 12",
    "It holds with small batches and in online learning, where batch norm has its trouble.",
    "That it computes the same for every batch is certain (A06). That training is as good with a small one is not.",
)
_empirical(
    "B11",
    "Summary",
    "In feed-forward networks it does about as well as batch norm.",
    "The paper finds it faster there. For the figures of the note see B85.",
)
_empirical(
    "B12",
    "Summary; Key idea 4",
    "Plain RNN and LSTM converge faster with it, and need less clipping of gradients.",
    "By how much is said in B86, where no figure is the paper's.",
)
listed(
    "training",
    "B13",
    "Limits 3",
    "Very deep Transformers, of a hundred blocks or more, need special initial values, a small gamma say.",
    "out of reach",
    "Not in the paper, which is older than Transformers. Gradients at initialisation of up to 64 blocks are in B47.",
    without="it needs networks at scale.",
)
