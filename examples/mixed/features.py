# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0

"""The first half of a network: an ordinary PyTorch module, and what the driver calls."""

import torch

torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(1, 24), torch.nn.Tanh())


def parameters():
    return len(list(net.parameters()))


def parameter(i):
    return list(net.parameters())[i]


def forward(x):
    return net(x)
