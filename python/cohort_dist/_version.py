# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""The version: the only place that holds it."""

__version__ = "0.1.0"
