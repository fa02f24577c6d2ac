"""Row blocks: some rows at a time, so that what is computed from them needs little memory.

A chain of NumPy operations makes an array at every step. Arrays of many megabytes have pages to be faulted in and
leave the processor's cache, which takes longer than to compute in them. Rows are independent of each other, so that no
bit depends on the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

ELEMENTS = 1 << 16  # of a block: some ten such arrays fit a cache, and the cost of a call is small beside them


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices that cover an array of shape (rows, n), each of one row at least; one that covers any other array."""
    if len(shape) != 2:
        yield slice(None)
        return
    rows, n = shape
    step = max(ELEMENTS // max(n, 1), 1)
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))
