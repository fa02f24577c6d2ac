"""`lnverify table1`: the paper's table of invariances, each cell decided anew."""

from __future__ import annotations

from pathlib import Path

import click

from lnverify.cli.check import progress_bar


@click.command("table1", short_help="Decide the paper's table of invariances.")
@click.option("--page", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write it as a page.")
def command(path: Path | None) -> int:
    """Decide which of batch, weight and layer norm is invariant to which change, as Table 1 of the paper says.

    Everything is computed in fractions: a 'no' shows its counterexample, a 'yes' how much was looked at. Exit status
    1 if a cell is not what the paper says.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from lnverify.claims import table1
    from lnverify.reports import json_file
    from lnverify.reports.console import make_console

    if path is not None:
        json_file.check_writable(path)
    with progress_bar("table1") as progress:
        cells = table1.table(progress)
    bad = [cell for cell in cells if not cell.agrees]
    if path is not None:
        json_file.write(path, table1.page(cells))
        click.echo(f"written: {path}")
        return 1 if bad else 0
    console = make_console()
    grid = Table(box=None, padding=(0, 2, 0, 0))
    grid.add_column()
    for change in table1.CHANGES:
        head, _, tail = change.rpartition(" ")
        grid.add_column(f"{head}\n{tail}")
    for method in table1.METHODS:
        row = [cell for cell in cells if cell.method == method]
        grid.add_row(method, *(Text("yes", "green") if cell.invariant else Text("no", "red") for cell in row))
    console.print(grid)
    for cell in cells:
        if not cell.invariant:
            console.print()
            console.print(Text.assemble((f"{cell.method}, {cell.change}: no", "bold")))
            console.print(Padding(Text(table1.sentence(cell)), (0, 0, 0, 4)))
    looked = min(cell.looked for cell in cells if cell.invariant)
    console.print()
    console.print(Text(f"yes: outputs are equal, exactly, in each of {looked} settings or more.", "dim"))
    if bad:
        names = "; ".join(f"{cell.method}, {cell.change}" for cell in bad)
        console.print(Text.assemble(("FAILED", "bold red"), f"  not as in the paper: {names}"), soft_wrap=True)
    else:
        console.print(Text.assemble(("ok", "green"), f"  all {len(cells)} cells are as in the paper's Table 1"))
    return 1 if bad else 0
