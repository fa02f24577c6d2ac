"""Examination: one subject in one dtype on one device; every law judges a stream of cases.

Each case is evaluated once, and every law judges it. Laws that run the subject several times look at a fixed
share of the cases. All budgets are counts, so that the same seed gives the same findings; a time limit only
ends a run early, and the report says so.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any
from zlib import crc32

from lnverify import huge
from lnverify.case import Case
from lnverify.crashes import Watch
from lnverify.edges import Screen, deep, edge, sizes
from lnverify.errors import InternalError, LnverifyError
from lnverify.evaluation import Evaluation, Evaluator
from lnverify.finding import Finding, Observation, Result
from lnverify.law import INAPPLICABLE, Law, Outcome
from lnverify.profiles import Profile
from lnverify.protocol import NOT_IMPLEMENTED, OUT_OF_MEMORY
from lnverify.shrink import Shrinker
from lnverify.strategies import grid, recipes, search, small, stream_seed, tall
from lnverify.support import SLOW, Support, ordinary
from lnverify.tally import Tally, finding
from lnverify.transcript import Recorder
from lnverify.yardstick import Stopwatch

WRONG_EDGES = 3  # sizes at which an output fails the screen; from then on the laws have cases enough
PAIR_EVERY = 8  # cases of which one is also measured in the tier `pair`
GONE = "Asked once more, the subject was right: it depends on what ran before."
MANY_ROWS = 8.0  # seconds that very many rows may take by what fewer took
ANSWERS = "LN606"
TOO_SLOW = f"over {SLOW:g} s by the warm-up's estimate"
Progress = Callable[[int, int, str], None]


class EndDtype(Exception):  # noqa: N818 - no error: it ends one dtype early
    """Ends an examination early and lets the run go on; its text is listed as not examined."""


class StopExamination(Exception):  # noqa: N818 - no error: it ends a run early
    """Ends a run early; its text is the report's `stopped`."""


@dataclass
class Examination:
    """One dtype on one device: the laws' tallies over a stream of cases."""

    support: Support
    laws: list[Law]
    profile: Profile
    seed: int
    stopwatch: Stopwatch
    watch: Watch
    max_examples: int | None = None
    fail_fast: bool = False
    deadline: float | None = None
    progress: Progress | None = None
    huge: bool = False
    tallies: dict[str, Tally] = field(default_factory=dict)
    coverage: dict[str, set[Any]] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    pair_ratio: dict[str, float] = field(default_factory=dict)
    examples: int = 0
    screened: int = 0
    index: int = 0

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.support.subject, self.stopwatch)
        self.tallies = {law.id: Tally(law) for law in self.laws}
        given = self.max_examples
        self.recipes = self.profile.recipes if given is None else given
        self.small = self.profile.small if given is None else given
        self.total = self.profile.blocks * 121 + self.recipes + self.small + 3

    def able(self, law: Law) -> bool:
        """Whether the law can look at this dtype and subject; notes the reason where not."""
        declared = self.support.subject.capabilities
        missing = [n for n in law.needs if n not in self.support.outputs]
        undeclared = [n for n in missing if getattr(declared, n, None) is False]
        missing = [n for n in missing if not getattr(declared, n, False)]
        if undeclared:
            self.tallies[law.id].reason = f"the subject does not declare {', '.join(undeclared)}"
        elif missing:
            self.tallies[law.id].reason = f"the subject has no {', '.join(missing)}"
        elif law.dtypes is not None and self.support.dtype not in law.dtypes:
            self.tallies[law.id].reason = f"{self.support.dtype} cannot inform it"
        return not missing and (law.dtypes is None or self.support.dtype in law.dtypes)

    def run(self) -> None:
        """Examine the ordinary input, the grid, then what Hypothesis draws."""
        self.active = [law for law in self.laws if self.able(law)]
        first = ordinary(self.support.subject, self.support.dtype, self.support.device, self.support.affine[0])
        self.examine(first, once=True)
        for case in chain(grid(self.support, self.profile), tall(self.support, self.profile)):
            self.examine(case)
        self._edges()
        self._huge()
        drawn = (
            ("recipes", recipes(self.support, self.profile), self.recipes),
            ("small", small(self.support), self.small),
        )
        for name, strategy, count in drawn:
            seed = stream_seed(self.seed, "layer_norm", name, self.support.dtype, self.support.device)
            search(strategy, self.examine, count, seed)

    def _edges(self) -> None:
        """Screen the sizes at which kernels change paths, and examine what fails: three times for each output."""
        fixed = self.support.subject.capabilities.fixed_shape
        if fixed is not None or not self.active:
            return
        screen = Screen(self.support, self.evaluator)
        wrong: Counter[str] = Counter()
        slow: list[str] = []
        threads = self.support.subject.capabilities.threads or (1, 2, 3)
        for number, (n, rows) in enumerate(sizes(self.profile)):
            self._pause(self.index)
            if wrong["answer"] >= WRONG_EDGES:
                continue
            if self.support.predicted(n * rows, rows) > SLOW:
                slow.append(f"N={n}, rows={rows}")
                continue
            self._screen(screen, edge(self.support, n, rows, threads[number % len(threads)]), wrong)
        for case in deep(self.support, self.profile, threads[0]):
            if self.support.predicted(case.size, case.rows) > SLOW:
                slow.append(f"N={case.n}, rows={case.rows}")
            elif wrong["answer"] < WRONG_EDGES:
                self._screen(screen, case, wrong)
        if slow:
            more = f" and {len(slow) - 1} more pairs" if len(slow) > 1 else ""
            self.slow.add(f"{self.support.dtype}: {slow[0]}{more} ({TOO_SLOW})")

    def _screen(self, screen: Screen, case: Case, wrong: Counter[str]) -> None:
        """Screen one case, and examine it where it fails."""
        if self.watch.alike(case):
            return
        self.screened += 1
        failed = screen.failing(case, {output for output, times in wrong.items() if times >= WRONG_EDGES})
        if failed:
            wrong[failed] += 1
            self.examine(case)
        else:
            self._cover(case)

    def _huge(self) -> None:
        """Let LN610 look at a few rows repeated to very many."""
        law = next((law for law in self.active if law.id == "LN610"), None)
        if law is None or self.support.subject.capabilities.fixed_shape is not None:
            return
        rows, taken = 0, 0.0
        for case in huge.cases(self.support, self.huge):
            self._pause(self.index)
            if rows and taken * case.repeat / rows > MANY_ROWS:  # a loop over rows
                self.slow.add(f"{case.dtype}: {case.repeat:,} rows ({rows:,} took {taken:.1f} s)")
                continue
            limit = self.watch.host.limits.memory if self.watch.host else math.inf
            if not case.device.startswith("cuda") and huge.memory(case) > limit:
                need = f"{huge.memory(case) / 2**30:.0f} GiB, --memory is {limit / 2**30:.0f} GiB"
                self.slow.add(f"{case.dtype}: {case.repeat * case.n:,} elements ({need})")
                continue
            evaluation = Evaluation(case, self.evaluator)
            before, spent = self.watch.trouble(), self.stopwatch.seconds["subject"]
            outcome = judge(law, evaluation)
            rows, taken = case.repeat, self.stopwatch.seconds["subject"] - spent
            if self._crashed(before):
                self.watch.blame(law)
                continue
            self.tallies[law.id].add(case, outcome)
            refusal = evaluation.ask("y").refusal or ""
            if refusal.startswith(OUT_OF_MEMORY):
                self.slow.add(f"{self.support.dtype}: {case.repeat * case.n:,} elements ({refusal.partition(': ')[2]})")
            if outcome.bad and self.fail_fast:
                raise StopExamination("fail-fast")

    def _pause(self, done: int) -> None:
        """Show how far it is, and end the run where its time is over."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise StopExamination("time limit")
        if self.progress is not None:
            self.progress(done, self.total, self.support.dtype)

    def examine(self, case: Case, once: bool = False) -> float:
        """Let every law judge a case; the ratio of y, for the search to push up."""
        self.index += 1
        self._pause(self.index)
        slow = self.support.predicted(case.size, case.rows) > SLOW
        if slow or self.watch.alike(case):
            why = TOO_SLOW if slow else "like one that crashed"
            self.slow.add(f"{self.support.dtype}: N={case.n}, rows={case.rows} ({why})")
            return 0.0
        self.examples += 1
        evaluation = self.evaluator.evaluate(case)
        informative = False
        if self.watch.host is not None:
            before = self.watch.trouble()
            _ = evaluation.response
            if self._crashed(before):
                return 0.0
            self.watch.fine(case)
        if (evaluation.response.refusal or "").startswith(NOT_IMPLEMENTED):
            self.slow.add(f"{self.support.dtype}: N={case.n}, rows={case.rows} (refused: {NOT_IMPLEMENTED})")
            return 0.0
        for law in self.active:
            if law.once != once and law.once:
                continue
            if not self._looks(law, case, once) or self.watch.tired(law):
                continue
            before = self.watch.trouble()
            outcome = judge(law, evaluation)
            if self._crashed(before):
                self.watch.blame(law)
                continue
            self.tallies[law.id].add(case, outcome)
            informative |= self._covers(law, outcome)
            if outcome.bad and law.severity == "error" and self.fail_fast:
                raise StopExamination("fail-fast")
        if informative:
            self._cover(case)
        if self.index % PAIR_EVERY == 0:
            self._quality(evaluation)
        return self._ratio(evaluation)

    def _crashed(self, before: int) -> bool:
        """Whether a request met a crash since `before`; ends the dtype where there were too many."""
        if self.watch.trouble() == before:
            return False
        if self.fail_fast:
            raise StopExamination("fail-fast")
        if self.watch.over():
            raise EndDtype(f"{self.support.dtype}: the rest, after {len(self.watch.crashes)} crashes")
        return True

    def _looks(self, law: Law, case: Case, once: bool) -> bool:
        """Whether a law with a limit looks at this case: a fixed share of them, by the case's number."""
        if case.size > law.max_elements:
            return False
        if law.limit is None or once or law.once:
            return True
        stride = max(1, round(self.total / (law.limit * self.profile.effort)))
        if (self.index + crc32(law.id.encode())) % stride == 0:
            return True
        # Any step through the grid leaves one of its factors at one level, dy say: half as many cases without a step.
        window, place = divmod(self.index, 2 * stride)
        return crc32(f"{law.id} {window}".encode()) % (2 * stride) == place

    def _covers(self, law: Law, outcome: Outcome) -> bool:
        """Whether this outcome makes a case one that informed."""
        return outcome.informative and law.id in ("LN101", "LN201", "LN202", "LN203")

    def _cover(self, case: Case) -> None:
        for key, value in (("N", case.n), ("rows", case.rows), ("affine", case.affine), ("dtypes", case.dtype),
                           ("requires_grad", "+".join(case.requires_grad))):  # fmt: skip
            self.coverage.setdefault(key, set()).add(value)

    def _quality(self, evaluation: Evaluation) -> None:
        """Keep the largest error over the bound that pairwise summation attains: reported, it decides nothing."""
        for output in ("y", "dx", "dweight", "dbias"):
            if (output, "det", False) in evaluation.judged:
                ratio = evaluation.judge(output, "pair").ratio
                if ratio == ratio and ratio < float("inf"):
                    self.pair_ratio[output] = max(self.pair_ratio.get(output, 0.0), float(ratio))

    def _ratio(self, evaluation: Evaluation) -> float:
        best = 0.0
        for output in ("y", "dx", "dweight", "dbias"):
            if (output, "det", False) in evaluation.judged:
                best = max(best, evaluation.judged[output, "det", False].ratio)
        return min(best, 1e9) if best == best else 1e9

    # Findings

    def findings(self) -> list[Finding]:
        """Shrink the violations of every law, by cause; a small case that another law found is tried first."""
        found = self.watch.findings(self.support.dtype, self.support.device, self.support.subject.capabilities)
        small: list[Case] = []
        order = {"error": 0, "warning": 1, "info": 2}
        for tally in sorted(self.tallies.values(), key=lambda t: order[t.law.severity]):
            for cause, violations in tally.named().items():
                check = self._check(tally.law)
                case, outcome = violations.first
                budget = self.profile.shrink / tally.law.runs
                for known in small:
                    again = check(known)
                    if again.bad and again.cause == cause:
                        case, outcome, budget = known, again, budget / 4
                        break
                smallest, why = self._shrunk(tally.law, check, budget, cause, case, outcome)
                small.append(smallest)
                worst_case, worst = violations.worst
                found.append(finding(
                    tally.law, cause, self.observe(tally.law, smallest, why),
                    self.observe(tally.law, worst_case, worst), self.support.dtype, self.support.device, worst.state,
                    self.support.subject.capabilities,
                ))  # fmt: skip
        return found

    def _shrunk(
        self, law: Law, check: Callable[[Case], Outcome], budget: float, cause: str, case: Case, outcome: Outcome
    ) -> tuple[Case, Outcome]:
        """The smallest case; a law that looks at one ordinary case makes cases of its own, and is left as it is."""
        if law.once or case.repeat:
            return case, outcome
        return Shrinker(check, budget, self.support.affine, cause, self.support.eps).run(case, outcome)

    def results(self) -> list[Result]:
        """One result for each law."""
        dtype, device = self.support.dtype, self.support.device
        return self.watch.results([t.result(dtype, device) for t in self.tallies.values()], dtype, device)

    def _check(self, law: Law) -> Callable[[Case], Outcome]:
        def check(case: Case) -> Outcome:
            if self.watch.over():
                return INAPPLICABLE
            before = self.watch.trouble()
            outcome = judge(law, Evaluation(case, self.evaluator))
            return outcome if self.watch.trouble() == before else INAPPLICABLE  # a crash is a finding of its own

        return check

    def observe(self, law: Law, case: Case, outcome: Outcome) -> Observation:
        """Run the law once more on the case, recording every answer."""
        recorder = Recorder(self.support.subject)
        again = Evaluator(recorder.subject)
        evaluation = again.evaluate(case)
        repeated = judge(law, evaluation)
        if repeated.bad:
            outcome = repeated
        else:
            outcome = replace(outcome, message=f"{outcome.message} {GONE}")
        shown = outcome.case or case
        answer = again.evaluate(shown).response if shown is not case else evaluation.response
        outputs = {n: a.to_json(4096) for n, a in answer.arrays.items()}
        name = outcome.output
        if name not in outputs and (extra := again.evaluate(shown).output(name)) is not None:
            outputs[name] = extra.to_json(4096)
        return Observation(
            case=shown.to_json(), outputs=outputs, message=outcome.message, ratio=outcome.ratio,
            output=outcome.output, index=outcome.index, expected=outcome.expected, got=outcome.got,
            bound=outcome.bound, base=None if shown is case else case.to_json(),
            transcript=recorder.entries() if repeated.bad else (),
            said=answer.said(),
        )  # fmt: skip


def judge(law: Law, evaluation: Evaluation) -> Outcome:
    """One law on one evaluation. A fault of the law itself is an InternalError that names law and case.

    A layer norm that refuses the case itself refuses it in every other setting: LN606 says so, and no other law.
    """
    try:
        outcome = law.check(evaluation)
        follows = outcome.state == "crashed" and law.operation == "layer_norm" and law.id != ANSWERS
        return INAPPLICABLE if follows and evaluation.response.refusal is not None else outcome
    except LnverifyError:
        raise
    except Exception as error:
        label = evaluation.asked.label
        text = f"law {law.id} failed on a case of its own ({label}): {type(error).__name__}: {error}."
        raise InternalError(text) from error
