"""The process in which an isolated subject lives: `python -m lnverify.host_process READ WRITE`.

It reads what the subject is, answers with what it can do, then answers request after request until the stream ends.
READ and WRITE are file descriptors of their own: whatever the subject prints goes to its standard output.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import asdict
from typing import Any

from lnverify import wire
from lnverify.errors import LnverifyError
from lnverify.subject import Subject
from lnverify.target import resolve


def _subject(order: dict[str, Any]) -> Subject:
    """The subject of an order: a target string, or a callable that cloudpickle wrote to a file."""
    sys.path[:] = [*order["path"], *(p for p in sys.path if p not in order["path"])]
    target: Any = order["target"]
    if order["pickle"]:
        with open(order["pickle"], "rb") as file:
            target = importlib.import_module("pickle").load(file)
    return resolve(target, operation=order["operation"], device=order["device"])


def main() -> None:
    """Serve until the stream ends."""
    reading, writing = (os.fdopen(int(number), mode) for number, mode in zip(sys.argv[1:], ("rb", "wb"), strict=True))
    order, _ = wire.read(reading)  # type: ignore[arg-type]
    try:
        subject = _subject(order)
    except LnverifyError as error:
        wire.write(writing, {"error": type(error).__name__, "message": str(error)})  # type: ignore[arg-type]
        return
    about = {"target": subject.target, "capabilities": asdict(subject.capabilities), "framework": subject.framework,
             "versions": dict(subject.versions), "call_text": subject.call_text,
             "operation": subject.operation}  # fmt: skip
    wire.write(writing, about)  # type: ignore[arg-type]
    while True:
        try:
            header, arrays = wire.read(reading)  # type: ignore[arg-type]
        except EOFError:
            return
        wire.send(writing, subject.run(wire.request(header, arrays)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
