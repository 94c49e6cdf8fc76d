"""NCCL jobs that stand still, three ranks on one GPU: hang.py MODE. A rank with a host name of its own counts as a machine of its own for
NCCL, which would refuse a second rank on a GPU otherwise."""
import os
import signal
import sys
import threading
import time

mode, rank = sys.argv[1], int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"machine{rank}"

import torch
import torch.distributed as dist


def loads_the_next_batch():
    time.sleep(600)


def evaluates(x):
    dist.broadcast(x, 0)


dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
x = torch.ones(1 << 20, device="cuda")
for _ in range(5):
    dist.all_reduce(x)
torch.cuda.synchronize()
print("rank", rank, "five steps", x[0].item(), flush=True)
if mode == "away":  # rank 1 does not enter the sixth
    if rank == 1:
        loads_the_next_batch()
    dist.all_reduce(x)
elif mode == "order":  # rank 1 enters another operation
    evaluates(x) if rank == 1 else dist.all_reduce(x)
elif mode == "size":  # rank 1 has a smaller tensor
    dist.all_reduce(x[: 1 << 10] if rank == 1 else x)
elif mode == "stopped":  # rank 2 is stopped by a signal
    if rank == 2:
        threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
        time.sleep(600)
    dist.all_reduce(x)
elif mode == "subgroup":  # only ranks 0 and 2 are in it; rank 2 waits for all
    pair = dist.new_group([0, 2])
    if rank == 0:
        dist.all_reduce(x, group=pair)
    elif rank == 2:
        dist.barrier()
    else:
        dist.barrier()
elif mode == "implicit":  # rank 2 stays away, the others read a value
    if rank == 2:
        loads_the_next_batch()
    dist.all_reduce(x)
    if x[0] > 1:
        print("never")
elif mode == "works":  # not hung: long steps on the GPU
    a = torch.randn(16384, 16384, device="cuda")
    for step in range(10000):
        for _ in range(8):
            a = torch.nn.functional.normalize(a @ a)
        dist.all_reduce(a[0])
        print("rank", rank, "step", step, a[0, 0].item() > 9, flush=True)
elif mode == "batches":  # rank 0 has one batch more than the others
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
    for _ in range(4 if rank == 0 else 3):
        loss = model(torch.randn(8, 512, device="cuda")).sum()
        loss.backward()
        loss.item()
    if rank != 0:
        loads_the_next_batch()
elif mode == "loader":  # the data loader of rank 2 does not come back
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            if rank == 2 and i == 32:
                time.sleep(600)
            return torch.zeros(8)

    for batch in torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
        dist.all_reduce(batch.cuda())
        torch.cuda.synchronize()
elif mode == "pipeline":  # rank 1 sends nothing on to rank 2
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
        loads_the_next_batch()
    else:
        dist.recv(x, 1)
    x[0].item()
elif mode == "swallowed":  # rank 1 has caught an exception and waits where the others do not
    try:
        if rank == 1:
            raise ValueError("bad batch")
        dist.all_reduce(x)
    except ValueError as e:
        print(e, flush=True)
    dist.all_gather([torch.empty_like(x) for _ in range(3)], x)
elif mode == "recv":  # no rank sends
    if rank == 1:
        dist.recv(x, 0)
    else:
        dist.barrier()
elif mode == "killed":  # rank 1 is killed in the first attempt while the others wait for it
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 0:
        print("all three are through, attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    dist.destroy_process_group()
    sys.exit()
elif mode == "memory":  # rank 2 asks for more than the GPU has
    if rank == 2:
        torch.empty(1 << 40, device="cuda")
    dist.all_reduce(x)
torch.cuda.synchronize()
print("rank", rank, "is through", flush=True)
time.sleep(600)
