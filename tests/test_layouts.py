"""Layouts: the same bits at other places in memory."""

from __future__ import annotations

import numpy as np
import pytest

from lnverify.adapters.layouts import NAN_BITS, place
from lnverify.floats import FORMATS, FloatArray
from lnverify.protocol import LAYOUTS
from tests.adapter_samples import DTYPES

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS[:-1])
@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 4), (0, 4), (2, 1, 3, 5)])
def test_every_layout_has_the_same_bits_in_torch_and_numpy(dtype, layout, shape):
    from lnverify.adapters.numpy_function import hold as numpy_hold
    from lnverify.adapters.torch_tensors import hold, to_array

    array = FloatArray.of(np.random.default_rng(1).standard_normal(shape), dtype)
    assert to_array(hold(array, layout, "cpu").tensor, "x").sha256 == array.sha256
    held = numpy_hold(array, layout)
    assert np.array_equal(held.array.astype(np.float64), array.values)
    assert not np.may_share_memory(held.array, array.bits)
    assert not hold(array, layout, "cpu").changed()


def test_rows_far_apart_are_views_of_what_exists_only_in_part():
    import torch

    from lnverify.adapters.torch_tensors import hold

    held = hold(FloatArray.of(np.arange(6.0).reshape(3, 2), "float32"), "far", "cpu")
    assert held.tensor.stride() == ((1 << 31) + 64, 1)
    assert held.tensor.storage_offset() == 0
    assert not held.changed()
    held.tensor[2, 1] = 7.0
    assert held.changed()
    assert place(FloatArray.of(np.zeros((4, 2)), "float32"), "far", sparse=True).strides == (4, 1)  # more than 3 rows
    assert torch.equal(held.tensor[2], torch.tensor([4.0, 7.0]))


def test_special_bits_survive():
    from lnverify.adapters.torch_tensors import hold, to_array

    for name, fmt in FORMATS.items():
        # A NaN with a payload, the smallest subnormal, -0 and infinity.
        top = fmt.bits(1) << fmt.bits(fmt.bits().itemsize * 8 - 1)
        bits = np.array([NAN_BITS[name] + 1, 1, top, FloatArray.of([np.inf], name).bits[0]], fmt.bits)
        assert to_array(hold(FloatArray(name, bits), "strided", "cpu").tensor, "x").bits.tolist() == bits.tolist()


def test_strides_are_what_the_layouts_say():
    x = FloatArray.of(np.arange(24.0).reshape(2, 3, 4), "float32")
    same = FloatArray.of(np.tile(np.arange(4.0), (2, 3, 1)), "float32")
    assert place(x, "transposed").strides == (12, 1, 3)
    assert place(x, "permuted").strides == (12, 1, 3)
    assert place(x, "strided").strides == (24, 8, 2)
    assert (place(x, "reversed").strides, place(x, "reversed").offset) == ((12, 4, -1), 3)
    assert place(x, "reversed", negative=False).strides == (24, 8, 2)
    assert place(x, "offset").offset % 2 == 1
    assert place(x, "offset").buffer.size > 24
    assert place(same, "expanded").strides == (0, 0, 1)
    assert place(x, "expanded").strides == (12, 4, 1)
    assert place(FloatArray.of(np.ones((2, 3)), "float16"), "expanded").strides == (0, 0)
    assert (place(x, "shifted").strides, place(x, "shifted").offset) == ((12, 1, 3), 3)
    assert (place(x, "cropped").strides, place(x, "sliced").strides) == ((24, 4, 1), (24, 4, 1))
    four = FloatArray.of(np.zeros((2, 3, 4, 5)), "float32")
    assert place(four, "cropped").strides == (105, 35, 5, 1)
    assert place(four, "permuted").strides == (60, 1, 15, 3)  # channels last
    gaps = place(x, "strided").buffer[1::2]
    assert (gaps == NAN_BITS["float32"]).all()
