"""The history's file: what is kept, what is kept once, and what survives crashes and company."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lnverify.errors import UsageError
from lnverify.history import store
from lnverify.history.machine import facts, fingerprint, in_words
from lnverify.history.reading import read
from lnverify.history.sample import Commit, Key, Sample
from lnverify.history.store import Added
from tests import report_samples
from tests.history_samples import KEY, MACHINE, SETTING, bench, commit, reading, written


def values(path: Path) -> dict[str, list[float | None]]:
    """The values by name of the series."""
    return {entry.key.name: [point.value for point in entry.points] for entry in store.load(path)}


def test_adding_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    assert store.add(path, commit(1), [reading(1.0, 2.0)]) == Added(new=2)
    before = path.read_bytes()
    assert store.add(path, commit(1), [reading(1.0, 2.0)]) == Added(same=2)
    assert path.read_bytes() == before
    assert values(path) == {"b0": [1.0], "b1": [2.0]}


def test_other_numbers_of_a_commit_are_taken_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    store.add(path, commit(1), [reading(1.0, 2.0)])
    assert store.add(path, commit(1), [reading(1.5, 2.0, 3.0)]) == Added(new=1, same=1, kept=1)
    assert values(path)["b0"] == [1.0]
    assert store.add(path, commit(1), [reading(1.5)], replace=True) == Added(new=1)
    assert values(path)["b0"] == [1.5]


def test_commits_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    for number in (3, 1, 2):
        store.add(path, commit(number), [reading(float(number))])
    (series,) = store.load(path)
    assert [point.commit for point in series.points] == [commit(1), commit(2), commit(3)]
    assert [point.value for point in series.points] == [1.0, 2.0, 3.0]


def test_a_title_may_come_later(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    store.add(path, Commit("a" * 40, 5), [reading(1.0)])
    store.add(path, Commit("a" * 40, 5, "Halve the time"), [reading(1.0)])
    assert store.load(path)[0].points[0].commit.title == "Halve the time"


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    timed = Sample(KEY, 1.25, 1.0, 1.5)
    verdict = Sample(replace(KEY, metric="verdict"), verdict="holds")
    kept = replace(reading(), samples=(timed, verdict))
    store.add(path, commit(1), [kept])
    (first, second) = store.load(path)
    assert (first.key, second.key) == (KEY, verdict.key)
    point = first.points[0]
    assert (point.value, point.low, point.high, point.verdict) == (1.25, 1.0, 1.5, "")
    assert (second.points[0].value, second.points[0].verdict) == (None, "holds")
    assert store.machines(path) == {KEY.machine: {"processor": "Model 1"}}


# Processes of their own import what is installed, and none of these tests.
SAMPLES = """
import os, signal, sys
from pathlib import Path
from lnverify.history import store
from lnverify.history.reading import Reading
from lnverify.history.sample import Commit, Key, Sample

def commit(number):
    return Commit(f"{number:010x}" * 4, 1_700_000_000 + 86_400 * number)

def reading(name, value):
    return Reading("m", {}, (Sample(Key("s", name, "time", "against torch", "m"), value),))
"""
WRITER = f"""{SAMPLES}
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    readings = [reading(f"b{{n}}", float(number % 20)) for n in range(40)]
    store.add(Path(sys.argv[1]), commit(number % 20), readings)
"""


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Four processes, two for each commit, all making the file; of each sample one stays."""
    path = tmp_path / "h.sqlite"
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(start), str(start + 10)], stderr=subprocess.PIPE)
        for start in (0, 10, 20, 30)
    ]
    for process in running:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()
    assert values(path) == {f"b{n}": [float(number) for number in range(20)] for n in range(40)}
    with sqlite3.connect(path) as base:
        assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    base.close()


DYING = f"""{SAMPLES}
def readings():
    for number in range(20_000):  # more than SQLite keeps in memory: pages of the file are written already
        if number == 19_999:
            os.kill(os.getpid(), signal.SIGKILL)
        yield reading(f"n{{number}}", 1.0)

store.add(Path(sys.argv[1]), commit(2), readings())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_writer_that_is_killed_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    store.add(path, commit(1), [reading(1.0, 2.0)])
    done = subprocess.run([sys.executable, "-c", DYING, str(path)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert (tmp_path / "h.sqlite-journal").exists(), "it died before it wrote anything"
    assert values(path) == {"b0": [1.0], "b1": [2.0]}
    assert store.add(path, commit(2), [reading(1.5)]) == Added(new=1)
    assert values(path)["b0"] == [1.0, 1.5]


def test_what_is_no_history_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a data base, and longer than the header of one " * 10)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE mine (a)")
    base.close()
    newer = tmp_path / "newer.sqlite"
    store.add(newer, commit(1), [reading(1.0)])
    with sqlite3.connect(newer) as base:
        base.execute("PRAGMA user_version = 2")
    base.close()
    for path in (text, other, newer):
        before = path.read_bytes()
        with pytest.raises(UsageError, match="is no history that this version of lnverify reads: give another --db"):
            store.add(path, commit(1), [reading(1.0)])
        with pytest.raises(UsageError, match="is no history that this version of lnverify reads"):
            store.load(path)
        assert path.read_bytes() == before
    with pytest.raises(
        UsageError, match=r"there is no history '.*none': `lnverify history add REPORT.json` begins one"
    ):
        store.load(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be opened or written: unable to open database file"):
        store.add(tmp_path / "no" / "folder", commit(1), [reading(1.0)])


def test_a_bench_file_gives_the_ratio_and_its_interval(tmp_path: Path) -> None:
    (found,) = read(written(tmp_path / "b.json", bench(1.25, width=0.1)))
    described = {"processor": "Model 1", "cores": 2, "platform": "Linux x86_64"}
    key = Key("./kernels.py:ln", "forward 32x768 [float32, cpu]", "time", SETTING, fingerprint(described))
    assert found.described == described
    assert found.samples == (Sample(key, 1.25, 1.25 * 0.9, 1.25 * 1.1),)
    # Too few pairs have no bound; what was not timed, or is wrong, has no ratio that counts.
    few = bench(1.0, ratio={"median": 1.0, "low": None, "high": None}, what="both")
    (sample,) = read(written(tmp_path / "b.json", few))[0].samples
    assert (sample.key.name, sample.value, sample.low) == ("forward+backward 32x768 [float32, cpu]", 1.0, None)
    for row in ({"ratio": None, "why": "refused"}, {"why": "y is wrong"}):
        assert read(written(tmp_path / "b.json", bench(1.0, **row)))[0].samples == ()


def test_what_bench_writes_is_read(tmp_path: Path) -> None:
    bench_table = pytest.importorskip("lnverify.reports.bench_table", reason="this version has no bench")
    from lnverify.timing.interval import Ratio
    from lnverify.timing.paths import HotPath
    from lnverify.timing.summary import Summary

    path = HotPath((32, 768), "bfloat16", "both")
    timed = Summary(path, 1e-5, 1.1e-5, Ratio(0.9, float("-inf"), 1.1, 80, 2), "cpu")
    (tmp_path / "b.json").write_text(bench_table.text(MACHINE, {"m:f": [timed, Summary(path, why="refused")]}, "torch"))
    (found,) = read(tmp_path / "b.json")
    (sample,) = found.samples
    assert (sample.key.subject, sample.key.name) == ("m:f", "forward+backward 32x768 [bfloat16, cpu]")
    assert sample.key.setting == SETTING
    assert (sample.value, sample.low, sample.high) == (0.9, None, 1.1)


def test_speed_and_accuracy_of_a_machine_have_one_fingerprint(tmp_path: Path) -> None:
    """So that they stand beside each other on the page, though one report says more of the machine than the other."""
    environment = {**report_samples.report().environment, "processor": "Model 1"}
    report = report_samples.report(environment=environment)
    (timed,) = read(written(tmp_path / "b.json", bench(1.0)))
    (checked,) = read(written(tmp_path / "r.json", report.to_json()))
    assert timed.machine == checked.machine


def test_a_report_gives_verdicts_and_ratios(tmp_path: Path) -> None:
    results = [
        report_samples.result("LN101", "forward-accuracy", worst_ratio=0.4),
        report_samples.result("LN102", "broken", "float16", "violated", worst_ratio=float("inf")),
        report_samples.result("LN401", "mean", verdict="inapplicable", worst_ratio=0.0),
    ]
    report = report_samples.report(results)
    report.coverage["pair_ratio"] = {"float32": {"y": 0.5, "dx": 0.0}}
    (found,) = read(written(tmp_path / "r.json", report.to_json()))
    shown = {(s.key.name, s.key.metric): s.verdict or s.value for s in found.samples}
    assert shown == {
        ("LN101 forward-accuracy [float32, cpu]", "verdict"): "holds",
        ("LN101 forward-accuracy [float32, cpu]", "error"): 0.4,
        ("LN102 broken [float16, cpu]", "verdict"): "violated",
        ("LN401 mean [float32, cpu]", "verdict"): "inapplicable",
        ("y [float32]", "pair"): 0.5,
    }
    assert {s.key.setting for s in found.samples} == {
        "quick, seed 0, lnverify 0.1.0, python 3.11, numpy 2.4.6, torch 2.13.0"
    }
    both = written(tmp_path / "two.json", [report.to_json(), report.to_json()])
    assert len(read(both)) == 2


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"schema": "other/1"}, "the schema of '.*f.json' is 'other/1': 'lnverify-report/1' or 'lnverify-bench/1' is"),
        ([1], "the schema of '.*f.json' is 'int'"),
        (bench(1.0) | {"targets": 3}, "'.*f.json' is damaged: TypeError"),
        (bench(1.0, ratio={}), "is damaged: KeyError at 'median'"),
        (bench(-1.0), "is damaged: ValueError at the ratio of forward 32x768 .*, which is not a number above 0"),
        (report_samples.report(stopped="time limit").to_json(), r"'.*f.json' ended early \(time limit\): add one of a"),
    ],
)
def test_a_file_that_cannot_be_kept_is_one_sentence(tmp_path: Path, data: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        read(written(tmp_path / "f.json", data))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read '.*': No such file"):
        read(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(UsageError, match="is no report of lnverify: it is not JSON"):
        read(tmp_path / "text")


def test_a_machine_is_what_computes_and_not_what_happens_on_it() -> None:
    same = {**MACHINE, "load": 3.5, "hostname": "b", "kernel": "6.2", "mhz": 3012.5, "threads": 2}
    prints = [
        fingerprint(facts(MACHINE | change)) for change in ({}, {"processor": "2"}, {"cores": 4}, {"accelerator": "H"})
    ]
    assert len(set(prints)) == 4
    assert fingerprint(facts(same)) == prints[0]
    assert in_words(facts(MACHINE | {"accelerator": "H"})) == "Model 1, 2 cores, Linux x86_64, H"


def test_other_software_is_another_setting(tmp_path: Path) -> None:
    changes = ({}, {"threads": 2}, {"versions": {"torch": "2.14.0"}}, {"python": "3.12.1"}, {"malloc": {}})
    files = [bench(1.0, machine=MACHINE | change) for change in changes] + [bench(1.0, clock="wall")]
    keys = {read(written(tmp_path / "b.json", data))[0].samples[0].key for data in files}
    assert len(keys) == len(files)
    assert len({key.machine for key in keys}) == 1
    patched = read(written(tmp_path / "b.json", bench(1.0, machine=MACHINE | {"python": "3.11.9"})))
    assert patched[0].samples[0].key in keys
