# One PyTorch rank of a world with a Go rank: it saves a distributed checkpoint and loads it, first in a group without the Go rank, then
# in the world, where the Go rank takes part with nothing to save. With "die" the Go rank leaves in the middle of the second one.
# sys.argv = rank, size, port, Go rank, folder, what.
import datetime, inspect, sys, warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan

warnings.filterwarnings("ignore")
rank, size, port, other = (int(a) for a in sys.argv[1:5])
folder, what = sys.argv[5:7]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
torches = [r for r in range(size) if r != other]
group = dist.new_group(torches)


def both(path, group):
    state = {f"of rank {r}": torch.arange(5.0) * (r + 1) for r in torches if r == rank}
    state["of all"] = torch.arange(7)
    dcp.save(state, checkpoint_id=path, process_group=group)
    back = {name: torch.zeros_like(t) for name, t in state.items()}
    dcp.load(back, checkpoint_id=path, process_group=group)
    for name, t in state.items():
        assert torch.equal(back[name], t), (name, back[name], t)


both(folder + "/without", group)
print("without", flush=True)
# What a rank contributes that has nothing: a plan of each kind, its results, its keys, and that it has read all.
dist.broadcast_object_list([SavePlan([], planner_data={}), LoadPlan([]), [], [], None], src=torches[0])
gathers = "_all_gather_keys" in inspect.getsource(sys.modules["torch.distributed.checkpoint.state_dict_loader"].load)  # older versions
dist.broadcast(torch.tensor([int(gathers)]), src=torches[0])
try:
    both(folder + "/with", None)
    print("with", flush=True)
except Exception as e:
    print("raised", type(e).__name__, flush=True)
    if what != "die":
        raise
if what != "die":
    x = torch.ones(3)
    dist.all_reduce(x)
    print("sum", int(x[0]), flush=True)
