"""glibc's allocator as the processes of a check want it."""

from __future__ import annotations

import ctypes
import platform

# mallopt(3)
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT, LARGE = 256 * 2**20, 32 * 2**20  # bytes; LARGE is the most that glibc takes for a threshold


def keep_freed_memory() -> None:
    """Let this process keep up to 256 MiB that it has freed, and map no array below 32 MiB anew.

    By itself glibc maps every array above some 128 KiB anew and gives it back; faulting the pages in took two to four
    times as long as computing in them (DoubleDouble, 64x768). Does nothing without glibc. Only for processes that are
    lnverify's own, not for a caller's.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(TRIM_THRESHOLD, KEPT)
        libc.mallopt(MMAP_THRESHOLD, LARGE)
