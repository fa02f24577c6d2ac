"""Job: what one timing process is to do, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lnverify.timing.clock import Reading
from lnverify.timing.machine import pinned
from lnverify.timing.paths import HotPath
from lnverify.timing.process import Lost, call
from lnverify.timing.rounds import Budget, Rounds

WORKER = "lnverify.timing.worker"


@dataclass(frozen=True)
class Job:
    """paths: what to time of `target`. against: the target of the baseline; base and root: instead, the folder in which
    an earlier commit lies unpacked, and the repository. limits: time copies too. verify: judge results first;
    keep_wrong: and time wrong ones all the same. slowed: injected into the candidate. timeout: seconds of the process.
    """

    target: str
    paths: tuple[HotPath, ...]
    against: str = ""
    base: str = ""
    root: str = ""
    operation: str = "layer_norm"
    threads: int = 1
    budget: Budget = field(default_factory=Budget)
    limits: bool = True
    verify: bool = True
    keep_wrong: bool = False
    slowed: float = 0.0
    timeout: float = 1800.0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Inverse of dataclasses.asdict."""
        paths = tuple(HotPath(**{**p, "shape": tuple(p["shape"])}) for p in data["paths"])
        return cls(**{**data, "paths": paths, "budget": Budget(**data["budget"])})


@dataclass(frozen=True)
class Timed:
    """One path. rounds: None where it was not timed; wrong, refused: why, or what is wrong with what was timed.

    able: False where the subject declares that it has no such path.
    """

    path: HotPath
    rounds: Rounds | None = None
    wrong: str = ""
    refused: str = ""
    able: bool = True

    @classmethod
    def from_json(cls, path: HotPath, data: Mapping[str, Any]) -> Timed:
        """From what the worker wrote."""
        found = data["rounds"]
        if found is not None:
            readings = {name: [Reading(*r) for r in each] for name, each in found["readings"].items()}
            found = Rounds(found["clock"], found["times"], readings)
        return cls(path, found, data["wrong"], data["refused"], data["able"])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        rounds = self.rounds and {
            "clock": self.rounds.clock,
            "times": self.rounds.times,
            "readings": {name: [[r.wall, r.cpu] for r in each] for name, each in self.rounds.readings.items()},
        }
        return {"rounds": rounds, "wrong": self.wrong, "refused": self.refused, "able": self.able}


@dataclass(frozen=True)
class Done:
    """What one process found. lost: how it ended, where it told nothing."""

    timed: tuple[Timed, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    lost: str = ""


def run(job: Job) -> Done:
    """Do a job in a fresh process. Raises what the caller can mend (an unknown target, say), as the process did."""
    try:
        data = call(WORKER, asdict(job), pinned(job.threads), job.timeout)
    except Lost as lost:
        return Done(lost=str(lost))
    timed = tuple(Timed.from_json(path, each) for path, each in zip(job.paths, data["timed"], strict=True))
    return Done(timed, data["machine"])


def several(job: Job, processes: int, first: Callable[[int], None] = lambda _: None) -> list[Done]:
    """The same job in several processes, one after the other. Results are verified in the first process; what it did
    not time is left out of the others. first: told the number of each process before it starts."""
    found: list[Done] = []
    for number in range(processes):
        first(number)
        found.append(run(job))
        if job.verify and not found[0].lost:
            job = replace(job, verify=False, paths=tuple(t.path for t in found[0].timed if t.rounds is not None))
        if not job.paths:
            break
    return found


def of_path(done: Sequence[Done], path: HotPath) -> list[Timed]:
    """What every process says about one path."""
    return [timed for each in done for timed in each.timed if timed.path == path]
