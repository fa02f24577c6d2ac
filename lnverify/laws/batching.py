"""LN6xx: rows, shapes, dtypes, layouts, and whether a request is answered at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import single
from lnverify.diagnosis import EMPTY_REFUSED, EMPTY_WRONG
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, FloatArray, distance, quantum
from lnverify.law import INAPPLICABLE, Outcome, law
from lnverify.protocol import NOT_IMPLEMENTED, OUT_OF_MEMORY, Response, live_rows

ROWS = "Ba, Kiros, Hinton (2016), section 3: every case has statistics of its own"
ROWS_CAUSE = "rows of a batch influence each other"


def _row_apart(a: Evaluation, row_a: int, b: Evaluation, row_b: int, name: str) -> float:
    """Largest ratio of |difference of two returned rows with equal inputs| to the sum of both limits."""
    one, two = a.output(name), b.output(name)
    if one is None or two is None or one.size != a.case.size or two.size != b.case.size:
        return 0.0
    points = a.case.dtype in ("bfloat16", "float16")
    left, right = one.values.reshape(a.case.rows, a.case.n), two.values.reshape(b.case.rows, b.case.n)
    first, second = left[row_a], right[row_b]
    if a.skipped(name, left)[row_a].any() or b.skipped(name, right)[row_b].any():
        return 0.0
    cell = 1.0 if points else 0.5
    with np.errstate(all="ignore"):
        limit = a.bound(name, "det", points)[row_a] + b.bound(name, "det", points)[row_b]
        limit = limit + cell * (quantum(first, FORMATS[one.dtype]) + quantum(second, FORMATS[two.dtype]))
        apart = np.abs(first - second)
        ratio = np.where(np.isfinite(limit), np.where(np.isnan(apart), np.inf, apart / limit), 0.0)
        # Infinities are overflow, which LN101 judges; equal NaN rows are equal.
        ratio = np.where(np.isinf(first) | np.isinf(second) | (np.isnan(first) & np.isnan(second)), 0.0, ratio)
    return float(ratio.max(initial=0.0))


def _row_outputs(ev: Evaluation) -> list[str]:
    return ["y"] + (
        ["dx"] if ev.case.has("dy") and "dx" in ev.case.gradients() and "dx" in ev.subject.capabilities.outputs else []
    )


@law(
    "LN601",
    name="row-alone",
    severity="error",
    limit=24,
    max_elements=1 << 16,
    source=ROWS + "; pytorch/pytorch#149301",
)
def row_alone(ev: Evaluation) -> Outcome:
    """A row alone gives what it gives within a batch, in y and dx.

    Limit: the sum of the bounds of both runs and half a cell of each. (Equal bits are the declared property
    'batch_invariant', LN602.)
    """
    case = ev.case
    if case.rows < 2 or case.n == 0 or case.layouts.get("dy") == "output":
        return INAPPLICABLE
    worst = 0.0
    for row in {case.rows - 1, (case.n * 7) % case.rows}:
        alone = ev.again(single(case, row))
        for name in _row_outputs(ev):
            ratio = _row_apart(ev, row, alone, 0, name)
            worst = max(worst, ratio)
            if ratio > 1:
                text = f"Row {row} of {case.rows} differs in {name} from the same row alone, "
                text += f"{ratio:.3g} times the sum of both bounds."
                return Outcome("violated", ratio, name, (row,), text, ROWS_CAUSE)
    return Outcome("holds", worst, "y")


@law(
    "LN602",
    name="batch-invariance",
    severity="error",
    needs=("batch_invariant",),
    limit=48,
    max_elements=1 << 15,
    source="declared by the subject (batch_invariant)",
)
def batch_invariance(ev: Evaluation) -> Outcome:
    """Where the subject declares it: a row gives the same bits alone and within any batch."""
    case = ev.case
    if not ev.subject.capabilities.batch_invariant or case.rows < 2 or case.n == 0:
        return INAPPLICABLE
    row = case.rows - 1
    one, two = ev.output("y"), ev.again(single(case, row)).output("y")
    if one is None or two is None or one.size != case.size:
        return INAPPLICABLE
    mine = FloatArray(one.dtype, one.bits.reshape(case.rows, case.n)[row])
    if mine.same_bits(FloatArray(two.dtype, two.bits.reshape(-1))):
        return Outcome("holds", 0.0, "y")
    text = f"Row {row} of {case.rows} has other bits than the same row alone, and batch invariance is declared."
    return Outcome("violated", 1.0, "y", (row,), text, "not batch invariant, though declared so")


@law(
    "LN603",
    name="shape-and-dtype",
    severity="error",
    source="torch.nn.functional.layer_norm; pytorch/pytorch#81851, #188503",
)
def shape_and_dtype(ev: Evaluation) -> Outcome:
    """y has the shape of x, and its dtype (or the dtype that the subject declares for its output)."""
    got = ev.output("y")
    if ev.response.refusal is not None:
        return INAPPLICABLE
    if got is None:
        return Outcome("violated", np.inf, "y", (), "y does not exist.", "there is no y")
    x = ev.case.arrays["x"]
    declared = ev.subject.capabilities.output_dtype
    due = x.dtype if declared == "input" else declared
    if got.shape != x.shape:
        return Outcome(
            "violated", np.inf, "y", (), f"y has shape {got.shape}, x has {x.shape}.", "y has the wrong shape"
        )
    if got.dtype != due:
        text = f"y is {got.dtype}, {due} is due for x in {x.dtype}"
        wide = [k for k in ("weight", "bias") if ev.case.has(k) and ev.case.arrays[k].dtype != x.dtype]
        if wide:
            text += f" beside a {wide[0]} in float32 (where that is never used: ?parameter_dtype={x.dtype})"
        text += f"; where it is meant: ?output_dtype={got.dtype}."
        return Outcome("violated", np.inf, "y", (), text, "y has the wrong dtype")
    return Outcome("holds", 0.0, "y")


@law(
    "LN604",
    name="empty-batch",
    severity="error",
    limit=4,
    source="tensorflow/tensorflow#46366; pytorch/pytorch#28614; kornia/kornia#4681",
)
def empty_batch(ev: Evaluation) -> Outcome:
    """No rows give an empty y of the right shape, an empty dx, and parameter gradients that exist and are zero."""
    case = ev.case
    shape = (0, *case.normalized_shape)
    arrays = {k: v for k, v in case.arrays.items() if k in ("weight", "bias")}
    for name in ("x", "dy"):
        if case.has(name):
            arrays[name] = FloatArray.of(np.zeros(shape), case.dtype)
    chosen = replace(case, arrays=arrays, layouts={}, recipe=None, requires_grad=("x", "weight", "bias"))
    again = ev.again(chosen)
    response = again.response
    if response.refusal is not None:
        backward = response.phase == "backward"
        text = f"An empty batch of shape {shape} is refused{' in the backward' * backward}: {response.refusal}"
        output = "dx" if backward else "y"
        return Outcome("crashed", np.inf, output, (), text, EMPTY_REFUSED, case=chosen)
    problem = ""
    y = response.arrays.get("y")
    if y is None or y.shape != shape:
        problem = f"y has shape {None if y is None else y.shape}, {shape} is due"
    for name in chosen.gradients() if chosen.has("dy") else ():
        if name not in ev.subject.capabilities.outputs:
            continue
        gradient = response.arrays.get(name)
        if gradient is None:
            problem = problem or f"{name} does not exist"
        elif name != "dx" and (gradient.shape != case.arrays[name[1:]].shape or bool((gradient.values != 0).any())):
            problem = problem or f"{name} is not zeros of shape {case.arrays[name[1:]].shape}"
    if problem:
        return Outcome(
            "violated",
            np.inf,
            "y",
            (),
            f"For an empty batch {problem}.",
            EMPTY_WRONG,
            case=chosen,
        )
    return Outcome("holds", 0.0, "y")


@law(
    "LN605",
    name="rows-do-not-mix",
    severity="error",
    limit=24,
    max_elements=1 << 16,
    source=ROWS + "; flagos-ai/FlagGems#59",
)
def rows_do_not_mix(ev: Evaluation) -> Outcome:
    """Changing one row moves no other row of y or dx, not even where it becomes huge.

    Limit: both runs' bounds and half cells on the rows that did not change.
    """
    case = ev.case
    if case.rows < 2 or case.n < 2 or case.layouts.get("dy") == "output" or not np.isfinite(case.matrix("x")).all():
        return INAPPLICABLE
    row = case.rows // 2
    limit = FORMATS[case.dtype].largest
    own = case.matrix("x")[row]
    huge = np.where(np.arange(case.n) % 2 == 0, 0.5, -0.25) * (limit if case.dtype == "float16" else limit**0.8)
    worst = 0.0
    for changed in (np.roll(own, 1) * 4.0 + 3.0, huge):
        x = case.matrix("x").copy()
        x[row] = changed
        array = FloatArray.of(np.clip(x, -limit, limit).reshape(case.arrays["x"].shape), case.dtype)
        other = ev.again(replace(case, arrays={**case.arrays, "x": array}, recipe=None))
        outcome = _others_stay(ev, other, row)
        if outcome.bad:
            return outcome
        worst = max(worst, outcome.ratio)
    return Outcome("holds", worst, "y")


def _others_stay(ev: Evaluation, other: Evaluation, row: int) -> Outcome:
    """Whether every row but the one that was changed stays what it is."""
    case, worst = ev.case, 0.0
    for name in _row_outputs(ev):
        one, two = ev.output(name), other.output(name)
        if one is None or two is None or one.size != case.size or two.size != case.size:
            continue
        changed = (one.values != two.values).reshape(case.rows, case.n).any(axis=1)
        changed[row] = False
        for moved in np.flatnonzero(changed)[:8]:
            ratio = _row_apart(ev, int(moved), other, int(moved), name)
            worst = max(worst, ratio)
            if ratio > 1:
                text = f"Changing row {row} moves row {moved} of {name}, {ratio:.3g} times the sum of both bounds."
                return Outcome("violated", ratio, name, (int(moved),), text, ROWS_CAUSE)
    return Outcome("holds", worst, "y")


@law(
    "LN606",
    name="answers",
    severity="error",
    source="an input of a supported kind is answered, not refused; onnx/onnx, microsoft/onnxruntime#25896 (N = 1)",
)
def answers(ev: Evaluation) -> Outcome:
    """A request of a kind that the subject supports (dtype, affine part, rank, eps) is answered.

    What it refuses already on an ordinary input (2 rows of 8) is listed as not supported; an exception on
    another shape, dy form or subset of gradients is a crash. A NotImplementedError says that the size is not
    supported: such cases are listed as not examined.
    """
    response = ev.response
    if response.refusal is None:
        return Outcome("holds", 0.0, "y")
    how = "It crashed" if response.phase == "crash" else f"Refused in the {response.phase}"
    text = f"{how}: {response.refusal}"
    cause = EMPTY_REFUSED if _emptiness(ev) else f"an ordinary request is refused in the {response.phase}"
    return Outcome("crashed", np.inf, "y", (), text, cause)


def _emptiness(ev: Evaluation) -> bool:
    """Whether a case without rows is refused for that: a row of the same length is answered."""
    case = ev.case
    if case.rows:
        return False
    shape = tuple(max(size, 1) for size in case.arrays["x"].shape)
    ones = {k: FloatArray.of(np.ones(shape), a.dtype) for k, a in case.arrays.items() if k in ("x", "dy")}
    return ev.again(replace(case, arrays={**case.arrays, **ones}, recipe=None)).response.refusal is None


@law("LN610", name="many-rows", severity="error",
     source="grids of 65535 blocks, and 32-bit indices: NVIDIA/apex#411; --huge for 2^31, 2^32 elements")  # fmt: skip
def many_rows(ev: Evaluation) -> Outcome:
    """Of a few rows that are repeated to very many, each is as right as it is alone: y of every row keeps the bound of
    LN101, and the gradients for a dy that is zero in most rows keep those of LN201 to LN203.

    Rows whose bits are those of their first occurrence are as right as that. Rows without dy add exact zeros to the
    sums: what these may deviate is what it is without them. 70001 and 1100003 rows are asked of every
    subject in torch; --huge asks for more than 2^31 and 2^32 elements, where they fit into memory.
    """
    case = ev.case
    if not case.repeat:
        return INAPPLICABLE
    response = ev.ask("y")
    if response.refusal is not None:
        if response.refusal.startswith((*OUT_OF_MEMORY, NOT_IMPLEMENTED, "TypeError: rows are repeated")):
            return INAPPLICABLE
        text = f"{case.repeat:,} rows of {case.n} are refused: {response.refusal}"
        return Outcome("crashed", np.inf, "y", (), text, "many rows are refused", case=case)
    few = ev.again(replace(case, repeat=0))
    if few.settle("y")[1] == "violated":
        return INAPPLICABLE
    first, odd, numbers = (response.arrays[name] for name in ("y", "odd", "odd_rows"))
    rows = np.concatenate([np.arange(case.rows), numbers.values.astype(np.int64)])
    values = np.concatenate([a.values.reshape(-1, case.n) for a in (first, odd)])
    kind = rows % case.rows
    exact, bound = few.pair("y"), few.bound("y", "det", FORMATS[case.dtype].precision <= 11)[kind]
    with np.errstate(all="ignore"):
        apart = distance(values, exact.hi[kind], exact.lo[kind], FORMATS[first.dtype])
        blind = ~np.isfinite(bound) | ~np.isfinite(exact.hi[kind])
        ratio = np.where(np.isnan(apart), np.inf, np.where(apart > 0, apart / bound, 0.0))
        ratio = np.where(blind, 0.0, ratio)
    if blind.all():
        return INAPPLICABLE
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst = float(ratio[at])
    if worst <= 1:
        return _gradients_of_many(ev, worst)
    row, column = int(rows[at[0]]), int(at[1])
    due, got = float(exact.hi[kind[at[0]], column]), float(values[at])
    text = (
        f"Of {case.repeat:,} rows of {case.n}, row {row:,} is wrong: y[{row}, {column}] is {got:.9g}, exact {due:.9g}."
    )
    return Outcome("violated", worst, "y", (row, column), text, "rows far down a batch are wrong", due, got,
                   float(bound[at]), case)  # fmt: skip


def _gradients_of_many(ev: Evaluation, worst: float) -> Outcome:
    """The gradients of very many rows, judged as those of the rows alone that have a dy."""
    case = ev.case
    wanted = [g for g in case.gradients() if g in ev.subject.capabilities.outputs]
    response = ev.ask(*wanted) if wanted else Response()
    if response.refusal is not None and not response.refusal.startswith((*OUT_OF_MEMORY, NOT_IMPLEMENTED)):
        text = f"The backward of {case.repeat:,} rows of {case.n} is refused: {response.refusal}"
        return Outcome("crashed", np.inf, wanted[0], (), text, "many rows are refused", case=case)
    kinds = np.array(live_rows(case.repeat, case.rows)) % case.rows
    arrays = {k: FloatArray(a.dtype, a.bits[kinds]) if k in ("x", "dy") else a for k, a in case.arrays.items()}
    alone = ev.again(replace(case, arrays=arrays, repeat=0, recipe=None))
    if alone.response.refusal is not None or any(alone.settle(g)[1] == "violated" for g in wanted):
        return Outcome("holds", worst, "y")  # LN201 to LN203 say so
    where = f"Of {case.repeat:,} rows of {case.n}, with a dy that is zero in all but {len(kinds)}"
    answered = alone.answered(response)
    for name in wanted if response.arrays else ():
        judgement, kind = answered.settle(name)
        if kind == "violated" or judgement.state == "shape":
            return judgement.blame(where, f"{name} of many rows is wrong", case)
        worst = max(worst, judgement.ratio if kind == "holds" else 0.0)
    odd = response.arrays.get("odd")
    if odd is not None and odd.size:
        row, value = int(response.arrays["odd_rows"].values[0]), float(odd.values.ravel()[0])
        text = f"{where}, row {row:,} has none, and its dx is not zero: {value:.9g}."
        return Outcome("violated", np.inf, "dx", (row, 0), text, "dx of many rows is wrong", 0.0, value, 0.0, case)
    return Outcome("holds", worst, "y")
