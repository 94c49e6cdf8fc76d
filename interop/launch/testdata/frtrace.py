"""Writes flight recorder dumps as NCCL ranks do, one folder for each case, and prints what torchfrtrace says of each: frtrace.py FOLDER."""
import logging
import os
import pickle
import sys

from torch.distributed.flight_recorder import fr_trace

for logger in (logging.getLogger(), *(logging.getLogger(n) for n in logging.root.manager.loggerDict)):
    for handler in getattr(logger, "handlers", []):
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stdout)  # in order with the names of the cases


def entry(seq, name, sizes=((8,),), dtype="Float", state="completed", backend="nccl"):
    done = state == "completed"
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 10 + seq}], "record_id": seq - 1, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": backend + ":" + name, "time_created_ns": 1000 * seq,
        "input_sizes": [list(s) for s in sizes], "input_dtypes": [dtype], "output_sizes": [list(s) for s in sizes], "output_dtypes": [dtype], "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": 1000 * seq + 1 if done else None, "retired": done, "timeout_ms": 600000,
        "is_p2p": False, "thread_id": "1", "thread_name": "main",
    }


def dump(last):
    backend = last[0]["profiling_name"].split(":")[0] if last else "nccl"
    done = [entry(seq, "all_reduce", backend=backend) for seq in (1, 2, 3)]
    status = {"last_enqueued_collective": 3 + len(last), "last_started_collective": 3, "last_completed_collective": 3}
    return {
        "version": "2.10", "entries": done + last, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {"0": status}, "comm_lib_version": "2.28.9", "nccl_comm_state": {},
    }


def waits(name="all_reduce", **more):
    return [entry(4, name, state="scheduled", **more)]


# The culprit is rank 2, never the lowest: torchfrtrace takes that one for right.
CASES = {
    "missing": [waits(), waits(), []],
    "operation": [waits(), waits(), waits("broadcast")],
    "size": [waits(), waits(), waits(sizes=((4,),))],
    "dtype": [waits(), waits(), waits(dtype="Half")],
    "first": [waits("broadcast"), waits(), waits()],
    "network": [waits(), waits(), waits()],
    "newer": [waits(backend="nccl2"), waits("_all_gather_base", backend="nccl2"), waits(backend="nccl2")],
}

for case, ranks in CASES.items():
    folder = os.path.join(sys.argv[1], case)
    os.mkdir(folder)
    for rank, last in enumerate(ranks):
        with open(os.path.join(folder, "rank%d" % rank), "wb") as f:
            pickle.dump(dump(last), f, protocol=2)
    print("== " + case, flush=True)
    try:
        fr_trace.main([folder, "-p", "rank"])
    except SystemExit:
        pass
    except AssertionError as refused:  # 2.14's does not know the newer backend
        print(refused)
