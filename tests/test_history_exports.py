"""Exports: files of which asv and Apache Otava make what the history says; both run where they are installed."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lnverify.cli import main
from lnverify.history import store
from lnverify.history.exports import slug, write_asv, write_otava
from lnverify.history.reading import Reading
from lnverify.history.sample import Commit, Sample
from tests.history_samples import KEY, commit, noisy, series
from tests.test_history_commands import git

MACHINES = {KEY.machine: {"processor": "Model 1", "cores": 2}}
SHORT = series([1.0, 2.0])
OTHER = series([0.5, 0.25, 0.125], replace(KEY, metric="error", name="LN101 [float32, cpu]", setting="quick"))


def loaded(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_names_are_safe_and_told_apart() -> None:
    assert slug("./k.py:ln?eps=1", "a b") != slug("./k.py:ln?eps=1 a", "b")
    assert slug("./k.py:ln", "a/b").startswith("k-py-ln-a-b-")


def test_asv_finds_each_commit_in_a_file_of_its_machine_and_setting(tmp_path: Path) -> None:
    said = write_asv(tmp_path / "out", [SHORT, OTHER], MACHINES, tmp_path)
    assert said.endswith("in that folder run: asv publish")
    known = loaded(tmp_path / "out/results/benchmarks.json")
    assert sorted(entry["pretty_name"] for name, entry in known.items() if name != "version") == [
        "LN101 [float32, cpu] of ./kernels.py:ln: error", "forward 32x768 [float32, cpu] of ./kernels.py:ln: time",
    ]  # fmt: skip
    files = sorted((tmp_path / "out/results" / KEY.machine).glob("0*.json"))
    assert len(files) == 5
    for path in files:
        data = loaded(path)
        place = int(data["commit_hash"][:10], 16)
        source = SHORT if data["params"]["setting"] == "against torch" else OTHER
        assert data["date"] == commit(place).time * 1000
        ((name, columns),) = data["results"].items()
        assert known[name]["name"] == name
        assert columns[0] == [source.points[place].value]


def test_otava_gets_a_table_for_each_series(tmp_path: Path) -> None:
    write_otava(tmp_path / "out", [SHORT, OTHER])
    config = loaded(tmp_path / "out/otava.yaml")
    assert config["test_groups"]["all"] == list(config["tests"])
    (first, second) = config["tests"].values()
    for test, source in ((first, SHORT), (second, OTHER)):
        with (tmp_path / "out" / test["file"]).open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [float(row["ratio"]) for row in rows] == [point.value for point in source.points]
        assert [datetime.fromisoformat(row["time"]).timestamp() for row in rows] == [
            point.commit.time for point in source.points
        ]
        assert [row["commit"] for row in rows] == [point.commit.id for point in source.points]
        assert test["metrics"]["ratio"]["direction"] == -1


def test_export_writes_into_a_new_folder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    store.add(Path("h.sqlite"), commit(1), [Reading(KEY.machine, {}, (Sample(KEY, 1.0),))])
    store.add(
        Path("v.sqlite"),
        commit(1),
        [Reading(KEY.machine, {}, (Sample(replace(KEY, metric="verdict"), verdict="holds"),))],
    )
    for words, sentence in (
        (["otava", "full", "--db", "h.sqlite"], "'full' is there and not an empty folder: name a new one."),
        (["otava", "new", "--db", "v.sqlite"], "the history 'v.sqlite' has no ratios to export: add a report first."),
    ):
        result = CliRunner().invoke(main, ["history", "export", *words])
        assert (result.exit_code, result.stderr) == (2, f"lnverify: {sentence}\n")
    assert CliRunner().invoke(main, ["history", "export", "otava", "new", "--db", "h.sqlite"]).exit_code == 0
    assert (tmp_path / "new/otava.yaml").exists()


@pytest.mark.skipif(shutil.which("asv") is None, reason="asv is not installed: tox -e asv")
def test_asv_publishes_what_was_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    values = [1.0, 1.25, 1.5]
    for number, value in enumerate(values):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", f"Change {number}", day=number + 1)
        head, seconds = git(tmp_path, "show", "--no-patch", "--format=%H %ct").split()
        sample = Sample(KEY, value, value - 0.1, value + 0.1)
        store.add(Path("h.sqlite"), Commit(head, int(seconds)), [Reading(KEY.machine, {}, (sample,))])
    assert CliRunner().invoke(main, ["history", "export", "asv", "out", "--db", "h.sqlite"]).exit_code == 0
    done = subprocess.run(["asv", "publish"], cwd=tmp_path / "out", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    index = loaded(tmp_path / "out/html/index.json")
    assert len(index["revision_to_hash"]) == 3
    assert index["params"]["setting"] == ["against torch"]
    name = slug(KEY.subject, KEY.name, KEY.metric)
    graphs = [path for path in (tmp_path / "out/html/graphs").rglob(f"{name}.json") if "summary" not in path.parts]
    (drawn,) = (loaded(path) for path in graphs)
    assert [value for _, value in drawn] == values


@pytest.mark.skipif(shutil.which("otava") is None, reason="Apache Otava is not installed: tox -e otava")
def test_otava_finds_the_step_in_what_was_exported(tmp_path: Path) -> None:
    write_otava(tmp_path / "out", [series(noisy(1, 0.1, 30)), series(noisy(2, 0.0, 60), OTHER.key)])
    found = {}
    for name in loaded(tmp_path / "out/otava.yaml")["tests"]:
        done = subprocess.run(
            ["otava", "analyze", name, "--config-file", "otava.yaml", "--output", "json", "--since", "2000-01-01"],
            cwd=tmp_path / "out", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        found[name] = json.loads(done.stdout)[name]
    (stepped, flat) = found.values()
    assert flat == []
    (change,) = stepped
    assert abs(datetime.fromtimestamp(change["time"]).timestamp() - commit(30).time) <= 2 * 86_400
