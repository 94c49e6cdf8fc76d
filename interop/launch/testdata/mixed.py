"""A PyTorch rank of a job that has Go ranks too: adds up as they do."""
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 6):
    x = torch.full((4,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    print("torch step %d: the sum is %g" % (step, x[0].item()), flush=True)
dist.barrier()
print("torch %(ROLE_NAME)s %(ROLE_RANK)s of %(ROLE_WORLD_SIZE)s has seen all" % os.environ, flush=True)
