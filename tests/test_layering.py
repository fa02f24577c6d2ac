"""Who may import whom. Read from the source with `ast`, so that an import inside a function counts too.

The rules:
1. A file imports lower floors; on its own floor only files of its own folder, and never in a circle.
2. The package never imports the folders around it (properties, reference, benchmarks, tests), nor SymPy.
3. A framework is imported at the top of a file in adapters, mutants or claims/empirical only, of one that bears its
   name (adapters/torch_module.py). Such a file is imported inside functions, or by another of that name: who does
   not ask for a framework does not pay for it.
   Within claims only claims/empirical imports one at all: what the ledger decides, it decides without.
4. Hypothesis is imported where cases are drawn only, and inside functions, for the same reason.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up; names relative to the package. A new file goes on the lowest floor above all it imports.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "allocator", "python_file", "floats", "double_double", "row_blocks"),  # numbers
    ("cell", "block", "operation", "case", "protocol", "wire"),  # what is asked and answered
    ("formulas", "formulas.*"),  # what SymPy derives
    ("dual",),  # derivatives of what is derived
    ("oracle",),  # what is right
    ("bounds", "running", "derivative_bounds", "row_range", "worst"),  # how far off is admissible
    ("recipes", "covering"),  # which cases there are
    (
        "law",
        "law_files",
        "subject",
        "target",
        "finding",
        "judgement",
        "profiles",
        "environment",
        "timing.clock",
        "timing.interval",
    ),  # the nouns
    ("support", "yardstick", "transcript", "host", "host_process"),  # what a subject can do, and did
    # a case drawn, asked, evaluated, explained
    ("strategies", "evaluation", "edges", "huge", "diagnosis", "sixteen_bits"),
    ("norms", "norms.*"),  # the same for norms other than layer norm
    ("laws", "laws.*", "adapters", "adapters.*"),  # laws and adapters never see each other
    ("mutants", "mutants.*"),  # subjects, some of them by an adapter
    (
        "runner",
        "part",
        "examination",
        "crashes",
        "tally",
        "shrink",
        "norm_examination",
        "norm_shrink",
    ),  # what makes a run of it all
    ("timing", "timing.*"),  # how fast it is
    ("gate", "gate.*"),  # whether a change made it worse
    ("reports", "reports.*"),  # what people and machines read of it
    # what is done with a report
    (
        "report_cache",
        "replay",
        "score",
        "selftest",
        "config",
        "expectations",
        "identify",
        "identify_cell",
        "identify_block",
        "history",
        "history.*",
    ),
    ("claims.empirical", "claims.empirical.*"),  # what is measured of what is said about it all
    ("claims", "claims.*"),  # what is said about it all, and whether that is so
    ("cli", "cli.*", "in_pytest"),  # what people call
    ("", "__main__"),  # the front page, lnverify/__init__.py
)
# Plain facts that the front page holds and every file may read.
FACTS = {"__version__"}
AROUND = {"properties", "reference", "benchmarks", "tests"}
FRAMEWORKS = {"torch", "jax", "jaxlib", "flax", "onnx", "onnxruntime", "sklearn", "matplotlib"}
HOMES = {"adapters", "mutants", "claims.empirical"}
DRAWING = {"strategies", "examination", "shrink", "claims.table1"}


@dataclass(frozen=True)
class Import:
    """`from base import name`, or base alone; the line; whether it runs when the file is imported."""

    base: str
    name: str
    line: int
    at_top: bool

    def target(self, files: Container[str]) -> str:
        """The file that is meant, relative to the package: the name where it is a file, else the base."""
        base = self.base.removeprefix("lnverify").lstrip(".")
        whole = f"{base}.{self.name}".strip(".")
        return whole if self.name and whole in files else base


def _imports(source: str, module: str, is_package: bool) -> list[Import]:
    """Every import of a file, with relative names made absolute."""
    found: list[Import] = []

    def visit(node: ast.AST, at_top: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, "", node.lineno, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
            found.extend(Import(base, alias.name, node.lineno, at_top) for alias in node.names)
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


def framework_of(name: str) -> str | None:
    """The framework whose name a file of HOMES bears: torch for adapters.torch_module."""
    folder, _, file = name.rpartition(".")
    first = file.split("_")[0]
    return first if folder in HOMES and first in FRAMEWORKS else None


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
            top = found.base.split(".")[0]
            if top in AROUND or top == "sympy":
                yield f"{where}, imports {top}: it is not there where only the wheel is installed."
            elif top in FRAMEWORKS and name.startswith("claims.") and not name.startswith("claims.empirical."):
                yield f"{where}, imports {top}: of the claims, claims/empirical alone does."
            elif top in FRAMEWORKS and found.at_top and framework_of(name) != top:
                yield f"{where}, imports {top} at the top: import it inside the function that needs it."
            elif top == "hypothesis" and (found.at_top or name not in DRAWING):
                homes = ", ".join(sorted(DRAWING))
                yield f"{where}, imports hypothesis: that belongs inside functions of {homes}."
            if top != "lnverify":
                continue
            target = found.target(files)
            if found.base == "lnverify" and found.name in FACTS:
                continue
            if target == name:
                continue
            try:
                below = floor_of(target)
            except LookupError:
                continue  # said for the file itself
            framework = framework_of(target)
            if below <= floor and found.at_top and framework not in (None, framework_of(name)):
                yield f"{where}, imports {target} at the top, and {framework} with it: do so in a function."
            same_folder = _folder(name, is_package) == _folder(target, files.get(target, ("", False))[1])
            if below > floor:
                what = target or "the front page"
                yield f"{where}, imports {what} of a higher floor ({below}, its own is {floor})."
            elif below == floor and not same_folder:
                yield f"{where}, imports {target} of the same floor: move what both need to a lower one."
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
        ("laws.accuracy", "def f():\n    from lnverify.adapters import torch", "of the same floor"),
        ("laws.accuracy", "from ..adapters import numpy_function", "of the same floor"),
        ("laws.accuracy", "import lnverify", "of a higher floor"),
        ("errors", "from lnverify import floats", "in a circle"),
        ("brand_new", "", "has no floor: add 'brand_new'"),
        ("oracle", "import reference.prove", "only the wheel is installed"),
        ("oracle", "def f():\n    import sympy", "only the wheel is installed"),
        ("mutants.numerics", "import torch.nn as nn", "imports torch at the top"),
        ("runner", "class A:\n    from torch import nn", "imports torch at the top"),
        ("mutants.numerics", "from lnverify.adapters.torch import make", "and torch with it"),
        ("strategies", "from hypothesis import given", "imports hypothesis"),
        ("evaluation", "def f():\n    import hypothesis", "imports hypothesis"),
        ("claims.geometry", "def f():\n    import torch", "claims/empirical alone does"),
        ("claims.empirical.figure", "import matplotlib", "imports matplotlib at the top"),
        ("claims.empirical.tasks", "from lnverify.claims import ledger", "of a higher floor"),
    ],
)
def test_a_breach_is_found(name: str, source: str, sentence: str) -> None:
    files = dict.fromkeys(("", "case", "adapters", "adapters.torch", "laws", "mutants", "claims.ledger"), ("", False))
    files |= {"floats": ("from lnverify.errors import UsageError", False), "errors": ("", False)}
    files |= dict.fromkeys(("", "adapters", "laws", "mutants", "claims", "claims.empirical"), ("", True))
    found = list(violations(files | {name: (source, False)}))
    assert len(found) == 1, found
    assert sentence in found[0]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("case", "from lnverify import floats"),
        ("environment", "from lnverify import __version__"),
        ("adapters.numpy", "def f():\n    from lnverify.adapters.torch import make"),
        ("adapters.torch", "import torch"),
        ("mutants.torch_modules", "import torch"),
        ("claims.empirical.torch_cost", "import torch"),
        ("claims.empirical.figure", "def f():\n    import matplotlib"),
        ("claims.page", "from lnverify.claims.empirical.experiments import EXPERIMENTS"),
        ("mutants.numerics", "def f():\n    import torch"),
        ("runner", "from lnverify.shrink import not_written_yet"),
        ("mutants.correct", "def f():\n    from lnverify.adapters import torch"),
        ("strategies", "def f():\n    from hypothesis import given"),
        ("shrink", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hypothesis, torch"),
    ],
)
def test_what_is_allowed_passes(name: str, source: str) -> None:
    files = {"floats": ("", False), "adapters.torch": ("", False)}
    assert list(violations(files | {name: (source, False)})) == []


@pytest.mark.parametrize("arguments", [["--help"], ["laws"], ["explain", "LN101"]], ids=" ".join)
def test_commands_that_run_no_case_import_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import atexit, sys; from lnverify.cli import main; atexit.register(lambda: "
        "print('heavy:', sorted({'torch', 'jax', 'onnx', 'sympy', 'hypothesis'} & set(sys.modules)))); main()"
    )
    run = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "heavy: []"
