"""The gate on speed, on ratios that the test makes: what is screened, what is confirmed, what is accused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from lnverify.gate import speed
from lnverify.timing import job as job_module
from lnverify.timing.clock import Reading
from lnverify.timing.interval import Ratio, ratio
from lnverify.timing.job import Done, Job, Timed
from lnverify.timing.paths import HotPath
from lnverify.timing.rounds import Rounds

PATH = HotPath((32, 768), "float32", "forward")
OTHER = HotPath((512, 1024), "float32", "forward")


class Machine:
    """Stands for fresh processes. true: the ratio of each path; noise: of one pair; bias: of one process."""

    def __init__(
        self, true: Mapping[HotPath, float], noise: float = 0.15, bias: float = 0.015, seed: int = 0, pairs: int = 400
    ) -> None:
        self.true, self.noise, self.bias, self.pairs = true, noise, bias, pairs
        self.random = np.random.default_rng(seed)
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, job: Job) -> Done:
        self.asked.append(tuple(path.name for path in job.paths))
        return Done(tuple(self.timed(path) for path in job.paths), {"fingerprint": "one"})

    def timed(self, path: HotPath) -> Timed:
        own = np.log(self.true[path]) + self.bias * self.random.standard_normal()
        ratios = np.exp(own + self.noise * self.random.standard_normal(self.pairs))
        readings = {"candidate": [Reading(r, r) for r in ratios], "baseline": [Reading(1.0, 1.0)] * self.pairs}
        return Timed(path, Rounds("cpu", 1, readings))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def put(true: Mapping[HotPath, float], **noise: Any) -> Machine:
        found = Machine(true, **noise)
        monkeypatch.setattr(job_module, "run", found)
        return found

    return put


def outcomes(
    job: Job, before: Mapping[str, speed.Before] | None = None, slower_than: float = speed.SLOWER_THAN
) -> list[str]:
    return [row.outcome for row in speed.compare(job, before, slower_than).rows]


def test_unchanged_code_passes_after_the_screen(machine: Callable[..., Machine]) -> None:
    put = machine({PATH: 1.0, OTHER: 1.0}, bias=0.002)
    assert outcomes(Job("t", (PATH, OTHER))) == ["same", "same"]
    assert len(put.asked) == speed.SCREEN


def test_only_what_is_slower_is_timed_again_and_accused(machine: Callable[..., Machine]) -> None:
    put = machine({PATH: 1.10, OTHER: 1.0}, bias=0.002)
    rows = speed.compare(Job("t", (PATH, OTHER))).rows
    assert [row.outcome for row in rows] == ["worse", "same"]
    assert put.asked == [(PATH.name, OTHER.name)] * speed.SCREEN + [(PATH.name,)] * speed.CONFIRM
    assert rows[0].surely.endswith("2400 pairs, 6 processes")
    assert "(99.50%)" in rows[0].surely  # 1 % over two paths


def test_what_is_faster_is_said_to_be_better(machine: Callable[..., Machine]) -> None:
    machine({PATH: 0.9, OTHER: 0.99}, bias=0.0)
    assert outcomes(Job("t", (PATH, OTHER))) == ["better", "same"]


def test_what_the_screen_saw_by_chance_is_not_confirmed(machine: Callable[..., Machine]) -> None:
    put = machine({PATH: 1.0})
    put.true = {PATH: 1.05}  # while it screens

    def later(job: Job) -> Done:
        if len(put.asked) >= speed.SCREEN:
            put.true = {PATH: 1.0}
        return put(job)

    job_module.run = later  # type: ignore[assignment] - the fixture puts it back
    rows = speed.compare(Job("t", (PATH,))).rows
    assert (rows[0].outcome, rows[0].surely[:24]) == ("same", "suspected, not confirmed")
    assert len(put.asked) == speed.SCREEN + speed.CONFIRM


@pytest.mark.parametrize("stored", [False, True], ids=["beside", "stored"])
def test_false_alarms_stay_below_and_finds_above_what_is_promised(
    machine: Callable[..., Machine], stored: bool
) -> None:
    """Six paths, at a spread of 15 % a pair and 1.5 % a process, as measured on a loaded machine (docs/speed.md)."""
    found = {}
    paths = tuple(HotPath((32, 768 + n), "float32", "forward") for n in range(6))
    for true in (1.0, 1.05, 1.10):
        before = None
        if stored:
            of = machine(dict.fromkeys(paths, 1.0), pairs=200, seed=1)
            rounds = {p: [of.timed(p).rounds for _ in range(speed.CONFIRM)] for p in paths}
            alpha = speed.alpha_of(len(paths), stored=True)
            before = {p.name: speed.Before(ratio([r.ratios() for r in rounds[p] if r], alpha)) for p in paths}
        machine(dict.fromkeys(paths, true), pairs=200, seed=3)
        found[true] = sum("worse" in outcomes(Job("t", paths), before) for _ in range(20))
    assert found[1.0] == 0
    assert found[1.05] >= 16
    assert found[1.10] == 20


def test_slower_by_less_than_is_allowed_passes(machine: Callable[..., Machine]) -> None:
    machine({PATH: 1.10}, bias=0.0)
    assert outcomes(Job("t", (PATH,)), slower_than=0.2) == ["same"]
    assert outcomes(Job("t", (PATH,)), slower_than=0.05) == ["worse"]


def test_a_stored_ratio_is_compared_by_its_upper_bound(machine: Callable[..., Machine]) -> None:
    machine({PATH: 1.10}, bias=0.0)
    for high, outcome in ((1.06, "worse"), (1.09, "same")):
        stored = {PATH.name: speed.Before(Ratio(1.05, 1.04, high, 2400, 6))}
        assert outcomes(Job("t", (PATH,)), stored) == [outcome]
    assert outcomes(Job("t", (PATH,)), {}) == ["unsure"]
    assert outcomes(Job("t", (PATH,)), {PATH.name: speed.Before(None, "it had no backward")}) == ["better"]


def test_too_few_pairs_and_a_lost_process_are_not_told(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine({PATH: 1.5}, pairs=1)
    row = speed.compare(Job("t", (PATH,))).rows[0]
    assert (row.outcome, row.surely) == ("unsure", "6 pairs are too few")
    put = Machine({PATH: 1.5})
    monkeypatch.setattr(job_module, "run", lambda job: put(job) if len(put.asked) < 4 else Done(lost="it died"))
    row = speed.compare(Job("t", (PATH,))).rows[0]
    assert (row.outcome, row.surely) == ("unsure", "2 of 6 processes: it died")
    monkeypatch.setattr(job_module, "run", lambda job: Done(lost="it died"))
    assert outcomes(Job("t", (PATH,))) == ["unsure"]


def test_what_the_subject_does_not_have_is_no_doubt_unless_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Machine({PATH: 1.0}, bias=0.0)

    def run(job: Job) -> Done:
        lacks = Timed(OTHER, refused="it has no backward", able=False)
        return Done(tuple(lacks if path == OTHER else put.timed(path) for path in job.paths))

    monkeypatch.setattr(job_module, "run", run)
    assert outcomes(Job("t", (PATH, OTHER))) == ["same", "same"]
    assert outcomes(Job("t", (OTHER,))) == ["unsure"]


def test_a_path_that_newly_computes_a_wrong_result_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Machine({PATH: 1.0}, bias=0.0)

    def run(job: Job) -> Done:
        done = put(job)
        return Done(tuple(Timed(t.path, t.rounds, "y[0] is 1, exact 2") for t in done.timed), done.machine)

    monkeypatch.setattr(job_module, "run", run)
    right, wrong = Ratio(1.0, 0.99, 1.01, 2400, 6), "y[0] is 1, exact 2"
    assert outcomes(Job("t", (PATH,)), {PATH.name: speed.Before(right)}) == ["worse"]
    assert outcomes(Job("t", (PATH,)), {PATH.name: speed.Before(right, wrong)}) == ["same"]
