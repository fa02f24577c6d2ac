"""Cells: recurrent networks, LSTM and GRU with layer norm, and how the variants differ.

A cell is a few lines over rows (cases), with `normalize` as its layer norm; weights and cases are whole numbers over
8, so that no gate saturates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lnverify.claims.balls import Array, ball, balls, drawn, sigmoid, tanh
from lnverify.claims.ledger import claim
from lnverify.claims.normalizers import layer_norm
from lnverify.claims.reading import Reading, at_most, differ, equal, exactly, refute

Normalizer = Callable[..., Any]
H, D, CASES = 3, 2, 2
GATES = 4
ORDER = ("f", "i", "o", "g")


@dataclass(frozen=True)
class Lstm:
    """Parameters and a state: gates in the order f, i, o, g, stacked."""

    w_h: Array
    w_x: Array
    bias: Array
    h: Array
    c: Array
    x: Array
    beta_h: Any = 0
    beta_x: Any = 0


def _lstm() -> Lstm:
    shapes = ((GATES * H, H), (GATES * H, D), (GATES * H,), (CASES, H), (CASES, H), (CASES, D))
    return Lstm(*(drawn(400 + k, *shape) / 8 for k, shape in enumerate(shapes)))


def _state(a: Array, c: Array, of_cell: Normalizer) -> tuple[Array, Array]:
    """c and h from the stacked gates; `of_cell` is applied to c where h reads it."""
    f, i, o, g = (a[:, k * H : (k + 1) * H] for k in range(GATES))
    new = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return new, np.asarray(sigmoid(o) * tanh(of_cell(new)))


def lstm_paper(p: Lstm, normalize: Normalizer = layer_norm) -> tuple[Array, Array]:
    """LN(W_h h) + LN(W_x x) + b, each over all four gates at once; LN of c."""
    a = normalize(p.h @ p.w_h.T) + p.beta_h + normalize(p.x @ p.w_x.T) + p.beta_x + p.bias
    return _state(a, p.c, normalize)


def lstm_per_gate(p: Lstm, of_cell: Normalizer = layer_norm) -> tuple[Array, Array]:
    """LN of each gate's W [h, x], and LN of c (or what `of_cell` does)."""
    joint = p.h @ p.w_h.T + p.x @ p.w_x.T
    gates = [layer_norm(joint[:, k * H : (k + 1) * H]) for k in range(GATES)]
    return _state(np.concatenate(gates, axis=1), p.c, of_cell)


def lstm_cell_only(p: Lstm) -> tuple[Array, Array]:
    """Gates without normalization; LN of c."""
    return _state(p.h @ p.w_h.T + p.x @ p.w_x.T + p.bias, p.c, layer_norm)


def _plain(values: Any) -> Any:
    return values


@claim(
    "A40",
    "Section 4",
    "A recurrent step with layer norm is h = f(g (a - mu)/sigma + b) with a = W_hh h + W_xh x and one mu and sigma per "
    "step.",
    "true",
)
def recurrent_step(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """The formula unit by unit, with mu and sigma as sums over the units, and the step as a composition."""
    w, v, h, x, g, b = (drawn(410 + k, *s) / 8 for k, s in enumerate(((H, H), (H, D), (H,), (D,), (H,), (H,))))
    a = [sum(w[i, k] * h[k] for k in range(H)) + sum(v[i, k] * x[k] for k in range(D)) for i in range(H)]
    mu = sum(a, ball(0)) / H
    sigma = (sum(((value - mu) ** 2 for value in a), ball(0)) / H).sqrt()
    due = [(g[i] * (a[i] - mu) / sigma + b[i]).tanh() for i in range(H)]
    state = tanh(normalize(w @ h + v @ x, g, b))
    yield equal("tanh(LN(W_hh h + W_xh x; g, b)), and the formula unit by unit", state, due)


@claim(
    "A41",
    "Section 6",
    "The layer-normalised LSTM adds LN(W_h h) and LN(W_x x) and a bias, and puts LN on the cell where h reads it.",
    "true",
    "This is the paper's cell. Each LN is over the stacked gates, 4 H numbers. The biases of both LNs and b are one "
    "parameter in three places.",
)
def paper_lstm(cell: Callable[..., Any] = lstm_paper) -> Iterator[Reading]:
    """A step e moved from one of beta_1, beta_2, b to another changes nothing: the gradients of the three are equal."""
    p, e = _lstm(), drawn(420, GATES * H) / 8
    moved = [cell(replace(p, beta_h=e)), cell(replace(p, beta_x=e)), cell(replace(p, bias=p.bias + e))]
    for name, other in (("beta_1 and beta_2", moved[1]), ("beta_1 and b", moved[2])):
        yield equal(f"h after one step of {name}", moved[0][1], other[1])
    yield differ("h after that step, and before", moved[0][1], cell(p)[1])
    yield equal("h with 7 x and with x: each term has a norm of its own", cell(replace(p, x=7 * p.x))[1], cell(p)[1])
    stacked = p.h @ p.w_h.T
    per_gate = np.concatenate([layer_norm(stacked[:, k * H : (k + 1) * H]) for k in range(GATES)], axis=1)
    yield differ("LN over the stacked gates, and gate by gate", layer_norm(stacked), per_gate)


@claim(
    "B40",
    "Method, LSTM",
    "Layer norm in an LSTM is an LN of W [h, x] for each gate, and an LN of the cell.",
    "false",
    "It is not the paper's cell: statistics are per gate and of the sum of both terms, and b is missing. It sees the "
    "scale of x, which the paper's cell does not.",
)
def per_gate_lstm(cell: Callable[..., Any] = lstm_per_gate) -> Iterator[Reading]:
    """The same weights and state in both cells, the paper's with b = 0."""
    p = replace(_lstm(), bias=balls([0] * GATES * H))
    yield refute("h of this cell and of the paper's, b = 0", cell(p)[1], lstm_paper(p)[1])
    yield refute("h of this cell with 7 x and with x", cell(replace(p, x=7 * p.x))[1], cell(p)[1])
    yield equal("h of the paper's cell with 7 x and with x", lstm_paper(replace(p, x=7 * p.x))[1], lstm_paper(p)[1])


@claim(
    "B41",
    "Method, LSTM",
    "A variant leaves LN off the cell state.",
    "true",
    "It is a third cell: c is the same, and h another.",
)
def plain_cell(of_cell: Normalizer = _plain) -> Iterator[Reading]:
    """LN of c stands only where h reads c, and not where the next step does."""
    p = _lstm()
    (c, h), (c_normed, h_normed) = lstm_per_gate(p, of_cell), lstm_per_gate(p)
    yield equal("c without and with LN of c", c, c_normed)
    yield differ("h without and with LN of c", h, h_normed)


@claim(
    "P03",
    "Section 6.4 (DRAW)",
    "One experiment puts layer norm on the cell state alone.",
    "true",
    "A fourth cell, different from the three above.",
)
def cell_only(cell: Callable[..., Any] = lstm_cell_only) -> Iterator[Reading]:
    """The same weights and state in all; c is that of a cell without normalization."""
    p = _lstm()
    bare = _state(p.h @ p.w_h.T + p.x @ p.w_x.T + p.bias, p.c, _plain)
    c, h = cell(p)
    yield equal("c with LN on c alone, and with LN nowhere", c, bare[0])
    yield differ("h with LN on c alone, and with LN nowhere", h, bare[1])
    yield differ("h with LN on c alone, and of the paper's cell", h, lstm_paper(p)[1])
    yield differ("h with LN on c alone, and with LN per gate", h, lstm_per_gate(p)[1])


@claim(
    "P04",
    "code of the authors",
    "The authors' code has the gates in the order i, f, o, g, and adds the bias inside the LN of W_x x and again "
    "outside.",
    "conditional",
    "The order (f, i, o, g in the paper and in both documents; i, f, g, o in torch) is a permutation of rows and "
    "changes nothing, for LN over the stack does not see it. The bias inside makes a fifth cell.",
)
def bias_inside(normalize: Normalizer = layer_norm) -> Iterator[Reading]:
    """Rows of weights and gates are permuted alike; then b inside LN moves its statistics."""
    p = _lstm()
    blocks = np.arange(GATES * H).reshape(GATES, H)
    rows = np.concatenate([blocks[ORDER.index(gate)] for gate in ("i", "f", "o", "g")])
    other = normalize(p.h @ p.w_h[rows].T) + normalize(p.x @ p.w_x[rows].T) + p.bias[rows]
    back = other[:, np.argsort(rows)]
    due = lstm_paper(p)[1]
    yield equal("h with gates in the order i, f, o, g", _state(back, p.c, layer_norm)[1], due)
    inside = normalize(p.h @ p.w_h.T) + normalize(p.x @ p.w_x.T + p.bias) + p.bias
    yield refute("h with b inside LN and outside, and outside alone", _state(inside, p.c, layer_norm)[1], due)


@dataclass(frozen=True)
class Gru:
    """Parameters and a state: gates z, r stacked in W_h and W_x; W and U are those of the candidate."""

    w_h: Array
    w_x: Array
    w: Array
    u: Array
    h: Array
    x: Array
    gain: Array
    beta: Array


def _gru() -> Gru:
    shapes = ((2 * H, H), (2 * H, D), (H, D), (H, H), (CASES, H), (CASES, D), (2 * H,), (2 * H,))
    return Gru(*(drawn(430 + k, *shape) / 8 for k, shape in enumerate(shapes)))


def gru(p: Gru, other_way: bool = False, after: bool = True) -> Array:
    """A step; `other_way` exchanges z and 1 - z, `after` applies the reset gate after the product with U."""
    a = p.gain * (layer_norm(p.h @ p.w_h.T) + layer_norm(p.x @ p.w_x.T)) + p.beta
    z, r = sigmoid(a[:, :H]), sigmoid(a[:, H:])
    recurrent = r * layer_norm(p.h @ p.u.T) if after else layer_norm((r * p.h) @ p.u.T)
    candidate = tanh(layer_norm(p.x @ p.w.T) + recurrent)
    old, new = (z, 1 - z) if other_way else (1 - z, z)
    return np.asarray(old * p.h + new * candidate)


@claim(
    "A42",
    "Section 7",
    "In the GRU one matrix W_x serves the gates and the candidate.",
    "false",
    "The gates z and r need 2 H rows and the candidate H. The paper has W_x for the gates and W for the candidate (and "
    "W_h and U likewise).",
)
def two_input_matrices(rows_of_gates: int = 2 * H) -> Iterator[Reading]:
    """Shapes: W_x x for the gates is added to W_h h with 2 H entries, and for the candidate to U h with H."""
    gates, candidate = drawn(440, rows_of_gates, D) @ drawn(441, D), drawn(442, H, H) @ drawn(443, H)
    yield exactly("entries of W_x x for the gates of 3 units", gates.shape, (2 * H,))
    yield exactly("entries of U h", candidate.shape, (H,))
    try:
        fits = bool((gates + candidate).size)
    except ValueError:  # NumPy's word for shapes that do not go together
        fits = False
    yield replace(exactly("W_x x and U h can be added", fits, False), kind="counterexample")


@claim(
    "A43",
    "Section 7",
    "The new state of the GRU is (1 - z) times the old one plus z times the candidate.",
    "true",
    "Others (torch, the authors' code) have z and 1 - z the other way round. That is the same cell with gains and "
    "biases of the z rows negated, and not with the z rows of the weights negated, which share statistics with r.",
)
def orientation(cell: Callable[..., Any] = gru) -> Iterator[Reading]:
    """sigmoid(-a) = 1 - sigmoid(a). An average of h and of a number in (-1, 1) is at most max(|h|, 1)."""
    p = _gru()
    sign = balls([-1] * H + [1] * H)
    turned = replace(p, gain=p.gain * sign, beta=p.beta * sign)
    yield equal("the other way round with negated gain and bias of z, and this way", cell(turned, True), cell(p))
    negated = replace(p, w_h=p.w_h * sign[:, None], w_x=p.w_x * sign[:, None], beta=p.beta * sign)
    yield differ("the other way round with negated weights of z, and this way", cell(negated, True), cell(p))
    bound = np.asarray([[max(abs(v), ball(1), key=float) for v in row] for row in p.h], dtype=object)
    yield at_most("|h| of the new state, and max(|h|, 1) of the old", abs(cell(p)), bound)


@claim(
    "A44",
    "Section 7",
    "The reset gate multiplies U h, after the product.",
    "true",
    "As in the paper, in cuDNN and in torch. The first GRU (Cho et al. 2014) has U (r h), which is another cell.",
)
def reset_after(cell: Callable[..., Any] = gru) -> Iterator[Reading]:
    """The same parameters in both; where the gate is open, 1 - r < exp(-1e6), they are one."""
    p = _gru()
    yield differ("h with r LN(U h) and with LN(U (r h))", cell(p), cell(p, after=False))
    open_gate = replace(p, gain=0 * p.gain, beta=balls([0] * H + [10**6] * H))
    yield equal("the two with r = sigmoid(1e6)", cell(open_gate), cell(open_gate, after=False))
