"""Which cases a law with a limit looks at."""

from __future__ import annotations

import pytest

from lnverify.covering import PRIME, levels
from lnverify.crashes import Watch
from lnverify.edges import edge
from lnverify.examination import Examination
from lnverify.law import load_laws
from lnverify.mutants import all_correct
from lnverify.profiles import profile
from lnverify.support import Support, find_support
from lnverify.yardstick import Stopwatch


@pytest.mark.parametrize("name", ["quick", "ci"])
@pytest.mark.parametrize("law", [law for law in load_laws().values() if law.limit], ids=lambda law: law.id)
def test_a_law_meets_several_levels_of_every_factor(law, name) -> None:
    """Every n-th case of the grid would leave one factor, dy say, at one level for ever."""
    support = find_support(all_correct()[0].subject(), "float32", "cpu")
    assert isinstance(support, Support)
    exam = Examination(support, [law], profile(name), 0, Stopwatch(), Watch(None))
    case, met, looked_at = edge(support, 8, 2), [set() for _ in range(PRIME)], 0
    for exam.index in range(profile(name).blocks * PRIME**2):
        if exam._looks(law, case, once=False):
            looked_at += 1
            block, place = divmod(exam.index, PRIME**2)
            for factor, level in enumerate(levels(block, *divmod(place, PRIME))):
                met[factor].add(level)
    assert looked_at >= law.limit // 2
    assert min(map(len, met)) >= min(looked_at, 8) // 2
