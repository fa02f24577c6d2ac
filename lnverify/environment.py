"""What a run depended on beside its input: versions, processor, threads."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

from lnverify.subject import Subject


def describe(subject: Subject) -> dict[str, Any]:
    """Versions of lnverify, Python, NumPy, Hypothesis and the framework; processor; how the subject is called."""
    versions = {name: metadata.version(name) for name in ("numpy", "hypothesis")}
    try:
        own = metadata.version("lnverify")
    except metadata.PackageNotFoundError:  # a bare checkout
        own = "0+checkout"
    return {
        "lnverify": own,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "versions": {**versions, **subject.versions},
        "byteorder": sys.byteorder,
        "framework": subject.framework,
        "call_text": subject.call_text,
    }


def processor() -> str:
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
