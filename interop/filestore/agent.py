# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
#
# A PyTorch process with a FileStore: obeys JSON lines on stdin, answers each with a JSON line.
# Arguments: path, world size (- for none).
import json, sys
from datetime import timedelta

import torch.distributed as dist

path, world = sys.argv[1], sys.argv[2]
store = dist.FileStore(path) if world == "-" else dist.FileStore(path, int(world))


def text(value):
    return value.decode("latin-1") if isinstance(value, bytes) else value


def run(op, *args):
    global store
    if op == "close":
        store = None
        return None
    if op == "wait":
        return store.wait(list(args))
    if op == "wait_ms":
        return store.wait(list(args[1:]), timedelta(milliseconds=args[0]))
    if op == "adds":
        for _ in range(args[1]):
            last = store.add(args[0], 1)
        return last
    if op == "sets":
        for i in range(args[1]):
            store.set(args[0] + str(i % 5), "x" * args[2])
        return None
    if op == "prefix":
        return text(getattr(dist.PrefixStore(args[0], store), args[1])(*args[2:]))
    return text(getattr(store, op)(*args))


print("ready", flush=True)
for line in sys.stdin:
    command = json.loads(line)
    try:
        print(json.dumps({"result": run(*command)}), flush=True)
    except Exception as e:
        print(json.dumps({"error": str(e)}), flush=True)
