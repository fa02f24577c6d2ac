"""Run a Python file as a module of its own: targets and laws that a user keeps in a file."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SUFFIX = ".py"


def run_file(path: Path, prefix: str) -> ModuleType:
    """The module of a file that ends in SUFFIX. Raises whatever the file raises, and leaves no module behind then.

    Its name is the prefix, the stem and a digest of the whole path: two files called kernels.py do not meet, and the
    name is the same in every run.
    """
    path = path.resolve()
    name = f"{prefix}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # there is a loader for SUFFIX
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
