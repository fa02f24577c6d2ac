"""The default subject on 8 x 768, and the same backward checked by lnverify and by torch.autograd.gradcheck."""

from __future__ import annotations

from typing import Any

import pytest

from lnverify.evaluation import Evaluator
from lnverify.recipes import build
from lnverify.runner import DEFAULT_TARGET
from lnverify.target import resolve

torch = pytest.importorskip("torch", reason="the default subject needs torch")
ROWS, N = 8, 768
SUBJECT = resolve(DEFAULT_TARGET)
CASE = build({
    "dtype": "float64", "batch": [ROWS], "shape": [N], "regime": "normal", "mean": 0.5, "scale": 0, "weight": "normal",
    "bias": "normal", "dy": "normal", "eps": 1e-5, "seed": 7,
})  # fmt: skip


@pytest.mark.parametrize("wanted", [("y",), ("y", "dx", "dweight", "dbias")], ids=["forward", "with-backward"])
def test_subject(benchmark: Any, wanted: tuple[str, ...]) -> None:
    response = benchmark(lambda: SUBJECT.run(CASE.request(*wanted)))
    assert set(response.arrays) == set(wanted)


def test_backward_judged_by_its_bound(benchmark: Any) -> None:
    def judge() -> list[str]:
        evaluation = Evaluator(SUBJECT).evaluate(CASE)
        return [evaluation.judge(name).state for name in ("dx", "dweight", "dbias")]

    assert benchmark(judge) == ["holds"] * 3


def test_backward_judged_by_gradcheck(benchmark: Any) -> None:
    tensors = [torch.tensor(CASE.arrays[name].values, requires_grad=True) for name in ("x", "weight", "bias")]

    def gradcheck() -> bool:
        passed: bool = torch.autograd.gradcheck(
            lambda x, w, b: torch.nn.functional.layer_norm(x, (N,), w, b, CASE.eps), tensors, fast_mode=False
        )
        return passed

    # One round: the slow mode calls the forward twice for each of some 7,700 numbers.
    assert benchmark.pedantic(gradcheck, rounds=1, iterations=1)
