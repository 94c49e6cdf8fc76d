# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0

"""A toy environment. Nothing in it knows of RPC or Go."""

import torch


class Env:
    def __init__(self, seed, size=4):
        self.state = torch.zeros(size)
        self.seed = seed
        self.steps = 0

    def step(self, action):
        self.steps += 1
        self.state = self.state + action
        return {"observation": self.state, "reward": float(self.seed + self.steps), "done": self.steps >= 5}
