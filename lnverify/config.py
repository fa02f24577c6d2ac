"""Config: what a project wants checked, from lnverify.toml or [tool.lnverify] in pyproject.toml.

target = "mypkg.nn:FusedLayerNorm"      # or a list; with operation, dtypes and profile as on the command line
[[expected]]
law = "LN203"                           # an id, or a prefix
target = "mypkg.nn:FusedLayerNorm"      # with several targets: which of them
dtype = "bfloat16"                      # optional: any
reason = "sums in bfloat16, see the issue"
link = "https://..."                    # optional
case = "lnverify-cases/8e053b20.json"   # optional: the finding as `--write-expected` stored it
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lnverify.errors import UsageError
from lnverify.floats import canonical_dtype
from lnverify.operation import operation as find_operation
from lnverify.profiles import profile as find_profile

FILE = "lnverify.toml"
KEYS = ("target", "operation", "dtypes", "profile", "expected")
ENTRY = ("law", "target", "dtype", "reason", "link", "case")


@dataclass(frozen=True)
class Expected:
    """A finding that the project knows. case: the file of the stored finding, None where there is none.

    target: '' where the project has one only.
    """

    law: str
    reason: str
    dtype: str = ""
    link: str = ""
    case: Path | None = None
    target: str = ""

    @property
    def text(self) -> str:
        """'LN203 bfloat16 (the reason)'."""
        return " ".join(word for word in (self.law, self.dtype, f"({self.reason})") if word)


@dataclass(frozen=True)
class Config:
    """path: the file that was read, None where there is none."""

    path: Path | None = None
    targets: tuple[str, ...] = ()
    operation: str | None = None
    dtypes: tuple[str, ...] | None = None
    profile: str = "quick"
    expected: tuple[Expected, ...] = ()


def load(folder: Path) -> Config:
    """The config of a folder: lnverify.toml, else [tool.lnverify]. Raises UsageError, which names file and key."""
    own, project = folder / FILE, folder / "pyproject.toml"
    if own.is_file():
        return _config(own, _read(own))
    if project.is_file():
        table = _read(project).get("tool", {}).get("lnverify")
        if table is not None:
            return _config(project, table)
    return Config()


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path.name!r}: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name!r} is not TOML: {error}.") from None


def _config(path: Path, table: Mapping[str, Any]) -> Config:
    _known(path, table, KEYS, "")
    targets = _texts(path, table, "target")
    entries = table.get("expected", [])
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise UsageError(f"{path.name!r}: expected is no list of tables: write [[expected]] above each.")
    dtypes, said = _texts(path, table, "dtypes"), table.get("operation")
    return Config(
        path, targets, find_operation(str(said)).name if said else None,
        tuple(map(canonical_dtype, dtypes)) or None,
        find_profile(str(table.get("profile", "quick"))).name, tuple(_entry(path, e, targets) for e in entries),
    )  # fmt: skip


def _texts(path: Path, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    given = table.get(key, ())
    texts = (given,) if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{path.name!r}: {key} is {given!r}: write a text, or a list of texts.")
    return tuple(texts)


def _entry(path: Path, entry: Mapping[str, Any], targets: tuple[str, ...]) -> Expected:
    _known(path, entry, ENTRY, "an [[expected]] entry of ")
    for key in ("law", "reason"):
        if not str(entry.get(key, "")).strip():
            raise UsageError(f"{path.name!r}: an [[expected]] entry has no {key}: every one says which law, and why.")
    case = path.parent / str(entry["case"]) if entry.get("case") else None
    if case is not None and not case.is_file():
        raise UsageError(f"{path.name!r}: there is no case {str(entry['case'])!r}: leave the key out, or restore it.")
    target = str(entry.get("target", ""))
    if target not in targets and (target or len(targets) > 1):
        raise UsageError(
            f"{path.name!r}: the [[expected]] entry for {entry['law']} has the target {target!r}: write one of"
            f" {', '.join(map(repr, targets)) or 'the targets that the file names'}."
        )
    dtype = canonical_dtype(str(entry["dtype"])) if entry.get("dtype") else ""
    return Expected(str(entry["law"]).upper(), str(entry["reason"]), dtype, str(entry.get("link", "")), case, target)


def _known(path: Path, table: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    if unknown := [key for key in table if key not in known]:
        raise UsageError(f"{what}{path.name!r} has the unknown key {unknown[0]!r}: choose from {', '.join(known)}.")
