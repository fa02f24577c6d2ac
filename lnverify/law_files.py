"""Laws from a Python file of the user (`--laws FILE`)."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from lnverify.errors import LnverifyError, UsageError

LOADED: list[str] = []  # paths, for processes that share the work


def load_file(path: Path) -> None:
    """Run a Python file that registers laws. Raises UsageError if it cannot be run or registers none."""
    from lnverify.law import REGISTRY, load_laws

    load_laws()  # first, so that an id that is taken is an error of the file
    if not path.is_file():
        raise UsageError(f"cannot read the laws of {str(path)!r}: there is no such file.")
    # A name of its own for each path: a law may be loaded twice, but not overwritten by another file's.
    name = f"lnverify_laws_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"cannot read the laws of {str(path)!r}: it is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except LnverifyError:
        raise
    except Exception as error:  # the file is the user's: whatever it raises is told in one sentence
        text = " ".join(str(error).split())
        raise UsageError(f"the laws of {str(path)!r} were not loaded: {type(error).__name__}: {text}") from None
    if not any(entry.check.__module__ == name for entry in REGISTRY.values()):
        raise UsageError(f"{str(path)!r} registers no law: decorate a function with @lnverify.law.law(...).")
    LOADED.append(str(path.resolve()))
