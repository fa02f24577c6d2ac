"""The option `--device`: where the tests of properties/test_device.py run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--device cuda` runs the right implementations in torch on the GPU too."""
    parser.addoption("--device", default="cpu", help="device for properties/test_device.py: cpu (default) or cuda")
