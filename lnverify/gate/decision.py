"""Decision: both sides of a gate made, compared, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lnverify.finding import Report
from lnverify.gate import correctness, speed
from lnverify.gate.baseline import Baseline
from lnverify.gate.examined import Examined, examine, of_report
from lnverify.gate.row import EXIT_STATUS, Row, verdict
from lnverify.gate.settings import Settings
from lnverify.timing.job import several
from lnverify.timing.summary import Summary, summary

Tell = Callable[[str], None]
Known = Callable[[Report], None]  # marks what the project expects


@dataclass
class Decision:
    """What was compared. compared_with: a file, or a commit. notes: sentences beside the table."""

    target: str
    compared_with: str
    rows: list[Row]
    machine: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """'passed', 'regression' or 'could not tell'."""
        return verdict(self.rows)

    @property
    def exit_status(self) -> int:
        """0, 1 or 3."""
        return EXIT_STATUS[self.verdict]


def now(settings: Settings, known: Known, tell: Tell) -> Examined:
    """What the laws say of the working tree."""
    tell("laws")
    report = examine(settings)
    if isinstance(report, Report):
        known(report)
    return of_report(report)


def with_file(
    baseline: Baseline, name: str, known: Known, slower_than: float, tell: Tell, beside: Mapping[str, str] | None = None
) -> Decision:
    """Against a stored baseline; the speed against an earlier commit instead, where `beside` gives base and root."""
    settings = baseline.settings
    examined = now(settings, known, tell)
    rows = [*correctness.compare(baseline.examined, examined)]
    rows += correctness.accuracy(baseline.examined, examined, settings.profile)
    if beside is None:
        found, timed, machine = _speed(settings, baseline.speed, slower_than, tell)
    else:
        found, timed, machine = _speed(settings, None, slower_than, tell, **beside)
    decision = Decision(settings.target, name, rows + found, machine)
    decision.notes += _machines(baseline, machine, {row.name for row in found if row.outcome == "worse"}, timed)
    if examined.version != baseline.examined.version:
        then = baseline.examined.version
        decision.notes.append(f"the baseline was made by lnverify {then}, this is {examined.version}.")
    return decision


def with_commit(
    settings: Settings, commit: str, base: Path, root: Path, known: Known, slower_than: float, tell: Tell
) -> Decision:
    """Against an earlier commit that lies unpacked in `base`: both sides are examined and timed now."""
    examined = now(settings, known, tell)
    tell("laws, base")
    before = of_report(examine(settings, base, root))
    rows = [*correctness.compare(before, examined), *correctness.accuracy(before, examined, settings.profile)]
    found, _, machine = _speed(settings, None, slower_than, tell, base=str(base), root=str(root))
    return Decision(settings.target, f"the merge base {commit[:12]}", rows + found, machine)


def _speed(
    settings: Settings, before: Mapping[str, speed.Before] | None, slower_than: float, tell: Tell, **places: str
) -> tuple[list[Row], list[Summary], Mapping[str, Any]]:
    job = settings.job(**({"against": ""} if places else {}), **places)
    compared = speed.compare(job, before, slower_than, tell)
    return compared.rows, compared.screened, compared.machine


def _machines(baseline: Baseline, machine: Mapping[str, Any], worse: set[str], timed: Sequence[Summary]) -> list[str]:
    """Seconds of what is worse, then and now, on the same machine; on another one, what that means."""
    if not machine:
        return []
    if machine.get("fingerprint") != baseline.machine.get("fingerprint"):
        changed = [k for k in machine if k != "fingerprint" and machine[k] != baseline.machine.get(k)]
        said = f"the baseline is of another machine ({', '.join(changed)} differ)"
        return [f"{said}: verdicts and ratios are compared, seconds are not."]
    pairs = ((row, baseline.seconds.get(row.path.name)) for row in timed if row.path.name in worse)
    shown = [
        f"{row.path.name} {before * 1e6:.3g} us then, {row.seconds * 1e6:.3g} us now"
        for row, before in pairs
        if before is not None and row.seconds is not None
    ]
    return [f"for information, on this machine: {'; '.join(shown)}."] if shown else []


def measured(settings: Settings, tell: Tell) -> tuple[list[Summary], Mapping[str, Any]]:
    """The speed of a new baseline: as many processes as a confirmation has, bounds as a gate will use them."""
    job = settings.job(keep_wrong=True)
    done = several(job, speed.CONFIRM, lambda number: tell(f"process {number + 1} of {speed.CONFIRM}"))
    alpha = speed.alpha_of(len(job.paths), stored=True)
    machine = next((each.machine for each in done if each.machine), {})
    return [summary(done, path, alpha) for path in job.paths], machine
