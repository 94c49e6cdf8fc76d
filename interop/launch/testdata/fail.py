"""A gloo job of two ranks, of which rank 1 gets into trouble: fail.py KIND."""
import ctypes
import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

KIND, RANK = sys.argv[1], int(os.environ["RANK"])


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.ones(4 << 20)


def die(_):
    os.kill(os.getpid(), 9)


def trouble():
    if KIND == "shape":
        dist.all_reduce(torch.ones(40))
    elif KIND == "killed":
        os.kill(os.getpid(), 9)
    elif KIND == "shm":
        for batch in torch.utils.data.DataLoader(Batches(), num_workers=1):
            pass
    elif KIND == "loader":
        for batch in torch.utils.data.DataLoader(Batches(), num_workers=1, worker_init_fn=die):
            pass
    elif KIND == "port":
        old = torch.__version__.startswith("1.")
        taken = socket.socket(socket.AF_INET6)
        taken.bind(("::", 0))
        taken.listen()
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], 2, True, timedelta(seconds=5), **({} if old else {"use_libuv": False}))
    elif KIND == "resolve":
        old = torch.__version__.startswith("1.")
        dist.TCPStore("no-such-host.invalid", 29500, 2, False, timedelta(seconds=3), **({} if old else {"use_libuv": False}))
    elif KIND == "leaves":
        sys.exit(0)
    elif KIND == "segfault":
        ctypes.string_at(0)
    elif KIND == "disk":
        torch.save(torch.ones(1000000), "/dev/full")
    elif KIND == "disk-text":
        with open("/dev/full", "w") as f:
            f.write("step 1")


if __name__ == "__main__":  # a data loader may import this file again
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    x = torch.ones(4)
    dist.all_reduce(x)
    if RANK == 1:
        trouble()
    dist.all_reduce(x)
