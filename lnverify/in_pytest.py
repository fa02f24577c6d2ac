"""In pytest: a subject's laws as tests of the user's own suite, one for each law, dtype and device.

    test_my_layer_norm = lnverify.conformance("mypkg.nn:FusedLayerNorm")

There is no plugin: the function that `conformance` returns is parametrised as any test is, so that -k, -n, --lf and
JUnit treat it as they treat the user's own. The subject is examined once, when the first of its tests runs, with the
laws, dtypes and devices of the tests that were chosen; the other tests read what was found. Workers of pytest-xdist
share the run: the first one to want it makes it, and the others wait.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from lnverify import config, expectations, report_cache
from lnverify.errors import LnverifyError, UsageError
from lnverify.finding import Finding, Report, Result, report_from_json
from lnverify.floats import canonical_dtype
from lnverify.law import Law, select_laws
from lnverify.operation import operation as find_operation
from lnverify.profiles import profile as find_profile
from lnverify.reports import wording
from lnverify.reports.snippet import snippet
from lnverify.subject import declared

if TYPE_CHECKING:
    import pytest

VERDICT = "verdict"  # in the place of a law: the test of what no law's own test can say
PATIENCE = 24 * 3600.0  # seconds that a worker waits for the run of another; a worker that dies lets go at once
NAMES = ("law", "dtype", "device")


@dataclass(frozen=True)
class Order:
    """What is to be examined, of all that the tests of one subject could ask. whole: nothing is left out."""

    target: Any
    operation: str
    laws: tuple[str, ...]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    given: bool  # whether the user named the dtypes, so that one that the subject lacks is an error
    isolate: bool
    whole: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What the run found. source: what `lnverify replay` takes for it, or ''; lacking: dtypes that are not declared."""

    report: Report
    source: str = ""
    lacking: tuple[str, ...] = ()


def conformance(
    target: Any,
    *,
    operation: str | None = None,
    variant: str | None = None,
    dtypes: Iterable[str] | None = None,
    devices: Iterable[str] | None = None,
    profile: str | None = None,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    strict: bool = False,
    seed: int = 0,
    max_examples: int | None = None,
    isolate: bool | None = None,
) -> Callable[..., None]:
    """A test function for a module of tests; its arguments are those of `lnverify.check`.

    The tests are named before a target string is imported, so that an operation which its code declares is to be named
    here too; that of a function, class or instance is known.

    What is left out is as in lnverify.toml of the folder where pytest runs, else as on the command line. Findings that
    the file expects are xfailed with their reasons; entries that are stale fail the test `verdict`. isolate: run the
    subject in a process of its own, by default where the target is a string. A wrong argument fails the collection with
    one sentence.
    """
    import pytest

    try:
        project = config.load(Path.cwd())
        chosen = _given(dtypes) or project.dtypes or wording.DTYPE_ORDER
        said = operation or project.operation or (None if isinstance(target, str) else declared(target).operation)
        wanted = Order(
            target,
            find_operation(said or "layer_norm", variant).name,
            (),
            tuple(dict.fromkeys(map(canonical_dtype, chosen))),
            _given(devices) or ("cpu",),
            given=dtypes is not None,
            isolate=isinstance(target, str) if isolate is None else isolate,
            options={
                "profile": find_profile(profile or project.profile).name,
                "strict": strict,
                "seed": seed,
                "max_examples": max_examples,
            },
        )
        laws = _laws(wanted.operation, _given(select), _given(ignore))
    except LnverifyError as error:
        pytest.fail(f"lnverify.conformance: {error}", pytrace=False)
    wanted = replace(wanted, laws=tuple(laws))
    unlimited = all(limit is None for limit in (select, ignore, dtypes, devices))
    cases = [(law, dtype, device) for device in wanted.devices for dtype in wanted.dtypes for law in laws]
    ids = [f"{law}-{laws[law].name}-{dtype}-{device}" for law, dtype, device in cases]
    known: dict[str, Found | LnverifyError] = {}

    def test(
        law: str, dtype: str, device: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        asked = _asked(request)
        if not known:
            order = _narrowed(wanted, asked, whole=unlimited and len(asked) == len(cases) + 1)
            known["run"] = _shared(order, project, request, tmp_path_factory)
        found = known["run"]
        if isinstance(found, LnverifyError):
            word, text = "failed", str(found)
        elif law == VERDICT:
            word, text = rest(found, asked)
        else:
            word, text = judged(found, laws[law], dtype, device)
        _tell(word, text, request)

    return pytest.mark.parametrize(NAMES, [*cases, (VERDICT, "", "")], ids=[*ids, VERDICT])(test)


def _tell(word: str, text: str, request: pytest.FixtureRequest) -> None:
    """What pytest is told: 'failed', 'skipped' and 'xfailed' end the test, 'warned' is noted in it."""
    import pytest

    if word == "failed":
        pytest.fail(text, pytrace=False)
    elif word == "skipped":
        pytest.skip(text)
    elif word == "xfailed":
        pytest.xfail(text)
    elif word == "warned":
        request.node.user_properties.append(("lnverify", text.splitlines()[0]))  # JUnit shows it
        request.node.add_report_section("call", "lnverify", text)


def _words(given: Iterable[str]) -> list[str]:
    """Names from a list, or from one string with commas."""
    return [word.strip() for item in ([given] if isinstance(given, str) else given) for word in item.split(",")]


def _given(names: Iterable[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(_words(names))


def _laws(operation: str, select: tuple[str, ...] | None, ignore: tuple[str, ...] | None) -> dict[str, Law]:
    """The laws that say something of an operation. Raises UsageError where none is left."""
    laws = {law.id: law for law in select_laws(select, ignore) if law.covers(operation)}
    if not laws:
        raise UsageError(
            f"no selected law says anything of {operation}: select others, or leave select and ignore out."
        )
    return laws


def _asked(request: pytest.FixtureRequest) -> list[tuple[str, str, str]]:
    """Law, dtype and device of each test of this subject that is left after -k, --lf and their like."""
    node = request.node
    mine = [
        i for i in request.session.items if i.path == node.path and getattr(i, "originalname", "") == node.originalname
    ]
    return [tuple(item.callspec.params[name] for name in NAMES) for item in mine]


def _narrowed(wanted: Order, asked: Sequence[tuple[str, str, str]], whole: bool) -> Order:
    """The order for the chosen tests; all of it where `verdict` alone was chosen."""
    laws, dtypes, devices = ({case[place] for case in asked if case[0] != VERDICT} for place in range(3))
    if not laws:
        return replace(wanted, whole=whole)
    return replace(
        wanted,
        whole=whole,
        laws=tuple(law for law in wanted.laws if law in laws),
        dtypes=tuple(dtype for dtype in wanted.dtypes if dtype in dtypes),
        devices=tuple(device for device in wanted.devices if device in devices),
    )


def _shared(
    order: Order, project: config.Config, request: pytest.FixtureRequest, places: pytest.TempPathFactory
) -> Found | LnverifyError:
    """The run; of several workers of pytest-xdist the first makes it, and the others read it.

    The workers' temporary folders lie side by side. A transaction of SQLite is the lock: it ends with its process.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return _run(order, project)
    name = f"{request.node.path}::{request.node.originalname}"
    path = places.getbasetemp().parent / f"lnverify-{crc32(name.encode()):08x}.sqlite"
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as base:
        base.execute("BEGIN IMMEDIATE")
        base.execute("CREATE TABLE IF NOT EXISTS run (text TEXT)")
        row = base.execute("SELECT text FROM run").fetchone()
        if row is None:
            found = _run(order, project)
            base.execute("INSERT INTO run VALUES (?)", (_to_text(found),))
        base.execute("COMMIT")
    return found if row is None else _from_text(row[0])


def _to_text(found: Found | LnverifyError) -> str:
    if isinstance(found, LnverifyError):
        return json.dumps({"error": str(found)})
    return json.dumps({"report": found.report.to_json(), "source": found.source, "lacking": found.lacking})


def _from_text(text: str) -> Found | LnverifyError:
    data = json.loads(text)
    if "error" in data:
        return LnverifyError(data["error"])
    return Found(report_from_json(data["report"]), data["source"], tuple(data["lacking"]))


def _run(order: Order, project: config.Config) -> Found | LnverifyError:
    """Examine the subject; what its user can mend is returned, for every test to say."""
    from lnverify.part import Plan, examined
    from lnverify.runner import check

    try:
        with examined(Plan(order.target, order.operation, isolate=order.isolate), order.devices[0]) as subject:
            able = subject.capabilities.dtypes
            lacking = () if order.given else tuple(dtype for dtype in order.dtypes if dtype not in able)
            wanted = [dtype for dtype in order.dtypes if dtype not in lacking]
            report = Report(subject.target, order.operation)
            if wanted:
                report = check(
                    subject,
                    operation=order.operation,
                    dtypes=wanted,
                    devices=order.devices,
                    select=order.laws,
                    **order.options,
                )
        if project.expected and order.target in project.targets:
            expectations.apply(report, project, order.target, order.whole and not report.stopped)
    except LnverifyError as error:
        return error
    run = report_cache.new_run()
    with suppress(LnverifyError):  # a cache that cannot be written stops nobody
        run.store([report])
        return Found(report, run.id, lacking)
    return Found(report, "", lacking)


def judged(found: Found, law: Law, dtype: str, device: str) -> tuple[str, str]:
    """What becomes of the test of one law, and the text that says why."""
    report = found.report
    place = law.id, dtype, device
    findings = [f for f in report.findings if (f.law, f.dtype, f.device) == place]
    new = [finding for finding in findings if not finding.expected]
    if new:
        fails = _fails(law.severity, report)
        return "failed" if fails else "warned", "\n\n".join(_text(finding, found) for finding in new)
    if findings:
        return "xfailed", "; ".join(dict.fromkeys(finding.expected for finding in findings))
    if dtype in found.lacking:
        return "skipped", f"the subject does not declare {dtype}"
    result = next((r for r in report.results if (r.law, r.dtype, r.device) == place), None)
    if result is None:
        refused = [sentence for sentence in report.coverage.get("not_supported", ()) if dtype in sentence]
        return "skipped", "; ".join(refused) or f"{dtype} on {device} was not examined"
    if result.verdict == "inconclusive" and law.severity == "error":
        return "failed", _undecided(report, result)
    if result.verdict in ("inapplicable", "inconclusive"):
        return "skipped", result.reason or result.verdict
    return "passed", ""


def rest(found: Found, asked: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """What becomes of the test `verdict`, which fails for what the others do not say.

    Stale entries of lnverify.toml, a run that showed nothing, one that ended early, and findings of laws that have no
    test among those asked, crashes above all.
    """
    report = found.report
    problems = [*report.stale]
    if report.stopped:
        problems.append(f"the run ended early ({report.stopped}).")
    if not any(result.verdict == "holds" for result in report.results) and not report.findings:
        refused = "; ".join(report.coverage.get("not_supported", ())) or "no law could be examined"
        problems.append(f"nothing was shown to hold: {refused}.")
    for finding in report.findings:
        told = (finding.law, finding.dtype, finding.device) in asked
        if not told and not finding.expected and _fails(finding.severity, report):
            problems.append(_text(finding, found))
    return ("failed", "\n\n".join(problems)) if problems else ("passed", "")


def _fails(severity: str, report: Report) -> bool:
    return severity == "error" or (report.strict and severity == "warning")


def _text(finding: Finding, found: Found) -> str:
    """A finding as on the command line: the cause, both cases in numbers, a script, the command that replays it."""
    lines = [f"{finding.law} {finding.name}, {finding.dtype} on {finding.device}: {finding.cause}"]
    lines.append(wording.details(finding))
    script = snippet(finding, found.report.subject, found.report.environment)
    if script:
        lines += ["", script.rstrip()]
    if found.source:
        lines += ["", wording.command("replay", found.source, "--finding", finding.id)]
    return "\n".join(lines)


def _undecided(report: Report, result: Result) -> str:
    """Why a law is undecided, and the command that decides it."""
    for sentence, command in wording.inconclusive(replace(report, results=[result])):
        return f"undecided: {sentence} Decide it with: {command}"
    return f"undecided: {result.reason}"
