# One PyTorch rank of a world that splits and merges groups. It prints one JSON line: what each step gave.
import datetime, json, sys
import torch
import torch.distributed as dist

rank, size, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.set_debug_level_from_env()  # torch may have been imported before the variable was set
limit = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=limit)
world = dist.distributed_c10d._get_default_group()


def use(g):
    """All a group can do that shows its members and their order."""
    if g is None or g == dist.GroupMember.NON_GROUP_MEMBER:
        return "-"
    sum_, mine, root = torch.tensor([10.0**rank]), torch.tensor([float(rank)]), torch.tensor([float(rank)])
    g.allreduce([sum_]).wait()
    all_ = [torch.zeros(1) for _ in range(g.size())]
    g.allgather([all_], [mine]).wait()
    g.broadcast(root, 0).wait()
    return f"{g.rank()} of {g.size()}: {int(sum_.item())} {[int(t.item()) for t in all_]} {int(root.item())}"


def split(g, lists, name=None):
    mine = [ranks for ranks in lists if g is not None and g.rank() in ranks]
    return g.split_group(mine[0], timeout=limit, group_name=name) if mine else None


if not hasattr(world, "split_group"):
    print(json.dumps(["refused", use(world)]), flush=True)
    sys.exit(0)
out = []
half = split(world, [[2, 0], [1, 3]])
out.append(use(half))
out.append(use(split(half, [[1, 0]])))
out.append(use(split(half, [[1], [0]], "named")))
sub = dist.new_group([0, 1, 2])
out.append(use(split(sub if rank < 3 else None, [[2, 0, 1]])))
out.append(use(split(world, [[3, 2, 1]])))
hashed = dist.new_group([0, 1, 2, 3], use_local_synchronization=True)
out.append(use(hashed))
out.append(use(dist.new_group([1, 3])))
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit, use_libuv=False)
merged = world.merge_remote_group(dist.PrefixStore("merge", store), size, limit)
total = torch.tensor([10.0**rank])
merged.allreduce([total]).wait()
out.append(f"{merged.size()}: {int(total.item())}")
out.append(use(split(merged, [list(range(size))]))[1:7])
out.append(use(world))
print(json.dumps(out), flush=True)
