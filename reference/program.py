"""Straight-line index programs, and their differentiation by one mechanical rule.

A `Program` is a list of statements over named tensors. `Let(v[I], e)` gives a name to a sum of
terms; each term is an ordinary SymPy scalar expression in `Indexed` tensors, optionally under one
`Sum` over the indices R. `Call(outs, program, args)` uses another program as a building block.

The whole of differentiation is this. For every place u[J] at which a tensor stands in a term,
let d be the scalar derivative of the term by what stands there. Then

    forward   v_dot[I] += Sum over R             of  d * u_dot[J]
    reverse   u_bar[J] += Sum over (I + R) - J   of  v_bar[I] * d

Summing over the indices that u[J] lacks *is* the contraction with the Kronecker deltas, so no delta
is ever written down and none has to be simplified. `jvp(p)` and `vjp(p)` are programs again, hence
`vjp(vjp(p))` is double backward and `jvp(vjp(p))` a Hessian-vector product, with no further rule.

Rules of the file:

1. A tensor's *home* is the index tuple at which it is an input or the target of a statement.
2. An index is free or bound in a statement, never both: name the inner sum first.
3. A `Sum` stands only at the top of a term, never inside a function or another `Sum`.
4. Every pass walks the statements in order or sorts by name: no result depends on a hash.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property

from sympy import Add, Dummy, Expr, Idx, Indexed, Integer, Sum
from tensors import ProgramError, extent, indices, name_of, places, renamed, terms, total


@dataclass(frozen=True)
class Let:
    """`target[I] = value`: value is a sum of terms, each one `Sum` of a pointwise expression."""

    target: Indexed
    value: Expr

    def __post_init__(self) -> None:
        """Refuse a statement that breaks rule 2 or 3."""
        free = set(self.target.indices)
        for body, over in terms(self.value):
            if free & set(over):
                raise ProgramError(f"an index of {self.target} is bound in {self.value}: name the sum first")
            if stray := indices(body) - free - set(over):
                raise ProgramError(f"{self.target} does not have the index {min(map(str, stray))}")

    @property
    def targets(self) -> tuple[Indexed, ...]:
        """What the statement defines."""
        return (self.target,)

    @cached_property
    def reads(self) -> list[str]:
        """The names the statement uses."""
        return [name_of(place) for place in places(self.value)]


@dataclass(frozen=True)
class Call:
    """`outs = program(args)`: one argument for each input, one out for each output, whole tensors."""

    outs: tuple[Indexed, ...]
    program: Program
    args: tuple[Indexed, ...]

    def __post_init__(self) -> None:
        """Refuse a call whose argument or output list does not match the callee's."""
        for word, given, wanted in (
            ("arguments", self.args, self.program.inputs),
            ("outputs", self.outs, self.program.outputs),
        ):
            if [len(t.indices) for t in given] != [len(t.indices) for t in wanted]:
                raise ProgramError(f"{word} {given} do not match {wanted} of {self.program.name}")

    @property
    def targets(self) -> tuple[Indexed, ...]:
        """What the statement defines."""
        return self.outs

    @cached_property
    def reads(self) -> list[str]:
        """The names the statement uses."""
        return [name_of(arg) for arg in self.args]


@dataclass(frozen=True, eq=False)  # hashed by identity, so that jvp and vjp can be cached
class Program:
    """Inputs, statements and outputs; the inputs named in `fixed` are not differentiated."""

    name: str
    inputs: tuple[Indexed, ...]
    body: tuple[Let | Call, ...]
    outputs: tuple[Indexed, ...]
    fixed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse a name that is used before it is defined, or defined twice."""
        known = [name_of(tensor) for tensor in self.inputs]
        for statement in self.body:
            if unknown := [name for name in statement.reads if name not in known]:
                raise ProgramError(f"{self.name} uses {unknown[0]} before it is defined")
            known += [name_of(tensor) for tensor in statement.targets]
        if len(known) != len(set(known)):
            raise ProgramError(f"{self.name} defines {max(known, key=known.count)} twice")
        defined = known[len(self.inputs) :]
        if bad := [tensor for tensor in self.outputs if name_of(tensor) not in defined]:
            raise ProgramError(f"output {bad[0]} of {self.name} is not defined by a statement")

    @cached_property
    def homes(self) -> dict[str, Indexed]:
        """Every tensor of the program at its home, by name."""
        targets = [tensor for statement in self.body for tensor in statement.targets]
        return {name_of(tensor): tensor for tensor in (*self.inputs, *targets)}

    @cached_property
    def active(self) -> set[str]:
        """The names that depend on an input which is differentiated."""
        active = {name_of(tensor) for tensor in self.inputs} - self.fixed
        for statement in self.body:
            if active & set(statement.reads):
                active |= {name_of(tensor) for tensor in statement.targets}
        return active

    def returning(self, *names: str) -> Program:
        """The same statements with other outputs."""
        return Program(self.name, self.inputs, self.body, tuple(self.homes[name] for name in names), self.fixed)

    def suffix(self, word: str) -> str:
        """`_bar`, or `_bar2`, ... when the program is itself a reverse mode: the first that is free."""
        names, suffix, level = self.homes.keys(), word, 1
        while any(name + suffix in names for name in names):
            level += 1
            suffix = f"{word}{level}"
        return suffix


def derivative(body: Expr, place: Indexed) -> Expr:
    """The scalar derivative of `body` by what stands at `place`, all else held fixed."""
    hole = Dummy()
    return body.xreplace({place: hole}).diff(hole).xreplace({hole: place})


def contribution(bar: Indexed, body: Expr, over: tuple[Idx, ...], place: Indexed, home: Indexed) -> Expr:
    """The reverse rule for one place: what it adds to the adjoint of the tensor that stands there."""
    free = place.indices
    if len(set(free)) < len(free) or not all(isinstance(index, Idx) for index in free):
        raise ProgramError(f"{place} is not a place of distinct indices")
    summed = {*bar.indices, *over} - set(free)
    # The tensor may stand elsewhere than at home: one simultaneous renaming, completed to a
    # permutation so that an index which is displaced moves too. Two renamings would capture.
    swap = dict(zip(free, home.indices, strict=True))
    displaced = [index for index in home.indices if index not in free]
    vacant = [index for index in free if index not in home.indices]
    swap |= dict(zip(displaced, vacant, strict=True))
    if any(extent(old) != extent(new) for old, new in swap.items()):
        raise ProgramError(f"{place} does not have the extents of {home}")
    moved = (bar * derivative(body, place)).xreplace(swap)
    return total(moved, [swap.get(index, index) for index in summed])


def refuse_lost_derivative(program: Program, call: Call) -> None:
    """A callee that holds an input fixed must not be given something that is differentiated."""
    for arg, formal in zip(call.args, call.program.inputs, strict=True):
        if name_of(formal) in call.program.fixed and name_of(arg) in program.active:
            raise ProgramError(f"{call.program.name} holds {formal} fixed, but {arg} is differentiated")


@cache
def jvp(p: Program) -> Program:
    """Forward mode: the inputs of `p`, then a tangent for each that is not fixed; output tangents."""
    dot = p.suffix("_dot")
    body: list[Let | Call] = []
    dots = {
        name_of(tensor): renamed(tensor, name_of(tensor) + dot) for tensor in p.inputs if name_of(tensor) not in p.fixed
    }
    tangents = tuple(dots.values())

    def tangent(tensor: Indexed) -> Indexed:
        name = name_of(tensor)
        if name not in dots:
            dots[name] = renamed(p.homes[name], name + dot)
            body.append(Let(dots[name], Integer(0)))
        return dots[name]

    for statement in p.body:
        body.append(statement)
        if not p.active & set(statement.reads):
            continue
        if isinstance(statement, Call):
            refuse_lost_derivative(p, statement)
            callee = statement.program
            moving = [
                tangent(arg)
                for arg, formal in zip(statement.args, callee.inputs, strict=True)
                if name_of(formal) not in callee.fixed
            ]
            outs = tuple(renamed(out, name_of(out) + dot) for out in statement.outs)
            body.append(Call(outs, jvp(callee), (*statement.args, *moving)))
            dots |= {name_of(out): new for out, new in zip(statement.outs, outs, strict=True)}
        else:
            value = Add(
                *(
                    total(derivative(body_, place) * renamed(place, name_of(place) + dot), over)
                    for body_, over in terms(statement.value)
                    for place in places(body_)
                    if name_of(place) in p.active
                )
            )
            dots[name_of(statement.target)] = new = renamed(statement.target, name_of(statement.target) + dot)
            body.append(Let(new, value))
    outputs = tuple(tangent(out) for out in p.outputs)
    return tidy(Program(f"{p.name}_jvp", (*p.inputs, *tangents), tuple(body), outputs, p.fixed))


@cache
def vjp(p: Program) -> Program:
    """Reverse mode: the inputs of `p`, then a cotangent for each output; adjoints of the inputs.

    An input without influence still gets its adjoint, which is zero.
    """
    bar = p.suffix("_bar")
    body: list[Let | Call] = list(p.body)
    pile: defaultdict[str, list[Expr]] = defaultdict(list)
    cotangents = tuple(renamed(out, name_of(out) + bar) for out in p.outputs)
    for out, cotangent in zip(p.outputs, cotangents, strict=True):
        pile[name_of(out)].append(cotangent)

    def adjoint(tensor: Indexed) -> Indexed:
        # An output that is also read inside has a cotangent and a total adjoint: two names.
        name = name_of(tensor) + bar
        new = renamed(tensor, f"{name}_total" if tensor in p.outputs else name)
        body.append(Let(new, Add(*pile[name_of(tensor)])))
        return new

    for number, statement in enumerate(reversed(p.body)):
        if not any(pile[name_of(target)] for target in statement.targets):
            continue
        if not p.active & set(statement.reads):
            continue
        bars = tuple(adjoint(target) for target in statement.targets)
        if isinstance(statement, Call):
            refuse_lost_derivative(p, statement)
            callee, outs = statement.program, []
            for arg, formal in zip(statement.args, callee.inputs, strict=True):
                if name_of(formal) not in callee.fixed:
                    outs.append(renamed(arg, f"{name_of(arg)}{bar}_{number}_{len(outs)}"))
                    pile[name_of(arg)].append(outs[-1])
            body.append(Call(tuple(outs), vjp(callee), (*statement.args, *bars)))
        else:
            for body_, over in terms(statement.value):
                for place in places(body_):
                    if name_of(place) in p.active:
                        home = p.homes[name_of(place)]
                        pile[name_of(place)].append(contribution(bars[0], body_, over, place, home))
    outputs = tuple(adjoint(tensor) for tensor in p.inputs if name_of(tensor) not in p.fixed)
    return tidy(Program(f"{p.name}_vjp", (*p.inputs, *cotangents), tuple(body), outputs, p.fixed))


def tidy(p: Program) -> Program:
    """The same program with named values reused, copies removed and dead statements dropped."""
    copies: dict[str, str] = {}
    named: list[tuple[Let, set[Indexed]]] = []
    body: list[Let | Call] = []

    def current(place: Indexed) -> Indexed:
        # By name, not by place: a copy of x is a copy of x wherever it stands.
        return renamed(place, copies.get(name_of(place), name_of(place)))

    def reuse(value: Expr) -> Expr:
        atoms = value.atoms(Indexed)
        for let, inside in named:
            if inside <= atoms:
                # `subs` and not `xreplace`: it sees that (v + eps)**(-3/2) is r**3.
                value = value.subs(let.value, let.target)
                atoms = value.atoms(Indexed)
        return value

    for statement in p.body:
        if isinstance(statement, Call):
            body.append(Call(statement.outs, statement.program, tuple(map(current, statement.args))))
            continue
        target = statement.target
        value = Add(
            *(
                # Body by body: `subs` on a Sum does not look at what contains the bound index.
                total(reuse(body_.xreplace({place: current(place) for place in places(body_)})), over)
                for body_, over in terms(statement.value)
            )
        )
        twin = [let.target for let in body if isinstance(let, Let) and let.value == value and value != 0]
        value = next((tensor for tensor in twin if tensor.indices == target.indices), value)
        if isinstance(value, Indexed) and value.indices == target.indices and target not in p.outputs:
            copies[name_of(target)] = name_of(value)
            continue
        body.append(Let(target, value))
        # A definition with a broadcast index does not determine its own indices: not reusable.
        if not (value.is_Atom or value.has(Sum) or value.is_Indexed) and indices(value) == set(target.indices):
            named.append((body[-1], value.atoms(Indexed)))
    needed = {name_of(tensor) for tensor in p.outputs}
    alive: list[Let | Call] = []
    for statement in reversed(body):
        if needed & {name_of(tensor) for tensor in statement.targets}:
            alive.insert(0, statement)
            needed |= set(statement.reads)
    return Program(p.name, p.inputs, tuple(alive), p.outputs, p.fixed)


def alone(p: Program, output: str, *known: str) -> Program:
    """What computes one output of a program, given some of what the program computes on the way, as far as it is read.

    Inputs that are not read any more are left out.
    """
    given = [p.homes[name] for name in known if name in p.homes]
    body = [statement for statement in p.body if not set(statement.targets) & set(given)]
    rest = tidy(Program(p.name, (*p.inputs, *given), tuple(body), (p.homes[output],), p.fixed))
    read = {name for statement in rest.body for name in statement.reads}
    inputs = tuple(tensor for tensor in rest.inputs if name_of(tensor) in read)
    return Program(f"{p.name}_{output}", inputs, rest.body, rest.outputs, rest.fixed)
