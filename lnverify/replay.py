"""Replay: judge a finding again, from its stored answers alone or by running a target on its stored case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lnverify.crashes import CAUSES
from lnverify.errors import InternalError, UsageError
from lnverify.evaluation import Evaluator
from lnverify.examination import GONE, judge
from lnverify.finding import Finding
from lnverify.host import Host
from lnverify.law import Law, Outcome, load_laws
from lnverify.norms.support import find_support as find_norm_support
from lnverify.operation import derived
from lnverify.protocol import Request, Response
from lnverify.recipes import restore
from lnverify.subject import Capabilities, Subject
from lnverify.support import find_support
from lnverify.target import resolve
from lnverify.transcript import playback


def judge_stored(finding: Finding) -> Outcome:
    """Judge the smallest case of a finding from the answers that the report holds; no subject runs.

    The law is run as it ran, each of its requests answered from the transcript. Raises UsageError where the law is
    not loaded or the answers were too large to be stored.
    """
    law = _law(finding)
    observation = finding.smallest
    if not observation.transcript:
        if observation.message.endswith(GONE):
            raise UsageError("the subject was right when it was asked once more: replay it with the target.")
        raise UsageError("the answers of this finding were too large to be stored: replay it with the target.")
    stub = Subject(target="the stored answers", capabilities=Capabilities.from_json(finding.capabilities), run=_nobody)
    return _judge(law, playback(stub, observation.transcript), observation.base or observation.case)


def run_again(finding: Finding, target: str) -> Outcome:
    """Run a target on the smallest case of a finding and judge it by the finding's law.

    Raises what `resolve` raises, and UsageError where the target does not support the finding's dtype.
    """
    law = _law(finding)
    if finding.cause.startswith(CAUSES):
        host = Host(target, finding.operation, finding.device)
        try:  # what killed a process once may do it again
            return _judge(law, host.subject(), finding.smallest.case)
        finally:
            host.close()
    subject = resolve(target, operation=finding.operation, device=finding.device)
    other = finding.operation in derived()
    support = (
        find_norm_support(subject, finding.operation, finding.dtype, finding.device)
        if other
        else find_support(subject, finding.dtype, finding.device)
    )
    if isinstance(support, str):
        raise UsageError(f"{target} cannot be asked: {support}.")
    return _judge(law, support.subject, finding.smallest.base or finding.smallest.case)


def _judge(law: Law, subject: Subject, case: Mapping[str, Any]) -> Outcome:
    try:
        return judge(law, Evaluator(subject).evaluate(restore(case)))
    except InternalError as error:
        raise UsageError(f"the finding cannot be judged again: {error}") from None


def _law(finding: Finding) -> Law:
    laws = load_laws()
    if finding.law not in laws:
        raise UsageError(f"law {finding.law} is not loaded: give the file that defines it with --laws.")
    return laws[finding.law]


def _nobody(request: Request) -> Response:
    raise UsageError("a stored finding has no subject to run.")
