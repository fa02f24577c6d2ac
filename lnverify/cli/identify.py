"""`lnverify identify`: how an implementation computes, as far as its answers show it."""

from __future__ import annotations

import click

from lnverify.cli.laws import words
from lnverify.errors import UsageError


@click.command("identify", short_help="Say how an implementation computes.")
@click.argument("target")
@click.option("--dtype", "dtypes", multiple=True, callback=words, metavar="fp32,bf16", help="[default: float32]")
@click.option("--device", default="cpu", show_default=True, help="Where.")
@click.option("--isolate/--no-isolate", default=True, help="Run the target in a process of its own. [default: on]")
def command(target: str, dtypes: tuple[str, ...] | None, device: str, isolate: bool) -> int:
    """Say which formula, axes, eps, variance, rounding and backward TARGET shows, and on what its bits depend.

    Right implementations are identified too; nothing here is a verdict.
    """
    from rich.table import Table
    from rich.text import Text

    from lnverify.floats import canonical_dtype
    from lnverify.identify import identify
    from lnverify.part import Plan, examined
    from lnverify.reports.console import make_console

    wanted = tuple(dict.fromkeys(map(canonical_dtype, dtypes or ("float32",))))
    console = make_console()
    with examined(Plan(target, isolate=isolate), device) as subject:
        if unknown := [d for d in wanted if d not in subject.capabilities.dtypes]:
            allowed = ", ".join(subject.capabilities.dtypes)
            raise UsageError(f"{target} declares {allowed}, not {unknown[0]}: choose another --dtype.")
        for dtype in wanted:
            facts = identify(subject, dtype, device)
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
