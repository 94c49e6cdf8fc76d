# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m cohort_dist run train.py`` is ``cohort run train.py``, with the program of this Python."""

import os
import subprocess
import sys

from ._binary import find


def main() -> int:
    """Become the program ``cohort``, with the arguments of this process."""
    try:
        program = find()
    except FileNotFoundError as e:
        print("cohort_dist: %s" % e, file=sys.stderr)
        return 1
    arguments = [program] + sys.argv[1:]
    if sys.platform == "win32":  # exec there returns to the shell at once
        return subprocess.call(arguments)
    os.execv(program, arguments)


if __name__ == "__main__":
    sys.exit(main())
