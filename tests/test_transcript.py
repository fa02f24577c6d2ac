"""Transcripts: what a subject answered is judged again bit for bit, and nobody's code runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lnverify.errors import UsageError
from lnverify.floats import FloatArray
from lnverify.protocol import Request, Response
from lnverify.subject import Capabilities, Subject
from lnverify.transcript import LARGEST, Recorder, playback, request_key, response_from_json, response_to_json


def request(value: float = 1.0, size: int = 3) -> Request:
    x = FloatArray.of(np.full((1, size), value), "bfloat16")
    return Request("layer_norm", {"x": x}, (size,), 1e-5)


def counting() -> tuple[Subject, list[Request]]:
    asked: list[Request] = []

    def run(given: Request) -> Response:
        asked.append(given)
        y = FloatArray.of(given.arrays["x"].values * len(asked), "bfloat16")
        return Response({"y": y}, warnings=(f"call {len(asked)}",))

    return Subject("counting", Capabilities(), run), asked


def test_answers_come_back_in_their_order_without_the_subject() -> None:
    subject, asked = counting()
    recorder = Recorder(subject)
    answers = [recorder.subject.run(request(v)) for v in (1.0, 2.0, 1.0)]
    played = playback(subject, recorder.entries())
    again = [played.run(request(v)) for v in (1.0, 2.0, 1.0)]
    assert len(asked) == 3
    assert [a.arrays["y"].values.ravel()[0] for a in again] == [1.0, 4.0, 3.0]
    for one, two in zip(answers, again, strict=True):
        assert one.arrays["y"].same_bits(two.arrays["y"])
        assert one.warnings == two.warnings


def test_a_request_that_was_never_made_is_refused_in_a_sentence() -> None:
    subject, _ = counting()
    with pytest.raises(UsageError, match="replay it with the target"):
        playback(subject, []).run(request())


def test_the_key_sees_everything_that_is_asked() -> None:
    plain = request()
    others = [
        request(2.0),
        replace(plain, eps=1e-6),
        replace(plain, wanted=("y", "dx")),
        replace(plain, layouts={"x": "strided"}),
        replace(plain, train=False),
        replace(plain, grad_mode="no_grad"),
        replace(plain, module_action="deepcopy"),
        replace(plain, requires_grad=("x",)),
    ]
    keys = {request_key(r) for r in (plain, *others)}
    assert len(keys) == len(others) + 1
    assert request_key(plain) == request_key(request())


def test_large_answers_are_not_stored() -> None:
    subject, _ = counting()
    recorder = Recorder(subject)
    recorder.subject.run(request(1.0, LARGEST + 1))
    assert recorder.entries() == ()


def test_a_refusal_survives_the_round_trip() -> None:
    response = Response(refusal="TypeError: no", phase="backward", changed=("x",), aliases=("y",))
    assert response_from_json(response_to_json(response)) == response
