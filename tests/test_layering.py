"""Who may import whom. Read from the source with `ast`, so that an import inside a function counts too.

The rules:
1. A file imports lower floors; on its own floor only files of its own folder, and never in a circle.
2. The package never imports the folders around it (properties, reference, benchmarks, tests), nor SymPy.
3. A framework is imported at the top of a file in adapters only: who does not ask for it does not pay for it.
4. Hypothesis is imported where cases are drawn only, and inside functions, for the same reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up; names relative to the package. A new file goes on the lowest floor above all it imports.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "floats", "double_double"),  # numbers
    ("operation", "case", "protocol"),  # what is asked and answered
    ("formulas", "formulas.*"),  # what SymPy derives
    ("oracle",),  # what is right
    ("bounds", "running"),  # how far off is admissible
    ("recipes", "covering"),  # which cases there are
    ("law", "subject", "finding", "profiles", "environment"),  # the nouns
    ("strategies", "evaluation", "warmup", "host"),  # a case drawn, asked, evaluated
    ("laws", "laws.*", "adapters", "adapters.*"),  # laws and adapters never see each other
    ("mutants", "mutants.*"),  # subjects, some of them by an adapter
    ("runner", "shrink", "diagnosis", "speed", "history", "gate"),
    ("reports", "reports.*"),  # what people and machines read of it
    ("report_cache", "replay", "selftest"),  # what is done with a report
    ("cli", "cli.*", "pytest_plugin"),  # what people call
    ("", "__main__"),  # the front page, lnverify/__init__.py
)
# Plain facts that the front page holds and every file may read.
FACTS = {"__version__"}
AROUND = {"properties", "reference", "benchmarks", "tests"}
FRAMEWORKS = {"torch", "jax", "jaxlib", "flax", "onnx", "onnxruntime", "sympy"}
DRAWING = {"strategies", "runner", "shrink", "pytest_plugin"}


@dataclass(frozen=True)
class Import:
    """One import: the whole dotted name, the line, and whether it runs when the file is imported."""

    name: str
    line: int
    at_top: bool


def _imports(source: str, module: str, is_package: bool) -> list[Import]:
    """Every import of a file; `from a import b` gives `a.b`, and relative names are made absolute."""
    found: list[Import] = []

    def visit(node: ast.AST, at_top: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
            found.extend(Import(f"{base}.{alias.name}", node.lineno, at_top) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, False)
            for child in node.orelse:
                visit(child, at_top)
            return
        inside = at_top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(source), True)
    return found


def floor_of(name: str) -> int:
    """Floor of a file by its name relative to the package. Raises LookupError with the sentence to read."""
    for number, floor in enumerate(FLOORS):
        if any(fnmatchcase(name, pattern) for pattern in floor):
            return number
    path = f"lnverify/{name.replace('.', '/')}.py"
    raise LookupError(
        f"{path} has no floor: add {name!r} to FLOORS in tests/test_layering.py, on the lowest floor above "
        "all that it imports."
    )


def _folder(name: str, is_package: bool) -> str:
    return name if is_package else name.rpartition(".")[0]


def violations(files: dict[str, tuple[str, bool]]) -> Iterator[str]:
    """One sentence for each breach of the rules; `files` gives source and is-a-package by relative name."""
    graph: dict[str, set[str]] = {}
    for name, (source, is_package) in files.items():
        graph[name] = set()
        try:
            floor = floor_of(name)
        except LookupError as error:
            yield str(error)
            continue
        module = f"lnverify.{name}".rstrip(".")
        for found in _imports(source, module, is_package):
            where = f"{module}, line {found.line}"
            top = found.name.split(".")[0]
            if top in AROUND or (top == "sympy" and name != ""):
                yield f"{where}, imports {top}: it is not there where only the wheel is installed."
            elif top in FRAMEWORKS and found.at_top and not name.startswith("adapters."):
                yield f"{where}, imports {top} at the top: import it inside the function that needs it."
            elif top == "hypothesis" and (found.at_top or name not in DRAWING):
                homes = ", ".join(sorted(DRAWING))
                yield f"{where}, imports hypothesis: that belongs inside functions of {homes}."
            if top != "lnverify":
                continue
            target = found.name.removeprefix("lnverify").lstrip(".")
            if target in FACTS:
                continue
            while target not in files and target:
                target = target.rpartition(".")[0]
            if target == name:
                continue
            try:
                below = floor_of(target)
            except LookupError:
                continue  # said for the file itself
            same_folder = _folder(name, is_package) == _folder(target, files.get(target, ("", True))[1])
            if below > floor:
                yield f"{where}, imports {found.name} of a higher floor ({below}, its own is {floor})."
            elif below == floor and not same_folder:
                yield f"{where}, imports {found.name} of the same floor: move what both need to a lower one."
            graph[name].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"these files import each other in a circle: {' -> '.join(error.args[1])}."


def _package() -> dict[str, tuple[str, bool]]:
    files = {}
    for path in sorted((ROOT / "lnverify").rglob("*.py")):
        parts = path.relative_to(ROOT / "lnverify").with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        files[name] = (path.read_text(encoding="utf-8"), is_package)
    return files


def test_every_file_keeps_the_rules() -> None:
    files = _package()
    assert len(files) > 10, "the package was not found beside the tests"
    assert list(violations(files)) == []


@pytest.mark.parametrize(
    ("name", "source", "sentence"),
    [
        ("floats", "from lnverify.case import Case", "of a higher floor"),
        ("floats", "def f():\n    from lnverify import case", "of a higher floor"),
        ("laws.accuracy", "from lnverify.adapters import torch", "of the same floor"),
        ("laws.accuracy", "from ..adapters.torch import make", "of the same floor"),
        ("laws.accuracy", "import lnverify", "of a higher floor"),
        ("errors", "from lnverify import floats", "in a circle"),
        ("brand_new", "", "has no floor: add 'brand_new'"),
        ("oracle", "import reference.prove", "only the wheel is installed"),
        ("oracle", "def f():\n    import sympy", "only the wheel is installed"),
        ("mutants.torch", "import torch.nn as nn", "at the top"),
        ("mutants.torch", "class A:\n    from torch import nn", "at the top"),
        ("strategies", "from hypothesis import given", "imports hypothesis"),
        ("evaluation", "def f():\n    import hypothesis", "imports hypothesis"),
    ],
)
def test_a_breach_is_found(name: str, source: str, sentence: str) -> None:
    files = dict.fromkeys(("", "case", "adapters", "adapters.torch", "laws", "mutants"), ("", False))
    files |= {"floats": ("from lnverify.errors import UsageError", False), "errors": ("", False)}
    files |= dict.fromkeys(("", "adapters", "laws", "mutants"), ("", True))
    found = list(violations(files | {name: (source, False)}))
    assert len(found) == 1, found
    assert sentence in found[0]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("case", "from lnverify import floats"),
        ("environment", "from lnverify import __version__"),
        ("adapters.numpy", "from lnverify.adapters.torch import make"),
        ("adapters.torch", "import torch"),
        ("mutants.torch", "def f():\n    import torch"),
        ("strategies", "def f():\n    from hypothesis import given"),
        ("shrink", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hypothesis, torch"),
    ],
)
def test_what_is_allowed_passes(name: str, source: str) -> None:
    files = {"floats": ("", False), "adapters.torch": ("", False)}
    assert list(violations(files | {name: (source, False)})) == []
