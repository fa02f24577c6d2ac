"""Judgement: one output of one evaluation against its bound, and the sentence that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lnverify.law import INAPPLICABLE, Outcome

if TYPE_CHECKING:
    from lnverify.case import Case

ROW_OUTPUTS = ("y", "dx", "ty", "d2x", "d2dy", "tty", "rty", "fdx", "d3x")  # shape of x
ALONE = ("ty", "tty", "rty", "fdx", "d3x")  # derivatives that are asked for one by one
COLUMN_OUTPUTS = ("dweight", "dbias", "d2weight", "d2bias")  # shape of a parameter
WRONG = ("violated", "missing", "shape")
PLAIN = {
    "ty": "the jvp's tangent of y", "tcy": "the jvp's tangent of cy",
    "tty": "the tangent of the jvp's tangent", "rty": "the gradient of <dy, jvp>",
    "fdx": "the jvp of dx", "d3x": "the third derivative",
}  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """One output against its bound. state: holds, violated, vacuous, unjudged (range), missing, refused, shape.

    ratio: the largest error over bound; index, expected, got, bound: where it is; ulps: the largest error of
    a judged element in ulps of the output; range_note: what happened in rows that are not judged, or ''.
    """

    output: str
    state: str
    ratio: float = 0.0
    index: tuple[int, ...] = ()
    expected: float | None = None
    got: float | None = None
    bound: float | None = None
    ulps: float = 0.0
    range_note: str = ""
    message: str = ""

    def outcome(self, cause: str, message: str | None = None, violated: bool | None = None) -> Outcome:
        """The Outcome of a law that takes this judgement as it is."""
        bad = self.state == "violated" if violated is None else violated
        if self.state in ("refused", "missing", "shape", "unjudged"):
            return INAPPLICABLE
        if self.state == "vacuous" and not bad:
            return Outcome("vacuous", self.ratio, self.output)
        return Outcome(
            "violated" if bad else "holds",
            # beyond the bound and still no violation: another law says so (rounding points, last place)
            self.ratio if bad else min(self.ratio, 1.0),
            self.output,
            self.index,
            (message or self.sentence()) if bad else "",
            cause if bad else "",
            self.expected,
            self.got,
            self.bound,
        )

    @property
    def wrong(self) -> bool:
        """Beyond the bound, or not there at all, or of another shape."""
        return self.state in WRONG

    def blame(self, what: str, cause: str, case: Case) -> Outcome:
        """The violation of a law that asks in another way than plainly. what: in which; case: the one that shows it."""
        told = self.sentence() if self.state == "violated" else self.message or f"{self.output} is missing."
        ratio = self.ratio if self.state == "violated" else float("inf")
        return Outcome("violated", ratio, self.output, self.index, f"{what}: {told}", cause, self.expected, self.got,
                       self.bound, case)  # fmt: skip

    def sentence(self) -> str:
        """'y differs from the exact value by 41 ulp at [3, 7], 8.2 times the bound.'"""
        where = "[" + ", ".join(map(str, self.index)) + "]" if self.index else ""
        name = PLAIN.get(self.output, self.output)
        if self.got is None or self.expected is None:
            return f"{name}: {self.state}."
        if self.got != self.got:
            return f"{name}{where} is NaN where {self.expected:.9g} is right."
        return (
            f"{name}{where} is {self.got:.9g}, exact {self.expected:.9g}: "
            f"{self.ratio:.3g} times what any summation order may deviate."
        )
