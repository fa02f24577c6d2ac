"""Mutants whose parameter gradients are wrong: rows left out, low precision, returned in the wrong way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lnverify.floats import round_values
from lnverify.mutants import SIXTEEN, Sample
from lnverify.mutants.numerics_backward import entry
from lnverify.mutants.parts import (
    Array,
    Backward,
    Columns,
    Gradients,
    Problem,
    column_sums,
    down,
    finished,
    normalised,
    problem,
    scaled,
    two_means,
)

# --- column sums ------------------------------------------------------------------------------------------


def on_rows(choose: Callable[[int], slice], factor: Callable[[int], float] = lambda rows: 1.0) -> Columns:
    """Parameter gradients from some of the rows, with a factor."""

    def run(p: Problem, dy: Array, xhat: Array) -> tuple[Array, Array]:
        rows, f = choose(p.rows), p.real(factor(p.rows))
        dweight, dbias = column_sums(p, dy[rows], xhat[rows])
        return dweight * f, dbias * f

    return run


def losing_last(beyond: int) -> Columns:
    """The last row is lost from the sums of many rows."""
    return on_rows(lambda rows: slice(rows - 1 if rows > beyond else rows))


def low_serial(dtype: str) -> Columns:
    """Row after row, the running sums rounded to 16 bits: they stop growing at 2^8 or 2^11 ones."""

    def total(p: Problem, a: Array) -> Array:
        name = dtype or p.dtype
        if name == "float16":
            if not p.rows:
                return down(a)
            half: Array = np.add.accumulate(a.astype(np.float16), axis=0)[-1]
            return half.astype(p.real)
        running = np.zeros(p.n)
        for row in round_values(a, name):  # NumPy has no bfloat16 to accumulate in
            running = round_values(running + row, name)
        return running.astype(p.real)

    return lambda p, dy, xhat: (total(p, dy * xhat), total(p, dy))


def low_partials(block: int) -> Columns:
    """Sums of blocks of rows rounded to bfloat16 before they are added up."""

    def total(p: Problem, a: Array) -> Array:
        partial = np.add.reduceat(a, np.arange(0, max(p.rows, 1), block), axis=0) if p.rows else a
        return down(p.low(partial, "bfloat16"))

    return lambda p, dy, xhat: (total(p, dy * xhat), total(p, dy))


def without_last(dbias_only: bool, lost: Callable[[int], bool]) -> Columns:
    """The last row is lost from the sums (from dbias alone) at certain numbers of rows."""

    def run(p: Problem, dy: Array, xhat: Array) -> tuple[Array, Array]:
        most = p.rows - 1 if lost(p.rows) else p.rows
        dweight, dbias = column_sums(p, dy[:most], xhat[:most])
        return down(dy * xhat) if dbias_only else dweight, dbias

    return run


def stored_low(p: Problem, dy: Array, xhat: Array) -> tuple[Array, Array]:
    """dweight is rounded to the dtype of x, whatever that of the weight is."""
    dweight, dbias = column_sums(p, dy, xhat)
    return p.low(dweight), dbias


def skipped_columns(width: int) -> Columns:
    """Columns past the block get no gradient."""

    def run(p: Problem, dy: Array, xhat: Array) -> tuple[Array, Array]:
        dweight, dbias = column_sums(p, dy, xhat)
        dweight[width:], dbias[width:] = 0, 0
        return dweight, dbias

    return run


# --- what is returned -------------------------------------------------------------------------------------


def returning(change: Callable[[Problem, Array, Array, Array], Gradients]) -> Backward:
    """The right gradients, handed back in the wrong way."""

    def run(
        dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float,
        normalized_shape: tuple[int, ...],
        saved: tuple[Array, ...], dtype: str,
    ) -> Gradients:  # fmt: skip
        with np.errstate(all="ignore"):
            p = problem(x, normalized_shape, weight, bias, eps, dtype)
            mean, rstd = saved[0].reshape(p.rows, 1), saved[1].reshape(p.rows, 1)
            d, hat = dy.reshape(p.rows, p.n), normalised(p, mean, rstd)
            dx = two_means(p, scaled(p, d), hat, rstd)
            return change(p, dx, *column_sums(p, d, hat))

    return run


def crosswise(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """Weight and bias gradients in each other's place."""
    return finished(p, dx, dbias, dweight)


def no_bias_without_weight(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """No bias gradient where the weight is None."""
    dx, dw, db = finished(p, dx, dweight, dbias)
    return dx, dw, db if p.weight is not None else None


def no_weight(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """No weight gradient at all."""
    dx, _, db = finished(p, dx, dweight, dbias)
    return dx, None, db


def flat(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """Parameter gradients of shape (n,) where there are more than 64 rows."""
    return finished(p if p.rows <= 64 else replace(p, normalized_shape=(p.n,)), dx, dweight, dbias)


SUMS = ("dweight", "dbias")

MUTANTS = [
    entry("parameters-swapped", "dweight and dbias come back in each other's place.",
          ("Oneflow-Inc/oneflow#6149",),
          None, SUMS, returning(crosswise), hidden=False),
    entry("dweight-from-x", "dweight sums dy x, not dy xhat.", (), Sample(mean=1.0), ("dweight",),
          hidden=False,
          columns=lambda p, dy, xhat: column_sums(p, dy, p.x)),
    entry("sums-averaged", "Parameter gradients are means over the rows.", ("EleutherAI/gpt-neox#1259",),
          None,
          SUMS,
          columns=on_rows(slice, lambda rows: 1.0 / max(rows, 1)), ordinary=Sample(batch=(1,))),
    entry("shards-averaged", "From 16 rows on, parameter gradients of two shards are averaged, not added.",
          ("EleutherAI/gpt-neox#1259", "NVIDIA/Megatron-LM#1446", "NVIDIA/TransformerEngine#435"),
          Sample(batch=(16,)), SUMS, columns=on_rows(slice, lambda rows: 0.5 if rows >= 16 else 1.0)),
    entry("shards-local", "From 16 rows on, parameter gradients of the first shard only.",
          ("EleutherAI/gpt-neox#1259", "NVIDIA/Megatron-LM#1446"), Sample(batch=(16,)), SUMS,
          columns=on_rows(lambda rows: slice(rows // 2 if rows >= 16 else rows))),
    entry("dbias-missing-without-weight", "No bias gradient where the weight is None.",
          ("pytorch/pytorch#193016", "pytorch/pytorch#79705", "csarofeen/pytorch#519"), Sample(affine="bias"),
          ("dbias",), returning(no_bias_without_weight)),
    entry("dweight-none", "No weight gradient.", ("csarofeen/pytorch#519", "huggingface/candle#3613"), None,
          ("dweight",), returning(no_weight), hidden=False),
    entry("last-row-lost-8192", "Beyond 8192 rows the last one is missing from the parameter gradients.", (),
          Sample(batch=(8193,), shape=(4,), dy="last-row"), SUMS, columns=losing_last(8192)),
    entry("last-row-lost-512", "Beyond 512 rows the last one is missing from the parameter gradients.", (),
          Sample(batch=(513,), shape=(4,), dy="last-row"), SUMS, columns=losing_last(512)),
    entry("partial-block-lost", "The last, partial block of 32 rows is missing from the parameter gradients.",
          (),
          Sample(batch=(33,)), SUMS, ordinary=Sample(batch=(32,)),
          columns=on_rows(lambda rows: slice(rows - rows % 32 if rows > 32 else rows))),
    entry("last-row-twice", "An odd last row counts twice in the parameter gradients.", (), Sample(), SUMS,
          ordinary=Sample(batch=(4,)),
          columns=lambda p, dy, xhat: column_sums(p, *(np.concatenate((a, a[-1:])) if p.rows % 2 else a
                                                       for a in (dy, xhat)))),
    entry("columns-without-gradient", "Parameter gradients of columns past 1024 are zero.",
          ("pytorch/pytorch#193016",),
          Sample(shape=(1025,)), SUMS, columns=skipped_columns(1024)),
    entry("sums-bfloat16-serial", "Parameter gradients are accumulated row by row in bfloat16.",
          ("pytorch/pytorch#139923",), Sample(batch=(600,), shape=(4,)), SUMS, columns=low_serial("bfloat16"),
          hidden=False),
    entry("sums-float16-serial", "Parameter gradients are accumulated row by row in float16.", (),
          Sample(batch=(4100,), shape=(4,)), SUMS, columns=low_serial("float16"), hidden=False,
          dtypes=("float64", "float32", "float16")),
    entry("sums-storage-serial",
          "Parameter gradients are accumulated row by row in the 16-bit storage dtype.",
          (),
          Sample(batch=(600,), shape=(4,)), SUMS, columns=low_serial(""), hidden=False, dtypes=SIXTEEN),
    entry("sums-bfloat16-partials", "Partial parameter gradients of 32 rows are kept in bfloat16.", (),
          Sample(batch=(100,)), SUMS, columns=low_partials(32), hidden=False),
    entry("sums-bfloat16-partials-128", "Partial parameter gradients of 128 rows are kept in bfloat16.", (),
          Sample(batch=(300,)), SUMS, columns=low_partials(128), hidden=False, dtypes=("bfloat16",)),
    entry("dweight-in-dtype-of-x", "dweight is rounded to the 16-bit dtype of x, though the weight is float32.", (),
          Sample(), ("dweight",), columns=stored_low, hidden=False, dtypes=SIXTEEN),
    entry("odd-rows-last-lost", "Of 5 to 17 rows, an odd last one is missing from the parameter gradients.", (),
          Sample(batch=(7,)), SUMS, columns=without_last(False, lambda rows: 5 <= rows <= 17 and rows % 2 == 1)),
    entry("dbias-row-lost-65535", "Past 65535 rows, the last one is missing from dbias.", ("NVIDIA/apex#411",),
          Sample(batch=(65537,), shape=(2,), dy="last-row"), ("dbias",),
          columns=without_last(True, lambda rows: rows > 65535)),
    entry("sums-without-nan", "NaN and infinity are taken out of the parameter gradients.", (), Sample(dy="nan"), SUMS,
          columns=lambda p, dy, xhat: tuple(np.nan_to_num(a) for a in column_sums(p, dy, xhat)), laws=("LN502",)),
    entry("flat-parameter-gradient", "Beyond 64 rows parameter gradients come back flat, whatever the shape.",
          ("pytorch/pytorch#192016", "pytorch/pytorch#193016", "intel/torch-xpu-ops#5235"),
          Sample(batch=(100,), shape=(3, 4)), SUMS, returning(flat), laws=("LN2", "LN6")),
]  # fmt: skip
