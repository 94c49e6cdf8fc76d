"""Workers of an NCCL job under cohort run. MODE: ok, assert (a CUDA error in the first attempt), hang (rank 1 stays away)."""
import os
import sys
import time

import torch
import torch.distributed as dist

mode, rank = sys.argv[1], int(os.environ["RANK"])


def never_enters():
    time.sleep(600)


dist.init_process_group("nccl")
if mode == "hang" and rank == 1:
    never_enters()
x = torch.ones(1 << 20, device="cuda")
if mode == "assert" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    bad = torch.tensor([5], device="cuda")
    x[:2][bad] += 1
    torch.cuda.synchronize()
dist.all_reduce(x)
torch.cuda.synchronize()
print("python: nccl", torch.cuda.nccl.version(), "rank", rank, "sum", x[0].item(), "attempt",
        os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
dist.destroy_process_group()
