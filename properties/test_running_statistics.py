"""Running statistics of batch norm: their update by torch, conventions, evaluation; module classes and instances."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from lnverify.errors import SignatureError
from lnverify.evaluation import Evaluator
from lnverify.floats import FORMATS
from lnverify.law import load_laws
from lnverify.norms.bound import NormBounds
from lnverify.norms.cases import cases, make
from lnverify.norms.exact import Exact
from lnverify.norms.judge import measure
from lnverify.norms.running_statistics import EvaluationBounds, judge_update, tracking
from lnverify.norms.support import find_support
from lnverify.operation import MOMENTUM, RUNNING
from lnverify.target import resolve

torch = pytest.importorskip("torch")
SHAPE = ((3, 4, 5), (3, 5))


def test_the_update_is_that_of_torch() -> None:
    """A momentum of 1/4, and the variance of 15 numbers divided by 14."""
    case = tracking(make("batch_norm", "float64", SHAPE, "both", 1e-5))
    x, mean, var = (torch.tensor(case.arrays[name].values) for name in ("x", *RUNNING))
    torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=MOMENTUM)
    bounds = NormBounds(Exact(case), FORMATS["float64"])
    for name, tensor in zip(RUNNING, (mean, var), strict=True):
        judgement = judge_update(bounds, name, type(case.arrays["x"]).of(tensor.numpy(), "float64"))
        assert judgement.state == "holds"
        assert judgement.bound < 1e-13
    wrong = judge_update(bounds, RUNNING[1], type(case.arrays["x"]).of(var.numpy(), "float64"), biased=True)
    assert wrong.state == "violated"


@pytest.mark.parametrize("target", ["torch.nn.functional.batch_norm", "torch.nn.BatchNorm1d"])
def test_torch_tracks_rightly(target: str) -> None:
    laws = [load_laws()[law] for law in ("LN810", "LN811")]
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        support = find_support(resolve(target, operation="batch_norm"), "batch_norm", dtype, "cpu")
        assert not isinstance(support, str)
        assert "running" in support.outputs
        evaluator = Evaluator(support.subject)
        found = [evaluator.evaluate(case) for case in cases(support, "batch_norm", 13, 0)]
        outcomes = [law.check(evaluation) for evaluation in found for law in laws]
        assert [outcome.message for outcome in outcomes if outcome.bad] == []
        assert any(outcome.informative for outcome in outcomes)


def test_what_is_not_tracked_is_not_asked_for() -> None:
    def constant(x, running_mean=None, running_var=None, momentum=0.1, weight=None, bias=None, eps=1e-5):
        return torch.nn.functional.batch_norm(x, None, None, weight, bias, True, momentum, eps)

    support = find_support(resolve(constant, operation="batch_norm"), "batch_norm", "float32", "cpu")
    assert not isinstance(support, str)
    assert "running" not in support.outputs


def test_evaluation_admits_folded_code_and_no_more() -> None:
    """x a + b in float32 with a mean of 1000 deviations, and eps outside the root beyond the bound."""
    one = np.float32
    case = make("batch_norm_eval", "float32", SHAPE, "both", 1e-3, "far")
    exact = Exact(case)
    mean, var = (case.arrays[name].values.astype(one)[:, None] for name in RUNNING)
    weight, bias = (exact.parameter(name).astype(one)[:, None] for name in ("weight", "bias"))
    scale = weight / np.sqrt(var + one(1e-3))
    bounds = EvaluationBounds(exact, FORMATS["float32"])
    x = exact.raw.astype(one)
    y = x * scale + (bias - mean * scale)
    assert (np.abs(y - exact.pair("y").hi) <= bounds.bound("y")).all()
    outside = weight * (x - mean) / (np.sqrt(var) + one(1e-3)) + bias
    assert (np.abs(outside - exact.pair("y").hi) > bounds.bound("y")).any()
    assert measure(case, "float32").bound("dx").max() < 1e-5 * np.abs(exact.pair("dx").hi).max()


def test_evaluation_without_running_statistics_is_refused() -> None:
    with pytest.raises(SignatureError, match="has no parameter for 'running_mean', without which there is no"):
        resolve("lnverify.mutants.torch_norms:batch_by_hand", operation="batch_norm_eval")
    with pytest.raises(SignatureError, match="keeps no running statistics"):
        resolve(partial(torch.nn.BatchNorm1d, track_running_stats=False)(4), operation="batch_norm_eval")


INSTANCES = [
    ("group_norm", lambda: torch.nn.GroupNorm(3, 6), (6, 3)),
    ("instance_norm", lambda: torch.nn.InstanceNorm1d(4, affine=True), (4, 4)),
    ("instance_norm", lambda: torch.nn.InstanceNorm2d(4), (4, 4)),
    ("batch_norm", lambda: torch.nn.BatchNorm1d(5), (5, 1)),
    ("batch_norm", lambda: torch.nn.BatchNorm2d(5, affine=False), (5, 1)),
    ("batch_norm_eval", lambda: torch.nn.BatchNorm1d(5, eps=1e-3), (5, 1)),
    ("rms_norm", lambda: torch.nn.RMSNorm(8, eps=1e-6), (8,)),
    ("layer_norm", lambda: torch.nn.LayerNorm(8), (8,)),
]


@pytest.mark.parametrize(("name", "make_module", "fixed"), INSTANCES, ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("as_class", [False, True])
def test_module_classes_and_instances_are_right(name: str, make_module, fixed, as_class: bool) -> None:
    module = make_module()
    found = resolve(type(module) if as_class else module, operation=name)
    assert found.capabilities.fixed_shape == (None if as_class else fixed)
    if name == "layer_norm":
        return
    support = find_support(found, name, "float64", "cpu")
    assert not isinstance(support, str)
    evaluator = Evaluator(support.subject)
    laws = [load_laws()[law] for law in ("LN801", "LN802")]
    outcomes = [law.check(evaluator.evaluate(case)) for case in cases(support, name, 5, 0) for law in laws]
    assert [outcome.message for outcome in outcomes if outcome.bad] == []
    assert sum(outcome.informative for outcome in outcomes) >= 5


def test_an_instance_whose_channels_are_hidden_is_refused() -> None:
    with pytest.raises(SignatureError, match="the channels that this module takes cannot be seen"):
        resolve(torch.nn.Identity(), operation="group_norm")
