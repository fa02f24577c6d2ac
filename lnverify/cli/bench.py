"""`lnverify bench`: how fast implementations are, beside a baseline and beside a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lnverify.cli.check import Progress, progress_bar
from lnverify.cli.laws import words
from lnverify.errors import UsageError

if TYPE_CHECKING:
    from lnverify.timing.paths import HotPath

DTYPES = ("float32", "bfloat16")


def shapes_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --shapes, the same for every command that times."""
    return click.option("--shapes", multiple=True, callback=words, metavar="32x768,512x1024",
                        help=f"Rows x N. [default: {default}]")  # fmt: skip


def hot_paths(
    shapes: tuple[str, ...] | None, dtypes: tuple[str, ...], device: str, default: tuple[tuple[int, ...], ...]
) -> list[HotPath]:
    """What the options ask for. Raises UsageError for a shape or a dtype that is none."""
    from lnverify.floats import canonical_dtype
    from lnverify.timing.paths import paths, shape

    wanted = tuple(dict.fromkeys(shape(text) for text in shapes)) if shapes else default
    return paths(wanted, dict.fromkeys(canonical_dtype(name) for name in dtypes), device=device)


@click.command("bench", short_help="Time implementations beside a baseline and a copy.")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--against", metavar="TARGET", help="The baseline. [default: torch.nn.functional.layer_norm]")
@shapes_option("1x64, 32x768, 512x1024, 4096x1024")
@click.option("--dtype", "dtypes", multiple=True, callback=words, metavar="fp32,bf16", help="[default: fp32, bf16]")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads that compute.")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True, help="Fresh processes.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=0.6, show_default=True,
              help="For each path in each process, about.")  # fmt: skip
@click.option("--keep-wrong", is_flag=True, help="Time what computes wrong results all the same, and say so.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the figures.")
def command(
    targets: tuple[str, ...],
    against: str | None,
    shapes: tuple[str, ...] | None,
    dtypes: tuple[str, ...] | None,
    device: str,
    threads: int,
    processes: int,
    seconds: float,
    keep_wrong: bool,
    json_path: Path | None,
) -> int:
    """Time TARGETs: forward, backward, and both, by shape and dtype.

    Each figure is a ratio within a round: candidate, baseline and a copy of as many bytes take turns in one process.
    A ratio of 1.10 is 10 % slower than the baseline; 'of copy' 0.80 means that a copy takes 80 % of its time. What
    computes a wrong result is reported and not timed. Exit status 0, or 3 where nothing could be timed.
    """
    from lnverify import config
    from lnverify.reports import bench_table, json_file
    from lnverify.reports.console import make_console
    from lnverify.runner import DEFAULT_TARGET
    from lnverify.timing.job import Job, several
    from lnverify.timing.paths import SHAPES
    from lnverify.timing.rounds import Budget
    from lnverify.timing.summary import summary

    project = config.load(Path.cwd())
    if project.operation not in (None, "layer_norm"):
        raise UsageError(f"bench times layer_norm only, and {project.path} says {project.operation}.")
    targets = targets or project.targets or (DEFAULT_TARGET,)
    wanted = hot_paths(shapes, dtypes or DTYPES, device, SHAPES)
    if json_path is not None:
        json_file.check_writable(json_path)
    baseline = against or DEFAULT_TARGET
    console, results = make_console(), {}
    machine: dict[str, Any] = {}
    for number, target in enumerate(targets):
        job = Job(target, tuple(wanted), baseline, threads=threads, budget=Budget(seconds), keep_wrong=keep_wrong)
        with progress_bar(target) as progress:

            def tell(done: int, progress: Progress | None = progress) -> None:
                if progress is not None:
                    progress(done, processes, f"process {done + 1}")

            found = several(job, processes, first=tell)
        machine = next((dict(done.machine) for done in found if done.machine), machine)
        results[target] = [summary(found, path) for path in wanted]
        if number:
            console.print()
        bench_table.show(target, baseline, results[target], console)
    if json_path is not None:
        json_file.write(json_path, bench_table.text(machine, results, baseline))
    return 0 if any(row.seconds is not None for rows in results.values() for row in rows) else 3
