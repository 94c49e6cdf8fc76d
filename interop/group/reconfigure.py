# One PyTorch process that may be a member of reconfigured groups. It does what the lines on its standard input say (JSON) and
# prints a JSON answer to each.
import datetime, json, os, sys
import torch
import torch.distributed as dist

rank, size, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = dist.TCPStore("127.0.0.1", port, None, False, timeout=datetime.timedelta(seconds=60), use_libuv=False)
dist.init_process_group("gloo", store=dist.PrefixStore("default_pg", store), rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=30), enable_reconfigure=True)
print(json.dumps(dist._get_reconfigure_handle()), flush=True)
for line in sys.stdin:
    what, *args = json.loads(line)
    try:
        if what == "reconfigure":
            uuid, handles, seconds = args
            dist._reconfigure(uuid, handles, timeout=datetime.timedelta(seconds=seconds)).wait()
            out = dist._get_reconfigure_handle()
        elif what == "use":
            total, all_ = torch.tensor([10.0**rank]), [torch.zeros(1) for _ in range(dist.get_world_size())]
            dist.all_reduce(total)
            dist.all_gather(all_, torch.tensor([float(rank)]))
            last = torch.tensor([float(rank)])
            dist.broadcast(last, dist.get_world_size() - 1)
            out = f"{dist.get_rank()} of {dist.get_world_size()}: {int(total.item())} {[int(t.item()) for t in all_]} {int(last.item())}"
        elif what == "handle":
            out = dist._get_reconfigure_handle()
        else:
            os._exit(0)
    except Exception as e:
        out = f"{type(e).__name__}: {str(e).splitlines()[0]}"
    print(json.dumps(out), flush=True)
