# One PyTorch rank of a job that trains with FSDP2: two layers, each sharded by itself. It prints one JSON line: for each step
# digests of what the layers gathered and of this rank's parts after it. With the word "hosted" another process hosts the store, and it
# prints "begun" after the first step.
import datetime, hashlib, json, os, sys, warnings

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # FSDP2 would put everything on a GPU if there is one
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

warnings.filterwarnings("ignore")
rank, size, port, steps, ins, outs_a, outs_b, batch = (int(a) for a in sys.argv[1:9])
hosted = "hosted" in sys.argv[9:]
minute = datetime.timedelta(seconds=60)
where = {"init_method": f"tcp://127.0.0.1:{port}"}
if hosted:
    where = {"store": dist.TCPStore("127.0.0.1", port, is_master=False, timeout=minute, use_libuv=False)}
dist.init_process_group("gloo", rank=rank, world_size=size, timeout=minute, **where)
log = []


def digest(*tensors):
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().clone().numpy().tobytes())  # numpy pins the storage, which FSDP frees
    return h.hexdigest()[:16]


class Layer(torch.nn.Linear):
    def forward(self, x):
        log.append(digest(self.weight, self.bias))  # whole here: gathered from all ranks
        return super().forward(x)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Layer(ins, outs_a), Layer(ins, outs_b)

    def forward(self, x):
        return self.a(x).sum() + self.b(x).sum()


net = Net()
with torch.no_grad():
    for k, p in enumerate(net.parameters()):
        p.copy_(((torch.arange(p.numel()) * 7 + 3 * k) % 11 - 5).reshape(p.shape) / 8)
fully_shard(net.a)
fully_shard(net.b)
fully_shard(net)
opt = torch.optim.SGD(net.parameters(), lr=0.125)
for step in range(steps):
    x = ((torch.arange(batch * ins) * 5 + 3 * rank + step) % 9 - 4).reshape(batch, ins) / 4
    opt.zero_grad()
    net(x).backward()
    opt.step()
    log.append(digest(*(p.to_local() for p in net.parameters())))
    if hosted and step == 0:
        print("begun", flush=True)
dist.all_reduce(torch.zeros(1))  # no rank leaves before all are done
print(json.dumps(log), flush=True)
dist.destroy_process_group()
