"""Crashes: what becomes of a subject whose process dies, hangs or takes all memory (lnverify.host).

A crash is a finding of LN606, with the case that did it. That case is not shrunk and not asked again. A law that met
three crashes looks at no further case; after three in a dtype, cases like those that crashed are left out (with an N,
or a number of rows, at which nothing was ever answered), and after eight the dtype ends: every crash costs the start of
a new process.
"""

from __future__ import annotations

from lnverify.case import Case
from lnverify.finding import Finding, Observation, Result
from lnverify.host import Crash, Host
from lnverify.law import Law, load_laws
from lnverify.subject import Capabilities
from lnverify.tally import finding
from lnverify.transcript import request_key, response_to_json

PER_LAW = 3
ALIKE_AFTER = 3
END_AFTER = 8
CAUSES = ("the process ", "the subject hangs", "the subject takes all memory")  # how a cause begins


class Watch:
    """The crashes of one examination, seen from outside the process."""

    def __init__(self, host: Host | None) -> None:
        """host: None where the subject runs in this process, and nothing can be watched."""
        self.host = host
        self.first = len(host.crashes) if host else 0
        self.by_law: dict[str, int] = {}
        self.answered: tuple[set[int], set[int]] = set(), set()

    @property
    def crashes(self) -> list[Crash]:
        """Those of this examination."""
        return self.host.crashes[self.first :] if self.host else []

    def trouble(self) -> int:
        """A number that changes whenever a request met a crash, a new one or one that is known."""
        return self.host.unanswered if self.host else 0

    def over(self) -> bool:
        """Whether the dtype ends here."""
        return len(self.crashes) >= END_AFTER

    def fine(self, case: Case) -> None:
        """Note a case that was answered."""
        self.answered[0].add(case.n)
        self.answered[1].add(case.rows)

    def alike(self, case: Case) -> bool:
        """Whether a case is left out: from the N (or rows) of the crashes on, or at it, nothing was ever answered."""
        crashes = [_case(crash) for crash in self.crashes]
        if len(crashes) < ALIKE_AFTER:
            return False
        for value, crashed, answered in (
            (case.n, {k.n for k in crashes}, self.answered[0]),
            (case.rows, {k.rows for k in crashes}, self.answered[1]),
        ):
            first = min(crashed)
            if (value >= first and max(answered, default=0) < first) or (value in crashed and value not in answered):
                return True
        return False

    def tired(self, law: Law) -> bool:
        """Whether a law has met crashes enough."""
        return self.by_law.get(law.id, 0) >= PER_LAW

    def blame(self, law: Law) -> None:
        """Count a crash in a law of its own requests."""
        self.by_law[law.id] = self.by_law.get(law.id, 0) + 1

    def findings(self, dtype: str, device: str, capabilities: Capabilities) -> list[Finding]:
        """One finding for each way of crashing: the smallest case and the largest."""
        by_cause: dict[str, list[Crash]] = {}
        for crash in self.crashes:
            by_cause.setdefault(cause(crash), []).append(crash)
        found = []
        for what, crashes in by_cause.items():
            crashes.sort(key=lambda crash: _case(crash).size)
            smallest, worst = (_observation(crash) for crash in (crashes[0], crashes[-1]))
            found.append(finding(_law(), what, smallest, worst, dtype, device, "crashed", capabilities))
        return found

    def results(self, results: list[Result], dtype: str, device: str) -> list[Result]:
        """The results, with LN606 crashed where there was a crash."""
        if not self.crashes:
            return results
        law, count = _law(), len(self.crashes)
        crashed = Result(law.id, law.name, law.severity, dtype, device, "crashed", float("inf"), count, count)
        return [*(r for r in results if r.law != law.id), crashed]


def cause(crash: Crash) -> str:
    """'the process died of SIGSEGV', without numbers that differ from case to case."""
    text = str(crash.response.refusal)
    for start, phrase in (("no answer", "the subject hangs"), ("the process takes", "the subject takes all memory")):
        if text.startswith(start):
            return phrase
    return text


def _law() -> Law:
    return load_laws()["LN606"]


def _case(crash: Crash) -> Case:
    """The request that crashed, as a case."""
    asked = crash.request
    return Case(
        operation=asked.operation, dtype=asked.arrays["x"].dtype, normalized_shape=asked.normalized_shape,
        arrays=asked.arrays, eps=asked.eps, requires_grad=asked.requires_grad, layouts=asked.layouts,
        train=asked.train, grad_mode=asked.grad_mode, create_graph=asked.create_graph, device=asked.device,
        threads=asked.threads, module_action=asked.module_action, history=asked.history, repeat=asked.repeat,
    )  # fmt: skip


def _observation(crash: Crash) -> Observation:
    """The answer as it was: it is not asked again."""
    wanted = ", ".join(crash.request.wanted)
    return Observation(
        case=_case(crash).to_json(), outputs={}, ratio=float("inf"), output=crash.request.wanted[0],
        message=f"Asked for {wanted}, the subject crashed: {crash.response.refusal}.",
        transcript=({"request": request_key(crash.request), "response": response_to_json(crash.response)},),
        said=crash.response.said(),
    )  # fmt: skip
