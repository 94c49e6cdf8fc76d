# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""What the parts of models, optimizers and schedules give in PyTorch: one JSON request per line, one answer."""
import json
import struct
import sys

import torch

torch.set_num_threads(1)


def load(path):
    """safetensors.torch.load_file in a few lines: that library is not needed to check the format."""
    data = open(path, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    kinds = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "BOOL": torch.bool, "BF16": torch.bfloat16}
    out = {}
    for name, e in header.items():
        if name != "__metadata__":
            a, b = e["data_offsets"]
            raw = bytearray(data[8 + n + a:8 + n + b])
            out[name] = torch.frombuffer(raw, dtype=kinds[e["dtype"]]).reshape(e["shape"]) if raw else torch.empty(e["shape"])
    return out


def metadata(path):
    data = open(path, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + n])["__metadata__"]


def save(path, tensors, **metadata):
    header, blobs, at = {"__metadata__": {"format": "pt", **metadata}}, [], 0
    for name, t in tensors.items():
        raw = bytes(t.detach().contiguous().view(-1).numpy().tobytes())
        header[name] = {"dtype": {torch.float32: "F32", torch.float64: "F64"}[t.dtype], "shape": list(t.shape),
                "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


class Block(torch.nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(8)
        self.linear = torch.nn.Linear(8, 11)
        self.causal = causal

    def forward(self, ids):
        x = self.embedding(ids)
        n = ids.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1) if self.causal else None
        y, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        return self.linear(torch.nn.functional.gelu(self.norm(x + y)))


def model(r):
    m = Block(r["causal"])
    if r["file"]:
        m.load_state_dict(load(r["file"]))
    else:
        torch.manual_seed(3)
        m = Block(r["causal"])
        save(r["save"], m.state_dict())
    ids = torch.tensor(r["ids"])
    out = m(ids)
    loss = torch.nn.functional.cross_entropy(out.reshape(-1, 11), ids.reshape(-1))
    loss.backward()
    return {"out": out.reshape(-1).tolist(), "grads": {k: p.grad.reshape(-1).tolist() for k, p in m.named_parameters()}}


def batchnorm(r):
    m = torch.nn.BatchNorm1d(len(r["x"][0][0]))
    out = []
    for rows in r["x"]:
        x = torch.tensor(rows, requires_grad=True)
        y = m(x)
        (y * torch.arange(float(y.numel())).reshape(y.shape)).sum().backward()
        out.append({"y": y.reshape(-1).tolist(), "grad": x.grad.reshape(-1).tolist()})
    m.eval()
    out.append({"y": m(torch.tensor(r["x"][0])).reshape(-1).tolist(), "mean": m.running_mean.tolist(),
            "var": m.running_var.tolist(), "n": int(m.num_batches_tracked)})
    return out


def gradient(g, p):
    """A list, or the rows of a sparse gradient."""
    if not isinstance(g, dict):
        return torch.tensor(g, dtype=p.dtype)
    rows = torch.tensor(g["rows"], dtype=p.dtype).reshape(-1, *p.shape[1:])
    return torch.sparse_coo_tensor(torch.tensor([g["ids"]], dtype=torch.int64), rows, p.shape)


def optimizer(r):
    dtype = getattr(torch, r["dtype"])
    p = torch.tensor(r["start"], dtype=dtype, requires_grad=True)
    if "betas" in r["options"]:  # JSON makes 0 an integer, which Adam refuses
        r["options"]["betas"] = [float(b) for b in r["options"]["betas"]]
    opt = getattr(torch.optim, r["name"])([p], **r["options"])
    out = []
    for g in r["grads"]:
        p.grad = gradient(g, p)
        if r.get("clip"):
            torch.nn.utils.clip_grad_norm_([p], r["clip"])
        opt.step()
        out.append(p.detach().double().tolist())
    if r.get("bits"):  # JSON has no NaN
        return [struct.pack(f"<{len(x)}d", *x).hex() for x in out]
    if r.get("save"):
        save_state(r["save"], opt)
    return out


def save_state(path, opt):
    d = opt.state_dict()
    tensors = {f"state.{i}.{name}": torch.as_tensor(t, dtype=None if isinstance(t, torch.Tensor) else torch.float32)
               for i, s in d["state"].items() for name, t in s.items() if t is not None}
    save(path, tensors, param_groups=json.dumps(d["param_groups"]))


def resume(r):
    """Go on with the optimizer's state of a file, and save it again."""
    p = torch.tensor(r["start"], dtype=getattr(torch, r["dtype"]), requires_grad=True)
    opt = getattr(torch.optim, r["name"])([p], lr=123)
    state = {}
    for key, t in load(r["file"]).items():
        _, i, name = key.split(".")
        state.setdefault(int(i), {})[name] = t
    opt.load_state_dict({"state": state, "param_groups": json.loads(metadata(r["file"])["param_groups"])})
    out = []
    for g in r["grads"]:
        p.grad = gradient(g, p)
        opt.step()
        out.append(p.detach().double().tolist())
    save_state(r["save"], opt)
    return out


def schedule(r):
    p = torch.zeros(1, requires_grad=True)
    opt = torch.optim.SGD([p], lr=r["lr"])
    s = getattr(torch.optim.lr_scheduler, r["name"])(opt, **r["options"])
    out = []
    for _ in range(r["steps"]):
        out.append(opt.param_groups[0]["lr"])
        opt.step()
        s.step()
    return out


def promote(r):
    def operand(o):
        if "number" in o:
            return o["number"]
        return torch.tensor(o["values"], dtype=getattr(torch, o["dtype"]))
    a, b = operand(r["a"]), operand(r["b"])
    try:
        c = {"add": lambda: torch.add(a, b), "sub": lambda: torch.sub(a, b), "mul": lambda: torch.mul(a, b),
                "div": lambda: torch.div(a, b)}[r["op"]]()
    except (RuntimeError, TypeError) as e:
        return {"error": str(e)}
    values = c.reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.to(torch.complex128)).reshape(-1)
    return {"dtype": str(c.dtype).replace("torch.", ""), "values": values.double().tolist()}


def operator(r):
    def argument(o):
        if not isinstance(o, dict):
            return o
        if "complex" in o:
            return complex(*o["complex"])
        t = torch.tensor([float.fromhex(v) for v in o["values"]], dtype=torch.float64).to(getattr(torch, o["dtype"])).reshape(o["shape"])
        return t.t() if o["transposed"] else t
    kwargs = {k: argument(v) for k, v in r["kwargs"].items()}
    if "dtype" in kwargs:
        kwargs["dtype"] = getattr(torch, kwargs["dtype"])
    try:
        c = getattr(torch.ops.aten, r["name"])(*[argument(a) for a in r["args"]], **kwargs)
    except (RuntimeError, TypeError) as e:
        return {"error": str(e)}
    values = c.reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.to(torch.complex128)).reshape(-1)
    return {"dtype": str(c.dtype).replace("torch.", ""), "shape": list(c.shape), "values": [v.hex() for v in values.double().tolist()]}


for line in sys.stdin:
    r = json.loads(line)
    print(json.dumps(globals()[r["kind"]](r)), flush=True)
