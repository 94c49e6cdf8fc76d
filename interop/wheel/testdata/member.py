# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A member that loads data with forked workers, and counts with the others to STEPS.

usage: member.py STEPS
"""
import os
import sys
import time
from datetime import timedelta

if os.environ["LOCAL_RANK"] == "1":
    import cohort_dist.why  # before torch; the others import it after torch
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from cohort_dist import elastic
from cohort_dist.why import section, step

steps, now = int(sys.argv[1]), 0


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        with section("decode"):
            step()
            return torch.tensor(float(i))


with section("data"):
    loaded = sum(float(x) for x in DataLoader(Numbers(), num_workers=2, multiprocessing_context="fork"))
assert loaded == 6, loaded
with elastic.join(timeout=timedelta(seconds=120)) as member:
    while member.next():
        try:
            furthest = torch.tensor([now])
            dist.all_reduce(furthest, dist.ReduceOp.MAX)
            now = int(furthest)
            print("member %d (process %d): rank %d of %d at step %d" % (member.id, os.getpid(), dist.get_rank(), dist.get_world_size(), now),
                  flush=True)
            over = 0
            while now < steps and not over:
                sums = torch.tensor([float(member.over()), 1.0])
                dist.all_reduce(sums)
                assert sums[1] == dist.get_world_size(), sums
                over, now = int(sums[0]), now + 1
                step(now)
                if now % 20 == 0:
                    print("member %d: step %d" % (member.id, now), flush=True)
                time.sleep(0.02)
        except RuntimeError as e:
            print("member %d: %s" % (member.id, str(e).splitlines()[0][:100]), flush=True)
            continue
        if now >= steps:
            print("member %d done" % member.id, flush=True)
            member.done()
            break
