"""A fresh process for one order: JSON in, JSON out, and what it means when it ends without a word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lnverify import errors
from lnverify.errors import LnverifyError, TargetError
from lnverify.host import import_path


class Lost(Exception):  # noqa: N818 - no error of ours: what became of a process
    """A process ended, or was ended, before it told anything; the text says how."""


def call(
    module: str, order: Any, environment: Mapping[str, str], timeout: float, folder: Path | None = None
) -> dict[str, Any]:
    """Run `python -m module ORDER RESULT`, two JSON files, and read the result.

    What the subject prints there is not shown. folder: where it runs. Raises Lost, and the LnverifyError that the
    process met, as `serve` wrote it.
    """
    with tempfile.TemporaryDirectory(prefix="lnverify-") as name:
        given, result = Path(name, "order.json"), Path(name, "result.json")
        given.write_text(json.dumps(order), encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-m", module, str(given), str(result)], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout,
                env={**environment, "PYTHONPATH": os.pathsep.join(import_path())}, cwd=folder, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Lost(f"the process took longer than {timeout:g} s") from None
        if not result.is_file():
            last = done.stdout.strip().splitlines()[-1:] or ["it printed nothing"]
            raise Lost(f"the process ended with status {done.returncode} ({last[0]})")
        data: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if "error" in data:
        kind: type[LnverifyError] = getattr(errors, data["error"], TargetError)
        raise kind(data["message"])
    return data


def serve(do: Any) -> None:
    """The other end: give the order of the first file to `do`, write what it returns to the second."""
    order, result = map(Path, sys.argv[1:])
    try:
        found = do(json.loads(order.read_text(encoding="utf-8")))
    except LnverifyError as error:
        found = {"error": type(error).__name__, "message": str(error)}
    part = result.with_suffix(".part")  # a process that dies while it writes leaves no result
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(result)
