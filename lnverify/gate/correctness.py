"""Correctness and accuracy: what newly violates a law, and what lost accuracy without violating one."""

from __future__ import annotations

from collections.abc import Iterator

from lnverify.gate.examined import Examined, least
from lnverify.gate.row import Row

BAD = ("violated", "crashed")
GROWTH = 2.0  # a change of the summation that halves the accuracy is one that people want to know of


def compare(was: Examined, now: Examined) -> Iterator[Row]:
    """New violations, those that are mended, what can no longer be told; one row that sums up the rest."""
    if now.lost or was.lost:
        said = now.lost or f"of the base: {was.lost}"
        yield Row("correctness", "all laws", "", "", "", f"{said}; see `lnverify check`", "unsure")
        return
    known = same = 0
    for key, verdict in sorted(now.verdicts.items()):
        before, name = was.verdicts.get(key), " ".join(key)
        if verdict in BAD:
            if before in BAD or key in now.expected:
                known += 1
            elif before is None:
                yield Row("correctness", name, "not in the baseline", verdict, now.causes.get(key, ""),
                          "another version of lnverify, or other dtypes: update the baseline", "unsure")  # fmt: skip
            else:
                yield Row("correctness", name, before, verdict, now.causes.get(key, ""), "the bound is proven", "worse")
        elif before in BAD:
            yield Row("correctness", name, before, verdict, "mended", "the same cases", "better")
        elif verdict == "inconclusive" and before == "holds":
            yield Row("correctness", name, before, verdict, "", "too few cases informed", "unsure")
        else:
            same += 1
    if gone := sorted(set(was.verdicts) - set(now.verdicts)):
        yield Row("correctness", f"{len(gone)} laws", "examined", "not examined", " ".join(gone[0]), "", "unsure")
    more = f"{known} known violations; " if known else ""
    yield Row("correctness", f"{same + known} laws x dtypes", "", "as before", "", f"{more}the same cases", "same")


def tier(ratio: float) -> str:
    """'pair' where every error is within what pairwise summation attains, else 'any order' (or beyond it)."""
    return "pair" if ratio <= 1 else "any order"


def accuracy(was: Examined, now: Examined, profile: str) -> Iterator[Row]:
    """Outputs whose worst ratio fell out of the tier `pair`, or grew more than GROWTH times.

    Inequality of the second: now > GROWTH max(was, least(profile)); below `least` no algorithms can be told apart.
    """
    if now.lost or was.lost:
        return
    floor, kept = least(profile), 0
    for key, before in sorted(was.pair.items()):
        ratio, name = now.pair.get(key), f"{key[1]} {key[0]}"
        if ratio is None:
            yield Row("accuracy", name, f"{before:.3g}", "not judged", "", "", "unsure")
            continue
        change = f"{ratio / before:.2g}x" if before else ""
        worse = tier(ratio) != tier(before) and ratio > before
        grown = ratio > GROWTH * max(before, floor)
        if worse or grown:
            why = f"leaves the tier {tier(before)!r}" if worse else f"more than {GROWTH:g}x"
            yield Row("accuracy", name, f"{before:.3g}", f"{ratio:.3g}", change, why, "worse")
        elif before > GROWTH * max(ratio, floor):
            yield Row("accuracy", name, f"{before:.3g}", f"{ratio:.3g}", change, "", "better")
        else:
            kept += 1
    if kept:
        yield Row("accuracy", f"{kept} outputs x dtypes", "", "as before", "", "the same cases", "same")
