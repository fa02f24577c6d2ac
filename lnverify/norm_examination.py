"""Examination of a norm other than layer norm: its own cases and its own way to make them smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.examination import Examination
from lnverify.finding import Result
from lnverify.floats import FORMATS
from lnverify.law import INAPPLICABLE, Law, Outcome
from lnverify.norm_shrink import NormShrinker
from lnverify.norms.cases import cases, fits
from lnverify.norms.views import view
from lnverify.operation import blocks, cells

FIXED = 192  # cases of one block; the levels of lnverify.norms.cases have met in most pairs by then


@dataclass
class NormExamination(Examination):
    """One dtype on one device of one operation."""

    operation: str = "rms_norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.total = FIXED * self.profile.blocks + self.recipes

    def run(self) -> None:
        """Examine the fixed list, then more cases, which the seed chooses."""
        self.active = [law for law in self.laws if self.able(law)]
        for case in cases(self.support, self.operation, FIXED * self.profile.blocks, 0):
            self.examine(case)
        for case in cases(self.support, self.operation, self.recipes, self.seed + 1):
            self.examine(case)

    def _cover(self, case: Case) -> None:
        seen = view(case)
        for key, value in (("N", seen.n), ("rows", seen.groups), ("affine", case.affine), ("dtypes", case.dtype),
                           ("requires_grad", "+".join(case.requires_grad))):  # fmt: skip
            self.coverage.setdefault(key, set()).add(value)

    def _covers(self, law: Law, outcome: Outcome) -> bool:
        return outcome.informative

    def _quality(self, evaluation: Evaluation) -> None:
        """Nothing: the tier `pair` belongs to the closed forms of layer norm."""

    def results(self) -> list[Result]:
        """One result for each law; what 16 bits cannot inform is inapplicable (lnverify.norms.cells)."""
        found = super().results()
        dtype = self.support.dtype
        coarse = FORMATS[dtype].precision <= 11 and dtype not in self.support.subject.capabilities.compute
        if not coarse or self.operation not in cells() + blocks():
            return found
        reason = f"behind norms nothing informs it in {dtype}: declare what the subject computes in, compute=float32"
        return [
            replace(result, verdict="inapplicable", reason=reason)
            if result.verdict == "inconclusive" and result.informative == 0
            else result
            for result in found
        ]

    def _shrunk(
        self, law: Law, check: Callable[[Case], Outcome], budget: float, cause: str, case: Case, outcome: Outcome
    ) -> tuple[Case, Outcome]:
        fixed = self.support.subject.capabilities.fixed_shape

        def able(candidate: Case) -> Outcome:
            return check(candidate) if fixed is None or fits(candidate, fixed) else INAPPLICABLE

        return NormShrinker(able, budget, self.support.affine, cause, self.support.eps).run(case, outcome)
