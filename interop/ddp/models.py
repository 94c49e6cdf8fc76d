# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A rank that trains random models, one after the other, as the JSON in argv describes them. It prints what each ends with."""
import contextlib
import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

TYPES = {"float32": torch.float32, "float64": torch.float64}
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "none": lambda x: x}


def numbers(seed, *shape):
    """The same numbers as in Go, of eleven bits."""
    n = 1
    for d in shape:
        n *= d
    out, s = [], seed % 2**31
    for _ in range(n):
        s = (s * 1103515245 + 12345) % 2**31
        out.append(((s >> 8) % 2001 - 1000) / 1024)
    return torch.tensor(out, dtype=torch.float64).reshape(shape)


def part(p, width):
    t = TYPES[p["type"]]
    if p["kind"] == "batchnorm":
        m = torch.nn.BatchNorm1d(width, dtype=t)
    elif p["kind"] == "layernorm":
        m = torch.nn.LayerNorm(width, dtype=t)
    else:
        m = torch.nn.Linear(width, width, bias=p["bias"], dtype=t)
    for name, q in m.named_parameters():
        q.requires_grad_(name not in p["frozen"])
    return m


class Net(torch.nn.Module):
    def __init__(self, spec, rank):
        super().__init__()
        self.parts = torch.nn.ModuleList([part(p, spec["width"]) for p in spec["parts"]])
        self.spec, self.rank, self.at = spec, rank, 0
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(numbers(spec["seed"] + 100 * i + rank, *p.shape) / 4)

    def forward(self, x):
        for b in self.spec["blocks"]:
            if b["skips"] and (self.at + b["offset"] * (1 + self.rank)) % b["skips"] == 0:
                continue
            p = self.parts[b["part"]]
            y = ACTIVATIONS[b["activation"]](p(x.to(TYPES[self.spec["parts"][b["part"]]["type"]])))
            x = x + y if b["residual"] else y
        return x


def train(spec, rank):
    net = Net(spec, rank)
    dist._DEFAULT_FIRST_BUCKET_BYTES = spec["first"]
    model = DistributedDataParallel(
        net, bucket_cap_mb=spec["rest"] / 2**20, find_unused_parameters=spec["unused"], static_graph=spec["static"],
        gradient_as_bucket_view=spec["views"], broadcast_buffers=spec["buffers"])
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=2**-6)
    steps = spec["steps"] + (rank if spec["join"] else 0)
    with model.join() if spec["join"] else contextlib.nullcontext():
        for step in range(steps):
            optimizer.zero_grad()
            for k in range(spec["micro"][step % len(spec["micro"])]):
                last = k == spec["micro"][step % len(spec["micro"])] - 1
                net.at = step * 5 + k
                x = numbers(spec["seed"] * 7 + step * 64 + k * 8 + rank, 4, spec["width"]).float()
                y = numbers(spec["seed"] * 11 + step * 64 + k * 8 + rank, 4, spec["width"])
                with contextlib.nullcontext() if last else model.no_sync():
                    out = model(x)
                    if out.requires_grad:
                        torch.nn.functional.mse_loss(out, y.to(out.dtype)).backward()
            optimizer.step()
    state = list(net.parameters()) + [b for b in net.buffers() if b.is_floating_point()]
    return [[v.hex() for v in t.detach().double().reshape(-1).tolist()] for t in state]


torch.set_num_threads(1)
dist.init_process_group("gloo")
for spec in json.loads(sys.argv[1]):
    print(json.dumps(train(spec, dist.get_rank())), flush=True)
dist.barrier()
dist.destroy_process_group()
