# A rank of an all-PyTorch job whose store is elsewhere: DTensor and a distributed checkpoint, of tensors of random shapes.
# sys.argv = port, rank, world size, folder, seed.
import os, random, sys, time, warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

warnings.filterwarnings("ignore")
port, rank, size = (int(a) for a in sys.argv[1:4])
folder, seed = sys.argv[4], int(sys.argv[5])
store = dist.TCPStore("127.0.0.1", port, size, is_master=False, timeout=timedelta(seconds=60), use_libuv=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("rows",))
chance = random.Random(seed)  # the same on all ranks


def same(a, b):
    """Bit by bit, NaN and the sign of zero included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes()


# DTensor: rows of a matrix on each rank (the last has fewer), whole again, the other way round, a product.
whole = torch.arange(28, dtype=torch.float32).reshape(7, 4)
rows = distribute_tensor(whole, mesh, [Shard(0)])
each = -(-7 // size)
assert rows.to_local().shape[0] == max(0, min(each, 7 - rank * each))
assert same(rows.full_tensor(), whole)
assert same(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
weight = distribute_tensor(torch.eye(4) * 3, mesh, [Replicate()])
assert same((rows @ weight).full_tensor(), whole * 3)
partial = DTensor.from_local(torch.full((2,), float(rank + 1)), mesh, [Shard(0)])
assert partial.sum().full_tensor().item() == size * (size + 1)

# Any shape: more ranks than rows, one row, several dimensions, special values. Every rank has its own part, and nothing more.
tensors, placed = {}, {}
for k in range(8):
    shape = [chance.randrange(1, 12) for _ in range(chance.randrange(1, 4))]
    dt = chance.choice([torch.float32, torch.float64, torch.int64, torch.int32])
    t = torch.randint(-1000, 1000, shape, generator=torch.Generator().manual_seed(seed * 100 + k)).to(dt)
    if dt.is_floating_point:
        t = t / 7
        t.view(-1)[0], t.view(-1)[-1] = float("nan"), -0.0
    d = chance.randrange(len(shape))
    name = f"t{k}"
    tensors[name], placed[name] = t, distribute_tensor(t, mesh, [Shard(d)])
    parts = t.chunk(size, d)
    mine = parts[rank] if rank < len(parts) else t.narrow(d, 0, 0)
    assert same(placed[name].to_local(), mine), (name, shape, d)
    assert same(placed[name].full_tensor(), t), (name, shape, d)
    other = chance.randrange(len(shape))
    assert same(placed[name].redistribute(mesh, [Shard(other)]).full_tensor(), t), (name, shape, d, other)

# A checkpoint of all ranks, read back as it was and with another cut.
dcp.save({"model": {"rows": rows, "weight": weight, "plain": whole * 2, **placed}, "step": torch.tensor(17)}, checkpoint_id=folder)
assert any(name.endswith(".distcp") for name in os.listdir(folder)) and ".metadata" in os.listdir(folder)
for placement in (Shard(0), Shard(1), Replicate()):
    state = {"model": {"rows": distribute_tensor(torch.zeros(7, 4), mesh, [placement]), "plain": torch.zeros(7, 4)},
            "step": torch.tensor(0)}
    for name, t in tensors.items():
        cut = chance.choice([Replicate(), Shard(chance.randrange(t.dim()))])
        state["model"][name] = distribute_tensor(torch.ones_like(t), mesh, [cut])
    dcp.load(state, checkpoint_id=folder)
    assert same(state["model"]["rows"].full_tensor(), whole), placement
    assert same(state["model"]["plain"], whole * 2) and state["step"].item() == 17
    for name, t in tensors.items():
        assert same(state["model"][name].full_tensor(), t), (name, t.shape)
store.add("done", 1)
while store.add("done", 0) < size:  # no rank leaves while another needs it
    time.sleep(0.01)
print("ok", flush=True)
os._exit(0)  # at once: PyTorch 2.6 sometimes does not come back from destroy_process_group after a checkpoint
