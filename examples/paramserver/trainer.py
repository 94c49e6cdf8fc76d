# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0

"""A trainer for the Go parameter server: python3 trainer.py INIT_METHOD RANK WORLD_SIZE"""

import sys

import torch
import torch.distributed.rpc as rpc

import paramserver


def main(init_method, rank, world_size):
    options = rpc.TensorPipeRpcBackendOptions(init_method=init_method)
    rpc.init_rpc("trainer%d" % rank, rank=rank, world_size=world_size, rpc_backend_options=options)
    torch.manual_seed(rank)
    server = rpc.rpc_sync("ps", paramserver.shared)
    x = torch.rand(64, 1)
    y = 3 * x + 1 + 0.01 * torch.randn(64, 1)
    for _ in range(200):
        params = server.rpc_sync().pull().requires_grad_()
        loss = ((x * params[0] + params[1] - y) ** 2).mean()
        loss.backward()
        server.rpc_async().push(params.grad).wait()
    print("trainer %d: loss %.4f" % (rank, loss.item()), flush=True)

    # A server of our own, made on demand: its state lives in Go as long as we refer to it.
    own = rpc.remote("ps", paramserver.new_server, args=(2,), kwargs={"lr": 0.5})
    assert own.rpc_sync().push(torch.ones(2)) == 1
    assert torch.equal(own.rpc_sync().pull(), torch.full((2,), -0.5))
    try:
        own.rpc_sync().push(torch.ones(3))
    except ValueError as e:
        assert "3 elements" in str(e)
    rpc.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
