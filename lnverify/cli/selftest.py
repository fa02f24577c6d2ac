"""`lnverify selftest`: the laws against implementations with a known bug, and against correct ones."""

from __future__ import annotations

import click

from lnverify.cli.check import progress_bar


@click.command("selftest", short_help="Show that the laws catch known bugs.")
@click.option("-q", "--quiet", is_flag=True, help="The last line only.")
def command(quiet: bool) -> int:
    """Show that each wrong implementation is caught, and by which laws, and that no correct one is.

    Exit status 1 if a wrong implementation passes or a correct one does not.
    """
    from rich.table import Table
    from rich.text import Text

    from lnverify.reports.console import make_console
    from lnverify.selftest import selftest

    with progress_bar("selftest", shown=not quiet) as progress:
        outcome = selftest(progress=progress)
    console = make_console()
    wrong = [row for row in outcome.rows if row[1] == "mutant"]
    right = [row for row in outcome.rows if row[1] != "mutant"]
    for title, rows in (("wrong implementations", wrong), ("correct implementations", right)):
        if quiet or not rows:
            continue
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for name in (title, "", "violates"):
            table.add_column(name, no_wrap=name != "violates")
        for name, kind, laws, ok, note in rows:
            word = ("caught" if kind == "mutant" else "holds") if ok else ("MISSED" if kind == "mutant" else "ACCUSED")
            facts = " ".join(laws) + (f"  ({note})" if note else "")
            table.add_row(name, Text(word, "green" if ok else "bold red"), Text(facts))
        console.print(table)
        console.print()
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
