# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs plain.py once a file is gone.

usage: late.py FILE
"""
import os
import runpy
import sys
import time

from cohort_dist.why import section, step  # before torch

step(7)
with section("load"):
    while os.path.exists(sys.argv[1]):
        time.sleep(0.05)
runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plain.py"), run_name="__main__")
