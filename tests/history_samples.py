"""Histories made by hand: bench files, readings and series of which the truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lnverify.history.reading import Reading
from lnverify.history.sample import Commit, Key, Point, Sample, Series

MACHINE = {
    "processor": "Model 1", "cores": 2, "python": "3.11.7", "platform": "Linux x86_64", "threads": 1,
    "accelerator": "", "malloc": {"MALLOC_TRIM_THRESHOLD_": "", "MALLOC_MMAP_MAX_": "0"},
    "versions": {"torch": "2.13.0", "numpy": "2.4.6"}, "fingerprint": "0123456789ab",
}  # fmt: skip
SETTING = "against torch, 1 threads, cpu clock, MALLOC_MMAP_MAX_=0, python 3.11, numpy 2.4.6, torch 2.13.0"
KEY = Key("./kernels.py:ln", "forward 32x768 [float32, cpu]", "time", "against torch", "a" * 12)


def commit(number: int) -> Commit:
    """The commit of this number, a day after the one before."""
    return Commit(f"{number:010x}" * 4, 1_700_000_000 + 86_400 * number, f"Change {number}")


def number_of(commit: Commit) -> int:
    """The number of a commit."""
    return int(commit.short, 16)


def bench(ratio: float, /, *, width: float = 0.01, machine: dict[str, Any] = MACHINE, **given: Any) -> dict[str, Any]:
    """A bench file of one path, as `lnverify bench --json` writes it; given: other values of the path."""
    interval = {"median": ratio, "low": ratio * (1 - width), "high": ratio * (1 + width), "pairs": 80, "processes": 2}
    path = {
        "name": "32x768 float32 forward", "shape": [32, 768], "dtype": "float32", "what": "forward", "device": "cpu",
        "bytes": 196608, "seconds": 1.1e-5, "baseline_seconds": 1.0e-5, "clock": "cpu", "ratio": interval,
        "of_copy": 0.3, "of_clone": 0.3, "above_limit": False, "why": "", **given,
    }  # fmt: skip
    targets = [{"target": "./kernels.py:ln", "paths": [path]}]
    return {"schema": "lnverify-bench/1", "machine": machine, "against": "torch", "targets": targets}


def written(path: Path, data: Any) -> Path:
    """The file, with the data in it."""
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def reading(*values: float, key: Key = KEY) -> Reading:
    """A reading with a sample for each value, of benchmarks that are called b0, b1, ..."""
    samples = [Sample(Key(key.subject, f"b{n}", key.metric, key.setting, key.machine), v) for n, v in enumerate(values)]
    return Reading(key.machine, {"processor": "Model 1"}, tuple(samples))


def series(values: Any, key: Key = KEY) -> Series:
    """A series with these ratios, or verdicts, at commits 0, 1, ..."""
    points = [
        Point(commit(n), verdict=v) if isinstance(v, str) else Point(commit(n), float(v)) for n, v in enumerate(values)
    ]
    return Series(key, tuple(points))


def noisy(seed: int, step: float, at: int, *, commits: int = 60, noise: float = 0.015, outliers: float = 0.0) -> Any:
    """Ratios around 1 with Gaussian noise in the logarithm, and from `at` on larger by `step`.

    outliers: the share of commits with four times that noise on top.
    """
    rng = np.random.default_rng(seed)
    logs = rng.normal(0, noise, commits)
    logs += (rng.random(commits) < outliers) * rng.normal(0, 4 * noise, commits)
    logs[at:] += np.log1p(step)
    return np.exp(logs)
