"""Strategies: the fixed grid of cases, and what Hypothesis draws.

The grid is a covering array (lnverify.covering): a prefix of whole blocks of 121 cases covers all pairs of levels
of 11 factors, and all 11 blocks cover all triples. A factor with fewer levels folds.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import Any

from lnverify.case import Case
from lnverify.covering import PRIME, levels
from lnverify.floats import FORMATS, FloatArray, round_values
from lnverify.profiles import Profile
from lnverify.recipes import build
from lnverify.support import AFFINE, Support

N_CLASSES = (
    (8, 7, 9), (1,), (3, 2), (17, 15, 16), (33, 31, 32), (65, 63, 64), (129, 127, 128), (257, 255, 256, 300),
    (769, 512, 1023, 1025), (2049, 2047, 2048), (4097, 4095, 4096),
)  # fmt: skip
TALLEST = 65600
ROWS = (2, 1, 3, 33, 65, 257, 0, 513, 2049, 4097, 8193)
GRADS = (
    ("x", "weight", "bias"), ("x",), ("weight", "bias"), ("x", "weight"), ("x", "bias"), ("weight",), ("bias",),
)  # fmt: skip
DYS = (
    "normal", "integers", "ones", "last_row", "expanded", "one_hot", "output", "block_edges", "zero_mean",
    "last_column", "normal",
)  # fmt: skip
REGIMES = (
    "normal", "rows", "normal", "outlier", "heavy", "integers", "mixed", "alternating", "one_hot", "step", "constant",
)  # fmt: skip
MEANS = (0.0, 3.0, 100.0, 0.0, 1e3, 10.0, 0.5, 1e4, 30.0, 0.0, 1e6)
SCALES = (0, 0, -6, 0, 10, 1, 0, -12, 30, -40, 60)
WEIGHTS = ("normal", "negative", "zeros", "powers", "normal", "ones", "zero", "huge")
EPS = (1e-5, 1e-3, "near", 0.1, 1e-12, 1e-5, "near", 10.0, 1e-8, 0.0, 1e-5)


def _shape(n: int, rows: int, form: int, support: Support) -> tuple[list[int], list[int]]:
    """Leading dimensions and normalized_shape for n and rows, in one of five forms the subject supports."""
    shape, batch = [n], [rows]
    first = next((p for p in (2, 3, 5, 7, 11, 13) if n % p == 0 and n > p), 0)
    if form in (1, 2) and 2 in support.dims and first:
        shape = [first, n // first] if form == 1 else [n // first, first]
        second = next((p for p in (2, 3, 5) if shape[1] % p == 0 and shape[1] > p), 0)
        if form == 1 and 3 in support.dims and second:
            shape = [shape[0], second, shape[1] // second]
        if form == 2 and 3 in support.dims and rows % 2:  # dimensions of one element are dropped by some
            shape = [*shape, 1] if n % 2 else [shape[0], 1, shape[1]]
    elif form in (1, 2) and 2 in support.dims:  # nothing divides n: a dimension of one element
        shape = [n, 1] if form == 1 else [1, n]
    if form == 3 and 0 in support.ranks and rows == 1:
        batch = []
    elif form in (3, 4) and 2 in support.ranks:
        divisor = next((p for p in (3, 2, 5, 7, 11) if rows % p == 0), 1)
        batch = [divisor, rows // divisor]
        if form == 4 and 3 in support.ranks:
            batch = [divisor, 1, rows // divisor]
    return batch, shape


def _scale(dtype: str, wanted: int, mean: float) -> int:
    """Keep float16 inside its range; let float64 use more of its own."""
    if dtype == "float16":
        return max(min(wanted, 12 if mean < 4 else 5 if mean < 200 else 0), -14)
    return wanted * 8 if dtype == "float64" and abs(wanted) >= 30 else wanted


def grid(support: Support, profile: Profile, seed: int = 0) -> Iterator[Case]:
    """The fixed grid for a subject in one dtype, whole blocks of 121, small cases of a block first.

    Cases over the profile's cap keep their N and lose rows. Every case is built when it is drawn.
    """
    dtype, device = support.dtype, support.device
    cap = profile.cap64 if dtype == "float64" else profile.cap
    fixed = support.subject.capabilities.fixed_shape
    threads = support.subject.capabilities.threads or (1, 2)
    for block in range(profile.blocks):
        recipes: list[dict[str, Any]] = []
        for a in range(PRIME):
            for b in range(PRIME):
                level = levels(block, a, b)
                index = ((block * PRIME + a) * PRIME + b) * 7
                sizes = N_CLASSES[level[0]]
                n = prod(fixed) if fixed else sizes[(a + b + block) % len(sizes)]
                rows = min(ROWS[level[1]], max(cap // max(n, 1), 1))
                batch, shape = _shape(n, rows, level[2] % 5, support)
                affine = support.affine[level[3] % len(support.affine)]
                mean = MEANS[level[7]]
                scale = _scale(dtype, SCALES[level[8]], mean)
                eps = EPS[level[5]]
                near = 2.0 ** min(max(2 * scale, -60), 6)  # of the order of the variance
                kind = support.subject.capabilities.eps_dtype
                value = near if isinstance(eps, str) else float(round_values(eps, kind))
                if value not in support.eps and (
                    isinstance(eps, float) or support.subject.capabilities.eps is not None
                ):
                    value = support.eps[level[5] % len(support.eps)]
                weight, bias = AFFINE[affine]
                # the biases meet the weights so that ones come with zeros too, as a new module has them
                recipes.append({
                    "dtype": dtype, "parameters": "float32" if affine in support.mixed and (a + b) % 3 == 2 else None,
                    "batch": batch, "shape": list(fixed) if fixed else shape, "regime": REGIMES[level[6]],
                    "mean": mean, "scale": scale, "eps": value, "seed": seed * 100003 + index + 1,
                    "weight": weight and WEIGHTS[level[9] % len(WEIGHTS)],
                    "bias": bias and ("normal", "zeros", "normal", "large")[level[9] % 4],
                    "dy": DYS[level[10]], "grads": GRADS[level[4] % 7],
                    "threads": threads[(a + b) % len(threads)], "device": device,
                })  # fmt: skip
        recipes.sort(key=lambda r: prod(r["batch"]) * prod(r["shape"]) > 1 << 13)
        for recipe in recipes:
            yield build(recipe)


def tall(support: Support, profile: Profile) -> Iterator[Case]:
    """Cases with more rows than a launch grid of 65535 blocks holds (NVIDIA/apex#411), where the cap allows: dy dense,
    and in the last row alone, which shows a row that is lost from sums."""
    cap = profile.cap64 if support.dtype == "float64" else profile.cap
    if cap < TALLEST or support.subject.capabilities.fixed_shape:
        return
    weight, bias = AFFINE[support.affine[0]]
    for dy in ("integers", "last_row"):
        yield build({
            "dtype": support.dtype, "batch": [TALLEST], "shape": [min(cap // TALLEST, 8)], "regime": "rows",
            "mean": 0.5, "scale": 0, "eps": support.eps[0], "seed": 11, "weight": weight, "bias": bias, "dy": dy,
            "device": support.device,
        })  # fmt: skip


def stream_seed(*parts: Any) -> int:
    """A seed for one stream of draws: a hash of (seed, operation, strategy, dtype, device)."""
    return int.from_bytes(hashlib.sha256("|".join(map(str, parts)).encode()).digest()[:8], "big")


@contextlib.contextmanager
def no_local_constants() -> Iterator[None]:
    """Hypothesis mixes constants of the user's modules into its draws; a seed must not depend on them.

    It also keeps what it reads of these modules in a folder .hypothesis, which nobody asked for.
    """
    from hypothesis.internal.conjecture import providers as private

    providers: Any = private
    wanted = getattr(providers, "_get_local_constants", None)
    if wanted is None:
        yield
        return
    empty = providers.Constants()
    providers._get_local_constants = lambda: empty
    try:
        yield
    finally:
        providers._get_local_constants = wanted


def search(strategy: Any, body: Callable[[Case], float], examples: int, seed: int) -> None:
    """Let Hypothesis draw `examples` cases; `body` returns the ratio that the search pushes up.

    Deadline and health checks are off, nothing is written to the user's folder, nothing is shrunk here
    (lnverify.shrink does, law by law). An exception of `body` ends the search and passes through: Hypothesis must not
    see it, since it would run the case again, and call a subject with a memory flaky.
    """
    import hypothesis
    from hypothesis import HealthCheck, Phase

    if examples <= 0:
        return
    ended: Exception | None = None

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate, Phase.target],
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    @hypothesis.given(strategy)
    def run(case: Case) -> None:
        nonlocal ended
        if ended is not None:
            return
        try:
            ratio = body(case)
        except Exception as error:
            ended = error
            return
        hypothesis.target(min(float(ratio), 1e9), label="error over bound")

    with no_local_constants():
        run()
    if ended is not None:
        raise ended


def recipes(support: Support, profile: Profile) -> Any:
    """Hypothesis strategy: recipes of every regime and shape, smaller than the grid's largest."""
    from hypothesis import strategies as st

    dtype = support.dtype
    cap = 1 << 13 if dtype == "float64" else 1 << 14
    fixed = support.subject.capabilities.fixed_shape
    # All strategies are made once: Hypothesis validates each new one, which takes longer than a draw.
    sizes = st.one_of(st.integers(1, 40), st.sampled_from([c for k in N_CLASSES for c in k]))
    counts, shapes = st.one_of(st.integers(1, 6), st.sampled_from(ROWS)), st.integers(0, 4)
    affines, means = st.sampled_from(support.affine), st.sampled_from((0.0, 0.0, 1.0, 8.0, 64.0, 1e3, 1e4, 1e6))
    scales, mixed, regimes = st.one_of(st.just(0), st.integers(-30, 30)), st.booleans(), st.sampled_from(REGIMES)
    seeds, weights = st.integers(0, 2**32 - 1), st.sampled_from(WEIGHTS)
    biases, dys, grads = st.sampled_from(("normal", "zeros", "large")), st.sampled_from(DYS), st.sampled_from(GRADS)
    threads = st.sampled_from(support.subject.capabilities.threads or (1, 2))
    epsilons = lru_cache(maxsize=None)(lambda *near: st.sampled_from([*support.eps, *near]))

    @st.composite
    def draw_case(draw: Any) -> Case:
        n = prod(fixed) if fixed else draw(sizes)
        rows = min(draw(counts), max(cap // n, 1))
        batch, shape = _shape(n, rows, draw(shapes), support)
        affine = draw(affines)
        weight, bias = AFFINE[affine]
        mean = draw(means)
        scale = _scale(dtype, draw(scales), mean)
        near = (
            []
            if support.subject.capabilities.eps is not None
            else [float(2.0 ** min(max(2 * scale + k, -60), 6)) for k in (-2, 2)]
        )
        return build({
            "dtype": dtype, "parameters": "float32" if affine in support.mixed and draw(mixed) else None,
            "batch": batch, "shape": list(fixed) if fixed else shape, "regime": draw(regimes),
            "mean": mean, "scale": scale, "eps": draw(epsilons(*near)), "seed": draw(seeds),
            "weight": weight and draw(weights), "bias": bias and draw(biases),
            "dy": draw(dys), "grads": draw(grads), "threads": draw(threads), "device": support.device,
        })  # fmt: skip

    return draw_case()


def small(support: Support) -> Any:
    """Hypothesis strategy: up to 3 rows of up to 6 numbers, drawn one by one; these shrink best."""
    from hypothesis import strategies as st

    dtype = support.dtype
    fmt = FORMATS[dtype]
    fixed = support.subject.capabilities.fixed_shape
    top = 2.0**12 if dtype == "float16" else 2.0**40
    width: Any = {"float64": 64, "float32": 32}.get(dtype, 16 if dtype == "float16" else 32)
    number = st.one_of(
        st.integers(-64, 64).map(float),
        st.sampled_from([float(s * 2.0**k) for k in range(-12, 12) for s in (1, -1)] + [1000.5, 9999.0, 10000.0]),
        st.floats(-top, top, width=width, allow_subnormal=False),
    )  # fmt: skip
    widths, counts, units, shifts = st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32), st.booleans()
    affines, epsilons, grads = (st.sampled_from(of) for of in (support.affine, support.eps, GRADS))
    numbers = lru_cache(maxsize=None)(lambda count: st.lists(number, min_size=count, max_size=count))

    @st.composite
    def draw_case(draw: Any) -> Case:
        shape = tuple(fixed) if fixed else (draw(widths),)
        n = prod(shape)
        rows = draw(counts)
        base = draw(number)

        def array(count: int, kind: str, shifted: float = 0.0) -> FloatArray:
            if count > 64:
                unit = draw(units)
                values = [shifted + ((unit * (i + 1)) % 17) - 8.0 for i in range(count)]
            else:
                values = [shifted + v for v in draw(numbers(count))]
            return FloatArray.of([max(min(v, fmt.largest), -fmt.largest) for v in values], kind)

        def shaped(a: FloatArray, where: tuple[int, ...]) -> FloatArray:
            return FloatArray(a.dtype, a.bits.reshape(where))

        affine = draw(affines)
        arrays = {"x": shaped(array(rows * n, dtype, base if draw(shifts) else 0.0), (rows, *shape))}
        if affine in ("both", "weight"):
            arrays["weight"] = shaped(array(n, dtype), shape)
        if affine in ("both", "bias"):
            arrays["bias"] = shaped(array(n, dtype), shape)
        arrays["dy"] = shaped(array(rows * n, dtype), (rows, *shape))
        return Case(
            operation="layer_norm", dtype=dtype, normalized_shape=shape, arrays=arrays,
            eps=draw(epsilons), requires_grad=draw(grads),
            device=support.device, label=f"N={n}, rows={rows}, drawn number by number",
        )  # fmt: skip

    return draw_case()
