"""The allocator of a check's own processes."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from lnverify.allocator import keep_freed_memory
from lnverify.double_double import DoubleDouble
if sys.argv[1] == "kept":
    keep_freed_memory()
x = DoubleDouble(np.ones((64, 768)))  # 96 pages for each word
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    x + x
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has another allocator")
def test_arrays_are_not_mapped_anew():
    """One sum takes some twenty arrays of 96 pages: what is kept is faulted in once, not in each of 50 sums."""
    done = subprocess.run([sys.executable, "-c", FAULTS, "kept"], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5 * 20 * 96
