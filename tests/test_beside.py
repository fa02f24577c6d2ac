"""An earlier commit's code beside the working tree's, in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lnverify.errors import UsageError
from lnverify.target import resolve
from lnverify.timing import beside
from lnverify.timing.paths import HotPath
from lnverify.timing.sides import bare
from tests.timing_samples import kernel

PATH = HotPath((4, 8), "float32", "forward")
WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *WHO, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, text: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package in src/ and a file of kernels; its second commit has another eps in both."""
    root = tmp_path / "project"
    package = root / "src" / "fused_beside"
    package.mkdir(parents=True)
    git(tmp_path, "init", "-q", "-b", "main", "project")
    kernel(package, "kernels.py")
    (package / "__init__.py").write_text("from .kernels import ln\n")
    (root / "src" / "spread_beside").mkdir()  # a package without an __init__.py
    kernel(root / "src" / "spread_beside")
    kernel(root)
    commit(root, "first")
    kernel(package, "kernels.py", "eps + 1")
    kernel(root / "src" / "spread_beside", "kernels.py", "eps + 1")
    kernel(root, "kernels.py", "eps + 1")
    git(root, "checkout", "-q", "-b", "work")
    commit(root, "second")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root / "src"))
    return root


def result(subject: object) -> float:
    from lnverify.subject import Subject

    assert isinstance(subject, Subject)
    return float(bare(subject, PATH.case(subject.capabilities), "forward")()[0, 0])


@pytest.mark.parametrize("target", ["fused_beside:ln", "spread_beside.kernels:ln", "./kernels.py:ln"])
def test_both_commits_live_in_one_process(project: Path, tmp_path: Path, target: str) -> None:
    base = beside.merge_base(project, "main")
    assert base == git(project, "rev-parse", "main")
    folder = tmp_path / "base"
    beside.unpack(project, base, folder)
    before = (Path.cwd(), list(sys.path))
    old = beside.resolve_from(folder, project, target, "layer_norm", "cpu")
    assert (Path.cwd(), list(sys.path)) == before
    assert not [name for name in sys.modules if name.startswith(("fused_beside", "spread_beside"))]
    new = resolve(target)
    try:
        # eps + 1 divides by about sqrt(2): the two are different code, each right where it comes from
        assert result(old) == pytest.approx(result(new) * 2**0.5, rel=0.3)
        assert abs(result(old) - result(new)) > 0.1 * abs(result(old))
    finally:
        for name in [n for n in sys.modules if n.startswith(("fused_beside", "spread_beside"))]:
            del sys.modules[name]


def test_what_is_no_code_of_the_repository_is_refused(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    beside.unpack(project, beside.merge_base(project, "HEAD"), folder)
    elsewhere = tmp_path / "elsewhere.py"
    kernel(tmp_path, "elsewhere.py")
    with pytest.raises(UsageError, match="is no code of the repository 'project': leave --base-ref out"):
        beside.resolve_from(folder, project, f"{elsewhere}:ln", "layer_norm", "cpu")


def test_a_revision_or_a_repository_that_is_not_there_is_one_sentence(project: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--base-ref: .*\.$"):
        beside.merge_base(project, "no-such-branch")
    with pytest.raises(UsageError, match=r"--base-ref: not a git repository"):
        beside.repository(tmp_path)
    assert beside.repository(project / "src") == project.resolve()
