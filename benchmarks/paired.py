"""What lnverify.timing reads, shown by pytest-benchmark: the table gives the candidate's time, extra_info the ratios.

pytest-benchmark times one function; here several take turns. So they are measured first, and REPLAY, given as its
timer, then tells it what was read. `--benchmark-disable` makes one round, which shows that the wiring is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from lnverify.timing import machine
from lnverify.timing.clock import host_clock
from lnverify.timing.interval import ratio
from lnverify.timing.rounds import Budget, Rounds, measure
from lnverify.timing.summary import ALPHA

Sides = Mapping[str, Callable[[], Any]]
THREADS = 1


class Replay:
    """A clock that shows readings, one after the other: asked at the start and at the end of each round."""

    def __init__(self) -> None:
        self._times: Iterator[float] = iter(())
        self._now = 0.0

    def load(self, seconds: list[float]) -> None:
        """What the next rounds took."""
        self._now = 0.0
        self._times = iter([moved for each in seconds for moved in (0.0, each)])

    def __call__(self) -> float:
        self._now += next(self._times, 0.0)
        return self._now


REPLAY = Replay()


def paired(benchmark: Any, make: Callable[[], Sides], bytes_moved: int = 0) -> Rounds:
    """Measure the sides and hand the candidate's readings to pytest-benchmark."""
    budget = Budget() if benchmark.enabled else Budget(1e-9, 1, 1)
    rounds = measure(make, host_clock(THREADS, make()["candidate"]), budget)
    seconds = rounds.seconds("candidate")
    REPLAY.load(seconds)
    benchmark.pedantic(lambda: None, rounds=len(seconds), iterations=1)
    found = ratio([rounds.ratios()], ALPHA) if rounds.ratios() else None
    limits = {name: median(rounds.ratios(name, "candidate")) for name in ("copy", "clone") if name in rounds.readings
              and rounds.ratios(name, "candidate")}  # fmt: skip
    benchmark.extra_info.update(
        ratio=found.to_json() if found else None, ratios=[round(r, 5) for r in rounds.ratios()], clock=rounds.clock,
        calls_per_reading=rounds.times, bytes=bytes_moved, **{f"of_{name}": value for name, value in limits.items()},
        above_limit=any(value > 1 for value in limits.values()),
        wall=[r.wall for r in rounds.readings["candidate"]], cpu=[r.cpu for r in rounds.readings["candidate"]],
        machine=machine.describe(THREADS, {}),
    )  # fmt: skip
    return rounds
