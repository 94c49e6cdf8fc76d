"""A gloo job of two ranks, of which rank 1 gets into trouble: fail.py KIND."""
import ctypes
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

KIND, RANK = sys.argv[1], int(os.environ["RANK"])


def trouble():
    if KIND == "leaves":
        sys.exit(0)
    elif KIND == "segfault":
        ctypes.string_at(0)
    elif KIND == "disk":
        torch.save(torch.ones(1000000), "/dev/full")
    elif KIND == "disk-text":
        with open("/dev/full", "w") as f:
            f.write("step 1")


dist.init_process_group("gloo", timeout=timedelta(seconds=600))
x = torch.ones(4)
dist.all_reduce(x)
if RANK == 1:
    trouble()
dist.all_reduce(x)
