"""Adapters: each module turns one kind of object, or of target, into a Subject.

An adapter is a module (or any object) with
    claims(obj) -> bool                     whether it can adapt this object
    adapt(obj, target, options) -> Subject  options: a Declaration (the decorator's and the query's, merged)
and, where they apply,
    FRAMEWORK = "torch"    the framework that its subjects run in
    KINDS = ("onnx",)      target prefixes that are its own; obj is then the parsed Target
    OPTIONS = ("opset",)   query keys of its own, found in options.extra
    GENERIC = True         claims much; asked after all others
Third parties add one by the entry point group `lnverify.adapters`. No adapter imports its framework at module
level.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
import types
import warnings
from typing import Any

from lnverify.errors import FrameworkError, TargetError, UsageError
from lnverify.subject import PARSERS, Declaration, Subject
from lnverify.target import Target

INSTALL = {"torch": "pip install torch", "numpy": "pip install numpy"}
WITHOUT_ADAPTER = ("jax", "jaxlib", "flax", "onnx", "onnxruntime", "tensorflow", "mlx")


@functools.cache
def registry() -> tuple[Any, ...]:
    """Every adapter: third parties first, the generic ones last. A broken third-party one is a warning."""
    found: list[Any] = []
    for entry in importlib.metadata.entry_points(group="lnverify.adapters"):
        try:
            found.append(entry.load())
        except Exception as error:  # a broken plug-in is reported and breaks nothing
            warnings.warn(f"the adapter {entry.name!r} ({entry.value}) was not loaded: {error}", stacklevel=2)
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        adapter = importlib.import_module(module.name)
        if hasattr(adapter, "claims"):
            found.append(adapter)
    return tuple(sorted(found, key=lambda adapter: bool(getattr(adapter, "GENERIC", False))))


def kinds() -> tuple[str, ...]:
    """Target prefixes that some adapter owns."""
    return tuple(kind for adapter in registry() for kind in getattr(adapter, "KINDS", ()))


def title(obj: Any) -> str:
    """The text that stands for an object in reports: 'package.module.name' where it has one."""
    if isinstance(obj, functools.partial):
        return f"functools.partial({title(obj.func)})"
    named = obj if hasattr(obj, "__qualname__") else type(obj)
    text = f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', '?')}"
    return text if named is obj else f"{text} instance"


def namespace(obj: Any) -> dict[str, Any]:
    """The global names that the code of an object sees; those of its defining module where it has no code."""
    while True:
        if isinstance(obj, functools.partial):
            obj = obj.func
        elif inspect.ismethod(obj):
            obj = obj.__func__
        elif hasattr(obj, "__wrapped__"):
            obj = obj.__wrapped__
        else:
            break
    if isinstance(found := getattr(obj, "__globals__", None), dict):
        return found
    named = obj if getattr(obj, "__module__", None) else type(obj)
    return dict(vars(sys.modules.get(getattr(named, "__module__", None) or "", types.ModuleType("none"))))


def framework_of(obj: Any) -> str:
    """The framework that an object's code uses, as its module's imports show; else torch."""
    candidates = list(dict.fromkeys(f for a in registry() if (f := getattr(a, "FRAMEWORK", None))))
    candidates.sort(key=lambda name: name == "numpy")  # code that imports torch may well import numpy too
    names = namespace(obj)
    seen = {getattr(names.get("__spec__"), "name", "").partition(".")[0]}
    for value in names.values():
        origin = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        seen.add(str(origin).partition(".")[0])
    seen.add(str(getattr(obj, "__module__", "")).partition(".")[0])
    seen.update(getattr(getattr(obj, "__code__", None), "co_names", ()))  # imported inside the function
    for name in candidates:
        if name in seen:
            return str(name)
    for name in WITHOUT_ADAPTER:
        if name in seen:
            raise TargetError(f"this code uses {name}, for which there is no adapter: give a torch or NumPy callable.")
    return "torch" if importlib.util.find_spec("torch") else "numpy"


def require(framework: str) -> Any:
    """Import a framework. Raises FrameworkError, which says how to install it."""
    try:
        return importlib.import_module(framework)
    except ImportError as error:
        command = INSTALL.get(framework, f"pip install {framework}")
        raise FrameworkError(f"this target needs {framework}, which cannot be imported ({error}): {command}") from None


def adapt(obj: Any, target: str, options: Declaration) -> Subject:
    """The subject that the first fitting adapter makes.

    Raises UsageError for an option that no adapter knows and TargetError where nothing fits.
    """
    adapter = _choose(obj, target, options)
    own = tuple(getattr(adapter, "OPTIONS", ()))
    if unknown := [key for key in options.extra if key not in own]:
        allowed = ", ".join(sorted({"map", *PARSERS, *own} - {"arguments"}))
        raise UsageError(f"unknown option {unknown[0]!r} in {target!r}: the options are {allowed}.")
    subject: Subject = adapter.adapt(obj, target, options)
    return subject


def _choose(obj: Any, target: str, options: Declaration) -> Any:
    if isinstance(obj, Target):
        return next(a for a in registry() if obj.kind in getattr(a, "KINDS", ()))
    if not callable(obj):
        kind = type(obj).__name__
        raise TargetError(f"{target!r} is a {kind}, not a callable: name a function, a class or a module object.")
    frameworks = {f for a in registry() if (f := getattr(a, "FRAMEWORK", None))}
    framework = options.framework or framework_of(obj)
    if framework not in frameworks:
        raise UsageError(f"unknown framework {framework!r}: choose from {', '.join(sorted(frameworks))}.")
    if options.module:
        return importlib.import_module(f"{__name__}.torch_module")
    for adapter in registry():
        if getattr(adapter, "FRAMEWORK", framework) == framework and adapter.claims(obj):
            return adapter
    raise TargetError(
        f"{target!r} is a class that no adapter knows: name a function, "
        "a torch.nn.Module or an object that can be called."
    )
