"""The words and numbers of a report, the same in every format: sentences, ratios, groups, commands.

Rules of this file: plain text only, no colour and no layout. Numbers are shown as the shortest decimal that
reads back as the same number of the dtype; where that decimal is rounded, the hexadecimal is the exact value.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from math import isfinite, prod
from typing import Any

from lnverify.crashes import CAUSES
from lnverify.errors import LnverifyError
from lnverify.finding import NO_BACKWARD, Finding, Observation, Report, Result
from lnverify.floats import FloatArray, round_values
from lnverify.law import FAMILIES

BAD = ("violated", "crashed")
SEVERITY_ORDER = ("error", "warning", "info")
DTYPE_ORDER = ("float64", "float32", "bfloat16", "float16")
ARRAY_ORDER = ("x", "weight", "bias", "dy", "tx", "tweight", "tbias", "vx", "vweight", "vbias", "sx", "wx")
NEEDED = {"ty": ("tx", "tweight", "tbias"), "tty": ("tx", "sx"), "rty": ("dy", "tx")}
# Laws about two calls, or about a transform of a call: one call alone shows nothing of what they say.
COMPARING = ("LN3", "LN601", "LN602", "LN605", "LN702", "LN705", "LN714", "LN216", "LN217", "LN218")
SHOWN_IN_FULL = 8  # elements of an input on the console; the snippet and the report hold the rest


def count(number: int, noun: str) -> str:
    """'1 law', '1,234 laws'."""
    if number == 1:
        return f"1 {noun}"
    plural = noun + ("es" if noun.endswith(("s", "x")) else "s")
    return f"{number:,} {plural}"


def shortest(value: float, dtype: str) -> str:
    """Shortest decimal that, rounded to the dtype directly or by way of float32, is the value."""
    if not isfinite(value) or dtype == "float64":
        return repr(float(value))
    for digits in range(1, 18):
        near = float(f"{value:.{digits}g}")
        single = round_values(near, "float32")
        if round_values(near, dtype) == value and round_values(single, dtype) == value:
            return repr(near)
    return repr(float(value))


def exact_decimal(text: str, value: float) -> bool:
    """Whether the decimal text is the value itself and not a rounding of it."""
    return not isfinite(value) or Decimal(text) == Decimal(value)


def number(value: float | None) -> str:
    """A result to nine digits; '-' where there is none."""
    return "-" if value is None else f"{value:.9g}"


def bound_text(value: float | None) -> str:
    """A bound to three digits; '-' where there is none."""
    return "-" if value is None else f"{value:.3g}"


def ratio_text(ratio: float) -> str:
    """'41x', '1.02x', '0.43x', '3.1e+05x', 'inf'; '' for a law without a bound, whose ratio is 0 or 1."""
    if ratio in (0, 1):
        return ""
    if not isfinite(ratio):
        return "inf"
    if ratio >= 1e4:
        return f"{ratio:.1e}x"
    text = f"{ratio:.3g}"
    # 1.0004 is over the bound: it must not read as 1.
    return f"{ratio:.6g}x" if text == "1" else f"{text}x"


def element(output: str, index: Sequence[int]) -> str:
    """'dweight[3]', or the bare name where there is no index."""
    return f"{output}[{', '.join(map(str, index))}]" if index else output


def place(finding: Finding, seen: Observation) -> str:
    """The element of an observation; of laws about two calls, the difference between the two there."""
    name = element(seen.output, seen.index)
    return f"difference of {name}" if finding.law.startswith("LN3") and seen.index else name


def command(*words: str) -> str:
    """A command line that a shell reads as these words."""
    return shlex.join(["lnverify", *(w for w in words if w)])


def family(law: str) -> tuple[str, str]:
    """Code and name of the family of a law."""
    return (law[:3], FAMILIES[law[:3]]) if law[:3] in FAMILIES else ("", "other")


def families(results: Iterable[Result]) -> dict[tuple[str, str], list[Result]]:
    """Results by family, in the order of the ids."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in sorted(results, key=lambda r: (family(r.law)[0] or "~", r.law)):
        groups.setdefault(family(result.law), []).append(result)
    return groups


def status(results: Sequence[Result]) -> str:
    """One word for several results: the worst of violated, crashed, warning, inconclusive, holds."""
    for verdict in BAD:
        if any(r.verdict == verdict and r.severity == "error" for r in results):
            return verdict
    if any(r.verdict in BAD for r in results):
        return "warning" if any(r.verdict in BAD and r.severity == "warning" for r in results) else "info"
    if any(r.verdict == "inconclusive" for r in results):
        return "inconclusive"
    return "holds" if any(r.verdict == "holds" for r in results) else "not applicable"


def by_dtype(names: Iterable[str]) -> list[str]:
    """Distinct dtype names, widest first."""
    distinct = set(names)
    return [d for d in DTYPE_ORDER if d in distinct] + sorted(distinct - set(DTYPE_ORDER))


def in_order(names: Iterable[str]) -> list[str]:
    """Distinct words, sorted."""
    return sorted(set(names))


def case_size(observation: Observation) -> int:
    """Elements of x."""
    return prod(observation.case["arrays"].get("x", {}).get("shape", ()))


def group_findings(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings with one cause together, errors first, crashes of the process before all; in each group the one with
    the smallest case first. Expected findings are left out (expected_lines)."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if not finding.expected:
            groups.setdefault(finding.group, []).append(finding)

    def rank(group: list[Finding]) -> tuple[int, bool, str]:
        severity = group[0].severity
        known = severity in SEVERITY_ORDER
        place = SEVERITY_ORDER.index(severity) if known else len(SEVERITY_ORDER)
        return place, not group[0].cause.startswith(CAUSES), min(f.law for f in group)

    ordered = [sorted(g, key=lambda f: (case_size(f.smallest), f.law, f.dtype, f.id)) for g in groups.values()]
    return sorted(ordered, key=rank)


def expected_lines(report: Report) -> list[str]:
    """A sentence for each expected finding, and for each that is stale."""
    known = [f"expected  {f.law} {f.name}, {f.dtype}: {f.expected}" for f in report.findings if f.expected]
    return [*dict.fromkeys(known), *(f"stale  {sentence}" for sentence in report.stale)]


def relevant(observation: Observation) -> list[str]:
    """Names of the stored arrays on which the output depends, in reading order."""
    arrays, output = observation.case["arrays"], observation.output
    skipped: tuple[str, ...] = ()
    if output in ("mean", "rstd"):
        skipped = tuple(n for n in ARRAY_ORDER if n != "x")
    elif output == "y":
        skipped = ARRAY_ORDER[3:]
    elif output in NEEDED:
        skipped = tuple(n for n in ARRAY_ORDER[3:] if n not in NEEDED[output])
    elif output.startswith(("d2", "d3")):
        skipped = ("tx", "tweight", "tbias")
    elif output.startswith("d"):
        skipped = ARRAY_ORDER[4:]
    if observation.case["layouts"].get("dy") == "output":
        skipped = (*skipped, "dy")  # it is the subject's own y; the array in its place is not used
    names = [n for n in ARRAY_ORDER if n in arrays] + sorted(set(arrays) - set(ARRAY_ORDER))
    return [n for n in names if n not in skipped]


def hexadecimal(value: float) -> str:
    """The exact value as float.hex writes it, without its trailing zeros: '-0x1.8p+0'."""
    mantissa, letter, exponent = value.hex().partition("p")
    return mantissa.rstrip("0").rstrip(".") + letter + exponent if "." in mantissa else value.hex()


def array_lines(stored: Mapping[str, Any]) -> list[str]:
    """An input: its numbers where they are few, with the hexadecimals beneath where the decimals are rounded;
    else its shape and range.
    """
    shape = repr(tuple(stored["shape"]))
    try:
        array = FloatArray.from_json(dict(stored))
    except (LnverifyError, KeyError, ValueError):
        return [f"{shape}, sha256 {str(stored.get('sha256', ''))[:12]}"]
    values = [float(v) for v in array.values.ravel()]
    if not values:
        return [f"{shape}, empty"]
    alike = len(values) > 1 and len(set(array.bits.ravel().tolist())) == 1
    texts = [shortest(v, array.dtype) for v in (values[:1] if alike else values[:SHOWN_IN_FULL])]
    if alike:
        return [f"all {with_hex(texts[0], values[0])}"]
    if len(values) <= SHOWN_IN_FULL:
        lines = [f"[{', '.join(texts)}]"]
        if not all(exact_decimal(t, v) for t, v in zip(texts, values, strict=True)):
            lines.append(f"[{', '.join(map(hexadecimal, values))}]")
        return lines
    finite = [v for v in values if isfinite(v)]
    special = f", {count(len(values) - len(finite), 'value')} not finite" if len(finite) < len(values) else ""
    if not finite:
        return [f"{shape}, none finite"]
    return [f"{shape}, {min(finite):.6g} to {max(finite):.6g}{special}"]


def behind(text: str, value: float | None) -> str:
    """The hexadecimal of a value whose decimal text is rounded, else ''."""
    return "" if value is None or exact_decimal(text, value) else hexadecimal(value)


def with_hex(text: str, value: float) -> str:
    """The decimal, and the hexadecimal behind it where the decimal is rounded."""
    return text if exact_decimal(text, value) else f"{text} ({hexadecimal(value)})"


HISTORY = {
    "overwritten": "after a call on other numbers in the same memory",
    "unversioned": "after a call on other numbers in the same memory, overwritten through .data",
    "followed": "read after a second call",
    "crowded": "read after 34 more calls",
    "viewed": "a view of y read after more calls",
    "detached": "y.detach() read after more calls",
    "handed": "backward in another thread",
    "repeated": "the second of two backwards",
    "resumed": "the second of two backwards, after more calls",
    "changed": "arguments overwritten between forward and backward",
    "changed_x": "x overwritten between forward and backward",
    "changed_weight": "weight overwritten between forward and backward",
    "changed_bias": "bias overwritten between forward and backward",
    "output": "y overwritten between forward and backward",
    "threads": "while another thread calls",
    "stream": "in a CUDA stream of its own",
    "autocast": "under autocast to bfloat16",
    "lower": "after a call on the same numbers in 16 bits",
    "higher": "after a call on the same numbers in float64",
    "accumulating": "with a .grad there already",
    "into_grad": "backward() to a .grad of zeros",
    "deterministic": "with deterministic algorithms",
    "state": "dy of the state that is handed on",
    "low_default": "with bfloat16 as the default dtype",
}


def case_text(observation: Observation) -> str:
    """What a case is, in one line: its label, else its shape; then all that is not ordinary about it."""
    case = observation.case
    shape, n = case["arrays"].get("x", {}).get("shape", []), prod(case["normalized_shape"])
    # A label describes a recipe: what a law or the shrinking made of it may be anything.
    label = case["label"] if case["recipe"] is not None else ""
    if "h" in case["arrays"]:  # of a cell: x has the inputs, and the statistics are those of the units
        shape = case["arrays"]["h"]["shape"]
    rows = prod(shape) // n if n else 0
    words = [label or f"N={n}, rows={rows}"]
    if list(shape) != [rows, n]:
        words.append(f"{'h' if 'h' in case['arrays'] else 'x'} of shape {tuple(shape)}")
    if "eps=" not in label:
        words.append(f"eps={_eps(case)}")
    layouts = [f"{name} {layout}" for name, layout in case["layouts"].items() if layout != "contiguous"]
    words += [text for text in layouts if text not in label]
    present = [a for a in ("x", "weight", "bias") if a in case["arrays"]]
    own = {name: case["arrays"][name]["dtype"] for name in present}
    words += [f"{name} {dtype}" for name, dtype in own.items() if dtype != own.get("x", dtype)]
    if case["requires_grad"] and set(present) - set(case["requires_grad"]):
        words.append("requires_grad " + " ".join(case["requires_grad"]))
    if case["grad_mode"] != "enabled":
        words.append(case["grad_mode"])
    if not case["train"]:
        words.append("eval mode")
    if case["create_graph"]:
        words.append("create_graph")
    if case["threads"] is not None:
        words.append(count(case["threads"], "thread"))
    if case["module_action"]:
        words.append(f"module {case['module_action']}")
    if case.get("repeat"):
        words.append(f"repeated to {case['repeat']:,} rows")
    if case.get("history"):
        words.append(HISTORY[case["history"]])
    return ", ".join(words)


def details(finding: Finding) -> str:
    """The message of a finding, then its smallest and its worst case, a line each."""
    lines = [finding.message]
    for label, seen in (("smallest", finding.smallest), ("worst", finding.worst)):
        numbers = f"expected {number(seen.expected)}, got {number(seen.got)}"
        if seen.expected is None and seen.got is None:
            numbers = seen.message
        limit = f", bound {bound_text(seen.bound)}" if seen.bound is not None else ""
        ratio = f", {ratio_text(seen.ratio)} the bound" if seen.ratio else ""
        where = element(seen.output, seen.index)
        lines.append(f"{label} case: {case_text(seen)}: {where} {numbers}{limit}{ratio}")
    return "\n".join(lines)


def _eps(case: Mapping[str, Any]) -> str:
    return repr(float.fromhex(case["eps"]))


def inconclusive(report: Report) -> list[tuple[str, str]]:
    """A sentence and the command that resolves it, for every error law that stayed below its minimum."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in report.results:
        if result.verdict == "inconclusive" and result.severity == "error":
            groups.setdefault((result.law, result.name, result.reason), []).append(result)
    lines = []
    for (law, name, reason), results in sorted(groups.items()):
        dtypes = by_dtype(r.dtype for r in results)
        devices = in_order(r.device for r in results)
        why = reason or f"{count(max(r.informative for r in results), 'informative example')}, more are needed"
        words = ["check", report.subject, "--select", law, "--dtype", ",".join(dtypes)]
        if report.operation != "layer_norm":
            words += ["--operation", report.operation]
        if devices != ["cpu"]:
            words += ["--device", ",".join(devices)]
        more = {"quick": ["--profile", "ci"], "ci": ["--profile", "deep"]}.get(report.profile)
        words += more or ["--profile", report.profile, "--max-examples", str(10 * max(100, report.examples))]
        if reason.startswith(NO_BACKWARD):  # no search would change it: for a subject that is to have no backward
            words = ["check", report.subject, "--ignore", "LN2"]
        if report.seed:
            words += ["--seed", str(report.seed)]
        lines.append((f"{law} {name} ({', '.join(dtypes)}): {why.rstrip('.')}.", command(*words)))
    return lines


NOTHING_EXAMINED = "nothing could be examined, for it refuses an ordinary input in every dtype (see not supported)"


def verdict_sentence(report: Report) -> str:
    """'violated  target: 2 causes (LN203, LN204), 1 warning; 41 laws, 4,100 examples, 12.3 s, seed 0'."""
    groups = group_findings(report.findings)
    parts = []
    for severity, noun in (("error", "cause"), ("warning", "warning"), ("info", "note")):
        chosen = [g for g in groups if g[0].severity == severity]
        if chosen:
            laws = in_order(f.law for g in chosen for f in g)
            more = f" and {len(laws) - 4} more" if len(laws) > 4 else ""
            parts.append(f"{count(len(chosen), noun)} ({', '.join(laws[:4])}{more})")
    open_laws = in_order(r.law for r in report.results if r.verdict == "inconclusive" and r.severity == "error")
    if open_laws:
        parts.append(f"undecided {', '.join(open_laws)}")
    for noun, number in (("expected", sum(bool(f.expected) for f in report.findings)), ("stale", len(report.stale))):
        if number:
            parts.append(f"{number} {noun}")
    examined = {r.law for r in report.results if r.verdict in ("holds", "violated", "crashed")}
    facts = f"{count(len(examined), 'law')}, {count(report.examples, 'example')}, {report.seconds:.1f} s, "
    word = report.verdict + (f" so far ({report.stopped})" if report.stopped else "")
    what = ", ".join(parts) or ("no violation found" if report.examples else NOTHING_EXAMINED)
    return f"{word}  {report.subject}: {what}; {facts}seed {report.seed}"


def environment_text(environment: Mapping[str, Any]) -> str:
    """Versions and machine in one line: 'python 3.11.7, torch 2.13.0, Linux x86_64'."""
    words = []
    for name, value in environment.items():
        if name in ("lnverify", "framework", "call_text", "byteorder"):
            continue
        if name in ("versions", "frameworks") and isinstance(value, Mapping):
            words += [f"{n} {v}" for n, v in value.items() if f"{n} {v}" not in words]
        elif isinstance(value, str | int) and value != "" and not isinstance(value, bool):
            bare = name in ("platform", "processor")
            words.append(str(value) if bare else f"{value} {name}" if name == "cores" else f"{name} {value}")
    return ", ".join(words)
