# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A rank of an ordinary DistributedDataParallel job. Nothing in it knows that another rank is a Go program.

usage: RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python3 train.py [STEPS]
"""
import hashlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
BATCH = 32


def batch(generator):
    x = torch.rand(BATCH, 3, generator=generator) * 2 - 1
    return x, (x[:, 0] * x[:, 1] + x[:, 2]).unsqueeze(1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)  # each rank starts elsewhere: DDP takes rank 0's parameters
    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    generator = torch.Generator().manual_seed(1000 + rank)
    first = last = None
    for _ in range(STEPS):
        x, y = batch(generator)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = first if first is not None else loss.item(), loss.item()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]
    print(f"rank {rank} loss {first:.4f} -> {last:.4f} parameters {digest}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
