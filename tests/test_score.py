"""The mutation score: its page, and the two usual tests that it sets the laws beside."""

from __future__ import annotations

from functools import partial

import pytest

from lnverify.mutants import all_correct, all_mutants
from lnverify.mutants.baselines import opinfo, ordinary
from lnverify.runner import check
from lnverify.score import HEAD, Scored, page, score

ENTRIES = {entry.id: entry for entry in [*all_mutants(), *all_correct()]}


@pytest.mark.parametrize(
    ("id", "found"),
    [
        ("two-pass-pairwise", (False, False)),
        ("rescaled-rows", (False, False)),
        ("unbiased", (True, True)),
        ("one-pass-pairwise", (False, False)),  # what the project is for: neither sees E[x^2] - E[x]^2
        ("eps-outside-root", (True, True)),  # 2 rows of 32 in float32; eps 0.5 among OpInfo's samples
        ("mean-of-g-dropped", (True, True)),  # dy of y.sum() with weight 1: the mean of g is all of it
        ("weight-outside-sums", (False, True)),
        ("bias-ignored-without-weight", (False, False)),
        ("no-backward", (True, True)),
        ("double-backward-constants", (False, True)),
    ],
)
def test_what_the_usual_tests_find(id: str, found: tuple[bool, bool]) -> None:
    entry = ENTRIES[id]
    assert (ordinary(entry.subject(), "float32"), opinfo(entry.subject())) == found


def test_without_float64_opinfo_has_nothing_to_say() -> None:
    entry = next(c for c in all_correct() if "float64" not in c.dtypes)
    assert opinfo(entry.subject()) is False


def test_a_mutant_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lnverify.score.check", partial(check, select=["LN1"], max_examples=2))  # all laws take long
    scored = score(ENTRIES["eps-missing"])
    assert scored.found
    assert scored.laws[0] == "LN101"
    assert (scored.id, scored.dtype) == ("eps-missing", "float64")


def test_the_page_counts() -> None:
    scores = [
        Scored("a", "Bug a.", "float32", ("LN101", "LN301"), True, True, False),
        Scored("b", "Bug b.", "float64", tuple(f"LN10{i}" for i in range(8)), True, False, False),
        Scored("c", "Bug c.", "float64", (), False, False, True),
    ]
    text = page(scores, {"LN101": "forward-accuracy", "LN999": "other"})
    assert text.startswith(HEAD)
    for line in (
        "| lnverify | 2 (67 %) |",
        "| the ordinary check | 1 (33 %) |",
        "| OpInfo samples with gradcheck and gradgradcheck | 1 (33 %) |",
        "| LN101 | forward-accuracy | 2 |",
        "| LN999 | other | 0 |",
        "| a | Bug a. | float32 | LN101 LN301 | yes |  |",
        "| b | Bug b. | float64 | LN100 LN101 LN102 LN103 LN104 LN105 and 2 more |  |  |",
        "| c | Bug c. | float64 | **none** |  | yes |",
    ):
        assert line in text.splitlines()
