# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A script that knows nothing of cohort."""
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print("sum %d of %d, without %s" % (int(x), dist.get_world_size(), [m for m in sys.modules if "cohort_dist" in m]), flush=True)
dist.destroy_process_group()
