"""Calls of a subject from other threads, whatever its framework: two at the same time, or one that is waited for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
ROUNDS = 8  # calls of each thread, at least
BUSY = 0.05  # seconds for which both go on calling
TOGETHER = 10.0  # seconds in which the second thread must have started
STEPS = 1 << 12  # of one call, that are looked at: its lines, and the ends of its calls into C
PAUSES = 1 << 6  # of one call
PATIENCE = 0.05  # seconds, and ten times what a call takes alone: whoever needs longer waits for the other thread


def at_once(mine: Callable[[], T], theirs: Callable[[], Any], same: Callable[[T, T], bool]) -> T:
    """What `mine` gives while another thread calls `theirs`: while both run, and where `mine` is paused for it.

    Of the results the first that is not what `mine` gives alone, afterwards, where there is one: one wrong result among
    many is to be judged, and the first may be the wrong one. Raises what either raises.
    """
    results = _racing(mine, theirs)
    start = time.perf_counter()
    alone = mine()
    patience = PATIENCE + 10 * (time.perf_counter() - start)
    wrong = next((result for result in results if not same(result, alone)), None)
    if wrong is not None:
        return wrong
    paused = Paused(theirs, patience).result(mine)
    return alone if same(paused, alone) else paused


def _racing(mine: Callable[[], T], theirs: Callable[[], Any]) -> list[T]:
    """What `mine` gives while another thread calls `theirs` again and again."""
    results: list[T] = []
    problems: list[BaseException] = []
    start = threading.Barrier(2)

    def repeat(call: Callable[[], Any], keep: Callable[[Any], None]) -> None:
        try:
            start.wait(TOGETHER)
            done, end = 0, time.perf_counter() + BUSY
            while done < ROUNDS or time.perf_counter() < end:
                keep(call())
                done += 1
        except BaseException as error:  # handed on to the thread that asks
            problems.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=repeat, args=(mine, results.append), daemon=True),
            threading.Thread(target=repeat, args=(theirs, lambda result: None), daemon=True),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if problems:
        raise problems[0]
    return results


class Paused:
    """A call that stands still at its steps while another thread makes a whole call: what the interpreter may do
    between any two of them, here without chance.

    A second call that waits for a lock of the first ends when the first goes on.
    """

    def __init__(self, theirs: Callable[[], Any], patience: float) -> None:
        self.theirs, self.patience = theirs, patience
        self.steps = self.every = 0  # seen in one call; every how many of them it stands still, 0 for never
        self.other: threading.Thread | None = None
        self.problems: list[BaseException] = []

    def result(self, mine: Callable[[], T]) -> T:
        """What `mine` gives. Raises what either raises."""
        elsewhere(lambda: self._watched(mine))
        self.every = max(-(-min(self.steps, STEPS) // PAUSES), 1)
        found = elsewhere(lambda: self._watched(mine))
        if self.other is not None:
            self.other.join()
        if self.problems:
            raise self.problems[0]
        return found

    def _watched(self, mine: Callable[[], T]) -> T:
        """What `mine` gives, with its steps counted."""
        self.steps = 0
        sys.settrace(self._line)
        sys.setprofile(self._returned)
        try:
            return mine()
        finally:
            self._off()

    def _off(self) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self._step()
        return self._line

    def _returned(self, frame: Any, event: str, argument: Any) -> None:
        if event == "c_return":
            self._step()

    def _step(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            self._off()
        elif self.every and self.steps % self.every == 0:
            self._pause()

    def _pause(self) -> None:
        """Let the other thread make a call, unless its last one still waits for this one."""
        if self.other is not None and self.other.is_alive():
            return
        self.other = threading.Thread(target=self._call, daemon=True)
        self.other.start()
        self.other.join(self.patience)

    def _call(self) -> None:
        try:
            self.theirs()
        except BaseException as error:  # handed on to the thread that asks
            self.problems.append(error)


def elsewhere(call: Callable[[], T]) -> T:
    """What a call gives in a thread of its own. Raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
