"""A gloo job of which the last rank never comes to the second all_reduce: what BenchmarkLook looks at."""
import time

import torch
import torch.distributed as dist


def load_batch():
    time.sleep(3600)


dist.init_process_group("gloo")
x = torch.ones(4, 2)
dist.all_reduce(x)  # connects all ranks
print("connected", flush=True)
if dist.get_rank() == dist.get_world_size() - 1:
    load_batch()
dist.all_reduce(x)
