# One PyTorch rank of an interop world: runs a plan and prints one JSON line with a digest per step. With "reconfigure" for a plan
# it is a member of groups that change, and does what the lines on its standard input say: see serve.
import datetime, hashlib, json, os, sys, warnings
import torch
import torch.distributed as dist

warnings.filterwarnings("ignore")
rank, size, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
plan = json.loads(sys.argv[4])
dist.set_debug_level_from_env()  # torch may have been imported before the variable was set
timeout = datetime.timedelta(seconds=60)
if plan == "reconfigure":
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout=datetime.timedelta(seconds=60), use_libuv=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("default_pg", store), rank=rank, world_size=size, timeout=timeout,
            enable_reconfigure=True)
else:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=timeout)
OPS = {"sum": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR", "avg": "AVG"}


PERIOD = 10007


def data(k, r, n, dt, salt=0, special=False):
    if n > PERIOD:  # as in plan_test.go
        return data(k, r, PERIOD, dt, salt, special).repeat(n // PERIOD + 1)[:n]
    x = (torch.arange(n, dtype=torch.int64) * 2654435761 + r * 40503 + k * 977 + salt * 7919) & 0xFFFFFFFF
    v = (x >> 8) % 2001 - 1000
    t = getattr(torch, dt)
    if dt == "bool":
        return (v & 1).to(t)
    if dt.startswith("complex"):
        return torch.complex(v.double() / 8, (v.double() + 3) / 16).to(t)
    if t.is_floating_point:
        f = v.double() / 8
        if special:
            f[x % 7 == 0] = float("nan")
            f[x % 11 == 0] = -0.0
        y = f.to(t)
        if dt == "bfloat16":  # the vectorised conversion has another NaN than the scalar one
            y.view(torch.int16)[f.isnan()] = 0x7FC0
        return y
    return v.to(t)


def raw(t):
    t = t.contiguous()
    if t.dtype == torch.bool:
        t = t.view(torch.uint8) != 0
    if t.dtype == torch.bfloat16:
        t = t.view(torch.int16)
    return t.numpy().tobytes()


def digest(*ts):
    h = hashlib.sha256()
    for t in ts:
        h.update(raw(t) if isinstance(t, torch.Tensor) else t)
    return h.hexdigest()[:16]


def reduce_op(name):
    return dist._make_nccl_premul_sum(2.0) if name == "premul_sum" else getattr(dist.ReduceOp, OPS[name])


def sparse(k, r, s):
    """The tensor of an all-reduce of sparse tensors: n entries, some at the same place, in the shape of the step. Every third rank
    has none if the step says so."""
    shape, dims, n, dt = s["shape"], s["dims"], s["n"], s["dtype"]
    if s.get("holes") and (r + k) % 3 == 0 or s.get("tag") == 1 and r != 0:
        n = 0
    rows, width = 1, 1
    for d in shape[:dims]:
        rows *= d
    for d in shape[dims:]:
        width *= d
    place = (torch.arange(n, dtype=torch.int64) * 7919 + r * 31 + k) % max(rows, 1)
    index = torch.empty((dims, n), dtype=torch.int64)
    for d in reversed(range(dims)):
        index[d] = place % max(shape[d], 1)
        place = place // max(shape[d], 1)
    values = data(k, r, n * width, dt, 0, dt.startswith("float")).reshape([n] + shape[dims:])
    return torch.sparse_coo_tensor(index, values, shape)


groups = {}


def place(s):
    """The group of a step, the own rank in it, its size, and what makes world ranks of its ranks. The own rank is None for who is no
    member."""
    g = groups.get(s.get("group", ""))
    if g is None:
        return (None, rank, size, lambda r: r) if not s.get("group") else (None, None, 0, None)
    ranks = s.get("ranks") or dist.get_process_group_ranks(g)
    return g, dist.get_rank(g), dist.get_world_size(g), lambda r: ranks[r]


def post(k, s):
    """Posts one operation and returns its works and what gives its digest once they are done."""
    kind, n, dt, root = s["op"], s.get("n", 0), s.get("dtype", "float32"), s.get("root", 0)
    op = reduce_op(s.get("reduce", "sum"))
    g, me, members, to_global = place(s)
    if me is None:
        return [], lambda: "-"
    groot = to_global(root)
    x = data(k, me, n, dt)
    if kind == "all_reduce":
        return [dist.all_reduce(x, op, group=g, async_op=True)], lambda: digest(x)
    if kind == "reduce":
        return [dist.reduce(x, groot, op, group=g, async_op=True)], lambda: digest(x) if me == root else "-"
    if kind == "broadcast":
        return [dist.broadcast(x, groot, group=g, async_op=True)], lambda: digest(x)
    if kind == "all_gather":
        outs = [torch.empty_like(x) for _ in range(members)]
        return [dist.all_gather(outs, x, group=g, async_op=True)], lambda: digest(*outs)
    if kind == "gather":
        outs = [torch.empty_like(x) for _ in range(members)] if me == root else None
        return [dist.gather(x, outs, groot, group=g, async_op=True)], lambda: digest(*outs) if me == root else "-"
    if kind == "scatter":
        ins = [data(k, me, n, dt, i) for i in range(members)] if me == root else None
        return [dist.scatter(x, ins, groot, group=g, async_op=True)], lambda: digest(x)
    if kind == "all_to_all_single":
        out, inp = torch.empty(n * members, dtype=x.dtype), data(k, me, n * members, dt)
        return [dist.all_to_all_single(out, inp, group=g, async_op=True)], lambda: digest(out, inp)
    if kind == "barrier":
        return [dist.barrier(group=g, async_op=True)], lambda: "-"
    if kind == "ring":
        y, tag = torch.empty_like(x), s.get("tag", 0)
        a = dist.isend(x, to_global((me + 1) % members), group=g, tag=tag)
        b = dist.irecv(y, to_global((me - 1) % members), group=g, tag=tag)
        return [a, b], lambda: digest(y, x)
    raise ValueError(kind)


def step(k, s):
    if s["op"] == "overlap":
        posted = [post(k * 100 + i, part) for i, part in enumerate(s["parts"])]
        for i in s["waits"]:
            for w in posted[i][0]:
                w.wait()
        return " ".join(finish() for _, finish in posted)
    kind, n, dt, root = s["op"], s.get("n", 0), s.get("dtype", "float32"), s.get("root", 0)
    op = reduce_op(s.get("reduce", "sum"))
    g, me, members, to_global = place(s)
    if me is None:
        return "-"
    groot = to_global(root)
    x = data(k, me, n, dt, 0, s.get("reduce") in ("min", "max"))
    if kind == "sparse":
        t = sparse(k, me, s)
        dist.all_reduce(t, op, group=g)
        if t.is_complex():
            return "refused"  # 2.11 and later exchange a copy and leaves the tensor as it was
        return digest(t.coalesce().indices(), t.coalesce().values())
    if kind == "all_reduce":
        dist.all_reduce(x, op, group=g)
        return digest(x)
    if kind == "all_reduce_coalesced":
        y = data(k, me, n + 3, dt, 1)
        dist.all_reduce_coalesced([x, y], op, group=g)
        return digest(x, y)
    if kind == "all_gather_coalesced":
        y = data(k, me, n + 3, dt, 1)
        outs = [[torch.empty_like(x), torch.empty_like(y)] for _ in range(members)]
        dist.all_gather_coalesced(outs, [x, y], group=g)
        return digest(*[t for pair in outs for t in pair])
    if kind == "all_reduce_parts":  # complex numbers beside what they consist of
        y, z = data(k, me, n + 3, dt, 1), data(k, me, n, "complex64", 2)
        dist.all_reduce_coalesced([x, y, z], op, group=g)
        return digest(x, y, z)
    if kind == "all_gather_parts":
        outs = [torch.empty(n, dtype=torch.complex64) if r == 1 else torch.empty(n, 2) for r in range(members)]
        dist.all_gather(outs, data(k, me, n, "complex64", 2), group=g)
        return digest(*outs)
    if kind == "all_gather_scope":
        y = data(k, me, n + 3, dt, 1)
        a, b = torch.empty(n * members, dtype=x.dtype), torch.empty((n + 3) * members, dtype=x.dtype)
        with dist.distributed_c10d._coalescing_manager(group=g):
            dist.all_gather_into_tensor(a, x, group=g)
            dist.all_gather_into_tensor(b, y, group=g)
        return digest(a, b)
    if kind == "reduce_scatter_scope":
        a, b = torch.empty(n, dtype=x.dtype), torch.empty(n + 3, dtype=x.dtype)
        with dist.distributed_c10d._coalescing_manager(group=g):
            dist.reduce_scatter_tensor(a, data(k, me, n * members, dt), op, group=g)
            dist.reduce_scatter_tensor(b, data(k, me, (n + 3) * members, dt, 1), op, group=g)
        return digest(a, b)
    if kind == "broadcast_coalesced":
        ts = [x, data(k, me, n + 3, "int64", 1), data(k, me, n + 1, dt, 2), data(k, me, 2 * n, dt, 3)]
        dist._broadcast_coalesced(g or dist.group.WORLD, ts, 8 * n + 1, root)
        return digest(*ts)
    if kind == "object_lists":
        text = lambda i: ("object %d of %d.%d" % (k, root, i)) * (i + 1)
        if me == root:
            for r in range(members):
                if r != root:
                    dist.send_object_list([text(i) for i in range(3)], to_global(r), group=g)
            return "-"
        got = [None] * 3
        dist.recv_object_list(got, groot, group=g)  # PyTorch takes no other: its src=None raises
        return "|".join(got)
    if kind == "reduce":
        dist.reduce(x, groot, op, group=g)
        return digest(x) if me == root else "-"
    if kind == "broadcast":
        dist.broadcast(x, groot, group=g)
        return digest(x)
    if kind == "all_gather":
        outs = [torch.empty_like(x) for _ in range(members)]
        dist.all_gather(outs, x, group=g)
        return digest(*outs)
    if kind == "all_gather_into_tensor":
        out = torch.empty(n * members, dtype=x.dtype)
        dist.all_gather_into_tensor(out, x, group=g)
        return digest(out)
    if kind == "gather":
        outs = [torch.empty_like(x) for _ in range(members)] if me == root else None
        dist.gather(x, outs, groot, group=g)
        return digest(*outs) if me == root else "-"
    if kind == "scatter":
        ins = [data(k, me, n, dt, i) for i in range(members)] if me == root else None
        dist.scatter(x, ins, groot, group=g)
        return digest(x)
    if kind == "reduce_scatter":
        out = torch.empty_like(x)
        dist.reduce_scatter(out, [data(k, me, n, dt, i) for i in range(members)], op, group=g)
        return digest(out)
    if kind == "all_to_all":
        outs = [torch.empty_like(x) for _ in range(members)]
        dist.all_to_all(outs, [data(k, me, n, dt, i) for i in range(members)], group=g)
        return digest(*outs)
    if kind == "all_gather_uneven":
        outs = [torch.empty(n + i, dtype=x.dtype) for i in range(members)]
        dist.all_gather(outs, data(k, me, n + me, dt), group=g)
        return digest(*outs)
    if kind == "reduce_scatter_tensor":
        out = torch.empty_like(x)
        dist.reduce_scatter_tensor(out, data(k, me, n * members, dt), op, group=g)
        return digest(out)
    if kind == "all_to_all_single":
        out = torch.empty(n * members, dtype=x.dtype)
        dist.all_to_all_single(out, data(k, me, n * members, dt), group=g)
        return digest(out)
    if kind == "all_to_all_uneven":
        ins = [n + (me + i) % 3 for i in range(members)]
        out = torch.empty(sum(ins), dtype=x.dtype)
        dist.all_to_all_single(out, data(k, me, sum(ins), dt), ins, ins, group=g)
        return digest(out)
    if kind == "ring":
        y = torch.empty_like(x)
        a = dist.isend(x, to_global((me + 1) % members), group=g, tag=5)
        b = dist.irecv(y, to_global((me - 1) % members), group=g, tag=5)
        a.wait(), b.wait()
        return digest(y)
    if kind == "batch":
        y = torch.empty_like(x)
        ends = (dist.isend, x, (me + 1) % members), (dist.irecv, y, (me - 1) % members)
        for w in dist.batch_isend_irecv([dist.P2POp(f, t, to_global(peer), group=g) for f, t, peer in ends]):
            w.wait()
        return digest(y)
    if kind == "any":
        if me != root:
            dist.send(x, groot, group=g, tag=1000 + k)  # of its own: a quick rank's next message must not be taken for this one
            return "-"
        got = {}
        for _ in range(members - 1):
            y = torch.empty_like(x)
            source = dist.recv(y, group=g, tag=1000 + k)
            got[source] = raw(y)
        return digest(*[got[to_global(r)] for r in range(members) if r != root])
    if kind == "async":
        xs = [data(k, me, n, dt, i) for i in range(6)]
        for w in [dist.all_reduce(t, op, group=g, async_op=True) for t in xs]:
            w.wait()
        return digest(*xs)
    if kind == "barrier":
        dist.barrier(group=g)
        return "-"
    if kind == "monitored_barrier":
        dist.monitored_barrier(group=g)
        return "-"
    if kind == "new_group" and s.get("local"):
        groups[s["name"]] = dist.new_group(s["ranks"], use_local_synchronization=True) if rank in s["ranks"] else None
        return "-"
    if kind == "mesh":
        from torch.distributed.device_mesh import init_device_mesh
        names = "abcd"[:len(s["ranks"])]
        mesh = init_device_mesh("cpu", tuple(s["ranks"]), mesh_dim_names=tuple(names))
        for name in names:
            groups[s["name"] + name] = mesh.get_group(name)
        return str(list(mesh.get_coordinate()))
    if kind == "new_group" and s.get("order"):
        made = dist.new_group(s["ranks"], sort_ranks=False)
        groups[s["name"]] = made if rank in s["ranks"] else None
        return "-"
    if kind == "new_group":
        made = dist.new_group(s["ranks"])
        groups[s["name"]] = made if rank in s["ranks"] else None
        return "-"
    if kind == "objects":
        text = lambda r, i: f"object {k} of {r}.{i}" * (r + 1)
        objs = [text(root, i) if me == root else None for i in range(3)]
        dist.broadcast_object_list(objs, groot, group=g)
        alls = [None] * members
        dist.all_gather_object(alls, text(me, 0), group=g)
        gathered = [None] * members if me == root else None
        dist.gather_object(text(me, 1), gathered, groot, group=g)
        out = [None]
        dist.scatter_object_list(out, [text(root, i) for i in range(members)] if me == root else None, groot, group=g)
        return "|".join(objs + alls + (gathered or []) + out)
    raise ValueError(kind)


def run(plan):
    results = []
    for k, s in enumerate(plan):
        try:
            results.append(step(k, s))
        except (RuntimeError, ValueError, NotImplementedError, TypeError) as e:
            broken = not s.get("may_refuse") or any(w in str(e).lower() for w in ("timed out", "timeout", "closed", "reset"))
            results.append("error: " + str(e)[:300] if broken else "refused")
            if broken:
                break
    return results


def serve():
    """Answers lines: ["reconfigure", uuid, handles, seconds], ["plan", [steps]], ["end"]."""
    global rank, size
    print(json.dumps(dist._get_reconfigure_handle()), flush=True)
    for line in sys.stdin:
        what, *args = json.loads(line)
        if what == "plan":
            out = run(args[0])
        elif what == "reconfigure":
            try:
                dist._reconfigure(args[0], args[1], timeout=datetime.timedelta(seconds=args[2])).wait()
                rank, size, out = dist.get_rank(), dist.get_world_size(), dist._get_reconfigure_handle()
            except Exception as e:
                out = f"{type(e).__name__}: {str(e).splitlines()[0]}"
        else:
            return
        print(json.dumps(out), flush=True)


if plan == "reconfigure":
    serve()
    os._exit(0)
print(json.dumps(run(plan)), flush=True)
# All ranks end together. Not by a barrier: PyTorch's waits for earlier operations too, and raises the error of one that was
# refused if a thread still holds it.
try:
    dist.all_reduce(torch.zeros(1))
except RuntimeError as e:
    print("the last operation:", e, file=sys.stderr, flush=True)
os._exit(0)
