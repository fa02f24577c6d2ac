"""Target: the text that names a subject, taken apart, and the subject that it stands for.

Target grammar: `[kind:]place[:name][?key=value&...]`, for example `torch.nn.functional.layer_norm`,
`mypkg.nn:FusedLN?eps=1e-6`, `./kernels.py:fwd?backward=bwd`. The keys are the fields of Declaration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from lnverify.errors import UsageError
from lnverify.operation import operation as operation_named
from lnverify.subject import Declaration, Subject, declaration, declared


@dataclass(frozen=True)
class Target:
    """A target string taken apart. kind: '' for Python code; options: the query, as text."""

    text: str
    kind: str
    place: str
    name: str
    options: Mapping[str, str]


def parse_target(text: str, kinds: tuple[str, ...] = ()) -> Target:
    """Take `[kind:]place[:name][?key=value&...]` apart. Raises UsageError for an empty place."""
    path, _, query = text.strip().partition("?")
    kind, colon, rest = path.partition(":")
    if not colon or kind not in kinds:
        kind, rest = "", path
    place, colon, name = rest.rpartition(":")
    # 'C:/k.py' has a drive, not a name: a name is dotted identifiers.
    if not colon or not all(part.isidentifier() for part in name.split(".")):
        place, name = rest, ""
    if not place:
        raise UsageError(f"the target {text!r} is empty: give [kind:]place[:name][?key=value&...].")
    pairs = [item.partition("=") for item in query.split("&") if item]
    keys = [key for key, _, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UsageError(f"the target {text!r} says {twice[0]} twice: say it once.")
    return Target(text.strip(), kind, place, name, {unquote(k): unquote(v) for k, _, v in pairs})


def resolve(
    target: str | Callable[..., Any] | type | object | Subject,
    *,
    operation: str = "layer_norm",
    device: str = "cpu",
) -> Subject:
    """The subject that a target string, a callable, a class or a module instance stands for.

    Raises TargetError (nothing there), FrameworkError (not installed), SignatureError (parameters cannot be
    matched) or UsageError (option, dtype, operation or device not allowed), each with one sentence.
    """
    if isinstance(target, Subject):
        return target
    # By name, not by an import statement: adapters stand on a higher floor and import this file.
    adapters = importlib.import_module("lnverify.adapters")
    options = Declaration()
    obj: Any = target
    text = ""
    if isinstance(target, str):
        parsed = parse_target(target, adapters.kinds())
        options, text = declaration(parsed.options), parsed.text
        obj = parsed if parsed.kind else importlib.import_module("lnverify.adapters.locate").locate(parsed)
    options = options.over(declared(obj))
    chosen = operation_named(options.operation or operation)
    if options.variant is not None:
        chosen = operation_named(chosen.family or chosen.name, options.variant)
    options = replace(options, operation=chosen.name, variant=chosen.variant or None)
    subject: Subject = adapters.adapt(obj, options.name or text or adapters.title(obj), options)
    subject = replace(subject, operation=chosen.name)
    if device.partition(":")[0] not in {d.partition(":")[0] for d in subject.capabilities.devices}:
        allowed = ", ".join(subject.capabilities.devices)
        raise UsageError(f"device {device!r} is not available to {subject.target}: choose from {allowed}.")
    return subject
