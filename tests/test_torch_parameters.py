"""Tensors of parameters: none is taken for an earlier one by what a program can see of it."""

from __future__ import annotations

from typing import Any

import pytest

from lnverify.adapters.torch_parameters import Apart

torch = pytest.importorskip("torch")


def seen(tensor: Any) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version


def test_no_address_and_version_come_back() -> None:
    apart = Apart(room=1000)
    found = [seen(apart.add(torch.full((4,), float(number)))) for number in range(1000)]
    assert len(set(found)) == 1000
    assert len({address for address, _ in found}) < 1000


def test_what_is_changed_in_place_stays_apart() -> None:
    apart, found = Apart(room=1000), []
    for _ in range(1000):
        tensor = apart.add(torch.zeros(4))
        for _ in range(3):
            found.append(seen(tensor))
            tensor.add_(1)
    assert len(set(found)) == len(found)


def test_a_parameter_that_is_a_part_of_a_larger_tensor_keeps_its_gradient() -> None:
    apart = Apart(room=0)
    for _ in range(3):
        leaf = apart.add(torch.arange(16.0)[2:14].view(3, 4).t()).requires_grad_()
        (gradient,) = torch.autograd.grad((leaf.t() * 2).sum(), [leaf])
        assert gradient.tolist() == [[2.0] * 3] * 4


def test_parameters_of_inference_mode_have_a_version() -> None:
    with torch.inference_mode():
        tensor = Apart().add(torch.ones(4))
    assert tensor._version < 8
    assert tensor.tolist() == [1.0] * 4


def test_tensors_of_a_transform_are_left_alone() -> None:
    apart = Apart(room=0)
    y = torch.vmap(lambda weight: 2 * apart.add(weight * 1))(torch.arange(3.0))
    assert y.tolist() == [0.0, 2.0, 4.0]
