"""Trains a small model with DistributedDataParallel and writes what came out."""
import json
import os
import sys

import torch
import torch.distributed as dist

torch.manual_seed(7)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(100 + rank))
for batch in data:
    optimizer.zero_grad()
    loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
total = sum(p.double().abs().sum().item() for p in model.parameters())
with open(os.path.join(sys.argv[1], "rank%d.json" % rank), "w") as f:
    json.dump({"sum": total, "argv": ["%.6f" % loss.item()]}, f)
dist.barrier()
dist.destroy_process_group()
