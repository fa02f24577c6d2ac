"""The process that times: `python -m lnverify.timing.worker JOB RESULT`, both JSON files (lnverify.timing.job)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lnverify.subject import Subject
from lnverify.target import resolve
from lnverify.timing import beside, machine
from lnverify.timing.clock import Clock, host_clock
from lnverify.timing.job import Job, Timed
from lnverify.timing.paths import HotPath
from lnverify.timing.process import serve
from lnverify.timing.rounds import measure
from lnverify.timing.sides import Call, Refused, bare_module, make
from lnverify.timing.verify import wrong


def do(job: Job) -> dict[str, Any]:
    """The result as plain data. Raises what `resolve` raises."""
    device = job.paths[0].device
    baseline: Subject | None = None
    if job.base:
        # First, so that the working tree's modules are those that stay.
        baseline = beside.resolve_from(Path(job.base), Path(job.root), job.target, job.operation, device)
    candidate = resolve(job.target, operation=job.operation, device=device)
    if job.against:
        baseline = resolve(job.against, operation=job.operation, device=device)
    tools = bare_module(candidate.framework)
    tools.use_threads(job.threads)
    timed = [time_path(job, path, candidate, baseline).to_json() for path in job.paths]
    about = machine.describe(job.threads, candidate.versions, tools.accelerator(device))
    return {"timed": timed, "machine": about}


def time_path(job: Job, path: HotPath, candidate: Subject, baseline: Subject | None) -> Timed:
    """Verify one path, then time it."""
    if path.dtype not in candidate.capabilities.dtypes:
        return Timed(path, refused=f"it does not declare {path.dtype}", able=False)
    case = path.case(candidate.capabilities)
    if path.what != "forward" and "dx" not in candidate.capabilities.outputs:
        return Timed(path, refused="it has no backward", able=False)
    bad = wrong(candidate, path, case) if job.verify else ""
    if bad and not job.keep_wrong:
        return Timed(path, wrong=bad)
    try:
        sides = make(path, candidate, baseline, case, job.limits)
        clock = _clock(job, path, candidate, sides["candidate"])
        del sides
        rounds = measure(lambda: make(path, candidate, baseline, case, job.limits), clock, job.budget, job.slowed)
    except Refused as refusal:
        return Timed(path, wrong=bad, refused=str(refusal))
    return Timed(path, rounds, bad)


def _clock(job: Job, path: HotPath, candidate: Subject, call: Call) -> Clock:
    if path.device != "cpu":
        clock: Clock = bare_module(candidate.framework).CudaClock.of(path.device)
        return clock
    return host_clock(job.threads, call)


if __name__ == "__main__":
    serve(lambda order: do(Job.from_json(order)))
