"""The page of a history: what stands on it, and, where there is a browser, what is seen of it."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lnverify.history.changes import search
from lnverify.history.chart import HEIGHT, WIDTH, chart, frame, strip, ticks
from lnverify.history.page import page_text
from lnverify.history.sample import Point, Series
from tests.history_samples import KEY, commit, noisy, series

ACCURACY = replace(KEY, name="y [float32]", metric="pair", setting="quick")
LAW = replace(KEY, name="LN101 forward-accuracy [bfloat16, cpu]", metric="verdict", setting="quick")
STILL = replace(LAW, name="LN102 still [bfloat16, cpu]")
MACHINES = {KEY.machine: {"processor": "Model <1>", "cores": 2}}
COMMITS = {commit(n).id: n for n in range(60)}
ALL = [
    series(noisy(3, 0.1, 40)),
    series([0.25] * 30 + [1.0] * 30, ACCURACY),
    series(["holds"] * 30 + ["violated"] * 30, LAW),
    series(["holds"] * 60, STILL),
]


def page(entries: list[Series]) -> str:
    return page_text(entries, search(entries), MACHINES)


def test_the_page_needs_no_network_and_no_script() -> None:
    text = page(ALL)
    assert not re.search(r"<(script|link|img|iframe|object)|https?:|url\(|@import|src=", text)
    assert text.startswith("<!doctype html>")
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text


def test_every_change_is_named_with_its_commit() -> None:
    text = page(ALL)
    assert "<b class='worse'>3 for the worse</b>, 0 for the better" in text
    for phrase, number in (("slower</b> forward 32x768", 40), ("less accurate</b> y [float32]", 30)):
        heading = text[: text.index(phrase)].rpartition("<p class='commit'>")[2]
        assert heading.startswith(f"<code>{commit(number).short}</code> Change {number} ")
        assert f"after {commit(number - 1).short}" in heading
    assert text.index("slower</b>") < text.index("less accurate</b>"), "the newest change is not first"


def test_accuracy_stands_beside_speed_and_what_never_changed_is_a_line() -> None:
    text = page(ALL)
    float32 = text[text.index("<h3>float32</h3>") : text.index("<h3>bfloat16</h3>")]
    assert float32.index("class='speed'") < float32.index("forward 32x768") < float32.index("class='accuracy'")
    assert float32.index("class='accuracy'") < float32.index("y [float32]")
    bfloat16, still = text[text.index("<h3>bfloat16</h3>") :].split("<details>")
    assert "<li>against torch</li>\n<li>quick</li>" in text[: text.index("<h3>float32</h3>")]
    assert "nothing on speed yet" in bfloat16
    assert bfloat16.count('<rect class="holds"') == bfloat16.count('<rect class="violated"') == 30
    assert "1 that never changed" in still
    assert "<td>LN102 still [bfloat16, cpu]</td><td>verdict</td><td>holds</td>" in still


def test_names_are_text_and_no_markup() -> None:
    nasty = replace(KEY, subject="./k.py:ln?a=1&b=<script>", name='forward "<b>" [float32, cpu]')
    titled = replace(commit(1), title='Drop <br> & "more"')
    text = page([Series(nasty, (Point(commit(0), 1.0), Point(titled, 1.1)))])
    assert not re.search(r"<script>|<br> &|\"<b>\"", text)
    assert "Model &lt;1&gt;" in text


def test_points_stand_at_their_values() -> None:
    values = [1.0, 2.0, 4.0]
    columns = {commit(n).id: n for n in range(3)}
    drawn = ET.fromstring(chart([series(values)], columns, []))
    spots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in drawn.iter("circle")]
    # Equal steps to the right, and equal factors equal steps up; all of it within the picture.
    assert spots[1][0] - spots[0][0] == pytest.approx(spots[2][0] - spots[1][0], abs=0.11)
    assert spots[0][1] - spots[1][1] == pytest.approx(spots[1][1] - spots[2][1], abs=0.11) != 0
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in spots)
    titles = [title.text for title in drawn.iter("title")]
    assert titles == [f"{commit(n).short} Change {n}: {value:g}" for n, value in enumerate(values)]


def test_a_mark_stands_between_the_levels() -> None:
    entry = series(noisy(3, 0.1, 40))
    (change,) = search([entry]).changes
    drawn = ET.fromstring(chart([entry], COMMITS, [change]))
    lines = {kind: [e for e in drawn.iter("line") if kind in e.get("class", "")] for kind in ("mark worse", "level")}
    (mark,) = lines["mark worse"]
    before, after = lines["level"]
    assert float(before.get("x2", "")) < float(mark.get("x1", "")) < float(after.get("x1", ""))
    assert float(before.get("y1", "")) > float(after.get("y1", "")), "the slower level is not the higher one"
    at = frame([entry], COMMITS)
    assert float(after.get("y1", "")) == pytest.approx(at.y(change.new or 0), abs=0.06)
    assert "▲ 0000000" in "".join(text.text or "" for text in drawn.iter("text"))


def test_settings_are_lines_of_their_own() -> None:
    first, second = series([1.0] * 3), series([1.1] * 3, replace(KEY, setting="against another"))
    later = Series(second.key, tuple(replace(p, commit=commit(n + 3)) for n, p in enumerate(second.points)))
    drawn = ET.fromstring(chart([first, later], COMMITS, []))
    assert [len(line.get("points", "").split()) for line in drawn.iter("polyline")] == [3, 3]
    assert "(2 settings, a line each)" in page([first, later])


def test_a_wide_interval_does_not_flatten_the_line() -> None:
    wide = Series(KEY, (Point(commit(0), 1.0, 1e-6, 1e6), Point(commit(1), 1.1, 1.0, 1.2)))
    at = frame([wide], COMMITS)
    assert at.low > 0.4
    assert at.high < 3
    assert 'class="band"' in chart([wide], COMMITS, [])


def test_a_flat_line_and_one_commit_are_drawn() -> None:
    for values in ([1.0], [1.0, 1.0], [0.0312]):
        ET.fromstring(chart([series(values)], {commit(n).id: n for n in range(len(values))}, []))
    ET.fromstring(strip(series(["holds"], LAW), {commit(0).id: 0}))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.95, 1.06, [0.96, 0.98, 1.0, 1.02, 1.04, 1.06]),
        (0.2, 0.41, [0.25, 0.3, 0.35, 0.4]),
        (0.9, 3.3, [1.0, 1.5, 2.0, 2.5, 3.0]),
        (0.15, 6.0, [0.2, 0.5, 1, 2, 5]),
        (1e-6, 1e3, [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100, 1000]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, that of the system or that of Playwright."""
    driver = pytest.importorskip("playwright.sync_api", reason="a browser: tox -e browser")
    installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with driver.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        except driver.Error as error:
            pytest.skip(f"no Chromium can be started: {error.message.splitlines()[0]}")
        yield found
        found.close()


@pytest.mark.parametrize("width", [360, 390, 820, 1280])
def test_a_browser_shows_all_of_it_at_any_width(browser: Any, tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(ALL), encoding="utf-8")
    view = browser.new_page(viewport={"width": width, "height": 800})
    asked, said = [], []
    view.on("request", lambda request: asked.append(request.url))
    view.on("console", lambda message: said.append(message.text))
    view.on("pageerror", lambda error: said.append(str(error)))
    view.goto(path.as_uri())
    assert (asked, said) == ([path.as_uri()], [])
    assert view.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    boxes = [box.bounding_box() for box in view.locator("svg").all()]
    assert len(boxes) == 3
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width and box["height"] > 5 for box in boxes)
    speed = view.locator(".speed svg").first.bounding_box()
    accuracy = view.locator(".accuracy svg").first.bounding_box()
    beside = abs(speed["y"] - accuracy["y"]) < 40 and accuracy["x"] > speed["x"] + speed["width"]
    below = accuracy["y"] > speed["y"] + speed["height"]
    assert beside if width > 700 else below
    # The size of a label, as it is drawn and not as it is written.
    size = view.evaluate(
        "(() => { const t = document.querySelector('.tick'); const s = t.ownerSVGElement;"
        " const scale = s.getBoundingClientRect().width / s.viewBox.baseVal.width;"
        " return parseFloat(getComputedStyle(t).fontSize) * scale })()"
    )
    assert size >= 8.5
    assert view.locator("details table").is_hidden()
    view.locator("summary").last.click()
    assert view.locator("details table").is_visible()
    view.close()
