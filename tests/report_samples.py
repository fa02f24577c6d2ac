"""Reports made by hand, for the tests of everything that shows or reads one."""

from __future__ import annotations

from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.finding import Finding, Observation, Report, Result
from lnverify.floats import FloatArray

TARGET = "torch.nn.functional.layer_norm"
VERSIONS = {
    "lnverify": "0.1.0", "python": "3.11.7", "platform": "Linux x86_64", "processor": "", "cores": 2,
    "versions": {"numpy": "2.4.6", "torch": "2.13.0"}, "byteorder": "little",
}  # fmt: skip


def case(dtype: str = "float32", shape: tuple[int, ...] = (1, 3), **given: Any) -> Case:
    """A case with x, weight, bias and dy; arrays and options by keyword, None to leave an array out."""
    n = shape[-1:]
    values: dict[str, Any] = {
        "x": np.arange(np.prod(shape), dtype=float).reshape(shape) * 0.1,
        "weight": np.ones(n),
        "bias": np.zeros(n),
        "dy": np.where(np.arange(np.prod(shape)) % 3 == 0, 1.0, -0.5).reshape(shape),
    }
    is_array = {*values, "tx", "tweight", "tbias", "vx", "vweight", "vbias"}
    values.update({name: value for name, value in given.items() if name in is_array})
    options = {name: value for name, value in given.items() if name not in is_array}
    arrays = {name: FloatArray.of(value, dtype) for name, value in values.items() if value is not None}
    return Case("layer_norm", dtype, n, arrays, options.pop("eps", 1e-5), **options)


def observation(
    of: Case,
    output: str,
    index: tuple[int, ...],
    got: float,
    expected: float,
    bound: float = 1e-7,
    ratio: float | None = None,
) -> Observation:
    """What was seen in a case; the stored output holds `got` at the index."""
    shape = (of.n,) if output in ("dweight", "dbias") else of.arrays["x"].shape
    values = np.zeros(shape)
    values[index] = got
    outputs = {output: FloatArray.of(values, of.dtype).to_json()}
    ratio = abs(got - expected) / bound if ratio is None else ratio
    message = f"{output}[{', '.join(map(str, index))}] is {got:.6g}, {expected:.6g} is right"
    return Observation(of.to_json(), outputs, message, ratio, output, index, expected, got, bound)


def finding(law: str, name: str, smallest: Observation, worst: Observation | None = None, **given: Any) -> Finding:
    """A violated error law in the case's dtype, unless said otherwise."""
    worst = worst or smallest
    facts: dict[str, Any] = {
        "severity": "error", "operation": "layer_norm", "dtype": smallest.case["dtype"], "device": "cpu",
        "verdict": "violated", "cause": name.replace("-", " "), "message": smallest.message,
        "worst_ratio": worst.ratio, "smallest": smallest, "worst": worst,
    }  # fmt: skip
    return Finding(law, name, **{**facts, **given})


def result(law: str, name: str, dtype: str = "float32", verdict: str = "holds", **given: Any) -> Result:
    """A result of an error law on the CPU, unless said otherwise."""
    facts = {"severity": "error", "device": "cpu", "examples": 120, "informative": 100, "worst_ratio": 0.4}
    return Result(law, name, dtype=dtype, verdict=verdict, **{**facts, **given})


def report(results: list[Result] | None = None, findings: list[Finding] | None = None, **given: Any) -> Report:
    """A report on torch's layer_norm."""
    results = results or [
        result("LN101", "forward-accuracy"),
        result("LN301", "shift-invariance", worst_ratio=0.1),
    ]
    facts: dict[str, Any] = {
        "environment": dict(VERSIONS), "seconds": 12.34, "examples": 1234,
        "coverage": {
            "N": [1, 2, 3, 8, 64, 257, 4097], "rows": [1, 2, 33], "affine": ["both", "weight", "none"],
            "requires_grad": ["x", "x+weight+bias"], "dtypes": ["float32"], "not_supported": ["mean", "rstd"],
            "not_examined": ["cuda"], "vacuous": {"LN101": 12, "LN305": 4},
        },
        "stages": {"subject": 1.5, "oracle": 2.25},
    }  # fmt: skip
    return Report(TARGET, results=results, findings=findings or [], **{**facts, **given})


def reduction_findings() -> list[Finding]:
    """One cause, dweight and dbias in two dtypes: shown as one."""
    found = []
    for dtype in ("float16", "float32"):
        for law, output in (("LN203", "dweight"), ("LN204", "dbias")):
            small = case(dtype, (2, 3))
            large = case(dtype, (33, 257), label="N=257, rows=33, mean/std=1e4", recipe={"seed": 3})
            found.append(
                finding(
                    law, f"{output}-accuracy",
                    observation(small, output, (2,), -1.0, -1.25, 0.125),
                    observation(large, output, (5,), 1210.0, 1234.5, 0.5),
                    cause="the sum over rows loses low bits",
                    message=f"{output}[2] is -1, the exact value is -1.25: 2 times the bound of 0.125.",
                )
            )  # fmt: skip
    return found


def violated() -> Report:
    """Two causes of error, one warning."""
    findings = reduction_findings()
    eps = case("float32", (1, 3), x=np.array([[0.0, 0.1, -2.5]]), eps=1e-5)
    findings.append(finding("LN101", "forward-accuracy", observation(eps, "y", (0, 2), -1.5, -1.4142128, 2e-7)))
    small = observation(case("float16", (1, 2)), "y", (0, 1), 1.0, 0.998, 0.01, ratio=1.4)
    findings.append(finding("LN104", "rounding-points", small, severity="warning", cause="one rounding too many"))
    results = [
        result("LN101", "forward-accuracy", verdict="violated", worst_ratio=4.3e5),
        result("LN101", "forward-accuracy", "float16"),
        result("LN104", "rounding-points", "float16", "violated", severity="warning", worst_ratio=1.4),
        result("LN203", "dweight-accuracy", verdict="violated", worst_ratio=49.0),
        result("LN203", "dweight-accuracy", "float16", "violated", worst_ratio=49.0),
        result("LN204", "dbias-accuracy", verdict="violated", worst_ratio=49.0),
        result("LN204", "dbias-accuracy", "float16", "violated", worst_ratio=49.0),
        result("LN301", "shift-invariance", worst_ratio=0.1),
        result("LN401", "mean", verdict="inapplicable", reason="returns no mean", examples=0, informative=0),
        result("LN701", "repeatable", worst_ratio=0.0),
    ]
    return report(results, findings)


def undecided() -> Report:
    """An error law below its minimum in two dtypes."""
    facts: dict[str, Any] = {
        "verdict": "inconclusive",
        "informative": 3,
        "reason": "3 informative examples of 10",
    }
    return report(
        [
            result("LN101", "forward-accuracy"),
            result("LN305", "scale-invariance", "float16", **facts),
            result("LN305", "scale-invariance", "bfloat16", **facts),
        ]
    )
