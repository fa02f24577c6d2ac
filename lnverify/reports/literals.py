"""Arrays as short source text of torch or NumPy: the same numbers, exactly.

Numbers are the shortest decimals that read back as themselves in the dtype; repeated ones are written once.
"""

from __future__ import annotations

from math import isfinite, prod

from lnverify.adapters.layouts import APART, FAR_ROWS, effective
from lnverify.floats import Float64Array, FloatArray
from lnverify.reports.wording import shortest

LISTED = 48  # elements written out one by one
RUNS = 6  # stretches of equal elements, written as [1.0] * 256 + [2.0]
PERIOD = 8  # elements of a repeated pattern, written as [1.0, 2.0] * 128


NAN = 'float("nan")'


class UnwritableError(Exception):
    """The case cannot be written as a short script."""


class Literals:
    """Writes arrays for 'torch' or 'np'. special: whether inf or nan was written, to be imported."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.special = False

    def numbers(self, values: list[float], dtype: str) -> str:
        """Numbers as the inside of a list, with a pattern or stretches written short."""
        written = {v: shortest(v, dtype) for v in {*values} if v == v}
        texts = [written.get(v) or shortest(v, dtype) for v in values]
        self.special |= not all(map(isfinite, values))
        size = len(texts)
        for period in range(1, min(PERIOD, size // 2) + 1):
            if size > 4 and size % period == 0 and texts == texts[:period] * (size // period):
                return f"[{', '.join(texts[:period])}] * {size // period}"
        if size <= LISTED:
            return f"[{', '.join(texts)}]"
        stretches: list[tuple[str, int]] = []
        for text in texts:
            if stretches and stretches[-1][0] == text:
                stretches[-1] = (text, stretches[-1][1] + 1)
            else:
                stretches.append((text, 1))
        if len(stretches) > RUNS:
            raise UnwritableError
        return " + ".join(f"[{text}] * {n}" if n > 1 else f"[{text}]" for text, n in stretches)

    def array(self, values: Float64Array, dtype: str) -> str:
        """An array of the framework with these values, exactly."""
        shape = tuple(values.shape)
        kind = f"dtype={self.prefix}.{dtype}"
        flat = [float(v) for v in values.ravel()]
        if not flat:
            return f"{self.prefix}.zeros({shape}, {kind})"
        # What is short has few different numbers: the shortest decimal of a number is dear.
        if len(flat) > LISTED and len(set(flat)) > LISTED:
            raise UnwritableError
        texts = {shortest(v, dtype) for v in {*flat}}
        if len(texts) == 1 and len(flat) > 1:
            size = shape[0] if len(shape) == 1 else shape
            text = texts.pop()
            self.special |= not isfinite(flat[0])
            named = {"0.0": "zeros", "1.0": "ones"}.get(text)
            if named:
                return f"{self.prefix}.{named}({size}, {kind})"
            return f"{self.prefix}.full({shape}, {text}, {kind})"
        if len(shape) == 2 and shape[0] > 1 and len(flat) > 6:
            rows = [[shortest(float(v), dtype) for v in row] for row in values]
            if all(row == rows[0] for row in rows):
                return self.repeated(self.array(values[0], dtype), shape[0])
        if len(shape) > 1 and len(flat) <= LISTED:
            self.special |= not all(map(isfinite, flat))
            return f"{self.constructor}({_nested(values, dtype)}, {kind})"
        inside = f"{self.constructor}({self.numbers(flat, dtype)}, {kind})"
        return inside if len(shape) == 1 else f"{inside}.reshape{shape}"

    @property
    def constructor(self) -> str:
        """What makes an array from a list."""
        return f"{self.prefix}.{'tensor' if self.prefix == 'torch' else 'array'}"

    def repeated(self, row: str, rows: int) -> str:
        """A matrix of equal rows."""
        return f"np.tile({row}, ({rows}, 1))" if self.prefix == "np" else f"{row}.repeat({rows}, 1)"

    def laid_out(self, array: FloatArray, layout: str) -> str:
        """A torch expression with the same values, laid out in memory as the torch adapter does."""
        text, shape = self.array(array.values, array.dtype), array.shape
        rank = len(shape)
        if layout == "far" and rank > 1 and array.size and shape[0] <= FAR_ROWS:
            strides = (APART, *(prod(shape[axis + 1 :]) for axis in range(1, rank)))
            length = (shape[0] - 1) * APART + prod(shape[1:])
            return f"torch.empty({length}, dtype=torch.{array.dtype}).as_strided({shape!r}, {strides!r}).copy_({text})"
        layout = effective(layout, rank)
        if layout == "contiguous" or not array.size:
            return text
        if layout == "expanded":
            base = array.values
            for dim in range(rank):
                first = base.take([0], axis=dim)
                base = first if bool((base == first).all()) else base
            return f"{self.array(base, array.dtype)}.expand{shape!r}"
        if layout == "transposed":
            return f"{text}.mT.contiguous().mT"
        if layout in ("strided", "reversed"):  # torch has no negative strides
            return f"{_padded(f'{text}.unsqueeze(-1)', 0, 1)}.flatten(-2)[..., ::2]"
        if layout in ("offset", "shifted"):
            front = f"torch.full((3,), {NAN}, dtype=torch.{array.dtype})"
            if layout == "offset":
                return f"torch.cat([{front}, {text}.flatten()])[3:].view{shape!r}"
            return f"torch.cat([{front}, {text}.mT.flatten()])[3:].view{(*shape[:-2], *shape[:-3:-1])!r}.mT"
        if layout == "permuted":
            return f"{text}.movedim(1, -1).contiguous().movedim(-1, 1)"
        if layout == "swapped":
            return f"{text}.transpose(0, 1).contiguous().transpose(0, 1)"
        if layout == "skipped":
            return f"{_padded(f'{text}.unsqueeze(1)', rank - 1, 1)}.flatten(0, 1)[::2]"
        if layout == "padded":
            return f"{_padded(text, 0, shape[-1])}[..., :{shape[-1]}]"
        if layout == "sliced":
            return f"{_padded(text, rank - 2, shape[1])}[:, :{shape[1]}]"
        if layout == "cropped":
            return f"{_padded(text, rank - 3, shape[2])}[:, :, :{shape[2]}]"
        raise UnwritableError


def _padded(text: str, behind: int, size: int) -> str:
    """NaN behind the last element of a dimension, that with `behind` dimensions after it."""
    return f"torch.nn.functional.pad({text}, {(0, 0) * behind + (0, size)}, value={NAN})"


def number(value: float) -> str:
    """A Python expression for a number, without an import."""
    return repr(value) if isfinite(value) else f'float("{value}")'


def _nested(values: Float64Array, dtype: str) -> str:
    if values.ndim == 0:
        return shortest(float(values), dtype)
    return f"[{', '.join(_nested(part, dtype) for part in values)}]"
