"""Transcript: the requests of one law on one case and the subject's answers, to judge again without the subject.

Recording wraps a subject's `run`; playing back answers each request by the SHA-256 of all that it asks, in the
order in which equal requests were answered. Nobody's code runs in a playback.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lnverify.errors import UsageError
from lnverify.floats import FloatArray
from lnverify.protocol import Request, Response
from lnverify.subject import Subject

LARGEST = 1 << 14  # elements of all answers together; beyond it a report would grow too large


def request_key(request: Request) -> str:
    """SHA-256 of everything that a request asks."""
    plain: dict[str, Any] = {
        name: getattr(request, name)
        for name in ("operation", "normalized_shape", "wanted", "requires_grad", "train", "grad_mode",
                     "create_graph", "module_action", "history", "repeat")
    }  # fmt: skip
    plain["eps"] = float(request.eps).hex()
    plain["layouts"] = dict(sorted(request.layouts.items()))
    plain["arrays"] = {name: array.sha256 for name, array in sorted(request.arrays.items())}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def response_to_json(response: Response) -> dict[str, Any]:
    """A Response as plain data, bit for bit."""
    return {
        "arrays": {name: array.to_json() for name, array in sorted(response.arrays.items())},
        "refusal": response.refusal,
        "phase": response.phase,
        "changed": list(response.changed),
        "aliases": list(response.aliases),
        "warnings": list(response.warnings),
        "printed": response.printed,
    }


def response_from_json(data: Mapping[str, Any]) -> Response:
    """Inverse of response_to_json."""
    return Response(
        arrays={name: FloatArray.from_json(a) for name, a in data["arrays"].items()},
        refusal=data["refusal"],
        phase=data["phase"],
        changed=tuple(data["changed"]),
        aliases=tuple(data["aliases"]),
        warnings=tuple(data["warnings"]),
        printed=data.get("printed", ""),
    )


class Recorder:
    """Records what a subject is asked and answers."""

    def __init__(self, subject: Subject) -> None:
        """`self.subject` is the recorded one; `entries` fills as it runs."""
        self._run = subject.run
        self._entries: list[tuple[str, Response]] = []
        self.subject = replace(subject, run=self._record)

    def _record(self, request: Request) -> Response:
        response = self._run(request)
        self._entries.append((request_key(request), response))
        return response

    def entries(self) -> tuple[dict[str, Any], ...]:
        """The transcript as plain data; empty if it holds more than LARGEST elements."""
        size = sum(a.size for _, r in self._entries for a in r.arrays.values())
        if size > LARGEST:
            return ()
        return tuple({"request": key, "response": response_to_json(r)} for key, r in self._entries)


def playback(subject: Subject, transcript: Sequence[Mapping[str, Any]]) -> Subject:
    """A subject that answers from a transcript. Its `run` raises UsageError for a request that is not in it."""
    answers: dict[str, list[Mapping[str, Any]]] = {}
    for entry in transcript:
        answers.setdefault(entry["request"], []).append(entry["response"])

    def run(request: Request) -> Response:
        found = answers.get(request_key(request))
        if not found:
            raise UsageError("the report does not hold the answer to a request of this law: replay it with the target.")
        return response_from_json(found.pop(0) if len(found) > 1 else found[0])

    return replace(subject, run=run)
