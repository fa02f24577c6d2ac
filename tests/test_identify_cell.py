"""`lnverify identify` of recurrent cells: the variant, the order of the gates, and what comes nearest."""

from __future__ import annotations

import importlib

import pytest
from click.testing import CliRunner

from lnverify.cli import main
from lnverify.identify_cell import identify_cell
from lnverify.mutants import norm_correct, norm_mutants
from lnverify.operation import cells, operation
from lnverify.subject import declare
from lnverify.target import resolve

pytest.importorskip("torch")
RIGHT = [entry for entry in norm_correct() if entry.operation in cells()]


def facts(subject, name: str, dtype: str = "float32") -> dict[str, str]:
    found = identify_cell(subject, name, dtype)
    assert not isinstance(found, str)
    return {fact.name: fact.value for fact in found}


@pytest.mark.parametrize("entry", RIGHT, ids=lambda entry: entry.id)
def test_right_cells_are_named(entry) -> None:
    found = facts(entry.subject(), entry.operation, entry.dtypes[0])
    known = operation(entry.operation)
    assert found["variant"] == known.variant
    if known.family == "ln_lstm":
        assert found["carried"] == ("c normalised" if known.variant == "carry_normalised" else "c as it is")
        assert found["gates"] == ("f, i, o, g" if entry.id == "lstm-gate-by-gate" else "i, f, g, o")
    if known.family == "ln_gru":
        assert found["update"] == ("h' = z h + (1 - z) n" if known.variant == "z_keeps" else "h' = (1 - z) h + z n")


@pytest.mark.parametrize(
    ("id", "name", "value"),
    [
        ("lstm-carry", "carried", "c normalised"),
        ("lstm-gate-order", "gates", "i, f, o, g"),
        ("gru-gate-order", "gates", "z, r"),
        ("gru-z-keeps", "variant", "z_keeps"),
        ("lstm-not-normalised", "variant", "cell_only"),
    ],
)
def test_what_is_wrong_by_one_name_is_right_by_another(id: str, name: str, value: str) -> None:
    entry = next(entry for entry in norm_mutants() if entry.id == id)
    assert facts(entry.subject(), entry.operation)[name] == value


def test_what_is_none_of_them_has_a_nearest_one_for_each_output() -> None:
    entry = next(entry for entry in norm_mutants() if entry.id == "plain-cell-no-tanh" or entry.id == "lstm-c-read")
    found = facts(entry.subject(), entry.operation)
    assert found["variant"] == "none of those that are known"
    assert {"variant", "nearest on y", "nearest on cy"} <= found.keys()


def test_a_normalised_carry_is_told_where_the_gates_are_those_of_another_variant() -> None:
    found = facts(resolve("examples/ln_lstm.py:CarriesNormalised"), "ln_lstm_per_gate")
    assert found["variant"] == "none of those that are known"
    assert found["nearest on y"] == "ln_lstm per_gate, gates f, i, o, g"
    assert found["carried"] == "c normalised"


def test_a_cell_with_no_norm_is_nearest_to_the_one_that_only_normalises_c() -> None:
    torch = importlib.import_module("torch")

    def bare(x, h, c, weight_ih, weight_hh, bias=None, eps=1e-5):
        i, f, g, o = (x @ weight_ih.T + h @ weight_hh.T + (0 if bias is None else bias)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * torch.tanh(c), c

    found = facts(resolve(declare(operation="ln_lstm")(bare)), "ln_lstm")
    assert found["nearest on cy"] == "ln_lstm cell_only, gates i, f, g, o"


def test_the_command_asks_by_a_variant_that_the_parameters_allow() -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(main, ["identify", "--no-isolate", *words])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    assert "variant per_gate every" in run("--operation", "ln_lstm", "lnverify.mutants.torch_lstm:joined")
    assert "variant paper every" in run("lnverify.mutants.torch_layers:Layer")
    wrong = CliRunner().invoke(main, ["identify", "--operation", "rms_norm", "torch.nn.RMSNorm"], standalone_mode=False)
    other = CliRunner().invoke(
        main, ["identify", "--no-isolate", "--operation", "ln_gru", "lnverify.mutants.torch_layers:Layer"]
    )
    assert (other.exit_code, other.stdout) == (2, "")
    assert "declares the operation ln_lstm, not ln_gru: ask for ln_lstm." in other.stderr
    assert "nothing is known to identify in rms_norm" in str(wrong.exception) + wrong.output
