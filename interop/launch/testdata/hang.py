"""A gloo job that stands still: hang.py KIND. Rank 1 does what the others do not expect."""
import ctypes
import os
import socket
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

KIND, RANK = sys.argv[1], int(os.environ["RANK"])


def load_batch():
    time.sleep(600)


def step():
    x = torch.ones(4, 2)
    for _ in range(3):
        dist.all_reduce(x)
    print("rank", RANK, "at the hang", flush=True)
    if KIND == "missing":
        if RANK == 1:
            load_batch()
        dist.all_reduce(x)
    elif KIND == "mismatch":
        if RANK == 1:
            dist.broadcast(x, 0)
            dist.recv(x, 0)
        dist.all_reduce(x)
    elif KIND == "p2p":
        if RANK == 0:
            dist.recv(x, 1)
        load_batch()
    elif KIND == "gil":
        if RANK == 1:
            ctypes.PyDLL(None).sleep(600)
        dist.all_reduce(x)
    elif KIND == "subgroup":
        half = dist.new_group([0, 1])
        if RANK == 0:
            dist.all_reduce(x, group=half)
        dist.all_reduce(x)
        dist.all_reduce(x, group=half)
    elif KIND == "swallowed":
        try:
            if RANK == 1:
                raise ValueError("the batch is broken")
            dist.all_reduce(x)
        except ValueError:
            pass  # and on with the next step
        dist.barrier()
    elif KIND == "roots":
        dist.broadcast(x, RANK)
        dist.barrier()
    elif KIND == "thread":
        t = threading.Thread(target=dist.all_reduce if RANK == 0 else load_batch, args=(x,) if RANK == 0 else ())
        t.start()
        t.join()
    elif KIND == "server":
        if RANK == 1:
            server = socket.create_server(("127.0.0.1", 0))
            socket.create_connection(server.getsockname()).recv(1)
        dist.all_reduce(x)
    elif KIND == "slow":
        while True:
            for _ in range(20000000):
                pass
            dist.all_reduce(x)


if KIND == "world":
    print("rank", RANK, "at the hang", flush=True)
    dist.init_process_group("gloo", rank=RANK, world_size=3, timeout=timedelta(seconds=600))
if KIND == "rpc":
    from torch.distributed import rpc

    rpc.init_rpc("worker%d" % RANK, rank=RANK, world_size=2)
    print("rank", RANK, "at the hang", flush=True)
    if RANK == 1:
        load_batch()
    rpc.shutdown()
if KIND == "init" and RANK == 1:
    print("rank", RANK, "at the hang", flush=True)
    load_batch()
if KIND == "init":
    print("rank", RANK, "at the hang", flush=True)
dist.init_process_group("gloo", timeout=timedelta(seconds=600))
if KIND == "newgroup":
    print("rank", RANK, "at the hang", flush=True)
    if RANK == 1:
        load_batch()
    dist.new_group([0, 1])
step()
