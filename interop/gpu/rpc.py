"""A PyTorch worker sends CUDA tensors to a Go worker (peer rpc), with and without a device map."""
import os
import sys
import types

import torch
import torch.distributed.rpc as rpc

peer = types.ModuleType("peer")
exec("def echo(x): pass", peer.__dict__)
peer.echo.__module__ = "peer"
sys.modules["peer"] = peer
options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=30)
if os.environ.get("DEVICE_MAP"):
    options.set_device_map("go", {0: 0})
rpc.init_rpc("py", rank=int(os.environ["RANK"]), world_size=2, rpc_backend_options=options)
assert rpc.rpc_sync("go", peer.echo, args=(torch.ones(3),)).tolist() == [1, 1, 1]
try:
    got = rpc.rpc_sync("go", peer.echo, args=(torch.ones(3, device="cuda"),))
    print("python: a CUDA tensor came back on", got.device, got.tolist(), flush=True)
except Exception as e:
    print("python: refused:", type(e).__name__, str(e).splitlines()[0], flush=True)
assert rpc.rpc_sync("go", peer.echo, args=(torch.ones(3),)).tolist() == [1, 1, 1]
print("python: the worker goes on: ok", flush=True)
rpc.shutdown()
