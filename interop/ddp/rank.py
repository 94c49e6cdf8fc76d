# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A rank of a DistributedDataParallel job with several buckets: MODE STEPS."""
import contextlib
import hashlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

MODE, STEPS = sys.argv[1], int(sys.argv[2])


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left = torch.nn.Linear(64, 8)
        self.right = torch.nn.Linear(64, 8)
        self.never = torch.nn.Linear(64, 8)
        self.go_right = False

    def forward(self, x):
        return self.right(x) if self.go_right else self.left(x)


class Lookup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 8)
        self.table = torch.nn.Embedding(50, 8, sparse=True)
        self.last = torch.nn.Linear(8, 8)

    def forward(self, x):
        ids = (x[:, :6].abs() * 17).long() % 50
        return self.last(torch.tanh(self.first(x) + self.table(ids).sum(1) + self.table(ids[:, :2]).sum(1)))


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
if MODE == "unused":
    net = Branches()
    model = DistributedDataParallel(net, find_unused_parameters=True)
elif MODE == "tied":
    shared = torch.nn.Linear(64, 64)
    net = torch.nn.Sequential(shared, torch.nn.Tanh(), shared, torch.nn.Tanh(), torch.nn.Linear(64, 8))
    model = DistributedDataParallel(net)
elif MODE == "buffers":
    net = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    model = DistributedDataParallel(net)
elif MODE.endswith("sparse"):
    net = Lookup()
    model = DistributedDataParallel(net, bucket_cap_mb=0.001)
elif MODE == "static":
    net = Branches()
    model = DistributedDataParallel(net, static_graph=True, bucket_cap_mb=0.001)
else:
    net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Tanh(),
            torch.nn.Linear(512, 8))
    model = DistributedDataParallel(net, bucket_cap_mb=1)
if MODE == "fp16":
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    model.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
uneven = expected = contextlib.nullcontext()
if MODE.startswith("join"):  # each rank has another number of steps
    STEPS += rank
    uneven = model.join(divide_by_initial_world_size=MODE != "join-active", throw_on_early_termination=MODE == "join-throw")


@contextlib.contextmanager
def raises(words):
    try:
        yield
    except RuntimeError as e:
        assert words in str(e), e
    else:
        assert False, "nothing was raised: " + words


if MODE == "join-throw":  # rank 0 has the fewest, and all stop where it does
    expected = raises("Rank 0 exhausted all inputs" if rank == 0 else "Detected at least one rank that exhausted inputs")
with expected, uneven:
    for step in range(STEPS):
        optimizer.zero_grad()
        micro = 3 if MODE in ("accumulate", "buffers", "accumulate-sparse") else 1
        for k in range(micro):
            x = torch.randn(4, 64)
            y = x[:, :8].sin()
            if MODE == "unused":
                net.go_right = (rank + step) % 3 == 0
            with model.no_sync() if k < micro - 1 else contextlib.nullcontext():
                torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
print(hashlib.sha256(flat.numpy().tobytes()).hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
