"""Where reports are kept, and how many."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lnverify import report_cache
from tests import report_samples as samples


def test_the_last_fifty_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LNVERIFY_CACHE", str(tmp_path))
    cache = tmp_path / "reports"
    cache.mkdir()
    for i in range(60):
        (cache / f"20200101T0000{i:02}.000000-aaaa{i:02}.json").write_text("{}")
    run = report_cache.new_run()
    run.store([samples.report()])
    names = sorted(p.name for p in cache.iterdir())
    assert len(names) == 50
    assert names[-1] == run.path.name
    assert names[0] == "20200101T000011.000000-aaaa11.json"


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"LNVERIFY_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c/reports"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/lnverify/reports"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/lnverify/reports"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other cache folders")
def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: str) -> None:
    for name in ("LNVERIFY_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(report_cache.folder()) == place
