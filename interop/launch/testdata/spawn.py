"""A program that starts its ranks itself: spawn.py KIND, by torch.multiprocessing.spawn or by multiprocessing.Process."""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def load_batch():
    time.sleep(600)


def train(rank, meet):
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=2)
    print(f"rank {rank} is ready\n", end="", flush=True)
    if rank == 1:
        load_batch()
    dist.all_reduce(torch.ones(1))


def unnumbered(number, meet):
    train(number, meet)


if __name__ == "__main__":
    meet = os.path.abspath(__file__) + ".meet"
    print("program", os.getpid(), flush=True)
    if sys.argv[1] == "spawn":
        mp.spawn(train, args=(meet,), nprocs=2)
    else:
        mp.set_start_method(sys.argv[2])
        target = train if sys.argv[1] == "named" else unnumbered
        all = [mp.Process(target=target, args=(rank, meet)) for rank in range(2)]
        for p in all:
            p.start()
        for p in all:
            p.join()
