"""Machine: the hardware that a number depends on, as a fingerprint, and the software on it, in words.

Both are in the key of a series, so that numbers are compared only where both are the same; on a page the series of one
machine stand together, whatever ran on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Not the clock rate, the host's name, the load or the kernel: they change from run to run, and each would make
# another machine of the same one.
FACTS = ("processor", "cores", "platform", "accelerator")


def facts(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What the fingerprint is made of, from the environment of a report or the machine of a bench file."""
    return {name: environment[name] for name in FACTS if environment.get(name) not in (None, "")}


def fingerprint(described: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the facts."""
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]


def in_words(described: Mapping[str, Any]) -> str:
    """The facts in one line: 'AMD EPYC 7763, 4 cores, Linux x86_64'."""
    words = {"cores": "{} cores"}
    return ", ".join(words.get(name, "{}").format(described[name]) for name in FACTS if name in described)


def software(environment: Mapping[str, Any]) -> str:
    """Versions in one line: 'python 3.11, hypothesis 6.170.17, numpy 2.4.6, torch 2.13.0'.

    Python without its patch level, which changes no number. Hypothesis draws the cases of a report.
    """
    python = ".".join(str(environment.get("python", "")).split(".")[:2])
    versions = sorted(environment.get("versions", {}).items())
    return ", ".join(f"{name} {version}" for name, version in [("python", python), *versions] if version)
