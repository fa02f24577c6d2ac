"""Support of another norm: what a subject can do in one dtype on one device, found by asking it ordinary inputs."""

from __future__ import annotations

import time
from dataclasses import replace

from lnverify.case import Case
from lnverify.floats import round_values
from lnverify.norms.cases import Shape, kind, make, reduced, resting, shapes, with_tangents
from lnverify.norms.running_statistics import tracking
from lnverify.operation import operation as find_operation
from lnverify.subject import Subject
from lnverify.support import AFFINE, AFFINE_TEXT, EPS, Support


def find_support(subject: Subject, operation: str, dtype: str, device: str) -> Support | str:
    """Ask ordinary inputs. Returns the reason where the dtype is not supported at all."""
    known = find_operation(operation)
    declared = subject.capabilities
    if known.required:
        modes = tuple(mode for mode in declared.affine if AFFINE[mode][0])
        declared = replace(declared, affine=modes)
    start = 1e-5 if declared.eps is None else declared.eps
    refused: list[str] = []

    def refusal(shape: Shape, mode: str, eps: float = start) -> str:
        case = reduced(subject, make(operation, dtype, shape, mode, eps, device=device))
        answer = subject.run(case.request("y"))
        return answer.refusal or ""

    places: dict[tuple[int, int], Shape] = {}
    for place in shapes(operation, declared.fixed_shape):
        found = kind(operation, place)
        if declared.max_dims is None or found[1] <= declared.max_dims:
            places.setdefault(found, place)
    problems = {found: refusal(place, declared.affine[0]) for found, place in places.items()}
    able = [found for found, problem in problems.items() if not problem]
    if not able:
        return f"{dtype} on {device} is refused: {next(iter(problems.values()))}"
    refused += [f"{dtype}: x of {len(places[f][0])} dimensions ({text})" for f, text in problems.items() if text]
    base = places[able[0]]
    affine = tuple(mode for mode in declared.affine if not refusal(base, mode))
    refused += [f"{dtype}: {AFFINE_TEXT[mode]} is refused" for mode in declared.affine if mode not in affine]
    case = reduced(subject, make(operation, dtype, base, affine[0], start, device=device))
    wanted = [name for name in case.gradients() if name in declared.outputs]
    answer = subject.run(case.request("y", *wanted))
    outputs = [*known.outputs]
    if answer.refusal is None:
        outputs += [name for name in known.gradients if name in declared.outputs]
        outputs += _derivatives(subject, with_tangents(case), refused)
    elif wanted:
        refused.append(f"{dtype}: gradients ({answer.refusal})")
    if known.tracked and "running" in declared.outputs:
        before = tracking(case)
        after = subject.run(before.request("y", *known.tracked)).arrays
        # what is not brought up to date where it is given is not tracked
        if any(name in after and not after[name].same_bits(before.arrays[name]) for name in known.tracked):
            outputs.append("running")
    outputs += ["module"] if declared.module else []
    outputs += ["lengths"] if "lengths" in declared.outputs else []
    if known.states:
        problem = subject.run(resting(case).request("y")).refusal
        if problem is None:
            outputs.append("resting")
        else:
            refused.append(f"{dtype}: a call without a state ({problem})")
    eps = [start]
    for value in (float(round_values(e, declared.eps_dtype)) for e in EPS if declared.eps is None):
        problem = refusal(base, affine[0], value)
        if problem:
            refused.append(f"{dtype}: eps = {value:g} ({problem})")
        elif value not in eps:
            eps.append(value)
    return Support(
        subject=replace(subject, capabilities=replace(declared, outputs=tuple(outputs), affine=affine)),
        dtype=dtype, device=device, affine=affine, ranks=tuple(sorted({f[0] for f in able})),
        dims=tuple(sorted({f[1] for f in able})), eps=tuple(eps), outputs=tuple(outputs), mixed=(),
        seconds=(_seconds(subject, case), 0.0, 0.0), refused=tuple(refused),
        backward=(answer.refusal or "") if wanted else "",
    )  # fmt: skip


def _derivatives(subject: Subject, case: Case, refused: list[str]) -> list[str]:
    """Forward mode and double backward, as far as an ordinary input with tangents is answered."""
    declared, known = subject.capabilities.outputs, find_operation(case.operation)
    found: list[str] = []
    tangents = tuple(f"t{name}" for name in known.outputs)
    twice = tuple(f"d2{name}" for name in (*case.requires_grad, *known.cotangents))
    for wanted, text in ((tangents, "forward mode"), (twice, "double backward")):
        if not set(wanted) <= {*declared}:
            continue
        answer = subject.run(case.request(*wanted))
        if answer.refusal is None and wanted[0] in answer.arrays:
            found += wanted
        else:
            refused.append(f"{case.dtype}: {text} ({answer.refusal or 'no result'})")
    return found


def _seconds(subject: Subject, case: Case) -> float:
    """Time of an ordinary call, the second one: the first may build or compile."""
    subject.run(case.request("y"))
    start = time.perf_counter()
    subject.run(case.request("y"))
    return time.perf_counter() - start
