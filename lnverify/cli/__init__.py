"""The command line: `lnverify check`, `laws`, `explain`, `replay`, `selftest`, `claims` and others, a file for each.

Rules of this folder: command files import click and little else at their top, so that `--help`, `laws` and
`explain` start at once; what computes is imported in the command that needs it. Every way out of here has an
exit status and at most one sentence: 0 holds, 1 violated, 2 usage, 3 inconclusive, 4 a fault of lnverify.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

import click

from lnverify.allocator import keep_freed_memory
from lnverify.errors import InternalError, LnverifyError

# Not a docstring: \b, which keeps click from wrapping a paragraph, wants a string that is not raw.
HELP = """Does a Layer Normalization compute what it should? Laws with proven bounds, and what breaks them.

\b
lnverify check                           torch.nn.functional.layer_norm
lnverify check mypkg.nn:FusedLayerNorm   a class or function of yours
lnverify check ./kernels.py:forward      a function in a file
"""
COMMANDS = (
    "check", "identify", "laws", "explain", "replay", "bench", "gate", "selftest", "history", "bisect",
    "claims", "table1",
)  # fmt: skip


class Group(click.Group):
    """Commands are imported by name when they are asked for; every error becomes one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's file."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"lnverify.cli.{cmd_name}").command
        return command

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run, print at most one sentence of error, and exit. A command returns its exit status."""
        keep_freed_memory()
        extra["standalone_mode"] = False
        extra["prog_name"] = "lnverify"
        try:
            status = super().main(*args, **extra)
        except InternalError as error:
            sys.exit(_fault(error))
        except LnverifyError as error:
            sys.exit(_stop(str(error), error.exit_status))
        except click.Abort:
            sys.exit(_stop("interrupted.", 130))
        except click.ClickException as error:
            sys.exit(_stop(_usage(error), 2))
        except Exception as error:
            sys.exit(_fault(error))
        sys.exit(status if isinstance(status, int) else 0)


def _stop(sentence: str, status: int) -> int:
    click.echo(f"lnverify: {sentence}", err=True)
    return status


def _usage(error: click.ClickException) -> str:
    """Click's message as one sentence that ends with where the options are listed."""
    message = error.format_message().rstrip(".").replace("\n", " ")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "lnverify"
    return f"{message[:1].lower()}{message[1:]} (see `{path} --help`)."


def _fault(error: Exception) -> int:
    """What to do about a fault of lnverify itself, in one sentence; the traceback if asked for."""
    from importlib import metadata  # 40 ms that only a fault costs

    place = "the issue tracker of lnverify"
    try:
        urls = metadata.metadata("lnverify").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        urls = []
    for url in urls:
        name, _, address = url.partition(", ")
        if name.lower() in ("issues", "bug tracker", "tracker"):
            place = address
    debug = os.environ.get("LNVERIFY_DEBUG") == "1"
    if debug:
        sys.excepthook(*sys.exc_info())
    text = " ".join(str(error).split()).rstrip(".")
    what = text if isinstance(error, InternalError) else f"{type(error).__name__}: {text}"
    more = "" if debug else "; LNVERIFY_DEBUG=1 shows the traceback"
    sentence = f"this is a fault of lnverify, not of what it checks ({what}): "
    return _stop(f"{sentence}please report it, with the command, at {place}{more}.", 4)


def version() -> str:
    """The installed version, else that of the checkout."""
    if found := getattr(importlib.import_module("lnverify"), "__version__", None):
        return str(found)
    from importlib import metadata

    try:
        return metadata.version("lnverify")
    except metadata.PackageNotFoundError:
        return "(unknown version)"


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"lnverify {version()}")
        ctx.exit()


@click.group(
    cls=Group, help=HELP, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Without a command, say what there is."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
