"""What calls of recurrent cells have in common in every framework: orders of gates, states, nested results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lnverify.errors import UsageError
from lnverify.operation import Operation
from lnverify.subject import Declaration


def order(known: Operation, options: Declaration) -> str:
    """The declared order of the gates. Raises UsageError for other letters than those of the operation."""
    ours = known.cell.gates if known.cell else ""
    declared = options.gates or ours
    if sorted(declared) != sorted(ours):
        write = f"write the letters {ours!r} in the order in which the gates are stacked"
        raise UsageError(f"gates={declared} does not fit {known.name}: {write if ours else 'it has none'}.")
    return declared


def reordered(known: Operation, name: str, array: Any, declared: str) -> Any:
    """A stacked argument with its gates in the declared order; anything else as it is."""
    cell = known.cell
    if cell is None or declared == cell.gates or not cell.axes.get(name, "").startswith("q"):
        return array
    blocks = array.reshape(len(declared), -1, *array.shape[1:])
    return blocks[[cell.gates.index(gate) for gate in declared]].reshape(array.shape)


def arguments(known: Operation, arrays: Mapping[str, Any], declared: str) -> dict[str, Any]:
    """The arguments as the called one has them, and all states that are present as one, `state`."""
    values = {name: reordered(known, name, array, declared) for name, array in arrays.items()}
    states = [arrays[name] for name in known.states if name in arrays]
    if states:
        values["state"] = states[0] if len(states) == 1 else tuple(states)
    return values


def results(known: Operation, returned: Any) -> list[Any]:
    """What was returned, no longer nested: the new states, or an output before them. Raises TypeError for more."""
    found, count = list(_flat(returned)), len(known.outputs)
    if not count <= len(found) <= count + 1:
        names = ", ".join(known.outputs)
        raise TypeError(f"{len(found)} arrays are returned for {names}: return these, or an output before them")
    return found


def _flat(returned: Any) -> Iterator[Any]:
    if isinstance(returned, tuple | list):
        for part in returned:
            yield from _flat(part)
    else:
        yield returned
