"""Print a program as a NumPy function that is generic over the number type.

What is printed: + - * / and unary minus, integer powers, `sqrt(v)`, `tanh(v)`, `step(v)`, `exp(v)`, `normal_cdf(v)`,
`normal_pdf(v)`, `contract("bi,bi->b", v, w)`, `v[:, None]`, the extents of indices as Python ints, and `1 / 2`, which
is exact in every number type. No float literal is ever printed, since it would round in some. Whatever is not listed
here raises `UnprintableError`.

The layout is the one `ruff format` leaves alone, so that generated code reads like written code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from program import Call, Let, Program
from sympy import Add, Expr, Idx, Indexed, Integer, Mul, Rational, Symbol, tanh
from tensors import POINTWISE, extent, indices, name_of, places, terms

WIDTH = 110
ROW_OR_NUMBER = frozenset({"eps", "eps_c"})
"""Inputs that may also be given as one number, and can thus never be reshaped."""


class UnprintableError(TypeError):
    """An expression has no printed form in the generated code."""


def letters(at: Iterable[Idx]) -> str:
    """The subscript string of some indices, each of which must have a name of one letter."""
    names = [str(index.label) for index in at]
    if bad := [name for name in names if len(name) != 1]:
        raise UnprintableError(f"index {bad[0]} has no one-letter name")
    return "".join(names)


def aligned(text: str, at: Sequence[Idx], frame: Sequence[Idx]) -> str:
    """`text`, whose axes are `at`, made to broadcast against the axes of `frame`."""
    if [index for index in frame if index in at] != list(at):
        raise UnprintableError(f"{text} with axes {tuple(at)} does not line up with {tuple(frame)}")
    axes = [":" if index in at else "None" for index in frame]
    while axes and axes[0] == "None":  # leading axes broadcast by themselves
        axes.pop(0)
    if "None" not in axes:
        return text
    if text in ROW_OR_NUMBER:
        raise UnprintableError(f"{text} may be a number, so that it cannot be reshaped")
    return f"{text}[{', '.join(axes)}]"


def power(base: Expr, exponent: int, frame: Sequence[Idx]) -> str:
    """A positive integer power, or the bare base for exponent 1."""
    text = atom(base, frame)
    if exponent == 1:
        return text
    return f"{text}**{exponent}" if text.isidentifier() else f"{text} ** {exponent}"


def atom(value: Expr, frame: Sequence[Idx]) -> str:
    """A value as it stands inside a product."""
    if isinstance(value, Indexed):
        return aligned(name_of(value), value.indices, frame)
    if isinstance(value, Symbol | Integer):
        return str(value)
    if isinstance(value, Add):
        return f"({join(signed(value, frame))})"
    if isinstance(value, (tanh, *POINTWISE)):
        return f"{type(value).__name__}({join(signed(value.args[0], frame))})"
    raise UnprintableError(f"{type(value).__name__} in {value}")


def product(factors: Sequence[Expr], frame: Sequence[Idx], contraction: str = "") -> tuple[str, str]:
    """The sign and the text of a product; `contraction` is a factor that is printed already."""
    sign, above, below = "+", [], []
    for factor in factors:
        base, exponent = factor.as_base_exp()
        if isinstance(factor, Rational):
            sign = "-" if factor < 0 else "+"
            above += [str(abs(factor.p))] if abs(factor.p) != 1 else []
            below += [str(factor.q)] if factor.q != 1 else []
        elif exponent.is_Integer:
            (above if exponent > 0 else below).append(power(base, abs(int(exponent)), frame))
        elif exponent in (Rational(1, 2), Rational(-1, 2)):
            (above if exponent > 0 else below).append(f"sqrt({join(signed(base, frame))})")
        else:
            raise UnprintableError(f"power {exponent} in {factor}")
    above += [contraction] if contraction else []
    text = " * ".join(above) or "1"
    if below:
        text += f" / {below[0]}" if len(below) == 1 else f" / ({' * '.join(below)})"
    return sign, text


def signed(value: Expr, frame: Sequence[Idx]) -> list[tuple[str, str]]:
    """The signs and texts of a statement's terms, positive ones first: `d - mu`, not `-mu + d`."""
    printed = []
    for body, over in sorted(terms(value), key=lambda term: (len(term[1]), str(term[0]))):
        factors = Mul.make_args(body)
        inside = [factor for factor in factors if indices(factor) & set(over)]
        outside = [factor for factor in factors if factor not in inside]
        printed.append(product(outside, frame, contraction(inside, over, frame) if over else ""))
    return sorted(printed, key=lambda term: (term[0] == "-", -term[1].count(" * ")))


def contraction(factors: Sequence[Expr], over: Sequence[Idx], frame: Sequence[Idx]) -> str:
    """`contract("bi,bi->b", v, w)`: the product of some factors, summed over `over`."""
    specs, operands = [], []
    for factor in factors:
        base, exponent = factor.as_base_exp()
        if isinstance(base, Indexed) and exponent.is_Integer and exponent > 0:
            at, repeat, text = base.indices, int(exponent), name_of(base)
        else:
            at = [index for index in (*frame, *over) if index in indices(factor)]
            repeat, text = 1, "".join(product([factor], at)).lstrip("+")
        if text in ROW_OR_NUMBER:
            raise UnprintableError(f"{text} may be a number, so that it cannot be contracted")
        specs += [letters(at)] * repeat
        operands += [text] * repeat
    kept = [index for index in frame if any(index in indices(factor) for factor in factors)]
    text = f'contract("{",".join(specs)}->{letters(kept)}", {", ".join(operands)})'
    return aligned(text, kept, frame)


def join(parts: Sequence[tuple[str, str]], separator: str = " ") -> str:
    """Signed terms as one sum."""
    (sign, text), *rest = parts
    if sign == "-":
        factor, *others = text.split(" * ", 1)
        # Python reads -r**3 as -(r**3), and so should a reader.
        text = " * ".join([f"-({factor})" if "**" in factor and "(" not in factor else f"-{factor}", *others])
    return separator.join([text, *(f"{sign} {term}" for sign, term in rest)])


def assignment(name: str, parts: Sequence[tuple[str, str]]) -> list[str]:
    """The lines of `name = sum of parts`, wrapped as `ruff format` would."""
    line = f"    {name} = {join(parts)}"
    if len(line) <= WIDTH:
        return [line]
    line = f"        {join(parts)}"
    if len(line) <= WIDTH:
        return [f"    {name} = (", line, "    )"]
    wrapped = join(parts, "\n        ").split("\n")
    if max(map(len, wrapped)) > WIDTH:
        raise UnprintableError(f"a term of {name} does not fit into {WIDTH} columns")
    return [f"    {name} = (", f"        {wrapped[0]}", *wrapped[1:], "    )"]


def bracketed(head: str, items: Sequence[str], tail: str, indent: str = "    ") -> list[str]:
    """`head item, item tail` on one line, with the items on a line of their own, or one item a line."""
    line = head + ", ".join(items) + tail
    if len(line) <= WIDTH:
        return [line]
    line = f"{indent}    {', '.join(items)}"
    if len(line) <= WIDTH:
        return [head, line, indent + tail]
    return [head, *(f"{indent}    {item}," for item in items), indent + tail]


def let(statement: Let, p: Program) -> list[str]:
    """The lines of one `Let`."""
    target, value = statement.target, statement.value
    if value == 0:
        same = [tensor for tensor in p.inputs if tensor.indices == target.indices]
        if not same:
            raise UnprintableError(f"no input has the shape of {target}, which is zero")
        # The input that the zero is an adjoint of, where there is one: beta for beta_bar2.
        source = max(same, key=lambda tensor: name_of(target).startswith(f"{name_of(tensor)}_"))
        return [f"    {name_of(target)} = zeros_like({name_of(source)})"]
    if missing := set(target.indices) - indices(value):
        raise UnprintableError(f"{target} does not vary with {min(map(str, missing))}: it would lose that axis")
    return assignment(name_of(target), signed(value, target.indices))


def call(statement: Call, number: int) -> list[str]:
    """The lines of one `Call`: the callee's function, and its results by name."""
    lines = [f"    called_{number} = {statement.program.name}({', '.join(statement.reads)})"]
    for out, formal in zip(statement.outs, statement.program.outputs, strict=True):
        lines.append(f'    {name_of(out)} = called_{number}["{name_of(formal)}"]')
    return lines


def function(p: Program, docstring: str) -> str:
    """The source text of one function: the inputs of `p` in order, a dict of its outputs."""
    names = [name_of(tensor) for tensor in p.inputs]
    lines = bracketed(f"def {p.name}(", [f"{name}: Any" for name in names], ") -> dict[str, Any]:", "")
    first, *rest = docstring.strip().split("\n")
    lines += [f'    """{first}', *(f"    {line}".rstrip() for line in rest)]
    lines += ['    """'] if rest else []
    if not rest:
        lines[-1] += '"""'
    used = sorted({str(symbol) for symbol in symbols(p)})
    divisors = {str(extent(index)): index for tensor in p.homes.values() for index in tensor.indices}
    if unknown := [name for name in used if name not in divisors]:
        raise UnprintableError(f"{unknown[0]} in {p.name} is not the extent of an index")
    number = {name: ', ""' if name in ROW_OR_NUMBER else "" for name in names}
    shapes = [
        f'{name}=({name}, "{letters(tensor.indices)}"{number[name]})'
        for name, tensor in zip(names, p.inputs, strict=True)
    ]
    asked = letters(divisors[name] for name in used)
    head = f"({used[0]},) = " if len(used) == 1 else f"{', '.join(used)} = " if used else ""
    lines += bracketed(f"    {head}sizes(", [f'"{asked}"', *shapes], ")")
    for number, statement in enumerate(p.body):
        lines += let(statement, p) if isinstance(statement, Let) else call(statement, number)
    results = [f'"{name_of(tensor)}": {name_of(tensor)}' for tensor in p.outputs]
    lines += bracketed("    return {", results, "}")
    return "\n".join(lines) + "\n"


def symbols(p: Program) -> set[Symbol]:
    """The extents that occur in the statements of `p`."""
    found: set[Symbol] = set()
    for statement in p.body:
        if isinstance(statement, Let):
            for body, _ in terms(statement.value):
                bare = body.xreplace({place: Integer(1) for place in places(body)})
                found |= bare.atoms(Symbol)
    return found


def module(docstring: str, functions: Sequence[str]) -> str:
    """The source text of a module of generated functions."""
    code = "\n\n".join(functions)
    known = ("contract", "exp", "normal_cdf", "normal_pdf", "sizes", "sqrt", "step", "tanh", "zeros_like")
    used = [name for name in known if f"{name}(" in code]
    return (
        f'"""{docstring.strip()}\n"""\n\nfrom __future__ import annotations\n\nfrom typing import Any\n\n'
        f"from .runtime import {', '.join(used)}\n\n\n{code}"
    )
