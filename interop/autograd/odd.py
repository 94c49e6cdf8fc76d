# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Applies one function to odd values: one JSON request per line, one answer with the result and the gradients, or the error."""
import json
import sys
import warnings

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
warnings.simplefilter("ignore")

RED = ["mean", "sum", "none"]
OPS = {
    "neg": lambda x, a: -x[0], "abs": lambda x, a: x[0].abs(), "exp": lambda x, a: x[0].exp(), "log": lambda x, a: x[0].log(),
    "sqrt": lambda x, a: x[0].sqrt(), "sin": lambda x, a: x[0].sin(), "cos": lambda x, a: x[0].cos(), "tanh": lambda x, a: x[0].tanh(),
    "sigmoid": lambda x, a: x[0].sigmoid(), "relu": lambda x, a: x[0].relu(), "gelu": lambda x, a: F.gelu(x[0]),
    "gelutanh": lambda x, a: F.gelu(x[0], approximate="tanh"),
    "pow": lambda x, a: x[0].pow(a[0]), "scale": lambda x, a: x[0] * a[0], "shift": lambda x, a: x[0] + a[0],
    "add": lambda x, a: x[0] + x[1], "sub": lambda x, a: x[0] - x[1], "mul": lambda x, a: x[0] * x[1], "div": lambda x, a: x[0] / x[1],
    "matmul": lambda x, a: x[0].matmul(x[1]), "linear": lambda x, a: F.linear(*x),
    "sum": lambda x, a: x[0].sum(), "mean": lambda x, a: x[0].mean(), "max": lambda x, a: x[0].max(),
    "sumdim": lambda x, a: x[0].sum(int(a[0])), "meandim": lambda x, a: x[0].mean(int(a[0])), "maxdim": lambda x, a: x[0].max(int(a[0]))[0],
    "softmax": lambda x, a: x[0].softmax(int(a[0])), "logsoftmax": lambda x, a: x[0].log_softmax(int(a[0])),
    "entropy": lambda x, a: F.cross_entropy(x[0], x[1], reduction=RED[int(a[0])]),
    "mse": lambda x, a: F.mse_loss(x[0], x[1], reduction=RED[int(a[0])]),
    "embedding": lambda x, a: F.embedding(x[1], x[0]), "index": lambda x, a: x[0][x[1]],
    "layernorm": lambda x, a: F.layer_norm(x[0], x[0].shape[-1:]),
    "cat": lambda x, a: torch.cat(list(x), int(a[0])), "stack": lambda x, a: torch.stack(list(x), int(a[0])),
    "select": lambda x, a: x[0].select(int(a[0]), int(a[1])), "slice": lambda x, a: x[0][int(a[0]):int(a[1]):int(a[2])],
    "reshape": lambda x, a: x[0].reshape([int(v) for v in a]), "expand": lambda x, a: x[0].expand([int(v) for v in a]),
    "transpose": lambda x, a: x[0].transpose(int(a[0]), int(a[1])), "permute": lambda x, a: x[0].permute([int(v) for v in a]),
    "to": lambda x, a: x[0].to([torch.float32, torch.float64, torch.bfloat16][int(a[0])]),
}


def tensor(o):
    t = torch.tensor([float.fromhex(v) for v in o["values"]], dtype=torch.float64).to(getattr(torch, o["dtype"])).reshape(o["shape"])
    if o["transposed"]:
        t = t.t()
    return t.requires_grad_() if t.is_floating_point() else t


def shown(t):
    if t is None:
        return None
    return {"dtype": str(t.dtype).replace("torch.", ""), "shape": list(t.shape),
            "values": [v.hex() for v in t.detach().double().reshape(-1).tolist()]}


for line in sys.stdin:
    r = json.loads(line)
    try:
        x = [tensor(o) for o in r["inputs"]]
        y = OPS[r["op"]](x, [float(v) for v in r["args"]])
        if y.requires_grad:
            w = torch.tensor(r["weights"], dtype=torch.float64)
            w = w.repeat(y.numel() // len(r["weights"]) + 1)[:y.numel()].to(y.dtype).reshape(y.shape)
            y.backward(w)
        out = {"result": shown(y), "grads": [shown(t.grad) for t in x]}
    except (RuntimeError, TypeError, IndexError, ValueError) as e:
        out = {"error": str(e)}
    print(json.dumps(out), flush=True)
