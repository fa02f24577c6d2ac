"""A standalone script that reproduces a finding with the framework alone, for a bug report.

Rules of this file: the script imports the framework and the subject, never lnverify; it is at most a dozen
lines; what it says was printed is what the subject returned for this very case, or it does not say so. A case
that cannot be written in a few lines has no script: the replay line stands in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from lnverify.errors import LnverifyError
from lnverify.finding import Finding, Observation
from lnverify.floats import FloatArray
from lnverify.reports.literals import LISTED, Literals, UnwritableError, number
from lnverify.reports.wording import ARRAY_ORDER, COMPARING, NEEDED, bound_text, relevant

ARGUMENTS = ("x", "weight", "bias")


def snippet(finding: Finding, target: str, environment: Mapping[str, Any] | None = None) -> str | None:
    """The script for the finding's smallest case, or None where it would be long or the call is not known.

    environment: the report's; its 'framework' and 'call_text' say how the target is called.
    """
    environment = environment or {}
    versions = environment.get("versions", {})
    guessed = "torch" if "torch" in versions or target.startswith("torch.") or not versions else "numpy"
    framework = str(environment.get("framework") or guessed)
    try:
        known = finding.operation == "layer_norm" and framework in ("torch", "numpy")
        case = finding.smallest.case
        compares = finding.law.startswith(COMPARING)
        if not known or compares or case["module_action"] or case.get("history") or case.get("repeat"):
            raise UnwritableError
        writer = _Numpy if framework == "numpy" else _Torch
        return "\n".join(writer(finding, target, str(environment.get("call_text") or "")).lines()) + "\n"
    except (UnwritableError, KeyError, ValueError, LnverifyError):
        return None


def _imports(target: str) -> tuple[list[str], str, bool]:
    """Import lines, the name to call, and whether it is a class to be constructed."""
    place, _, _query = target.partition("?")
    if place.startswith("torch.") and ":" not in place:
        return [], place, place.rpartition(".")[2][:1].isupper()
    module, _, name = place.rpartition(":")
    if not module:
        module, _, name = place.rpartition(".")
    first = name.partition(".")[0]
    if not (module and all(part.isidentifier() for part in name.split("."))):
        raise UnwritableError
    if module.endswith(".py"):
        path = Path(module)
        lines = [f"from {path.stem} import {first}"]
        if str(path.parent) != ".":
            lines.insert(0, f"import sys; sys.path.insert(0, {str(path.parent)!r})")
        module = path.stem
    else:
        lines = [f"from {module} import {first}"]
    if not all(part.isidentifier() for part in module.split(".")):
        raise UnwritableError
    return lines, name, name.rpartition(".")[2][:1].isupper()


class _Script:
    """What both frameworks share: the arrays as expressions, and the last line with its comment."""

    prefix = ""

    def __init__(self, finding: Finding, target: str, call_text: str) -> None:
        self.finding, self.seen = finding, finding.smallest
        self.case = self.seen.case
        self.imports, self.callable, self.is_class = _imports(target)
        self.own_backward = "backward=" in target.partition("?")[2]
        self.setup: list[str] = []
        self.leaves: dict[str, str] = {}  # what a gradient is asked for, where it is not the variable itself
        self.expression = ""
        self.shape = repr(tuple(self.case["normalized_shape"]))
        self.eps = number(float.fromhex(self.case["eps"]))
        self.present = [a for a in ARGUMENTS if a in self.case["arrays"]]
        self.literals = Literals(self.prefix)
        self.output = self.seen.output or ("dx" if "dy" in self.case["arrays"] else "y")
        if call_text and not target.startswith("torch.nn.LayerNorm"):
            self._take(call_text)
        elif not self.callable.startswith("torch."):
            raise UnwritableError  # a lambda, a closure, an instance: nothing that a script could import
        if self.output not in ("y", *(f"d{a}" for a in ARGUMENTS), *NEEDED, "d2x", "d2weight", "d2bias", "d2dy", "d3x"):
            raise UnwritableError

    def _take(self, call_text: str) -> None:
        """Use the adapter's source lines: imports, set-up, and last 'y = ...' (see Subject.call_text)."""
        fields = {n: n if n in self.case["arrays"] else "None" for n in ARGUMENTS}
        text = call_text.format(**fields, normalized_shape=self.shape, eps=self.eps)
        filled = text.replace("None is not None", "False").strip().splitlines()
        filled = [re.sub(r"\b(weight|bias) is not None(?!:)", "True", line) for line in filled]
        head, self.setup = [], []
        for place, line in enumerate(filled[:-1]):
            if line.startswith(("import ", "from ")):
                head.append(line)
            elif re.match(r"    module\.", line):  # 'if weight is not None:' stands above it
                if not filled[place - 1].startswith("if False"):
                    self.setup.append(line.strip())
            elif "runpy" not in line and not line.startswith("if "):
                self.setup.append(line)
        if "import runpy" not in head:  # a file is better imported by name
            self.imports = [line for line in head if line not in ("import torch", "import numpy as np")]
        for line in self.setup:
            if found := re.fullmatch(r"(module\.[\w.]+)\.data = (weight|bias)", line):
                self.leaves[found[2]] = found[1]
        if not self.case["train"] and any(line.startswith("module = ") for line in self.setup):
            self.setup.append("module.eval()")
        if not filled[-1].startswith("y = "):
            raise UnwritableError
        self.expression = filled[-1].removeprefix("y = ")

    def call(self) -> str:
        """The call of the subject on the script's variables."""
        if self.expression:
            return self.expression
        fields = {n: n if n in self.case["arrays"] else "None" for n in ARGUMENTS}
        arguments = [fields["x"], self.shape, fields["weight"], fields["bias"], self.eps]
        return f"{self.callable}({', '.join(arguments)})"

    def read(self, name: str) -> FloatArray:
        return FloatArray.from_json(self.case["arrays"][name])

    def print_line(self) -> str:
        """Print the worst element, and say what it was and should be, as far as the report knows it."""
        seen, shape = self.seen, _output_shape(self.seen, self.output)
        index = ", ".join(map(str, seen.index))
        what = f"{self.output}[{index}]" if index else self.output
        if len(seen.index) == len(shape) or prod(shape) == 1:
            what += ".item()"
        for kind, form in (("dtype", "{}.dtype"), ("shape", "tuple({}.shape)")):
            if self.finding.cause.endswith(f"has the wrong {kind}"):
                return f"print({form.format(self.output)})  # {self.finding.law}: {_short(seen.message)}"
        if self.finding.verdict == "crashed":
            return f"print({what})  # {_short(seen.message)}"
        if seen.expected is None or seen.got is None or not _stored_got(seen):
            return f"print({what})  # {self.finding.law}: {_short(seen.message)}"
        limit = "" if seen.bound is None else f", bound {bound_text(seen.bound)}"
        return f"print({what})  # got {seen.got!r}, expected {seen.expected!r}{limit}"


class _Torch(_Script):
    """PyTorch: functions, classes of modules, first and second gradients, jvp."""

    prefix = "torch"

    def __init__(self, finding: Finding, target: str, call_text: str) -> None:
        super().__init__(finding, target, call_text)
        self.backward = self.output.startswith("d")
        self.double = self.output.startswith(("d2", "d3"))
        self.wanted = [a for a in self.case["requires_grad"] if a in self.present] if self.backward else []
        # A separate backward has a signature that is not known here; jvp goes by the variables.
        if (self.own_backward and self.backward) or (self.leaves and self.output in (*NEEDED, "d3x")):
            raise UnwritableError

    def lines(self) -> list[str]:
        case = self.case
        body = [f"{name} = {self.tensor(name)}" for name in self.needed()]
        if case["threads"] is not None:
            body.insert(0, f"torch.set_num_threads({case['threads']})")
        if case["device"] != "cpu":
            body.insert(0, f'torch.set_default_device("{case["device"]}")')
        body += self.setup
        if self.is_class and not self.expression:
            body.append(self.module_line())
        body += self.compute()
        body.append(self.print_line())
        head = ["from math import inf, nan"] if self.literals.special else []
        return [*head, "import torch", *self.imports, *body]

    def needed(self) -> list[str]:
        names = [n for n in relevant(self.seen) if n in ARRAY_ORDER]
        if self.backward and "dy" not in names and self.case["layouts"].get("dy") != "output":
            raise UnwritableError
        return [n for n in names if not (n == "dy" and self.case["layouts"].get("dy") == "output")]

    def tensor(self, name: str) -> str:
        array = self.read(name)
        layout = self.case["layouts"].get(name, "contiguous")
        needs_grad = (name in self.wanted and name not in self.leaves) or (name == "dy" and self.double)
        text = self.literals.laid_out(array, layout)
        if not needs_grad:
            return text
        if text.startswith(("torch.tensor(", "torch.ones(", "torch.full(", "torch.zeros(")) and text.endswith(
            f"dtype=torch.{array.dtype})"
        ):
            return f"{text[:-1]}, requires_grad=True)"
        return f"{text}.requires_grad_()"

    def module_line(self) -> str:
        options = [self.shape, f"eps={self.eps}", f"dtype=torch.{self.case['dtype']}"]
        if self.present == ["x"]:
            options.append("elementwise_affine=False")
        elif "bias" not in self.present:
            options.append("bias=False")
        return f"m = {self.callable}({', '.join(options)})" + ("" if self.case["train"] else ".eval()")

    def call(self) -> str:
        if not self.is_class or self.expression:
            return super().call()
        parameters = ", ".join(f'"{n}": {n}' for n in self.present if n != "x")
        return f"torch.func.functional_call(m, {{{parameters}}}, x)" if parameters else "m(x)"

    def compute(self) -> list[str]:
        case = self.case
        if self.output == "ty":
            tangents = [n for n in self.present if f"t{n}" in case["arrays"]]
            names, values = ", ".join(tangents), ", ".join(f"t{n}" for n in tangents)
            comma = "," if len(tangents) == 1 else ""
            call = f"lambda {names}: {self.call()}"
            return [f"_, ty = torch.func.jvp({call}, ({names}{comma}), ({values}{comma}))"]
        if self.output in ("tty", "rty"):
            lines = [f"def jvp(x):\n    return torch.func.jvp(lambda x: {self.call()}, (x,), (tx,))[1]"]
            if self.output == "tty":
                return [*lines, "tty = torch.func.jvp(jvp, (x,), (sx,))[1]"]
            return [*lines, "rty = torch.func.vjp(jvp, x)[1](dy)[0]"]
        if not self.backward:
            mode = {"no_grad": "with torch.no_grad(): ", "inference": "with torch.inference_mode(): "}
            return [f"{mode.get(case['grad_mode'], '')}y = {self.call()}"]
        lines = [f"y = {self.call()}"]
        if case["layouts"].get("dy") == "output":
            lines.append("dy = y.detach()")
        wanted = [n for n in self.wanted if f"v{n}" in case["arrays"]] if self.double else self.wanted
        if not wanted:
            raise UnwritableError
        names = ", ".join(self.leaves.get(n, n) for n in wanted)
        target = names if len(wanted) == 1 else f"({names})"
        if not self.double:
            comma = "," if len(wanted) == 1 else ""
            left = ", ".join(f"d{n}" for n in wanted) + comma
            graph = ", create_graph=True" if case["create_graph"] else ""
            return [*lines, f"{left} = torch.autograd.grad(y, {target}, dy{graph})"]
        cotangents = ", ".join(f"v{n}" for n in wanted)
        second = cotangents if len(wanted) == 1 else f"({cotangents})"
        if self.output == "d3x":
            return [
                *lines,
                f"g = torch.autograd.grad(y, {target}, dy, create_graph=True)",
                f"d2x = torch.autograd.grad(g, x, {second}, create_graph=True)[0]",
                "d3x = torch.autograd.grad(d2x, x, wx)[0]",
            ]
        of = self.leaves.get(self.output[2:], self.output[2:])
        return [
            *lines,
            f"g = torch.autograd.grad(y, {target}, dy, create_graph=True)",
            f"{self.output} = torch.autograd.grad(g, {of}, {second})[0]",
        ]


class _Numpy(_Script):
    """NumPy: forward functions of x, weight, bias, eps in the dtypes that NumPy has."""

    prefix = "np"

    def lines(self) -> list[str]:
        if self.output != "y" or self.is_class or self.case["dtype"] == "bfloat16":
            raise UnwritableError
        body = []
        for name in relevant(self.seen):
            array = self.read(name)
            body.append(f"{name} = {self.literals.array(array.values, array.dtype)}")
        head = ["from math import inf, nan"] if self.literals.special else []
        return [*head, "import numpy as np", *self.imports, *body, f"y = {self.call()}", self.print_line()]


def _output_shape(seen: Observation, output: str) -> tuple[int, ...]:
    """Shape of an output: as returned, else that of the argument that it belongs to."""
    if output in seen.outputs:
        return tuple(seen.outputs[output]["shape"])
    if output.endswith(("weight", "bias")):
        return tuple(seen.case["normalized_shape"])
    return tuple(seen.case["arrays"]["x"]["shape"])


def _stored_got(seen: Observation) -> bool:
    """Whether the stored output is `got` at the index: then the script prints it, whatever was compared."""
    try:
        stored = FloatArray.from_json(dict(seen.outputs[seen.output]))
        index = seen.index or (0,) * len(stored.shape) * (stored.size == 1)
        if len(index) != len(stored.shape):
            return False
        value = float(stored.values[index])
    except (KeyError, ValueError, IndexError, LnverifyError):
        return False
    return value == seen.got or (value != value and seen.got != seen.got)


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 90 else f"{line[:87]}..."


def size_text(finding: Finding) -> str:
    """Why there is no script: the case is large, or the call is not known."""
    elements = prod(finding.smallest.case["arrays"].get("x", {}).get("shape", ()))
    return f"the case has {elements:,} elements" if elements > LISTED else "it needs more than the framework's own call"
