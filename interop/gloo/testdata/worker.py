# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
#
# One PyTorch rank that runs a plan of operations and prints the hash of every result.
# Arguments: rank, world size, port of the store, plan as JSON, timeout in seconds.
import datetime, hashlib, json, os, sys, time
import torch, torch.distributed as dist

rank, world, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
plan = json.loads(sys.argv[4])
timeout = datetime.timedelta(seconds=float(sys.argv[5]))


PERIOD = 4099  # a prime: no cut that gloo makes is a multiple of it


def values(dtype, n, r, i, salt=0):
    """The input of rank r in step i, which repeats after PERIOD elements."""
    some = period(dtype, min(n, PERIOD), r, i, salt)
    return some if n <= PERIOD else some.repeat(n // PERIOD + 1)[:n]


def period(dtype, n, r, i, salt):
    """Values that are exact in dtype, so that both sides make the same bits."""
    x = (torch.arange(n, dtype=torch.int64) * 2654435761 + r * 7919 + i * 104729 + salt * 15485863) % 4294967296
    t = getattr(torch, dtype)
    if dtype in ("float32", "float64"):
        return (x % 16777216).to(t) / 1024
    if dtype == "float16":
        return ((x % 2048).to(torch.float32) / 64).to(t)
    if dtype == "bfloat16":
        return ((x % 256).to(torch.float32) / 8).to(t)
    if dtype == "bool":
        return x % 2 == 1
    return (x % 251 - (0 if dtype == "uint8" else 125)).to(t)


def digest(*tensors):
    h = hashlib.sha256()
    for t in tensors:
        if t.numel():
            h.update(t.contiguous().flatten().view(torch.uint8).numpy())
    return h.hexdigest()


def run(i, s):
    op, dtype, n, root = s["op"], s.get("dtype", "float32"), s.get("n", 0), s.get("root", 0)
    red = getattr(dist.ReduceOp, s.get("red", "SUM"))
    mine = values(dtype, n, rank, i)
    empty = lambda k=n: torch.zeros(k, dtype=getattr(torch, dtype))
    if op == "all_reduce":
        dist.all_reduce(mine, op=red)
        return digest(mine)
    if op == "broadcast":
        dist.broadcast(mine, root)
        return digest(mine)
    if op == "reduce":
        dist.reduce(mine, root, op=red)
        return digest(mine) if rank == root else "-"
    if op == "all_gather":
        out = [empty() for _ in range(world)]
        dist.all_gather(out, mine)
        return digest(*out)
    if op == "gather":
        out = [empty() for _ in range(world)] if rank == root else None
        dist.gather(mine, out, dst=root)
        return digest(*out) if rank == root else "-"
    if op == "scatter":
        ins = [values(dtype, n, rank, i, p) for p in range(world)] if rank == root else None
        out = empty()
        dist.scatter(out, ins, src=root)
        return digest(out)
    if op == "all_to_all":
        ins = torch.cat([values(dtype, n, rank, i, p) for p in range(world)])
        out = empty(n * world)
        dist.all_to_all_single(out, ins)
        return digest(out)
    if op == "all_to_all_v":
        sizes = [n + (rank + p) % 3 for p in range(world)]
        ins = torch.cat([values(dtype, sizes[p], rank, i, p) for p in range(world)])
        out = empty(sum(sizes))
        dist.all_to_all_single(out, ins, sizes, sizes)
        return digest(out)
    if op == "reduce_scatter":
        ins = torch.cat([values(dtype, n, rank, i, p) for p in range(world)])
        out = empty()
        dist.reduce_scatter_tensor(out, ins)
        return digest(out)
    if op == "barrier":
        dist.barrier()
        return "-"
    if op == "monitored_barrier":
        dist.monitored_barrier()
        return "-"
    if op == "ring":  # everybody sends to the next rank and receives from the one before
        out = empty()
        works = [dist.isend(mine, (rank + 1) % world, tag=s["tag"]), dist.irecv(out, (rank - 1) % world, tag=s["tag"])]
        for w in works:
            w.wait()
        return digest(out)
    if op == "recv_any":  # the root receives from everybody in any order
        if rank != root:
            dist.send(mine, root, tag=s["tag"])
            return "-"
        outs = {}
        for _ in range(world - 1):
            out = empty()
            src = dist.recv(out, tag=s["tag"])
            outs[src] = out
        return digest(*[outs[r] for r in sorted(outs)])
    if op == "overlap":  # several all_reduces at once
        ts = [values(dtype, n + k, rank, i, k) for k in range(s["count"])]
        works = [dist.all_reduce(t, async_op=True) for t in ts]
        for w in works:
            w.wait()
        return digest(*ts)
    if op == "sub_groups":  # new_group of every pair, with an all_reduce and a barrier in it
        hs = []
        for pair in s["pairs"]:
            g = dist.new_group(pair)
            if rank in pair:
                t = values(dtype, n, rank, i)
                dist.all_reduce(t, group=g)
                dist.barrier(group=g)
                hs.append(digest(t))
        return ",".join(hs) or "-"
    if op == "sleep":
        time.sleep(s["seconds"])
        return "-"
    if op == "die":
        if rank == root:
            os.kill(os.getpid(), 9)
        return "-"
    raise ValueError(op)


dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=world, timeout=timeout)
print("joined", flush=True)
for i, s in enumerate(plan):
    try:
        print("step %d %s" % (i, run(i, s)), flush=True)
    except RuntimeError as e:
        print("step %d error %s" % (i, str(e).splitlines()[0]), flush=True)
        if not s.get("go_on"):
            sys.exit(3)
print("done", flush=True)
# Everybody leaves when the test says so: rank 0 may host the store.
if sys.stdin.readline().strip() == "destroy":
    dist.destroy_process_group()
os._exit(0)
