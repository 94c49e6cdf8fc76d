# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs plain.py once a pipe has been written to.

usage: late.py PIPE
"""
import os
import runpy
import sys

from cohort_dist.why import section, step  # before torch

step(7)
with section("load"):
    open(sys.argv[1]).close()
runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plain.py"), run_name="__main__")
