"""A gloo job that stands still: hang.py KIND... Rank 1 does what the others do not expect.

The kinds follow one after the other: SIGUSR1 to rank 1 ends all but those where no rank can go on, of which one may be the last."""
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from cohort_dist.why import section  # it is copied beside this file
import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])


class GoOn(Exception):
    pass


def go_on(*_):
    raise GoOn


def load_batch():
    time.sleep(600)


def late(f=load_batch):
    """Rank 1 does this until it may go on."""
    if RANK == 1:
        try:
            f()
        except GoOn:
            pass


def read_from_server():
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).recv(1)


def step(kind):
    x = torch.ones(4, 2)
    if kind == "missing":
        with section("load"): late()
        dist.all_reduce(x)
    elif kind == "mismatch":
        if RANK == 1:
            dist.broadcast(x, 0)
            dist.recv(x, 0)
        dist.all_reduce(x)
    elif kind == "p2p":
        late()
        if RANK == 0:
            dist.recv(x, 1)
        else:
            dist.send(x, 0)
    elif kind == "gil":
        late(lambda: ctypes.PyDLL(None).sleep(600))
        dist.all_reduce(x)
    elif kind == "subgroup":
        half = dist.new_group([0, 1])
        if RANK == 0:
            dist.all_reduce(x, group=half)
        dist.all_reduce(x)
        dist.all_reduce(x, group=half)
    elif kind == "swallowed":
        try:
            if RANK == 1:
                raise ValueError("the batch is broken")
            dist.all_reduce(x)
        except ValueError:
            pass  # and on with the next step
        dist.barrier()
    elif kind == "roots":
        dist.broadcast(x, RANK)
        dist.barrier()
    elif kind == "thread":
        t = threading.Thread(target=dist.all_reduce if RANK == 0 else load_batch, args=(x,) if RANK == 0 else ())
        t.start()
        t.join()
    elif kind == "server":
        late(read_from_server)
        dist.all_reduce(x)
    elif kind == "newgroup":
        late()
        dist.new_group([0, 1])
    elif kind == "irecv":
        if RANK == 0:
            w = dist.all_reduce(x, async_op=True)
            w.wait()
        dist.irecv(x, 0).wait()
    elif kind == "slow":
        while True:
            for _ in range(20000000):
                pass
            dist.all_reduce(x)


def announce(kind):
    # One string: the ranks share a pipe under torchrun, and print writes each of its arguments on its own.
    print(f"rank {RANK} at {kind}\n", end="", flush=True)


def before_the_group(kind):
    announce(kind)
    if kind == "world":
        dist.init_process_group("gloo", rank=RANK, world_size=3, timeout=timedelta(seconds=600))
    elif kind == "rpc":
        from torch.distributed import rpc

        rpc.init_rpc("worker%d" % RANK, rank=RANK, world_size=2)
        late()
        rpc.shutdown()
    elif kind == "init":
        late()
    elif kind == "samerank":
        dist.init_process_group("gloo", rank=0, world_size=2, timeout=timedelta(seconds=600))


signal.signal(signal.SIGUSR1, go_on)
kinds = sys.argv[1:]
while kinds and kinds[0] in ("world", "rpc", "init", "samerank"):
    before_the_group(kinds.pop(0))
dist.init_process_group("gloo", timeout=timedelta(seconds=600))
for _ in range(3):
    dist.all_reduce(torch.ones(4, 2))
for kind in kinds:
    announce(kind)
    step(kind)
