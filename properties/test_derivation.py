"""The derivation in reference/ is right, and the committed formulas are what it derives.

Three independent witnesses: proofs for every H; central differences of the emitted text in 40-digit
arithmetic; and the transposition identity <y_bar, J x_dot> = <J^T y_bar, x_dot>. Mutants of the one
differentiation rule show that the witnesses can tell a wrong derivation from a right one.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

from lnverify.formulas import layer_norm as first
from lnverify.formulas import layer_norm_second_order as second
from lnverify.formulas import runtime

ROOT = Path(__file__).resolve().parent.parent
VARIANTS = ["", "_weight", "_bias", "_plain"]
DIGITS = 40
MP = mpmath.MPContext()  # a context of our own: the precision of nobody else is changed
MP.dps = DIGITS
STEP = MP.mpf(10) ** -13


def difference_bound(scale):
    """How far a central difference with `STEP` may be from the derivative, relative to `scale`.

    Truncation is STEP**2 / 6 times a third derivative, rounding is 10**-DIGITS / STEP; both are below
    1e-25 times the size of the numbers, and third derivatives here stay below 1e4 (var + eps > 0.1).
    """
    return MP.mpf(10) ** -21 * max(1, scale)


def rounding_bound(scale):
    """How far two orders of evaluation may differ: a few hundred roundings at 40 digits."""
    return MP.mpf(10) ** (4 - DIGITS) * max(1, scale)


@pytest.fixture(scope="module")
def reference():
    """The modules of reference/, which is a folder of scripts and no package."""
    sys.path.insert(0, str(ROOT / "reference"))
    try:
        names = ("tensors", "program", "normalizers", "prove", "emit_numpy")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(ROOT / "reference"))


def compiled(reference, p):
    """The function that is emitted for `p`; calls inside it go to the committed formulas."""
    space = {**vars(runtime), **vars(first), **vars(second)}
    exec(reference.emit_numpy.function(p, "Emitted for a test."), space)
    return space[p.name]


def random_array(rng, *shape):
    """Random 40-digit numbers in (-2, 2)."""
    whole = rng.integers(-(2**62), 2**62, size=shape)
    return np.vectorize(lambda n: MP.mpf(int(n)) / 2**61, otypes=[object])(whole)


def arguments(p, seed=0, **extents):
    """Random arguments by name; per-row eps, positive."""
    rng = np.random.default_rng(seed)
    extents = {"b": 3, "i": 4, "s": 3, "t": 3, "k": 2} | extents
    found = {}
    for tensor in p.inputs:
        name = str(tensor.base.label)
        found[name] = random_array(rng, *(extents[str(index.label)] for index in tensor.indices))
        if name in p.fixed:
            found[name] = found[name] ** 2 + MP.mpf("0.1")
    return found


def inner(left, right):
    """The sum of products over all entries of the arrays in two lists."""
    return sum((a * b).sum() for a, b in zip(left, right, strict=True))


def close(left, right, bound):
    """Whether two numbers or arrays agree to `bound`, a function of their scale."""
    left, right = np.asarray(left, dtype=object), np.asarray(right, dtype=object)
    scale = max((abs(value) for value in right.flat), default=0)
    return left.shape == right.shape and all(
        abs(value) <= bound(scale) for value in np.asarray(left - right, dtype=object).flat
    )


def along(call, point, direction):
    """The central difference of `call(**point)` along `direction`, output by output."""
    moved = [
        call(**{name: value + sign * STEP * direction.get(name, 0) for name, value in point.items()})
        for sign in (1, -1)
    ]
    return [(moved[0][name] - moved[1][name]) / (2 * STEP) for name in moved[0]]


def check_derivatives(reference, p, f, f_jvp, f_vjp, seed=0):
    """Assert that the emitted forward and reverse mode of `p` agree with differences and each other."""
    point = arguments(p, seed)
    free = [name for name in point if name not in p.fixed]
    rng = np.random.default_rng(seed + 1)
    direction = {name: random_array(rng, *point[name].shape) for name in free}
    differences = along(f, point, direction)
    forward = list(f_jvp(*point.values(), *direction.values()).values())
    assert all(close(a, b, difference_bound) for a, b in zip(forward, differences, strict=True)), "jvp"
    bars = [random_array(rng, *value.shape) for value in forward]
    reverse = list(f_vjp(*point.values(), *bars).values())
    assert [value.shape for value in reverse] == [point[name].shape for name in free]
    assert close(inner(bars, forward), inner(reverse, direction.values()), rounding_bound), "transposition"
    # Entry by entry, so that errors of the adjoint cannot cancel along one direction.
    for name, value in zip(free, reverse, strict=True):
        for spot in np.ndindex(value.shape):
            unit = point[name] * 0
            unit[spot] = MP.mpf(1)
            assert close(inner(bars, along(f, point, {name: unit})), value[spot], difference_bound), name


def derived(reference, p):
    """The emitted forward, jvp and vjp of a program."""
    modes = (p, reference.program.jvp(p), reference.program.vjp(p))
    return [compiled(reference, mode) for mode in modes]


@pytest.mark.parametrize("suffix", VARIANTS)
def test_first_order(reference, suffix):
    p = reference.normalizers.layer_norm(suffix)
    name = f"layer_norm{suffix}"
    outputs = getattr(first, name)
    check_derivatives(
        reference, p, lambda **point: {"y": outputs(**point)["y"]},
        getattr(first, f"{name}_jvp"), getattr(first, f"{name}_vjp"),
    )  # fmt: skip


@pytest.mark.parametrize("suffix", VARIANTS)
def test_second_order(reference, suffix):
    """Double backward and the Hessian-vector product are the derivatives of the committed vjp."""
    name = f"layer_norm{suffix}_vjp"
    p = reference.program.vjp(reference.normalizers.layer_norm(suffix))
    check_derivatives(
        reference, p, getattr(first, name), getattr(second, f"{name}_jvp"), getattr(second, f"{name}_vjp")
    )


@pytest.mark.parametrize("suffix", VARIANTS)
def test_nested_forward(reference, suffix):
    name = f"layer_norm{suffix}_jvp"
    p = reference.program.jvp(reference.normalizers.layer_norm(suffix))
    point = arguments(p)
    rng = np.random.default_rng(1)
    direction = {n: random_array(rng, *point[n].shape) for n in point if n not in p.fixed}
    found = getattr(second, f"{name}_jvp")(*point.values(), *direction.values())
    assert close(found["y_dot_dot2"], along(getattr(first, name), point, direction)[0], difference_bound)


@pytest.mark.parametrize("suffix", VARIANTS)
def test_closed_form_is_another_order_of_evaluation(reference, suffix):
    p = reference.program.vjp(reference.normalizers.layer_norm(suffix))
    point = arguments(p)
    chain = getattr(first, f"layer_norm{suffix}_vjp")(**point)
    closed = getattr(first, f"layer_norm{suffix}_vjp_closed")(**point)
    assert list(chain) == list(closed)
    assert all(close(closed[name], chain[name], rounding_bound) for name in chain)


@pytest.mark.parametrize("suffix", VARIANTS)
def test_each_adjoint_alone_is_that_of_the_whole_reverse_mode(reference, suffix):
    point = arguments(reference.program.vjp(reference.normalizers.layer_norm(suffix)))
    forward = {name: value for name, value in point.items() if name != "y_bar"}
    known = {**point, **getattr(first, f"layer_norm{suffix}")(**forward)}
    for name, value in getattr(first, f"layer_norm{suffix}_vjp")(**point).items():
        alone = getattr(first, f"layer_norm{suffix}_vjp_{name}")
        given = {argument: known[argument] for argument in inspect.signature(alone).parameters}
        assert "x" not in given
        assert (alone(**given)[name] == value).all()


def test_signatures(reference):
    """The order of arguments and of results is part of the interface."""
    p = reference.normalizers.layer_norm()
    program = reference.program
    twice = program.vjp(program.vjp(p))
    assert list(map(reference.tensors.name_of, twice.inputs)) == (
        ["x", "gamma", "beta", "eps", "y_bar", "x_bar_bar2", "gamma_bar_bar2", "beta_bar_bar2"]
    )
    assert list(map(reference.tensors.name_of, twice.outputs)) == (["x_bar2", "gamma_bar2", "beta_bar2", "y_bar_bar2"])
    result = second.layer_norm_vjp_vjp(**arguments(twice))
    assert all(value == 0 for value in result["beta_bar2"])
    assert result["beta_bar2"].shape == (4,)
    assert list(first.layer_norm_plain(np.eye(3), 1e-5)) == ["y", "mu", "d", "var", "r", "xhat"]


def test_every_theorem_is_proved(reference):
    prove = reference.prove
    for theorem in [*prove.theorems(), *prove.closed_forms()]:
        assert theorem.proved(), f"{theorem.name}: {theorem.difference()}"


def test_gamma_outside_the_means_is_refuted(reference):
    prove = reference.prove
    false = prove.Theorem("gamma-outside", "False.", prove.REVERSE, prove.x_bar, prove.SEED)
    assert not false.proved()
    assert prove.refuted() == Fraction(-5, 24)


def test_prover_refuses_near_misses(reference):
    """A wrong sign, a lost factor and a lost mean are not proved."""
    prove = reference.prove
    g = prove.gamma * prove.y_bar
    c, m = prove.average(g * prove.xhat), prove.average(g)
    right = g - m - prove.xhat * c
    for wrong in (right + 2 * m, right + m / prove.H, right + prove.xhat * c, right * 2):
        assert not prove.Theorem("wrong", "", prove.REVERSE, prove.x_bar, prove.r * wrong).proved()


def test_batch_norm_is_layer_norm_of_the_transpose(reference):
    n = reference.normalizers
    p = n.normalizer("batch_norm", n.tensor("x", n.b, n.i), (n.b,), (n.i,), weight=False, bias=False)
    point = arguments(p)
    batch = compiled(reference, p)(**point)["y"]
    layer = first.layer_norm_plain(point["x"].T, point["eps"])["y"].T
    assert close(batch, layer, rounding_bound)
    check_derivatives(reference, p, *derived(reference, p))


def composed(reference):
    """Two calls with a product between them; the middle tensor h is an output, and also read inside."""
    n, program = reference.normalizers, reference.program
    x, h, z, y = (n.tensor(name, n.b, n.i) for name in "xhzy")
    gamma, beta, w = (n.tensor(name, n.i) for name in ("gamma", "beta", "w"))
    eps = n.tensor("eps", n.b)
    body = (
        program.Call((h,), n.layer_norm("_plain"), (x, eps)),
        program.Let(z, h * w),
        program.Call((y,), n.layer_norm(), (z, gamma, beta, eps)),
    )
    return program.Program("composed", (x, w, gamma, beta, eps), body, (y, h), frozenset({"eps"}))


def test_calls(reference):
    """Programs made of programs differentiate, twice."""
    p = composed(reference)
    check_derivatives(reference, p, *derived(reference, p))
    once = reference.program.vjp(p)
    check_derivatives(reference, once, *derived(reference, once))


def attention(reference):
    """y = (q q^T) q: one tensor at two places, and an index that a renaming displaces."""
    n, program = reference.normalizers, reference.program
    size = n.Symbol("S", integer=True, positive=True)
    s, t, k = n.Idx("s", size), n.Idx("t", size), n.Idx("k", n.Symbol("K", integer=True, positive=True))
    q, a, y = n.tensor("q", s, k), n.tensor("a", s, t), n.tensor("y", s, k)
    moved = n.tensor("q", t, k)
    body = (program.Let(a, n.Sum(q * moved, k)), program.Let(y, n.Sum(a * moved, t)))
    return program.Program("attention", (q,), body, (y,))


def test_one_tensor_at_two_places(reference):
    """Double backward is where a renaming in two steps goes wrong."""
    p = attention(reference)
    point = arguments(p)
    expected = point["q"] @ point["q"].T @ point["q"]
    assert close(compiled(reference, p)(**point)["y"], expected, rounding_bound)
    for q in (p, reference.program.vjp(p)):
        check_derivatives(reference, q, *derived(reference, q))


def wrong_rules(reference):
    """Mutants of the reverse rule, by name: each one a plausible mistake."""
    program, total, derivative = reference.program, reference.tensors.total, reference.program.derivative
    right = program.contribution

    def no_free_sum(bar, body, over, place, home):
        return total(bar * derivative(body, place), set(over) - set(place.indices))

    def no_derivative(bar, body, over, place, home):
        return total(bar, {*bar.indices, *over} - set(place.indices))

    def wrong_sign(bar, body, over, place, home):
        return -right(bar, body, over, place, home)

    def no_mean(bar, body, over, place, home):
        return 0 * bar if "mu" in str(bar) else right(bar, body, over, place, home)

    def constant_variance(bar, body, over, place, home):
        return 0 * bar if "var" in str(bar) else right(bar, body, over, place, home)

    def doubled_gamma(bar, body, over, place, home):
        return right(bar, body, over, place, home) * (2 if "gamma" in str(place) else 1)

    return [no_free_sum, no_derivative, wrong_sign, no_mean, constant_variance, doubled_gamma]


@pytest.mark.parametrize("number", range(6))
def test_wrong_rules_are_caught(reference, monkeypatch, number):
    rule = wrong_rules(reference)[number]
    p = reference.normalizers.layer_norm()
    f, f_jvp = (compiled(reference, mode) for mode in (p, reference.program.jvp(p)))
    monkeypatch.setattr(reference.program, "contribution", rule)
    if rule.__name__ == "no_free_sum":  # not even a program: the lost index has nowhere to go
        with pytest.raises(reference.tensors.ProgramError, match="does not have the index i"):
            reference.program.vjp(p)
        return
    mutant = compiled(reference, reference.program.vjp(reference.normalizers.layer_norm()))
    with pytest.raises(AssertionError, match="transposition"):
        check_derivatives(reference, p, f, f_jvp, mutant)


def test_wrong_scalar_derivative_is_caught(reference, monkeypatch):
    """A chain rule that forgets the factor 2 of a square: both modes go wrong together."""
    right = reference.program.derivative
    monkeypatch.setattr(
        reference.program, "derivative",
        lambda body, place: right(body, place) / (2 if body.has(place**2) else 1),
    )  # fmt: skip
    p = reference.normalizers.layer_norm()
    with pytest.raises(AssertionError, match="jvp"):
        check_derivatives(reference, p, *derived(reference, p))
