"""Subjects that write into the arrays they are given, in NumPy and in torch: results, guard bands, gradients."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import lnverify
from lnverify.adapters.signature import match, parameters
from lnverify.errors import SignatureError
from lnverify.subject import declare
from lnverify.target import resolve
from tests.adapter_samples import arrays, ask, assert_right, expected, np_forward

torch = pytest.importorskip("torch")


def np_into(x, weight, bias, out, mean, rstd, eps):
    y, m, r = np_forward(x, weight, bias, eps)
    out[...], mean[...], rstd[...] = y, m[..., 0], r[..., 0]


def np_back(dout, x, weight, mean, rstd, dinp, dweight, dbias):
    """Adds to the parameter gradients, as kernels in C do."""
    xhat = (x - mean[..., None]) * rstd[..., None]
    g = dout if weight is None else dout * weight
    dinp[...] = rstd[..., None] * (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True))
    rows = tuple(range(x.ndim - 1))
    if dweight is not None:
        dweight += (dout * xhat).sum(rows)
    if dbias is not None:
        dbias += dout.sum(rows)


declare(framework="numpy", backward="np_back", dtypes=("float64", "float32", "bfloat16"))(np_into)


def torch_into(x, weight, bias, out, mean, rstd, eps):
    var, m = torch.var_mean(x, -1, correction=0)
    mean.copy_(m)
    rstd.copy_(torch.rsqrt(var + eps))
    y = (x - mean[..., None]) * rstd[..., None]
    y = y if weight is None else y * weight
    out.copy_(y if bias is None else y + bias)


def torch_back(dout, x, weight, mean, rstd, dinp, dweight, dbias):
    xhat = (x - mean[..., None]) * rstd[..., None]
    g = dout if weight is None else dout * weight
    dinp.copy_(rstd[..., None] * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True)))
    for into, terms in ((dweight, dout * xhat), (dbias, dout)):
        if into is not None:
            into += terms.reshape(-1, terms.shape[-1]).sum(0)


declare(framework="torch", backward="torch_back", dtypes=("float64", "float32"))(torch_into)
BOTH = (np_into, torch_into)


@pytest.mark.parametrize("target", BOTH)
def test_what_is_written_is_the_result(target):
    given = arrays()
    response = ask(resolve(target), given, "y", "mean", "rstd", "dx", "dweight", "dbias")
    assert_right(response, given)
    assert set(response.arrays) == {"y", "mean", "rstd", "dx", "dweight", "dbias"}
    assert response.changed == ()
    np.testing.assert_allclose(response.arrays["mean"].values, given["x"].values.mean(-1), rtol=1e-12)


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("history", ["overwritten", "followed", "repeated"])
def test_every_call_writes_into_fresh_arrays(target, history):
    given = arrays()
    assert_right(ask(resolve(target), given, history=history), given)


@pytest.mark.parametrize("target", BOTH)
def test_the_laws_judge_it(target):
    report = lnverify.check(
        target,
        profile="selftest",
        dtypes=["float32"],
        select=["LN101", "LN107", "LN201", "LN202", "LN203", "LN703"],
        max_examples=1,
    )
    held = {r.law for r in report.results if r.verdict == "holds"}
    assert not report.findings
    assert held >= {"LN101", "LN107", "LN201", "LN202", "LN203", "LN703"}


@pytest.mark.parametrize("where", [-1, 1])
@pytest.mark.parametrize("name", ["out", "dinp", "dweight"])
def test_a_write_beside_the_array_is_seen(where, name):
    def stray(array):
        """One element before or after a NumPy array."""
        if array is not None and array.size:
            ctypes.memset(array.ctypes.data + (-array.itemsize if where < 0 else array.nbytes), 0, array.itemsize)

    def forward(x, weight, bias, out, mean, rstd, eps):
        np_into(x, weight, bias, out, mean, rstd, eps)
        if name == "out":
            stray(out)

    def backward(dout, x, weight, mean, rstd, dinp, dweight, dbias):
        np_back(dout, x, weight, mean, rstd, dinp, dweight, dbias)
        if name != "out":
            stray({"dinp": dinp, "dweight": dweight}[name])

    subject = resolve(declare(framework="numpy", backward=backward)(forward))
    response = ask(subject, arrays())
    ours = {"out": "y", "dinp": "dx", "dweight": "dweight"}[name]
    assert response.changed == (f"the memory around {ours}",)
    report = lnverify.check(subject, dtypes=["float64"], select=["LN703"], max_examples=1, fail_fast=True)
    assert report.findings[0].message == f"The call overwrites the memory around {ours}."


def test_a_torch_write_beside_the_tensor_is_seen():
    def forward(x, weight, bias, out, mean, rstd, eps):
        torch_into(x, weight, bias, out, mean, rstd, eps)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()

    response = ask(resolve(declare(framework="torch")(forward)), arrays(), "y")
    assert response.changed == ("the memory around y",)


def test_what_is_not_written_is_nan():
    def forward(x, weight, bias, out, eps):
        out[:-1] = np_forward(x, weight, bias, eps)[0][:-1]

    y = ask(resolve(declare(framework="numpy")(forward)), arrays(), "y").arrays["y"].values
    np.testing.assert_allclose(y[:-1], expected(arrays())["y"][:-1], rtol=1e-12)
    assert np.isnan(y[-1]).all()


def test_without_a_backward_nothing_but_the_forward_is_asked():
    subject = resolve(declare(framework="torch")(lambda x, out, eps: out.copy_(x) and None))
    assert subject.capabilities.outputs == ("y",)


def test_an_optional_out_stays_at_its_default():
    def forward(x, weight=None, bias=None, eps=1e-5, out=None):
        assert out is None
        return np_forward(x, weight, bias, eps)

    given = arrays()
    assert_right(ask(resolve(declare(framework="numpy")(forward)), given, "y"), given)


def test_a_mean_that_is_asked_for_without_out_is_refused():
    with pytest.raises(SignatureError, match="the parameter 'mean' cannot be matched"):
        match(parameters(lambda x, mean, eps: x), "f")
