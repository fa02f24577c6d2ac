"""lnverify: is this layer norm right, in value and in gradient, on every input that matters?

Front page. Everything else lives in modules named after the one thing that they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lnverify.finding import Finding as Finding
    from lnverify.finding import Report as Report
    from lnverify.finding import Result as Result
    from lnverify.in_pytest import conformance as conformance
    from lnverify.law import Law as Law
    from lnverify.law import Outcome as Outcome
    from lnverify.law import law as law
    from lnverify.runner import check as check
    from lnverify.subject import declare as subject

__version__ = "0.1.0"
__all__ = ["Finding", "Law", "Outcome", "Report", "Result", "check", "conformance", "law", "subject"]

_HOMES = {
    "Finding": "finding", "Report": "finding", "Result": "finding", "Law": "law", "Outcome": "law", "law": "law",
    "check": "runner", "conformance": "in_pytest",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # Lazy: `import lnverify` must not pay for hypothesis, and `lnverify.subject` is a decorator and a module.
    import importlib

    if name == "subject":  # the module is callable: it is the decorator too
        return importlib.import_module("lnverify.subject")
    if name in _HOMES:
        return getattr(importlib.import_module(f"lnverify.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'lnverify' has no attribute {name!r}")
