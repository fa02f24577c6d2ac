"""LN810 to LN812: running statistics of batch norm, brought up to date in training and left alone in evaluation."""

from __future__ import annotations

from dataclasses import replace

from lnverify.evaluation import Evaluation
from lnverify.judgement import Judgement
from lnverify.law import INAPPLICABLE, Outcome, law
from lnverify.norms.judge import judge, measured
from lnverify.norms.running_statistics import judge_update, tracking
from lnverify.operation import MOMENTUM, RUNNING

PAPER = "Ioffe, Szegedy (2015), algorithm 2, steps 10 and 11"
CONVENTIONS = (  # weight of what is new, whether the variance is the biased one, in words
    (MOMENTUM, False, ""),
    (MOMENTUM, True, "running_var is brought up to date by the variance divided by N, not by N - 1"),
    (1 - MOMENTUM, False, "momentum is taken for the weight of the old value"),
    (1 - MOMENTUM, True, "momentum is taken for the weight of the old value, and the variance is divided by N"),
)


def _updates(ev: Evaluation) -> list[list[Judgement]] | None:
    """Both statistics after a step of training, by each convention; None where nothing can be learned."""
    if judge(ev, "y").state not in ("holds", "vacuous"):
        return None  # LN801 says so
    run = ev.again(tracking(ev.case))
    after = run.ask("y", *RUNNING).arrays
    if not set(RUNNING) <= set(after):
        return None
    bounds = measured(run)
    return [[judge_update(bounds, name, after[name], new, biased) for name in RUNNING]
            for new, biased, _ in CONVENTIONS]  # fmt: skip


def _worst(judgements: list[Judgement]) -> Judgement:
    return max(judgements, key=lambda judgement: (judgement.state == "shape", judgement.ratio))


def _fits(judgements: list[Judgement]) -> bool:
    return all(judgement.state in ("holds", "vacuous") for judgement in judgements)


@law("LN810", name="running-statistics", severity="error", operation="batch_norm", needs=("running",), limit=24,
     source=PAPER)  # fmt: skip
def running_statistics(ev: Evaluation) -> Outcome:
    """A step of training brings the running mean and variance up to date by those of the batch, in some convention.

    Bound: running errors of (1 - a) old + a new (lnverify.norms.running_statistics), a being the momentum or 1 less it,
    the variance of the batch divided by N - 1 or by N; one convention has to explain both. A subject that is not given
    both statistics and a momentum, or leaves them as they were, does not track them: inapplicable.
    """
    updates = _updates(ev)
    if updates is None:
        return INAPPLICABLE
    if fitting := [judgements for judgements in updates if _fits(judgements)]:
        return max((judgement.outcome("") for judgement in fitting[0]), key=lambda outcome: outcome.informative)
    nearest = min((_worst(judgements) for judgements in updates), key=lambda judgement: judgement.ratio)
    cause = f"{nearest.output} is wrong after a step of training"
    case = tracking(ev.case)
    return nearest.blame("After a step of training", cause, case)


@law("LN811", name="running-convention", severity="warning", operation="batch_norm", needs=("running",), limit=24,
     source=f"torch.nn.BatchNorm1d; {PAPER}")  # fmt: skip
def running_convention(ev: Evaluation) -> Outcome:
    """Running statistics follow torch: momentum weighs what is new, and the running variance is the unbiased one.

    Bound: that of LN810. Other conventions are right by themselves, and wrong where weights or code go to torch's and
    back; hence a warning.
    """
    updates = _updates(ev)
    if updates is None or not any(map(_fits, updates)):
        return INAPPLICABLE  # LN810 says so
    for judgements, (_, _, cause) in zip(updates, CONVENTIONS, strict=True):
        if not _fits(judgements):
            continue
        if not cause:
            return max((judgement.outcome("") for judgement in judgements), key=lambda outcome: outcome.informative)
        return _worst(updates[0]).blame("After a step of training", cause, tracking(ev.case))
    return INAPPLICABLE


@law("LN812", name="eval-statistics", severity="error", operation="batch_norm_eval", limit=24, source=PAPER)
def eval_statistics(ev: Evaluation) -> Outcome:
    """In evaluation the running statistics stay as they are, bit for bit, with gradients and without.

    Bound: none, for nothing is to be computed.
    """
    for grad_mode in ("enabled", "no_grad"):
        case = replace(ev.case.forward_alone(), grad_mode=grad_mode)
        answer = ev.again(case).ask("y")
        if answer.refusal is not None:
            return INAPPLICABLE
        if changed := [name for name in RUNNING if name in answer.changed]:
            text = f"{changed[0]} is another one after a forward in evaluation, {grad_mode}."
            cause = "running statistics are changed in evaluation"
            return Outcome("violated", float("inf"), "y", message=text, cause=cause, case=case)
    return Outcome("holds", 0.0, "y")
