"""Calls the other worker, holds a reference to what it has made, and writes what came out."""
import json
import os
import sys

import torch
from torch.distributed import rpc

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc("worker%d" % rank, rank=rank, world_size=world)
other = "worker%d" % (1 - rank)
total = rpc.rpc_sync(other, torch.add, args=(torch.ones(2), rank)).sum().item()
total += rpc.remote(other, torch.mul, args=(torch.full((2,), 3.0), rank + 1)).to_here().sum().item()
with open(os.path.join(sys.argv[1], "rank%d.json" % rank), "w") as f:
    json.dump({"sum": total, "argv": [rpc.get_worker_info(other).name]}, f)
rpc.shutdown()
