"""Parameters are matched by name; what cannot be matched is a sentence that says how to declare it."""

from __future__ import annotations

import functools
import inspect

import pytest

from lnverify.adapters.signature import affine_modes, axis, fixed_eps, match, match_pair, parameters
from lnverify.errors import SignatureError


def matched(function, **kwargs):
    return match(parameters(function), "f", **kwargs)


def names(signature):
    return {p.theirs: p.ours for p in signature.parameters}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, weight, bias, eps: None, ["x", "weight", "bias", "eps"]),
        (lambda input, gamma, beta, epsilon: None, ["x", "weight", "bias", "eps"]),
        (lambda hidden_states, scale, offset, variance_epsilon: None, ["x", "weight", "bias", "eps"]),
        (lambda a, g, b, eps: None, ["x", "weight", "bias", "eps"]),
        (lambda X, W, B, eps: None, ["x", "weight", "bias", "eps"]),
        (lambda inp, w, shift, eps: None, ["x", "weight", "bias", "eps"]),
        (lambda x, dim, eps: None, ["x", "axis", "eps"]),
        (lambda x, normalized_shape, eps: None, ["x", "normalized_shape", "eps"]),
    ],
)
def test_usual_synonyms_are_matched(function, expected):
    assert list(names(matched(function)).values()) == expected


def test_arguments_arrive_under_their_names_whatever_their_order():
    def fn(eps, beta, *, gamma, x):
        return x, gamma, beta, eps

    values = {"x": 1, "weight": 2, "bias": 3, "eps": 4}
    assert matched(fn).call(fn, values) == (1, 2, 3, 4)


def test_an_absent_array_stays_at_its_default_or_is_none_without_one():
    def fn(x, weight=7, bias=None, /, eps=0.5):
        return x, weight, bias, eps

    def required(x, weight):
        return x, weight

    assert matched(fn).call(fn, {"x": 1}) == (1, 7, None, 0.5)
    assert matched(required).call(required, {"x": 1}) == (1, None)


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (lambda x, eps: None, 1),
        (lambda x, axis, eps: None, None),
        (lambda x, normalized_shape, eps: None, None),
    ],
)
def test_a_function_without_shape_or_axis_normalises_one_dimension(function, dims):
    assert matched(function).max_dims == dims


def test_an_axis_that_is_an_int_allows_one_dimension():
    def fn(x, axis: int = -1):
        return x

    assert matched(fn).max_dims == 1


def test_axis_is_an_int_for_one_dimension_else_a_tuple():
    assert axis((8,)) == -1
    assert axis((2, 3, 4)) == (-3, -2, -1)


def test_a_required_parameter_that_is_unknown_is_named_with_the_way_to_declare_it():
    with pytest.raises(SignatureError) as caught:
        matched(lambda x, g1, eps: None)
    text = str(caught.value)
    assert "'g1'" in text
    assert "?map=g1:weight" in text
    assert "arguments={'g1': 'weight'}" in text
    assert "gamma" in text


def test_a_declared_name_is_matched():
    def fn(data, g1, eps):
        return data, g1, eps

    signature = matched(fn, arguments={"g1": "weight"})
    assert signature.call(fn, {"x": 1, "weight": 2, "eps": 3}) == (1, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"nope": "weight"}, "no parameter 'nope'"), ({"x": "gain"}, "'gain', which is none of x, weight")],
)
def test_a_wrong_declaration_is_an_error(arguments, said):
    with pytest.raises(SignatureError, match=said):
        matched(lambda x, eps: None, arguments=arguments)


def test_a_function_without_x_is_an_error():
    with pytest.raises(SignatureError, match="no parameter for 'x'"):
        matched(lambda *args, eps=1.0: None)


def test_two_parameters_alike_are_an_error_unless_one_has_a_default():
    with pytest.raises(SignatureError, match="two parameters look like 'x'"):
        matched(lambda x, input: None)
    assert names(matched(lambda x, input=None: None)) == {"x": "x"}


def test_keywords_can_be_declared_where_the_function_takes_any():
    def fn(**kwargs):
        return kwargs

    signature = matched(fn, arguments={"inp": "x", "e": "eps"})
    assert signature.call(fn, {"x": 1, "eps": 2}) == {"inp": 1, "e": 2}


def test_without_names_the_advice_is_a_wrapper():
    with pytest.raises(SignatureError, match="wrap it in a function"):
        match(None, "f")


def test_a_partial_keeps_what_is_already_given():
    def fn(x, mode, eps):
        return x, mode, eps

    half = functools.partial(fn, mode="fast")
    assert matched(half).call(half, {"x": 1, "eps": 2}) == (1, "fast", 2)


def test_missing_eps_must_be_declared():
    with pytest.raises(SignatureError, match=r"\?eps=1e-6"):
        fixed_eps(False, None, "f")
    assert fixed_eps(False, 1e-6, "f") == 1e-6
    assert fixed_eps(True, None, "f") is None


def test_affine_modes_follow_from_the_parameters():
    assert affine_modes(True, True) == ("both", "weight", "bias", "none")
    assert affine_modes(True, False) == ("weight", "none")
    assert affine_modes(False, False) == ("none",)


def test_a_backward_is_matched_by_its_own_names():
    def forward(x, g1, eps):
        return x

    def backward(g, grad_output, gain, saved, mean, rstd):
        return grad_output

    forward_match, backward_match = match_pair(
        parameters(forward), parameters(backward), "f", {"g1": "weight", "gain": "weight", "g": "x"}
    )
    assert names(forward_match) == {"x": "x", "g1": "weight", "eps": "eps"}
    assert list(names(backward_match).values()) == ["x", "dy", "weight", "saved", "mean", "rstd"]


def test_source_text_of_a_call():
    def fn(x, /, gamma=None, eps=1e-5):
        return x

    places = {"x": "{x}", "weight": "{weight}", "bias": "{bias}", "eps": "{eps}"}
    assert matched(fn).text("m.fn", places) == "m.fn({x}, gamma={weight}, eps={eps})"
    assert inspect.signature(fn).parameters["gamma"].default is None
