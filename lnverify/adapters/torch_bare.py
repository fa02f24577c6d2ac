"""A torch subject's own code as one call without arguments, to be timed; copies of as many bytes, its physical limit.

Rules of this file: whatever can be done before the call is done before it (matching, memory, the graph of a backward
that is timed alone); every request gets memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lnverify.adapters.calling import saved_values, split
from lnverify.adapters.torch_call import Tensors, scalars
from lnverify.adapters.torch_tensors import hold
from lnverify.operation import operation
from lnverify.protocol import Request
from lnverify.timing.clock import Reading

Call = Callable[[], Any]
# Given the request and its tensors: the leaves to differentiate by, and the forward on them.
BindBare = Callable[[Request, Tensors], tuple[Mapping[str, Any], Call]]
# The same for a separate backward, given all values by our names.
BindBackward = Callable[[Request, Mapping[str, Any]], Call]


def bare(
    request: Request,
    what: str,
    bind: BindBare,
    returns: tuple[str, ...] = ("y",),
    backward: BindBackward | None = None,
) -> Call:
    """The 'forward', the 'backward' or 'both' as one call. Raises what the subject raises.

    A forward alone builds no graph: nothing requires a gradient. A backward alone runs again and again on the graph of
    one forward. backward: for a subject with a backward function of its own.
    """
    import torch

    names = [name for name in operation(request.operation).arguments if name in request.arrays]
    training = what != "forward" and backward is None
    asked = replace(request, requires_grad=request.requires_grad if training else ())
    tensors = {name: hold(request.arrays[name], "contiguous", request.device).tensor for name in names}
    for name in asked.requires_grad:
        tensors[name].requires_grad_()
    leaves, forward = bind(asked, tensors)
    if what == "forward":
        return forward
    dy = hold(request.arrays["dy"], "contiguous", request.device).tensor
    returned = forward()
    if backward is not None:
        separate = backward

        def again(returned: Any) -> Call:
            y, extra, named = split(returned, returns)
            values = {**scalars(request), **leaves, **saved_values(extra, named), "y": y, "dy": dy}
            return separate(request, values)

        return again(returned) if what == "backward" else lambda: again(forward())()
    inputs = [leaves[name] for name in names if name in request.requires_grad]
    grad = torch.autograd.grad
    first: Callable[[Any], Any] = lambda found: found  # noqa: E731 - a tensor as it is costs nothing more
    if not isinstance(returned, torch.Tensor):
        first = lambda found: split(found, returns)[0]  # noqa: E731
    if what == "backward":
        y = first(returned)
        return lambda: grad(y, inputs, dy, retain_graph=True, allow_unused=True)
    return lambda: grad(first(forward()), inputs, dy, allow_unused=True)


def copies(elements: int, dtype: str, device: str) -> tuple[Call, Call]:
    """A copy of so many elements into memory that is there already, and one that allocates its memory."""
    import torch

    source = torch.ones(elements, dtype=getattr(torch, dtype), device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), source.clone


def use_threads(count: int) -> None:
    """Let torch compute with so many threads."""
    import torch

    torch.set_num_threads(count)


def accelerator(device: str) -> str:
    """The name of a GPU; '' for the CPU."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else ""


class CudaClock:
    """Clock of a GPU: device events around each call, with nothing of the call's data left in the L2 cache.

    Before each call a buffer of four times the L2 cache is overwritten, outside of the events: it empties the cache and
    keeps the stream busy while the call is launched. Calls below some 20 microseconds show the cost of a launch.
    """

    name = "cuda"

    def __init__(self, cuda: Any, flush: Call) -> None:
        """cuda: torch.cuda. flush: what overwrites the buffer."""
        self._cuda, self._flush = cuda, flush

    @classmethod
    def of(cls, device: str) -> CudaClock:
        """The clock of a device."""
        import torch

        size = torch.cuda.get_device_properties(device).L2_cache_size
        return cls(torch.cuda, torch.empty(4 * size, dtype=torch.int8, device=device).zero_)

    def block(self, call: Call, times: int, slowed: float = 0.0) -> Reading:
        """Seconds per call, of the device in both figures. slowed: added to the figure; no work is done for it."""
        events = []
        for _ in range(times):
            self._flush()
            start, end = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            events.append((start, end))
        self._cuda.synchronize()
        seconds = sum(start.elapsed_time(end) for start, end in events) / times / 1e3
        return Reading(seconds * (1 + slowed), seconds * (1 + slowed))
