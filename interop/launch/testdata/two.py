"""A rank of a world whose ranks two launchers have started: two.py ADDRESS FIRST WORLD, where the ranks of this launcher begin with FIRST."""
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

rank, world = int(sys.argv[2]) + int(os.environ["RANK"]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="tcp://" + sys.argv[1], rank=rank, world_size=world, timeout=timedelta(seconds=60))
x = torch.tensor([rank + 1.0])
dist.all_reduce(x)
print("rank %d has %d\n" % (rank, int(x)), end="", flush=True)
dist.barrier()
