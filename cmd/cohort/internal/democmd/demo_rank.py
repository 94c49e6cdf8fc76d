"""The PyTorch rank of "cohort demo": trains a network with the Go ranks, then hangs. Its arguments are the steps."""
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(sys.argv[1])


def load_batch():
    print("loads the next batch, and that takes for ever", flush=True)
    time.sleep(600)


print("takes part with PyTorch %s" % torch.__version__, flush=True)
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
for step in range(STEPS):
    x = 2 * torch.rand(32, 1) - 1
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(net(x), torch.sin(3 * x))
    loss.backward()
    optimizer.step()
    if step == 0:
        first = loss.item()
losses = torch.tensor([first, loss.item()])
dist.all_reduce(losses)
losses /= dist.get_world_size()
print("trained a network together, %d steps: the mean loss fell from %.3f to %.3f" % (STEPS, losses[0], losses[1]), flush=True)
load_batch()
