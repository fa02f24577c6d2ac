"""Examination of a norm other than layer norm: its own cases and its own way to make them smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.examination import Examination
from lnverify.law import Law, Outcome
from lnverify.norm_shrink import NormShrinker
from lnverify.norms.cases import cases
from lnverify.norms.views import view

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

    def _shrunk(
        self, law: Law, check: Callable[[Case], Outcome], budget: float, cause: str, case: Case, outcome: Outcome
    ) -> tuple[Case, Outcome]:
        return NormShrinker(check, budget, self.support.affine, cause, self.support.eps).run(case, outcome)
