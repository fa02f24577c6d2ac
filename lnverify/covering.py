"""Covering: which level each factor of the grid takes, so that few cases meet every pair and every triple.

A covering array from a Reed-Solomon code: over the field of 11 elements, case (a, b) of block c takes level
(a + b j + c j^2) mod 11 in factor j. Any three factors then meet in every combination over all 11 blocks
(a polynomial of degree 2 is fixed by three points), and any two already within each block of 121.
Source: Bush, Orthogonal arrays of index unity, Ann. Math. Stat. 23 (1952).
"""

from __future__ import annotations

PRIME = 11  # levels of a factor, factors, and blocks


def levels(block: int, a: int, b: int) -> list[int]:
    """Level of each of the 11 factors in case (a, b) of a block; all three from 0 to 10."""
    return [(a + b * j + block * j * j) % PRIME for j in range(PRIME)]
