"""Which cases are left out after crashes: those like the ones that crashed, and no other."""

from __future__ import annotations

from types import SimpleNamespace

from lnverify.case import Case
from lnverify.crashes import ALIKE_AFTER, END_AFTER, PER_LAW, Watch, cause
from lnverify.host import Crash
from lnverify.law import load_laws
from lnverify.mutants import all_correct
from lnverify.protocol import Response
from lnverify.recipes import build
from lnverify.subject import Capabilities


def case(n: int, rows: int) -> Case:
    return build({
        "dtype": "float32", "batch": [rows], "shape": [n], "regime": "normal", "mean": 0, "scale": 0, "eps": 1e-5,
        "seed": 1, "weight": "normal", "bias": "normal", "dy": "normal", "device": "cpu",
    })  # fmt: skip


def crash(n: int, rows: int, text: str = "the process died of SIGSEGV") -> Crash:
    return Crash(case(n, rows).request("y"), Response(refusal=text, phase="crash"))


def watch(*crashes: Crash) -> Watch:
    host = SimpleNamespace(crashes=[], unanswered=0)
    found = Watch(host)  # type: ignore[arg-type]
    host.crashes += crashes
    return found


def test_nothing_is_left_out_before_three_crashes() -> None:
    assert ALIKE_AFTER == 3
    assert not watch(crash(1024, 2), crash(2048, 2)).alike(case(4096, 2))


def test_from_the_smallest_n_that_crashed_on_where_none_was_ever_answered() -> None:
    seen = watch(crash(1024, 2), crash(2048, 2), crash(4096, 3))
    seen.fine(case(512, 8))
    assert seen.alike(case(1024, 2))
    assert seen.alike(case(3000, 7))  # above the smallest one that crashed
    assert not seen.alike(case(512, 8))
    seen.fine(case(5000, 2))  # a longer row was answered: length alone is not it
    assert not seen.alike(case(3000, 2))
    assert seen.alike(case(2048, 2))


def test_the_same_for_the_number_of_rows() -> None:
    seen = watch(crash(8, 65536), crash(8, 65537), crash(16, 70000))
    seen.fine(case(8, 100))
    seen.fine(case(16, 100))
    assert seen.alike(case(8, 65600))
    assert not seen.alike(case(16, 200))


def test_where_both_were_answered_nothing_is_left_out() -> None:
    """A crash that depends on the values."""
    seen = watch(*(crash(8, 4) for _ in range(3)))
    seen.fine(case(8, 4))
    assert not seen.alike(case(8, 4))


def test_a_law_is_tired_after_three_and_the_dtype_ends_after_eight() -> None:
    seen, law = watch(*(crash(8, 4) for _ in range(END_AFTER - 1))), load_laws()["LN101"]
    assert not seen.over()
    for _ in range(PER_LAW):
        assert not seen.tired(law)
        seen.blame(law)
    assert seen.tired(law)
    assert not seen.tired(load_laws()["LN102"])
    assert watch(*(crash(8, 4) for _ in range(END_AFTER))).over()


def test_each_way_of_crashing_is_one_finding_with_its_smallest_case() -> None:
    seen = watch(crash(1024, 2), crash(8, 4), crash(64, 2, "no answer in 30 s"))
    capabilities: Capabilities = all_correct()[0].subject().capabilities
    found = seen.findings("float32", "cpu", capabilities)
    assert [f.cause for f in found] == ["the process died of SIGSEGV", "the subject hangs"]
    assert {f.law for f in found} == {"LN606"}
    assert found[0].smallest.case["normalized_shape"] == [8]
    assert cause(crash(8, 4, "the process takes 5.0 GiB")) == "the subject takes all memory"


def test_a_subject_in_this_process_is_not_watched() -> None:
    seen = Watch(None)
    assert (seen.crashes, seen.trouble(), seen.over()) == ([], 0, False)
    assert not seen.alike(case(8, 2))
