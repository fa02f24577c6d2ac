"""Clocks: what a block of calls took, in wall time and in the CPU time of the calling thread.

Which of the two decides: CPU time where one thread computes, for it does not run while others use the processor; wall
time where several do, for the CPU time of one of them says nothing. Both are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Protocol

OTHERS = 0.1  # share of the CPU time of a call that threads other than the caller's may take for it to count as one
TRIALS = 3  # what has its own threads shows them every time; those of an earlier call may still be winding down
IDLE = 1e-4  # seconds that the interpreter's own threads may take meanwhile


@dataclass(frozen=True)
class Reading:
    """Seconds per call. cpu: of the calling thread."""

    wall: float
    cpu: float


class Clock(Protocol):
    """name: 'cpu', 'wall' or 'cuda', which says what decides."""

    name: str

    def block(self, call: Callable[[], Any], times: int, slowed: float = 0.0) -> Reading:
        """Call so many times; seconds per call. slowed: as if each call took that much longer (0.05: 5 %)."""
        ...


@dataclass
class HostClock:
    """Clock of the processor; `read_wall` and `read_cpu` return seconds."""

    name: str = "cpu"
    read_wall: Callable[[], float] = field(default=time.perf_counter)
    read_cpu: Callable[[], float] = field(default=time.thread_time)

    def block(self, call: Callable[[], Any], times: int, slowed: float = 0.0) -> Reading:
        """Seconds per call. A slowed block computes on, at its end, until it has taken that much longer."""
        read = self.read_cpu if self.name == "cpu" else self.read_wall
        wall, cpu = self.read_wall(), self.read_cpu()
        for _ in repeat(None, times):
            call()
        if slowed:
            start = cpu if self.name == "cpu" else wall
            end = start + (read() - start) * (1 + slowed)
            while read() < end:
                pass
        cpu, wall = self.read_cpu() - cpu, self.read_wall() - wall
        return Reading(wall / times, cpu / times)


def host_clock(
    threads: int,
    call: Callable[[], Any],
    read_all: Callable[[], float] = time.process_time,
    read_own: Callable[[], float] = time.thread_time,
) -> HostClock:
    """The clock that fits a call: of the CPU where one thread was asked for and one thread computes.

    A subject may start threads of its own whatever it is asked; their share of the process's CPU time shows it.
    """
    if threads > 1:
        return HostClock("wall")
    call()
    for _ in range(TRIALS):
        everything, own = read_all(), read_own()
        for _ in repeat(None, 3):
            call()
        everything, own = read_all() - everything, read_own() - own
        if everything - own <= OTHERS * everything + IDLE:
            return HostClock("cpu")
    return HostClock("wall")


def take(readings: list[Reading], name: str) -> list[float]:
    """The deciding number of each reading."""
    return [reading.cpu if name == "cpu" else reading.wall for reading in readings]
