"""Find the Python object that a target names: in a file, in a module, or along a dotted path."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from lnverify.adapters import INSTALL, WITHOUT_ADAPTER, namespace
from lnverify.errors import FrameworkError, LnverifyError, TargetError
from lnverify.python_file import SUFFIX, run_file
from lnverify.subject import ATTRIBUTE
from lnverify.target import Target, parse_target

FILE_MODULE = "lnverify_target_"  # modules made from a file are called so


def locate(target: Target) -> Any:
    """The object. Raises TargetError or FrameworkError with a sentence that says what to do."""
    if target.place.endswith(".py") or "/" in target.place or "\\" in target.place:
        module = _file(Path(target.place), target.text)
        return attribute(module, target.name) if target.name else _only_subject(module, target.text)
    if target.name:
        return attribute(_module(target.place, target.text), target.name)
    return _dotted(target.place, target.text)


def attribute(holder: Any, name: str) -> Any:
    """`holder.a.b` for 'a.b'. Raises TargetError with the close names."""
    for part in name.split("."):
        try:
            holder = getattr(holder, part)
        except AttributeError:
            public = [n for n in dir(holder) if not n.startswith("_")]
            raise TargetError(f"{_label(holder)} has no attribute {part!r}{close(part, public)}.") from None
    return holder


def close(name: str, names: Iterable[str]) -> str:
    """', did you mean ...?' without the question mark, or ''."""
    matches = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f", did you mean {' or '.join(repr(m) for m in matches)}" if matches else ""


def _label(holder: Any) -> str:
    name = str(getattr(holder, "__name__", ""))
    if name.startswith(FILE_MODULE):
        return f"file {str(holder.__file__)!r}"
    return f"{'module' if isinstance(holder, ModuleType) else type(holder).__name__} {name!r}"


@contextlib.contextmanager
def _importing(folder: Path, text: str) -> Iterator[None]:
    """Let the folder's own modules be found first during an import, and last afterwards.

    Last and not gone: a kernel may import a neighbour when it is called. First only for a moment: a file
    named like a standard module must not shadow it for the rest of the run.
    """
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    except LnverifyError:
        raise
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        command = INSTALL.get(top, f"pip install {top}") if top else "install what it needs"
        raise FrameworkError(f"loading {text!r} needs the module {error.name!r}, not installed: {command}.") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the file raises, SystemExit included
        place = _place(error)
        message = str(error).strip().split("\n")[0]
        raise TargetError(f"importing {text!r} raised {type(error).__name__}: {message} ({place}).") from None
    finally:
        sys.path.remove(entry)
        if entry not in sys.path:
            sys.path.append(entry)


def _place(error: BaseException) -> str:
    """File and line of an error: of the text that cannot be parsed, else the last frame that has a file."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "no place known"


def _file(path: Path, text: str) -> ModuleType:
    if path.is_dir():
        raise TargetError(f"{str(path)!r} is a folder: name a .py file in it.")
    if not path.is_file():
        nearby = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise TargetError(f"there is no file {str(path)!r}{close(path.name, nearby)}.")
    if path.suffix != SUFFIX:
        raise TargetError(f"{str(path)!r} is not a Python file: name a .py file.")
    with _importing(path.resolve().parent, text):
        return run_file(path, FILE_MODULE)


def _module(name: str, text: str) -> ModuleType:
    top = name.partition(".")[0]
    with _importing(Path.cwd(), text):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing in INSTALL or not f"{name}.".startswith(f"{missing}."):
                raise  # not the module that was named, but one that it needs: see _importing
            if missing == top:
                if top in WITHOUT_ADAPTER:
                    raise TargetError(
                        f"there is no adapter for {top}: give a torch or NumPy callable, as module:name or ./k.py:f."
                    ) from None
                hint = close(top, INSTALL)
                raise TargetError(f"there is no module {top!r}{hint}; name a module, or a file as ./k.py:f.") from None
            parent = importlib.import_module(missing.rpartition(".")[0])
            last = missing.rpartition(".")[2]
            hint = close(last, (n for n in dir(parent) if not n.startswith("_")))
            raise TargetError(f"{_label(parent)} has no module {last!r}{hint}.") from None


def _dotted(path: str, text: str) -> Any:
    """Import the longest prefix that is a module, then look the rest up."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts):
        raise TargetError(f"{path!r} is neither a dotted name nor a Python file: write package.name or ./k.py:f.")
    if len(parts) == 1:
        module = _module(path, text)
        return _only_subject(module, text)
    module = _module(parts[0], text)
    used = 1
    while used < len(parts):
        name = ".".join(parts[: used + 1])
        try:
            module = _module(name, text)
        except TargetError:
            if name in sys.modules or _is_module(name):
                raise
            break
        used += 1
    return attribute(module, ".".join(parts[used:])) if used < len(parts) else _only_subject(module, text)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _only_subject(module: ModuleType, text: str) -> Any:
    """The one object of a module that the decorator declares. Raises TargetError for none or several."""
    own = {n: v for n, v in vars(module).items() if not n.startswith("_") and callable(v)}
    marked = [n for n, v in own.items() if ATTRIBUTE in getattr(v, "__dict__", {})]
    if len(marked) == 1:
        return own[marked[0]]
    names = marked or [n for n, v in own.items() if str(getattr(v, "__module__", "")).startswith(module.__name__)]
    # the likeliest first; the sort is stable
    names.sort(key=lambda n: ("layernorm" not in n.lower().replace("_", ""), "norm" not in n.lower()))
    listed = f" one of {', '.join(names[:8])}" if names else ""
    raise TargetError(f"{text!r} is a module, not a callable: name{listed or ' a function in it'} after a colon.")


def companion(backward: Any, obj: Any, text: str) -> Any:
    """A separate backward: itself, the function of that name beside the forward, or a target of its own."""
    if not isinstance(backward, str):
        return backward
    if ":" in backward or "." in backward:
        return locate(parse_target(backward))
    names = namespace(obj)
    if not callable(names.get(backward)):
        known = [name for name, value in names.items() if callable(value) and not name.startswith("_")]
        raise TargetError(f"there is no function {backward!r} beside {text!r}{close(backward, known)}.")
    return names[backward]


def source_of(obj: Any) -> tuple[str, str]:
    """Source text that imports an object, and the expression that names it; '' twice if it has no place."""
    if hasattr(obj, "_schema") or hasattr(obj, "overloads"):  # a torch operator: 'aten.native_layer_norm'
        return "import torch", f"torch.ops.{obj}"
    module, path = str(getattr(obj, "__module__", "")), str(getattr(obj, "__qualname__", ""))
    found: Any = sys.modules.get(module)
    top = path.partition(".")[0]
    if found is None or module == "__main__":
        return "", ""
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not obj and found != obj:
        return "", ""
    if module.startswith(FILE_MODULE):
        file = str(sys.modules[module].__file__)
        return f"import runpy\n{top} = runpy.run_path({file!r})[{top!r}]", path
    return f"from {module} import {top}", path
