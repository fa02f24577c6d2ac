"""What the tests of the law families share: the laws of a file in lnverify/laws/, and right implementations."""

from __future__ import annotations

from lnverify.law import load_laws
from lnverify.mutants import all_correct
from lnverify.runner import check

RIGHT = (("two-pass-serial", "float32"), ("folded-fma", "bfloat16"))


def laws_of(module: str) -> list[str]:
    """Ids of the laws that a file of lnverify/laws/ registers."""
    return [i for i, law in load_laws().items() if law.check.__module__ == f"lnverify.laws.{module}"]


def errors_of_right_code(name: str, laws: list[str], dtype: str) -> list[str]:
    """Errors that these laws find in a right implementation."""
    entry = next(c for c in all_correct() if c.id == name)
    report = check(entry.subject(), dtypes=[dtype], profile="selftest", select=laws, max_examples=10)
    assert report.examples > 100
    return [f"{f.law}: {f.message}" for f in report.findings if f.severity == "error"]
