# A rank of an all-PyTorch job whose store is elsewhere: DTensor and a distributed checkpoint.
# sys.argv = port, rank, world size, folder.
import os, sys, time, warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

warnings.filterwarnings("ignore")
port, rank, size = (int(a) for a in sys.argv[1:4])
folder = sys.argv[4]
store = dist.TCPStore("127.0.0.1", port, size, is_master=False, timeout=timedelta(seconds=60), use_libuv=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("rows",))

# DTensor: rows of a matrix on each rank (the last has fewer), whole again, the other way round, a product.
whole = torch.arange(28, dtype=torch.float32).reshape(7, 4)
rows = distribute_tensor(whole, mesh, [Shard(0)])
assert rows.to_local().shape[0] == (7 + size - 1) // size if rank < size - 1 else True
assert torch.equal(rows.full_tensor(), whole)
assert torch.equal(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
weight = distribute_tensor(torch.eye(4) * 3, mesh, [Replicate()])
assert torch.equal((rows @ weight).full_tensor(), whole * 3)
partial = DTensor.from_local(torch.full((2,), float(rank + 1)), mesh, [Shard(0)])
assert partial.sum().full_tensor().item() == size * (size + 1)

# A checkpoint of all ranks, read back as it was and with another cut.
dcp.save({"model": {"rows": rows, "weight": weight, "plain": whole * 2}, "step": torch.tensor(17)}, checkpoint_id=folder)
assert any(name.endswith(".distcp") for name in os.listdir(folder)) and ".metadata" in os.listdir(folder)
for placement in (Shard(0), Shard(1), Replicate()):
    state = {"model": {"rows": distribute_tensor(torch.zeros(7, 4), mesh, [placement]), "plain": torch.zeros(7, 4)}, "step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=folder)
    assert torch.equal(state["model"]["rows"].full_tensor(), whole), placement
    assert torch.equal(state["model"]["plain"], whole * 2) and state["step"].item() == 17
store.add("done", 1)
while store.add("done", 0) < size:  # nobody leaves while another needs it
    time.sleep(0.01)
print("ok", flush=True)
os._exit(0)  # at once: PyTorch 2.6 sometimes does not come back from destroy_process_group after a checkpoint
