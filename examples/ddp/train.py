"""One PyTorch rank of a DistributedDataParallel job; a Go process is another rank of it (see main.go).

usage: train.py RANK WORLD_SIZE PORT [STEPS]
"""
import json
import sys

import torch
import torch.distributed as dist

rank, size, port = map(int, sys.argv[1:4])
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 20

dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
torch.manual_seed(rank)  # DDP gives everybody rank 0's parameters
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
truth = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.25, 1.5, -1.0, 2.0]])


def shard(step):
    """This rank's samples of a step: the same formula as in main.go."""
    i = torch.arange(32, dtype=torch.float32)
    x = torch.sin(i * 0.7 + rank * 1.3 + step * 0.1).reshape(8, 4)
    return x, x @ truth.T + 0.1


for step in range(steps):
    x, y = shard(step)
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()

print(json.dumps({"rank": rank, "loss": loss.item(), "weight": model.module.weight.tolist(), "bias": model.module.bias.tolist()}), flush=True)
dist.barrier()
