"""Figures: what the French note reports as results, beside what the paper reports.

No figure here is an expected value of anything. A claim about the paper is false where the paper says otherwise, and
out of reach where the paper does not say it.
"""

from __future__ import annotations

from lnverify.claims.ledger import listed

QUOTED = "it is compared with the text of the paper; to train the network again is out of reach."
ABSENT = "it is not in the paper, and to train the network again is out of reach."


def _figure(id: str, place: str, statement: str, verdict: str, reason: str) -> None:
    without = QUOTED if verdict == "false" else ABSENT
    listed("figures", id, place, statement, verdict, reason, without=without)


_figure(
    "B80",
    "Results, order embeddings",
    "Caption retrieval: R@1 43.4 with layer norm and 37.9 without, and convergence 2.7 times as fast.",
    "false",
    "The paper's Table 2 has 48.5 and 46.6; the best model is reached in 60 % of the time, which is a factor of 1.7. "
    "(37.8 is its baseline for image retrieval.)",
)
_figure(
    "B81",
    "Results, skip-thoughts",
    "Semantic similarity: Pearson correlation 0.85 with layer norm and 0.81 without.",
    "false",
    "The paper's Table 3 (SICK) has 0.854 after a million iterations, 0.858 after 1.7 million, and 0.842 without.",
)
_figure(
    "B82",
    "Results, reading comprehension",
    "Test accuracies on CNN and Daily Mail are 3.7 and 5.6 points higher with layer norm, convergence is 1.6 times as "
    "fast.",
    "out of reach",
    "The paper has validation curves on the CNN corpus alone, and no such numbers.",
)
_figure(
    "B88",
    "Results, skip-thoughts",
    "Without layer norm gradients must be clipped at 10 and late epochs are unstable; with it nothing explodes.",
    "out of reach",
    "The paper reports no instability there: both networks are trained alike, and the one with layer norm faster.",
)
_figure(
    "B83",
    "Results, handwriting",
    "Negative log likelihood of 850 with layer norm and 920 without after 500 epochs, 7.6 % better.",
    "false",
    "The paper reports a comparable log likelihood that is reached much faster, as a curve.",
)
_figure(
    "B84",
    "Results, permutation-invariant MNIST",
    "The experiment is an LSTM of 512 units on shuffled pixels.",
    "false",
    "In the paper it is a feed-forward network, 784-1000-1000-10, with batches of 128 and of 4.",
)
_figure(
    "B85",
    "Results, MNIST",
    "On a feed-forward network batch norm is slightly ahead, 98.6 against 98.3.",
    "false",
    "In the paper layer norm converges faster than batch norm there and holds with batches of 4. It has no such table.",
)
_figure(
    "B86",
    "Results, ablations",
    "Plain RNN, GRU and LSTM gain 8.5, 5.2 and 3.8 points; accuracies are given by place of the norm; learning rates "
    "may be ten times as high.",
    "out of reach",
    "The paper has no such ablations. Its experiment on DRAW (82.36 nats without layer norm, 82.09 with it) is left "
    "out there.",
)
listed(
    "figures",
    "B87",
    "Limits 2, 3 and 5 to 10",
    "The paper lacks theory, guidance on initialisation, comparisons, very long sequences, Transformers.",
    "out of reach",
    "Plausible remarks on what is not there.",
    without="they state nothing to compute.",
)
