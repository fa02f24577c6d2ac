"""What the texts of the repository promise exists: pages, commands, versions. They name nobody's machine."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest

import lnverify
from lnverify.law import load_laws

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GUIDES = ("README.md", "CONTRIBUTING.md")

# Commands in a guide that are not ours are not looked at.
SHELL_BLOCK = re.compile(r"^```(?:sh|shell|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# An absolute path of a machine, at the start of a word: the path within an address is none.
MACHINE_PATH = re.compile(r"(?<![\w./:*-])/(?:work|root|home|Users|opt|mnt|srv|scratch)/\w+")


@cache
def _texts() -> dict[str, str]:
    """Every text file of the tree by its name; hidden folders other than .ci are tools' and not ours."""
    texts = {}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f == ".ci" or (f[0] != "." and f not in {"__pycache__", "dist", "build"})]
        for name in names:
            if name == ".git":  # a file in a worktree, which holds git's own path
                continue
            path = Path(folder, name)
            try:
                texts[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a picture, say
    return texts


def _commands(guide: str) -> Iterator[list[str]]:
    """Each command of a guide's shell blocks, split into words: prompts, comments and output left out."""
    for block in SHELL_BLOCK.findall(_texts().get(guide, "")):
        prompted = any(line.startswith("$ ") for line in block.splitlines())
        for line in block.replace("\\\n", " ").splitlines():
            if prompted and not line.startswith("$ "):
                continue
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words:
                end = next((i for i, word in enumerate(words) if word in {"&&", "||", "|", ";"}), len(words))
                yield words[:end]
                words = words[end + 1 :]


def _all_commands() -> list[list[str]]:
    return [command for guide in GUIDES for command in _commands(guide) if command]


def _complaint(command: list[str]) -> str | None:
    """What is wrong with a command, as a sentence, or None."""
    tool, *words = command
    if tool == "lnverify":
        return _lnverify_complaint(words)
    if tool == "tox":
        tox = configparser.ConfigParser(interpolation=None)
        tox.read_string(_texts()["tox.ini"])
        asked = [name for flag, value in pairwise(words) if flag == "-e" for name in value.split(",")]
        unknown = [name for name in asked if not tox.has_section(f"testenv:{name}")]
        return f"tox.ini has no environment {', '.join(unknown)}" if unknown else None
    if tool == "pip":
        extras = {name for word in words for group in re.findall(r"\.\[(.*?)\]", word) for name in group.split(",")}
        unknown = sorted(extras - set(PROJECT["optional-dependencies"]))
        return f"pyproject.toml has no extra {', '.join(unknown)}" if unknown else None
    files = [word for word in command if word.endswith(".py") or word.startswith((".ci/", "./"))]
    missing = [word for word in files if not word.startswith("./") and word not in _texts()]
    return f"there is no file {', '.join(missing)}" if missing else None


def _lnverify_complaint(words: list[str]) -> str | None:
    from lnverify.cli import main

    context = click.Context(main)
    command: click.Command = main
    if words and not words[0].startswith("-"):
        found = main.get_command(context, words[0])
        if found is None:
            return f"lnverify has no command {words[0]!r}"
        command = found
    known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    return f"it has no option {', '.join(unknown)}" if unknown else None


def test_the_commands_of_the_guides_exist() -> None:
    complaints = {shlex.join(command): _complaint(command) for command in _all_commands()}
    assert {command: said for command, said in complaints.items() if said} == {}


@pytest.mark.parametrize(
    "command",
    [
        ["pip", "install", "-c", "constraints.txt", ".[torch]"],
        ["lnverify", "check"],
        ["pip", "install", "tox"],
        ["tox"],
    ],
    ids=shlex.join,
)
def test_the_readme_says_how_to_check_and_how_to_test(command: list[str]) -> None:
    assert command in list(_commands("README.md"))


@pytest.mark.parametrize(
    "command",
    [
        "tox -e nothing",
        "lnverify nothing",
        "lnverify check --nothing",
        "pip install '.[nothing]'",
        "python no.py",
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    assert _complaint(shlex.split(command))


def test_ci_runs_tox() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK), ".ci/run is not executable"
    assert re.search(r"\btox\b", _texts()[".ci/run"])


def test_every_law_has_a_page_and_every_page_a_law() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs/laws").glob("LN*.md")}
    laws = {i: entry for i, entry in load_laws().items() if entry.check.__module__.startswith("lnverify.")}
    assert sorted(set(laws) - set(pages)) == [], "laws without a page docs/laws/<id>.md"
    assert sorted(set(pages) - set(laws)) == [], "pages without a law"
    nameless = [i for i, entry in laws.items() if entry.name not in pages[i]]
    assert nameless == [], "pages that do not say the name of their law"


def test_the_version_is_one() -> None:
    assert lnverify.__version__ == PROJECT["version"]


def test_no_text_holds_a_path_of_somebodys_machine() -> None:
    found = {name: MACHINE_PATH.findall(text) for name, text in _texts().items()}
    assert {name: paths for name, paths in found.items() if paths} == {}


def test_a_path_of_a_machine_is_found() -> None:
    assert MACHINE_PATH.findall(" see " + "/home" + "/ada/x.py") == ["/home" + "/ada"]
    assert MACHINE_PATH.findall("https://example.org" + "/work" + "/x") == []
