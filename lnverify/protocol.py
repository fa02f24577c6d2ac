"""The two messages between lnverify and a subject: Request and Response.

A subject answers `run(Request) -> Response`. Nothing but the names in the Operation is special to layer norm,
so that cells, blocks and other languages fit the same two messages. Requests keep their order: laws about
state and call history are sequences of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lnverify.floats import FloatArray

LAYOUTS = (
    "contiguous", "transposed", "strided", "reversed", "offset", "expanded", "permuted", "swapped", "padded", "skipped",
    "sliced", "cropped", "shifted", "far", "output",
)  # fmt: skip
HISTORIES = (
    "",
    "overwritten",
    "unversioned",
    "followed",
    "crowded",
    "viewed",
    "detached",
    "handed",
    "state",
    "repeated",
    "resumed",
    "changed",
    "changed_x",
    "changed_weight",
    "changed_bias",
    "output",
    "threads",
    "stream",
    "autocast",
    "low_default",
    "lower",
    "higher",
    "deterministic",
    "accumulating",
    "into_grad",
)
CROWD = 33  # later calls of the history 'crowded': more than a model of 16 blocks makes
CROWDED = ("crowded", "viewed", "detached", "resumed")  # histories of so many calls
FEW = 128  # elements of x up to which so many calls are cheap
BETWEEN = 16  # bytes of an element that whoever answers may need besides x and y: four arrays of float32
NOT_IMPLEMENTED = "NotImplementedError"  # how code says what it does not support
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")  # how a refusal for want of memory begins
EVERY = 1024  # of so many repetitions of a few rows, one has a dy that is not zero
VIEWS = ("viewed", "detached")  # histories in which y itself is dropped
GRAD_MODES = ("enabled", "no_grad", "inference")


def live_rows(rows: int, period: int) -> list[int]:
    """Rows whose dy is not zero, where `period` rows are repeated to so many: one repetition of 1024, and the last."""
    starts = (*range(0, max(rows - period, 1), EVERY * period), max(rows - period, 0))
    return sorted({row for start in starts for row in range(start, min(start + period, rows))})


def later(size: int) -> int:
    """How many later calls there are for so many elements of x."""
    return CROWD if size <= FEW else 1


@dataclass(frozen=True)
class Request:
    """What a subject is asked.

    arrays: `x` of shape (*batch, *normalized_shape), `weight` and `bias` of normalized_shape or absent, `dy`
    of x's shape; for jvp the tangents `tx`, `tweight`, `tbias`; for double backward the cotangents `vx`,
    `vweight`, `vbias` of the first gradients.
    wanted: any of y, dx, dweight, dbias, mean, rstd, ty (jvp), d2x, d2weight, d2bias, d2dy (double backward); of cells
    and blocks the same for every argument and output: dh, tcy, d2h, d2dcy (lnverify.operation).
    layouts: how each array lies in memory (one of LAYOUTS). 'transposed', 'permuted', 'swapped': the last two
    dimensions, the second to the end, the first two the other way round. 'strided', 'skipped': every second index of
    the last or first dimension of a larger array; 'padded', 'sliced', 'cropped': a slice of its last, second or third
    one. 'reversed': step -1. 'offset': an unaligned start; 'shifted': the same, transposed. 'far': up to three rows,
    2^31 elements apart, in memory of which little exists ('skipped' where that cannot be had). 'expanded': stride 0
    along every dimension in which it is constant. 'output' on dy: dy is the subject's own output y (the Response then
    carries the bits of that dy).
    requires_grad: the arguments that require a gradient; wanted gradients are among them.
    history: what happens besides the call. 'overwritten': an earlier call on other numbers in the same memory;
    'unversioned': the same, written through `.data`, which no version counter tells.
    'followed': a later call on other numbers before the results are read, between forward and backward, and a later
    backward before the gradients are read. 'crowded': 33 later calls, and one with another eps, between forward and
    backward. 'viewed', 'detached': y is dropped, and only a view of it, or y.detach(), is kept while later calls run
    (`later`). 'handed': the backward runs in another thread. 'repeated': the backward runs twice on one forward, its
    second result is given; 'resumed': later forwards and their backwards run in between (`later`). 'changed': the
    arguments are overwritten between forward and backward (and put back), with 'changed_x' and so on one of them alone.
    'output': y is overwritten there. 'threads': another thread calls on other numbers at the same time. 'stream': on a
    CUDA stream of its own, behind work that still writes the arguments.
    'lower': after a call on the same numbers in 16 bits, and for float64 in float32; 'higher': after one in float64.
    'state': a cell's dy is the cotangent of the h that is handed on to the next step, not of the output.
    'autocast': under torch.autocast to bfloat16. 'low_default': with bfloat16 as the default dtype. 'deterministic':
    under torch.use_deterministic_algorithms. All three around the forward and around the backward. 'accumulating': the
    arguments have a `.grad` already. 'into_grad': the backward is backward(), beside a `.grad` of zeros.
    repeat: rows, where it is not 0: x is a few rows that are repeated to so many by whoever answers; y is then that of
    the first ones, `odd` holds the rows of y (at most 64) that differ in bits from theirs, `odd_rows` their numbers.
    Where gradients are wanted, dy is zero but in `live_rows`, where it is repeated as x is; dx is that of these rows,
    `odd` holds rows of dx elsewhere (at most 64) that are not zero, `odd_rows` their numbers.
    module_action (modules only): '' sets the parameters of a new module from the arrays. 'state_dict', 'deepcopy',
    'pickle' and 'to' then send it through that round trip first ('to': made in float64, moved to the dtype).
    'assigned' puts new Parameters in the place of its own; 'parametrized' and 'pruned' let torch.nn.utils compute them.
    'reset' calls reset_parameters() before the parameters of before are set.
    'initial', 'initial:no_affine', 'initial:no_bias' run a new module as it is, and `initial_weight` and
    `initial_bias` may be wanted (absent where it has none).
    """

    operation: str
    arrays: Mapping[str, FloatArray]
    normalized_shape: tuple[int, ...]
    eps: float
    wanted: tuple[str, ...] = ("y",)
    requires_grad: tuple[str, ...] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)
    train: bool = True
    grad_mode: str = "enabled"
    create_graph: bool = False
    device: str = "cpu"
    threads: int | None = None
    module_action: str = ""
    history: str = ""
    repeat: int = 0


@dataclass(frozen=True)
class Response:
    """What a subject answers: named arrays in the dtype and shape that it returned, or a refusal.

    arrays: a wanted array that the subject did not produce (a gradient that is None) is absent.
    refusal: 'TypeError: message' when the subject raised, else None; arrays are then empty.
    phase: 'forward' or 'backward' (or 'jvp', 'double backward'): where it raised. 'placement': a parameter
    of the case has no place in a module of its sizes. 'crash': it did not answer at all, and refusal says what became
    of its process (lnverify.host).
    changed: names of arguments whose bits the subject changed (dy included).
    aliases: outputs that share memory with an argument. warnings, printed: what it said besides.
    """

    arrays: Mapping[str, FloatArray] = field(default_factory=dict)
    refusal: str | None = None
    phase: str = "forward"
    changed: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    printed: str = ""

    def said(self, most: int = 3) -> tuple[str, ...]:
        """The last lines of what the subject warned and printed."""
        printed = [line for line in self.printed.strip().splitlines() if line.strip()]
        return (*self.warnings[-most:], *printed[-most:])
