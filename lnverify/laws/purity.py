"""LN7xx: repeatability, purity and modes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.diagnosis import fresh
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, FloatArray
from lnverify.law import INAPPLICABLE, Outcome, law

NEW = 1009  # and more: lengths of rows that are not asked for elsewhere
SHORTCUTS = 64  # elements of a case that may take a shortcut


def _judge_again(ev: Evaluation, chosen: Case, what: str, cause: str) -> Outcome:
    """Judge every output of a second run by its bounds; right alone, wrong here is a violation."""
    outputs = ["y", *(chosen.gradients() if chosen.has("dy") and chosen.grad_mode == "enabled" else ())]
    if any(
        ev.settle(o)[1] not in ("holds", "points", "last place", "vacuous") for o in outputs if o in ev.response.arrays
    ):
        return INAPPLICABLE
    again = ev.rerun(chosen)
    if again.response.refusal is not None:
        return Outcome(
            "crashed", np.inf, "y", (), f"{what}, the request is refused: {again.response.refusal}", cause, case=chosen
        )
    if again.response.changed and not ev.response.changed:
        names = ", ".join(again.response.changed)
        return Outcome("violated", np.inf, again.response.changed[0], (), f"{what}, the call overwrites {names}.",
                       "arguments are overwritten", case=chosen)  # fmt: skip
    worst = 0.0
    for output in outputs:
        judgement, kind = again.settle(output)
        worst = max(worst, judgement.ratio if kind == "holds" else 0.0)
        if kind == "violated" or (judgement.state == "missing" and ev.output(output) is not None):
            text = f"{what}, {judgement.sentence() if kind == 'violated' else output + ' is missing.'}"
            return Outcome("violated", max(judgement.ratio, 1.0), output, judgement.index, text, cause,
                           judgement.expected, judgement.got, judgement.bound, chosen)  # fmt: skip
    return Outcome("holds", min(worst, 1.0), "y")


@law(
    "LN701",
    name="train-eval-parity",
    severity="error",
    source="Ba, Kiros, Hinton (2016): the same computation at training and test time; Hsword/Hetu#17",
    limit=16,
    max_elements=1 << 14,
)
def train_eval_parity(ev: Evaluation) -> Outcome:
    """Evaluation mode computes what training mode computes: y and gradients are right in both, by the bounds."""
    if ev.case.size == 0:
        return INAPPLICABLE
    mode = "In eval mode" if ev.case.train else "In train mode"
    return _judge_again(ev, replace(ev.case, train=not ev.case.train), mode, "train and eval mode differ")


@law(
    "LN702",
    name="call-history",
    severity="error",
    source="karpathy/llm.c#408; apache/mxnet#18499; Hsword/Hetu#17",
    limit=16,
    max_elements=1 << 14,
)
def call_history(ev: Evaluation) -> Outcome:
    """What was computed before does not matter: after a call on other data the same request is right again.

    Judged by the bounds of the request; catches statistics, scratch and gradients that are kept between calls.
    """
    case = ev.case
    if case.rows == 0 or case.n == 0 or ev.response.refusal is not None:
        return INAPPLICABLE
    other = np.roll(case.matrix("x"), 1, axis=0)[::-1] * 0.5 + 7.0
    limit = FORMATS[case.dtype].largest
    x = FloatArray.of(np.clip(other, -limit, limit).reshape(case.arrays["x"].shape), case.dtype)
    between = Evaluation(replace(case, arrays={**case.arrays, "x": x}, recipe=None), ev.evaluator)
    _ = between.response
    return _judge_again(
        ev, replace(case, recipe=case.recipe), "After a call on other data", "an earlier call changes the result"
    )


@law(
    "LN703",
    name="arguments-unchanged",
    severity="error",
    source="GeeeekExplorer/nano-vllm#170: in-place centring of the caller's tensor",
)
def arguments_unchanged(ev: Evaluation) -> Outcome:
    """x, weight, bias and dy hold the same bits after the call as before, and torch has the same settings.

    Settings are those that outlive a call: grad mode, default dtype, number of threads, flushing of subnormal numbers,
    deterministic algorithms, matmul precision; also after a call with a weight that is too long. Memory beside arrays
    that a function writes into counts too.
    """
    case, response = ev.case, ev.response
    if response.refusal is not None:
        return INAPPLICABLE
    when = ""
    if not response.changed and case.has("weight") and case.size <= SHORTCUTS and ev.subject.framework == "torch":
        # most refuse a weight that is too long; whoever does not check reads its beginning
        longer = FloatArray.of(np.append(case.vector("weight"), 1.0), case.arrays["weight"].dtype)
        response = ev.rerun(replace(case, arrays={**case.arrays, "weight": longer}, layouts={}, recipe=None)).response
        when = " with a weight that is too long"
        response = replace(response, changed=tuple(n for n in response.changed if n.startswith("the setting")))
    if not response.changed:
        return Outcome("holds", 0.0, "y")
    names = ", ".join(response.changed)
    settings = all(name.startswith("the setting") for name in response.changed)
    verb, cause = ("changes", "settings are changed") if settings else ("overwrites", "arguments are overwritten")
    return Outcome("violated", np.inf, response.changed[0], (), f"The call{when} {verb} {names}.", cause)


@law(
    "LN704", name="no-aliases", severity="error", source="outputs are new arrays: a view on an argument changes with it"
)
def no_aliases(ev: Evaluation) -> Outcome:
    """y does not share memory with an argument.

    Gradients may: for a single row autograd rightly hands dy itself on as dbias. Small cases are also asked without
    gradient recording, where shortcuts live.
    """
    response = ev.response
    if response.refusal is not None or not ev.case.size:
        return INAPPLICABLE
    aliased = "y" in response.aliases
    if not aliased and ev.case.size <= SHORTCUTS and ev.subject.framework == "torch":
        kept = {k: v for k, v in ev.case.arrays.items() if k in ("x", "weight", "bias")}
        bare = replace(ev.case, arrays=kept, layouts={}, requires_grad=(), recipe=None)
        modes = (replace(bare, grad_mode=mode) for mode in ("no_grad", "inference"))
        aliased = any("y" in ev.rerun(case).ask("y").aliases for case in modes)
    if not aliased:
        return Outcome("holds", 0.0, "y")
    return Outcome("violated", np.inf, "y", (), "y shares memory with an argument.", "y is a view on an argument")


@law(
    "LN705",
    name="determinism",
    severity="error",
    needs=("deterministic",),
    source="declared by the subject (deterministic)",
    limit=16,
    max_elements=1 << 14,
)
def determinism(ev: Evaluation) -> Outcome:
    """Where the subject declares it: five repetitions give the same bits, gradients included."""
    if not ev.subject.capabilities.deterministic or ev.response.refusal is not None:
        return INAPPLICABLE
    for _ in range(4):
        again = ev.rerun(ev.case)
        for name, array in again.response.arrays.items():
            first = ev.response.arrays.get(name)
            if first is not None and not first.same_bits(array):
                text = f"{name} has other bits in a repeated call, and determinism is declared."
                return Outcome("violated", 1.0, name, (), text, "not deterministic, though declared so")
    return Outcome("holds", 0.0, "y")


@law(
    "LN706",
    name="grad-mode",
    severity="error",
    source="torch.no_grad and torch.inference_mode do not change values",
    limit=16,
    max_elements=1 << 14,
)
def grad_mode(ev: Evaluation) -> Outcome:
    """y is right without gradient recording too (no_grad, inference mode), in train and in eval mode.

    Judged by the bound of LN101, on the case and, in 32 bits and more, on x with |mean|/std = 2^(p/2)
    (fast paths with a one-pass variance). Before each run the same request is made with other parameters, so that
    parameters which a fast path keeps show. A first call in inference mode must not make later ones impossible.
    """
    if ev.case.size == 0 or ev.subject.framework != "torch":
        return INAPPLICABLE
    outcome: Outcome = INAPPLICABLE
    for start in (ev, *_shifted(ev)):
        kept = {k: v for k, v in start.case.arrays.items() if k in ("x", "weight", "bias")}
        layouts = {k: v for k, v in start.case.layouts.items() if k != "dy"}
        for mode, train in (("no_grad", True), ("no_grad", False), ("inference", False)):
            chosen = replace(
                start.case, grad_mode=mode, train=train, arrays=kept, layouts=layouts, requires_grad=(), recipe=None
            )
            others = {k: v if k == "x" else FloatArray.of(v.values + 1.0, v.dtype) for k, v in kept.items()}
            _ = Evaluation(replace(chosen, arrays=others), ev.evaluator).response
            what = f"In mode {mode}{'' if train else ' and eval'}"
            found = _judge_again(start, chosen, what, "y depends on whether gradients are recorded")
            if found.bad:
                return found
            outcome = found if found.informative else outcome
    found = _after_inference(ev)
    return found if found.bad else outcome


def _after_inference(ev: Evaluation) -> Outcome:
    """The request with gradients on rows of a length that only inference mode has met before: what is made once for a
    length, and kept, must serve both. Where another new length is refused too nothing is said."""
    if ev.response.refusal is not None or not ev.case.requires_grad or ev.subject.capabilities.fixed_shape:
        return INAPPLICABLE
    first, other = (fresh(ev, 5, columns=NEW + 2 * (ev.case.n + ev.case.rows) + more) for more in (1, 2))
    kept = {k: v for k, v in first.case.arrays.items() if k in ("x", "weight", "bias")}
    bare = replace(first.case, arrays=kept, grad_mode="inference", requires_grad=())
    if Evaluation(bare, ev.evaluator).response.refusal is not None or other.response.refusal is not None:
        return INAPPLICABLE
    refusal = first.response.refusal
    if refusal is None:
        return INAPPLICABLE  # values are judged above
    text = f"After a call in inference mode on rows of {first.case.n}, which are new, the request is refused: {refusal}"
    return Outcome("crashed", np.inf, "y", (), text, "what inference mode has made is kept for training",
                   case=first.case)  # fmt: skip


def _shifted(ev: Evaluation) -> list[Evaluation]:
    """The case with |mean|/std = 2^(p/2), p bits of precision: there a one-pass variance has no digit left."""
    x = ev.case.matrix("x")
    spread, precision = float(np.std(x)) if np.isfinite(x).all() else 0.0, FORMATS[ev.case.dtype].precision
    if precision <= 11 or not 1e-6 < spread < 1e6:
        return []
    array = FloatArray.of((x + 2.0 ** (precision // 2) * spread).reshape(ev.case.arrays["x"].shape), ev.case.dtype)
    arrays = {k: v for k, v in ev.case.arrays.items() if k in ("weight", "bias")}
    return [ev.again(replace(ev.case, arrays={**arrays, "x": array}, layouts={}, recipe=None))]
