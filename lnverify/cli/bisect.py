"""`lnverify bisect`: any verdict of lnverify in the words that `git bisect run` understands.

`git bisect run` takes every exit status from 1 to 127 for 'bad', but for 125, 'cannot be tested': a commit that cannot
be imported would be blamed. From 128 on it stops.
"""

from __future__ import annotations

import os
import subprocess
import sys

import click

from lnverify.errors import FrameworkError, LnverifyError, SignatureError, TargetError, UsageError

JUDGING = ("check", "replay", "gate")
SKIP, STOP = 125, 128
# SKIP: the target cannot be loaded there; 3: undecided. A wrong command (2), a fault of lnverify and an interrupt say
# nothing of the commit.
TRANSLATED = {0: 0, 1: 1, SKIP: SKIP, 3: SKIP}
# Not a docstring: \b, which keeps click from wrapping a paragraph, wants a string that is not raw.
HELP = """Run `lnverify check`, `replay` or `gate` for `git bisect run`.

\b
git bisect start BAD GOOD
git bisect run lnverify bisect replay report.json ./kernels.py:forward
git bisect run lnverify bisect check ./kernels.py:forward --select LN101 --dtype float32

\b
Exit status: 0 good; 1 bad; 125 for a commit whose target cannot be loaded, or that stays undecided;
128 stops the search, for the command is wrong or lnverify has a fault.
"""


class StopBisectError(UsageError):
    """A wrong command, in a status that git does not take for a bad commit."""

    exit_status = STOP


@click.command(
    "bisect", help=HELP, short_help="Find the commit that broke it, with git bisect.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)  # fmt: skip
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="check|replay|gate [ARGUMENTS]...")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Look at the command first: were it wrong, every commit would be skipped."""
    _refuse_wrong(ctx, words)
    # Sources of one size that are checked out within a second would pass for the compiled ones of another commit.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    status = subprocess.run(
        [sys.executable, "-m", "lnverify.cli.bisect", *words], env=environment, check=False
    ).returncode
    return TRANSLATED.get(status, STOP)


def _refuse_wrong(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Raises StopBisectError for what the command line would refuse at every commit."""
    assert ctx.parent is not None
    group = ctx.parent.command
    assert isinstance(group, click.Group)
    name = words[0] if words else ""
    judging = group.get_command(ctx.parent, name) if name in JUDGING else None
    if judging is None:
        there = [known for known in JUDGING if group.get_command(ctx.parent, known)]
        raise StopBisectError(
            f"{name!r} judges no commit: write `lnverify bisect WORD ...` with one of {', '.join(there)}."
        )
    try:
        judging.make_context(name, list(words[1:]))
    except click.ClickException as error:
        raise StopBisectError(f"{' '.join(error.format_message().split()).rstrip('.')}: see `{name} --help`.") from None
    except LnverifyError as error:
        raise StopBisectError(str(error)) from None


def judge() -> None:
    """The command line, with a status of its own for a target that cannot be loaded."""
    from lnverify.cli import main

    for error in (TargetError, FrameworkError, SignatureError):
        error.exit_status = SKIP
    main()


if __name__ == "__main__":
    judge()
