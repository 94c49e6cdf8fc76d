"""A PyTorch rank with CUDA tensors in a gloo group with a Go rank (peer group), and an NCCL group beside it on the same store."""
import os

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="env://")
alone = dist.new_group([rank], backend="nccl") if os.environ.get("NCCL_BESIDE") else None
x = torch.tensor([float(rank), 1, 2, 3], device="cuda")
dist.all_reduce(x)
assert x.tolist() == [1, 2, 4, 6], x
dist.broadcast(x, 1 - rank)
assert x.tolist() == [7, 8, 9, 10], x
out = [torch.zeros(1, device="cuda") for _ in range(2)]
dist.all_gather(out, torch.tensor([float(rank)], device="cuda"))
assert [t.item() for t in out] == [0, 1], out
if alone is not None:
    y = torch.ones(4, device="cuda")
    dist.all_reduce(y, group=alone)
    torch.cuda.synchronize()
    assert y.tolist() == [1, 1, 1, 1]
dist.barrier()
print("python: gloo with CUDA tensors beside a Go rank: ok", flush=True)
dist.destroy_process_group()
