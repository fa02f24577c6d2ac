"""LN90x: transformer blocks in other modes, with branches and norms switched off, and in large batches and sequences.

LN801 and LN802 judge output and gradients. Here stands what they do not reach: modes; settings whose result is exactly
known, so that 16 bits are informed too; and more positions or sequences than the cases have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from lnverify.block import MASK, Block
from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, first_bad, law
from lnverify.laws.operation_calls import in_modes, judged
from lnverify.norms.blocks import BlockBounds
from lnverify.norms.judge import judge, judge_values, measured
from lnverify.operation import operation
from lnverify.recipes import normal

VASWANI = "Vaswani et al. (2017), section 3"
XIONG = "Xiong et al. (2020), table 1"
MANY = 67  # positions, or sequences: more than 64, and no multiple of what kernels take at once
LONG = (67, 131)  # positions: more than 64, and more than 128
SEEN = (0, 1, 33, 63, 64, MANY - 1)
SCORE = 2e4  # of the hidden position: beyond the -10000 by which masks were made, far within every range


def _block(case: Case) -> Block:
    found = operation(case.operation).block
    assert found is not None
    return found


def _right_as_it_is(ev: Evaluation) -> bool:
    """Whether LN801 finds no fault with the block itself, so that something can be learned of the rest."""
    return judge(ev, "y").state in ("holds", "vacuous")


def _exactly(run: Evaluation, due: Float64Array, what: str, cause: str) -> Outcome:
    """y of a run against numbers of its own format, which are to come out as they are; a subnormal one may be zero."""
    got = run.output("y")
    if got is None or got.shape != due.shape:
        return INAPPLICABLE  # LN801 says so
    with np.errstate(all="ignore"):
        off = np.abs(got.values - due)
    off = np.where(np.isnan(off), np.inf, off)
    at = np.unravel_index(int(np.argmax(off)), off.shape)
    tiny = FORMATS[run.case.dtype].tiny
    if off[at] <= tiny:
        return Outcome("holds", float(off[at] / tiny), "y")
    index = tuple(int(i) for i in at)
    text = f"{what}: y{list(index)} is {got.values[at]:.9g}, {due[at]:.9g} is right, exactly."
    return Outcome(
        "violated", float("inf"), "y", index, text, cause, float(due[at]), float(got.values[at]), tiny, run.case
    )  # fmt: skip


def _zeros(case: Case, names: Iterable[str]) -> dict[str, FloatArray | None]:
    """Zeros in the place of those arrays that are there."""
    return {n: FloatArray.of(np.zeros(case.arrays[n].shape), case.dtype) for n in names if case.has(n)}


def _known(ev: Evaluation, positions: int, got: FloatArray, case: Case, what: str, cause: str) -> Outcome:
    """Some values as the y of a smaller case; positions: how many there were where they come from."""
    bounds = measured(ev.again(case))
    assert isinstance(bounds, BlockBounds)
    judgement = judge_values(BlockBounds(bounds.block, bounds.compute, positions), "y", got)
    return judgement.blame(what, cause, case) if judgement.wrong else judgement.outcome("")


@law("LN901", name="block-modes", severity="error", operation="blocks", needs=("module",), limit=12, source=VASWANI)
def block_modes(ev: Evaluation) -> Outcome:
    """A block in evaluation mode is right, and so is it without gradients and in inference mode.

    Bound: that of LN801. Layer norm has no running statistics and dropout is off, so that all modes have one formula;
    frameworks take other paths in some of them, fused ones where no gradient is wanted.
    """
    if not _right_as_it_is(ev):
        return INAPPLICABLE
    return in_modes(ev, ("eval", "enabled"), ("eval", "no_grad"), ("eval", "inference"), ("train", "no_grad"))


@law("LN902", name="block-branches-off", severity="error", operation="blocks", limit=24, source=f"{VASWANI}; {XIONG}")
def block_branches_off(ev: Evaluation) -> Outcome:
    """With zero weights and biases behind both branches a pre-LN block gives x, and a post-LN block LN(LN(x)).

    Bound: none for pre-LN, since x + 0 + 0 is exact in every arithmetic; that of LN801 at these weights for post-LN.
    All that lies before the zeros must be finite, and is at an ordinary input.
    """
    if ev.response.refusal is not None:
        return INAPPLICABLE
    off = ("weight_o", "bias_o", "weight_2", "bias_2")
    run = ev.again(ev.case.forward_alone(**_zeros(ev.case, off)))
    if run.response.refusal is not None or not np.isfinite(measured(run).exact.pair("y").hi).all():
        return INAPPLICABLE
    if not _block(ev.case).pre:
        return judged(run, "With both branches off", "it is no LN(LN(x)) with its branches off")
    if not _in_range(run):
        return VACUOUS
    return _exactly(run, ev.case.arrays["x"].values, "With both branches off", "it is not x with its branches off")


def _in_range(run: Evaluation) -> bool:
    """Whether nothing before the zeros may overflow: four times the largest sum of sizes is within the format.

    The running error notes them in float64, unscaled scores, squares and reciprocal roots included.
    """
    bounds = measured(run)
    assert isinstance(bounds, BlockBounds)
    _ = bounds.forward
    return 4 * bounds.peaks["forward"] <= FORMATS[run.case.dtype].largest


@law("LN903", name="block-last-norm", severity="error", operation="blocks", limit=24, source=VASWANI)
def block_last_norm(ev: Evaluation) -> Outcome:
    """With a gain of zero in its last norm a post-LN block gives that norm's shift, whatever stands before.

    Bound: none; 0 times what is finite is 0, and the shift is added to it in every arrangement. Whoever has no last
    norm, or gives it another norm's parameters, gives something else.
    """
    if _block(ev.case).pre or not ev.case.has("gain_2") or ev.response.refusal is not None:
        return INAPPLICABLE
    run = ev.again(ev.case.forward_alone(**_zeros(ev.case, ["gain_2"])))
    if run.response.refusal is not None:
        return INAPPLICABLE
    if not _in_range(run):
        return VACUOUS
    shape = ev.case.arrays["x"].shape
    shift = ev.case.arrays["shift_2"].values if ev.case.has("shift_2") else np.zeros(shape[-1])
    what = "With a gain of zero in the last norm"
    return _exactly(run, np.broadcast_to(shift, shape), what, "the last norm is not as it should be")


@law("LN904", name="block-equal-positions", severity="error", operation="blocks", limit=8, source=VASWANI)
def block_equal_positions(ev: Evaluation) -> Outcome:
    """A sequence of 67 equal positions gives at each of them what one position alone gives.

    Bound: that of LN801 for one position. Attention weights are equal and sum to 1, so that the mean of equal values is
    that value, with or without a mask; their number is in the bound of the scores (lnverify.norms.blocks). Kernels take
    positions by 16, 32 or 64: what is wrong in their last part is seen here.
    """
    if not _right_as_it_is(ev):
        return INAPPLICABLE
    x = ev.case.arrays["x"]
    one = np.ascontiguousarray(x.bits[:, :1])
    many = FloatArray(x.dtype, np.ascontiguousarray(np.repeat(one, MANY, axis=1)))
    got = ev.again(_with_positions(ev.case.forward_alone(x=many), MANY)).output("y")
    if got is None or got.shape != many.shape:
        return INAPPLICABLE  # so many positions need not be accepted
    case = _with_positions(ev.case.forward_alone(x=FloatArray(x.dtype, one)), 1)
    parts = {t: FloatArray(got.dtype, np.ascontiguousarray(got.bits[:, t : t + 1])) for t in SEEN}
    cause = "equal positions are not as one"
    return first_bad(
        _known(ev, MANY, there, case, f"At position {t} of {MANY} equal ones", cause) for t, there in parts.items()
    )


def _with_positions(case: Case, count: int) -> Case:
    """The case with a causal mask of so many positions where it has a mask."""
    return case.with_arrays(mask=FloatArray.of(np.tri(count), case.dtype)) if case.has(MASK) else case


@law("LN907", name="block-long-sequence", severity="error", operation="blocks", limit=6, source=VASWANI)
def block_long_sequence(ev: Evaluation) -> Outcome:
    """A sequence of 67 or of 131 different positions is right, in value and in gradient.

    Bound: that of LN801 and LN802. Kernels take keys by 32, 64 or 128, and keep the largest score and the sum of
    weights from one part to the next: what is wrong between two parts is seen here, where scores differ.
    """
    if not _right_as_it_is(ev):
        return INAPPLICABLE
    count = LONG[ev.case.arrays["x"].shape[-1] % len(LONG)]
    shape = (1, count, ev.case.arrays["x"].shape[-1])
    drawn = {name: FloatArray.of(normal(seed, shape), ev.case.dtype) for seed, name in enumerate(("x", "dy"), 901)}
    run = ev.again(_with_positions(ev.case.with_arrays(**drawn), count))
    if run.response.refusal is not None:
        return INAPPLICABLE  # so many positions need not be accepted
    what, cause = f"In a sequence of {count} positions", "long sequences are wrong"
    wanted = ["y", *(name for name in run.case.gradients() if name in ev.response.arrays)]
    judgements = (judge(run, name) for name in wanted)
    return first_bad(j.blame(what, cause, run.case) if j.wrong else j.outcome("") for j in judgements)


@law("LN905", name="block-batch", severity="error", operation="blocks", limit=8, source=VASWANI)
def block_batch(ev: Evaluation) -> Outcome:
    """The first and the last of 67 sequences give what they give alone.

    Bound: that of LN801 for the sequence alone. Nothing in a block goes from one sequence to another. Those in between
    have their units in reverse order, with other signs and sizes.
    """
    if not _right_as_it_is(ev):
        return INAPPLICABLE
    x = ev.case.arrays["x"]
    one = x.values[:1]
    factors = np.array([(-1.0) ** k * 2.0 ** (k % 5 - 2) for k in range(1, MANY - 1)])
    others = one[:, :, ::-1] * factors[:, None, None]
    many = FloatArray.of(np.concatenate([one, others, one]), x.dtype)
    got = ev.again(ev.case.forward_alone(x=many)).output("y")
    if got is None or got.shape != many.shape:
        return INAPPLICABLE  # so many sequences need not be accepted
    case = ev.case.forward_alone(x=FloatArray(x.dtype, np.ascontiguousarray(x.bits[:1])))
    ends = {n: FloatArray(got.dtype, np.ascontiguousarray(got.bits[n : n + 1])) for n in (0, MANY - 1)}
    cause = "a sequence depends on others in the batch"
    return first_bad(_known(ev, 0, there, case, f"Sequence {n} of {MANY}", cause) for n, there in ends.items())


@law("LN906", name="block-hidden-position", severity="warning", operation="blocks", needs=("mask",), limit=12,
     dtypes=("float64", "float32"), source=VASWANI)  # fmt: skip
def block_hidden_position(ev: Evaluation) -> Outcome:
    """Behind a causal mask a last position with a very large score moves no output before it.

    Bound: that of LN801 for the sequence without its last position. Its x is chosen so that the first position's
    score of it, in the first head of a post-LN block, is 20000 if the mask did not hide it: adding -10000, as masks
    were once made, leaves it in sight.
    """
    x = ev.case.arrays["x"]
    if x.shape[1] < 2 or not _right_as_it_is(ev):
        return INAPPLICABLE
    before = _with_positions(_masked(ev.case).forward_alone(x=FloatArray(x.dtype, _cut(x))), x.shape[1] - 1)
    hidden = _hidden(ev.case)
    if hidden is None:
        return VACUOUS
    values = x.values.copy()
    values[:, -1] = hidden
    whole = _with_positions(_masked(ev.case).forward_alone(x=FloatArray.of(values, x.dtype)), x.shape[1])
    got = ev.again(whole).output("y")
    if got is None or got.shape != x.shape:
        return INAPPLICABLE
    what = "Before a last position that the mask hides"
    there = FloatArray(got.dtype, _cut(got))
    outcome = _known(ev, x.shape[1], there, before, what, "a position that the mask hides is seen")
    return replace(outcome, case=whole) if outcome.bad else outcome


def _masked(case: Case) -> Case:
    """The case with a causal mask."""
    return case.with_arrays(mask=FloatArray.of(np.tri(case.arrays["x"].shape[1]), case.dtype))


def _cut(array: FloatArray) -> np.ndarray:
    return np.ascontiguousarray(array.bits[:, :-1])


def _hidden(case: Case) -> Float64Array | None:
    """A last x for every sequence: along W_k' q of the first head at the first position, as long as the score wants."""
    heads, units = case.normalized_shape

    def of(name: str, *shape: int) -> Float64Array:
        return case.arrays[name].values.reshape(shape) if case.has(name) else np.zeros(shape)

    model = heads * units
    x = case.arrays["x"].values
    with np.errstate(all="ignore"):
        q = x[:, 0] @ of("weight_q", heads, units, model)[0].T + of("bias_q", heads, units)[0]
        along = q @ of("weight_k", heads, units, model)[0]
        square = (along**2).sum(axis=1, keepdims=True)
        found = along * (SCORE * np.sqrt(units) / square)
    largest = np.abs(found).max(initial=0.0)
    return np.asarray(found) if np.isfinite(found).all() and largest < 1e8 else None
