"""Rank 1 raises while the others are in a function of their own with a secret among its variables."""
import os
import sys
import time

import torch.distributed as dist


def wait_for_others(password, deadline):
    while time.time() < deadline:
        time.sleep(0.01)


dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(1)  # the others are where they will be
    raise ValueError("bad batch")
wait_for_others("s3cr3t-" + "variable" + os.environ["MY_TOKEN"], time.time() + 600)
