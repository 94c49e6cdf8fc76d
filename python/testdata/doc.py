# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the examples in the documentation of the package."""

import doctest
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import cohort_dist  # noqa: E402

results = [doctest.testmod(m) for m in (cohort_dist, cohort_dist.why)]  # those of the other modules need a store and torch
assert all(r.attempted > 0 for r in results), results
if not any(r.failed for r in results):
    print("done")
