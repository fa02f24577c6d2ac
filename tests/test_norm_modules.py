"""Modules of norms with channels: they are asked in both modes, and may keep what a program lets them keep."""

from __future__ import annotations

from typing import Any

import pytest

from lnverify.runner import check

torch = pytest.importorskip("torch")


class EvalUnbiased(torch.nn.GroupNorm):
    """In evaluation mode the output is scaled."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y if self.training else 0.9 * y


class KeepsWeight(torch.nn.GroupNorm):
    """Without gradients a copy of the weight is kept until the parameter changes."""

    kept: Any = None

    def forward(self, x: Any) -> Any:
        weight = self.weight
        if torch.is_grad_enabled() or weight is None:
            return super().forward(x)
        key = (weight.data_ptr(), weight._version, weight.dtype)
        if self.kept is None or self.kept[0] != key:
            self.kept = key, weight.clone()
        return torch.nn.functional.group_norm(x, self.num_groups, self.kept[1], self.bias, self.eps)


class Checkpointed(torch.nn.GroupNorm):
    """The backward computes the forward again, and only where backward() is called."""

    def forward(self, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=True)


def test_a_checkpoint_that_only_backward_reaches_is_right() -> None:
    report = check(Checkpointed, operation="group_norm", dtypes=["float64"], select=["LN801", "LN802"],
                   profile="score", max_examples=1)  # fmt: skip
    assert report.verdict == "holds", [f.message for f in report.findings]
    assert all(result.informative > 10 for result in report.results)


def test_evaluation_mode_of_a_norm_is_asked_for() -> None:
    report = check(EvalUnbiased, operation="group_norm", dtypes=["float64"], select=["LN823"], profile="score",
                   max_examples=1)  # fmt: skip
    assert report.findings[0].cause == "it is wrong in evaluation mode"


SEEN: dict[Any, set[bytes]] = {}  # the weights that were seen at an address with a version


class Sees(torch.nn.GroupNorm):
    """Notes its weight."""

    def forward(self, x: Any) -> Any:
        if self.weight is not None:
            key = self.weight.data_ptr(), self.weight._version, self.weight.dtype, self.weight.shape
            SEEN.setdefault(key, set()).add(self.weight.detach().numpy().tobytes())
        return super().forward(x)


def test_no_two_weights_have_one_address_and_version() -> None:
    SEEN.clear()
    check(Sees, operation="group_norm", dtypes=["float32"], select=["LN801", "LN802"], profile="score")
    assert len(SEEN) > 50
    assert all(len(weights) == 1 for weights in SEEN.values())


def test_what_is_kept_until_a_parameter_changes_is_right() -> None:
    report = check(KeepsWeight, operation="group_norm", dtypes=["float64"], select=["LN801", "LN822", "LN823"],
                   profile="score", max_examples=1)  # fmt: skip
    assert report.verdict == "holds", [f.message for f in report.findings]
    assert all(result.informative > 10 for result in report.results)
