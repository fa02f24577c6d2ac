"""`lnverify check`: judge implementations by the laws, show what was found, keep the report."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lnverify.cli.laws import laws_option, words
from lnverify.errors import LnverifyError, UsageError

if TYPE_CHECKING:
    from lnverify.finding import Report
    from lnverify.report_cache import Run

PROFILES = ("quick", "ci", "deep")  # as in lnverify.profiles, which would import more than --help needs
# Not a docstring: \b, which keeps click from wrapping a paragraph, wants a string that is not raw.
HELP = """Check TARGETs against the laws; without one, torch.nn.functional.layer_norm.

\b
A target is [kind:]place[:name][?key=value&...]:
  torch.nn.LayerNorm              a class or function by its dotted name
  mypkg.nn:FusedLN?eps=1e-6       the same, with what it fixes
  ./kernels.py:fwd?backward=bwd   functions in a file

Exit status: 0 holds, 1 violated, 2 usage, 3 inconclusive, 4 a fault of lnverify itself.
"""
WORST_FIRST = (1, 3, 0)
SMALLEST_MEMORY = 1 << 26  # a bare interpreter with NumPy takes about that much
Progress = Callable[[int, int, str], None]


def seed_number(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    """Option callback: a whole number, or 'random' for a fresh one."""
    if value == "random":
        return secrets.randbelow(1 << 32)
    if not (value.isascii() and value.isdigit()):
        raise UsageError(f"the seed {value!r} is neither a whole number from 0 nor 'random'.")
    return int(value)


def memory_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Option callback: bytes, from '4GiB', '512M' or a plain number of bytes."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", value.strip().lower())
    size = int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " ")) if found else 0
    if size < SMALLEST_MEMORY:
        raise UsageError(f"--memory {value} is not a size from 64MiB up: write 4GiB, or 512MiB.")
    return size


@click.command("check", help=HELP, short_help="Check implementations against the laws.")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--operation", help="What the targets compute. [default: what they declare, else layer_norm]")
@click.option("--variant", help="Which one, of an operation with several: per_gate, of ln_lstm.")
@click.option("--dtype", "dtypes", multiple=True, callback=words, metavar="fp32,bf16", help="Only these dtypes.")
@click.option("--device", "devices", multiple=True, callback=words, metavar="cpu,cuda", help="Where. [default: cpu]")
@click.option("--profile", type=click.Choice(PROFILES), help="How much. [default: quick]")
@click.option("--select", multiple=True, callback=words, metavar="LN1,LN305", help="Only these laws or families.")
@click.option("--ignore", multiple=True, callback=words, metavar="LN7", help="Leave these laws or families out.")
@click.option("--strict", is_flag=True, help="Warnings make the verdict 'violated' too.")
@click.option("-x", "--fail-fast", is_flag=True, help="Stop at the first violation.")
@click.option("--seed", default="0", callback=seed_number, metavar="N|random", help="Other cases. [default: 0]")
@click.option("--max-examples", type=click.IntRange(min=1), metavar="N", help="Drawn cases per strategy and dtype.")
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Stop after.")
@click.option("--isolate/--no-isolate", default=True, help="Run the target in a process of its own. [default: on]")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="What one request may take before the target counts as hanging. [default: 30]",
)
@click.option(
    "--memory",
    callback=memory_size,
    metavar="SIZE",
    help="What the target may take, 4GiB say. [default: half of the machine]",
)
@click.option("--huge", is_flag=True, help="Also more than 2^31 and 2^32 elements, where they fit.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("-q", "--quiet", is_flag=True, help="The verdict line only.")
@click.option("-v", "--verbose", is_flag=True, help="Every law in every dtype.")
@click.option("--write-expected", is_flag=True, help="Write the errors found to lnverify.toml, as expected ones.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the report.")
@click.option("--junit", "junit_path", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML.")
@click.option("--output-format", type=click.Choice(("text", "github")), default="text", show_default=True)
@laws_option
def command(
    targets: tuple[str, ...],
    dtypes: tuple[str, ...] | None,
    json_path: Path | None,
    junit_path: Path | None,
    output_format: str,
    quiet: bool,
    verbose: bool,
    select: tuple[str, ...] | None,
    ignore: tuple[str, ...] | None,
    operation: str | None,
    variant: str | None,
    write_expected: bool,
    **options: Any,
) -> int:
    """Find what is wrong with the arguments, then check target after target."""
    from lnverify import config, expectations, report_cache
    from lnverify.floats import canonical_dtype
    from lnverify.law import select_laws
    from lnverify.operation import operation as known_operation

    # All that can be wrong with the arguments is found here, before the first framework is imported.
    project = config.load(Path.cwd())
    operation = operation or project.operation
    if variant and not operation:
        raise UsageError(f"--variant {variant} is one of an operation: give --operation too, ln_lstm say.")
    chosen = known_operation(operation or "layer_norm", variant)
    operation = chosen.name if operation else None
    default = chosen.default
    options["profile"] = options["profile"] or project.profile
    options["dtypes"] = tuple(dict.fromkeys(map(canonical_dtype, dtypes))) if dtypes else project.dtypes
    if write_expected and (Path.cwd() / config.FILE).exists():
        raise UsageError(f"{config.FILE} is there already: edit it, or move it away before --write-expected.")
    whole = not (dtypes or select or ignore or options["fail_fast"] or options["devices"])
    named, targets = targets, targets or project.targets or (default,)
    if not all(named):
        raise UsageError("a target is empty: name a file and a function, ./kernels.py:layer_norm, or a module and one.")
    if not all(targets):
        raise UsageError(f"no framework has a function for {operation}: name the target to check.")
    if write_expected and len(targets) > 1:
        raise UsageError(f"--write-expected writes the errors of one target, not of {len(targets)}: name one.")
    if not select_laws(select, ignore):
        raise UsageError("no law is left: --ignore leaves out every law that --select chooses.")
    expectations.known(project)
    _check_paths(json_path, junit_path)
    run = report_cache.new_run()
    reports: list[Report] = []
    try:
        for target in targets:
            report = _run(target, quiet, operation=operation, select=select, ignore=ignore, **options)
            if project.expected and (not named or target in project.targets):
                expectations.apply(report, project, target, whole and not report.stopped)
            reports.append(report)
            source = _keep(run, reports, json_path)
            if len(reports) > 1 and not quiet:
                click.echo()
            _show(report, source, output_format=output_format, quiet=quiet, verbose=verbose)
            if report.stopped == "interrupted" or (options["fail_fast"] and report.exit_status == 1):
                break
    finally:
        # Also where a later target cannot be loaded: what was found is written.
        if reports:
            _write(reports, json_path, junit_path)
    if write_expected:
        click.echo(f"written: {expectations.write(Path.cwd(), reports[0], options['profile']).name}; say why in each.")
    left = targets[len(reports) :]
    if left:
        click.echo(f"lnverify: not checked: {', '.join(left)}.", err=True)
    found = {report.exit_status for report in reports}
    return next(status for status in WORST_FIRST if status in found)


def _check_paths(*paths: Path | None) -> None:
    """Report paths are refused before the run, not after it."""
    from lnverify.reports import json_file

    given = [path for path in paths if path is not None]
    for path in given:
        json_file.check_writable(path)
    if len({path.resolve() for path in given}) < len(given):
        raise UsageError("--json and --junit name the same file: give two.")


def _run(target: str, quiet: bool, *, devices: Sequence[str] | None, **options: Any) -> Report:
    from lnverify.host import Limits
    from lnverify.runner import check

    given = {"timeout": options.pop("timeout"), "memory": options.pop("memory")}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    with progress_bar(target, shown=not quiet) as progress:
        return check(target, devices=devices, limits=limits, progress=progress, **options)


@contextmanager
def progress_bar(title: str, *, shown: bool = True) -> Iterator[Progress | None]:
    """A bar on stderr while something runs, if stderr is a terminal; None otherwise."""
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, markup=False, highlight=False)
    columns = (TextColumn("{task.fields[title]}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=console, transient=True) as bar:
        task = bar.add_task("", title=title, total=None)

        def progress(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=text)

        yield progress


def _keep(run: Run, reports: Sequence[Report], json_path: Path | None) -> str:
    """Keep the reports in the cache; what `lnverify replay` takes: the given file, the run's id, or ''."""
    try:
        run.store(reports)
        kept = run.id
    except LnverifyError as error:
        kept = ""
        click.echo(f"lnverify: the report is not kept: {error}", err=True)
    return str(json_path) if json_path is not None and json_path.suffix == ".json" else kept


def _show(report: Report, source: str, *, output_format: str, quiet: bool, verbose: bool) -> None:
    from lnverify.reports import console, github

    if output_format == "github":
        for line in github.workflow_commands(report):
            click.echo(line)
        if place := os.environ.get("GITHUB_STEP_SUMMARY"):
            _append(Path(place), github.summary(report, source))
        quiet = True  # the annotations say the rest
    console.show(report, console.make_console(), source=source, verbose=verbose, quiet=quiet)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write the summary {str(path)!r}: {error.strerror}.") from None


def _write(reports: Sequence[Report], json_path: Path | None, junit_path: Path | None) -> None:
    from lnverify.reports import json_file, junit

    if json_path is not None:
        json_file.write(json_path, json_file.text(reports))
    if junit_path is not None:
        json_file.write(junit_path, junit.text(reports))
