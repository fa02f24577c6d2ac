"""For each claim with evidence that runs: a wrong formula to feed it, as the arguments of its check.

`tests/test_claims.py` asks for one per claim, and that the evidence then disagrees. To add a claim, add a line.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lnverify.claims import cells, cost, geometry
from lnverify.claims import normalizers as n
from lnverify.claims.balls import ball, balls, sqrt


def identity(x: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Any:
    """No normalization at all."""
    return balls(x)


def rms(x: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Any:
    """The mean is not taken away."""
    x = balls(x)
    return x / sqrt((x * x).sum(axis=-1, keepdims=True) / x.shape[-1] + ball(eps)) * (1 if gamma is None else gamma)


def weighted(x: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Any:
    """The first unit counts twice in the mean."""
    x = balls(x)
    return n.layer_norm(x, gamma, beta, eps) + x[..., :1] / x.shape[-1]


def over_cases(x: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Any:
    """Statistics over the cases."""
    return n.batch_norm(np.atleast_2d(balls(x)), gamma, beta, eps).reshape(np.shape(x))


def no_variance_term(x: Any, dy: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> dict[str, Any]:
    """A backward that takes sigma for a constant."""
    found = n.vjp(x, dy, gamma, beta, eps)
    g = balls(dy) * (1 if gamma is None else balls(gamma))
    r = n.statistics(x, eps)["r"][:, None]
    return found | {"x_bar": r * (g - g.sum(axis=1, keepdims=True) / g.shape[1])}


def unbiased(x: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Any:
    """The sum of squares is divided by H - 1."""
    x = balls(x)
    return n.layer_norm(x, gamma, beta, eps) * sqrt(ball(x.shape[-1] - 1) / x.shape[-1])


def eps_outside(x: Any, gamma: Any = None, beta: Any = None, eps: Any = 0) -> Any:
    """eps is added to sigma."""
    return n.layer_norm(x) / (1 + ball(eps) * n.statistics(np.atleast_2d(balls(x)))["r"][:, None]).reshape(-1)


WRONG: dict[str, dict[str, Any]] = {
    "A01": {"summed": lambda weights, h: np.roll(weights, 1, axis=0) @ h},
    "A02": {"batch": n.layer_norm},
    "A03": {"normalize": rms},
    "A04": {"stats": lambda x: n.statistics(x.T)},
    "A05": {"normalize": over_cases},
    "A06": {"normalize": over_cases},
    "A07": {"normalize": over_cases},
    "A08": {"normalize": lambda z, gain=None, bias=None: n.layer_norm(z, bias, gain)},
    "P02": {"backward": lambda z, dy, gain, bias: n.vjp(z, dy, bias, gain)},
    "B01": {"normalize": eps_outside},
    "B02": {"batch": lambda x, eps=0: n.batch_norm(x)},
    "B03": {"normalize": unbiased},
    "B04": {"outside": lambda x, eps: n.layer_norm(x, eps=eps)},
    "B05": {"normalize": identity},
    "B06": {"batch": n.layer_norm},
    "B07": {"normalize": rms},
    "B08": {"normalize": rms},
    "B09": {"weight": lambda weights, x: n.layer_norm(balls(x) @ balls(weights).T)},
    "B10": {"normalize": over_cases},
    "A20": {"normalize": rms},
    "A21": {"normalize": rms},
    "A22": {"normalize": identity},
    "B20": {"normalize": over_cases},
    "B21": {"backward": no_variance_term},
    "B30": {"backward": no_variance_term},
    "B31": {"backward": lambda *given, **more: {"x_bar": 2 * n.vjp(*given, **more)["x_bar"]}},
    "B32": {"jac": lambda x, gamma=None, eps=0: np.diag(np.diag(n.jacobian(x, gamma, eps)))},
    "B33": {"backward": lambda x, dy, gamma, beta, eps: n.vjp(x, dy, gamma, beta)},
    "X04": {"backward": lambda x, dy, gamma, eps: {"x_bar": gamma * dy}},
    "X05": {"backward": no_variance_term},
    "X06": {"backward": lambda x, dy, gamma, beta, eps: n.vjp(x, dy, gamma, beta)},
    "A70": {"matrix": geometry.fisher_of_data},
    "A71": {"of_data": geometry.fisher},
    "A72": {"backward": no_variance_term},
    "A73": {"backward": lambda a, dz: {"x_bar": dz}},
    "A40": {"normalize": rms},
    "A41": {"cell": lambda p: cells.lstm_per_gate(p)},
    "A42": {"rows_of_gates": cells.H},
    "A43": {"cell": lambda p, other_way=False: cells.gru(p)},
    "A44": {"cell": lambda p, after=True: cells.gru(p)},
    "A45": {"normalize": lambda x: n.layer_norm(x, eps=1)},
    "B40": {"cell": cells.lstm_paper},
    "B41": {"of_cell": n.layer_norm},
    "B45": {"normalize": lambda x: n.layer_norm(x, eps=1)},
    "B46": {"normalize": rms},
    "P03": {"cell": cells.lstm_paper},
    "P04": {"normalize": lambda a: np.concatenate([n.layer_norm(a[:, :6]), n.layer_norm(a[:, 6:])], axis=1)},
    "B60": {"over_all": n.channel_norm},
    "B61": {"groups": lambda x, groups: n.channel_norm(x)},
    "B62": {"groups": lambda x, groups: n.group_norm(x, 1)},
    "P05": {"scale": 1},
    "B70": {"normalizer": lambda cases, units: 2 * cost.layer_norm_operations(cases, units)},
    "B71": {"normalizer": lambda cases, units: cost.plain_operations(cases, 1) * units},
    "P01": {"weight": lambda weights, x: n.layer_norm(balls(x) @ balls(weights).T, eps=1)},
    "X01": {"normalize": weighted},
    "X02": {"normalize": lambda x, gamma=None, beta=None, eps=0: n.layer_norm(x, gamma, 1 + 0 * x, eps)},
    "X03": {"normalize": identity},
    "X07": {"root": lambda v: np.sqrt(v.astype(np.float64)) if np.isfinite(v) else np.float32(2.0**65)},
    "X08": {"root": lambda v: np.float32(1)},
}
