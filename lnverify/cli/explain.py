"""`lnverify explain LN301`: what a law claims, why its bound is what it is, and where that comes from."""

from __future__ import annotations

import click

from lnverify.cli.laws import laws_option
from lnverify.errors import UsageError


@click.command("explain")
@click.argument("laws", nargs=-1, required=True, metavar="LAW...")
@laws_option
def command(laws: tuple[str, ...]) -> int:
    """Explain laws, by id (LN301) or name (input-shift)."""
    from lnverify.law import Law, load_laws

    known = load_laws()
    chosen: list[Law] = []
    for word in laws:
        found = [entry for i, entry in known.items() if i == word.upper() or entry.name == word.lower()]
        family = [i for i in known if i.startswith(word.upper())]
        if family and not found:
            raise UsageError(f"{word!r} names {len(family)} laws, {family[0]} to {family[-1]}: explain one of them.")
        if not found:
            ids = f", {min(known)} to {max(known)}" if known else ""
            raise UsageError(f"there is no law {word!r}: `lnverify laws` lists the ids{ids}.")
        chosen += found
    for place, entry in enumerate(chosen):
        if place:
            click.echo("\n")
        _explain(entry)
    return 0


def _explain(entry: object) -> None:
    from lnverify.law import Law

    assert isinstance(entry, Law)
    dtypes = ", ".join(entry.dtypes) if entry.dtypes else "every dtype"
    facts = {
        "family": entry.family,
        "severity": entry.severity,
        "needs": ", ".join(entry.needs) or "nothing",
        "judged in": dtypes,
        "source": entry.source,
        "run it": f"lnverify check --select {entry.id}",
    }
    click.echo(f"{entry.id}  {entry.name}  ({entry.operation})\n")
    click.echo(f"{entry.explanation}\n")
    for name, value in facts.items():
        click.echo(f"{name + ':':<11}{value}")
