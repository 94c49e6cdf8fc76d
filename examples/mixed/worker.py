# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0

"""A PyTorch worker that owns half of a network: python3 worker.py INIT_METHOD RANK WORLD_SIZE"""

import sys

import torch.distributed.rpc as rpc

import features  # noqa: F401  (what the driver uses must be importable here)

if __name__ == "__main__":
    init_method, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    options = rpc.TensorPipeRpcBackendOptions(init_method=init_method)
    rpc.init_rpc("torch", rank=rank, world_size=world_size, rpc_backend_options=options)
    rpc.shutdown()  # serves until the driver is done
