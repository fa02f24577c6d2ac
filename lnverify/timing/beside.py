"""Beside: the code of an earlier commit imported into the same process as the working tree's.

The earlier commit is unpacked into a temporary folder. There the target is resolved first; then its modules are taken
out of sys.modules, where only names are lost: the functions keep their own globals. The second resolve imports the
working tree's modules under the same names. What a function imports when it is called comes from the working tree for
both, which is the limit of this way; two processes, which have no such limit, cannot be timed in pairs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from lnverify.errors import UsageError
from lnverify.subject import Subject
from lnverify.target import resolve


def _git(folder: Path, *words: str) -> str:
    """What git says. Raises UsageError with git's own last line."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--base-ref needs git, which cannot be run: {error.strerror}.") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"git {words[0]} failed"]
        raise UsageError(f"--base-ref: {lines[-1].removeprefix('fatal: ').rstrip('.')}.")
    return done.stdout.strip()


def repository(folder: Path) -> Path:
    """The top folder of the repository that a folder lies in. Raises UsageError where there is none."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel"))
    except UsageError as error:
        raise UsageError(f"{str(error).rstrip('.')}: go into one, or compare with --baseline FILE.") from None


def merge_base(root: Path, revision: str) -> str:
    """The commit from which HEAD and a revision have parted. Raises UsageError for an unknown revision."""
    try:
        commit = _git(root, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except UsageError:
        told = "name a branch, a tag or a commit, or fetch it first"
        raise UsageError(f"--base-ref: {revision!r} is no commit of this repository: {told}.") from None
    return _git(root, "merge-base", "HEAD", commit)


def unpack(root: Path, commit: str, folder: Path) -> None:
    """Write the tree of a commit into a folder, without touching the repository. Raises UsageError."""
    archive = folder.with_suffix(".tar")
    _git(root, "archive", "--format=tar", f"--output={archive}", commit)
    with tarfile.open(archive) as tar:
        # What lies in the user's own repository, and will be run, needs no filter; Python below 3.11.4 has none.
        if hasattr(tarfile, "fully_trusted_filter"):
            tar.extraction_filter = tarfile.fully_trusted_filter
        tar.extractall(folder)
    archive.unlink()


@contextlib.contextmanager
def _seen_from(folder: Path, root: Path) -> Iterator[None]:
    """The current folder and the import path as they would be if `folder` were `root`."""
    here, path = Path.cwd(), list(sys.path)
    places = [Path(entry or here) for entry in path] + [here, root / "src"]
    inside = [folder / place.resolve().relative_to(root) for place in places if place.resolve().is_relative_to(root)]
    os.chdir(folder / here.resolve().relative_to(root) if here.resolve().is_relative_to(root) else folder)
    sys.path[:0] = list(dict.fromkeys(str(place) for place in inside if place.is_dir()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        os.chdir(here)
        sys.path[:] = path
        importlib.invalidate_caches()


def resolve_from(folder: Path, root: Path, target: str, operation: str, device: str) -> Subject:
    """The subject that a target stands for in an unpacked tree; its modules are forgotten afterwards.

    Raises what `resolve` raises, and UsageError where nothing was imported from the folder: the target is then no code
    of the repository, and would be compared with itself.
    """
    folder, root = folder.resolve(), root.resolve()
    with _seen_from(folder, root):
        subject = resolve(target, operation=operation, device=device)
        own = [name for name, module in list(sys.modules.items()) if _lies_in(module, folder)]
    if not own:
        raise UsageError(
            f"--base-ref: {target!r} is no code of the repository {root.name!r}: leave --base-ref out, or name a file"
            " of it by a relative path."
        )
    for name in own:
        del sys.modules[name]
    return subject


def _lies_in(module: object, folder: Path) -> bool:
    """Whether a module's file, or a part of a package without one, is in the folder."""
    file = getattr(module, "__file__", None)
    places = [file] if file is not None else list(getattr(module, "__path__", ()))
    return any(Path(place).resolve().is_relative_to(folder) for place in places)
