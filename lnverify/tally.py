"""Tally: what one law has said so far in one dtype, and the findings that come of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from lnverify.case import Case
from lnverify.finding import Finding, Observation, Result
from lnverify.law import Law, Outcome
from lnverify.shrink import preference
from lnverify.subject import Capabilities

GENERIC = ("is wrong", "the double backward is wrong")  # how a cause begins or ends that names no mechanism
CAUSES_KEPT = 3


def generic(cause: str) -> bool:
    """Whether a cause only says what is wrong, and not why."""
    return cause.endswith(GENERIC) or cause.startswith(GENERIC)


def _off(outcome: Outcome) -> float:
    """How far off the worst element is: it tells cases apart where nothing at all is admitted."""
    if outcome.got is None or outcome.expected is None:
        return 0.0
    off = abs(outcome.got - outcome.expected)
    return off if off == off else float("inf")


@dataclass
class Violations:
    """Violations with one cause: the cheapest case to shrink from and the worst."""

    first: tuple[Case, Outcome]
    worst: tuple[Case, Outcome]
    count: int = 1

    def add(self, case: Case, outcome: Outcome) -> None:
        """Keep the cheapest and the worst."""
        self.count += 1
        if preference(case) < preference(self.first[0]):
            self.first = case, outcome
        if (outcome.ratio, _off(outcome)) > (self.worst[1].ratio, _off(self.worst[1])):
            self.worst = case, outcome


@dataclass
class Tally:
    """Counts of one law in one dtype, and its violations by cause."""

    law: Law
    examples: int = 0
    informative: int = 0
    vacuous: int = 0
    worst_ratio: float = 0.0
    violations: dict[str, Violations] = field(default_factory=dict)
    reason: str = ""

    def add(self, case: Case, outcome: Outcome) -> None:
        """Count one outcome."""
        if outcome.state == "inapplicable":
            return
        self.examples += 1
        self.informative += outcome.informative
        self.vacuous += outcome.state == "vacuous"
        # beyond the bound and no violation: a rounding point or a last place, which has a law of its own
        self.worst_ratio = max(self.worst_ratio, outcome.ratio if outcome.bad else min(outcome.ratio, 1.0))
        if outcome.bad:
            known = self.violations.get(outcome.cause)
            if known is None:
                self.violations[outcome.cause] = Violations((case, outcome), (case, outcome))
            else:
                known.add(case, outcome)

    def named(self) -> dict[str, Violations]:
        """Violations by cause: the most frequent causes, generic ones only where no mechanism is named.

        A refusal is no mechanism: it does not stand for what is wrong where there is an answer.
        """
        named = {c: v for c, v in self.violations.items() if not generic(c)}
        explained = any(v.worst[1].state != "crashed" for v in named.values())
        found = named if explained else self.violations
        kept = sorted(found.items(), key=lambda item: -item[1].count)[:CAUSES_KEPT]
        return dict(kept)

    def result(self, dtype: str, device: str) -> Result:
        """The Result of this law."""
        if self.violations:
            crashed = all(v.worst[1].state == "crashed" for v in self.violations.values())
            verdict = "crashed" if crashed else "violated"
        elif self.examples == 0:
            verdict = "inapplicable"
        elif self.informative < self.law.minimum:
            verdict = "inconclusive"
        else:
            verdict = "holds"
        reason = self.reason or ("no case of this run is of its kind" if verdict == "inapplicable" else "")
        if verdict == "inconclusive":
            reason = f"{self.informative} of {self.examples} cases were informative, {self.law.minimum} are needed"
        return Result(
            self.law.id, self.law.name, self.law.severity, dtype, device, verdict, self.worst_ratio,
            self.examples, self.informative, reason,
        )  # fmt: skip


def finding(
    law: Law, cause: str, smallest: Observation, worst: Observation, dtype: str, device: str, state: str,
    capabilities: Capabilities,
) -> Finding:  # fmt: skip
    """A Finding of a law."""
    return Finding(
        law=law.id, name=law.name, severity=law.severity, operation=law.operation, dtype=dtype, device=device,
        verdict=state, cause=cause, message=smallest.message, worst_ratio=worst.ratio, smallest=smallest,
        worst=worst, capabilities=asdict(capabilities),
    )  # fmt: skip
