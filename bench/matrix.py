#!/usr/bin/env python3
# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Looks for cliffs: what a small all-reduce costs with different numbers of ranks, GOMAXPROCS, cores and neighbours.

Usage: bench/matrix.py [--reps 3] [--scale 20] [--only TEXT]    (TEXT is a part of "shm 4B ranks=2 procs=16 pinned")

Needs bin/cohort (make build) or COHORT, taskset, and for the rows "limit" a cpu cgroup, version 1 or 2, that it may make a
folder in. Every value is the median of the repetitions, which go through the whole matrix one after the other. Columns: mean time of an
operation (a limit delays few operations, but those for long) and its median; processor time over wall time of the most expensive
rank; processor time, context switches, futex calls, epoll calls and yields of an operation on that rank. Marked are rows
  core    that use more than 1.05 cores for each goroutine that computes or runs the operation; not those in which the garbage
          collector is busy, which takes every core that the rank leaves free,
  cliff   that take more than three times as long, for each step of the algorithm, as the best row with the same transport, size and
          ratio of ranks to cores. Rows with computing goroutines are compared with each other, so are rows with a busy
          garbage collector, and of both those with GOMAXPROCS=1 separately: there the Go scheduler lets goroutines take turns of
          10 ms."""
import argparse, atexit, json, math, os, signal, statistics, subprocess, sys, time

args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
args.add_argument("--reps", type=int, default=3)
args.add_argument("--scale", type=float, default=20, help="multiplies 600 operations of 4 bytes, 200 of 64 KiB")
args.add_argument("--only", default="")
args = args.parse_args()
cohort = os.environ.get("COHORT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bin", "cohort")
cores = len(os.sched_getaffinity(0))


def remove(folder):
    """Removes a cgroup once its processes have ended."""
    for _ in range(50):
        try:
            return os.rmdir(folder)
        except OSError:
            time.sleep(0.1)


def own_cpu_cgroup():
    """The cpu cgroup, version 1, in which this program runs: its limits and shares hold for the rows with a limit too."""
    with open("/proc/self/cgroup") as f:
        for controllers, path in (line.rstrip("\n").split(":", 2)[1:] for line in f):
            if "cpu" in controllers.split(","):
                own = "/sys/fs/cgroup/cpu" + path.rstrip("/")
                if os.path.isdir(own):  # in a container it can be the host's name of it
                    return own
    return "/sys/fs/cgroup/cpu"


def limited_to_one_core():
    """Makes a cgroup whose processes together use one core; returns its file of processes, or None."""
    for root, name, value in ((own_cpu_cgroup(), "cpu.cfs_quota_us", "100000"), ("/sys/fs/cgroup", "cpu.max", "100000 100000")):
        folder = f"{root}/cohort-matrix-{os.getpid()}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        atexit.register(remove, folder)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            with open(f"{folder}/{name}", "w") as f:
                f.write(value)
            return f"{folder}/cgroup.procs"
        except OSError:
            continue
    return None


limit = limited_to_one_core()
if limit is None:
    print("no cpu cgroup can be made here: no rows with a limit", file=sys.stderr)

# Name, cores, prefix of the command, flag for goroutines that do something else in each rank.
first = min(os.sched_getaffinity(0))
places = [("free", cores, [], ""), ("pinned", 1, ["taskset", "-c", str(first)], ""), ("busy", cores, [], "--busy"), ("garbage", cores, [], "--garbage")]
if limit:
    places.append(("limit", 1, ["sh", "-c", f'echo $$ > {limit} && exec "$@"', "sh"], ""))


def rows():
    for transport in ("shm", "tcp"):
        for size in ("4B", "64KiB"):
            for place, available, prefix, busy in places:
                for ranks in (2, 4, 8):
                    for procs in (1, 2, 16):
                        row = (transport, size, place, ranks, procs)
                        if args.only in f"{transport} {size} ranks={ranks} procs={procs} {place}":
                            yield row, available, prefix, busy


def measure(row, prefix, busy):
    transport, size, place, ranks, procs = row
    name = f"allreduce.r{ranks}.{size}"
    scale = args.scale * (10 if place == "limit" else 1)  # several periods of the limit, of 100 ms each
    command = [*prefix, cohort, "bench", "coll", "--ranks", str(ranks), "--transport", transport, "--only", name, "--cost", "--scale", str(scale)] + ([busy, "1"] if busy else [])
    done = subprocess.run(command, env={**os.environ, "GOMAXPROCS": str(procs)}, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    values = {v["case"]: v["value"] for v in map(json.loads, done.stdout.splitlines())}
    mean = values[f"{name}.cpu"] / values[f"{name}.cores"]
    return [mean] + [values[f"{name}.{what}"] for what in ("p50", "cores", "cpu", "switches", "futex", "epoll", "yields")]


taken = {}
for rep in range(args.reps):
    for row, available, prefix, busy in rows():
        taken.setdefault((row, available, busy), []).append(measure(row, prefix, busy))
        print(f"\rrepetition {rep + 1} of {args.reps}: {len(taken)} rows", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)

medians = {key: [statistics.median(v) for v in zip(*runs)] for key, runs in taken.items()}


def alike(key):
    """What rows that are compared with each other have in common."""
    (transport, size, place, ranks, procs), available, busy = key
    return transport, size, busy, procs == 1 and busy != "", ranks / available


def step(key, values):
    """The time of a step; docs/groups.md says how many there are."""
    (transport, size, place, ranks, procs), available, busy = key
    return values[0] / (math.log2(ranks) if transport == "tcp" else 1)


best = {}
for key, values in medians.items():
    (_, _, place, ranks, _), _, _ = key
    if place == "limit" and ranks <= cores:
        continue  # while the limit lasts each rank has a core of its own, which is no measure for ranks that share one
    best[alike(key)] = min(best.get(alike(key), math.inf), step(key, values))

print("| transport | size | place | ranks | GOMAXPROCS | mean us | p50 us | cores | cpu us | switches | futex | epoll | yields | |")
print("|" + "---|" * 14)
for key, values in medians.items():
    (transport, size, place, ranks, procs), available, busy = key
    marks = []
    if place != "garbage" and values[2] > 1.05 * min(1 + (busy == "--busy"), procs):
        marks.append("core")
    if step(key, values) > 3 * best.get(alike(key), math.inf):
        marks.append(f"cliff {step(key, values) / best[alike(key)]:.1f}")
    print(f"| {transport} | {size} | {place} | {ranks} | {procs} | " + " | ".join(f"{v:.3g}" for v in values) + f" | {', '.join(marks)} |")
