"""`lnverify history`: keep what `check` and `bench` found for every commit, and say at which commit it changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lnverify.errors import UsageError

if TYPE_CHECKING:
    from lnverify.history.changes import Change, Search
    from lnverify.history.sample import Series

FILE = "lnverify-history.sqlite"
ALPHA = 0.01  # as in lnverify.history.changes, which would import more than --help needs
FORMATS = ("asv", "otava")

db_option = click.option(
    "--db", "path", type=click.Path(path_type=Path), default=FILE, show_default=True, help="The history's file."
)
alpha_option = click.option(
    "--alpha", type=click.FloatRange(0.0001, 0.5), default=ALPHA, show_default=True,
    help="Probability of a false alarm in all series of times together.",
)  # fmt: skip
subject_option = click.option("--subject", metavar="TEXT", help="Only subjects with TEXT in their name.")


@click.group("history", short_help="Keep results by commit, and find where they changed.")
def command() -> None:
    """Keep what `lnverify check --json` and `lnverify bench --json` wrote, by commit, and find where it changed."""


@command.command("add")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPORT.json...")
@click.option("--commit", metavar="REV", help="The commit that was measured. [default: that of the clean tree]")
@click.option("--date", metavar="ISO", help="With --commit HASH: when it was committed, without asking git.")
@click.option("--replace", is_flag=True, help="Take the new numbers where a commit has other ones.")
@db_option
def add(reports: tuple[Path, ...], commit: str | None, date: str | None, replace: bool, path: Path) -> int:
    """Keep the results of reports under the commit of the working tree. Adding twice changes nothing."""
    from lnverify.history import store
    from lnverify.history.commit import commit_of
    from lnverify.history.reading import read

    readings = [reading for report in reports for reading in read(report)]
    of = commit_of(Path.cwd(), commit, date, besides=path)
    added = store.add(path, of, readings, replace=replace)
    words = [f"{added.new} added", f"{added.same} there already"]
    if added.kept:
        words.append(f"{added.kept} kept that are there with other numbers (--replace takes the new ones)")
    click.echo(f"{of.short}  {', '.join(words)}: {path}")
    return 0


@command.command("show")
@subject_option
@click.option("--all", "everything", is_flag=True, help="Verdicts and accuracies that never changed too.")
@db_option
def show(subject: str | None, everything: bool, path: Path) -> int:
    """List the series: how many commits, the first and the last value, on which machine."""
    from rich.table import Table
    from rich.text import Text

    from lnverify.history import store
    from lnverify.history.machine import in_words
    from lnverify.history.sample import METRICS
    from lnverify.history.wording import value_text
    from lnverify.reports.console import make_console
    from lnverify.reports.wording import count

    console = make_console()
    chosen = _series(path, subject)
    shown = [s for s in chosen if everything or len({(p.value, p.verdict) for p in s.points}) > 1]
    known = store.machines(path)
    places = dict.fromkeys((entry.key.subject, entry.key.machine) for entry in shown)
    for subject_name, machine in places:
        console.print(Text(subject_name, "bold"), soft_wrap=True)
        console.print(Text(f"on {machine}, {in_words(known[machine])}", "dim"), soft_wrap=True)
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("what", "metric", "commits", "first", "last"):
            table.add_column(name, overflow="fold", justify="left" if name in ("what", "metric") else "right")
        for entry in shown:
            key, points = entry.key, entry.points
            if (key.subject, key.machine) == (subject_name, machine):
                ends = value_text(points[0]), value_text(points[-1])
                table.add_row(Text(key.name), key.metric, str(len(points)), *ends)
        console.print(table)
        console.print()
    for metric, meaning in METRICS.items():
        if any(entry.key.metric == metric for entry in shown):
            console.print(Text(f"{metric}: {meaning}", "dim"))
    commits = {point.commit.id for entry in chosen for point in entry.points}
    left = len(chosen) - len(shown)
    same = f"; {left} never changed (--all shows them)" if left else ""
    console.print(Text(f"{len(chosen)} series over {count(len(commits), 'commit')}{same}"))
    return 0


@command.command("check")
@subject_option
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only changes within the last N commits.")
@alpha_option
@db_option
def check(subject: str | None, last: int | None, alpha: float, path: Path) -> int:
    """Name the commits at which a subject became slower, less accurate or wrong, or the opposite.

    Exit status: 1 if one of the changes is for the worse, 0 if none is, 2 usage, 3 if no series has enough commits.
    """
    from lnverify.history.changes import search
    from lnverify.history.wording import change_lines

    chosen = _series(path, subject)
    found = search(chosen, alpha)
    changes = _latest(found, chosen, last)
    for line in change_lines(changes):
        click.echo(line)
    worse = sum(change.worse for change in changes)
    click.echo(
        f"{worse} for the worse, {len(changes) - worse} for the better; {len(chosen)} series, {found.timed} of them "
        f"times{f', {found.short} with too few commits to tell' if found.short else ''}; alpha {alpha:g}"
    )
    if worse:
        return 1
    # A verdict tells from the second commit on.
    able = any(len(entry.points) > 1 for entry in chosen if entry.key.metric != "time")
    return 0 if able or found.timed > found.short else 3


def _latest(found: Search, chosen: list[Series], last: int | None) -> list[Change]:
    """The changes at one of the last N commits of the history."""
    if last is None:
        return list(found.changes)
    times = {point.commit.id: point.commit.time for entry in chosen for point in entry.points}
    latest = sorted(times, key=lambda id: times[id])[-last:]
    return [change for change in found.changes if change.at.commit.id in latest]


@command.command("html")
@click.argument("page", type=click.Path(path_type=Path), metavar="PAGE.html")
@subject_option
@alpha_option
@db_option
def html(page: Path, subject: str | None, alpha: float, path: Path) -> int:
    """Write one page that needs no network: each series over the commits, speed beside accuracy."""
    from lnverify.history import store
    from lnverify.history.changes import search
    from lnverify.history.page import page_text
    from lnverify.reports import json_file

    json_file.check_writable(page)
    chosen = _series(path, subject)
    json_file.write(page, page_text(chosen, search(chosen, alpha), store.machines(path)))
    click.echo(f"written: {page}")
    return 0


@command.command("export")
@click.argument("format", type=click.Choice(FORMATS))
@click.argument("folder", type=click.Path(path_type=Path))
@subject_option
@db_option
def export(format: str, folder: Path, subject: str | None, path: Path) -> int:
    """Write the ratios into the new FOLDER, as `asv publish` or Apache Otava reads them."""
    from lnverify.history import store
    from lnverify.history.commit import repository
    from lnverify.history.exports import write_asv, write_otava

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} is there and not an empty folder: name a new one.")
    chosen = [entry for entry in _series(path, subject) if entry.key.metric != "verdict"]
    if not chosen:
        raise UsageError(f"the history {str(path)!r} has no ratios to export: add a report first.")
    if format == "asv":
        click.echo(write_asv(folder, chosen, store.machines(path), repository(Path.cwd())))
    else:
        click.echo(write_otava(folder, chosen))
    return 0


def _series(path: Path, subject: str | None) -> list[Series]:
    """The series of the chosen subjects. Raises UsageError where there are none of that name."""
    from lnverify.history import store

    series = store.load(path)
    chosen = [entry for entry in series if subject is None or subject in entry.key.subject]
    if subject is not None and not chosen:
        names = ", ".join(sorted({entry.key.subject for entry in series})) or "none at all"
        raise UsageError(f"no subject has {subject!r} in its name: {names}.")
    return chosen
