"""Blocks in torch: heads, masks, where a module keeps its parameters, and what is said where that is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from lnverify.cli import main
from lnverify.errors import SignatureError
from lnverify.evaluation import Evaluator
from lnverify.identify_block import identify_block
from lnverify.law import load_laws
from lnverify.norms.blocks import BlockExact
from lnverify.norms.cases import make, reduced, shapes
from lnverify.runner import check
from lnverify.subject import declare
from lnverify.target import resolve

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch is asked for first
from torch.nn import functional  # noqa: E402

from lnverify.mutants import torch_blocks, torch_encoders  # noqa: E402 - torch is asked for first

LAYER = torch.nn.TransformerEncoderLayer
KILLED = {m.id: m for m in (*torch_blocks.MUTANTS, *torch_encoders.MUTANTS)}


def exact_gap(subject, operation: str, seed: int = 1) -> float:
    """The largest distance of any output and gradient from the exact one, in float64."""
    place = shapes(operation, subject.capabilities.fixed_shape)[0]
    case = reduced(subject, make(operation, "float64", place, "both", 1e-5, seed=seed))
    names = ["y", *case.gradients()]
    answer = subject.run(case.request(*names))
    assert answer.refusal is None
    exact = BlockExact(case)
    return max(float(np.abs(answer.arrays[n].values - exact.pair(n).hi).max()) for n in names)


@pytest.mark.parametrize("entry", torch_encoders.CORRECT, ids=lambda entry: entry.id)
def test_parameters_find_their_places_and_gradients_come_back(entry) -> None:
    for seed in (1, 2, 3):  # with a causal mask, without one, with any
        assert exact_gap(entry.subject(), entry.operation, seed) < 1e-12


@pytest.mark.parametrize("kind", ["added", "allowed", "blocked", "causal"])
def test_a_mask_is_given_as_it_is_declared(kind: str) -> None:
    def block(x, weight_q, weight_k, weight_v, weight_o, weight_1, weight_2, heads, mask=None, eps=1e-5):
        if kind == "causal":
            assert mask is None
            mask = torch.ones(x.shape[1], x.shape[1]).tril().log().to(x.dtype)
        elif mask is not None:
            assert mask.dtype == (x.dtype if kind == "added" else torch.bool)
            mask = ~mask if kind == "blocked" else mask
            mask = mask if kind == "added" else torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, -torch.inf)
        return torch_blocks.block(
            x, weight_q, weight_k, weight_v, weight_o, weight_1, weight_2, heads=heads, mask=mask, eps=eps
        )

    subject = resolve(declare(operation="transformer_block", mask=kind)(block))
    assert subject.capabilities.mask == kind
    for seed in (1, 2, 3):
        assert exact_gap(subject, "transformer_block", seed) < 1e-12


def test_one_head_is_declared_and_more_are_refused_where_nothing_says_so() -> None:
    def single(x, weight_q, weight_k, weight_v, weight_o, weight_1, weight_2, eps=1e-5):
        return torch_blocks.block(x, weight_q, weight_k, weight_v, weight_o, weight_1, weight_2, eps=eps)

    with pytest.raises(SignatureError, match=r"no parameter for the number of heads .*: declare how many it has"):
        resolve(single, operation="transformer_block")
    subject = resolve(declare(operation="transformer_block", heads=1)(single))
    assert subject.capabilities.fixed_shape == (1, 0)
    assert {place[1][0] for place in shapes("transformer_block", (1, 0))} == {1}
    assert exact_gap(subject, "transformer_block") < 1e-12
    with pytest.raises(SignatureError, match="and mask=allowed is declared: leave it out, or declare mask=causal"):
        resolve(declare(operation="transformer_block", heads=1, mask="allowed")(single))


def test_what_a_module_class_does_not_say_is_told() -> None:
    places = torch_encoders.CausalBlock.__dict__["__lnverify_subject__"].parameters

    class Headless(torch_encoders.CausalBlock):
        def __init__(self, n_embd, eps=1e-5):
            super().__init__(n_embd, 1, eps)

    named = {"operation": "transformer_block", "variant": "pre_ln_gelu", "mask": "causal"}
    with pytest.raises(SignatureError, match="no constructor parameter gives the number of heads"):
        resolve(declare(**named, parameters=places)(Headless))
    subject = resolve(declare(**named, parameters=places, heads=1)(Headless))
    assert subject.capabilities.fixed_shape == (1, 4)
    assert exact_gap(subject, "transformer_block_pre_ln_gelu") < 1e-12

    class Misplaced(torch_encoders.CausalBlock):
        pass

    wrong = {**places, "weight_1": "wide.weight.T"}
    with pytest.raises(SignatureError, match=r"wide.weight has the shape \(24, 6\) where 2 heads of 3 units meet 24"):
        resolve(declare(**named, parameters=wrong)(Misplaced))


def test_an_instance_is_taken_at_its_own_sizes() -> None:
    layer = LAYER(8, 2, dim_feedforward=12, dropout=0.0, batch_first=True)
    subject = resolve(layer, operation="transformer_block")
    assert (subject.capabilities.fixed_shape, subject.capabilities.eps) == ((2, 4, 12), 1e-5)
    assert exact_gap(subject, "transformer_block") < 1e-12


def test_the_fast_path_of_torch_is_what_evaluation_mode_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    calls = []
    fast = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *given: (calls.append(1), fast(*given))[1])
    subject = resolve(LAYER, operation="transformer_block")
    case = make("transformer_block", "float32", ((2, 3, 4), (2, 2, 6)), "both", 1e-5, seed=2)
    plain = replace(case.with_arrays(dy=None), train=False, grad_mode="no_grad")
    y = subject.run(plain.request("y")).arrays["y"]
    assert calls == [1]
    assert np.abs(y.values - BlockExact(case).pair("y").hi).max() < 1e-5
    subject.run(case.request("y"))
    assert calls == [1]


@pytest.mark.parametrize(
    ("id", "law", "dtype"),
    [
        ("encoder-first-norm-twice", "LN901", "float32"),
        ("block-residual-from-norm", "LN902", "bfloat16"),
        ("block-first-parameters", "LN903", "float16"),
        ("block-no-final-norm", "LN902", "float32"),
        ("block-64-positions", "LN904", "float32"),
        ("block-64-sequences", "LN905", "float32"),
        ("block-mask-by-a-number", "LN906", "float32"),
        ("block-sum-not-rescaled", "LN907", "float32"),
        ("block-tanh-gelu", "LN801", "float64"),
    ],
)
def test_a_law_of_blocks_finds_its_mutant(id: str, law: str, dtype: str) -> None:
    entry = KILLED[id]
    report = check(entry.subject(), operation=entry.operation, dtypes=[dtype], select=[law], profile="score",
                   fail_fast=True)  # fmt: skip
    assert [f.law for f in report.findings] == [law]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_exactly_known_informs_16_bits_and_accuses_nobody_there(dtype: str) -> None:
    laws = load_laws()
    for variant in ("post_ln", "pre_ln"):
        entry = next(e for e in torch_blocks.CORRECT if e.id == f"block-separate-{variant.replace('_', '-')}")
        evaluator = Evaluator(entry.subject())
        states = []
        for seed, regime in enumerate(("normal", "integers", "constant", "outlier", "scaled"), 1):
            case = make(entry.operation, dtype, shapes(entry.operation)[seed], "both", 1e-5, regime=regime, seed=seed)
            evaluation = evaluator.evaluate(case)
            states += [laws["LN902" if variant == "pre_ln" else "LN903"].check(evaluation).state]
        assert set(states) <= {"holds", "vacuous"}
        assert states.count("holds") >= 2, states


@pytest.mark.parametrize("name", ["transformer_block", "transformer_block_pre_ln"])
def test_the_laws_of_blocks_hold_for_torch_s_own(name: str) -> None:
    evaluator = Evaluator(resolve(LAYER, operation=name))
    for seed in (1, 2):  # with a causal mask, and without one
        evaluation = evaluator.evaluate(make(name, "float32", shapes(name)[seed], "both", 1e-5, seed=seed))
        said = {law.id: law.check(evaluation).state for law in load_laws().values() if law.id.startswith("LN90")}
        assert said.pop("LN903") == ("inapplicable" if "pre" in name else "holds")
        assert set(said.values()) == {"holds"}, said


def facts(subject, name: str = "transformer_block") -> dict[str, str]:
    found = identify_block(subject, name, "float64")
    assert not isinstance(found, str)
    return {fact.name: fact.value for fact in found}


@pytest.mark.parametrize("variant", ["post_ln", "pre_ln", "post_ln_gelu", "pre_ln_gelu"])
def test_identify_names_the_variant(variant: str) -> None:
    entry = next(e for e in torch_blocks.CORRECT if e.id == f"block-fused-{variant.replace('_', '-')}")
    found = facts(entry.subject())
    assert found["variant"] == variant
    assert found["norms"] == ("before attention and network" if "pre" in variant else "behind the residual sums")
    assert found["activation"] == ("gelu" if "gelu" in variant else "relu")


def test_identify_tells_a_causal_block_and_what_is_none_of_them() -> None:
    causal = torch_encoders.CORRECT[-1]
    assert facts(causal.subject(), causal.operation)["mask"] == "every position attends to those up to itself"
    found = facts(KILLED["block-tanh-gelu"].subject(), "transformer_block_pre_ln_gelu")
    assert found["variant"] == "none of those that are known"
    assert found["nearest"] == "pre_ln_gelu"
    assert facts(KILLED["block-norms-before"].subject())["variant"] == "pre_ln"


def test_identify_asks_a_block_in_float64_where_it_can() -> None:
    """In float32 the bound of a block cannot tell the two gelus apart."""
    words = ["identify", "--no-isolate", "examples/transformer_block.py:Block"]
    said = CliRunner().invoke(main, words, standalone_mode=False).output
    assert "float64 on cpu" in said
    assert "pre_ln_gelu" in said
    single = CliRunner().invoke(main, [*words[:2], f"{words[2]}?dtypes=float32"], standalone_mode=False).output
    assert "float32 on cpu" in single


class InnerEpsilon(LAYER):
    """Hidden units and eps under the names of GPT-2's configuration."""

    def __init__(self, n_embd: int, n_head: int, n_inner: int, layer_norm_epsilon: float) -> None:
        super().__init__(n_embd, n_head, n_inner, 0.0, layer_norm_eps=layer_norm_epsilon, batch_first=True)


def test_constructors_are_read_under_the_names_of_gpt_2() -> None:
    assert exact_gap(resolve(InnerEpsilon, operation="transformer_block"), "transformer_block") < 1e-12


class OutputOfSeveralHeads(nn.Module):
    """As in x-transformers: one head has no projection behind it, for it would be one matrix beside another."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.o = nn.Linear(dim, dim, bias=False) if heads > 1 else nn.Identity()
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.wide, self.narrow = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = self.norm_1(x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm_2(x + self.narrow(self.wide(x).relu()))


def test_a_parameter_without_a_place_at_some_sizes_accuses_nobody() -> None:
    places = {f"weight_{part}": f"{part}.weight" for part in "qkvo"}
    places |= {f"{kind}_{k}": f"{at}.{kind}" for k, at in ((1, "wide"), (2, "narrow")) for kind in ("weight", "bias")}
    places |= {
        f"{ours}_{k}": f"norm_{k}.{kind}" for ours, kind in (("gain", "weight"), ("shift", "bias")) for k in (1, 2)
    }
    subject = resolve(declare(operation="transformer_block", parameters=places)(OutputOfSeveralHeads))
    assert exact_gap(subject, "transformer_block") < 1e-12  # two heads
    one = next(shape for shape in shapes("transformer_block") if shape[1][0] == 1)
    case = make("transformer_block", "float64", one, "both", 1e-5, seed=1)
    answer = subject.run(reduced(subject, case).request("y"))
    assert answer.phase == "placement"
    assert answer.refusal is not None
    assert "of these sizes has no parameter o.weight" in answer.refusal
    evaluation = Evaluator(subject).evaluate(reduced(subject, case))
    said = {law.id: law.check(evaluation).state for law in load_laws().values() if law.covers("transformer_block")}
    assert set(said.values()) == {"inapplicable"}, said


def test_the_example_holds_and_its_copy_does_not() -> None:
    name = "transformer_block_pre_ln_gelu"
    assert exact_gap(resolve("examples/transformer_block.py:Block"), name) < 1e-12
    assert exact_gap(resolve("examples/transformer_block.py:NormalisedResidual"), name) > 1e-2


def test_a_numpy_block_is_refused_in_a_sentence() -> None:
    with pytest.raises(SignatureError, match="transformer_block is called in torch only: write it in torch"):
        resolve(declare(operation="transformer_block", framework="numpy")(lambda x, eps: x))
