"""`lnverify laws`: every law in one line; and the loading of third-party laws from a file (`--laws FILE`)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lnverify.errors import UsageError


def words(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> tuple[str, ...] | None:
    """Option callback: 'a,b' and repeated options alike; None where there are none."""
    split = [word.strip() for item in value for word in item.split(",")]
    found = tuple(dict.fromkeys(word for word in split if word))
    if value and not found:
        raise UsageError(f"{_param.opts[-1]} is empty: name something, or leave the option out.")
    return found or None


def law_files(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> tuple[str, ...]:
    """Option callback: load each file now."""
    from lnverify.law_files import load_file

    for path in value:
        load_file(Path(path))
    return tuple(value)


def laws_option(command: Any) -> Any:
    """The option --laws, the same for every command."""
    return click.option(
        "--laws", "law_paths", multiple=True, metavar="FILE", expose_value=False, callback=law_files,
        help="Also load the laws of a Python file (repeatable).",
    )(command)  # fmt: skip


@click.command("laws")
@click.option("--select", multiple=True, callback=words, metavar="LN1,LN305", help="Only these laws or families.")
@laws_option
def command(select: tuple[str, ...] | None) -> int:
    """List the laws: id, severity, name and claim, by family."""
    from lnverify.law import select_laws

    chosen = select_laws(select)
    # A pipe gets whole claims, one law per line; a terminal gets what fits.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    names = max((len(entry.name) for entry in chosen), default=0)
    family = ""
    for entry in chosen:
        if entry.family != family:
            if family:
                click.echo()
            family = entry.family
            click.echo(f"{entry.id[:3]}  {family}" if entry.id.startswith("LN") else family)
        line = f"  {entry.id}  {entry.severity:<7}  {entry.name:<{names}}  {entry.claim}"
        click.echo(line if len(line) <= width else f"{line[: width - 1]}…")
    return 0
