"""Summary: what several processes read of one path, in the figures that people and baselines want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from lnverify.timing.interval import Ratio, ratio
from lnverify.timing.job import Done, of_path
from lnverify.timing.paths import HotPath

ALPHA = 0.025  # for each bound of an interval that decides nothing


@dataclass(frozen=True)
class Summary:
    """One path. seconds: of one call by the deciding clock, median; wall, cpu: by each clock. ratio: to the baseline.

    limits: how much of the time of the path a copy of as many bytes takes, into memory that is there ('copy') and into
    memory that it allocates ('clone'): 1 is as fast as memory allows. Above 1 the copy was disturbed, or the candidate
    does not touch all bytes. why: what is wrong with the results, or why it was not timed. able: see Timed.
    """

    path: HotPath
    seconds: float | None = None
    baseline_seconds: float | None = None
    ratio: Ratio | None = None
    clock: str = ""
    limits: dict[str, float] = field(default_factory=dict)
    why: str = ""
    able: bool = True
    wall: float | None = None
    cpu: float | None = None

    @property
    def impossible(self) -> bool:
        """Whether it seems faster than a copy of its bytes."""
        return any(share > 1 for share in self.limits.values())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        path = self.path
        return {
            "name": path.name, "shape": list(path.shape), "dtype": path.dtype, "what": path.what,
            "device": path.device, "bytes": path.bytes, "seconds": self.seconds,
            "wall_seconds": self.wall, "cpu_seconds": self.cpu, "baseline_seconds": self.baseline_seconds,
            "clock": self.clock,
            "ratio": self.ratio.to_json() if self.ratio else None,
            "of_copy": self.limits.get("copy"), "of_clone": self.limits.get("clone"),
            "above_limit": self.impossible, "why": self.why,
        }  # fmt: skip


def summary(done: Sequence[Done], path: HotPath, alpha: float = ALPHA) -> Summary:
    """Of all processes that timed the path; those that were lost say why."""
    seen = of_path(done, path)
    rounds = [timed.rounds for timed in seen if timed.rounds is not None]
    lost = [each.lost for each in done if each.lost]
    why = next((text for timed in seen for text in (timed.wrong, timed.refused) if text), "") or "".join(lost[:1])
    if not rounds or not all(any(found.seconds("candidate")) for found in rounds):
        able = all(timed.able for timed in seen)
        return Summary(path, why=why or "the clock did not move", able=able)
    pooled = [s for found in rounds for s in found.seconds("candidate")]
    read = [reading for found in rounds for reading in found.readings["candidate"]]
    pairs = [found.ratios() for found in rounds if "baseline" in found.readings]
    limits = {
        name: median([share for found in rounds for share in found.ratios(name, "candidate")])
        for name in ("copy", "clone")
        if all(name in found.readings for found in rounds)
    }
    return Summary(
        path, median(pooled),
        median([s for found in rounds for s in found.seconds("baseline")]) if pairs else None,
        ratio(pairs, alpha) if any(pairs) else None, "+".join(sorted({found.clock for found in rounds})), limits, why,
        wall=median([reading.wall for reading in read]), cpu=median([reading.cpu for reading in read]),
    )  # fmt: skip
