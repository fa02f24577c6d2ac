"""`lnverify selftest`: the laws against implementations with a known bug, and against correct ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lnverify.cli.check import progress_bar
from lnverify.errors import UsageError

if TYPE_CHECKING:
    from lnverify.selftest import Row


@click.command("selftest", short_help="Show that the laws catch known bugs.")
@click.option("-q", "--quiet", is_flag=True, help="The last line only.")
@click.option(
    "--score",
    "score_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead: every law on every wrong one, beside the usual tests, as a page.",
)
@click.option("--full", is_flag=True, help="The whole grid for the correct ones; takes hours.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("-k", "only", default="", metavar="TEXT", help="Only implementations with TEXT in their name.")
def command(quiet: bool, only: str, full: bool, jobs: int, score_path: Path | None) -> int:
    """Show that each wrong implementation is caught, and by which laws, and that no correct one is.

    Each line is printed as soon as it is known. Exit status 1 if a wrong implementation passes or a correct one does
    not.
    """
    if score_path is not None:
        return _score(score_path, only, jobs, quiet)
    from rich.text import Text

    from lnverify.reports.console import make_console
    from lnverify.selftest import selftest

    console = make_console()

    def tell(row: Row) -> None:
        name, kind, laws, ok, note = row
        wrong = kind == "mutant"
        word = ("caught" if wrong else "holds") if ok else ("MISSED" if wrong else "ACCUSED")
        facts = " ".join(laws) + (f"  ({note})" if note else "")
        shown = Text.assemble(f"{name:<36}", (f"{word:<9}", "green" if ok else "bold red"), facts)
        console.print(shown, soft_wrap=True)

    with progress_bar("selftest", shown=not quiet) as progress:
        outcome = selftest(progress, only, None if quiet else tell, full, jobs)
    if not outcome.rows:
        raise UsageError(f"no implementation has {only!r} in its name: leave -k out to run all.")
    wrong = [row for row in outcome.rows if row[1] == "mutant"]
    right = [row for row in outcome.rows if row[1] != "mutant"]
    for sentence in outcome.left_out:
        if not quiet:
            console.print(Text(f"left out: {sentence}", "dim"))
    caught, passed = sum(row[3] for row in wrong), sum(row[3] for row in right)
    console.print(
        Text.assemble(
            ("ok" if outcome.ok else "FAILED", "green" if outcome.ok else "bold red"),
            f"  {caught} of {len(wrong)} wrong implementations caught, "
            f"{passed} of {len(right)} correct ones left in peace",
        ),
        soft_wrap=True,
    )
    return 0 if outcome.ok else 1


def _score(path: Path, only: str, jobs: int, quiet: bool) -> int:
    """Write the page of the mutation score."""
    from lnverify.law import load_laws
    from lnverify.reports import json_file
    from lnverify.score import page
    from lnverify.selftest import scores

    json_file.check_writable(path)
    with progress_bar("score", shown=not quiet) as progress:
        found = scores(only, jobs, progress, None if quiet else lambda s: click.echo(f"{s.id:<36}{' '.join(s.laws)}"))
    json_file.write(
        path, page(found, {law.id: law.name for law in load_laws().values() if law.operation == "layer_norm"})
    )
    missed = [s.id for s in found if not s.found]
    click.echo(f"{len(found) - len(missed)} of {len(found)} found; missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0
