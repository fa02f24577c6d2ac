"""`lnverify claims`: what documents say about layer norm, the verdict on each claim, and its evidence, run now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from lnverify.claims.ledger import Claim
    from lnverify.claims.reading import Reading

STYLES = {"true": "green", "conditional": "yellow", "false": "red"}


@click.command("claims", short_help="Show claims about layer norm, and run their evidence.")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--page", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write all of it as a page.")
@click.option("--empirical", is_flag=True, help="Run small experiments on what is empirical, some minutes in all.")
def command(ids: tuple[str, ...], path: Path | None, empirical: bool) -> int:
    """Show what two documents and the paper claim about layer norm, with a verdict, and run the evidence.

    An ID is that of a claim (B20), or how several begin (A, B8). With one, everything about these claims is shown.
    Exit status 1 if evidence does not agree with its verdict.

    With --empirical an ID is the name of an experiment, or a claim that one is about. Its results are measurements: the
    exit status is 0 if it could run. It needs torch and scikit-learn, and for --page matplotlib.
    """
    from rich.table import Table
    from rich.text import Text

    from lnverify.claims.ledger import DOCUMENTS, select_claims
    from lnverify.errors import UsageError
    from lnverify.reports.console import make_console

    if empirical:
        from lnverify.cli import claims_empirical

        return claims_empirical.run(ids, path)
    if path is not None:
        if ids:
            raise UsageError("--page writes every claim: leave the ids out.")
        return _write(path)
    chosen = select_claims(ids)
    console = make_console()
    runs = [(entry, entry.readings()) for entry in chosen]
    if ids:
        for entry, readings in runs:
            _show(entry, readings, console)
    else:
        legend = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for document in DOCUMENTS:
            legend.add_row(document.letter, Text(document.what, "dim"))
        console.print(legend)
        console.print()
    for topic in () if ids else dict.fromkeys(entry.topic for entry in chosen):
        console.print(Text(topic, "bold"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for width in (6, 12, None, 13):
            table.add_column(width=width)
        for entry, readings in runs:
            if entry.topic == topic:
                table.add_row(f"  {entry.id}", Text(entry.verdict, STYLES.get(entry.verdict, "dim")), entry.statement,
                              _agreement(entry, readings))  # fmt: skip
        console.print(table)
        console.print()
    return _summary(runs, console)


def _agreement(entry: Claim, readings: Sequence[Reading]) -> Text:
    """Whether what ran agrees with the verdict, in a word or two."""
    from rich.text import Text

    from lnverify.claims.empirical.experiments import experiments_of

    bad = sum(not r.holds for r in readings)
    if not readings:
        return Text("nothing runs" if not experiments_of(entry.id) else "--empirical", "dim")
    return Text(f"{bad} DISAGREE", "bold red") if bad else Text(f"{len(readings)} agree", "green")


def _show(entry: Claim, readings: Sequence[Reading], console: Console) -> None:
    """One claim in full."""
    from rich.padding import Padding
    from rich.text import Text

    from lnverify.claims.empirical.experiments import experiments_of
    from lnverify.claims.ledger import PROVE

    def prose(text: str, indent: int = 4) -> None:
        console.print(Padding(Text(text), (0, 0, 0, indent)))

    title = Text.assemble((entry.id, "bold"), "  ", (entry.verdict, STYLES.get(entry.verdict, "dim")))
    console.print(Text.assemble(title, (f"  {entry.document.name}, {entry.place}", "dim")))
    prose(f"“{entry.statement}”")
    if entry.reason:
        prose(entry.reason)
    if entry.argument:
        console.print()
        prose("How it is decided. " + " ".join(entry.argument.split()))
    for r in readings:
        mark = Text("agrees", "green") if r.holds else Text("DISAGREES", "bold red")
        console.print(Padding(Text.assemble(mark, f"  {r.kind}: {r.what}"), (0, 0, 0, 4)))
        console.print(Padding(Text(f"{r.got}; held to: {r.due}", "dim"), (0, 0, 0, 12)))
    if entry.proofs:
        proved = Text.assemble(("proved", "green"), f"  for every H: {', '.join(entry.proofs)}")
        console.print(Padding(proved, (0, 0, 0, 4)))
        console.print(
            Text(f"            again, in a checkout: {PROVE} {' '.join(entry.proofs)}", "dim"), soft_wrap=True
        )
    if entry.laws:
        prose(f"laws    {', '.join(entry.laws)}")
        console.print(Text(f"            lnverify check --select {','.join(entry.laws)}", "dim"), soft_wrap=True)
    experiments = experiments_of(entry.id)
    if entry.without and not experiments:
        prose(f"nothing runs: {entry.without}")
    for experiment in experiments:
        prose(f"measured    {experiment.title}")
        console.print(Text(f"            {experiment.command}", "dim"), soft_wrap=True)
    console.print()


def _summary(runs: Sequence[tuple[Claim, Sequence[Reading]]], console: Console) -> int:
    """The last line, and the exit status."""
    from rich.text import Text

    from lnverify.claims.page import tally

    wrong = [entry.id for entry, readings in runs if not all(r.holds for r in readings)]
    count = sum(len(readings) for _, readings in runs)
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in tally([entry for entry, _ in runs]).items())
    claims = f"{len(runs)} claim{'s' if len(runs) > 1 else ''} ({verdicts})"
    if wrong:
        said = Text.assemble(("FAILED", "bold red"), f"  the evidence of {', '.join(wrong)} disagrees with its verdict")
    else:
        said = Text.assemble(("ok", "green"), f"  {claims}; {count} pieces of evidence ran, and agree")
    console.print(said, soft_wrap=True)
    return 1 if wrong else 0


def _write(path: Path) -> int:
    """Write the page of the ledger."""
    from lnverify.claims.ledger import select_claims
    from lnverify.claims.page import page
    from lnverify.reports import json_file

    json_file.check_writable(path)
    json_file.write(path, page(select_claims()))
    click.echo(f"written: {path}")
    return 0
