"""What the properties draw: recipes of every regime, small enough for serial and certified arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from lnverify.recipes import BIASES, DYS, REGIMES, WEIGHTS

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
FORMS = tuple(w for w in WEIGHTS if w != "huge")
SIGNS = tuple(d for d in DYS if d not in ("expanded", "output"))


def quiet(examples: int) -> settings:
    """Settings of a property: the same draws every time, no deadline, no database."""
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None)


@st.composite
def recipes(
    draw: Any,
    dtypes: Sequence[str] = ("float32",),
    *,
    sizes: Sequence[int] = SIZES,
    rows: int = 4,
    means: Sequence[float] = (0.0, 0.5, 3.0, 100.0, 1e4, 1e6),
    scales: tuple[int, int] = (-20, 20),
    eps: Sequence[float] = (1e-5, 1e-3, 1e-12, 0.1, 10.0),
    regimes: Sequence[str] = REGIMES,
    tangents: bool = False,
) -> dict[str, Any]:
    """A recipe with dy."""
    return {
        "dtype": draw(st.sampled_from(dtypes)),
        "batch": [draw(st.integers(1, rows))],
        "shape": [draw(st.sampled_from(sizes))],
        "regime": draw(st.sampled_from(regimes)),
        "mean": draw(st.sampled_from(means)),
        "scale": draw(st.integers(*scales)),
        "weight": draw(st.sampled_from((*FORMS, None))),
        "bias": draw(st.sampled_from((*BIASES, None))),
        "dy": draw(st.sampled_from(SIGNS)),
        "eps": draw(st.sampled_from(eps)),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "tangents": tangents,
    }


def recipe(**changes: Any) -> dict[str, Any]:
    """An ordinary recipe: 3 rows of 5 in float32, everything present."""
    return {
        "dtype": "float32", "batch": [3], "shape": [5], "regime": "normal", "mean": 0.0, "scale": 0,
        "weight": "normal", "bias": "normal", "dy": "normal", "eps": 1e-5, "seed": 1, **changes,
    }  # fmt: skip
