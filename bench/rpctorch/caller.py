#!/usr/bin/env python3
"""One worker of a static RPC world of two: rank 0 calls and measures, rank 1 serves.

usage: caller.py RANK PORT CALLS PEER [TRANSPORTS]
       Rank 0 hosts the store on 127.0.0.1:PORT. Rank 1 may as well be a Go worker
       that serves __main__.udf. TRANSPORTS as in bench/peers/rpc/torch_rpc.py.
"""
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
os.environ.setdefault("USE_LIBUV", "0")

import torch
import torch.distributed.rpc as rpc

torch.set_num_threads(1)
RANK, PORT, CALLS, PEER = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
TRANSPORTS = sys.argv[5] if len(sys.argv) > 5 else ""


def udf(x):
    return x


def emit(case, value, unit):
    print(json.dumps({"group": "rpc", "case": "from_torch." + case, "peer": PEER, "value": value, "unit": unit}), flush=True)


def lat(case, n, fn):
    for _ in range(max(1, n // 10)):
        fn()
    ls = []
    t0 = t = time.perf_counter()
    for _ in range(n):
        fn()
        u = time.perf_counter()
        ls.append(u - t)
        t = u
    ls.sort()
    emit(case + ".p50", ls[n // 2] * 1e6, "us")
    if n >= 200:
        emit(case + ".p99", ls[int(n * 0.99)] * 1e6, "us")
    emit(case + ".ops", n / (t - t0), "op/s")


def window(case, n, width, fn, args):
    for _ in range(2):
        t = time.perf_counter()
        inflight, i, done = [], 0, 0
        while done < n:
            while i < n and len(inflight) < width:
                inflight.append(rpc.rpc_async("w1", fn, args=args))
                i += 1
            half = inflight[: max(1, width // 2)]
            torch.futures.wait_all(half)
            done += len(half)
            inflight = inflight[len(half):]
        el = time.perf_counter() - t
    emit(f"{case}.w{width}.ops", n / el, "op/s")


def main():
    kw = {"_transports": [TRANSPORTS], "_channels": ["basic"]} if TRANSPORTS else {}
    opts = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{PORT}", rpc_timeout=60, **kw)
    rpc.init_rpc(f"w{RANK}", rank=RANK, world_size=2, rpc_backend_options=opts)
    if RANK == 0:
        x, y = torch.ones(2), torch.ones(1 << 18)
        lat("sync_builtin", CALLS, lambda: rpc.rpc_sync("w1", torch.add, args=(x, x)))
        lat("sync_udf", CALLS, lambda: rpc.rpc_sync("w1", udf, args=(x,)))
        window("async_udf", 2 * CALLS, 64, udf, (x,))
        lat("echo_tensor.1MiB", max(20, CALLS // 25), lambda: rpc.rpc_sync("w1", udf, args=(y,)))

        def churn():
            r = rpc.remote("w1", torch.add, args=(x, x))
            r.to_here()
            del r

        lat("rref_churn", max(200, CALLS // 2), churn)
    rpc.shutdown()


main()
