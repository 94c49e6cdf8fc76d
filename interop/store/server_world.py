# A rank of an all-PyTorch gloo world whose store is elsewhere: sys.argv = port, rank, world size.
import os, sys
from datetime import timedelta

import torch
import torch.distributed as dist

port, rank, size = (int(a) for a in sys.argv[1:4])
kw = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
store = dist.TCPStore("127.0.0.1", port, size, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=True, **kw)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
t = torch.full((3,), float(rank + 1))
dist.all_reduce(t)
assert t.tolist() == [size * (size + 1) / 2] * 3, t
parts = [torch.zeros(1) for _ in range(size)]
dist.all_gather(parts, torch.tensor([float(rank)]))
assert [p.item() for p in parts] == list(range(size)), parts
sub = dist.new_group(list(range(size)))
dist.barrier(sub)
objects = [{"hello": 1} if rank == 0 else None]
dist.broadcast_object_list(objects, src=0)
assert objects == [{"hello": 1}]
dist.barrier()
dist.destroy_process_group()
print("ok", flush=True)
os._exit(0)
