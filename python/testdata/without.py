# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Where no memory file can be made, the functions do nothing."""

import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
sys.modules["ctypes"] = None
if hasattr(os, "memfd_create"):
    del os.memfd_create
from cohort_dist.why import section, step  # noqa: E402

with section("load"), section("decode"):
    step()
    step(7)
print("done")
