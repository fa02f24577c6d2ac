"""Targets: what a string names, what the query declares, and one sentence for each way to get it wrong."""

from __future__ import annotations

import sys

import pytest

from lnverify.errors import FrameworkError, SignatureError, TargetError, UsageError
from lnverify.subject import ATTRIBUTE, Declaration, Subject, declare, declared
from lnverify.target import parse_target, resolve

NUMPY_LN = """
import numpy as np

def forward(x, weight=None, bias=None, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) / np.sqrt(x.var(-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias

def bare(x):
    return forward(x, eps=1e-6)

number = 3

class Thing:
    pass
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a file of NumPy functions; sys.path and the new modules are put back."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.py").write_text(NUMPY_LN)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith(("lnverify_target_", "mypkg")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "kind", "place", "name", "options"),
    [
        ("torch.nn.LayerNorm", "", "torch.nn.LayerNorm", "", {}),
        ("mypkg.nn:FusedLN?eps=1e-6", "", "mypkg.nn", "FusedLN", {"eps": "1e-6"}),
        ("./k.py:fwd?backward=bwd&eps=1e+2", "", "./k.py", "fwd", {"backward": "bwd", "eps": "1e+2"}),
        ("C:/k.py", "", "C:/k.py", "", {}),
        ("C:/k.py:fwd", "", "C:/k.py", "fwd", {}),
        ("onnx:model.onnx?opset=17", "onnx", "model.onnx", "", {"opset": "17"}),
        ("library:./libln.so:ln_f32", "library", "./libln.so", "ln_f32", {}),
        ("process:./ln --stdin", "process", "./ln --stdin", "", {}),
        ("m:f?deterministic", "", "m", "f", {"deterministic": ""}),
    ],
)
def test_grammar(text, kind, place, name, options):
    parsed = parse_target(text, ("onnx", "library", "process"))
    assert (parsed.kind, parsed.place, parsed.name, parsed.options) == (kind, place, name, options)


def test_an_empty_target_is_a_usage_error():
    with pytest.raises(UsageError, match="is empty"):
        parse_target("?eps=1")


def test_a_function_in_a_file(here):
    subject = resolve("./kernels.py:forward")
    assert (subject.target, subject.framework) == ("./kernels.py:forward", "numpy")
    assert subject.capabilities.dtypes == ("float64", "float32")
    assert subject.capabilities.max_dims == 1
    assert set(subject.versions) == {"numpy"}
    assert str(here) in sys.path  # for what a function imports when it is called


def test_a_package_in_the_working_folder(here):
    (here / "mypkg").mkdir()
    (here / "mypkg" / "__init__.py").write_text("")
    (here / "mypkg" / "nn.py").write_text(NUMPY_LN)
    assert resolve("mypkg.nn:forward").framework == "numpy"
    assert resolve("mypkg.nn.forward").framework == "numpy"
    with pytest.raises(TargetError, match="no attribute 'forwrd', did you mean 'forward'"):
        resolve("mypkg.nn.forwrd")


def test_a_file_that_imports_its_neighbour(here):
    (here / "sub").mkdir()
    (here / "sub" / "mypkg_helper.py").write_text(NUMPY_LN)
    (here / "sub" / "k.py").write_text(
        "import numpy\nfrom mypkg_helper import forward as f\ndef g(x, eps): return f(x, eps=eps)\n"
    )
    assert resolve("sub/k.py:g").capabilities.affine == ("none",)


def test_query_options_mean_what_the_decorator_means(here):
    text = "kernels.py:bare?eps=1e-6&dtypes=fp32,bf16&compute=float32&framework=numpy&deterministic&map=x:x"
    found = resolve(text).capabilities
    assert (found.eps, found.dtypes, found.deterministic) == (1e-6, ("float32", "bfloat16"), True)
    assert found.compute == {"float32": "float32", "bfloat16": "float32"}


def test_the_query_overrules_the_decorator(here):
    (here / "k.py").write_text(
        "import numpy as np\nfrom lnverify.subject import declare\n"
        "@declare(eps=1e-3, dtypes=('float32',), name='mine')\ndef f(x):\n    return x\n"
    )
    assert resolve("k.py").target == "mine"  # the only declared function of the file
    found = resolve("k.py:f?eps=0.5").capabilities
    assert (found.eps, found.dtypes) == (0.5, ("float32",))


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("nosuchpackage.ln", TargetError, "no module 'nosuchpackage'"),
        ("numpi.linalg:norm", TargetError, "did you mean 'numpy'"),
        ("json.decoderr:f", TargetError, "'json' has no module 'decoderr', did you mean 'decoder'"),
        ("json:dumpz", TargetError, "no attribute 'dumpz', did you mean .*'dumps'"),
        ("./kernel.py:f", TargetError, "no file 'kernel.py', did you mean 'kernels.py'"),
        ("./kernels.py:forwards", TargetError, "has no attribute 'forwards', did you mean 'forward'"),
        ("./kernels.py", TargetError, "name one of forward, bare, Thing"),
        ("./kernels.py:number", TargetError, "is a int, not a callable"),
        ("./kernels.py:Thing?framework=numpy", TargetError, "is a class that no adapter knows"),
        ("./kernels.py:bare", SignatureError, "eps=1e-6"),
        ("./kernels.py:forward?epz=1", UsageError, "unknown option 'epz'.*options are affine, backward"),
        ("./kernels.py:forward?dtypes=float8", UsageError, "unknown dtype 'float8'"),
        ("./kernels.py:forward?eps=small", UsageError, "eps=small cannot be read"),
        ("./kernels.py:forward?framework=cobol", UsageError, "'cobol': choose from numpy, torch"),
        ("./kernels.py:forward?backward=bwd", TargetError, "no function 'bwd' beside"),
        ("two words", TargetError, "neither a dotted name nor a Python file"),
    ],
)  # fmt: skip
def test_each_error_is_one_sentence(here, text, error, said):
    with pytest.raises(error, match=said) as caught:
        resolve(text)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


def test_a_file_that_raises_on_import_names_the_error_and_the_line(here):
    (here / "bad.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(TargetError, match=r"raised ZeroDivisionError: division by zero \(.*bad.py, line 2\)"):
        resolve("bad.py:f")
    assert not [name for name in sys.modules if name.startswith("lnverify_target_bad")]


def test_a_missing_framework_comes_with_the_command_that_installs_it(here):
    (here / "needs.py").write_text("import nosuchframework\n")
    with pytest.raises(FrameworkError, match="pip install nosuchframework"):
        resolve("needs.py:f")


def test_torch_missing(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # import torch raises from here on
    with pytest.raises(FrameworkError, match="pip install torch"):
        resolve("kernels.py:forward?framework=torch")


def test_an_unknown_device_or_operation_is_a_usage_error(here):
    with pytest.raises(UsageError, match=r"device 'cuda' is not available.*choose from cpu"):
        resolve("kernels.py:forward", device="cuda")
    with pytest.raises(UsageError, match="unknown operation 'conv'"):
        resolve("kernels.py:forward", operation="conv")


def test_the_module_itself_is_the_decorator(here):
    (here / "k.py").write_text(
        "import numpy as np\nimport lnverify\n"
        "@lnverify.subject(eps=1e-3, dtypes=('float32',))\ndef f(x):\n    return x\n"
    )
    assert resolve("k.py:f").capabilities.eps == 1e-3


def test_the_decorator_returns_the_object_itself_and_is_not_inherited():
    def fn(x):
        return x

    class Base:
        pass

    class Child(declare(eps=1e-4)(Base)):
        pass

    assert declare(eps=1e-4, arguments={"g1": "weight"})(fn) is fn
    assert declared(fn).eps == 1e-4
    assert declared(fn).arguments == {"g1": "weight"}
    assert declared(Base()).eps == 1e-4
    assert declared(Child) == Declaration()
    assert hasattr(Child, ATTRIBUTE)
    assert declare(fn) is fn
    assert declared(fn).returns == ("y",)


@pytest.mark.parametrize(
    "said",
    [
        {"dtypes": "fp8"},
        {"affine": "all"},
        {"backward_from": "middle"},
        {"compute": {"float32": "x87"}},
        {"eps": "a"},
    ],
)
def test_the_decorator_refuses_what_is_not_allowed(said):
    with pytest.raises(UsageError):
        declare(**said)


def test_a_subject_resolves_to_itself(here):
    subject = resolve("kernels.py:forward")
    assert isinstance(subject, Subject)
    assert resolve(subject) is subject
