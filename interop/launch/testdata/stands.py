"""A gloo job of two ranks that stands still in three ways, one after the other; SIGUSR1 to rank 1 ends each but the last."""
import fcntl
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])


class GoOn(Exception):
    pass


def go_on(*_):
    raise GoOn


def announce(kind):
    print(f"rank {RANK} at {kind}\n", end="", flush=True)


def own_barrier(store):
    """A barrier for one rank more than there are."""
    store.add("arrived", 1)
    try:
        while store.add("arrived", 0) < 3:
            time.sleep(0.1)
    except GoOn:
        store.add("arrived", 1)


def take_lock(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except GoOn:
        pass


def load_batch():
    while True:
        time.sleep(50)


signal.signal(signal.SIGUSR1, go_on)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
announce("poll")
own_barrier(dist.distributed_c10d._get_default_store())
with open(sys.argv[1], "w") as lock:
    if RANK == 0:
        fcntl.flock(lock, fcntl.LOCK_EX)
    dist.barrier()
    announce("lock")
    if RANK == 1:
        take_lock(lock)
    dist.barrier()
announce("sleep")
load_batch()
