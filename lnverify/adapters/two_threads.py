"""Calls of a subject from other threads, whatever its framework: two at the same time, or one that is waited for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
ROUNDS = 8  # calls of each thread
TOGETHER = 10.0  # seconds in which the second thread must have started


def at_once(mine: Callable[[], T], theirs: Callable[[], Any], same: Callable[[T, T], bool]) -> T:
    """What `mine` gives while another thread calls `theirs`, ROUNDS times each.

    Of the results the first that is not what `mine` gives alone, afterwards, where there is one: one wrong result among
    many is to be judged, and the first may be the wrong one. Raises what either raises.
    """
    results: list[T] = []
    problems: list[BaseException] = []
    start = threading.Barrier(2)

    def repeat(call: Callable[[], Any], keep: Callable[[Any], None]) -> None:
        try:
            start.wait(TOGETHER)
            for _ in range(ROUNDS):
                keep(call())
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
    alone = mine()
    return next((result for result in results if not same(result, alone)), alone)


def elsewhere(call: Callable[[], T]) -> T:
    """What a call gives in a thread of its own. Raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
