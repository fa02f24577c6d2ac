"""Adapters are found by walking the package and by entry points."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
import types

import pytest

import lnverify.adapters
from lnverify.subject import Subject, declare

torch = pytest.importorskip("torch")


def test_the_built_in_adapters_are_found_by_walking_the_package():
    names = {getattr(a, "__name__", "").rpartition(".")[2] for a in lnverify.adapters.registry()}
    assert {"torch_function", "torch_module", "numpy_function"} <= names


def test_importing_the_adapters_imports_no_framework():
    code = "import sys, lnverify.adapters as a; a.registry(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=120)


def test_third_party_adapters_come_first_and_a_broken_one_is_a_warning(monkeypatch):
    class Special:
        def __call__(self, x):
            return x

    def adapt(obj, target, options):
        return Subject(f"special {options.extra['depth']}", options.capabilities(), run=lambda request: None)

    good = types.SimpleNamespace(claims=lambda obj: isinstance(obj, Special), adapt=adapt, OPTIONS=("depth",))

    def broken():
        raise RuntimeError("no licence")

    entries = [
        types.SimpleNamespace(name="good", value="good:adapter", load=lambda: good),
        types.SimpleNamespace(name="bad", value="bad:adapter", load=broken),
    ]
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **kw: entries if kw == {"group": "lnverify.adapters"} else real(**kw),
    )
    lnverify.adapters.registry.cache_clear()
    try:
        with pytest.warns(UserWarning, match="adapter 'bad' .* no licence"):
            found = lnverify.adapters.registry()
        assert found[0] is good
        options = dataclasses.replace(declare.__globals__["Declaration"](), extra={"depth": "3"})
        assert lnverify.adapters.adapt(Special(), "t", options).target == "special 3"
    finally:
        lnverify.adapters.registry.cache_clear()
