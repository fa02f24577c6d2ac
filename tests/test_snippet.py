"""The script of a finding is run: it must print what the finding says."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lnverify.case import Case
from lnverify.finding import Observation
from lnverify.floats import FloatArray
from lnverify.reports.snippet import snippet
from lnverify.runner import check
from tests import report_samples as samples

torch = pytest.importorskip("torch")
TARGET = samples.TARGET


def tensors(case: Case) -> dict[str, Any]:
    """The case's arrays as torch tensors, by their bits."""
    signed = {"float64": "int64", "float32": "int32", "float16": "int16", "bfloat16": "int16"}
    out = {}
    for name, array in case.arrays.items():
        bits = array.bits.copy().view(signed[array.dtype])
        out[name] = torch.from_numpy(bits).view(getattr(torch, array.dtype))
    return out


def answer(case: Case, output: str) -> Any:
    """What layer_norm gives for the case, written down without the snippet's code."""
    t = tensors(case)
    names = [n for n in ("x", "weight", "bias") if n in t]

    def f(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        weight, bias = given.get("weight"), given.get("bias")
        return torch.nn.functional.layer_norm(given["x"], case.normalized_shape, weight, bias, case.eps)

    if output == "ty":
        return torch.func.jvp(f, tuple(t[n] for n in names), tuple(t[f"t{n}"] for n in names))[1]
    leaves = [t[n].requires_grad_() for n in names]
    y = f(*leaves)
    if output == "y":
        return y.detach()
    wanted = [t[n] for n in case.requires_grad if n in t]
    dy = t.get("dy", y.detach())
    if output == "d2dy":
        dy.requires_grad_()
    first = torch.autograd.grad(y, wanted, dy, create_graph=output.startswith("d2"))
    if not output.startswith("d2"):
        return first[[n for n in case.requires_grad if n in t].index(output[1:])]
    second = [t[f"v{n}"] for n in case.requires_grad if n in t]
    return torch.autograd.grad(first, t[output[2:]], second)[0].detach()


def seen_in(case: Case, output: str) -> Observation:
    """The finding's observation: the last element, with what torch really gives there."""
    values = answer(case, output)
    index = tuple(size - 1 for size in values.shape)
    stored = FloatArray.of(values.double().numpy(), case.dtype)
    got = float(values[index])
    outputs = {output: stored.to_json()}
    return Observation(case.to_json(), outputs, "it is off", 2.0, output, index, got + 0.5, got, 0.25)


def run(script: str) -> str:
    out = io.StringIO()
    threads = torch.get_num_threads()
    try:
        with redirect_stdout(out):
            exec(compile(script, "snippet", "exec"), {})
    finally:
        torch.set_num_threads(threads)
    return out.getvalue().strip()


MODULE = """
import torch


class EvalScaled(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * (1.0 if self.training else 0.5)


def refuses_no_rows(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    y = torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)
    if y.requires_grad and not len(y):
        y.register_hook(lambda dy: dy[0])
    return y
"""


@pytest.mark.parametrize(
    ("name", "law", "said"),
    [("EvalScaled", "LN701", "module.eval()"), ("refuses_no_rows", "LN604", "torch.autograd.grad(y, x, dy)")],
)
def test_the_script_of_a_check_asks_as_the_law_did(tmp_path: Path, name: str, law: str, said: str) -> None:
    """In evaluation mode, and with the backward that raises."""
    (tmp_path / "mine.py").write_text(MODULE)
    report = check(f"{tmp_path}/mine.py:{name}", dtypes=["float32"], select=[law], profile="selftest", max_examples=1)
    found = report.findings[0]
    script = snippet(found, report.subject, report.environment)
    assert script is not None
    assert said in script
    if law == "LN604":
        assert "is refused in the backward: IndexError" in found.message
        with pytest.raises(IndexError):
            run(script)
    else:
        assert found.smallest.got is not None
        assert float(run(script)) == pytest.approx(found.smallest.got, rel=1e-6)


ALL = {"vx": np.eye(2, 3), "vweight": np.ones(3), "vbias": np.array([1.0, 2.0, 4.0])}
TANGENTS = {"tx": np.eye(2, 3), "tweight": np.ones(3), "tbias": np.array([1.0, 2.0, 4.0])}
SMALL = {"shape": (2, 3), "x": np.array([[0.1, -2.5, 3e-3], [1e4, 1.0, 7.0]])}
ONES = {"shape": (33, 257), "x": np.ones((33, 257)), "dy": np.ones((33, 257))}
SNIPPETS: dict[str, tuple[str, dict[str, Any]]] = {
    "y": ("y", SMALL),
    "y-float64": ("y", {**SMALL, "dtype": "float64"}),
    "y-bfloat16": ("y", {**SMALL, "dtype": "bfloat16", "weight": np.array([0.3, 1.7, -2.0])}),
    "y-no-parameters": ("y", {**SMALL, "weight": None, "bias": None}),
    "y-no-bias": ("y", {**SMALL, "bias": None, "grad_mode": "no_grad"}),
    "y-nan": ("y", {"shape": (1, 3), "x": np.array([[np.nan, np.inf, 1.0]])}),
    "y-pattern": ("y", {"shape": (1, 257), "x": np.r_[np.ones(256), 2.0][None]}),
    "y-rows": ("y", {"shape": (33, 64), "x": np.tile(np.r_[np.ones(63), 0.0], (33, 1))}),
    "y-period": ("y", {"shape": (2, 64), "x": np.tile([1.0, -1.0], (2, 32))}),
    "y-threads": ("y", {**SMALL, "threads": 1}),
    "y-transposed": ("y", {**SMALL, "layouts": {"x": "transposed"}}),
    "y-strided": ("y", {**SMALL, "layouts": {"x": "strided", "weight": "offset"}}),
    "dx": ("dx", SMALL),
    "dx-only": ("dx", {**SMALL, "requires_grad": ("x",)}),
    "dweight-float16": ("dweight", {**SMALL, "dtype": "float16", "x": np.eye(2, 3)}),
    "dbias-only": ("dbias", {**SMALL, "requires_grad": ("bias",)}),
    "dbias-expanded": ("dbias", {**ONES, "layouts": {"dy": "expanded"}}),
    "dx-offset": ("dx", {**SMALL, "layouts": {"x": "offset", "dy": "strided"}}),
    "dweight-output": ("dweight", {**SMALL, "dy": None, "layouts": {"dy": "output"}}),
    "ty": ("ty", {**SMALL, **TANGENTS}),
    "d2x": ("d2x", {**SMALL, **ALL}),
    "d2weight": ("d2weight", {**SMALL, **ALL}),
    "d2dy": ("d2dy", {**SMALL, **ALL}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # what torch.func imports says it
@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_prints_what_the_finding_says(name: str) -> None:
    output, given = SNIPPETS[name]
    case = samples.case(**{"eps": 1e-6, **given})
    seen = seen_in(case, output)
    script = snippet(samples.finding("LN101", "accuracy", seen), TARGET)
    assert script is not None
    assert len(script.splitlines()) <= 12
    assert max(map(len, script.splitlines())) <= 200
    assert seen.got is not None
    assert f"# got {seen.got!r}, expected {seen.expected!r}, bound 0.25" in script
    assert np.array_equal(float(run(script)), seen.got, equal_nan=True)


@pytest.mark.parametrize("output", ["y", "dx", "dweight", "d2x"])
def test_a_snippet_for_a_module_class(output: str) -> None:
    case = samples.case(**SMALL, **ALL)
    seen = seen_in(case, output)
    script = snippet(samples.finding("LN101", "accuracy", seen), "torch.nn.LayerNorm")
    assert script is not None
    assert "m = torch.nn.LayerNorm((3,), eps=1e-05, dtype=torch.float32)\n" in script
    assert float(run(script)) == seen.got


def test_a_snippet_uses_the_source_lines_of_the_adapter_for_a_module() -> None:
    text = (
        "from torch.nn import LayerNorm\n"
        "module = LayerNorm({normalized_shape}, eps={eps}, bias={bias} is not None).to({x}.dtype)\n"
        "if {weight} is not None:\n    module.weight.data = {weight}\n"
        "if {bias} is not None:\n    module.bias.data = {bias}\n"
        "y = module({x})"
    )
    for output in ("y", "dweight", "d2weight"):
        case = samples.case(**SMALL, **ALL, bias=None) if output == "y" else samples.case(**SMALL, **ALL)
        seen = seen_in(case, output)
        found = samples.finding("LN101", "accuracy", seen)
        script = snippet(found, "mypkg:FusedLN", {"framework": "torch", "call_text": text})
        assert script is not None
        assert f"bias={output != 'y'}).to(x.dtype)\nmodule.weight.data = weight\n" in script
        assert float(run(script)) == seen.got


def test_a_snippet_imports_a_function_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels_of_a_test.py").write_text(
        "import torch\n\ndef fwd(x, weight, bias, eps):\n"
        "    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    seen = seen_in(samples.case(**SMALL), "dx")
    found = samples.finding("LN201", "dx-accuracy", seen)
    text = (
        "import runpy\nfwd = runpy.run_path('/else/kernels.py')['fwd']\n"
        "y = fwd(x={x}, weight={weight}, bias={bias}, eps={eps})"
    )
    script = snippet(found, "./kernels_of_a_test.py:fwd", {"framework": "torch", "call_text": text})
    assert script is not None
    assert script.startswith("import torch\nfrom kernels_of_a_test import fwd\n")
    assert "\ny = fwd(x=x, weight=weight, bias=bias, eps=1e-05)\n" in script
    assert float(run(script)) == seen.got
    # A lambda or a closure has no source lines: no script could import it.
    assert snippet(found, "./kernels_of_a_test.py:fwd", {"framework": "torch", "call_text": ""}) is None


def test_a_snippet_for_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy_ln_of_a_test.py").write_text(
        "def ln(x, weight, bias, eps):\n    return x * weight + bias + eps\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    case = samples.case(**SMALL, eps=0.5)
    seen = samples.observation(case, "y", (1, 2), 7.5, 1.0)
    found = samples.finding("LN101", "accuracy", seen)
    text = "from numpy_ln_of_a_test import ln\ny = ln({x}, {weight}, {bias}, {eps})"
    script = snippet(found, "numpy_ln_of_a_test:ln", {"framework": "numpy", "call_text": text})
    assert script == (
        "import numpy as np\n"
        "from numpy_ln_of_a_test import ln\n"
        "x = np.array([[0.1, -2.5, 0.003], [10000.0, 1.0, 7.0]], dtype=np.float32)\n"
        "weight = np.ones(3, dtype=np.float32)\n"
        "bias = np.zeros(3, dtype=np.float32)\n"
        "y = ln(x, weight, bias, 0.5)\n"
        "print(y[1, 2].item())  # got 7.5, expected 1.0, bound 1e-07\n"
    )
    assert run(script) == "7.5"


def test_a_snippet_does_not_claim_what_another_run_gave() -> None:
    seen = samples.observation(samples.case(), "y", (0, 1), 0.25, 1.0)
    other = Observation(**{**vars(seen), "got": 0.75})
    script = snippet(samples.finding("LN401", "mean-zero", other), TARGET)
    assert script is not None
    assert script.endswith("print(y[0, 1].item())  # LN401: y[0, 1] is 0.25, 1 is right\n")
    # A law about two calls: one call shows nothing of it.
    assert snippet(samples.finding("LN301", "input-rescaling", seen), TARGET) is None


@pytest.mark.parametrize(
    ("target", "given"),
    [
        (TARGET, {"operation": "ln_lstm"}),
        ("process:./ln --stdin", {}),
        ("./kernels.py:fwd?backward=bwd", {}),
        ("not an import", {}),
    ],
)
def test_no_snippet_where_the_call_is_not_known(target: str, given: dict[str, Any]) -> None:
    seen = samples.observation(samples.case(), "dx", (0, 1), 0.25, 1.0)
    assert snippet(samples.finding("LN201", "dx-accuracy", seen, **given), target) is None


def test_a_part_of_an_output_is_printed_whole() -> None:
    """A law about a row has the row's index: `.item()` is for single numbers."""
    seen = samples.observation(samples.case(), "y", (0, 1), 0.25, 1.0)
    row = Observation(**{**vars(seen), "index": (0,)})
    script = snippet(samples.finding("LN206", "dx-sums-to-zero", row), TARGET)
    assert script is not None
    assert "\nprint(y[0])  # LN206: " in script
    assert run(script).startswith("tensor([")
    one = samples.observation(samples.case(shape=(1, 1)), "dweight", (), -8.0, 0.0, 0.0, ratio=1.0)
    script = snippet(samples.finding("LN503", "single-element-rows", one), TARGET)
    assert script is not None
    assert script.endswith("print(dweight.item())  # got -8.0, expected 0.0, bound 0\n")
