"""Recurrent cells with layer normalisation, one step of each.

LN(a) is the template of normalizers.py, with a gain and a shift of its own; sigma in the gates is the logistic
function, written (1 + tanh(a/2))/2, which is the same number for every a.

    ln_rnn         y = tanh(LN(U x + V h));  ln_rnn_relu has max(0, .) in the place of tanh
    ln_lstm        z = LN(V h) + LN(U x) + bias, each LN over the 4 H numbers of all gates
                   cy = sigma(f) c + sigma(i) tanh(g),   y = sigma(o) tanh(LN(cy))
    ..._per_gate   z = LN(U x + V h + bias), one LN over the H numbers of each gate
    ..._per_gate_plain_cell   the same with y = sigma(o) tanh(cy)
    ..._cell_only  z = U x + V h + bias, not normalised
    ..._carry_normalised      as ln_lstm, and LN(cy) is what the next step gets
    ln_gru         (r, z) = sigma(LN(V h) + LN(U x)),  n = tanh(LN(W x) + r LN(Y h)),  y = (1 - z) h + z n
    ln_gru_z_keeps the same with y = z h + (1 - z) n, as most frameworks have it

U is weight_ih, V weight_hh, W weight_in, Y weight_hn. Sources: Ba, Kiros and Hinton 2016, section 3.1 and equations 4,
20 to 22 and 26 to 30, with eps under the root.

Gates are stacked along the index q. A gate is taken out by a fixed vector of one 1 and zeros (`pick_i`, ...), so that
the order of the gates is data. `eps_c` is eps again, where the norms of the gates have other indices. The inputs whose
names begin with `slack` are fixed and zero: they carry what a bound admits for algorithms that never build a - mu
(lnverify.norms.cells).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from normalizers import H, b, i, mean, tensor
from program import Let, Program
from sympy import Expr, Idx, Indexed, Sum, Symbol, sqrt, tanh
from tensors import name_of, step

k = Idx("k", Symbol("K", integer=True, positive=True))
q = Idx("q", Symbol("Q", integer=True, positive=True))
j = Idx("j", H)

LSTM_GATES, GRU_GATES = "ifgo", "rz"


def norm(
    word: str, a: Indexed, over: Sequence[Idx], gain: Indexed, shift: Indexed, eps: str = "eps"
) -> tuple[Indexed, list[Let]]:
    """LN of a tensor over some of its indices: the result, called `norm_<word>`, and the statements that make it."""
    rest = [index for index in a.indices if index not in over]
    mu, var, r = (tensor(f"{name}_{word}", *rest) for name in ("mu", "var", "r"))
    d, xhat, result = (tensor(f"{name}_{word}", *a.indices) for name in ("d", "xhat", "norm"))
    return result, [
        Let(mu, mean(a, over)),
        Let(d, a - mu),
        Let(var, mean(d**2, over)),
        Let(r, 1 / sqrt(var + tensor(eps, *rest))),
        Let(xhat, d * r),
        Let(result, gain * xhat + shift),
    ]


def gates(z: Indexed, letters: str) -> tuple[dict[str, Indexed], list[Let]]:
    """z[b, q, j] apart: the argument of each gate by its letter, and the statements."""
    found = {letter: tensor(f"z_{letter}", b, j) for letter in letters}
    return found, [Let(found[letter], Sum(tensor(f"pick_{letter}", q) * z, q)) for letter in letters]


def logistic(word: str, z: Indexed) -> tuple[Indexed, list[Let]]:
    """sigma(z), called `gate_<word>`."""
    half, gate = tensor(f"half_{word}", b, j), tensor(f"gate_{word}", b, j)
    return gate, [Let(half, tanh(z / 2)), Let(gate, (1 + half) / 2)]


def fixed(inputs: Sequence[Indexed]) -> frozenset[str]:
    """The names of the inputs that are not differentiated."""
    return frozenset(name for name in map(name_of, inputs) if name.startswith(("eps", "pick_", "slack")))


def ln_rnn(relu: bool = False) -> Program:
    """One step of the layer-normalised recurrent cell."""
    x, h, U, V = tensor("x", b, k), tensor("h", b, i), tensor("weight_ih", j, k), tensor("weight_hh", j, i)
    gain, shift, slack, eps = tensor("weight", j), tensor("bias", j), tensor("slack_s", b, j), tensor("eps", b)
    a, y = tensor("a_s", b, j), tensor("y", b, j)
    z, normed = norm("s", a, (j,), gain, shift)
    body = [Let(a, Sum(U * x, k) + Sum(V * h, i) + slack), *normed]
    if relu:
        above = tensor("above", b, j)
        body += [Let(above, step(z)), Let(y, above * z)]
    else:
        body += [Let(y, tanh(z))]
    inputs = (x, h, U, V, gain, shift, slack, eps)
    return Program("ln_rnn_relu" if relu else "ln_rnn", inputs, tuple(body), (y,), fixed(inputs))


def ln_lstm(variant: str = "") -> Program:
    """One step of a layer-normalised LSTM cell, in one of its variants."""
    x, h, c = tensor("x", b, k), tensor("h", b, i), tensor("c", b, j)
    U, V, bias = tensor("weight_ih", q, j, k), tensor("weight_hh", q, j, i), tensor("bias", q, j)
    inputs = [x, h, c, U, V, bias]
    projected, recurrent = Sum(U * x, k), Sum(V * h, i)
    z = tensor("z", b, q, j)

    def stacked(word: str, value: Expr, over: Sequence[Idx], *names: str) -> tuple[Indexed, list[Let]]:
        a, slack = tensor(f"a_{word}", b, q, j), tensor(f"slack_{word}", b, q, j)
        gain, shift = (tensor(name, q, j) for name in names)
        inputs.extend((gain, shift, slack))
        result, normed = norm(word, a, over, gain, shift)
        return result, [Let(a, value + slack), *normed]

    if variant.startswith("per_gate"):
        total, body = stacked("g", projected + recurrent + bias, (j,), "gain", "shift")
        body += [Let(z, total)]
    elif variant == "cell_only":
        slack = tensor("slack_z", b, q, j)
        inputs.append(slack)
        body = [Let(z, projected + recurrent + bias + slack)]
    else:
        of_h, body = stacked("h", recurrent, (q, j), "gain_h", "shift_h")
        of_x, more = stacked("x", projected, (q, j), "gain_x", "shift_x")
        body += [*more, Let(z, of_h + of_x + bias)]
    parts, picked = gates(z, LSTM_GATES)
    body += picked
    opened = {}
    for letter in "ifo":
        opened[letter], made = logistic(letter, parts[letter])
        body += made
    candidate, cell, y, cy = (tensor(name, b, j) for name in ("candidate", "cell", "y", "cy"))
    body += [Let(candidate, tanh(parts["g"])), Let(cell, opened["f"] * c + opened["i"] * candidate)]
    read = cell
    if variant != "per_gate_plain_cell":
        gain, shift, slack = tensor("gain_c", j), tensor("shift_c", j), tensor("slack_c", b, j)
        inputs += [gain, shift, slack]
        a = tensor("a_c", b, j)
        read, normed = norm("c", a, (j,), gain, shift, "eps_c" if variant.startswith("per_gate") else "eps")
        body += [Let(a, cell + slack), *normed]
    shown = tensor("shown", b, j)
    body += [
        Let(shown, tanh(read)), Let(y, opened["o"] * shown), Let(cy, read if variant == "carry_normalised" else cell),
    ]  # fmt: skip
    inputs += [tensor(f"pick_{letter}", q) for letter in LSTM_GATES]
    inputs += [tensor("eps", b, q)] if variant.startswith("per_gate") else []
    inputs += [] if variant == "per_gate_plain_cell" else [tensor("eps_c" if variant == "per_gate" else "eps", b)]
    return Program("_".join(filter(None, ("ln_lstm", variant))), tuple(inputs), tuple(body), (y, cy), fixed(inputs))


def ln_gru(z_keeps: bool = False) -> Program:
    """One step of the layer-normalised GRU cell."""
    x, h = tensor("x", b, k), tensor("h", b, j)
    h_before = tensor("h", b, i)  # where the products sum over it
    U, V = tensor("weight_ih", q, j, k), tensor("weight_hh", q, j, i)
    W, Y = tensor("weight_in", j, k), tensor("weight_hn", j, i)
    inputs = [x, h, U, V, W, Y]
    body: list[Let] = []
    normed = {}
    for word, value, at in (
        ("h", Sum(V * h_before, i), (q, j)), ("x", Sum(U * x, k), (q, j)), ("in", Sum(W * x, k), (j,)),
        ("hn", Sum(Y * h_before, i), (j,)),
    ):  # fmt: skip
        a, slack = tensor(f"a_{word}", b, *at), tensor(f"slack_{word}", b, *at)
        gain, shift = tensor(f"gain_{word}", *at), tensor(f"shift_{word}", *at)
        inputs += [gain, shift, slack]
        normed[word], made = norm(word, a, at, gain, shift)
        body += [Let(a, value + slack), *made]
    both = tensor("both", b, q, j)
    body += [Let(both, normed["h"] + normed["x"])]
    parts, picked = gates(both, GRU_GATES)
    reset, made_r = logistic("r", parts["r"])
    update, made_z = logistic("z", parts["z"])
    inner, new, y = (tensor(name, b, j) for name in ("inner", "new", "y"))
    old, fresh = (update, 1 - update) if z_keeps else (1 - update, update)
    body += [
        *picked, *made_r, *made_z, Let(inner, normed["in"] + reset * normed["hn"]), Let(new, tanh(inner)),
        Let(y, old * h + fresh * new),
    ]  # fmt: skip
    inputs += [tensor(f"pick_{letter}", q) for letter in GRU_GATES] + [tensor("eps", b)]
    name = "ln_gru_z_keeps" if z_keeps else "ln_gru"
    return Program(name, tuple(inputs), tuple(body), (y,), fixed(inputs))


PAPER = "Ba, Kiros and Hinton 2016"
RNN = "One step of a layer-normalised recurrent cell"
LSTM = "One step of a layer-normalised LSTM cell"
GRU = "One step of a layer-normalised GRU cell"
CELLS: tuple[tuple[Callable[[], Program], str, str], ...] = (
    (ln_rnn, RNN, f"{PAPER}, equation 4"),
    (partial(ln_rnn, relu=True), f"{RNN} with max(0, .)", f"{PAPER}, equation 4"),
    (ln_lstm, LSTM, f"{PAPER}, equations 20 to 22"),
    (partial(ln_lstm, "per_gate"), f"{LSTM} with one norm for each gate", f"{PAPER}, equation 4, gate by gate"),
    (partial(ln_lstm, "per_gate_plain_cell"), f"{LSTM}, c not normalised", f"{PAPER}, equation 4, gate by gate"),
    (partial(ln_lstm, "cell_only"), f"{LSTM}, only c normalised", f"{PAPER}, equation 22"),
    (partial(ln_lstm, "carry_normalised"), f"{LSTM} that carries LN(c)", f"{PAPER}, equations 20 to 22, c replaced"),
    (ln_gru, GRU, f"{PAPER}, equations 26 to 30"),
    (partial(ln_gru, z_keeps=True), f"{GRU} whose z keeps the old state", f"{PAPER}, equations 26 to 30, z and 1 - z"),
)
"""Each program with what it is, and where it is from."""
