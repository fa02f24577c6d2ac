"""The options `--device`, where the tests of properties/test_device.py run, and `--ln-target`, what benchmarks/ times;
and surroundings that every test gets."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--device cuda` runs the right implementations in torch on the GPU too; `--ln-target mypkg:ln` times that."""
    parser.addoption("--device", default="cpu", help="device for properties/test_device.py: cpu (default) or cuda")
    parser.addoption("--ln-target", default="", help="what benchmarks/ times; default torch's layer norm")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The width of a pipe, for workers of pytest-xdist have a COLUMNS; and subnormal numbers, whose flushing a mutant
    switches on for the whole process."""
    monkeypatch.delenv("COLUMNS", raising=False)
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_flush_denormal(False)
