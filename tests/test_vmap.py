"""LN216: what torch.func refuses loudly accuses nobody, and y is judged where its gradients cannot be had."""

from __future__ import annotations

from typing import Any

import pytest

from lnverify.runner import check

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402 - torch is asked for first


def branches(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """A branch on numbers, with a weight and no bias alone."""
    if weight is not None and bias is None and not weight.any():
        weight = weight * 1
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)


def checkpointed(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Hooks on saved tensors, for which torch.func has no gradients."""
    norm = torch.nn.functional.layer_norm
    return checkpoint(norm, x, normalized_shape, weight, bias, eps, use_reentrant=False)


@pytest.mark.parametrize("subject", [branches, checkpointed])
def test_a_refusal_under_vmap_accuses_nobody(subject: Any) -> None:
    report = check(subject, dtypes=["float32"], select=["LN216"], profile="selftest", max_examples=1)
    assert report.verdict == "holds", [f.message for f in report.findings]
    assert report.results[0].informative > 3
