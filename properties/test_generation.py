"""The generated files are current, do not depend on chance, and run in any number type.

The printers and the rules of a program are tested by what they must refuse.
"""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import tokenize
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


@pytest.fixture(scope="module")
def reference():
    """The modules of reference/, which is a folder of scripts and no package."""
    sys.path.insert(0, str(ROOT / "reference"))
    try:
        names = ("tensors", "program", "normalizers", "emit_numpy", "emit_latex", "generate")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(ROOT / "reference"))


@pytest.fixture(scope="module")
def files(reference):
    """Every generated file, generated once for this module."""
    return reference.generate.generated()


def test_committed_files_are_current(reference, files):
    assert reference.generate.stale(ROOT, files) == []


def test_output_does_not_depend_on_the_hash_seed(tmp_path):
    """Two interpreters with other hashes, started elsewhere as a user would, find nothing stale."""
    runs = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "reference" / "generate.py"), "--check"],
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}, "PYTHONHASHSEED": seed},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        for seed in ("1", "5")
    ]
    assert [(run.communicate()[1], run.returncode) for run in runs] == [(b"", 0)] * 2


def test_check_names_what_is_stale_and_what_to_run(reference, files, monkeypatch, capsys, tmp_path):
    generate = reference.generate
    monkeypatch.setattr(generate, "generated", lambda: files)
    assert generate.main(["--root", str(tmp_path)]) == 0
    assert generate.main(["--root", str(tmp_path), "--check"]) == 0
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == sorted(Path(name).name for name in files)
    for name in files:
        copy = tmp_path / name
        text = copy.read_bytes()
        for tampered in (text.replace(b" - ", b" + ", 1), text.replace(b"\n", b"\r\n", 1), text + b"\n"):
            copy.write_bytes(tampered)
            assert generate.main(["--root", str(tmp_path), "--check"]) == 1
            assert capsys.readouterr().err == f"{name} is stale: run `python reference/generate.py`.\n"
        copy.unlink()
        assert generate.main(["--root", str(tmp_path), "--check"]) == 1
        assert capsys.readouterr().err.startswith(f"{name} is stale")
        copy.write_bytes(text)


def test_formulas_need_no_symbolic_algebra():
    """SymPy derives the formulas and is not there when they run."""
    code = "import sys, lnverify.formulas.layer_norm_second_order; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_generated_code_has_no_float_literal(files):
    for name, text in files.items():
        if name.endswith(".py"):
            numbers = [
                token.string
                for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.NUMBER
            ]
            assert numbers, name
            assert all(number.isdigit() for number in numbers), name


def test_printers_refuse_what_they_cannot_print(reference):
    sympy = pytest.importorskip("sympy")
    n, let = reference.normalizers, reference.program.Let
    x, y, t = n.tensor("x", n.b, n.i), n.tensor("y", n.b, n.i), n.tensor("m", n.b)
    eps = n.tensor("eps", n.b)
    values = [sympy.exp(x), x ** sympy.Rational(1, 3), 0.5 * x, sympy.Abs(x), x**n.H, x * sympy.pi]
    for value in [*values, t / n.H, x + eps]:  # the last two lose an axis, and reshape a number
        p = reference.program.Program("p", (x, t, eps), (let(y, value),), (y,))
        with pytest.raises(reference.emit_numpy.UnprintableError):
            reference.emit_numpy.function(p, "Never printed.")
    for value in values[:5]:
        with pytest.raises(reference.emit_numpy.UnprintableError):
            reference.emit_latex.latex(value)
    with pytest.raises(reference.emit_numpy.UnprintableError):
        reference.emit_latex.letter("unheard_of")


def test_programs_refuse_what_the_rule_does_not_cover(reference):
    n, program = reference.normalizers, reference.program
    let, error = program.Let, reference.tensors.ProgramError
    x, y, m = n.tensor("x", n.b, n.i), n.tensor("y", n.b, n.i), n.tensor("m", n.b)
    total = n.Sum(x, n.i)
    for target, value in [
        (y, x * total),  # i free and bound
        (y, x + total),
        (m, x),  # i neither free nor bound
        (m, n.sqrt(total)),  # a sum inside a function
        (m, total * n.Sum(x**2, n.i)),
    ]:
        with pytest.raises(error):
            let(target, value)
    good = let(y, x**2)
    for inputs, body, outputs in [((), (good,), (y,)), ((x,), (good, good), (y,)), ((x,), (good,), (x,))]:
        with pytest.raises(error):
            program.Program("p", inputs, body, outputs)
    inner = program.Program("inner", (x,), (good,), (y,), frozenset({"x"}))
    outer = program.Program("outer", (x,), (program.Call((y,), inner, (x,)),), (y,))
    for mode in (program.jvp, program.vjp):
        with pytest.raises(error, match="holds x"):
            mode(outer)
    with pytest.raises(error, match="do not match"):
        program.Call((y,), inner, (m,))


class Duck:
    """The least a number type must offer: a float array that NumPy does not recognise."""

    __array_ufunc__ = None

    def __init__(self, data):
        """Wrap an array."""
        self.data = np.asarray(data)

    shape = property(lambda self: self.data.shape)
    ndim = property(lambda self: self.data.ndim)

    def transpose(self, axes):
        """Permute the axes."""
        return Duck(self.data.transpose(axes))

    def __getitem__(self, key):
        """Index with None, slices and Ellipsis."""
        return Duck(self.data[key])

    def sum(self, axis):
        """Sum over one axis."""
        return Duck(self.data.sum(axis=axis))

    def sqrt(self):
        """Take the square root."""
        return Duck(np.sqrt(self.data))

    def __neg__(self):
        """Negate."""
        return Duck(-self.data)

    def __pow__(self, exponent):
        """Raise to a positive integer power."""
        assert type(exponent) is int
        assert exponent > 0
        return Duck(self.data**exponent)


def _binary(name):
    def method(self, other):
        assert isinstance(other, Duck | int | float)
        return Duck(getattr(self.data, name)(other.data if isinstance(other, Duck) else other))

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"):
    setattr(Duck, f"__{_name}__", _binary(f"__{_name}__"))


def as_mpf(array):
    """The same numbers in 30-digit arithmetic."""
    context = mpmath.MPContext()
    context.dps = 30
    return np.vectorize(context.mpf, otypes=[object])(array)


NUMBER_TYPES = {"duck": Duck, "longdouble": np.longdouble, "mpmath": as_mpf}


@pytest.mark.parametrize("kind", NUMBER_TYPES)
@pytest.mark.parametrize(("module", "name", "shapes"), [
    (first, "layer_norm", ""),
    (first, "layer_norm_vjp", "x"),
    (first, "layer_norm_vjp_closed", "x"),
    (first, "layer_norm_jvp", "xgb"),
    (second, "layer_norm_vjp_vjp", "xxgb"),
    (second, "layer_norm_vjp_jvp", "xxgbx"),
])  # fmt: skip
def test_formulas_run_in_every_number_type(kind, module, name, shapes):
    rng = np.random.default_rng(0)
    x, gamma, beta, *rest = (rng.standard_normal((3, 4) if letter == "x" else 4) for letter in "xgb" + shapes)
    convert, function = NUMBER_TYPES[kind], getattr(module, name)
    arguments = (x, gamma, beta, rng.uniform(1, 2, 3), *rest)
    expected = function(*arguments)
    found = function(*map(convert, arguments))
    assert list(found) == list(expected)
    for key, value in found.items():
        assert type(value) is (Duck if kind == "duck" else np.ndarray)
        data = value.data if kind == "duck" else value
        assert kind == "duck" or data.dtype == convert(x).dtype
        # Both sides are float64 or better on numbers near 1: some tens of operations, u = 1.1e-16.
        assert np.max(np.abs(data.astype(float) - expected[key]), initial=0) <= 1e-13, key


def test_contract_agrees_with_einsum():
    rng = np.random.default_rng(0)
    a, c, w = rng.standard_normal((3, 4)), rng.standard_normal((4, 3)), rng.standard_normal(4)
    for spec, operands in [
        ("bi->b", (a,)), ("bi->i", (a,)), ("bi->ib", (a,)), ("bi,ib->b", (a, c)), ("bi,ij->bj", (a, c)),
        ("bi,i,bi->b", (a, w, a)), ("i,b->bi", (w, c[0])), ("bi->", (a,)),
    ]:  # fmt: skip
        exact = np.einsum(spec, *operands)
        assert np.allclose(runtime.contract(spec, *operands), exact, rtol=0, atol=1e-14)
        general = runtime.contract(spec, *map(Duck, operands))
        assert general.shape == exact.shape
        assert np.allclose(general.data, exact, rtol=0, atol=1e-14)


def test_square_root_stays_in_its_number_type():
    assert runtime.sqrt(np.float32(4)).dtype == np.float32
    assert runtime.sqrt(4.0) == 2.0
    root = runtime.sqrt(as_mpf([2.0]))[0]
    assert abs(root**2 - 2) < 1e-28  # more digits than float64 has
    for exact in (2, Fraction(2)):
        with pytest.raises(TypeError, match="no square root"):
            runtime.sqrt(np.array([exact], dtype=object))


def test_shapes_are_checked():
    x, w = np.ones((3, 4)), np.ones(4)
    with pytest.raises(runtime.ShapeError, match=r"gamma has shape \(3,\), expected \(i=4\)"):
        first.layer_norm(x, np.ones(3), w, 1.0)
    with pytest.raises(runtime.ShapeError, match=r"eps has shape \(4,\), expected \(b=3\) or \(\)"):
        first.layer_norm(x, w, w, w)
    with pytest.raises(runtime.ShapeError, match=r"x has shape \(4,\), expected \(b, i\)"):
        first.layer_norm_plain(w, 1.0)
    with pytest.raises(runtime.ShapeError, match="index i is empty"):
        first.layer_norm_plain(np.ones((3, 0)), 1.0)
    assert first.layer_norm_plain(np.ones((0, 4)), 1.0)["y"].shape == (0, 4)


def test_eps_of_a_row_follows_the_square_of_its_scale():
    """Scaling a row by a power of two and its eps by the square changes nothing, to the last bit."""
    x = np.random.default_rng(0).standard_normal((3, 5))
    scale = np.array([2.0**-40, 1.0, 2.0**30])
    plain = first.layer_norm_plain(x, 1e-5)["y"]
    assert np.array_equal(first.layer_norm_plain(x * scale[:, None], 1e-5 * scale**2)["y"], plain)
    assert np.array_equal(first.layer_norm_plain(x, np.full(3, 1e-5))["y"], plain)


def test_writing_leaves_no_half_file(reference, tmp_path, monkeypatch):
    """If the rename fails, the old file stands and nothing is left beside it."""
    target = tmp_path / "file.py"
    target.write_text("old")
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        reference.generate.write(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
