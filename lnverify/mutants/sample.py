"""Sample: a small description of inputs on which a mutant is shown right or wrong, built without randomness
that could change: NumPy's PCG64 with a fixed seed, then one rounding to the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from lnverify.floats import Float64Array, round_values


@dataclass(frozen=True)
class Sample:
    """Normal rows `mean + scale * N(0, 1)`.

    batch: batch shape; shape: normalized shape; affine: 'both', 'weight', 'bias' or 'none'. kind: 'normal';
    'constant': every element is the mean; 'nan': row 1 holds a NaN; 'outlier': the first element of each row
    is 1000 scale higher. weight: 'normal', 'zero' (element 3 is 0), 'ones'. dy: 'normal'; 'last-row': nonzero
    in the last row only, where no other row can mask a lost one; 'nan': row 1 holds a NaN. dtype: '' stands
    for the mutant's first.
    """

    batch: tuple[int, ...] = (3,)
    shape: tuple[int, ...] = (64,)
    mean: float = 0.0
    scale: float = 1.0
    eps: float = 1e-5
    affine: str = "both"
    kind: str = "normal"
    weight: str = "normal"
    dy: str = "normal"
    dtype: str = ""

    def arrays(self, dtype: str) -> dict[str, Float64Array]:
        """x, dy and the parameters that are present, as float64 values of the dtype."""
        rng = np.random.Generator(np.random.PCG64(20160721))
        n, rows = prod(self.shape), prod(self.batch)
        x = self.mean + self.scale * rng.standard_normal((rows, n))
        if self.kind == "constant":
            x[:] = self.mean
        if self.kind == "nan":
            x[1, 0] = np.nan
        if self.kind == "outlier":
            x[:, 0] += 1000.0 * self.scale
        weight, bias = 1.0 + 0.5 * rng.standard_normal(n), rng.standard_normal(n)
        if self.weight == "ones":
            weight[:] = 1.0
        if self.weight == "zero":
            weight[3] = 0.0
        dy = 1.0 + rng.standard_normal((rows, n))
        if self.dy == "last-row":
            dy[:-1] = 0.0
        if self.dy == "nan":
            dy[1, 0] = np.nan
        whole = (*self.batch, *self.shape)
        out = {"x": x.reshape(whole), "dy": dy.reshape(whole)}
        if self.affine in ("both", "weight"):
            out["weight"] = weight.reshape(self.shape)
        if self.affine in ("both", "bias"):
            out["bias"] = bias.reshape(self.shape)
        return {name: round_values(values, dtype) for name, values in out.items()}
