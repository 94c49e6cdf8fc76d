# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs random graphs over tensors of all shapes, empty ones and scalars included: one JSON object per line in, one out."""
import json
import sys
import warnings

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
warnings.simplefilter("ignore")


def ids(n, count):
    return torch.arange(count) * 3 % max(n, 1)


OPS = {
    "neg": lambda x, a: -x[0], "abs": lambda x, a: x[0].abs(), "exp": lambda x, a: x[0].tanh().exp(),
    "log": lambda x, a: (x[0].abs() + 1).log(),
    "sqrt": lambda x, a: (x[0].abs() + 1).sqrt(), "sin": lambda x, a: x[0].sin(), "cos": lambda x, a: x[0].cos(),
    "tanh": lambda x, a: x[0].tanh(),
    "sigmoid": lambda x, a: x[0].sigmoid(), "relu": lambda x, a: x[0].relu(), "gelu": lambda x, a: F.gelu(x[0]),
    "gelutanh": lambda x, a: F.gelu(x[0], approximate="tanh"), "pow": lambda x, a: x[0].tanh().pow(a[0]),
    "scale": lambda x, a: x[0] * -0.75, "shift": lambda x, a: x[0] + 0.5,
    "add": lambda x, a: x[0] + x[1], "sub": lambda x, a: x[0] - x[1], "mul": lambda x, a: x[0] * x[1],
    "div": lambda x, a: x[0] / (x[1] * x[1] + 1),
    "sum": lambda x, a: x[0].sum(a[1:], keepdim=a[0] > 0), "mean": lambda x, a: x[0].mean(a[1:], keepdim=a[0] > 0),
    "sumall": lambda x, a: x[0].sum(), "meanall": lambda x, a: x[0].mean(), "maxall": lambda x, a: x[0].max(),
    "max": lambda x, a: x[0].max(a[1], keepdim=a[0] > 0)[0], "softmax": lambda x, a: x[0].softmax(a[0]),
    "logsoftmax": lambda x, a: x[0].log_softmax(a[0]),
    "reshape": lambda x, a: x[0].reshape(a), "permute": lambda x, a: x[0].permute(a), "transpose": lambda x, a: x[0].transpose(a[0], a[1]),
    "expand": lambda x, a: x[0].expand([a[0]] + list(x[0].shape)), "select": lambda x, a: x[0].select(a[0], a[1]),
    "slice": lambda x, a: x[0][a[0]:a[1]:a[2]], "cat": lambda x, a: torch.cat(x, a[0]), "stack": lambda x, a: torch.stack(x, a[0]),
    "index": lambda x, a: x[0][ids(x[0].shape[0], 4)], "embedding": lambda x, a: F.embedding(ids(x[0].shape[0], 4).reshape(2, 2), x[0]),
    "matmul": lambda x, a: x[0].matmul(x[1]), "linear": lambda x, a: F.linear(x[0], x[1]), "bias": lambda x, a: F.linear(x[0], x[1], x[2]),
    "norm": lambda x, a: F.layer_norm(x[0], x[0].shape[x[0].dim() - a[0]:]),
    "affine": lambda x, a: F.layer_norm(x[0], x[0].shape[-1:], x[1], x[2]),
    "entropy": lambda x, a: F.cross_entropy(x[0], ids(x[0].shape[1], x[0].shape[0]), reduction=["mean", "sum", "none"][a[0]]),
    "mse": lambda x, a: F.mse_loss(x[0], x[1], reduction=["mean", "sum", "none"][a[0]]),
    "mask": lambda x, a: x[0].masked_fill(x[0] > 0, 0.25), "detach": lambda x, a: x[0].detach(),
}


def run(graph, dtype):
    regs, refused = [], []
    for leaf in graph["leaves"]:
        t = torch.tensor([float.fromhex(v) for v in leaf["values"]], dtype=torch.float64).reshape(leaf["shape"]).to(dtype)
        regs.append(t.requires_grad_(leaf["grad"]))
    for i, step in enumerate(graph["steps"]):
        try:
            y = OPS[step["op"]]([regs[k] for k in step["inputs"]], step["args"])
        except (RuntimeError, IndexError, ValueError, TypeError) as e:
            refused.append([i, str(e)[:200]])
            if not step["bad"]:
                return [], refused, []
            continue
        if step["bad"]:
            continue
        regs.append(y)
    for k in graph["hooks"]:
        if regs[k].requires_grad:
            regs[k].register_hook(lambda g: g * -2)
    for k in graph["kept"]:
        if regs[k].requires_grad:
            regs[k].retain_grad()
    for n, weights in enumerate(graph["passes"]):
        loss = sum(regs[k].sum() * w for k, w in enumerate(weights))
        if loss.requires_grad:
            loss.backward(retain_graph=n + 1 < len(graph["passes"]))
    kept = [i for i, r in enumerate(regs) if i < len(graph["leaves"]) or i in graph["kept"]]
    return regs, refused, [regs[i].grad for i in kept]


def shown(t):
    return None if t is None else {"shape": list(t.shape), "values": [v.hex() for v in t.detach().double().reshape(-1).tolist()]}


for line in sys.stdin:
    graph, out = json.loads(line), {}
    for name, dtype in (("single", torch.float32), ("double", torch.float64)):
        regs, refused, grads = run(graph, dtype)
        out[name] = {"values": [shown(r) for r in regs], "grads": [shown(g) for g in grads], "refused": refused,
                "requires": [r.requires_grad for r in regs]}
    print(json.dumps(out), flush=True)
