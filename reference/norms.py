"""The other norms of the template in normalizers.py: where the statistics are taken, and what they are.

    rms_norm                ms = mean of x**2 over i, y = gamma * x / sqrt(ms + eps): nothing is subtracted
    group_norm              statistics over the channels c of a group g and the positions s, affine per channel (g, c)
    batch_norm              statistics over the rows b and the positions s, affine per channel c (training)
    layer_norm_channels     statistics over the channels c of one position (b, s), affine per channel c
    batch_norm_eval         statistics that are given, per channel c, and constants of the backward (evaluation)
    layer_norm_eps_outside  y = gamma * d / (sigma + eps) + beta, sigma = sqrt(var): eps stands outside the root
    weight_norm             y = gamma * x / ||x||, one norm and one gamma for each row b of a weight matrix x: no eps

Instance normalisation is group normalisation with one channel in each group, and layer normalisation over C x H x W
with an affine per channel is group normalisation with one group. Sources: Zhang and Sennrich 2019, equation 4; Wu and
He 2018, equations 1 to 7; Ioffe and Szegedy 2015, algorithms 1 and 2; Liu et al. 2022 (ConvNeXt); Ulyanov et al. 2016;
Salimans and Kingma 2016, equation 2.
"""

from __future__ import annotations

from normalizers import b, i, mean, normalizer, tensor
from program import Let, Program
from sympy import Idx, Sum, Symbol, sqrt

c, g, s = (Idx(name, Symbol(name.upper(), integer=True, positive=True)) for name in "cgs")


def rms_norm() -> Program:
    """Division of each row of x[b, i] by its root mean square."""
    x, gamma, eps = tensor("x", b, i), tensor("gamma", i), tensor("eps", b)
    ms, r, xhat, y = tensor("ms", b), tensor("r", b), tensor("xhat", b, i), tensor("y", b, i)
    body = (
        Let(ms, mean(x**2, (i,))),
        Let(r, 1 / sqrt(ms + eps)),
        Let(xhat, x * r),
        Let(y, gamma * xhat),
    )
    return Program("rms_norm", (x, gamma, eps), body, (y,), fixed=frozenset({"eps"}))


def group_norm() -> Program:
    """Normalisation of each group of channels of each row of x[b, g, c, s]."""
    return normalizer("group_norm", tensor("x", b, g, c, s), (c, s), (g, c))


def batch_norm() -> Program:
    """Normalisation of each channel of x[b, c, s] by the statistics of the batch."""
    return normalizer("batch_norm", tensor("x", b, c, s), (b, s), (c,))


def batch_norm_eval() -> Program:
    """Normalisation of each channel of x[b, c, s] by a mean and a variance that are given."""
    x, y, d, xhat = (tensor(word, b, c, s) for word in ("x", "y", "d", "xhat"))
    gamma, beta, r, eps = (tensor(word, c) for word in ("gamma", "beta", "r", "eps"))
    running_mean, running_var = tensor("running_mean", c), tensor("running_var", c)
    body = (
        Let(d, x - running_mean),
        Let(r, 1 / sqrt(running_var + eps)),
        Let(xhat, d * r),
        Let(y, gamma * xhat + beta),
    )
    inputs = (x, gamma, beta, running_mean, running_var, eps)
    return Program("batch_norm_eval", inputs, body, (y,), fixed=frozenset({"eps", "running_mean", "running_var"}))


def layer_norm_channels() -> Program:
    """Normalisation of the channels of each position of x[b, c, s]."""
    return normalizer("layer_norm_channels", tensor("x", b, c, s), (c,), (c,))


def layer_norm_eps_outside() -> Program:
    """Layer normalisation that divides by sigma + eps, of each row of x[b, i]."""
    x, gamma, beta, eps = tensor("x", b, i), tensor("gamma", i), tensor("beta", i), tensor("eps", b)
    mu, var, sigma, r = (tensor(word, b) for word in ("mu", "var", "sigma", "r"))
    d, xhat, y = (tensor(word, b, i) for word in ("d", "xhat", "y"))
    body = (
        Let(mu, mean(x, (i,))),
        Let(d, x - mu),
        Let(var, mean(d**2, (i,))),
        Let(sigma, sqrt(var)),
        Let(r, 1 / (sigma + eps)),
        Let(xhat, d * r),
        Let(y, gamma * xhat + beta),
    )
    return Program("layer_norm_eps_outside", (x, gamma, beta, eps), body, (y,), fixed=frozenset({"eps"}))


def weight_norm() -> Program:
    """Each row of a weight matrix x[b, i] in the direction of the row, with the length gamma[b]."""
    x, gamma = tensor("x", b, i), tensor("gamma", b)
    ss, r, xhat, y = tensor("ss", b), tensor("r", b), tensor("xhat", b, i), tensor("y", b, i)
    body = (
        Let(ss, Sum(x**2, i)),
        Let(r, 1 / sqrt(ss)),
        Let(xhat, x * r),
        Let(y, gamma * xhat),
    )
    return Program("weight_norm", (x, gamma), body, (y,))


NORMS = (
    (rms_norm, "Division by the root mean square", "Zhang and Sennrich 2019, equation 4, with eps under the root"),
    (group_norm, "Group normalisation", "Wu and He 2018, equations 1, 2 and 7"),
    (batch_norm, "Batch normalisation in training", "Ioffe and Szegedy 2015, algorithm 1"),
    (batch_norm_eval, "Batch normalisation in evaluation", "Ioffe and Szegedy 2015, algorithm 2, step 11"),
    (layer_norm_channels, "Layer normalisation over the channels of each position", "Liu et al. 2022, section 2.6"),
    (layer_norm_eps_outside, "Layer normalisation with eps outside the root", "Ba, Kiros and Hinton 2016, equation 3"),
    (weight_norm, "Weight normalisation", "Salimans and Kingma 2016, equation 2"),
)
"""Each program with what it is, and where it is from."""
