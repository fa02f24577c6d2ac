"""`lnverify gate`: whether a change made an implementation wrong, less accurate or slower."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from lnverify.cli.bench import hot_paths, shapes_option
from lnverify.cli.check import PROFILES, Progress, progress_bar
from lnverify.cli.laws import words
from lnverify.errors import UsageError

if TYPE_CHECKING:
    from lnverify.config import Config
    from lnverify.finding import Report
    from lnverify.gate.decision import Decision
    from lnverify.gate.settings import Settings

STAGES = 12  # of a progress bar: laws, screens, confirmations


def share(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Option callback: 0.02 from '2%' or '0.02'."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", value.strip())
    number = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= number < 1:
        raise UsageError(f"{_param.opts[-1]} {value} is not a share from 0 to below 100%: write 2%, or 0.02.")
    return number


@click.command("gate", short_help="Fail where a change made it wrong, inaccurate or slow.")
@click.argument("target", required=False)
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help="What to compare with.")
@click.option("--update", is_flag=True, help="Make the baseline anew, and compare nothing.")
@click.option("--base-ref", metavar="REV", help="Compare with the merge base of HEAD and REV, timed side by side.")
@click.option("--slower-than", default="2%", callback=share, show_default=True, help="What is allowed.")
@click.option("--calibrate", type=click.IntRange(min=1), metavar="N", help="N gates of the target against itself.")
@click.option("--slowed", default="0%", callback=share, help="With --calibrate: a slowdown to be found.")
@click.option("--against", metavar="TARGET", help="Times are ratios to this. [default: torch's layer norm]")
@shapes_option("32x768, 512x1024")
@click.option("--dtype", "dtypes", multiple=True, callback=words, metavar="fp32,bf16", help="[default: fp32, bf16]")
@click.option("--select", multiple=True, callback=words, metavar="LN1,LN305", help="Only these laws or families.")
@click.option("--profile", type=click.Choice(("gate", *PROFILES)), help="How many cases. [default: gate]")
@click.option("--device", help="cpu or cuda. [default: cpu]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads that compute. [default: 1]")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="S",
              help="For each path in each process, about. [default: 0.4]")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="The verdict line only.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the result.")
@click.option("--junit", "junit_path", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML.")
def command(
    target: str | None,
    baseline: Path | None,
    update: bool,
    base_ref: str | None,
    slower_than: float,
    calibrate: int | None,
    slowed: float,
    quiet: bool,
    json_path: Path | None,
    junit_path: Path | None,
    **given: Any,
) -> int:
    """Compare TARGET with a baseline: verdicts of the laws, worst ratios of error to bound, and speed.

    Speed is the ratio to --against in rounds that take turns, or with --base-ref to the earlier code in the same
    process. What a screen suspects is timed again in six fresh processes, and is slower only where the lower confidence
    bound says so. With a baseline its settings hold; --shapes, --dtype, --select and what follows are for --update,
    --base-ref and --calibrate.

    Exit status: 0 passed, 1 regression, 2 usage, 3 could not tell.
    """
    from lnverify import config
    from lnverify.reports import gate_table
    from lnverify.reports.console import make_console

    project = config.load(Path.cwd())
    target = _target(target, project)
    _only(baseline, update, base_ref, calibrate, slowed)
    if given["against"] and (calibrate is not None or (base_ref is not None and baseline is None)):
        word = "--base-ref times the target against its earlier code"
        word = "--calibrate times the target against itself" if calibrate is not None else word
        raise UsageError(f"{word}: leave --against out.")
    if (update or calibrate is not None) and (json_path or junit_path):
        word = "--update writes the baseline" if update else "--calibrate compares nothing with a baseline"
        raise UsageError(f"{word}, there is no report to write: leave --json and --junit out.")
    _check_paths(baseline if update else None, json_path, junit_path)
    settings = _settings(target, project, given)
    fixed = baseline is not None and not update
    if fixed and (named := [name for name, value in given.items() if value is not None]):
        option = {"dtypes": "dtype"}.get(named[0], named[0])
        raise UsageError(f"--{option} is for the baseline to say: leave it out, or make the baseline anew by --update.")
    if calibrate is not None:
        return _calibrate(settings, calibrate, slower_than, slowed, quiet)
    if update:
        assert baseline is not None  # _only
        return _update(settings, project, baseline, quiet)
    started = time.monotonic()
    with progress_bar(target, shown=not quiet) as progress:
        decision = _decide(settings, project, baseline, base_ref, slower_than, _telling(progress, quiet))
    decision.seconds = time.monotonic() - started
    gate_table.show(decision, make_console(), quiet=quiet)
    _write(decision, json_path, junit_path)
    return decision.exit_status


def _only(
    baseline: Path | None, update: bool, base_ref: str | None, calibrate: int | None, slowed: float
) -> None:  # fmt: skip
    """Raises UsageError for options that do not go together."""
    if update and baseline is None:
        raise UsageError("--update needs --baseline FILE, the file to write.")
    if update and base_ref is not None:
        raise UsageError("--update measures the working tree, --base-ref compares it with a commit: give one of them.")
    if calibrate is not None and (baseline is not None or base_ref is not None):
        raise UsageError("--calibrate compares the target with itself: leave --baseline and --base-ref out.")
    said = click.get_current_context().get_parameter_source("slower_than")
    if update and said is ParameterSource.COMMANDLINE:
        raise UsageError("--slower-than decides a comparison, and --update compares nothing: leave it out.")
    if slowed and calibrate is None:
        raise UsageError("--slowed is for --calibrate N: name how many gates to run.")
    if baseline is None and base_ref is None and calibrate is None:
        raise UsageError("there is nothing to compare with: give --baseline FILE, --base-ref REV, or --calibrate N.")


def _target(target: str | None, project: Config) -> str:
    if project.operation not in (None, "layer_norm"):
        raise UsageError(f"gate compares layer_norm only, and {project.path} says {project.operation}.")
    if target is None and len(project.targets) != 1:
        raise UsageError("name the target to compare: lnverify.toml does not name exactly one.")
    return target or project.targets[0]


def _settings(target: str, project: Config, given: dict[str, Any]) -> Settings:
    from lnverify.gate.settings import DTYPES, Settings
    from lnverify.law import select_laws
    from lnverify.runner import DEFAULT_TARGET
    from lnverify.timing.paths import GATE_SHAPES

    dtypes = given["dtypes"] or project.dtypes or DTYPES
    found = hot_paths(given["shapes"], dtypes, given["device"] or "cpu", GATE_SHAPES)
    said: dict[str, Any] = {k: given[k] for k in ("select", "profile", "device", "threads", "seconds") if given[k]}
    if not select_laws(said.get("select"), None):
        raise UsageError("no law is left to compare.")
    return Settings(
        target, given["against"] or DEFAULT_TARGET, tuple(dict.fromkeys(path.dtype for path in found)),
        tuple(dict.fromkeys(path.shape for path in found)), **said,
    )  # fmt: skip


def _check_paths(*paths: Path | None) -> None:
    from lnverify.reports import json_file

    named = [path for path in paths if path is not None]
    for path in named:
        json_file.check_writable(path)
    if len({path.resolve() for path in named}) < len(named):
        raise UsageError("two of --baseline, --json and --junit name the same file: give different ones.")


def _telling(progress: Progress | None, quiet: bool) -> Any:
    """What says where it is: on the progress bar, or without a terminal in a line of the log."""
    count = 0

    def tell(text: str) -> None:
        nonlocal count
        if progress is not None:
            progress(count, max(STAGES, count + 1), text)
        elif not quiet:
            click.echo(f"lnverify gate: {text}", err=True)
        count += 1

    return tell


def _decide(
    settings: Settings, project: Config, path: Path | None, base_ref: str | None, slower_than: float, tell: Any
) -> Decision:
    from lnverify import expectations
    from lnverify.gate import decision
    from lnverify.gate.baseline import load
    from lnverify.timing import beside

    def known(report: Report) -> None:
        if settings.target in project.targets:
            expectations.apply(report, project, settings.target, whole=False)

    baseline = load(path) if path is not None else None
    if baseline is not None and baseline.settings.target != settings.target:
        stored = baseline.settings.target
        raise UsageError(f"the baseline {str(path)!r} is of {stored!r}, not of {settings.target!r}: name that target.")
    if baseline is not None and base_ref is None:
        return decision.with_file(baseline, str(path), known, slower_than, tell)
    assert base_ref is not None  # _only
    root = beside.repository(Path.cwd())
    commit = beside.merge_base(root, base_ref)
    with tempfile.TemporaryDirectory(prefix="lnverify-base-") as name:
        base = Path(name, "tree")
        beside.unpack(root, commit, base)
        if baseline is None:
            return decision.with_commit(settings, commit, base, root, known, slower_than, tell)
        places = {"base": str(base), "root": str(root)}
        shown = f"{path} and the merge base {commit[:12]}"
        return decision.with_file(baseline, shown, known, slower_than, tell, places)


def _update(settings: Settings, project: Config, path: Path, quiet: bool) -> int:
    from lnverify.gate import baseline, decision
    from lnverify.reports import json_file

    with progress_bar(settings.target, shown=not quiet) as progress:
        tell = _telling(progress, quiet)
        examined = decision.now(settings, lambda report: None, tell)
        if examined.lost:
            raise UsageError(f"{settings.target} gives no baseline: {examined.lost}; see `lnverify check`.")
        timed, machine = decision.measured(settings, tell)
    json_file.write(path, baseline.text(settings, examined, timed, machine))
    bad = sum(verdict in ("violated", "crashed") for verdict in examined.verdicts.values())
    count = sum(row.ratio is not None for row in timed)
    click.echo(f"written: {path}: {len(examined.verdicts)} verdicts ({bad} violations), {count} of {len(timed)} paths.")
    return 0


def _calibrate(settings: Settings, count: int, slower_than: float, slowed: float, quiet: bool) -> int:
    """Run null gates and say what follows for the rate of false alarms, or of finds."""
    from lnverify.gate.speed import null_gates
    from lnverify.timing.interval import rate_bound

    hits, unsure, paths = 0, 0, 0
    with progress_bar(settings.target, shown=not quiet) as progress:
        tell = _telling(progress, quiet)
        for number, rows in enumerate(null_gates(settings.job(slowed=slowed), count, slower_than, tell)):
            worse = [row for row in rows if row.outcome == "worse"]
            hits, paths = hits + bool(worse), paths + len(worse)
            unsure += not worse and any(row.outcome == "unsure" for row in rows)
            if not quiet:
                said = ", ".join(f"{row.name} {row.change}" for row in worse) or "nothing"
                click.echo(f"{number + 1:>4}  {said}")
    if slowed:
        least = 1 - rate_bound(count - hits, count)
        found = f"{hits} of {count} gates found a slowdown of {slowed:.1%}, on {paths} paths: at least {least:.1%} do"
    else:
        found = f"{hits} of {count} null gates raised a false alarm: at most {rate_bound(hits, count):.1%} do"
    click.echo(f"{found} (95 %); {unsure} could not tell.")
    return 3 if unsure == count else 0


def _write(decision: Decision, json_path: Path | None, junit_path: Path | None) -> None:
    from lnverify.reports import gate_table, json_file

    if json_path is not None:
        json_file.write(json_path, gate_table.text(decision))
    if junit_path is not None:
        json_file.write(junit_path, gate_table.junit(decision))
