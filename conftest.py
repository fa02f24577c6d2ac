"""The option `--device`, where the tests of properties/test_device.py run; and surroundings that every test gets."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--device cuda` runs the right implementations in torch on the GPU too."""
    parser.addoption("--device", default="cpu", help="device for properties/test_device.py: cpu (default) or cuda")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The width of a pipe, for workers of pytest-xdist have a COLUMNS; and subnormal numbers, whose flushing a mutant
    switches on for the whole process."""
    monkeypatch.delenv("COLUMNS", raising=False)
    yield
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_flush_denormal(False)
