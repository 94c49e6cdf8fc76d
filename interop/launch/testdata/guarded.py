"""Joins a gloo group, adds ranks, and then tries the store that its launcher's gateway leads to."""
import datetime
import json
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
host, port = os.environ["COHORT_STORE"].replace("tls://", "").split(":")
try:
    store = dist.TCPStore(host, int(port), is_master=False, timeout=datetime.timedelta(seconds=1))
    store.set("forged", "value")
    store.get("forged")
    answer = "served"
except Exception:  # of another type in each version
    answer = "refused"
dist.barrier()
with open(os.path.join(sys.argv[1], "rank%d.json" % dist.get_rank()), "w") as f:
    json.dump({"sum": x.item(), "env": dict(os.environ), "argv": [sys.argv[1], answer]}, f)
dist.destroy_process_group()
