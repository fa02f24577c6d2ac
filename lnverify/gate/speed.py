"""Speed: a screen, then a confirmation in fresh processes of what the screen suspects.

A path is slower only where the lower confidence bound of its ratio, from data that the screen never saw, exceeds the
limit. The chance that any of m paths is accused for nothing stays below ALPHA: each bound fails with probability at
most ALPHA / m (half of it where the baseline's own bound may fail too). The screen decides nothing, it saves time.

Paths that compute a wrong result are timed all the same, and said to: whether that is new is for the baseline to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from lnverify.gate.row import Row
from lnverify.timing.interval import Ratio, ratio
from lnverify.timing.job import Done, Job, of_path, several
from lnverify.timing.paths import HotPath
from lnverify.timing.summary import Summary, summary

ALPHA = 0.01
SCREEN = 2
CONFIRM = 6
SLOWER_THAN = 0.02
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Before:
    """What a baseline says of a path: its ratio with bounds; why: what was wrong with it, or why it was not timed."""

    ratio: Ratio | None = None
    why: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Before:
        """From Summary.to_json. Raises KeyError, TypeError or ValueError for what is none."""
        found = data["ratio"]
        if found is not None:
            low, high = (found["low"], found["high"])
            found = Ratio(
                float(found["median"]), -inf if low is None else float(low), inf if high is None else float(high),
                int(found["pairs"]), int(found["processes"]),
            )  # fmt: skip
        return cls(found, str(data["why"]))


ITSELF = Before(Ratio(1.0, 1.0, 1.0, 0, 0))  # where the baseline is timed beside the candidate


def alpha_of(count: int, stored: bool) -> float:
    """With which probability one bound may fail, of `count` paths. stored: the baseline's bounds are data as well."""
    return ALPHA / max(count, 1) / (2 if stored else 1)


@dataclass(frozen=True)
class Compared:
    """A row for every path, what the screen read, and on which machine."""

    rows: list[Row]
    screened: list[Summary]
    machine: Mapping[str, Any]


def compare(
    job: Job, before: Mapping[str, Before] | None = None, slower_than: float = SLOWER_THAN, tell: Tell = lambda _: None
) -> Compared:
    """Every path against the baseline. before: by the path's name; None: the baseline is timed beside."""
    job = replace(job, keep_wrong=True)
    screened = several(job, SCREEN, lambda number: tell(f"screen {number + 1} of {SCREEN}"))
    rows: dict[str, Row] = {}
    suspects: list[HotPath] = []
    seen = {path: summary(screened, path) for path in job.paths}
    for path, found in seen.items():
        was = ITSELF if before is None else before.get(path.name)
        if was is None:
            rows[path.name] = Row("speed", path.name, "not in the baseline", "", "", "update the baseline", "unsure")
        elif found.ratio is None:
            rows[path.name] = _untimed(path, was, found)
        elif was.ratio is None:
            rows[path.name] = Row("speed", path.name, was.why, _text(found.ratio), "", "timed now, not then", "better")
        elif found.why and not was.why and was is not ITSELF:
            rows[path.name] = Row("speed", path.name, "right", "wrong", "", found.why, "worse")
        elif found.ratio.median > was.ratio.median * (1 + slower_than):
            suspects.append(path)
        else:
            wrong = "; wrong" if found.why else ""
            outcome = "better" if found.ratio.high < was.ratio.low * (1 - slower_than) else "same"
            rows[path.name] = _row(path, was.ratio, found.ratio, outcome, f"screened, {found.ratio.pairs} pairs{wrong}")
    if suspects:
        again = replace(job, paths=tuple(suspects), limits=False, verify=False)
        confirmed = several(again, CONFIRM, lambda number: tell(f"confirm {number + 1} of {CONFIRM}"))
        alpha = alpha_of(len(job.paths), before is not None)
        for path in suspects:
            was = ITSELF if before is None else before[path.name]
            assert was.ratio is not None  # only then it is a suspect
            rows[path.name] = confirm(path, was.ratio, confirmed, alpha, slower_than)
    if not any(found.ratio for found in seen.values()):
        rows |= {name: replace(row, outcome="unsure") for name, row in rows.items()}  # nothing was compared
    machine = next((each.machine for each in screened if each.machine), {})
    return Compared([rows[path.name] for path in job.paths], list(seen.values()), machine)


def confirm(path: HotPath, was: Ratio, done: Sequence[Done], alpha: float, slower_than: float) -> Row:
    """Slower iff low_now > high_then (1 + slower_than); could not tell where there are too few pairs for a bound."""
    rounds = [timed.rounds for timed in of_path(done, path) if timed.rounds is not None]
    pairs = [found.ratios() for found in rounds]
    if not any(pairs) or len(rounds) < CONFIRM:
        lost = next((each.lost for each in done if each.lost), "it was not timed again")
        return Row("speed", path.name, _text(was), "", "", f"{len(rounds)} of {CONFIRM} processes: {lost}", "unsure")
    now = ratio(pairs, alpha)
    if now.low == -inf:
        return _row(path, was, now, "unsure", f"{now.pairs} pairs are too few")
    if now.low > was.high * (1 + slower_than):
        sure = f"at least {now.low / was.high - 1:+.1%} ({1 - alpha:.2%}), {_on(now)}"
        return _row(path, was, now, "worse", sure)
    return _row(path, was, now, "same", f"suspected, not confirmed, {_on(now)}")


def _untimed(path: HotPath, was: Before, found: Summary) -> Row:
    """A path that was not timed now: as before, or newly."""
    if was.ratio is None or (was is ITSELF and not found.able):
        return Row("speed", path.name, "not timed", "not timed", "", found.why, "same")
    return Row("speed", path.name, _text(was.ratio), "not timed", "", found.why, "unsure")


def _row(path: HotPath, was: Ratio, now: Ratio, outcome: str, surely: str) -> Row:
    return Row("speed", path.name, _text(was), _text(now), f"{now.median / was.median - 1:+.1%}", surely, outcome)


def _text(found: Ratio | None) -> str:
    return "" if found is None else f"{found.median:.3f}"


def _on(found: Ratio) -> str:
    return f"{found.pairs} pairs, {found.processes} processes"


def null_gates(
    job: Job, count: int, slower_than: float = SLOWER_THAN, tell: Tell = lambda _: None
) -> Iterator[list[Row]]:
    """Gates of a target against itself: each 'worse' in their rows is a false alarm; with `job.slowed`, a find."""
    for number in range(count):

        def say(text: str, number: int = number) -> None:
            tell(f"gate {number + 1} of {count}, {text}")

        yield compare(replace(job, against=job.target), None, slower_than, say).rows
