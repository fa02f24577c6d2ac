"""Changes in series of which the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lnverify.history.changes import ALPHA, FACTOR, SHORTEST, Change, changes, enough, jumps, search, steps
from lnverify.history.wording import change_lines, what
from tests.history_samples import KEY, commit, noisy, number_of, series

VERDICT = replace(KEY, metric="verdict", name="LN101 forward-accuracy [float32, cpu]")


def named(seed: int, step: float, at: int, **given: float) -> list[Change]:
    return changes(series(noisy(seed, step, at, **given)), ALPHA)


@pytest.mark.parametrize("after", [3, 10, 30])
def test_a_step_of_five_percent_is_named_within_two_commits_in_18_of_20_histories(after: int) -> None:
    at = 60 - after
    found = [named(seed, 0.05, at) for seed in range(20)]
    hits = [any(abs(at - number_of(c.at.commit)) <= 2 and c.worse for c in changes) for changes in found]
    assert sum(hits) >= 18
    # And nothing else is, but for what alpha leaves in 2 * 20 stretches: more than two with a probability of 0.7 %.
    assert sum(len(changes) for changes in found) <= sum(hits) + 2


@pytest.mark.parametrize("outliers", [0.0, 0.03])
def test_of_20_flat_histories_one_at_most_is_accused(outliers: float) -> None:
    assert sum(bool(named(100 + seed, 0.0, 60, outliers=outliers)) for seed in range(20)) <= 1


def test_a_gain_is_no_regression() -> None:
    (change,) = named(1, -0.1, 30)
    assert not change.worse
    assert what(change).endswith(f"% less, p = {change.p:.2g}")


def test_a_step_that_is_undone_is_two_changes() -> None:
    values = noisy(4, 0.1, 20) * np.where(np.arange(60) >= 40, 1 / 1.1, 1)
    first, second = changes(series(values), ALPHA)
    assert (first.worse, second.worse) == (True, False)
    assert (number_of(first.at.commit), number_of(second.at.commit)) == (20, 40)
    assert (first.commits, second.commits) == (20, 20)
    assert first.new == pytest.approx(float(np.exp(np.log(values[20:40]).mean())), rel=1e-12)


def test_one_outlier_is_no_step() -> None:
    values = np.ones(60)
    values[-1] = 1.5
    assert steps(np.log(values), ALPHA) == {}


def test_two_modes_that_come_in_any_order_are_no_step() -> None:
    values = np.where(np.random.default_rng(2).random(60) < 0.5, 0.0, 0.2)
    assert steps(values, ALPHA) == {}


def test_equal_values_have_no_step() -> None:
    assert steps(np.zeros(60), ALPHA) == {}
    assert steps(np.full(60, 0.1), ALPHA) == {}


def test_the_same_series_has_the_same_p() -> None:
    values = np.log(noisy(7, 0.05, 30))
    assert steps(values, ALPHA, seed=3) == steps(values, ALPHA, seed=3)


def test_p_counts_the_orders_that_do_as_well() -> None:
    """Of the 66 orders of 2 ones and 10 zeros two have the ones at an end. No level below 2 / 66 is reached, and at
    0.06 R is binomial: of 10 / 0.06 - 1 = 166 orders 5.0 are to be expected, with a standard deviation of 2.2."""
    values = np.repeat([0.0, 1.0], [10, 2])
    assert steps(values, 0.015) == {}
    ((at, p),) = steps(values, 0.06).items()
    assert at == 10
    assert abs(p * 167 - 1 - 166 * 2 / 66) <= 4 * 2.2


@pytest.mark.parametrize(("commits", "level", "able"), [(3, 0.9, False), (8, 0.01, False), (12, 0.01, True)])
def test_how_many_commits_can_tell(commits: int, level: float, able: bool) -> None:
    assert enough(commits, level) == able
    best = np.repeat([0.0, 1.0], [commits // 2, commits - commits // 2])
    assert bool(steps(best, level)) == able


def test_alpha_is_shared_by_all_series_of_times() -> None:
    """Of 12 values one order in 462 splits the six low ones from the six high ones: rare for one series, not for 10."""
    clear = series([1.0] * 6 + [2.0] * 6)
    assert search([clear], 0.01).changes
    flat = [series([1.0] * 12, replace(KEY, name=f"b{n}")) for n in range(9)]
    found = search([clear, *flat], 0.01)
    assert (found.changes, found.timed, found.short) == ((), 10, 10)


def test_series_of_too_few_commits_are_counted() -> None:
    assert search([series([1.0] * 9)], 0.01).short == 1
    assert search([series([1.0] * 10)], 0.01).short == 0


def test_errors_jump_by_a_factor_from_their_level() -> None:
    assert jumps([]) == []
    assert jumps([0.1, 0.1 * FACTOR, 0.1 / FACTOR]) == []
    assert jumps([0.1, 0.1 * FACTOR * 1.001]) == [1]
    assert jumps([0.1, 0.04, 0.04]) == [1]
    # Many small steps add up: 1.5^2 is above the factor.
    assert jumps([0.1, 0.15, 0.225, 0.225]) == [2]


def test_a_jump_of_the_error_names_the_commit_at_once() -> None:
    (change,) = changes(series([0.3, 0.3, 3.0], replace(KEY, metric="error")), ALPHA)
    assert (change.before.commit, change.at.commit, change.worse) == (commit(1), commit(2), True)
    assert what(change) == "0.3 to 3, 10 times"


def test_verdicts_are_compared_with_their_neighbours() -> None:
    worse, better = changes(series(["holds", "holds", "violated", "violated", "holds"], VERDICT), ALPHA)
    assert (worse.worse, worse.was, worse.now, worse.commits, worse.at.commit) == (
        True, "holds", "violated", 2, commit(2)
    )  # fmt: skip
    assert (better.worse, better.commits) == (False, 1)
    assert changes(series(["holds"] * 3, VERDICT), ALPHA) == []


def test_changes_at_one_commit_stand_under_one_heading() -> None:
    times = series(noisy(3, 0.1, 30))
    verdicts = series(["holds"] * 30 + ["violated"] * 30, VERDICT)
    found = search([times, verdicts])
    heading, first, second = change_lines(found.changes)
    assert heading == f"{commit(30).short}  Change 30  (after {commit(29).short}; machine {'a' * 12})"
    assert first.startswith("  worse  LN101 forward-accuracy [float32, cpu] of ./kernels.py:ln: holds to violated; 30")
    assert second.startswith("  slower  forward 32x768 [float32, cpu] of ./kernels.py:ln: ")


def test_no_step_leaves_fewer_commits_than_the_shortest() -> None:
    values = np.concatenate([np.zeros(58), np.full(SHORTEST, 1.0)])
    assert list(steps(values, ALPHA)) == [58]
