"""Verification before timing: a wrong result in no time is no speed.

The same case that is timed is judged by its bounds, as the laws LN101 and LN201 to LN203 do. Where the oracle would
take longer than the timing, y and dx are judged on a few rows, which are independent of the others, and the gradients
of the parameters are not judged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation, Evaluator
from lnverify.floats import FloatArray
from lnverify.protocol import Response
from lnverify.subject import Subject
from lnverify.timing.paths import HotPath

WHOLE = 1 << 20  # elements: the oracle takes about a microsecond each
ROWS = 16


def wrong(subject: Subject, path: HotPath, case: Case) -> str:
    """What is wrong with the results that the path computes, as a sentence; '' where nothing is."""
    outputs = {"forward": ("y",), "backward": case.gradients(), "both": ("y", *case.gradients())}[path.what]
    outputs = tuple(name for name in outputs if name in subject.capabilities.outputs)
    response = subject.run(case.request(*outputs))
    if response.refusal is not None:
        return f"it raises {response.refusal}"
    if missing := [name for name in outputs if name not in response.arrays]:
        return f"it gives no {missing[0]}"
    judged, answer = case, response
    if case.size > WHOLE:
        outputs = tuple(name for name in outputs if name in ("y", "dx"))
        judged, answer = _few_rows(case, response, outputs)
    evaluation = Evaluation(judged, Evaluator(subject), answer)
    for name in outputs:
        judgement, found = evaluation.settle(name)
        if found in ("violated", "missing", "shape"):
            return judgement.sentence()
    return ""


def _few_rows(case: Case, response: Response, outputs: tuple[str, ...]) -> tuple[Case, Response]:
    """The first, the last and some rows between, of the case and of what was answered for all of them."""
    at = np.unique(np.linspace(0, case.rows - 1, ROWS).astype(int))

    def rows(array: FloatArray) -> FloatArray:
        if array.size != case.size:
            return array  # of a wrong shape, which will be said
        bits = np.ascontiguousarray(array.bits.reshape(case.rows, case.n)[at])
        return FloatArray(array.dtype, bits.reshape(len(at), *case.normalized_shape))

    arrays = {name: rows(array) if name in ("x", "dy") else array for name, array in case.arrays.items()}
    answer = replace(response, arrays={name: rows(response.arrays[name]) for name in outputs})
    return replace(case, arrays=arrays, recipe=None), answer
