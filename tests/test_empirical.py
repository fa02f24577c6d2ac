"""The experiments run, give the same twice, and show nothing where layer norm is replaced by no normalization."""

from __future__ import annotations

from fractions import Fraction
from math import inf, log
from typing import Any

import numpy as np
import pytest
import torch

from lnverify.claims.empirical import torch_cost, torch_time
from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical import torch_recurrent as recurrent
from lnverify.claims.empirical import torch_training as training
from lnverify.claims.empirical.effect import Effect, Outcome, coverage, curve, differences, exact, ratios
from lnverify.claims.empirical.experiments import EXPERIMENTS, one_thread, select_experiments
from lnverify.claims.empirical.tasks import adding, copying, digits, rows_of
from lnverify.claims.empirical.torch_rates import divergence
from lnverify.errors import UsageError
from lnverify.timing import interval
from tests.empirical_samples import RUNS, WITHOUT, pictures, same_time

SIX = [(float(n), float(n)) for n in (3, 1, 2, 6, 5, 4)]


def run(name: str, **other: Any) -> Outcome:
    function, arguments = RUNS[name]
    with one_thread():
        return function(**{**arguments, **other})


# --- the experiments


@pytest.mark.parametrize("entry", EXPERIMENTS, ids=lambda entry: entry.name)
def test_it_runs_and_gives_the_same_twice(entry: Any) -> None:
    told: list[str] = []
    first = run(entry.name, tell=told.append)
    assert len(told) == entry.arms
    assert {claim for effect in first.effects for claim in effect.claims} == set(entry.claims)
    assert {len(effect.pairs) for effect in first.effects} == {first.seeds}
    assert len({effect.what for effect in first.effects}) == len(first.effects)
    assert all(low <= high for effect in first.effects for low, high in effect.pairs)
    assert first.panels
    assert run(entry.name) == first


@pytest.mark.parametrize("name", WITHOUT)
def test_the_effect_of_layer_norm_vanishes_without_it(name: str) -> None:
    null = {"ratio": 1.0, "difference": 0.0}
    effects = [e for e in run(name, **WITHOUT[name]).effects if " batch norm" not in f" {e.what}"]
    assert effects
    if name in ("batches", "depth"):  # beside comparisons of arms there are some of one arm with itself, elsewhere
        effects = [e for e in effects if "none over layer norm" in e.what or "pre-LN over post-LN" in e.what]
        assert len(effects) == 2
    for effect in effects:
        assert effect.side == 0, effect.what
        assert all(low == high == null[effect.kind] or low < null[effect.kind] < high for low, high in effect.pairs)


def test_an_effect_that_is_there_shows() -> None:
    found = {effect.what.split(":")[0]: effect.shown for effect in run("time").effects}
    assert found["between the scales"] == "showed"
    depth = [effect for effect in run("depth").effects if effect.says]
    assert [effect.shown for effect in depth] == ["showed", "showed"]


def test_with_layer_norm_the_scale_of_recurrent_weights_is_of_no_matter_without_input() -> None:
    size = torch_time.Size(seeds=2, steps=(1, 8), scales=(1, 2), hidden=8, inputs=1)
    g = torch.Generator().manual_seed(0)
    weights = torch.randn(1, 8, 8, generator=g, dtype=torch.float64)
    gain, bias = torch.ones(1, 1, 8, dtype=torch.float64), torch.zeros(1, 1, 8, dtype=torch.float64)

    def states(scale: float) -> torch.Tensor:
        p = {"wx": weights[:, :1], "wh": scale * weights, "gain": gain, "bias": bias}
        exactly = lambda x, *_: (x - x.mean(-1, True)) / x.std(-1, correction=0, keepdim=True)  # noqa: E731
        first = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        return recurrent.rnn(p, torch.cat([first, *[0 * first] * size.steps[-1]]), exactly)[-1]

    torch.testing.assert_close(states(4), states(1))


def test_the_cost_is_a_ratio_of_what_the_clock_says() -> None:
    def by_name(call: Any, times: int) -> float:
        return 3.0 if "layer_norm" in call.__code__.co_names else 12.0

    found = torch_cost.run(torch_cost.Size(hidden=(4, 8), batch=2, rounds=6), block=by_name)
    assert [effect.middle for effect in found.effects] == [(0.25, 0.25), (0.25, 0.25), (1.0, 1.0)]
    assert [effect.shown for effect in found.effects] == ["measured", "measured", "did not show"]
    found = torch_cost.run(torch_cost.Size(hidden=(4, 8), batch=2, rounds=6), block=same_time)
    assert found.effects[0].middle == (1.0, 1.0)
    assert torch_cost.thread_time(lambda: None, 3) >= 0


def test_experiments_are_found_by_name_and_by_claim() -> None:
    assert [entry.name for entry in select_experiments(("b47", "cost"))] == ["depth", "cost"]
    assert select_experiments() == EXPERIMENTS
    with pytest.raises(UsageError, match="there is no experiment 'A01', nor one about a claim with that id: there are"):
        select_experiments(("A01",))


# --- what is said of the numbers


def test_six_seeds_bound_the_median_by_their_ends() -> None:
    effect = Effect(("A80",), "", "ratio", 1, tuple(SIX))
    assert (effect.middle, effect.bounds, effect.side, effect.shown) == ((3.5, 3.5), (1.0, 6.0), 0, "did not show")
    assert coverage(6) == Fraction(31, 32)
    assert coverage(5) == 0  # 1 - 2/32 is less than 95 %
    assert Effect((), "", "ratio", 1, tuple(SIX[:5])).bounds == (-inf, inf)
    assert coverage(9) == 1 - Fraction(2 * (1 + 9), 512)
    assert interval.rank(9, 0.025) == 2


@pytest.mark.parametrize(
    ("says", "shift", "word"),
    [(1, 1, "showed"), (-1, 1, "the opposite showed"), (0, 1, "differs"), (0, 0, "no difference showed"),
     (-1, -7, "showed"), (1, -3, "did not show")],
)  # fmt: skip
def test_the_side_of_the_null_decides_what_showed(says: int, shift: int, word: str) -> None:
    effect = Effect((), "", "difference", says, tuple((low + shift - 1, high + shift) for low, high in SIX))
    assert effect.shown == word


def test_what_did_not_end_is_known_from_one_side() -> None:
    assert ratios([40, inf, 40, inf], [20, 20, inf, inf], 100) == ((2, 2), (5, inf), (0, 0.4), (0, inf))
    assert differences([2, 5, 2, 5], [3, 4, 5, 5], 5) == ((1, 1), (-inf, -1), (3, inf), (-inf, inf))
    effect = Effect((), "", "ratio", 1, ratios([inf] * 6, [20] * 6, 100))
    assert (effect.middle, effect.bounds, effect.shown) == ((5, inf), (5, inf), "showed")
    unknown = Effect((), "", "ratio", 1, ratios([inf] * 6, [inf] * 6, 100))
    assert unknown.shown == "did not show"
    assert exact(np.asarray([1, 2])) == ((1, 1), (2, 2))


def test_a_curve_holds_median_and_ends() -> None:
    drawn = curve("a", [1, 2], [[3, 1, 2], [5, 5, 8]])
    assert (drawn.y, drawn.low, drawn.high) == ((2, 5), (1, 5), (3, 8))


# --- what is read off losses


def test_steps_are_counted_to_the_first_mean_of_ten() -> None:
    losses = np.asarray([[4.0] * 10 + [0.0] * 20, [4.0] * 30, [np.nan] * 30]).T
    assert training.steps_to(losses, 2.0).tolist() == [15, inf, inf]
    assert training.steps_to(losses, 4.0).tolist() == [10, 10, inf]


def test_a_run_diverges_that_ends_above_its_start_or_nowhere() -> None:
    up, down = np.linspace(1, 2, 20), np.linspace(2, 1, 20)
    losses = np.stack([up, down, np.where(up > 1.5, np.nan, up), np.where(up > 1.9, np.inf, 0)], axis=1)
    assert training.diverged(losses).tolist() == [True, False, True, True]


def test_divergence_is_counted_from_the_largest_rate() -> None:
    bad = np.asarray([[True, False, False, True], [False, False, True, True], [True, True, True, False]]).T
    assert divergence(bad).tolist() == [3, 2, 4]
    assert divergence(~np.zeros((3, 1), bool)).tolist() == [0]


def test_the_best_row_has_the_smallest_median() -> None:
    assert training.best(np.asarray([[1, 9, 9], [5, 6, 2], [5, 5, 5], [inf, inf, 0]])) == 1


# --- training


@pytest.mark.parametrize(("rule", "other"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_each_model_is_trained_as_torch_trains_it_alone(rule: str, other: Any) -> None:
    target = torch.tensor([3.0, -1.0], dtype=torch.float64)
    rates = torch.tensor([0.01, 0.3], dtype=torch.float64)

    def loss(p: dict[str, torch.Tensor], step: int) -> torch.Tensor:
        return ((p["w"] - target) ** 2).sum(-1) * (step + 1)

    start = torch.ones(2, 2, dtype=torch.float64)
    params = {"w": start.clone(), "unused": start.clone()}
    losses = training.train(loss, params, rates, 4, rule)
    for model, rate in enumerate(rates.tolist()):
        alone = start[model].clone().requires_grad_()
        optimizer = other([alone], lr=rate)
        for step in range(4):
            optimizer.zero_grad()
            value = ((alone - target) ** 2).sum() * (step + 1)
            np.testing.assert_allclose(losses[step, model], value.item(), rtol=1e-6)  # losses are kept in float32
            value.backward()
            optimizer.step()
        torch.testing.assert_close(params["w"][model], alone.detach())
    assert torch.equal(params["unused"], start)


def test_a_model_that_diverges_leaves_the_others_alone() -> None:
    arguments: dict[str, Any] = {"steps": 12, "batch": 2, "hidden": 4, "rule": "sgd"}
    task = copying()
    both = training.sweep(task, "lstm", layers.layer_norm, [0, 1], [0.1, 1e30], **arguments)
    same = training.sweep(task, "lstm", layers.layer_norm, [0, 1], [0.1, 0.1], **arguments)
    assert not np.isfinite(both[-1, 1]).all()
    np.testing.assert_array_equal(both[:, 0], same[:, 0])
    np.testing.assert_array_equal(same[:, 1], same[:, 0])


def test_batch_norm_is_that_of_torch() -> None:
    ours, theirs = layers.BatchNorm(), torch.nn.BatchNorm1d(3, eps=layers.EPS).double()
    g = torch.Generator().manual_seed(1)
    gain, bias = torch.ones(1, 1, 3, dtype=torch.float64), torch.zeros(1, 1, 3, dtype=torch.float64)
    for training_now in (True, True, False):
        ours.training = training_now
        theirs.train(training_now)
        x = torch.randn(4, 3, generator=g, dtype=torch.float64)
        torch.testing.assert_close(ours(x[None], gain, bias, "a")[0], theirs(x).detach())


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_without_norm_the_cells_are_those_of_torch(kind: str) -> None:
    g = layers.generator(2)
    p = {name: value.double()[None] for name, value in recurrent.start(kind, g, 3, 4, 2).items()}
    p = {name: torch.randn(v.shape, generator=g, dtype=v.dtype) if "bias" in name else v for name, v in p.items()}
    x = torch.randn(5, 2, 3, generator=g, dtype=torch.float64)
    theirs = getattr(torch.nn, kind.upper())(3, 4).double()
    zero = torch.zeros(4, dtype=torch.float64)
    with torch.no_grad():
        wx, wh, bx, bh = p["wx"][0].T, p["wh"][0].T, p.get("x_bias", 0 * p["bias"])[0, 0], p["bias"][0, 0]
        if kind == "lstm":  # f, i, o, g here; i, f, g, o there
            order = torch.arange(16).reshape(4, 4)[[1, 0, 3, 2]].flatten()
            wx, wh, bx, bh = wx[order], wh[order], bx[order], bh[order]
        if kind == "gru":  # z, r, n here, with z the share of the new; r, 1 - z, n there
            order, sign = torch.arange(8).reshape(2, 4)[[1, 0]].flatten(), torch.ones(8, 1).double()
            sign[4:] = -1
            wx = torch.cat([wx[order] * sign, p["w"][0].T])
            wh = torch.cat([wh[order] * sign, p["u"][0].T])
            bx = torch.cat([bx[order] * sign[:, 0], p["w_bias"][0, 0]])
            bh = torch.cat([bh[order] * sign[:, 0], p["u_bias"][0, 0]])
        for name, value in (("weight_ih_l0", wx), ("weight_hh_l0", wh), ("bias_ih_l0", bx), ("bias_hh_l0", bh)):
            getattr(theirs, name).copy_(value)
        ours = torch.stack(recurrent.CELLS[kind](p, x[:, None], layers.without))[:, 0]
        torch.testing.assert_close(ours, theirs(x)[0])
        assert not torch.equal(ours[-1, 0], zero)


def test_layer_norm_stands_where_the_paper_puts_it() -> None:
    seen: dict[str, set[int]] = {}

    def note(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, place: str) -> torch.Tensor:
        seen.setdefault(place, set()).add(x.shape[-1])
        return layers.layer_norm(x, gain, bias, place)

    found = {}
    for kind, cell in recurrent.CELLS.items():
        seen.clear()
        cell(layers.stack([recurrent.start(kind, layers.generator(0), 3, 4, 2)]), torch.ones(2, 1, 1, 3), note)
        found[kind] = dict(seen)
    assert found == {
        "rnn": {"h": {4}},
        "lstm": {"x": {16}, "h": {16}, "cell": {4}},
        "gru": {"x": {8}, "h": {8}, "w": {4}, "u": {4}},
    }


# --- data


def test_the_tasks_ask_for_what_they_say() -> None:
    g = np.random.default_rng(0)
    x, word = copying().draw(g, 5)
    assert (x.shape, word.shape) == ((9, 5, 5), (3, 5))
    assert x[:3, :, :4].argmax(-1).tolist() == word.tolist()
    x, total = adding().draw(g, 4)
    assert (x[..., 1].sum(0) == 2).all()
    np.testing.assert_array_equal(total[0], [x[x[:, n, 1] == 1, n, 0].sum() for n in range(4)])
    data = pictures()
    x, label = rows_of(data).draw(g, 3)
    whole = x.swapaxes(0, 1).reshape(3, 64)
    assert [data.y[(data.x == picture).all(1).argmax()] for picture in whole] == label[0].tolist()
    assert copying().chance == log(4)


def test_digits_come_with_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    data = digits()
    assert (data.x.shape, data.test_x.shape, data.x.dtype) == ((1297, 64), (500, 64), np.float32)
    assert (data.x.min(), data.x.max()) == (0, 1)
    assert sorted(set(data.y)) == list(range(10))
