"""Runner: plan -> cases -> evaluations -> findings.

Each case is evaluated once, and every law judges it. Laws that run the subject several times look at a fixed
share of the cases. All budgets are counts, so that the same seed gives the same findings; a time limit only
ends a run early, and the report says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any
from zlib import crc32

from lnverify import environment
from lnverify.case import Case
from lnverify.errors import InternalError, LnverifyError
from lnverify.evaluation import Evaluation, Evaluator
from lnverify.expected import Stopwatch
from lnverify.finding import NO_BACKWARD, Finding, Observation, Report, Result
from lnverify.floats import canonical_dtype
from lnverify.law import Law, Outcome, select_laws
from lnverify.operation import operation as find_operation
from lnverify.profiles import Profile
from lnverify.profiles import profile as find_profile
from lnverify.shrink import Shrinker
from lnverify.strategies import grid, recipes, search, small, stream_seed, tall
from lnverify.subject import Subject, resolve
from lnverify.support import Support, find_support, ordinary, require_dtypes
from lnverify.tally import Tally, finding, generic
from lnverify.transcript import Recorder

DEFAULT_TARGET = "torch.nn.functional.layer_norm"
PAIR_EVERY = 8  # cases of which one is also measured in the tier `pair`
SLOW = 2.0  # seconds that one case may take by the warm-up's estimate; slower shapes are not examined
Progress = Callable[[int, int, str], None]


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
    max_examples: int | None = None
    fail_fast: bool = False
    deadline: float | None = None
    progress: Progress | None = None
    tallies: dict[str, Tally] = field(default_factory=dict)
    coverage: dict[str, set[Any]] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    pair_ratio: dict[str, float] = field(default_factory=dict)
    examples: int = 0
    index: int = 0

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.support.subject, self.stopwatch)
        self.tallies = {law.id: Tally(law) for law in self.laws}
        given = self.max_examples
        self.recipes = self.profile.recipes if given is None else given
        self.small = self.profile.small if given is None else given
        self.total = self.profile.blocks * 121 + self.recipes + self.small + 2

    def able(self, law: Law) -> bool:
        """Whether the law can look at this dtype and subject; notes the reason where not."""
        missing = [n for n in law.needs if n not in self.support.outputs]
        if missing:
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
        drawn = (
            ("recipes", recipes(self.support, self.profile), self.recipes),
            ("small", small(self.support), self.small),
        )
        for name, strategy, count in drawn:
            seed = stream_seed(self.seed, "layer_norm", name, self.support.dtype, self.support.device)
            search(strategy, self.examine, count, seed)

    def examine(self, case: Case, once: bool = False) -> float:
        """Let every law judge a case; the ratio of y, for the search to push up."""
        self.index += 1
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise StopExamination("time limit")
        if self.progress is not None:
            self.progress(self.index, self.total, self.support.dtype)
        if self.support.predicted(case.size) > SLOW:
            self.slow.add(f"{self.support.dtype}: N={case.n}, rows={case.rows}")
            return 0.0
        self.examples += 1
        evaluation = self.evaluator.evaluate(case)
        informative = False
        for law in self.active:
            if law.once != once and law.once:
                continue
            if not self._looks(law, case, once):
                continue
            outcome = judge(law, evaluation)
            self.tallies[law.id].add(case, outcome)
            informative |= outcome.informative and law.id in ("LN101", "LN201", "LN202", "LN203")
            if outcome.bad and law.severity == "error" and self.fail_fast:
                raise StopExamination("fail-fast")
        if informative:
            self._cover(case)
        if self.index % PAIR_EVERY == 0:
            self._quality(evaluation)
        return self._ratio(evaluation)

    def _looks(self, law: Law, case: Case, once: bool) -> bool:
        """Whether a law with a limit looks at this case: a fixed share of them, by the case's number."""
        if case.size > law.max_elements:
            return False
        if law.limit is None or once or law.once:
            return True
        stride = max(1, round(self.total / (law.limit * self.profile.effort)))
        return (self.index + crc32(law.id.encode())) % stride == 0

    def _cover(self, case: Case) -> None:
        affine = {(1, 1): "both", (1, 0): "weight", (0, 1): "bias", (0, 0): "none"}[
            int(case.has("weight")), int(case.has("bias"))
        ]
        for key, value in (("N", case.n), ("rows", case.rows), ("affine", affine), ("dtypes", case.dtype),
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
        found = []
        small: list[Case] = []
        order = {"error": 0, "warning": 1, "info": 2}
        for tally in sorted(self.tallies.values(), key=lambda t: order[t.law.severity]):
            for cause, violations in tally.named().items():
                check = self._check(tally.law)
                case, outcome = violations.first
                budget = self.profile.shrink
                for known in small:
                    again = check(known)
                    if again.bad and again.cause == cause:
                        case, outcome, budget = known, again, budget / 4
                        break
                smallest, why = Shrinker(check, budget, self.support.affine, cause).run(case, outcome)
                small.append(smallest)
                worst_case, worst = violations.worst
                found.append(finding(
                    tally.law, cause, self.observe(tally.law, smallest, why),
                    self.observe(tally.law, worst_case, worst), self.support.dtype, self.support.device, worst.state,
                    self.support.subject.capabilities,
                ))  # fmt: skip
        return found

    def _check(self, law: Law) -> Callable[[Case], Outcome]:
        def check(case: Case) -> Outcome:
            return judge(law, Evaluation(case, self.evaluator))

        return check

    def observe(self, law: Law, case: Case, outcome: Outcome) -> Observation:
        """Run the law once more on the case, recording every answer."""
        recorder = Recorder(self.support.subject)
        again = Evaluator(recorder.subject)
        evaluation = again.evaluate(case)
        repeated = judge(law, evaluation)
        if repeated.bad:
            outcome = repeated
        shown = outcome.case or case
        answer = again.evaluate(shown).response if shown is not case else evaluation.response
        outputs = {n: a.to_json(4096) for n, a in answer.arrays.items()}
        for name in (outcome.output,):
            if name in ("ty", "d2x", "d2weight", "d2bias", "d2dy"):
                extra = again.evaluate(shown).output(name)
                if extra is not None:
                    outputs[name] = extra.to_json(4096)
        return Observation(
            case=shown.to_json(), outputs=outputs, message=outcome.message, ratio=outcome.ratio,
            output=outcome.output, index=outcome.index, expected=outcome.expected, got=outcome.got,
            bound=outcome.bound, base=None if shown is case else case.to_json(), transcript=recorder.entries(),
        )  # fmt: skip


def judge(law: Law, evaluation: Evaluation) -> Outcome:
    """One law on one evaluation. A fault of the law itself is an InternalError that names law and case."""
    try:
        return law.check(evaluation)
    except LnverifyError:
        raise
    except Exception as error:
        label = evaluation.asked.label
        text = f"law {law.id} failed on a case of its own ({label}): {type(error).__name__}: {error}."
        raise InternalError(text) from error


def check(
    target: Any = DEFAULT_TARGET,
    *,
    operation: str = "layer_norm",
    dtypes: Iterable[str] | None = None,
    devices: Iterable[str] | None = None,
    profile: str = "quick",
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    strict: bool = False,
    fail_fast: bool = False,
    seed: int = 0,
    max_examples: int | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check an implementation and report what holds and what does not.

    target: a target string, a callable, a module class or instance, or a Subject. dtypes: names, default all
    that the subject supports. devices: default ('cpu',). profile: quick, ci or deep. select, ignore: law ids,
    prefixes or names. strict: warnings count as violations. fail_fast: stop at the first error. seed: of what
    Hypothesis draws (the grid is fixed). max_examples: Hypothesis examples per strategy. time_limit: seconds.
    Raises UsageError, TargetError, FrameworkError or SignatureError for what the caller can mend.
    """
    started = time.monotonic()
    find_operation(operation)
    settings = find_profile(profile)
    wanted = tuple(canonical_dtype(d) for d in dtypes) if dtypes is not None else None
    laws = [law for law in select_laws(_names(select), _names(ignore)) if law.operation == operation]
    places = tuple(devices) if devices is not None else ("cpu",)
    subject = target if isinstance(target, Subject) else resolve(target, operation=operation, device=places[0])
    report = Report(subject.target, operation, profile, seed, strict, environment=environment.describe(subject))
    stopwatch = Stopwatch()
    coverage: dict[str, set[Any]] = {}
    vacuous: dict[str, int] = {}
    pair: dict[str, dict[str, float]] = {}
    not_supported: list[str] = []
    backwards: list[str] = []
    slow: set[str] = set()
    deadline = None if time_limit is None else started + time_limit
    try:
        for device in places:
            for dtype in require_dtypes(subject, wanted):
                support = find_support(subject, dtype, device)
                if isinstance(support, str):
                    not_supported.append(support)
                    continue
                not_supported += support.refused
                exam = Examination(
                    support, laws, settings, seed, stopwatch, max_examples, fail_fast, deadline, progress
                )
                try:
                    exam.run()
                except (StopExamination, KeyboardInterrupt) as stop:
                    report.stopped = str(stop) or "interrupted"
                report.findings += exam.findings()
                report.results += [t.result(dtype, device) for t in exam.tallies.values()]
                report.examples += exam.examples
                backwards.append(support.backward)
                if exam.pair_ratio:
                    pair[dtype] = {name: round(value, 4) for name, value in exam.pair_ratio.items()}
                slow |= exam.slow
                for key, values in exam.coverage.items():
                    coverage.setdefault(key, set()).update(values)
                for tally in exam.tallies.values():
                    vacuous[tally.law.id] = vacuous.get(tally.law.id, 0) + tally.vacuous
                if report.stopped:
                    break
            if report.stopped:
                break
    except KeyboardInterrupt:
        report.stopped = "interrupted"
    if backwards and all(backwards):
        report.results = [_undecided(result, backwards[0]) for result in report.results]
    report.findings = sort_findings(gather(report.findings))
    report.coverage = {key: sorted(values) for key, values in sorted(coverage.items())}
    report.coverage |= {
        "not_supported": _merged(not_supported),
        "not_examined": sorted(slow),
        "vacuous": {law: count for law, count in sorted(vacuous.items()) if count},
        "pair_ratio": pair,
    }
    report.seconds = time.monotonic() - started
    report.stages = {**stopwatch.seconds}
    report.stages["rest"] = max(report.seconds - sum(stopwatch.seconds.values()), 0.0)
    return report


def _undecided(result: Result, refusal: str) -> Result:
    """LN204 of a subject whose backward raises in every dtype: nothing is known of its gradients."""
    if result.law != "LN204" or result.verdict != "inapplicable":
        return result
    return replace(result, verdict="inconclusive", reason=f"{NO_BACKWARD} ({refusal})")


FORWARD = ("LN101", "LN104", "LN105", "LN106")
ROWS = ("LN601", "LN605")


def gather(findings: list[Finding]) -> list[Finding]:
    """Give consequences the cause that they follow from, dtype by dtype.

    Where y is wrong, moments, invariances and gradients whose own laws name no mechanism follow from it. The
    leading cause is a mechanism that explains y, else rows that mix, else that y is wrong.
    """
    leading: dict[str, str] = {}
    for dtype in {f.dtype for f in findings}:
        errors = [f for f in findings if f.dtype == dtype and f.severity == "error"]
        forward = [f.cause for f in errors if f.law in FORWARD]
        rows = [f.cause for f in errors if f.law in ROWS]
        named = [c for c in forward if not generic(c)] or (rows if forward else []) or forward
        if named:
            leading[dtype] = named[0]

    def cause(f: Finding) -> str:
        follows = f.severity == "error" and (generic(f.cause) or f.law.startswith(("LN3", "LN4", *ROWS)))
        return leading[f.dtype] if follows and f.dtype in leading else f.cause

    return [replace(f, cause=cause(f)) for f in findings]


def sort_findings(findings: list[Finding]) -> list[Finding]:
    """Errors first, then by law and dtype."""
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(findings, key=lambda f: (order[f.severity], f.law, f.dtype, f.cause))


def _names(given: Iterable[str] | str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else [p for item in given for p in item.split(",")]
    return tuple(p.strip() for p in parts if p.strip())


def _merged(sentences: list[str]) -> list[str]:
    """'float32: x' and 'bfloat16: x' as 'float32, bfloat16: x'."""
    by_text: dict[str, list[str]] = {}
    for sentence in sentences:
        head, colon, rest = sentence.partition(": ")
        by_text.setdefault(rest if colon else sentence, []).append(head)
    return [
        f"{', '.join(dict.fromkeys(heads))}: {text}" if text not in heads else text for text, heads in by_text.items()
    ]
