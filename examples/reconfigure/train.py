# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A member of a group whose members change, in PyTorch 2.14. The store and the coordinator are Go's (main.go).

usage: python3 train.py [HOST:PORT] [--steps N] [--die-at STEP]

cohort run --members sets what it needs, so that HOST:PORT can be left out.
"""
import argparse
import datetime
import json
import os
import signal
import threading
import time

import torch
import torch.distributed as dist


class Member:
    """Asks the coordinator which group this process is in. This is all that Python needs of it."""

    def __init__(self, store, beat=1.0):
        self.store, self.uuid = dist.PrefixStore("cohort/elastic", store), -1
        number = os.environ.get("COHORT_MEMBER")  # from the launcher, which notices when this process dies
        self.number = int(number) if number else self.store.add("members", 1) - 1
        own = dist.PrefixStore("cohort/elastic", store.clone())  # a wait holds a connection
        threading.Thread(target=self._beat, args=(own, beat), daemon=True).start()

    def _beat(self, store, every):
        while True:
            store.add(f"alive/{self.number}", 1)
            time.sleep(every)

    def _ask(self, **question):
        while True:
            try:
                n = self.store.add("asks", 1)
                self.store.set(f"ask/{n}", json.dumps({"member": self.number, **question}))
                self.store.wait([f"answer/{n}"], datetime.timedelta(seconds=10))
                answer = json.loads(self.store.get(f"answer/{n}"))
                self.store.delete_key(f"answer/{n}")
            except dist.DistStoreError:
                if not self.store.check(["end"]):
                    continue  # the coordinator may have forgotten us: ask again
                answer = json.loads(self.store.get("end"))
            except dist.DistNetworkError as e:
                raise SystemExit(f"the store has ended, and with it the coordinator: {str(e).splitlines()[0]}")
            if answer.get("error"):
                raise SystemExit(answer["error"])
            return answer

    def next(self, handle):
        """The uuid and the handles to reconfigure with; waits. None when the job is done."""
        answer = self._ask(handle=handle)
        self.uuid = answer.get("uuid", -1)
        return None if "uuid" not in answer else (answer["uuid"], answer["handles"])

    def over(self):
        return self.store.check([f"over/{self.uuid}"])

    def done(self):
        self._ask(done=True)


class Over(Exception):
    pass


parser = argparse.ArgumentParser()
parser.add_argument("address", nargs="?", default=f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--die-at", type=int, default=0)
args = parser.parse_args()
host, port = args.address.split(":")
for attempt in range(100):  # the store may not be there yet
    try:
        store = dist.TCPStore(host, int(port), None, False, timeout=datetime.timedelta(seconds=60), use_libuv=False)
        break
    except dist.DistError:
        time.sleep(0.1)
member = Member(store)
dist.init_process_group("gloo", store=dist.PrefixStore("default_pg", store), rank=member.number, world_size=member.number + 1,
                        timeout=datetime.timedelta(seconds=10), enable_reconfigure=True)

INPUTS, BATCH = 3, 16
model = torch.nn.Linear(INPUTS, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
parameters = list(model.parameters())
step = 0


def velocities():
    return [optimizer.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in parameters]


def share():
    """Gives all members the state of the member that is furthest: a step may have succeeded for some only."""
    global step
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([step]))
    steps = [int(s) for s in steps]
    flat = torch.cat([t.detach().reshape(-1) for t in parameters + velocities()])
    dist.broadcast(flat, steps.index(max(steps)))
    with torch.no_grad():
        for t in parameters + velocities():
            t.copy_(flat[: t.numel()].view_as(t))
            flat = flat[t.numel():]
    step = max(steps)


def learn(over):
    """One step with all members. Returns the loss, and whether one has seen that the round is over: all leave after the same step."""
    x = torch.rand(BATCH, INPUTS) * 2 - 1
    loss = torch.nn.functional.mse_loss(model(x), (x @ torch.tensor([1.0, 2.0, 3.0]) + 0.5).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    sums = torch.cat([p.grad.reshape(-1) for p in parameters] + [loss.detach().reshape(1), torch.tensor([float(over)])])
    dist.all_reduce(sums)  # when it fails nothing was changed
    sums /= dist.get_world_size()
    for p in parameters:
        p.grad.copy_(sums[: p.numel()].view_as(p))
        sums = sums[p.numel():]
    optimizer.step()
    return sums[0].item(), sums[1].item() > 0


while True:
    given = member.next(dist._get_reconfigure_handle())
    if given is None:
        break  # a spare that was not needed
    try:
        dist._reconfigure(*given, timeout=datetime.timedelta(seconds=10)).wait()
        share()
        print(f"member {member.number} (process {os.getpid()}): rank {dist.get_rank()} of {dist.get_world_size()} at step {step}",
                flush=True)
        while step < args.steps:
            if args.die_at and step >= args.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss, over = learn(member.over())
            step += 1
            if step % 10 == 0:
                print(f"member {member.number}: step {step} loss {loss:.6f}", flush=True)
            if over:
                raise Over("the round is over")
            time.sleep(0.02)
    except (RuntimeError, Over) as e:
        print(f"member {member.number}: {str(e).splitlines()[0][:100]}", flush=True)
        continue
    print(f"member {member.number} done at step {step}", flush=True)
    member.done()
    break
os._exit(0)
