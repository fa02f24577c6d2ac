"""Tensors in the place of parameters: none is taken for an earlier one by what a program can see of it."""

from __future__ import annotations

from typing import Any

import pytest

from lnverify.adapters.torch_parameters import RECENT, called_with

torch = pytest.importorskip("torch")


class Seen(torch.nn.Module):
    """A module that notes where its parameters lie, and their versions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.bias = torch.nn.Parameter(torch.zeros(4))
        self.seen: list[tuple[int, int]] = []

    def forward(self, x: Any) -> Any:
        self.seen += [(p.data_ptr(), p._version) for p in (self.weight, self.bias)]
        return x * self.weight + self.bias


def test_no_address_and_version_come_back() -> None:
    module = Seen()
    for number in range(3 * (RECENT.maxlen or 0)):
        bias = torch.full((4,), float(number))  # lies where an earlier one lay
        y = called_with(module, {"weight": torch.ones(4), "bias": bias})(torch.ones(4))
        assert y.tolist() == [number + 1.0] * 4
    assert len(set(module.seen)) == len(module.seen)
    assert len({address for address, _ in module.seen}) < len(module.seen)


def test_two_views_of_one_tensor_stay_apart_from_later_ones() -> None:
    module = Seen()
    for _ in range(100):
        both = torch.zeros(8)
        called_with(module, {"weight": both[:4], "bias": both[4:]})(torch.ones(4))
    assert len(set(module.seen)) == 200


def test_parameters_of_inference_mode_have_a_version() -> None:
    module = Seen()
    with torch.inference_mode():
        y = called_with(module, {"weight": torch.ones(4), "bias": torch.full((4,), 2.0)})(torch.ones(4))
    assert y.tolist() == [3.0] * 4


def test_tensors_of_a_transform_are_placed_as_they_are() -> None:
    linear = torch.nn.Linear(4, 1, bias=False)
    weights = torch.arange(12.0).reshape(3, 1, 4)
    y = torch.vmap(lambda weight: called_with(linear, {"weight": weight})(torch.ones(4)))(weights)
    assert y.tolist() == [[6.0], [22.0], [38.0]]
