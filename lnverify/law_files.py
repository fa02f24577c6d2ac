"""Laws from a Python file of the user (`--laws FILE`)."""

from __future__ import annotations

from pathlib import Path

from lnverify.errors import LnverifyError, UsageError
from lnverify.python_file import SUFFIX, run_file

LOADED: list[str] = []  # paths, for processes that share the work


def load_file(path: Path) -> None:
    """Run a Python file that registers laws. Raises UsageError if it cannot be run or registers none."""
    from lnverify.law import REGISTRY, load_laws

    load_laws()  # first, so that an id that is taken is an error of the file
    if not path.is_file():
        raise UsageError(f"cannot read the laws of {str(path)!r}: there is no such file.")
    if path.suffix != SUFFIX:
        raise UsageError(f"cannot read the laws of {str(path)!r}: it is not a Python file.")
    try:
        module = run_file(path, "lnverify_laws_")
    except LnverifyError:
        raise
    except Exception as error:  # the file is the user's: whatever it raises is told in one sentence
        text = " ".join(str(error).split())
        raise UsageError(f"the laws of {str(path)!r} were not loaded: {type(error).__name__}: {text}") from None
    if not any(entry.check.__module__ == module.__name__ for entry in REGISTRY.values()):
        raise UsageError(f"{str(path)!r} registers no law: decorate a function with @lnverify.law.law(...).")
    LOADED.append(str(path.resolve()))
