"""The machine as far as it decides how fast code runs, and what is pinned for a process that times.

What is in the fingerprint changes what is measured; what is not (clock speed now, host name, load, kernel) would split
one machine into many.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from typing import Any

from lnverify.environment import processor

# By itself glibc maps a large array anew in every call and gives it back; faulting its pages in takes more than half of
# the time of a large forward. Never map, hardly ever give back: for candidate, baseline and copy alike.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def pinned(threads: int) -> dict[str, str]:
    """The environment of a process that times."""
    return {**os.environ, **MALLOC, **dict.fromkeys(THREADS, str(threads))}


def describe(threads: int, versions: Mapping[str, str], accelerator: str = "") -> dict[str, Any]:
    """Processor, versions and pins, with the fingerprint of them all."""
    facts = {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": dict(sorted(versions.items())),
        "threads": threads,
        "accelerator": accelerator,
        "malloc": {name: os.environ.get(name, "") for name in MALLOC},
    }
    text = json.dumps(facts, sort_keys=True)
    return {**facts, "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:12]}
