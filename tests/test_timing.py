"""Timing in pairs: what is read, in which order, on which memory, and what is made of it. No test asks how long."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import comb, inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lnverify.case import Case
from lnverify.errors import SignatureError, UsageError
from lnverify.target import resolve
from lnverify.timing import job as job_module
from lnverify.timing import verify, worker
from lnverify.timing.clock import HostClock, Reading, host_clock
from lnverify.timing.interval import lower, rank, rate_bound, ratio, upper
from lnverify.timing.job import Done, Job, Timed, several
from lnverify.timing.paths import HotPath, paths, shape
from lnverify.timing.rounds import FRESH, Budget, Rounds, measure
from lnverify.timing.sides import Refused, bare, make
from lnverify.timing.summary import summary
from tests.timing_samples import FakeTime, kernel

PATH = HotPath((4, 8), "float32", "forward")


def test_the_rank_is_the_largest_whose_tail_is_small_enough() -> None:
    # P(Bin(10, 1/2) < 2) = 11/1024, P(Bin(10, 1/2) < 3) = 56/1024
    assert [rank(10, alpha) for alpha in (11 / 1024, 0.0107, 55 / 1024, 0.0001)] == [2, 1, 2, 0]
    for count, alpha in ((7, 0.01), (120, 0.0017), (3000, 0.001)):
        k = rank(count, alpha)
        tail = sum(comb(count, i) for i in range(k))
        assert tail <= Fraction(alpha) * 2**count < tail + comb(count, k)


def test_bounds_are_order_statistics_and_infinite_without_enough_values() -> None:
    values = [9.0, 1.0, 3.0, 2.0, 8.0, 7.0, 4.0, 6.0, 5.0, 10.0]
    assert (lower(values, 11 / 1024), upper(values, 11 / 1024)) == (2.0, 9.0)
    assert (lower(values[:3], 0.01), upper(values[:3], 0.01)) == (-inf, inf)


def test_the_lower_bound_of_a_median_fails_no_more_often_than_it_says() -> None:
    draws = np.random.default_rng(5).lognormal(size=(4000, 31))
    misses = sum(lower(list(row), 0.05) > 1.0 for row in draws)  # the true median is 1
    assert 0.01 < misses / len(draws) <= 0.05


def test_a_ratio_leaves_room_for_all_processes_but_one() -> None:
    # five processes say 1.10, one says 1.00: the second smallest median decides; with two that say 1.00 it is theirs
    steady, off = [1.10] * 50, [1.00] * 50
    found = ratio([steady] * 5 + [off], 0.001)
    assert (found.median, found.low, found.high, found.pairs, found.processes) == (1.10, 1.10, 1.10, 300, 6)
    assert ratio([steady] * 4 + [off] * 2, 0.001).low == 1.00
    assert ratio([steady, off], 0.001).low == 1.00  # too few processes to leave one out
    assert ratio([[1.0, 2.0, 3.0]], 0.001).to_json()["low"] is None
    with pytest.raises(ValueError, match="no pair"):
        ratio([[], []], 0.1)


def test_the_bound_of_a_rate_is_that_of_clopper_and_pearson() -> None:
    assert rate_bound(0, 40) == pytest.approx(1 - 0.05 ** (1 / 40), rel=1e-12)
    p = rate_bound(2, 20)
    assert sum(comb(20, k) * p**k * (1 - p) ** (20 - k) for k in range(3)) == pytest.approx(0.05, rel=1e-9)
    assert rate_bound(3, 3) == 1.0


def rounds_of(fake: FakeTime, seconds: dict[str, float], budget: Budget, slowed: float = 0.0) -> Rounds:
    clock = HostClock("cpu", fake.read, fake.read)
    return measure(lambda: {name: fake.passing(s) for name, s in seconds.items()}, clock, budget, slowed)


def test_ratios_are_those_of_what_was_called() -> None:
    found = rounds_of(FakeTime(), {"candidate": 3e-3, "baseline": 2e-3, "copy": 1e-3}, Budget(0.3, 12, 40))
    assert found.times == 1
    assert len(found.ratios()) == 40  # 0.3 s are 50 rounds of 6 ms, 40 are the most
    assert found.ratios() == pytest.approx([1.5] * 40, rel=1e-3)
    assert found.ratios("copy", "candidate") == pytest.approx([1 / 3] * 40, rel=1e-3)


def test_short_calls_are_timed_several_at_once_and_all_sides_equally_often() -> None:
    found = rounds_of(FakeTime(), {"candidate": 4e-6, "baseline": 2e-6}, Budget(0.01, 6, 600))
    assert 90 < found.times <= 100  # 100 of the shorter fill a block of 0.2 ms
    assert found.ratios() == pytest.approx([2.0] * len(found.ratios()), rel=3e-3)


@pytest.mark.parametrize("slowed", [0.05, 0.10])
def test_an_injected_slowdown_is_in_the_candidate_alone(slowed: float) -> None:
    found = rounds_of(FakeTime(), {"candidate": 1e-3, "baseline": 1e-3}, Budget(0.1, 12, 40), slowed)
    assert found.ratios() == pytest.approx([1 + slowed] * 40, rel=1e-3)


def test_every_side_follows_every_other_equally_often_and_memory_is_fresh() -> None:
    fake, made, order = FakeTime(), [], []

    def sides() -> dict[str, object]:
        made.append(len(order))

        def side(name: str) -> object:
            def call() -> None:
                fake.now += 1e-3
                order.append(name)

            return call

        return {name: side(name) for name in ("candidate", "baseline", "copy")}

    measure(sides, HostClock("cpu", fake.read, fake.read), Budget(1e-9, 120, 120))  # type: ignore[arg-type]
    assert len(made) == 1 + 120 // FRESH
    warm = 15 + 3  # two and three calls of each side, then one on the fresh memory
    first = order[warm : warm + 3 * FRESH]
    assert [Counter(first)[name] for name in ("candidate", "baseline", "copy")] == [FRESH] * 3
    within = Counter(pair for at in range(0, 54, 3) for pair in pairwise(first[at : at + 3]))
    assert len(within) == 6
    assert set(within.values()) == {6}  # 18 rounds: each of the six orders three times, two neighbours in each


def test_wall_time_decides_where_several_threads_compute() -> None:
    own, helpers = FakeTime(), FakeTime()

    def clock_of(seconds: float, others: float) -> str:
        def call() -> None:
            own.now += seconds
            helpers.now += others

        return host_clock(1, call, lambda: own.now + helpers.now, lambda: own.now).name

    assert host_clock(2, lambda: None).name == "wall"
    assert clock_of(1.0, 0.0) == "cpu"
    assert clock_of(1.0, 0.1) == "cpu"  # a tenth of its own: less than a tenth of all
    assert clock_of(1.0, 0.2) == "wall"
    late = iter([0.0, 5.0, 5.0, 5.0])  # threads of an earlier call, which are at rest in the second trial
    assert host_clock(1, lambda: None, lambda: next(late), lambda: 0.0).name == "cpu"
    assert Rounds("wall", 1, {"candidate": [Reading(2.0, 1.0)]}).seconds("candidate") == [2.0]


def test_the_clock_of_a_gpu_empties_the_cache_outside_of_its_events() -> None:
    from lnverify.adapters.torch_bare import CudaClock

    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = len(log)
            log.append("event")

        def elapsed_time(self, end: Event) -> float:
            assert log[-1] == "wait"
            return float(end.at - self.at)  # milliseconds

    cuda = SimpleNamespace(Event=Event, synchronize=lambda: log.append("wait"))
    reading = CudaClock(cuda, lambda: log.append("flush")).block(lambda: log.append("call"), 2, 0.5)
    assert log == ["flush", "event", "call", "event"] * 2 + ["wait"]
    assert (reading.wall, reading.cpu) == (3e-3, 3e-3)  # 2 ms, and half as much again


@pytest.mark.parametrize("text", ["512", "0x8", "8x", "axb", "-1x8", "8x8x0"])
def test_a_shape_that_is_none_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not rows x N"):
        shape(text)


def test_hot_paths_name_what_they_move() -> None:
    found = paths([(512, 1024)], ["bfloat16"])
    assert [p.name for p in found] == [
        "512x1024 bfloat16 forward", "512x1024 bfloat16 backward", "512x1024 bfloat16 forward+backward",
    ]  # fmt: skip
    n = 512 * 1024
    assert [p.bytes for p in found] == [2 * n * 2, 3 * n * 2, 5 * n * 2]
    assert [2 * p.copied * 2 for p in found] == [p.bytes for p in found]  # a copy reads and writes 2 bytes each
    assert shape("2x3x4") == shape("2×3×4") == (2, 3, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


TORCH = ("torch.nn.functional.layer_norm", "torch.nn.LayerNorm", "torch.ops.aten.native_layer_norm")


@pytest.mark.parametrize("target", TORCH)
def test_what_is_timed_of_torch_computes_what_the_subject_answers(target: str) -> None:
    pytest.importorskip("torch")
    subject = resolve(target)
    case = PATH.case(subject.capabilities)
    answer = subject.run(case.request("y", "dx", "dweight", "dbias")).arrays
    y = bare(subject, case, "forward")()
    y = y if hasattr(y, "numpy") else y[0]
    assert not y.requires_grad
    assert np.array_equal(y.numpy(), answer["y"].values)
    for what in ("backward", "both"):
        call = bare(subject, case, what)
        for _ in range(2):
            grads = dict(zip(("dx", "dweight", "dbias"), call(), strict=True))
            assert all(np.array_equal(grads[name].numpy(), answer[name].values) for name in grads)


def test_what_is_timed_of_numpy_computes_what_the_subject_answers(folder: Path) -> None:
    subject = resolve(kernel(folder))
    case = PATH.case(subject.capabilities)
    answer = subject.run(case.request("y", "dx", "dweight", "dbias")).arrays
    assert np.array_equal(bare(subject, case, "forward")(), answer["y"].values)
    for what in ("backward", "both"):
        assert np.array_equal(bare(subject, case, what)()[1], answer["dweight"].values)


def test_a_function_that_writes_into_its_arguments_is_timed_in_torch_and_refused_in_numpy(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    source = "import {0}\ndef ln(x, y, normalized_shape, eps=1e-5):\n    y[...] = x - x.mean()\n"
    (folder / "into.py").write_text(source.format("torch"))
    (folder / "into_numpy.py").write_text(source.format("numpy"))
    subject = resolve("./into.py:ln")
    case = PATH.case(subject.capabilities)
    x = torch.tensor(case.arrays["x"].values, dtype=torch.float32)
    assert torch.equal(bare(subject, case, "forward")()["y"], x - x.mean())
    subject = resolve("./into_numpy.py:ln")
    with pytest.raises(Refused, match="writes into arrays is not timed") as caught:
        bare(subject, PATH.case(subject.capabilities), "forward")
    assert isinstance(caught.value.__cause__, SignatureError)


def test_each_side_has_memory_of_its_own(folder: Path) -> None:
    subject = resolve(kernel(folder))
    case = PATH.case(subject.capabilities)
    sides = make(PATH, subject, subject, case)
    assert list(sides) == ["candidate", "baseline", "copy", "clone"]
    x = [sides[name].keywords["x"] for name in ("candidate", "baseline")]  # type: ignore[attr-defined]
    assert not np.shares_memory(*x)
    assert np.array_equal(*x)
    assert sides["clone"]().nbytes * 2 == PATH.bytes


def judged(folder: Path, eps: str, what: str, monkeypatch: pytest.MonkeyPatch, whole: int = 1 << 20) -> str:
    monkeypatch.setattr(verify, "WHOLE", whole)
    path = HotPath((64, 32), "float32", what)
    subject = resolve(kernel(folder, f"k{len(eps)}.py", eps))
    case: Case = path.case(subject.capabilities)
    return verify.wrong(subject, path, case)


@pytest.mark.parametrize("whole", [1 << 20, 0], ids=["whole", "few-rows"])
def test_a_wrong_result_is_found_before_it_is_timed(folder: Path, monkeypatch: pytest.MonkeyPatch, whole: int) -> None:
    assert judged(folder, "eps", "forward", monkeypatch, whole) == ""
    assert judged(folder, "eps", "both", monkeypatch, whole) == ""
    said = judged(folder, "eps + 0.01", "forward", monkeypatch, whole)
    assert said.startswith("y[")
    assert "times what any summation order may deviate" in said


def test_a_job_times_what_is_right_and_says_why_not(folder: Path) -> None:
    right, bad = kernel(folder), kernel(folder, "wrong.py", "0.1")
    small = Budget(1e-9, 2, 2)
    three = (PATH, HotPath((4, 8), "float32", "backward"), HotPath((4, 8), "bfloat16", "forward"))
    found = worker.do(Job("./kernels.py:ln", three, against=right, budget=small))
    first, second, third = found["timed"]
    assert {name: len(each) for name, each in first["rounds"]["readings"].items()} == dict.fromkeys(
        ("candidate", "baseline", "copy", "clone"), 2
    )
    assert (second["refused"], third["refused"]) == ("it has no backward", "it does not declare bfloat16")
    assert set(found["machine"]["malloc"]) == {"MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"}
    assert len(found["machine"]["fingerprint"]) == 12
    unverified = worker.do(Job(bad, (PATH,), against=right, budget=small))["timed"][0]
    assert unverified["rounds"] is None
    assert unverified["wrong"].startswith("y[")
    kept = worker.do(Job(bad, (PATH,), against=right, budget=small, keep_wrong=True))["timed"][0]
    assert kept["rounds"] is not None
    assert kept["wrong"] == unverified["wrong"]


def test_what_raises_while_it_is_timed_is_told_with_its_side(folder: Path) -> None:
    right = kernel(folder)
    (folder / "raising.py").write_text("import numpy\ndef ln(x, eps=1e-5):\n    raise ValueError('no such shape')\n")
    given = {"paths": (PATH,), "budget": Budget(1e-9, 2, 2), "keep_wrong": True}
    one = worker.do(Job("./raising.py:ln", against=right, **given))["timed"][0]  # type: ignore[arg-type]
    assert (one["refused"], one["rounds"]) == ("ValueError: no such shape", None)
    assert one["wrong"] == "it raises ValueError: no such shape"
    other = worker.do(Job(right, against="./raising.py:ln", **given))["timed"][0]  # type: ignore[arg-type]
    assert other["refused"] == "the baseline, ./raising.py:ln, raises ValueError: no such shape"
    assert (other["wrong"], other["rounds"]) == ("", None)


def timed(candidate: float, path: HotPath = PATH, **sides: float) -> Timed:
    seconds = {"candidate": candidate, "baseline": 1.0, **sides}
    return Timed(path, Rounds("cpu", 1, {name: [Reading(s, s)] * 30 for name, s in seconds.items()}))


def test_what_the_first_process_did_not_time_is_left_out_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    other, asked = HotPath((4, 8), "float32", "both"), []

    def run(job: Job) -> Done:
        asked.append((job.verify, [p.what for p in job.paths]))
        wrong = Timed(other, wrong="y is wrong")
        return Done(tuple(wrong if p is other else timed(1.25, p, copy=0.5, clone=1.5) for p in job.paths))

    monkeypatch.setattr(job_module, "run", run)
    done = several(Job("t", (PATH, other)), 3)
    assert asked == [(True, ["forward", "both"]), (False, ["forward"]), (False, ["forward"])]
    row = summary(done, PATH)
    assert row.ratio is not None
    assert (row.ratio.median, row.ratio.processes, row.limits) == (1.25, 3, {"copy": 0.4, "clone": 1.2})
    assert row.impossible
    assert (summary(done, other).seconds, summary(done, other).why) == (None, "y is wrong")
    assert summary([Done(lost="it died")], PATH).why == "it died"
