"""Machine: the fingerprint of what a time or a rounding depends on beside the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Not the clock rate, the host's name, the load or the kernel: they change from run to run, and each would make
# another machine of the same one. Not hypothesis, which draws cases, and stands in the setting of a series.
FACTS = ("processor", "cores", "platform", "threads", "cpu_capability", "gpu", "malloc", "clock")
NOT_COMPUTING = ("hypothesis", "lnverify")


def facts(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What the fingerprint is made of: processor, cores, threads, Python without its patch level, frameworks."""
    found = {name: environment[name] for name in FACTS if environment.get(name) not in (None, "")}
    found["python"] = ".".join(str(environment.get("python", "")).split(".")[:2])
    versions = environment.get("versions", {})
    found["versions"] = {n: v for n, v in sorted(versions.items()) if n not in NOT_COMPUTING}
    return found


def fingerprint(described: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the facts."""
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]


def in_words(described: Mapping[str, Any]) -> str:
    """The facts in one line: 'AMD EPYC 7763, 4 cores, Linux x86_64, python 3.11, torch 2.13.0'."""
    words = [str(described[name]) for name in ("processor", "gpu") if described.get(name)]
    words += [f"{described['cores']} cores"] if "cores" in described else []
    words += [str(described["platform"])] if "platform" in described else []
    words += [f"python {described['python']}"] if described.get("python") else []
    return ", ".join([*words, *(f"{name} {value}" for name, value in described.get("versions", {}).items())])
