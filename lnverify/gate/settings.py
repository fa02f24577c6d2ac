"""Settings: how both sides of a gate are made. They are stored in the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lnverify.timing.job import Job
from lnverify.timing.paths import GATE_SHAPES, paths
from lnverify.timing.rounds import Budget

# Of one run on one thread, so that a seed gives the same figures whatever the load: what `lnverify check` looks at
# besides (modules, threads, memory, higher derivatives) has no accuracy to compare.
LAWS = ("LN1", "LN201", "LN202", "LN203", "LN205", "LN206", "LN3", "LN4", "LN5", "LN6")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Settings:
    """profile, select, seed: of the cases (lnverify.runner.check). dtypes, device, threads: of cases and hot paths.

    shapes: of the hot paths. against: the target that times are ratios to. seconds: for a path in a process.
    """

    target: str
    against: str
    dtypes: tuple[str, ...] = DTYPES
    shapes: tuple[tuple[int, ...], ...] = GATE_SHAPES
    select: tuple[str, ...] = LAWS
    profile: str = "gate"
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    seconds: float = 0.4

    def job(self, **changes: Any) -> Job:
        """The timing of all hot paths."""
        wanted = tuple(paths(self.shapes, self.dtypes, device=self.device))
        given = {"against": self.against, "threads": self.threads, "budget": Budget(self.seconds), **changes}
        return Job(self.target, wanted, **given)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """Inverse of to_json, after JSON. Raises KeyError, TypeError or ValueError for what is none."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        plain["shapes"] = tuple(tuple(int(n) for n in shape) for shape in data["shapes"])
        return cls(**plain)
