"""Host: a subject in a process of its own, so that its death, its hanging or its hunger ends no run.

The process is a fresh Python (never a fork: a forked worker hangs in torch once the parent ran a parallel region).
It answers one request after the other (lnverify.wire). Where it dies, takes too long or too much memory, the answer is
a Response with phase 'crash', the next request goes to a new process, and the same request is not made again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from lnverify import errors, wire
from lnverify.errors import LnverifyError, TargetError, UsageError
from lnverify.protocol import CROWD, CROWDED, Request, Response
from lnverify.subject import Capabilities, Subject
from lnverify.transcript import request_key

TIMEOUT = 30.0  # seconds that one request may take by default
PATIENCE = 20.0  # times what the warm-up predicts, whatever the timeout
LOADING = 120.0  # seconds in which a subject must be imported and built
POLL = 0.05  # seconds between two looks at a process that is at work
IDLE = 0.05  # share of the time below which a process does nothing
LARGE = 4096  # elements from which on time says something
TAIL = 400  # characters of what a dying process printed


def memory_default() -> int:
    """Bytes that a subject may take by default: half of what the machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError):
        return 8 << 30


@dataclass
class Limits:
    """timeout: seconds for one request; memory: bytes of the whole process."""

    timeout: float = TIMEOUT
    memory: int = field(default_factory=memory_default)


@dataclass(frozen=True, eq=False)
class Crash:
    """A request that got no answer, and the Response that says what became of the process."""

    request: Request
    response: Response


class Host:
    """One subject in one process at a time. `run` answers a Request.

    crashes: every request that got no answer, once. unanswered: how often such a request was made.
    """

    def __init__(self, target: Any, operation: str = "layer_norm", device: str = "cpu", limits: Limits | None = None):
        """target: a target string, or a callable, which cloudpickle must be able to write.

        Raises what `resolve` raises, and TargetError where loading kills the process.
        """
        self.limits = limits or Limits()
        self.crashes: list[Crash] = []
        self.unanswered = 0
        self.growth = 1.0  # how much longer than predicted a large request took
        self.predicted: Callable[[Request], float] = lambda request: 0.0
        self._known: dict[str, Response] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="lnverify-host-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "output"
        self._process: subprocess.Popen[bytes] | None = None
        self._order = {"target": target if isinstance(target, str) else "", "operation": operation, "device": device,
                       "path": list(sys.path), "pickle": ""}  # fmt: skip
        try:
            if not isinstance(target, str):
                self._order["pickle"] = _pickled(target, Path(self._folder.name) / "subject")
            self.about = self._start()
        except BaseException:
            self.close()
            raise

    def subject(self) -> Subject:
        """The subject as the run sees it: what it can do, and `run` of this host."""
        return Subject(
            target=self.about["target"], capabilities=Capabilities.from_json(self.about["capabilities"]), run=self.run,
            framework=self.about["framework"], versions=self.about["versions"], call_text=self.about["call_text"],
            operation=self.about["operation"],
        )  # fmt: skip

    def predict(self, seconds: Callable[[int, int], float]) -> None:
        """Take over what the warm-up predicts: seconds for so many elements in so many rows."""

        def of(request: Request) -> float:
            shape = request.arrays["x"].shape
            given = prod(shape[: len(shape) - len(request.normalized_shape)])
            rows = request.repeat or given
            calls = CROWD + 2 if request.history in CROWDED else 1
            if "h" in request.arrays and len(shape) == 3:
                calls *= shape[0]  # steps of a layer
            return calls * seconds(request.arrays["x"].size * rows // max(given, 1), rows)

        self.predicted = of

    @property
    def process_id(self) -> int:
        """The process that answers now; 0 for none."""
        return self._process.pid if self._process is not None else 0

    def close(self) -> None:
        """End the process."""
        self._kill()
        self._folder.cleanup()

    def run(self, request: Request) -> Response:
        """The answer of the subject, or a Response with phase 'crash'."""
        if self._known:  # only a subject that crashed before is worth a hash of every request
            known = self._known.get(request_key(request))
            if known is not None:
                self.unanswered += 1
                return known
        predicted = self.predicted(request)
        allowed = max(self.limits.timeout, PATIENCE * predicted * self.growth)
        problem, started = "", time.monotonic()
        try:
            if self._process is None:
                self._start()
            wire.send(self._writing, request)
            problem = self._wait(allowed, request.threads or 1)
            if not problem:
                response = wire.response(*wire.read(self._reading))
                if predicted > 0 and request.arrays["x"].size >= LARGE:
                    self.growth = max(self.growth, (time.monotonic() - started) / predicted)
                return response
        except (EOFError, OSError):
            problem = self._death()
        self._kill()
        self.unanswered += 1
        response = Response(refusal=problem, phase="crash", printed=self._printed())
        self.crashes.append(Crash(request, response))
        self._known[request_key(request)] = response
        return response

    # The process

    def _start(self) -> dict[str, Any]:
        """A new process that has loaded the subject; what it says about it."""
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lnverify.host_process", str(to_child), str(from_child)],
                pass_fds=(to_child, from_child), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
                start_new_session=True,  # an interrupt at the keyboard is for the run, which ends the process itself
            )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._writing: BinaryIO = os.fdopen(from_parent, "wb")
        self._reading: BinaryIO = os.fdopen(to_parent, "rb", buffering=0)
        try:
            wire.write(self._writing, self._order)
            problem = self._wait(max(LOADING, self.limits.timeout))
            about, _ = wire.read(self._reading) if not problem else ({}, {})
        except (EOFError, OSError):
            problem, about = self._death(), {}
        if problem:
            printed = self._printed().strip().splitlines()
            self._kill()
            more = f"; its last words: {printed[-1]}" if printed else ""
            raise TargetError(f"loading {self._order['target'] or 'the callable'!r} failed: {problem}{more}.")
        if "error" in about:
            self._kill()
            kind: type[LnverifyError] = getattr(errors, about["error"], TargetError)
            raise kind(about["message"])
        return about

    def _wait(self, seconds: float, threads: int = 1) -> str:
        """Wait for an answer; '' when there is one to read, else what went wrong.

        The seconds are those of the clock for a process that does nothing, and those of the processor, for each thread,
        for one that computes: on a busy machine a slow subject is no hanging one. One that gets less than IDLE of a
        processor counts as doing nothing, so that the wait ends after seconds * threads / IDLE on the clock.
        """
        assert self._process is not None
        started, begun = time.monotonic(), _processor(self._process.pid)
        while not select.select([self._reading], [], [], POLL)[0]:
            taken = _resident(self._process.pid)
            if taken > self.limits.memory:
                return f"the process takes more than {self.limits.memory / 2**30:.3g} GiB of memory"
            if self._process.poll() is not None:
                return self._death()
            waited = time.monotonic() - started
            if waited > seconds:
                used = _processor(self._process.pid) - begun
                if used < IDLE * waited or used > seconds * threads:
                    return f"no answer within {waited:.3g} s"
        return ""

    def _death(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        status = self._process.returncode
        if status is None:
            return "the process stopped answering"
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
            return f"the process died of {name}"
        return f"the process ended with exit status {status}"

    def _kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._writing, self._reading):
            with contextlib.suppress(OSError):
                stream.close()
        self._process = None

    def _printed(self) -> str:
        """The end of what the process printed."""
        try:
            return self._log.read_bytes()[-TAIL:].decode(errors="replace")
        except OSError:
            return ""


def import_path() -> list[str]:
    """Where the process finds this package; the rest of the path travels with the order."""
    own = str(Path(__file__).resolve().parents[1])
    return [own, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != own)]


def _resident(pid: int) -> int:
    """Resident bytes of a process; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _processor(pid: int) -> float:
    """Seconds of processor time that a process has used; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _pickled(target: Any, path: Path) -> str:
    """Write a callable for the process. Raises UsageError where cloudpickle is absent or cannot write it."""
    try:
        import cloudpickle
    except ImportError:
        raise UsageError(
            "a callable in a process of its own needs cloudpickle: pip install cloudpickle, or give a target string."
        ) from None
    try:
        path.write_bytes(cloudpickle.dumps(target))
    except Exception as error:  # whatever the object raises
        raise UsageError(
            f"this callable cannot be sent to another process ({type(error).__name__}: {error}): give a target string."
        ) from None
    return str(path)


def isolated(subject: Subject) -> Host | None:
    """The host behind a subject, or None where it runs in this process."""
    owner = getattr(subject.run, "__self__", None)
    return owner if isinstance(owner, Host) else None
