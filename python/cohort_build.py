# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""The build backend of the source distribution (PEP 517). Go does the work: the same program that makes the released wheels."""

import os
import shutil
import subprocess

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _release(option, folder):
    if shutil.which("go") is None:
        raise SystemExit(
            "cohort-dist: this system has no ready wheel, and building one needs Go 1.26 or later on the PATH: https://go.dev/dl/"
        )
    command = ["go", "run", "./internal/devtools/release", option, os.path.abspath(folder)]
    # Settings of the user for other programs must not change the bytes.
    env = dict(os.environ, GOFLAGS="-mod=readonly -buildvcs=false", CGO_ENABLED="0")
    out = subprocess.run(command, cwd=_ROOT, env=env, stdout=subprocess.PIPE, check=True).stdout
    return out.decode().split()[-1]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the wheel for this platform into a folder and return its name."""
    return _release("-wheel", wheel_directory)


def build_sdist(sdist_directory, config_settings=None):
    """Build the source distribution into a folder and return its name."""
    return _release("-sdist", sdist_directory)
