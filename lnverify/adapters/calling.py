"""Call a subject so that nothing escapes: exceptions become refusals, warnings and prints are caught."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lnverify.floats import FloatArray
from lnverify.protocol import Response

SAID = 400  # characters kept of what a subject prints


class NoPlaceError(Exception):
    """A module of these sizes lacks a parameter that others have: the case cannot be asked, and accuses nobody."""


@dataclass
class Attempt:
    """What one call has come to so far. phase: where it stands, for a refusal."""

    phase: str = "forward"
    arrays: dict[str, FloatArray] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)


def first_line(error: BaseException) -> str:
    """'TypeError: message', the first line of the message only."""
    message = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallow warnings and prints, of a constructor say, that are no part of an answer."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def attempt(body: Callable[[Attempt], None]) -> Response:
    """Run a body that fills in an Attempt; an interrupt by the user is the only exception that passes."""
    state = Attempt()
    refusal = None
    said = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(said):
        warnings.simplefilter("always")
        try:
            body(state)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, and what a subject derives from BaseException
            refusal = first_line(error)
            if isinstance(error, NoPlaceError):
                state.phase = "placement"
    texts = tuple(dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in caught))
    if refusal is not None:
        return Response(refusal=refusal, phase=state.phase, changed=tuple(state.changed), warnings=texts,
                        printed=said.getvalue()[-SAID:])  # fmt: skip
    return Response(
        arrays=state.arrays,
        phase=state.phase,
        changed=tuple(state.changed),
        aliases=tuple(state.aliases),
        warnings=texts,
        printed=said.getvalue()[-SAID:],
    )


def split(returned: Any, returns: tuple[str, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What a forward returned, as y, everything else in its order, and all that has a declared name.

    A mapping is by name. Raises TypeError where fewer arrays came than were declared.
    """
    if isinstance(returned, Mapping) and set(returns) <= set(returned):
        returned = tuple(returned[name] for name in returns)
    parts = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if len(parts) < len(returns):
        raise TypeError(f"the subject returned {len(parts)} of the declared {', '.join(returns)}")
    named = dict(zip(returns, parts, strict=False))
    place = returns.index("y") if "y" in returns else 0
    return parts[place], parts[:place] + parts[place + 1 :], named


def saved_values(extra: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """What a separate backward may ask for by name: `saved`, and mean and rstd where these are known."""
    values: dict[str, Any] = {"saved": extra}
    if "mean" in named or "rstd" in named:
        values.update({name: named[name] for name in ("mean", "rstd") if name in named})
    elif len(extra) == 2:
        values["mean"], values["rstd"] = extra
    return values


# Histories of what happens between forward and backward, or in the backward itself.
WITHIN = ("changed", "changed_x", "changed_weight", "changed_bias", "output", "handed", "state")


def refuse_within(history: str) -> None:
    """Raises TypeError: a separate backward is given its arguments, what overwrites them is the caller's doing."""
    if history in WITHIN:
        raise TypeError(f"a separate backward gets what it is given: the history {history!r} does not apply to it")


def named_gradients(returned: Any, arguments: tuple[str, ...], present: tuple[str, ...]) -> dict[str, Any]:
    """What a separate backward returned, by our names ('dx', 'dweight', ...); None is left out.

    A tuple stands for every argument of the operation, or for those that were present. Raises TypeError
    where it is neither.
    """
    if isinstance(returned, Mapping):
        unknown = [key for key in returned if key not in {f"d{name}" for name in arguments}]
        if unknown:
            raise TypeError(f"the backward returned {unknown[0]!r}, one of d{', d'.join(arguments)} is expected")
        return {key: value for key, value in returned.items() if value is not None}
    if not isinstance(returned, tuple | list):
        returned = (returned,)
    if len(returned) == len(present):
        arguments = present
    elif len(returned) > len(arguments):
        raise TypeError(f"the backward returned {len(returned)} arrays for {', '.join(arguments)}")
    return {f"d{name}": value for name, value in zip(arguments, returned, strict=False) if value is not None}
