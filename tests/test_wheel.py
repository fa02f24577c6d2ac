"""What a user gets: the wheel holds the package with its data and metadata, and no folder around it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIST_INFO = f"lnverify-{PROJECT['version']}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from the tree by the hatchling of this environment: no network, no isolation."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    build = subprocess.run(command, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stdout + build.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(wheel.read(f"{DIST_INFO}/METADATA").decode())


def test_its_top_level_is_the_package_alone(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist()} == {"lnverify", DIST_INFO}


def test_it_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    in_tree = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "lnverify").rglob("*")
        if path.is_file() and not re.search(r"__pycache__|/\.", path.relative_to(ROOT).as_posix())
    }
    in_wheel = {name for name in wheel.namelist() if name.startswith("lnverify/")}
    assert in_wheel == in_tree


def test_it_holds_the_type_marker_and_the_schemas(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "lnverify/py.typed" in names
    schemas = [name for name in names if "/schemas/" in name and name.endswith(".json")]
    assert schemas, "no schemas/*.json: other programs read our reports by them"


def test_torch_is_asked_for_by_the_extra_alone(metadata: Message) -> None:
    needs = [need for need in metadata.get_all("Requires-Dist", []) if need.startswith("torch")]
    assert needs
    assert all("extra == 'torch'" in need for need in needs)


def test_no_dependency_has_an_upper_bound(metadata: Message) -> None:
    needs = [need for need in metadata.get_all("Requires-Dist", []) if "extra" not in need]
    assert needs
    assert not [need for need in needs if "<" in need or "==" in need or "~" in need]


def test_it_is_licensed_and_has_its_command(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{DIST_INFO}/licenses/LICENSE" in wheel.namelist()
    assert "lnverify = lnverify.cli:main" in wheel.read(f"{DIST_INFO}/entry_points.txt").decode()
