"""Each mutant in torch is wrong in the scenario that its bug needs, where the right code is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lnverify.mutants import Mutant, all_mutants

torch = pytest.importorskip("torch")
parts = pytest.importorskip("lnverify.mutants.torch_parts")
plain = pytest.importorskip("tests.torch_scenarios")
transform = pytest.importorskip("tests.torch_transform_scenarios")
outlived = pytest.importorskip("tests.torch_outlived_scenarios")

MUTANTS = {m.id: m for m in all_mutants() if m.framework == "torch"}
DERIVABLE = parts.hand_written(recompute=True)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "dweight-needs-dx": lambda f: plain.gradients(f, (1, 2)),
    "dx-needs-dweight": lambda f: plain.gradients(f, (0, 2)),
    "dweight-not-returned": plain.weight_gradient_exists,
    "dy-strides-ignored": plain.expanded_dy,
    "x-strides-ignored": plain.permuted,
    "dy-overwritten-torch": plain.dy_after,
    "x-centred-in-place-torch": plain.in_float32,
    "output-promoted": lambda f: plain.dtype_kept(f, torch.float32),
    "output-wide": lambda f: plain.dtype_kept(f, torch.bfloat16),
    "no-backward": plain.no_gradient,
    "flat-parameter-gradient-torch": plain.flat_refused,
    "scratch-accumulates": plain.twice,
    "cached-by-address": plain.same_memory,
    "first-weight-kept": plain.new_weight,
    "inference-path-unbiased": plain.without_gradients,
    "row-stride-guessed": plain.sliced,
    "row-stride-assumed": plain.padded,
    "dy-third-dimension-assumed": plain.middle_of_dy,
    "dx-lies-as-x-does": plain.expanded_x,
    "start-lost-without-gradients": plain.transposed_rest,
    "row-offset-of-32-bits": plain.rows_far_apart,
    "weight-as-one-block": plain.part_of_a_weight,
    "no-grad-in-place": plain.x_without_gradients,
    "weight-by-identity": plain.trained_in_place,
    "weight-by-address": plain.weights_one_after_the_other,
    "one-output-buffer": plain.first_of_two,
    "statistics-of-last-forward": plain.interleaved,
    "second-backward-accumulates": plain.backward_again,
    "kept-as-attributes": plain.changed_in_between,
    "shared-scratch": plain.in_two_threads,
    "reciprocal-by-size": plain.after_16_bits,
    "wrong-at-times": plain.of_31_calls,
    "second-derivative-off": transform.second_tangent,
    "third-derivative-off": transform.third_order,
    "vmap-first-parameters": transform.own_parameters,
    "vmap-of-x-first": transform.batch_second,
    "vmap-bias-alone": transform.biases_alone,
    "parameters-resized": plain.longer_weight,
    "empty-rows-padded": plain.no_elements,
    "rows-lost-in-torch": plain.far_down,
    "blocks-lost": plain.very_far_down,
    "sums-of-2-to-20-rows": plain.gradients_of_very_many,
    "positions-lost": plain.long_sequence,
    "chunks-of-one-weight": plain.long_row,
    "create-graph-path": lambda f: transform.second_order(f, "x"),
    "double-backward-constants": lambda f: transform.second_order(f, "x"),
    "double-backward-bias-lost": lambda f: transform.second_order(f, "dy", weight=False),
    "double-backward-weight-lost": lambda f: transform.second_order(f, "x"),
    "double-backward-frozen-weight": transform.frozen_weight,
    "double-backward-cotangent-of-dx": transform.dweight_alone,
    "double-backward-after-the-first": transform.after_a_first,
    "jvp-wants-x": transform.weight_tangent,
    "one-gradient-buffer": plain.gradient_read_later,
    "eps-lost-where-deterministic": plain.with_deterministic_algorithms,
    "sums-by-products": plain.under_autocast,
    "subnormals-flushed-for-all": plain.subnormal_afterwards,
    "tangent-lost-in-backward": transform.weight_and_gradient,
    "vmap-samples-as-rows": transform.per_sample,
    "vmap-parameters-alone": transform.weights_alone,
    "vmap-other-dimension": transform.batch_last,
    "vmap-weight-for-rows": transform.samples_of_as_many_rows,
    "jvp-weight-without-bias": transform.parameters_tangent,
    "vmap-result-elsewhere": transform.batch_last,
    "start-rounded-down": plain.later_start,
    "dy-start-rounded-down": plain.later_start,
    "bias-for-one-element": plain.bias_afterwards,
    "y-kept-as-attribute": plain.output_changed,
    "jvp-without-mean": transform.tangent,
    "jvp-without-parameters": transform.tangent,
    "statistics-in-a-ring": outlived.first_of_forty,
    "eps-on-the-class": outlived.other_eps_in_between,
    "eps-by-thread": outlived.backward_elsewhere,
    "frozen-weight-overwrites": outlived.frozen_twice,
    "weight-data-kept": outlived.weight_changed,
    "inference-in-place": outlived.made_for_inference,
    "ones-dropped": outlived.one_in_the_middle,
    "dy-one-scalar": outlived.a_number_for_each_row,
    "grad-mode-left-off": outlived.refused_before,
    "inference-ones-kept": outlived.inferred_before,
    "odd-threads": outlived.with_three_threads,
    "workspace-given-back": outlived.backward_resumed,
    "partial-sums-kept": outlived.on_four_threads,
    "scratch-unlocked": outlived.paused,
    "statistics-by-version": outlived.written_through_data,
    "eps-by-value": outlived.eps_in_16_bits,
    "mean-by-size": outlived.float32_after_float64,
    "dx-sums-by-products": outlived.backward_under_autocast,
    "accumulators-of-the-default-dtype": outlived.rows_in_16_bits,
    "adds-to-grad-itself": outlived.beside_grad,
    "output-given-back": outlived.detached_first,
}
CLASSES: dict[str, Callable[[Any], Any]] = {
    "module-eps-not-forwarded": lambda c: c(6, eps=0.5)(torch.arange(6.0)).tolist(),
    "module-weight-zero": lambda c: c(6).weight.tolist(),
    "module-bias-one": lambda c: c(6).bias.tolist(),
    "module-bias-always": lambda c: c(6, bias=False).bias is None,
    "module-affine-always": lambda c: c(6, elementwise_affine=False).weight is None,
    "module-stays-wide": lambda c: c(6).to(torch.bfloat16)(torch.ones(2, 6, dtype=torch.bfloat16)).dtype,
    "module-state-without-bias": plain.state_names,
    "module-shared-copies": plain.copied_weight,
    "module-stale-weight": plain.trained_then_evaluated,
    "module-last-statistics": plain.trained_then_evaluated,
    "module-kept-parameters": plain.with_a_new_bias,
    "module-reset-anew": plain.reset_and_written,
    "module-registered-parameters": plain.with_a_pruned_bias,
    "module-running-mean": plain.trained_then_evaluated,
}


# What a written autograd function cannot do: forward mode, vmap, a third derivative.
COMPOSED = (
    "jvp-without-mean", "jvp-without-parameters", "jvp-wants-x", "second-derivative-off", "third-derivative-off",
    "tangent-lost-in-backward", "vmap-first-parameters", "vmap-parameters-alone", "vmap-bias-alone", "vmap-of-x-first",
    "vmap-other-dimension", "vmap-result-elsewhere", "vmap-samples-as-rows", "vmap-weight-for-rows",
    "jvp-weight-without-bias",
)  # fmt: skip


def test_every_torch_mutant_has_a_scenario() -> None:
    assert set(MUTANTS) == {*FUNCTIONS, *CLASSES, "module-dropout"}


@pytest.mark.parametrize("id", list(FUNCTIONS))
def test_function_is_wrong_in_its_scenario(id: str) -> None:
    def values(f: Any) -> Any:
        out = FUNCTIONS[id](f)
        out = out if isinstance(out, list | tuple) else [out]
        return [t.detach().double() for t in out]

    mutant: Mutant = MUTANTS[id]
    got = values(mutant.target() if mutant.fresh else mutant.target)
    textbook, derivable = values(parts.textbook), values(parts.textbook if id in COMPOSED else DERIVABLE)
    assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(textbook, derivable, strict=True))
    assert any(not torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(got, textbook, strict=True))


@pytest.mark.parametrize("id", list(CLASSES))
def test_module_is_wrong_in_its_scenario(id: str) -> None:
    assert CLASSES[id](MUTANTS[id].target) != CLASSES[id](parts.Module)


def test_dropout_is_on_in_train_mode_only() -> None:
    torch.manual_seed(0)
    module, x = MUTANTS["module-dropout"].target(64), torch.arange(64.0)
    assert not torch.equal(module(x), module(x))
    assert torch.equal(module.eval()(x), module(x))
