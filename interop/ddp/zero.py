# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A rank of a job whose optimizer is sharded (ZeroRedundancyOptimizer): STEPS. It prints a digest of its parameters."""
import hashlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
model = DistributedDataParallel(net)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.125, momentum=0.5)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    x = torch.randn(4, 64)
    torch.nn.functional.mse_loss(model(x), x[:, :8].sin()).backward()
    optimizer.step()
flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
print(hashlib.sha256(flat.numpy().tobytes()).hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
