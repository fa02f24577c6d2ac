"""On the device of `--device`: right implementations in torch pass every law, and a wrong one is found."""

from __future__ import annotations

import pytest

from lnverify.mutants import Mutant, all_correct, all_mutants, cuda_mutants
from lnverify.runner import check

torch = pytest.importorskip("torch", reason="these implementations are written in torch")
RIGHT = ("torch-composed", "torch-var-mean", "torch-einsum")


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.config.getoption("--device")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip("--device cuda was asked for, and torch sees no CUDA device")
    return name


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_code_passes(device: str, name: str, dtype: str) -> None:
    entry = next(c for c in all_correct() if c.id == name)
    report = check(entry.subject(), dtypes=[dtype], devices=[device], profile="selftest", max_examples=4)
    assert [f"{f.law}: {f.message}" for f in report.findings if f.severity == "error"] == []
    assert report.results[0].device == device


@pytest.mark.parametrize("mutant", cuda_mutants(), ids=lambda m: m.id)
def test_a_mutant_of_this_device_is_found(device: str, mutant: Mutant) -> None:
    if not device.startswith("cuda") or (mutant.laws == ("LN716",) and torch.cuda.device_count() < 2):
        pytest.skip("it takes --device cuda, and a second one for LN716")
    report = check(mutant.subject(), dtypes=["float32"], devices=[device], select=mutant.laws, max_examples=4)
    assert report.verdict == "violated"


def test_a_wrong_one_is_found(device: str) -> None:
    entry = next(m for m in all_mutants() if m.id == "create-graph-path")
    report = check(entry.subject(), dtypes=["float32"], devices=[device], profile="selftest", max_examples=4)
    assert report.verdict == "violated"
