"""Print expressions and programs as LaTeX, with the indices written out and every sum explicit.

Accents carry the mode of differentiation: a bar is a first cotangent, a dot a first tangent, a tilde
a cotangent and a ring a tangent taken of a program that has bars or dots already. Whatever has no
rule here raises `UnprintableError`.
"""

from __future__ import annotations

from emit_numpy import UnprintableError
from program import Let, Program
from sympy import Add, Expr, Indexed, KroneckerDelta, Mul, Rational, Sum, Symbol
from tensors import name_of

LETTERS = {
    "mu": r"\mu", "var": "v", "xhat": r"\hat{x}", "gamma": r"\gamma", "beta": r"\beta",
    "eps": r"\varepsilon", "g_mean": r"\langle g \rangle", "g_xhat_mean": r"\langle g \hat{x} \rangle",
}  # fmt: skip
ACCENTS = {"_bar2": r"\tilde", "_dot2": r"\mathring", "_bar": r"\bar", "_dot": r"\dot"}


def letter(name: str) -> str:
    """The LaTeX of a tensor's name."""
    if name in LETTERS:
        return LETTERS[name]
    for ending, accent in ACCENTS.items():
        if name.endswith(ending):
            return f"{accent}{{{letter(name.removesuffix(ending))}}}"
    if len(name) != 1:
        raise UnprintableError(f"no LaTeX letter for {name}")
    return name


def factor(value: Expr) -> str:
    """A value as it stands inside a product, or under a power."""
    if isinstance(value, Indexed):
        return f"{letter(name_of(value))}_{{{''.join(str(index.label) for index in value.indices)}}}"
    if isinstance(value, KroneckerDelta):
        return rf"\delta_{{{''.join(str(index.label) for index in value.args)}}}"
    if isinstance(value, Symbol):
        return str(value)
    if isinstance(value, Add):
        return rf"\left( {latex(value)} \right)"
    raise UnprintableError(f"{type(value).__name__} in {value}")


def product(value: Expr) -> tuple[str, str]:
    """The sign and the LaTeX of one term: a fraction of numbers and sizes, then the rest."""
    sign, above, below, rest, sums = "+", [], [], [], []
    for part in Mul.make_args(value):
        base, exponent = part.as_base_exp()
        if isinstance(part, Rational):
            sign = "-" if part < 0 else "+"
            above += [str(abs(part.p))] if abs(part.p) != 1 else []
            below += [str(part.q)] if part.q != 1 else []
        elif isinstance(part, Sum):
            names = ",".join(str(limit[0].label) for limit in part.limits)
            sums.append((rf"\sum_{{{names}}}", part.function))
        elif exponent in (Rational(1, 2), Rational(-1, 2)):
            (rest if exponent > 0 else below).append(rf"\sqrt{{{latex(base)}}}")
        elif exponent.is_Integer:
            power = "" if abs(exponent) == 1 else f"^{{{abs(int(exponent))}}}"
            (rest if exponent > 0 else below).append(factor(base) + power)
        else:
            raise UnprintableError(f"power {exponent} in {part}")
    for sigma, body in sums:
        inner_sign, inner = product(body) if not isinstance(body, Add) else ("+", factor(body))
        # The sign and the constant fraction belong in front of the sum, where a reader looks for them.
        sign = "-" if (sign == "-") != (inner_sign == "-") else "+"
        if len(sums) == 1 and inner.startswith(r"\frac") and not (above or below):
            front, inner = inner.split("} ", 1) if "} " in inner else (inner[:-1], "1")
            rest.append(f"{front}}} {sigma} {inner}")
        else:
            rest.append(f"{sigma} {inner}")
    if below:
        rest.insert(0, rf"\frac{{{' '.join(above) or '1'}}}{{{' '.join(below)}}}")
    else:
        rest = above + rest
    return sign, " ".join(rest) or "1"


def latex(value: Expr) -> str:
    """The LaTeX of an expression; positive terms first."""
    if value == 0:
        return "0"
    printed = sorted((product(term) for term in sorted(Add.make_args(value), key=str)), key=lambda term: term[0] == "-")
    text = " ".join(f"{sign} {term}" for sign, term in printed)
    return text.removeprefix("+ ")


def equations(p: Program) -> str:
    """The statements of `p` as one aligned block."""
    lines = []
    for statement in p.body:
        if not isinstance(statement, Let):
            raise UnprintableError(f"a call of {statement.program.name} has no LaTeX")
        lines.append(f"{factor(statement.target)} &= {latex(statement.value)}")
    return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"
