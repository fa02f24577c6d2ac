"""`lnverify claims --empirical`: small experiments on claims that are empirical, shown here or written as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lnverify.cli.check import progress_bar
from lnverify.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from lnverify.claims.empirical.effect import Outcome
    from lnverify.claims.empirical.experiments import Experiment

STYLES = {"showed": "green", "did not show": "yellow", "the opposite showed": "red"}


def run(words: tuple[str, ...], path: Path | None) -> int:
    """Run the experiments that are asked for, or all; write the page of all, or show each. Returns the exit status."""
    from lnverify.claims import empirical_page
    from lnverify.claims.empirical.experiments import check_installed, one_thread, select_experiments
    from lnverify.reports.console import make_console

    chosen = select_experiments(words)
    if path is not None and words:
        raise UsageError("--page writes every experiment: leave the names out.")
    check_installed(tuple(dict.fromkeys(need for entry in chosen for need in entry.needs)))
    if path is not None:
        check_installed(("matplotlib",))
        empirical_page.prepare(path)
    results = []
    total, done = sum(entry.arms for entry in chosen), 0
    with progress_bar("experiments") as progress, one_thread():
        for entry in chosen:

            def tell(text: str, name: str = entry.name) -> None:
                nonlocal done
                if progress is not None:
                    progress(done, total, f"{name}: {text}")
                done += 1

            results.append((entry, entry.run(tell)))
    if path is not None:
        for target in empirical_page.write(path, results):
            click.echo(f"written: {target}")
        return 0
    console = make_console()
    for entry, outcome in results:
        _show(entry, outcome, console)
    _summary(results, console)
    return 0


def _show(entry: Experiment, outcome: Outcome, console: Console) -> None:
    """One experiment: set-up, and each effect with its interval."""
    from rich.padding import Padding
    from rich.text import Text

    from lnverify.claims.empirical import wording

    def prose(text: Text, indent: int) -> None:
        console.print(Padding(text, (0, 0, 0, indent)))

    about = f"  {entry.title}; about {', '.join(entry.claims)}; {outcome.seconds:.0f} s"
    console.print(Text.assemble((entry.name, "bold"), (about, "dim")))
    prose(Text(outcome.set_up, "dim"), 4)
    for effect in outcome.effects:
        value = f"  {wording.middle(effect)}, interval {wording.interval(effect)}"
        prose(Text.assemble((effect.shown, STYLES.get(effect.shown, "")), f"  {effect.what}"), 4)
        prose(Text(value + (f"; {effect.arms}" if effect.arms else ""), "dim"), 8)
    console.print()


def _summary(results: Sequence[tuple[Experiment, Outcome]], console: Console) -> None:
    """The last line."""
    from rich.text import Text

    from lnverify.claims.empirical import wording

    effects = [effect for _, outcome in results for effect in outcome.effects]
    said = f"  {len(effects)} effects: {wording.summary(effects)}"
    console.print(Text.assemble(("measured", "green"), said), soft_wrap=True)
