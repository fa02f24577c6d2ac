"""LN820 to LN823: how norms other than layer norm, cells and blocks are called: memory, what came before, modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.judgement import Judgement
from lnverify.law import INAPPLICABLE, Outcome, first_bad, law
from lnverify.laws.history import SMALL
from lnverify.norms.judge import judge, judge_values, measured
from lnverify.operation import operation


def _outputs(case: Case) -> tuple[str, ...]:
    """What a case can be asked for: outputs, and gradients where it has cotangents and records them."""
    known = operation(case.operation)
    complete = all(map(case.has, known.cotangents)) and case.grad_mode == "enabled"
    return (*known.outputs, *(case.gradients() if complete else ()))


def _without_gradients(case: Case) -> Case:
    """The case for the forward alone, in which nothing requires a gradient."""
    return replace(case.forward_alone(), requires_grad=())


def right(ev: Evaluation) -> bool:
    """Whether the plain request is answered, and rightly: only then does the way in which it is asked say anything."""
    if ev.response.refusal is not None or ev.response.changed:
        return False
    return all(judge(ev, name).state in ("holds", "vacuous") for name in _outputs(ev.case) if ev.output(name))


def judged(run: Evaluation, what: str, cause: str) -> Outcome:
    """Every output of a run by LN801's bound; a refusal is a crash."""
    if run.response.refusal is not None:
        text = f"{what}: {run.response.refusal}"
        return Outcome("crashed", float("inf"), "y", message=text, cause=cause, case=run.case)
    judgements = (judge(run, output) for output in operation(run.case.operation).outputs)
    return first_bad(j.blame(what, cause, run.case) if j.wrong else j.outcome("") for j in judgements)


def in_modes(ev: Evaluation, *modes: tuple[str, str]) -> Outcome:
    """The forward in modes of the module ('train', 'eval') and of autograd, by LN801's bound."""
    return first_bad(
        judged(
            ev.again(replace(ev.case.forward_alone(), train=mode == "train", grad_mode=grad_mode)),
            f"In {mode} mode, {grad_mode}", f"it is wrong in {mode} mode",
        )
        for mode, grad_mode in modes
    )  # fmt: skip


def same_numbers(ev: Evaluation, case: Case, what: str, cause: str) -> Outcome:
    """Another run on the numbers of an evaluation, by its bounds; a refusal is no violation."""
    wanted = [name for name in _outputs(case) if name in (*operation(case.operation).outputs, *ev.response.arrays)]
    response = Evaluation(case, ev.evaluator).ask(*wanted)
    outcome = INAPPLICABLE
    for name in wanted if response.refusal is None else ():
        got = response.arrays.get(name)
        judgement = Judgement(name, "missing") if got is None else judge_values(measured(ev), name, got)
        if judgement.wrong:
            return judgement.blame(what, cause, case)
        outcome = judgement.outcome("") if judgement.state == "holds" else outcome
    return outcome


@law("LN820", name="operation-arguments", severity="error", operation="derived", limit=48,
     source="GeeeekExplorer/nano-vllm#170: in-place centring of the caller's tensor")  # fmt: skip
def operation_arguments(ev: Evaluation) -> Outcome:
    """Every argument holds the same bits after the call as before, and no output shares memory with one.

    With gradients and without, where code that saves memory takes a state or x for its scratch.
    """
    known = operation(ev.case.operation)
    bare = replace(_without_gradients(ev.case), grad_mode="no_grad")
    runs = [
        ("", ev.case, ev.response),
        (" without gradients", bare, Evaluation(bare, ev.evaluator).ask(*known.outputs)),
    ]
    outcome = INAPPLICABLE
    for mode, case, response in runs:
        if response.refusal is not None:
            continue
        if response.changed:
            text = f"The call{mode} overwrites {', '.join(response.changed)}."
            return Outcome("violated", float("inf"), response.changed[0], message=text,
                           cause="arguments are overwritten", case=case)  # fmt: skip
        if aliases := [name for name in response.aliases if name in known.outputs]:
            text = f"The call{mode} returns {aliases[0]} in memory that belongs to an argument."
            return Outcome("violated", float("inf"), aliases[0], message=text,
                           cause="an output is a view on an argument", case=case)  # fmt: skip
        outcome = Outcome("holds", 0.0, "y")
    return outcome


def _layouts(case: Case) -> Iterator[Mapping[str, str]]:
    """Layouts to try, of one array or of all parameters."""
    known = operation(case.operation)
    for name in (*known.inputs, *known.states, *known.cotangents):
        for layout in ("transposed", "strided", "offset", "padded", "skipped"):
            yield {name: layout}
        if case.arrays[name].bits.ndim > 2:
            yield from ({name: layout} for layout in ("permuted", "swapped", "sliced"))
    yield {"x": "permuted", "dy": "permuted"}
    yield dict.fromkeys(known.cotangents, "expanded")
    for layout in ("transposed", "strided", "offset"):
        yield dict.fromkeys(known.parameters, layout)


@law("LN821", name="operation-layouts", severity="error", operation="derived", limit=12, runs=20,
     source="microsoft/DirectML#588; NVIDIA/TransformerEngine#1017; ELS-RD/kernl#193")  # fmt: skip
def operation_layouts(ev: Evaluation) -> Outcome:
    """Where the numbers lie in memory does not matter: outputs and gradients are right for transposed, channels-last,
    strided, sliced, expanded and unaligned arrays.

    Bound: that of LN801 and LN802 for the same numbers in contiguous arrays. A layout that is refused is no violation.
    """
    if not right(ev) or not all(map(ev.case.has, operation(ev.case.operation).cotangents)):
        return INAPPLICABLE
    cause = "it is wrong for some memory layouts"
    return first_bad(
        same_numbers(ev, replace(ev.case, layouts=layouts, recipe=None), f"With {_named(layouts)}", cause)
        for layouts in _layouts(ev.case)
    )


def _named(layouts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {layout}" for name, layout in layouts.items())


@law("LN822", name="operation-history", severity="error", operation="derived", limit=24, runs=8,
     source="karpathy/llm.c#408; apache/mxnet#18499; Hsword/Hetu#17")  # fmt: skip
def operation_history(ev: Evaluation) -> Outcome:
    """Other calls do not matter: outputs and gradients are right after a call on other numbers in the same memory,
    where a call on other numbers runs before they are read, for small cases also 33, and where another thread runs the
    backward.

    Bound: that of LN801 and LN802. With gradients, and without them in evaluation mode, where results are kept.
    """
    if not right(ev):
        return INAPPLICABLE
    bare = replace(_without_gradients(ev.case), grad_mode="no_grad", train=ev.case.operation == "batch_norm")
    cases = [ev.case]
    if not same_numbers(ev, bare, "", "").bad:  # else LN804 or LN823 says so
        cases.append(bare)
    histories = [
        ("overwritten", "After a call on other numbers in the same memory", "an earlier call changes the result"),
        ("followed", "After a later call on other numbers", "a later call changes an earlier result"),
        ("handed", "With the backward in another thread", "the backward depends on its thread"),
    ]
    if ev.case.size <= SMALL:
        histories.append(("crowded", "After 33 later calls on other numbers", histories[1][2]))
    return first_bad(
        same_numbers(ev, replace(case, history=history, recipe=None), what, cause)
        for case in cases
        for history, what, cause in histories
        if history != "handed" or case is ev.case
    )


@law("LN823", name="norm-modes", severity="error", operation="norms", limit=24,
     source="Ba, Kiros, Hinton (2016): the same computation at training and test time")  # fmt: skip
def norm_modes(ev: Evaluation) -> Outcome:
    """A norm is right without gradients, under inference mode, where only x or only a parameter requires one, and, but
    for batch norm, in evaluation mode.

    Bound: that of LN801.
    """
    if not right(ev):
        return INAPPLICABLE
    bare = _without_gradients(ev.case)
    modes = [(f"in {mode} mode", replace(bare, grad_mode=mode)) for mode in ("no_grad", "inference")]
    if ev.case.operation != "batch_norm":
        modes.append(("in evaluation mode", replace(bare, train=False)))
        modes.append(("in evaluation mode without gradients", replace(bare, train=False, grad_mode="no_grad")))
    modes += [(f"where only {name} requires a gradient", replace(bare, requires_grad=(name,)))
              for name in operation(ev.case.operation).arguments if ev.case.has(name)]  # fmt: skip
    return first_bad(same_numbers(ev, case, f"Called {mode}", f"it is wrong {mode}") for mode, case in modes)
