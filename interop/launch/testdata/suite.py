"""Runs tests of PyTorch's launcher with "cohort run" in the place of torchrun.

Arguments: the command, the file, and the tests. For each test a line "suite NAME ok" or "suite NAME failed" is printed, what is
wrong goes to stderr.
"""
import importlib.util
import os
import subprocess
import sys
import unittest

import torch
import torch.distributed.launch
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

command, file, names = sys.argv[1], sys.argv[2], sys.argv[3:]


def run(args, *before):
    """What main does with a command line, except that the launcher is another one."""
    env = dict(os.environ, PYTHON_EXEC=sys.executable)
    if torch.cuda.is_available():  # a test says how many there are
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(torch.cuda.device_count())))
    for _ in range(5):
        p = subprocess.run([command, "run", "--evidence", "-", *before, *args], env=env, capture_output=True, text=True, timeout=120)
        # The tests end without destroy_process_group. If gloo's thread then drops the last reference to a tensor while Python is
        # shutting down, PyTorch 2.6 aborts: the interpreter ends that thread, in a destructor.
        if p.returncode != 1 or "terminate called without an active exception" not in p.stderr:
            break
    sys.stdout.write(p.stdout)
    sys.stderr.write(p.stderr)
    if p.returncode == 2:
        raise ValueError(p.stderr)
    if p.returncode:
        raise ChildFailedError(p.stderr, {})


torch.distributed.run.main = run
torch.distributed.launch.main = lambda args: run(args, "--pass-local-rank")

spec = importlib.util.spec_from_file_location("suite", file)
module = importlib.util.module_from_spec(spec)
sys.modules["suite"] = module
spec.loader.exec_module(module)
sys.argv = [file]
for name in names:
    found = unittest.defaultTestLoader.loadTestsFromName(name, module)
    before = dict(os.environ)
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(found)
    os.environ.clear()
    os.environ.update(before)
    good = result.wasSuccessful() and result.testsRun == 1 and not result.skipped
    print("\nsuite", name, "ok" if good else "failed", flush=True)
