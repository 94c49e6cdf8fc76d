# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the program ``cohort`` of this installation is."""

import os
import sys
from typing import Iterator, Optional

_NAME = "cohort.exe" if sys.platform == "win32" else "cohort"


def _recorded() -> Optional[str]:
    # What the installer wrote down: right for environments, --user and --prefix.
    try:
        from importlib.metadata import PackageNotFoundError, files
    except ImportError:
        return None
    try:
        listed = files("cohort-dist") or []
    except PackageNotFoundError:
        return None
    for entry in listed:
        if entry.name == _NAME:
            return str(entry.locate())
    return None


def _candidates() -> Iterator[Optional[str]]:
    import sysconfig

    yield _recorded()
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(os.path.dirname(here), "bin", _NAME)  # pip install --target
    yield os.path.join(sysconfig.get_path("scripts"), _NAME)
    from shutil import which

    yield which(_NAME)


def find() -> str:
    """Return the path of the program ``cohort``: the one that came with this package, else the one on the PATH.

    >>> import cohort_dist, subprocess
    >>> subprocess.run([cohort_dist.binary(), "version"]).returncode
    0
    """
    for name in _candidates():
        if name and os.access(name, os.X_OK) and os.path.isfile(name):
            return os.path.realpath(name)
    raise FileNotFoundError(
        "the program %s is neither where pip puts programs nor on the PATH; install it again: "
        "python -m pip install --force-reinstall cohort-dist" % _NAME
    )
