# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""cohort: launch, watch and debug torch.distributed jobs.

The program is the command ``cohort``; this package holds the little that has to run inside a rank. Importing it loads
neither torch nor ctypes, and takes a few milliseconds.

>>> import cohort_dist
>>> cohort_dist.__version__
'0.1.0'
"""

from typing import Any, List

from ._version import __version__

__all__ = ["__version__", "binary"]
_MODULES = ("elastic", "store", "why")  # the first two import torch


def __getattr__(name: str) -> Any:
    # The submodules and what needs imports are loaded when they are asked for first (PEP 562).
    if name == "binary":
        from ._binary import find

        return find
    if name in _MODULES:
        from importlib import import_module

        return import_module("." + name, __name__)
    raise AttributeError("module %r has no attribute %r" % (__name__, name))


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__, *_MODULES})
