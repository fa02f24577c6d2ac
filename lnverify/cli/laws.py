"""`lnverify laws`: every law in one line; and the loading of third-party laws from a file (`--laws FILE`)."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lnverify.errors import LnverifyError, UsageError


def words(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> tuple[str, ...] | None:
    """Option callback: 'a,b' and repeated options alike; None where there are none."""
    split = [word.strip() for item in value for word in item.split(",")]
    return tuple(dict.fromkeys(word for word in split if word)) or None


def law_files(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> tuple[str, ...]:
    """Option callback: load each file now."""
    for path in value:
        load_file(Path(path))
    return tuple(value)


def laws_option(command: Any) -> Any:
    """The option --laws, the same for every command."""
    return click.option(
        "--laws", "law_paths", multiple=True, metavar="FILE", expose_value=False, callback=law_files,
        help="Also load the laws of a Python file (repeatable).",
    )(command)  # fmt: skip


def load_file(path: Path) -> None:
    """Run a Python file that registers laws. Raises UsageError if it cannot be run or registers none."""
    from lnverify.law import REGISTRY, load_laws

    load_laws()  # first, so that an id that is taken is an error of the file
    if not path.is_file():
        raise UsageError(f"cannot read the laws of {str(path)!r}: there is no such file.")
    # A name of its own for each path: a law may be loaded twice, but not overwritten by another file's.
    name = f"lnverify_laws_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"cannot read the laws of {str(path)!r}: it is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except LnverifyError:
        raise
    except Exception as error:  # the file is the user's: whatever it raises is told in one sentence
        text = " ".join(str(error).split())
        raise UsageError(f"the laws of {str(path)!r} were not loaded: {type(error).__name__}: {text}") from None
    if not any(entry.check.__module__ == name for entry in REGISTRY.values()):
        raise UsageError(f"{str(path)!r} registers no law: decorate a function with @lnverify.law.law(...).")


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
