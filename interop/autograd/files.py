# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a safetensors file, compares it with what argv says, and writes another one:
by the library of that name, or without it by the format."""
import ctypes
import json
import struct
import sys

import torch

try:
    import safetensors
    from safetensors.torch import load_file, save_file
    print("library", safetensors.__version__, flush=True)
except ImportError:
    safetensors = None
    print("no library", flush=True)

NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
}
TYPES = {k: getattr(torch, v) for k, v in NAMES.items() if hasattr(torch, v)}


def tensor(kind, shape, raw):
    if not raw:
        return torch.empty(shape, dtype=TYPES[kind])
    return torch.frombuffer(bytearray(raw), dtype=TYPES[kind]).reshape(shape)


def raw(t):
    return ctypes.string_at(t.contiguous().data_ptr(), t.numel() * t.element_size()) if t.numel() else b""


def read(path):
    data = open(path, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    assert (8 + n) % 8 == 0, "the data is not aligned"
    header, at, out = json.loads(data[8:8 + n]), 0, {}
    meta = header.pop("__metadata__", {})
    for name, e in sorted(header.items(), key=lambda x: x[1]["data_offsets"]):
        a, b = e["data_offsets"]
        assert a == at, "a hole before " + name
        assert a % torch.empty(0, dtype=TYPES[e["dtype"]]).element_size() == 0, name + " is not aligned"
        at, out[name] = b, tensor(e["dtype"], e["shape"], data[8 + n + a:8 + n + b])
    assert at == len(data) - 8 - n, "bytes behind the last tensor"
    return out, meta


def write(tensors, meta, path):
    header, data = {"__metadata__": meta}, b""
    for name, t in tensors.items():
        kind = [k for k, v in TYPES.items() if v == t.dtype][0]
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw(t))]}
        data += raw(t)
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


want = json.load(open(sys.argv[1]))
want["tensors"] = {k: e for k, e in want["tensors"].items() if e["dtype"] in TYPES}
got, meta = read(sys.argv[2])
assert set(want["tensors"]) == set(got), (sorted(want["tensors"]), sorted(got))
assert meta == want["metadata"], meta
if safetensors:
    got = load_file(sys.argv[2])
    with safetensors.safe_open(sys.argv[2], "pt") as f:
        assert f.metadata() == meta, f.metadata()
for name, e in want["tensors"].items():
    t = got[name]
    assert t.dtype == TYPES[e["dtype"]] and list(t.shape) == e["shape"] and raw(t).hex() == e["bits"], (name, t)
back = {name: tensor(e["dtype"], e["shape"], bytes.fromhex(e["bits"])) for name, e in want["tensors"].items()}
if safetensors:
    save_file(back, sys.argv[3], metadata=meta)
else:
    write(back, meta, sys.argv[3])
print("ok", json.dumps(list(TYPES)), flush=True)
