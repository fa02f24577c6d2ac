"""Data: two tasks that are made (copying, adding), and scikit-learn's digits, 1797 pictures of 8 x 8 pixels.

Everything drawn comes from a NumPy generator with the seed of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import log
from typing import Any

import numpy as np

LETTERS, WORD, WAIT = 4, 3, 3
TERMS = 10
TEST_CASES = 500
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Task:
    """Sequences and what is to be read at their end.

    draw: count sequences of shape (steps, count, inputs), and targets of shape (read, count): classes, or numbers where
    `outputs` is 1; chance: the loss of the best constant answer; read: at how many last steps.
    """

    name: str
    inputs: int
    outputs: int
    read: int
    chance: float
    draw: Callable[[np.random.Generator, int], tuple[Array, Array]]


def copying() -> Task:
    """A word of letters, blanks, then a sign at which the word is to be repeated (Hochreiter and Schmidhuber 1997)."""

    def draw(g: np.random.Generator, count: int) -> tuple[Array, Array]:
        word = g.integers(LETTERS, size=(WORD, count))
        x = np.zeros((2 * WORD + WAIT, count, LETTERS + 1), np.float32)
        x[:WORD, :, :LETTERS] = np.eye(LETTERS, dtype=np.float32)[word]
        x[WORD + WAIT :, :, LETTERS] = 1
        return x, word

    return Task("copying", LETTERS + 1, LETTERS, WORD, log(LETTERS), draw)


def adding() -> Task:
    """Numbers in [0, 1), two of them marked, whose sum is asked for (Hochreiter and Schmidhuber 1997).

    The variance of the sum of two uniform numbers, 1/6, is the loss of the constant 1.
    """

    def draw(g: np.random.Generator, count: int) -> tuple[Array, Array]:
        x = np.zeros((TERMS, count, 2), np.float32)
        x[..., 0] = g.random((TERMS, count))
        first = g.integers(TERMS // 2, size=count)
        second = g.integers(TERMS // 2, TERMS, size=count)
        x[first, np.arange(count), 1] = x[second, np.arange(count), 1] = 1
        return x, (x[..., 0] * x[..., 1]).sum(axis=0, keepdims=True)

    return Task("adding", 2, 1, 1, 1 / 6, draw)


@dataclass(frozen=True)
class Digits:
    """Pictures with values in [0, 1], of shape (cases, 64), and their labels; for training and for testing."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array


@cache
def digits() -> Digits:
    """scikit-learn's digits, shuffled once, 500 of them kept for testing. They come with the package: no download."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int64)
    return Digits(x[TEST_CASES:], y[TEST_CASES:], x[:TEST_CASES], y[:TEST_CASES])


def rows_of(data: Digits) -> Task:
    """A digit, read row by row."""

    def draw(g: np.random.Generator, count: int) -> tuple[Array, Array]:
        which = g.integers(len(data.x), size=count)
        return data.x[which].reshape(count, 8, 8).swapaxes(0, 1).copy(), data.y[which][None]

    return Task("digits by rows", 8, 10, 1, log(10), draw)
