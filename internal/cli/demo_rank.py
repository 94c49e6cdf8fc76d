"""The PyTorch rank of "cohort demo": adds up with the Go ranks, then hangs."""
import os
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])


def load_batch():
    print("loads the next batch, and that takes for ever", flush=True)
    time.sleep(600)


dist.init_process_group("gloo")
for step in (1, 2, 3):
    x = torch.full((4,), float(RANK + 1))
    dist.all_reduce(x)
    print("step %d: the sum is %g (PyTorch %s)" % (step, x[0].item(), torch.__version__), flush=True)
load_batch()
