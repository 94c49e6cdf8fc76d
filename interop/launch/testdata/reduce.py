"""Joins a gloo group, adds ranks, and prints what a launcher gave it."""
import json
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
dist.barrier()
if len(sys.argv) > 1:
    with open(os.path.join(sys.argv[1], "rank%d.json" % dist.get_rank()), "w") as f:
        json.dump({"sum": x.item(), "env": dict(os.environ), "argv": sys.argv[1:]}, f)
dist.destroy_process_group()
