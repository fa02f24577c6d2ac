"""The hot paths of any target (--ln-target), beside torch's layer norm and beside copies of as many bytes."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from benchmarks.paired import REPLAY, THREADS, paired
from lnverify.runner import DEFAULT_TARGET
from lnverify.target import resolve
from lnverify.timing.paths import LARGE, SHAPES, HotPath, paths
from lnverify.timing.sides import Refused, bare_module, make
from lnverify.timing.verify import wrong

pytest.importorskip("torch", reason="the baseline needs torch")
SMALL = 1 << 19  # bytes: what runs where benchmarks only run, untimed
PATHS = paths((*SHAPES, *LARGE), ("float32", "bfloat16"))


@pytest.mark.benchmark(timer=REPLAY)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.replace(" ", "-"))
def test_hot_path(benchmark: Any, request: pytest.FixtureRequest, path: HotPath) -> None:
    target = request.config.getoption("--ln-target") or DEFAULT_TARGET
    if not benchmark.enabled and path.bytes > SMALL:
        pytest.skip("large shapes run where benchmarks are timed")
    candidate, baseline = resolve(target), resolve(DEFAULT_TARGET)
    bare_module(candidate.framework).use_threads(THREADS)
    case = path.case(candidate.capabilities)
    if said := wrong(candidate, path, case):
        pytest.skip(f"not timed: {said}")
    try:
        rounds = paired(benchmark, lambda: make(path, candidate, baseline, case), path.bytes)
    except Refused as refusal:
        pytest.skip(f"not timed: {refusal}")
    assert set(rounds.readings) == {"candidate", "baseline", "copy", "clone"}
    assert benchmark.extra_info["bytes"] == path.bytes
    if benchmark.stats is not None:
        assert benchmark.stats.stats.median == pytest.approx(median(rounds.seconds("candidate")))
