"""Recurrent cells and a transformer block with the target's norm (--ln-target), beside the same with torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.norms import CELLS, block, norm
from benchmarks.paired import REPLAY, paired
from lnverify.runner import DEFAULT_TARGET
from lnverify.target import resolve
from lnverify.timing.paths import HotPath
from lnverify.timing.verify import wrong

torch = pytest.importorskip("torch", reason="cells are written in torch")
BATCH, UNITS, STEPS = 32, 256, 16


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """The target, verified in the shape that the cells use."""
    text: str = request.config.getoption("--ln-target") or DEFAULT_TARGET
    subject, path = resolve(text), HotPath((BATCH, UNITS), "float32", "both")
    if subject.framework != "torch":
        pytest.skip(f"{text} is no torch code")
    if said := wrong(subject, path, path.case(subject.capabilities)):
        pytest.skip(f"not timed: {said}")
    return text


def both(target: str, build: Callable[[Callable[[int], Any]], Callable[[], Any]]) -> Callable[[], dict[str, Any]]:
    """The two sides: all that differs is the norm. Asserts that they compute the same, as far as float32 goes."""

    def make() -> dict[str, Any]:
        torch.set_num_threads(1)
        return {side: build(lambda n, name=name: norm(name, n)) for side, name in
                (("candidate", target), ("baseline", DEFAULT_TARGET))}  # fmt: skip

    one, other = (call() for call in make().values())
    # Not a verdict: that both sides were built from the same numbers. The norm itself was judged by its bounds.
    torch.testing.assert_close(one, other)
    return make


@pytest.mark.benchmark(timer=REPLAY)
@pytest.mark.parametrize("cell", sorted(CELLS))
def test_cell_step(benchmark: Any, target: str, cell: str) -> None:
    x, h = torch.randn(2, BATCH, UNITS, generator=torch.Generator().manual_seed(1))

    def build(make: Callable[[int], Any]) -> Callable[[], Any]:
        step = CELLS[cell](make, UNITS)

        def call() -> Any:
            with torch.no_grad():
                return step(x.clone(), (h, h))[0]

        return call

    assert set(paired(benchmark, both(target, build)).readings) == {"candidate", "baseline"}


@pytest.mark.benchmark(timer=REPLAY)
@pytest.mark.parametrize("cell", sorted(CELLS))
def test_cell_sequence(benchmark: Any, target: str, cell: str) -> None:
    steps = torch.randn(STEPS, BATCH, UNITS, generator=torch.Generator().manual_seed(1))

    def build(make: Callable[[int], Any]) -> Callable[[], Any]:
        step, x = CELLS[cell](make, UNITS), steps.clone().requires_grad_()

        def call() -> Any:
            state = (torch.zeros(BATCH, UNITS), torch.zeros(BATCH, UNITS))
            for each in x.unbind():
                state = step(each, state)
            return torch.autograd.grad(state[0].sum(), x)[0]

        return call

    assert set(paired(benchmark, both(target, build)).readings) == {"candidate", "baseline"}


@pytest.mark.benchmark(timer=REPLAY)
@pytest.mark.parametrize("what", ["forward", "both"])
def test_transformer_block(benchmark: Any, target: str, what: str) -> None:
    given = torch.randn(2, 64, UNITS, generator=torch.Generator().manual_seed(1))

    def build(make: Callable[[int], Any]) -> Callable[[], Any]:
        forward, x = block(make, UNITS, 4), given.clone().requires_grad_(what == "both")

        def call() -> Any:
            with torch.set_grad_enabled(what == "both"):
                y = forward(x)
            return torch.autograd.grad(y.sum(), x)[0] if what == "both" else y

        return call

    assert set(paired(benchmark, both(target, build)).readings) == {"candidate", "baseline"}
