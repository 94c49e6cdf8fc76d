# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Matrix products and training steps, PyTorch: torch_train.py [PEER] [SECONDS]

Prints JSON lines: `matmul1024.tN`, `step784.p50` and `ddp100MB.p50`, as `cohort bench train` does. Debian's PyTorch takes
whatever BLAS the system has; without libopenblas0-pthread that is the slow reference one and no yardstick. (OpenBLAS older
than the processor may need OPENBLAS_CORETYPE=SkylakeX to use AVX-512.)"""
import json, multiprocessing as mp, os, sys, tempfile, time, warnings
warnings.filterwarnings("ignore")


def emit(peer, case, value, unit):
    print(json.dumps({"group": "autograd", "case": case, "peer": peer, "value": value, "unit": unit}), flush=True)


def median(seconds, f):
    f()
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        f()
        times.append(time.perf_counter() - t)
    return sorted(times)[len(times) // 2]


def stepper(torch, net, forward, batch, inputs, classes):
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(batch, inputs), torch.randint(0, classes, (batch,))

    def step():
        opt.zero_grad()
        torch.nn.functional.cross_entropy(forward(x), y).backward()
        opt.step()
    return step


def threads(n):
    """Before torch is imported: OpenBLAS has threads of its own, which PyTorch does not know about."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(n)


def rank(r, path, peer, seconds):
    threads(1)
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=r, world_size=2)
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers)
    model = DistributedDataParallel(net)
    step = stepper(torch, net, model, 16, 2048, 2048)
    for _ in range(2):
        step()
    t = time.perf_counter()
    step()
    count = torch.tensor([max(5, int(seconds / (time.perf_counter() - t)))])
    dist.broadcast(count, 0)
    times = []
    for _ in range(int(count)):
        t = time.perf_counter()
        step()
        times.append(time.perf_counter() - t)
    if r == 0:
        emit(peer, "ddp100MB.p50", sorted(times)[len(times) // 2] * 1e6, "us")
    dist.barrier()


def single(peer, seconds, n):
    threads(n)
    import torch
    torch.set_num_threads(n)
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    emit(peer, f"matmul1024.t{n}", 2 * 1024 ** 3 / median(seconds, lambda: a @ b) / 1e9, "GFLOP/s")
    if n > 1:
        return
    net = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    emit(peer, "step784.p50", median(seconds, stepper(torch, net, net, 64, 784, 10)) * 1e6, "us")


if __name__ == "__main__":
    peer = sys.argv[1] if len(sys.argv) > 1 else "torch"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    ctx = mp.get_context("fork")
    path = os.path.join(tempfile.mkdtemp(), "store")
    for n in (1, 2):
        p = ctx.Process(target=single, args=(peer, seconds, n))
        p.start()
        p.join()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ps = [ctx.Process(target=rank, args=(r, path, peer, seconds)) for r in (0, 1)]
    [p.start() for p in ps]
    [p.join(300) for p in ps]
