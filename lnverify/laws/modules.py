"""LN7xx, continued: the manners of modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.evaluation import Evaluation
from lnverify.law import INAPPLICABLE, Outcome, law


@law("LN707", name="initial-parameters", severity="error", needs=("module",), once=True,
     source="torch.nn.LayerNorm: weight 1, bias 0; affine part off means none")  # fmt: skip
def initial_parameters(ev: Evaluation) -> Outcome:
    """A new module has weight 1 and bias 0; with elementwise_affine=False it has neither, with bias=False no bias.

    Read off the module's tensors, and y of the new module is judged as plain layer norm by the bound of LN101.
    """
    plain = replace(ev.case, arrays={"x": ev.case.arrays["x"]}, layouts={}, recipe=None)
    for action, absent in (("initial", ()), ("initial:no_affine", ("weight", "bias")), ("initial:no_bias", ("bias",))):
        again = Evaluation(replace(plain, module_action=action), ev.evaluator)
        response = again.ask("y", "initial_weight", "initial_bias")
        if response.refusal is not None:
            if action == "initial":
                return INAPPLICABLE
            continue
        for what, due in (("weight", 1.0), ("bias", 0.0)):
            array = response.arrays.get(f"initial_{what}")
            if array is None:
                continue
            if what in absent:
                flag = action.partition(":")[2].replace("no_", "")
                text = f"Built without {flag}, a new module still has a {what}."
                return Outcome("violated", np.inf, what, (), text, f"a module built without {flag} has a {what}")
            if array.size and bool((array.values != due).any()):
                text = f"A new module has {what} {float(array.values.ravel()[0]):g}, {due:g} is due."
                return Outcome("violated", np.inf, what, (), text, f"a new module has the wrong {what}")
        judgement, kind = again.settle("y")
        if kind == "violated":
            return judgement.outcome("a new module is wrong", f"Of a new module, {judgement.sentence()}")
    return Outcome("holds", 0.0, "y")


UNUSUAL_EPS = 0.0625


@law("LN708", name="module-round-trips", severity="error", needs=("module",), once=True,
     source="torch.nn.Module: state_dict, deepcopy, pickle and to(dtype) keep the function")  # fmt: skip
def module_round_trips(ev: Evaluation) -> Outcome:
    """A module that went through state_dict, deepcopy, pickle or .to(dtype) computes what it computed.

    y and its gradients are judged by their bounds and y keeps its dtype. 'deepcopy' overwrites the original before
    the copy runs; 'to' starts from float64 (so it is left out in float64). eps is none that is a default anywhere. A
    module that cannot be pickled is not accused: classes that were made within a function cannot.
    """
    worst = 0.0
    if ev.subject.capabilities.eps is None:
        ev = ev.again(replace(ev.case, eps=UNUSUAL_EPS, recipe=None))
    for action in ("state_dict", "deepcopy", "to", "pickle"):
        if action == "to" and ev.case.dtype == "float64":
            continue
        chosen = replace(ev.case, module_action=action, recipe=None)
        again = ev.rerun(chosen)
        cause = f"a module does not survive {action}"
        if action == "pickle" and again.response.refusal is not None:
            continue
        if again.response.refusal is not None:
            text = f"After {action}: {again.response.refusal}"
            return Outcome("crashed", np.inf, "y", (), text, cause, case=chosen)
        before, after = ev.output("y"), again.output("y")
        if before is not None and after is not None and before.dtype != after.dtype:
            text = f"After {action}, y is {after.dtype}, {before.dtype} is due."
            return Outcome("violated", np.inf, "y", (), text, cause, case=chosen)
        for output in ("y", *(g for g in chosen.gradients() if chosen.has("dy"))):
            judgement, kind = again.settle(output)
            worst = max(worst, judgement.ratio if kind == "holds" else 0.0)
            if kind == "violated" and ev.settle(output)[1] != "violated":
                return replace(judgement.outcome(cause, f"After {action}: {judgement.sentence()}"), case=chosen)
    return Outcome("holds", min(worst, 1.0), "y")


@law("LN724", name="replaced-parameters", severity="error", needs=("module",), once=True,
     source="torch.nn.utils.parametrize, torch.nn.utils.prune; module.weight = torch.nn.Parameter(...)")  # fmt: skip
def replaced_parameters(ev: Evaluation) -> Outcome:
    """y and the gradients are right where weight and bias were assigned anew, and y and dx where they are computed by a
    parametrization or by pruning.

    By the bounds of LN101 and LN201 to LN203. Catches parameters that a module keeps beside its attributes. The ones
    that are replaced hold other numbers. Whoever refuses is not accused: parameters may carry attributes of their own.
    """
    outcome: Outcome = INAPPLICABLE
    if not any(ev.case.has(name) for name in ("weight", "bias")):
        return INAPPLICABLE
    for action, what, grads in (
        ("assigned", "After new parameters were assigned", ev.case.requires_grad),
        ("parametrized", "With parameters that a parametrization computes", ("x",)),
        ("pruned", "With parameters that were pruned by a mask of ones", ("x",)),
    ):
        plain = replace(ev.case, requires_grad=tuple(n for n in grads if n in ev.case.requires_grad), recipe=None)
        chosen = replace(plain, module_action=action)
        before, again = ev.rerun(plain), ev.rerun(chosen)
        cause = "parameters that were replaced are still used"
        if again.response.refusal is not None:
            continue
        for output in ("y", *(g for g in chosen.gradients() if chosen.has("dy"))):
            judgement, kind = again.settle(output)
            if kind == "violated" and before.settle(output)[1] != "violated":
                return replace(judgement.outcome(cause, f"{what}, {judgement.sentence()}"), case=chosen)
            outcome = Outcome("holds", 0.0, "y")
    return outcome


@law("LN725", name="reset-in-place", severity="warning", needs=("module",), once=True,
     source="torch.nn.LayerNorm.reset_parameters fills the parameters there are; optimisers hold them")  # fmt: skip
def reset_in_place(ev: Evaluation) -> Outcome:
    """After reset_parameters(), y is that of the numbers that are then written into the parameters of before.

    By the bound of LN101. A warning: a module that makes new parameters is right until somebody holds the old ones, an
    optimiser or a tied weight. One without such a method is not asked.
    """
    if not any(ev.case.has(name) for name in ("weight", "bias")):
        return INAPPLICABLE
    chosen = replace(ev.case, module_action="reset", requires_grad=(), recipe=None)
    again = ev.rerun(chosen.forward_alone())
    if again.response.refusal is not None or ev.settle("y")[1] == "violated":
        return INAPPLICABLE
    judgement, kind = again.settle("y")
    if kind != "violated":
        return Outcome("holds", 0.0, "y")
    text = f"After reset_parameters(), and numbers written into the parameters of before, {judgement.sentence()}"
    return replace(judgement.outcome("reset_parameters() makes new parameters", text), case=again.asked)
