"""`lnverify identify`: how an implementation computes, as far as its answers show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from lnverify.cli.laws import words
from lnverify.errors import SignatureError, UsageError

if TYPE_CHECKING:
    from lnverify.identify import Fact
    from lnverify.subject import Subject

    Ask = Callable[[Subject, str, str], list[Fact] | str]


@click.command("identify", short_help="Say how an implementation computes.")
@click.argument("target")
@click.option("--operation", help="What it computes. [default: what it declares, else layer_norm]")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    callback=words,
    metavar="fp32,bf16",
    help="[default: float32; of a block float64, where it can]",
)
@click.option("--device", default="cpu", show_default=True, help="Where.")
@click.option("--isolate/--no-isolate", default=True, help="Run the target in a process of its own. [default: on]")
def command(target: str, operation: str | None, dtypes: tuple[str, ...] | None, device: str, isolate: bool) -> int:
    """Say which formula, axes, eps, variance, rounding and backward TARGET shows, and on what its bits depend.

    Of a recurrent cell (--operation ln_lstm): which variant it is, in which order its gates are stacked, and what it
    carries on. Right implementations are identified too; nothing here is a verdict.
    """
    from rich.table import Table
    from rich.text import Text

    from lnverify.floats import canonical_dtype
    from lnverify.reports.console import make_console

    wanted = tuple(dict.fromkeys(map(canonical_dtype, dtypes or ())))
    console = make_console()
    with _subject(target, operation, device, isolate) as (subject, ask):
        if unknown := [d for d in wanted if d not in subject.capabilities.dtypes]:
            allowed = ", ".join(subject.capabilities.dtypes)
            raise UsageError(f"{target} declares {allowed}, not {unknown[0]}: choose another --dtype.")
        for dtype in wanted or (_telling(subject),):
            facts = ask(subject, dtype, device)
            if isinstance(facts, str) and not wanted and dtype != "float32":
                dtype, facts = "float32", ask(subject, "float32", device)
            console.print(Text(f"{subject.target}  {dtype} on {device}", "bold"), soft_wrap=True)
            if isinstance(facts, str):
                console.print(Text(f"  nothing to see: {facts}"), soft_wrap=True)
                continue
            table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
            for column in ("no_wrap", "", "dim"):
                table.add_column(no_wrap=column == "no_wrap", style=column if column == "dim" else "")
            for fact in facts:
                table.add_row(f"  {fact.name}", fact.value, fact.how)
            console.print(table)
    return 0


def _telling(subject: Subject) -> str:
    """float32; of a block, whose bounds in float32 are too wide to tell one gelu from another, float64."""
    from lnverify.operation import blocks

    return "float64" if subject.operation in blocks() and "float64" in subject.capabilities.dtypes else "float32"


@contextmanager
def _subject(target: str, operation: str | None, device: str, isolate: bool) -> Iterator[tuple[Subject, Ask]]:
    """The subject, and what asks it; of a cell under the first of the variants' names that its parameters allow."""
    from lnverify.identify import identify
    from lnverify.identify_block import identify_block
    from lnverify.identify_cell import identify_cell, variants
    from lnverify.operation import blocks, cells
    from lnverify.operation import operation as find_operation
    from lnverify.part import Plan, examined
    from lnverify.runner import agreed

    asked = find_operation(operation).name if operation else "layer_norm"
    if asked not in ("layer_norm", *cells(), *blocks()):
        known = ", ".join(cells() + blocks())
        raise UsageError(f"nothing is known to identify in {asked}: name layer_norm, or one of {known}.")
    names = variants(asked) if asked in cells() else (asked,)
    with ExitStack() as stack:
        for number, name in enumerate(names):
            try:
                subject = stack.enter_context(examined(Plan(target, name, isolate=isolate), device))
                break
            except SignatureError:
                if number == len(names) - 1:
                    raise
        found = agreed(subject, operation) if operation and subject.operation else subject.operation or name
        if found in cells():
            yield subject, lambda subject, dtype, device: identify_cell(subject, found, dtype, device)
        elif found in blocks():
            yield subject, lambda subject, dtype, device: identify_block(subject, found, dtype, device)
        else:
            yield subject, identify
