"""Row: one thing that was compared, by how much it changed, how surely, and what follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

EXIT_STATUS = {"passed": 0, "regression": 1, "could not tell": 3}


@dataclass(frozen=True)
class Row:
    """kind: correctness, accuracy or speed. was, now, change: for people; of a law, change is the cause.

    surely: on what evidence.
    outcome: 'same', 'better', 'worse', or 'unsure' where it could not be told.
    """

    kind: str
    name: str
    was: str
    now: str
    change: str
    surely: str
    outcome: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def verdict(rows: Iterable[Row]) -> str:
    """'regression' where anything is worse; 'could not tell' where nothing is, but something is unsure or nothing was
    compared; else 'passed'."""
    outcomes = {row.outcome for row in rows}
    if "worse" in outcomes:
        return "regression"
    return "could not tell" if "unsure" in outcomes or not outcomes else "passed"
