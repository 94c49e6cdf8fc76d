# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs random graphs: one JSON object per line in, one out. Each is run in its own type and in float64."""
import json
import sys

import torch
import torch.nn.functional as F

torch.set_num_threads(1)

OPS = {
    "add": lambda r, a: r[a[0]] + r[a[1]],
    "sub": lambda r, a: r[a[0]] - r[a[1]],
    "mul": lambda r, a: r[a[0]] * r[a[1]],
    "div": lambda r, a: r[a[0]] / (r[a[1]] * r[a[1]] + 1),
    "scale": lambda r, a: r[a[0]] * -0.75,
    "shift": lambda r, a: r[a[0]] + 0.5,
    "neg": lambda r, a: -r[a[0]],
    "abs": lambda r, a: r[a[0]].abs(),
    "exp": lambda r, a: torch.tanh(r[a[0]]).exp(),
    "log": lambda r, a: (r[a[0]].abs() + 1).log(),
    "sqrt": lambda r, a: (r[a[0]].abs() + 1).sqrt(),
    "square": lambda r, a: torch.tanh(r[a[0]]).pow(2.0),
    "tanh": lambda r, a: r[a[0]].tanh(),
    "sigmoid": lambda r, a: r[a[0]].sigmoid(),
    "relu": lambda r, a: r[a[0]].relu(),
    "gelu": lambda r, a: F.gelu(r[a[0]]),
    "gelutanh": lambda r, a: F.gelu(r[a[0]], approximate="tanh"),
    "softmax": lambda r, a: torch.softmax(r[a[0]], a[1]),
    "logsoftmax": lambda r, a: torch.log_softmax(r[a[0]], a[1]),
    "sum": lambda r, a: r[a[0]].sum(a[1], keepdim=True),
    "mean": lambda r, a: r[a[0]].mean(a[1], keepdim=True),
    "max": lambda r, a: r[a[0]].max(a[1], keepdim=True)[0],
    "maxall": lambda r, a: r[a[0]].max(),
    "transpose": lambda r, a: r[a[0]].transpose(0, 1),
    "flip": lambda r, a: r[a[0]].reshape(r[a[0]].shape[1], r[a[0]].shape[0]),
    "rows": lambda r, a: r[a[0]][0:2],
    "cols": lambda r, a: r[a[0]][:, ::2],
    "select": lambda r, a: r[a[0]][-1],
    "cat": lambda r, a: torch.cat([r[a[0]], r[a[0]] * 2], 1),
    "index": lambda r, a: r[a[0]][torch.tensor([1, 0, 1])],
    "matmul": lambda r, a: torch.matmul(r[a[0]], r[a[1]].transpose(0, 1)),
    "batch": lambda r, a: torch.matmul(torch.stack([r[a[0]], r[a[0]] * 2]), r[a[1]].transpose(0, 1)).sum(0),
    "norm": lambda r, a: F.layer_norm(r[a[0]], r[a[0]].shape[1:], None, None, 1e-5),
    "entropy": lambda r, a: F.cross_entropy(r[a[0]], torch.arange(r[a[0]].shape[0]) % r[a[0]].shape[1]),
    "mse": lambda r, a: F.mse_loss(r[a[0]], r[a[1]].detach()),
    "detach": lambda r, a: r[a[0]].detach(),
}


def run(graph, dtype):
    leaves = []
    for leaf in graph["leaves"]:
        t = torch.frombuffer(bytearray.fromhex(leaf["bits"]),
                dtype=torch.float32).reshape(leaf["shape"]).to(getattr(torch, graph["dtype"])).to(dtype)
        leaves.append(t.clone().requires_grad_(leaf["grad"]))
    regs = list(leaves)
    for step in graph["steps"]:
        regs.append(OPS[step["op"]](regs, step["args"]))
    loss = sum(regs[i].sum() * w for i, w in graph["roots"])
    if loss.requires_grad:
        loss.backward()
    return regs, leaves, loss


def flat(t):
    return None if t is None else [float(x) for x in t.detach().double().reshape(-1).tolist()]


for line in sys.stdin:
    graph = json.loads(line)
    out = {}
    for name, dtype in (("single", getattr(torch, graph["dtype"])), ("double", torch.float64)):
        regs, leaves, loss = run(graph, dtype)
        out[name] = {
            "values": [flat(r) for r in regs],
            "grads": [flat(t.grad) for t in leaves],
            "loss": float(loss.detach()),
        }
    out["shapes"] = [list(r.shape) for r in regs]
    out["requires"] = [r.requires_grad for r in regs]
    out["leaf"] = [r.is_leaf for r in regs]
    print(json.dumps(out).replace("NaN", '"nan"').replace("-Infinity", '"-inf"').replace("Infinity", '"inf"'), flush=True)
