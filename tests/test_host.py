"""A subject in a process of its own: the same answers, and crashes that are findings."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lnverify
from lnverify import wire
from lnverify.errors import SignatureError, TargetError, UsageError
from lnverify.floats import FloatArray
from lnverify.host import Host, Limits
from lnverify.protocol import CROWD, Request, Response
from lnverify.support import ordinary
from lnverify.target import resolve

SUBJECTS = """
import ctypes, os, time
import numpy as np


def right(x, weight=None, bias=None, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def where(bad):
    def wrap(crash):
        def layer_norm(x, weight=None, bias=None, eps=1e-5):
            if bad(x):
                crash()
            return right(x, weight, bias, eps)
        return layer_norm
    return wrap


def long(x):
    return x.shape[-1] > 512


segfaults = where(long)(lambda: ctypes.string_at(0))
exits = where(long)(lambda: os._exit(0))
sleeps = where(long)(lambda: time.sleep(1e6))


def computes(x, eps=1e-5):
    if x.shape[-1] == 5:  # slow, and right
        end = time.process_time() + 1.2
        while time.process_time() < end:
            pass
    if x.shape[-1] == 6:
        while True:
            pass
    return right(x, eps=eps)


@where(long)
def eats():
    held = []
    while True:
        held.append(np.ones(1 << 22))


def crashes_on_all(x, eps=1e-5):
    os._exit(3)


def talks(x, eps=1e-5):
    print("on my way")
    return right(x, None, None, eps)


def unclear(a, b, c):
    pass
"""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("host") / "subjects.py"
    path.write_text(SUBJECTS)
    return str(path)


def test_a_request_and_a_response_survive_the_wire_bit_for_bit():
    arrays = {
        "x": FloatArray.of(np.array([[np.nan, -0.0, np.inf], [1e-40, 1.0, -3.5]]), "float32"),
        "dy": FloatArray.of(np.ones((0, 3)), "float32"),
        "weight": FloatArray.of(np.array([1.0, 2.0, 3.0]), "bfloat16"),
        "bias": FloatArray("float64", np.array([1, 2, 3], np.uint64)),
    }
    request = Request("layer_norm", arrays, (3,), 0.1, ("y", "dx"), ("x",), {"x": "offset"}, threads=2)
    stream = io.BytesIO()
    wire.send(stream, request)
    wire.send(stream, Response({"y": arrays["x"]}, "no: ü", "backward", ("x",), ("y",), ("w",), "said"))
    stream.seek(0)
    back = wire.request(*wire.read(stream))
    assert {n: a.sha256 for n, a in back.arrays.items()} == {n: a.sha256 for n, a in arrays.items()}
    for name in ("normalized_shape", "eps", "wanted", "requires_grad", "layouts", "threads", "grad_mode", "history"):
        assert getattr(back, name) == getattr(request, name)
    answer = wire.response(*wire.read(stream))
    assert (answer.refusal, answer.phase, answer.changed) == ("no: ü", "backward", ("x",))
    assert (answer.aliases, answer.warnings, answer.printed) == (("y",), ("w",), "said")
    with pytest.raises(EOFError):
        wire.read(stream)


def test_an_isolated_subject_answers_as_one_in_this_process(subjects):
    target = f"{subjects}:right"
    host = Host(target)
    try:
        there, here = host.subject(), resolve(target)
        assert there.capabilities == here.capabilities
        assert (there.framework, there.call_text, there.target) == (here.framework, here.call_text, here.target)
        case = ordinary(here, "float32", "cpu")
        one, two = there.run(case.request("y")), here.run(case.request("y"))
        assert one.arrays["y"].same_bits(two.arrays["y"])
        assert host.crashes == []
    finally:
        host.close()


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("segfaults", "the process died of SIGSEGV"),
        ("exits", "the process ended with exit status 0"),
        ("sleeps", "the subject hangs"),
        ("eats", "the subject takes all memory"),
    ],
)
def test_a_crash_is_a_finding_and_the_run_goes_on(subjects, name, cause):
    limits = Limits(timeout=1.0 if name == "sleeps" else 60.0, memory=1 << 30)
    report = lnverify.check(
        f"{subjects}:{name}", dtypes=["float32"], select=["LN101", "LN606"], isolate=True, limits=limits, max_examples=5
    )
    assert report.exit_status == 1
    first = report.findings[0]
    assert (first.law, first.verdict, first.cause) == ("LN606", "crashed", cause)
    assert first.smallest.case["normalized_shape"][-1] > 512
    assert "Asked for y" in first.message
    assert [f for f in report.findings if f.severity == "error"] == [first]
    results = {r.law: r for r in report.results}
    assert results["LN606"].verdict == "crashed"
    assert results["LN101"].verdict == "holds"
    assert results["LN101"].informative > 10  # of the shapes that it answers


def test_a_crash_on_an_ordinary_input_is_a_finding_too(subjects):
    report = lnverify.check(f"{subjects}:crashes_on_all", isolate=True, dtypes=["float32"])
    assert [(f.law, f.cause) for f in report.findings] == [("LN606", "the process ended with exit status 3")]
    assert report.verdict == "violated"
    assert report.coverage["not_supported"] == [
        "float32 on cpu: an ordinary input crashes it (the process ended with exit status 3)"
    ]


def test_a_request_that_crashed_is_not_made_again(subjects):
    host = Host(f"{subjects}:exits")
    try:
        subject = host.subject()
        bad = ordinary(subject, "float32", "cpu", shape=[600]).request("y")
        assert [subject.run(bad).phase for _ in range(3)] == ["crash"] * 3
        assert (len(host.crashes), host.unanswered) == (1, 3)
        assert subject.run(ordinary(subject, "float32", "cpu").request("y")).refusal is None
    finally:
        host.close()


def test_what_a_subject_prints_comes_with_the_answer(subjects):
    host = Host(f"{subjects}:talks")
    try:
        subject = host.subject()
        assert subject.run(ordinary(subject, "float32", "cpu", "none").request("y")).printed == "on my way\n"
    finally:
        host.close()


def test_errors_of_loading_are_those_of_this_process(subjects, tmp_path):
    with pytest.raises(SignatureError, match="unclear"):
        Host(f"{subjects}:unclear")
    with pytest.raises(TargetError, match="there is no file"):
        Host(str(tmp_path / "none.py:f"))
    (tmp_path / "dies.py").write_text("import os\nos._exit(9)\n")
    with pytest.raises(TargetError, match="failed: the process ended with exit status 9"):
        Host(f"{tmp_path / 'dies.py'}:f")


def test_a_callable_needs_cloudpickle(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UsageError, match="pip install cloudpickle, or give a target string"):
        lnverify.check(lambda x, eps: x, isolate=True)


def test_processes_that_share_the_work_find_the_same(subjects):
    target = f"{subjects}:right?dtypes=float32,float64"
    reports = [lnverify.check(target, select=["LN1", "LN506"], jobs=jobs, max_examples=5) for jobs in (1, 2)]
    one, two = ({k: v for k, v in r.to_json().items() if k not in ("seconds", "stages")} for r in reports)
    assert one == two
    assert reports[0].findings
    with pytest.raises(UsageError, match="jobs=2 or more wants a target string"):
        lnverify.check(np.negative, jobs=2)


def test_the_process_ends_with_the_host(subjects):
    host = Host(f"{subjects}:right")
    pid = host.process_id
    host.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_busy_process_gets_its_seconds_of_the_processor(subjects, monkeypatch):
    """A machine that is busy makes a slow subject slower on the clock, not on the processor."""
    host = Host(f"{subjects}:computes?framework=numpy", limits=Limits(timeout=1.0))
    request = lambda n: Request("layer_norm", {"x": FloatArray.of(np.ones((1, n)), "float32")}, (n,), 1e-5)  # noqa: E731
    try:
        assert host.run(request(4)).refusal is None
        monkeypatch.setattr("lnverify.host._processor", lambda pid: time.monotonic() * 0.1)  # a tenth of one is ours
        assert host.run(request(5)).refusal is None
        monkeypatch.undo()
        assert host.run(request(6)).refusal.startswith("no answer within ")
    finally:
        host.close()


def test_a_request_of_many_calls_is_predicted_to_take_as_many(subjects):
    host = Host(f"{subjects}:right")
    host.predict(lambda elements, rows: elements * 1.0)
    x, h = FloatArray.of(np.ones((2, 5)), "float32"), FloatArray.of(np.ones((2, 4)), "float32")
    several = FloatArray.of(np.ones((7, 2, 5)), "float32")
    try:
        assert host.predicted(Request("layer_norm", {"x": x}, (5,), 1e-5)) == 10
        assert host.predicted(Request("layer_norm", {"x": x}, (5,), 1e-5, history="crowded")) == 10 * (CROWD + 2)
        assert host.predicted(Request("ln_rnn", {"x": several, "h": h}, (4,), 1e-5)) == 7 * 70
    finally:
        host.close()


def test_what_took_longer_than_predicted_is_given_more_time(subjects):
    host = Host(f"{subjects}:computes?framework=numpy", limits=Limits(timeout=0.2))
    host.predict(lambda elements, rows: 0.02)
    wide = {"x": FloatArray.of(np.ones((1000, 5)), "float32")}
    try:
        host.growth = 10.0  # 20 times 0.02 s, times what a large request has shown
        assert host.run(Request("layer_norm", wide, (5,), 1e-5)).refusal is None
        assert host.growth > 50
    finally:
        host.close()
