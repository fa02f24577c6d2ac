"""Support: what a subject can do in one dtype on one device, found by asking it ordinary inputs.

What it refuses there is 'not supported' and listed; what it refuses later, on another input of a supported
kind, is a finding (LN606). An ordinary input is 2 rows of 8, mean 0.5, every parameter present.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lnverify.case import Case
from lnverify.errors import UsageError
from lnverify.floats import round_values
from lnverify.recipes import build
from lnverify.subject import Subject

SLOW = 2.0  # seconds that one case may take by the warm-up's estimate; slower shapes are not examined
SLOW_CALL = 0.5  # seconds: what is as slow as that is timed well enough by one call
SURE = 0.05  # seconds of a call beside which the noise of a busy machine is small
MOST = {"elements": 1 << 22, "rows": 65600}  # of the cases that an estimate decides on
EPS = (1e-5, 0.0, 1e-12, 1e-8, 1e-3, 0.1, 10.0)
AFFINE = {"both": ("normal", "normal"), "weight": ("normal", None), "bias": (None, "normal"), "none": (None, None)}
AFFINE_TEXT = {
    "both": "weight with bias", "weight": "weight without bias", "bias": "bias without weight",
    "none": "neither weight nor bias",
}  # fmt: skip
TRANSFORMS = (
    ("tty", ("tty",), "forward over forward mode"), ("rty", ("rty",), "reverse over forward mode"),
    ("fdx", ("fdx",), "forward over reverse mode"),
    ("d3x", ("d3x",), "third derivatives"), ("vmap", ("y", "vmap"), "vmap"),
    ("statistics_dx", ("statistics_dx",), "gradients of mean and rstd"),
)  # fmt: skip
SECOND = ("d2x", "d2weight", "d2bias", "d2dy")


@dataclass(frozen=True)
class Support:
    """What may be asked.

    ranks: batch ranks (0: x has normalized_shape alone); dims: numbers of normalised dimensions; eps: values that are
    accepted; mixed: affine parts that it accepts in float32 beside a 16-bit x; seconds: for one call of 2 x 8, and
    per element and per row beyond; refused: sentences for what is not supported; backward: what the backward raised.
    """

    subject: Subject
    dtype: str
    device: str
    affine: tuple[str, ...]
    ranks: tuple[int, ...]
    dims: tuple[int, ...]
    eps: tuple[float, ...]
    outputs: tuple[str, ...]
    mixed: tuple[str, ...]
    seconds: tuple[float, float, float]
    refused: tuple[str, ...]
    backward: str = ""

    def predicted(self, elements: int, rows: int) -> float:
        """Seconds that a call of so many elements in so many rows should take."""
        return self.seconds[0] + elements * self.seconds[1] + rows * self.seconds[2]


def ordinary(subject: Subject, dtype: str, device: str, affine: str = "both", **changes: Any) -> Case:
    """The ordinary input, in the shape that the subject is fixed to, if it is."""
    fixed = subject.capabilities
    weight, bias = AFFINE[affine]
    recipe = {
        "dtype": dtype, "batch": [2], "shape": list(fixed.fixed_shape or (8,)), "regime": "normal", "mean": 0.5,
        "scale": 0, "weight": weight, "bias": bias, "dy": "normal", "seed": 1, "device": device,
        "eps": 1e-5 if fixed.eps is None else fixed.eps, **changes,
    }  # fmt: skip
    return build(recipe)


def find_support(subject: Subject, dtype: str, device: str) -> Support | str:
    """Ask ordinary inputs. Returns the reason where the dtype is not supported at all."""
    declared = subject.capabilities
    refused: list[str] = []

    def refusal(case: Case, *wanted: str) -> str | None:
        return subject.run(case.request(*(wanted or ("y",)))).refusal

    affine = []
    first = ""
    for name in declared.affine:
        answer = subject.run(ordinary(subject, dtype, device, name).request("y"))
        problem = answer.refusal
        if answer.phase == "crash":
            return f"{dtype} on {device}: an ordinary input crashes it ({problem})"
        if problem is None:
            affine.append(name)
        else:
            first = first or problem
            refused.append(f"{dtype}: {AFFINE_TEXT[name]} ({problem})")
    if not affine:
        return f"{dtype} on {device} is refused: {first}"
    base = ordinary(subject, dtype, device, affine[0])
    outputs = ["y"]
    grads = [g for g in base.gradients() if g in declared.outputs]
    answer = subject.run(base.request("y", *grads))
    if answer.refusal is None:
        outputs += [o for o in ("dx", "dweight", "dbias") if o in declared.outputs]
    elif grads:
        refused.append(f"{dtype}: gradients ({answer.refusal})")
    for name in ("mean", "rstd"):
        if name in declared.outputs and refusal(base, "y", name) is None:
            outputs.append(name)
    if "dx" in outputs:
        outputs += _derivatives(subject, base, refused)
    if subject.module is not None or declared.module:
        outputs.append("module")
    fixed = declared.fixed_shape
    dims, ranks = [len(fixed)] if fixed else [1], [1]
    if not fixed:
        for count, shape in ((2, [2, 4]), (3, [2, 2, 2])):
            if declared.max_dims is None or declared.max_dims >= count:
                problem = refusal(ordinary(subject, dtype, device, affine[0], shape=shape))
                if problem is None:
                    dims.append(count)
                else:
                    refused.append(f"{dtype}: {count} normalised dimensions ({problem})")
    for rank, batch in ((0, []), (2, [1, 2]), (3, [1, 2, 1])):
        problem = refusal(ordinary(subject, dtype, device, affine[0], batch=batch))
        if problem is None:
            ranks.append(rank)
        else:
            refused.append(f"{dtype}: x with {rank} batch dimensions ({problem})")
    eps = [declared.eps] if declared.eps is not None else []
    if declared.eps is None:
        for value in (float(round_values(e, declared.eps_dtype)) for e in EPS):
            problem = refusal(ordinary(subject, dtype, device, affine[0], eps=value))
            if problem is None:
                eps.append(value)
            else:
                refused.append(f"{dtype}: eps = {value:g} ({problem})")
    mixed = []
    if dtype in ("bfloat16", "float16") and declared.parameter_dtype == "input":
        for name in affine:
            case = ordinary(subject, dtype, device, name, parameters="float32")
            wanted = [g for g in case.gradients() if g in outputs]
            if name != "none" and refusal(case, "y", *wanted) is None:
                mixed.append(name)
    able = replace(subject, capabilities=replace(declared, outputs=tuple(outputs), affine=tuple(affine)))
    return Support(
        able, dtype, device, tuple(affine), tuple(sorted(ranks)), tuple(dims), tuple(eps), tuple(outputs), tuple(mixed),
        _seconds(subject, dtype, device, affine[0], tuple(grads)), tuple(refused),
        (answer.refusal or "") if grads else "",
    )  # fmt: skip


def _derivatives(subject: Subject, base: Case, refused: list[str]) -> list[str]:
    """Forward mode and double backward, as far as an ordinary input is answered."""
    from lnverify.recipes import normal

    arrays = dict(base.arrays)
    for name in ("x", "weight", "bias"):
        if base.has(name):
            for prefix in "tvsw" if name == "x" else "tv":
                arrays[prefix + name] = type(arrays[name]).of(normal(3, arrays[name].shape), arrays[name].dtype)
    for name in ("mean", "rstd"):
        if name in subject.capabilities.outputs:
            arrays[f"d{name}"] = type(arrays["x"]).of(normal(4, (base.rows,)), base.dtype)
    case = replace(base, arrays=arrays, recipe=None)
    found = []
    if "ty" in subject.capabilities.outputs:
        answer = subject.run(case.request("ty"))
        if answer.refusal is None and "ty" in answer.arrays:
            found.append("ty")
        else:
            refused.append(f"{base.dtype}: forward mode ({answer.refusal or 'no tangent'})")
    for name, wanted, what in TRANSFORMS:
        if name in subject.capabilities.outputs:
            answer = subject.run(case.request(*wanted))
            if answer.refusal is None and wanted[0] in answer.arrays:
                found.append(name)
            else:
                refused.append(f"{base.dtype}: {what} ({answer.refusal or 'no result'})")
    second = [o for o in SECOND if o in subject.capabilities.outputs and o[2:] in case.arrays]
    if second:
        answer = subject.run(case.request(*second))
        if answer.refusal is None and answer.arrays:
            found += [o for o in SECOND if o in subject.capabilities.outputs]
        else:
            refused.append(f"{base.dtype}: double backward ({answer.refusal or 'no second derivatives'})")
    return found


def _seconds(
    subject: Subject, dtype: str, device: str, affine: str, grads: tuple[str, ...]
) -> tuple[float, float, float]:
    """Time of an ordinary call, per element of a wide one and per row of a tall one.

    A wide or tall call that forbids the largest cases is made larger until it takes so long that noise cannot be the
    reason: what is examined must not depend on how busy the machine is.
    """
    fixed = subject.capabilities.fixed_shape
    small = ordinary(subject, dtype, device, affine)
    base = _fastest(subject, small, grads)

    def share(most: int, counts: tuple[int, ...], case: Callable[[int], Case], count: Callable[[Case], int]) -> float:
        per = 0.0
        for larger in counts:
            asked = case(larger)
            taken = _fastest(subject, asked, grads)
            per = max(taken - base, 0.0) / max(count(asked) - count(small), 1)
            if taken > SURE or per * most <= SLOW / 4:
                break
        return per

    def wide(n: int) -> Case:
        return ordinary(subject, dtype, device, affine, batch=[2], shape=list(fixed or (n,)))

    def tall(rows: int) -> Case:
        return ordinary(subject, dtype, device, affine, batch=[rows], shape=list(fixed or (8,)))

    return (
        base,
        share(MOST["elements"], (1 << 12, 1 << 15, 1 << 18), wide, lambda case: case.size),
        share(MOST["rows"], (1 << 6, 1 << 10, 1 << 14), tall, lambda case: case.rows),
    )


def _fastest(subject: Subject, case: Case, grads: tuple[str, ...]) -> float:
    """Seconds of the fastest of three calls after one that warms up: on a busy machine a single one may take ten times
    as long."""
    taken = []
    for _ in range(4):
        start = time.perf_counter()
        subject.run(case.request("y", *grads))
        taken.append(time.perf_counter() - start)
        if sum(taken) > SLOW_CALL:
            break
    return min(taken[1:] or taken)


def require_dtypes(subject: Subject, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The dtypes to examine, float64 first. Raises UsageError if the subject declares none of the wanted."""
    order = ("float64", "float32", "bfloat16", "float16")
    able = [d for d in order if d in subject.capabilities.dtypes]
    if not wanted:
        return tuple(able)
    chosen = [d for d in order if d in wanted and d in able]
    if not chosen:
        raise UsageError(
            f"{subject.target} declares {', '.join(able) or 'no dtype'}, none of {', '.join(wanted)}: "
            "choose another --dtype or declare more."
        )
    return tuple(chosen)
