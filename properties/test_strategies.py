"""The grid covers what it promises within its cap; what is drawn is supported, repeatable, and leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any

import pytest

from lnverify import strategies
from lnverify.case import Case
from lnverify.covering import PRIME, levels
from lnverify.floats import FORMATS
from lnverify.profiles import PROFILES, Profile
from lnverify.protocol import Response
from lnverify.strategies import grid, search, stream_seed
from lnverify.subject import Capabilities, Subject
from lnverify.support import EPS, Support

ENDLESS = Profile("endless", 11, 0, 0, 1 << 60, 1 << 60, 1.0, 1.0)
ALL = ("both", "weight", "bias", "none")


def support(dtype: str = "float32", fixed_eps: float | None = None, **changes: Any) -> Support:
    """What a subject that can do everything supports, changed."""
    fixed_shape = changes.pop("fixed_shape", None)
    able = Capabilities(eps=fixed_eps, fixed_shape=fixed_shape)
    given: dict[str, Any] = {
        "affine": ALL, "ranks": (0, 1, 2, 3), "dims": (1, 2, 3), "eps": EPS, "outputs": ("y",), "mixed": (),
        "seconds": (0.0, 0.0), "refused": (), **changes,
    }  # fmt: skip
    return Support(Subject("none", able, lambda request: Response()), dtype, "cpu", **given)


@pytest.fixture
def planned(monkeypatch):
    """The recipes of the grid, none of them built."""
    monkeypatch.setattr(strategies, "build", dict)

    def plan(able: Support, profile: Profile = ENDLESS) -> list[dict[str, Any]]:
        return list(grid(able, profile))  # type: ignore[arg-type]

    return plan


@pytest.mark.parametrize("block", range(PRIME))
def test_any_two_factors_meet_in_every_pair_of_levels_within_one_block(block):
    cases = [levels(block, a, b) for a, b in product(range(PRIME), repeat=2)]
    for i, j in combinations(range(PRIME), 2):
        assert len({(case[i], case[j]) for case in cases}) == PRIME**2


def test_any_three_factors_meet_in_every_triple_of_levels_over_all_blocks():
    cases = [levels(c, a, b) for c, a, b in product(range(PRIME), repeat=3)]
    for i, j, k in combinations(range(PRIME), 3):
        assert len({(case[i], case[j], case[k]) for case in cases}) == PRIME**3


def n_class(recipe: dict[str, Any]) -> int:
    return next(i for i, sizes in enumerate(strategies.N_CLASSES) if prod(recipe["shape"]) in sizes)


FACTORS = {
    "n": n_class,
    "rows": lambda r: prod(r["batch"]),
    "affine": lambda r: (r["weight"] is None, r["bias"] is None),
    "grads": lambda r: r["grads"],
    "regime": lambda r: r["regime"],
    "mean": lambda r: r["mean"],
    "scale": lambda r: r["scale"],
    "dy": lambda r: r["dy"],
}
LEVELS = {"n": 11, "rows": 11, "affine": 4, "grads": 7, "regime": 10, "mean": 9, "scale": 8, "dy": 10}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_values_meet_as_levels_do(planned, dtype):
    """Pairs of values in each of two blocks, and triples over all eleven, in the recipes that are really built."""
    recipes = planned(support(dtype))
    seen = [{name: read(r) for name, read in FACTORS.items()} for r in recipes]
    assert {name: len({s[name] for s in seen}) for name in FACTORS} == LEVELS
    for first in (0, 121):
        for pair in combinations(FACTORS, 2):
            found = {tuple(s[name] for name in pair) for s in seen[first : first + 121]}
            assert len(found) == prod(LEVELS[name] for name in pair), pair
    for triple in combinations(FACTORS, 3):
        found = {tuple(s[name] for name in triple) for s in seen}
        assert len(found) == prod(LEVELS[name] for name in triple), triple
    assert len({r["seed"] for r in recipes}) == 1331
    assert {len(r["shape"]) for r in recipes} == {1, 2, 3}
    assert {len(r["batch"]) for r in recipes} == {0, 1, 2, 3}
    assert {r["eps"] for r in recipes} >= set(EPS)
    assert {r["weight"] for r in recipes} == {*strategies.WEIGHTS, None}


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_cap_is_kept_and_n_is_not_given_up_for_it(planned, name, dtype):
    profile = PROFILES[name]
    cap = profile.cap64 if dtype == "float64" else profile.cap
    recipes = planned(support(dtype), profile)
    assert len(recipes) == 121 * profile.blocks
    assert max(prod(r["batch"]) * prod(r["shape"]) for r in recipes) <= cap
    assert {n_class(r) for r in recipes[:121]} == set(range(11))
    small = [prod(r["batch"]) * prod(r["shape"]) <= 1 << 13 for r in recipes[:121]]
    assert small == sorted(small, reverse=True)  # small cases of a block first


def test_sixteen_bits_get_wider_parameters_only_where_they_are_taken(planned):
    able = support("bfloat16", mixed=("both",))
    wide = [r for r in planned(able) if r["parameters"] == "float32"]
    assert len(wide) > 100
    assert all(r["weight"] and r["bias"] for r in wide)
    assert not any(r["parameters"] for r in planned(support("bfloat16")))


def test_float16_stays_in_its_range(planned):
    for r in planned(support("float16"), PROFILES["ci"]):
        top = 2.0 ** r["scale"] * (1 + r["mean"]) if r["mean"] < 1e3 else 1.0
        assert top < 65504 / 3.5 or r["regime"] in ("outlier", "heavy")


def collected(strategy: Any, count: int, seed: int = 5) -> list[Case]:
    cases: list[Case] = []

    def body(case: Case) -> float:
        cases.append(case)
        return float(len(cases) % 7)

    search(strategy, body, count, seed)
    return cases


NARROW = {
    "affine": {"affine": ("weight",)}, "eps": {"eps": (1e-5, 0.1)}, "fixed eps": {"fixed_eps": 1e-6, "eps": (1e-6,)},
    "ranks": {"ranks": (1,)}, "dims": {"dims": (1,)}, "shape": {"fixed_shape": (3, 4), "dims": (2,)},
}  # fmt: skip


@pytest.mark.parametrize("what", NARROW)
def test_what_is_not_supported_is_never_drawn(what):
    """By the grid and by both searches. A free eps may also be near the variance; a fixed one is never left."""
    able = support(**NARROW[what])
    quick = Profile("one", 1, 0, 0, 1 << 12, 1 << 12, 1.0, 1.0)
    sources = (
        list(grid(able, quick)),
        collected(strategies.recipes(able, quick), 40),
        collected(strategies.small(able), 40),
    )
    for cases in sources:
        assert len(cases) >= 40
        for case in cases:
            batch = len(case.arrays["x"].shape) - len(case.normalized_shape)
            affine = ("both" if case.has("bias") else "weight") if case.has("weight") else "bias" if case.has("bias") else "none"  # fmt: skip # noqa: E501
            assert affine in able.affine
            assert batch in able.ranks
            assert len(case.normalized_shape) in able.dims
            near = 2.0**-60 <= case.eps <= 2.0**6 and float(case.eps).hex().startswith("0x1.0000000000000p")
            assert case.eps in able.eps or (near and what != "fixed eps")
            if what == "shape":
                assert case.normalized_shape == (3, 4)


@pytest.mark.parametrize("dtype", FORMATS)
def test_drawn_numbers_are_finite_and_of_the_dtype(dtype):
    able = support(dtype)
    quick = Profile("one", 1, 0, 0, 1 << 12, 1 << 12, 1.0, 1.0)
    import numpy as np

    for case in [*collected(strategies.recipes(able, quick), 30), *collected(strategies.small(able), 30)]:
        for name, array in case.arrays.items():
            assert array.dtype == dtype
            assert np.isfinite(array.values).all(), name


def test_the_search_counts_examples_pushes_up_and_passes_errors_through():
    able = support()
    assert collected(strategies.small(able), 0) == []
    assert len(collected(strategies.small(able), 25)) == 25

    def broken(case: Case) -> float:
        raise KeyError(case.dtype)

    with pytest.raises(KeyError, match="float32"):
        search(strategies.small(able), broken, 5, 1)
    for awkward in (float("inf"), 1e30, 0):
        search(strategies.small(able), lambda case, value=awkward: value, 5, 1)  # type: ignore[misc]


def test_streams_have_seeds_of_their_own():
    parts = list(product((0, 1), ("recipes", "small"), ("float32", "float64"), ("cpu", "cuda")))
    assert len({stream_seed(*p) for p in parts}) == len(parts)


SCRIPT = """
import contextlib, hashlib, sys
sys.path.insert(0, ".")
if "user" in sys.argv:
    import user_module
from lnverify import strategies
if "unprotected" in sys.argv:
    strategies.no_local_constants = contextlib.nullcontext
from properties_support import support, collected, Profile
able, quick = support(), Profile("one", 1, 0, 0, 1 << 12, 1 << 12, 1.0, 1.0)
total = hashlib.sha256()
for strategy in (strategies.recipes(able, quick), strategies.small(able)):
    for case in collected(strategy, 60):
        for name, array in sorted(case.arrays.items()):
            total.update(f"{name} {array.sha256} {case.eps}".encode())
print(total.hexdigest())
"""


def test_the_stream_depends_on_the_seed_alone_and_leaves_no_trace(tmp_path):
    """Four interpreters with other hashes: twice the same, once with a user's module full of numbers imported,
    and once with that module and without our protection, which shows that the module would matter."""
    source = Path(__file__).read_text()
    (tmp_path / "properties_support.py").write_text(source.replace("import pytest\n", "from unittest import mock\npytest = mock.MagicMock()\n"))  # fmt: skip # noqa: E501
    (tmp_path / "run.py").write_text(SCRIPT)
    numbers = "".join(f"A{i} = {i * 0.37 + 0.123456}\nB{i} = {i * 3 - 60}\n" for i in range(300))
    (tmp_path / "user_module.py").write_text(numbers)
    before = {p.name for p in tmp_path.iterdir()}
    runs = [
        subprocess.Popen(
            [sys.executable, "run.py", *words],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, words in enumerate(([], [], ["user"]))
    ]
    plain, again, user = (run.communicate()[0].strip() for run in runs)
    assert len(plain) == 64
    assert plain == again == user
    assert {p.name for p in tmp_path.iterdir()} == before
    bare = subprocess.run(
        [sys.executable, "run.py", "user", "unprotected"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert bare.stdout.strip() != plain
