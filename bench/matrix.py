#!/usr/bin/env python3
# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Looks for cliffs: what a collective costs with different numbers of ranks, GOMAXPROCS, cores and neighbours.

Usage: bench/matrix.py [--reps 3] [--scale 1] [--only TEXT] [--rows FILE]    (TEXT is a part of "shm ranks=2 procs=16 pinned")

Needs bin/cohort (make build) or COHORT, taskset, and for the rows "limit" a cpu cgroup, version 1 or 2, that it may make a
folder in. Every value is the median of the repetitions, which go through the whole matrix one after the other. Columns: mean time of an
operation (a limit delays few operations, but those for long) and its median; processor time over wall time of the most expensive
rank; processor time, context switches, futex calls, epoll calls and yields of an operation on that rank. Marked are rows
  core      that use more than 1.05 cores for each goroutine that computes or runs the operation; not those in which the garbage
            collector is busy, which takes every core that the rank leaves free,
  switches  with more context switches of all threads than the algorithm has steps, in each of which a rank waits at most once. A yield to
            another thread counts as a switch too, so most rows in which ranks share a core are marked,
  cliff     that take more than three times as long, in the unit of counts(), as the best row of the same transport and operation
            at the same ratio of ranks to cores,
  slow      the same, but in rows with computing goroutines or a busy garbage collector, if they are within three times of the best one of
            their kind (GOMAXPROCS=1 separately, where the Go scheduler lets goroutines take turns of 10 ms).
A summary follows, and behind it what is marked. It ends with status 1 if something is marked."""
import argparse, atexit, json, math, os, re, signal, statistics, subprocess, sys, time

args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
args.add_argument("--reps", type=int, default=3)
args.add_argument("--scale", type=float, default=1, help="multiplies the number of operations")
args.add_argument("--only", default="")
args.add_argument("--rows", default="", help="a file that gets all rows")
args = args.parse_args()
root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
cohort = os.environ.get("COHORT") or os.path.join(root, "bin", "cohort")
cores = len(os.sched_getaffinity(0))
ranks_of = (2, 4, 8)
operations = {"allreduce": "all-reduce", "broadcast": "broadcast", "allgather": "all-gather"}
sizes = {"4B": "4 B", "1KiB": "4 B", "64KiB": "64 KiB", "1MiB": "1 MiB"}  # to the row of the table that holds for it
small = ["barrier"] + [f"{op}.{size}" for op in operations for size in ("4B", "1KiB")]
large = [f"{op}.{size}" for op in operations for size in ("64KiB", "1MiB")]


def scale(transport, place, ranks, cases):
    """What multiplies the operations of "cohort bench coll": a case takes some 50 ms, several periods of
    100 ms under a limit, and more where
    other goroutines make it slow."""
    if cases is small:
        return args.scale * {2: 40, 4: 12, 8: 4}[ranks] / {"shm": 1, "tcp": 4}[transport] * {"limit": 4, "busy": 0.2,
                "garbage": 0.05}.get(place, 1)
    return args.scale * {2: 4, 4: 1.5, 8: 0.8}[ranks] / {"shm": 1, "tcp": 2}[transport] * {"limit": 8, "busy": 0.3,
            "garbage": 0.1}.get(place, 1)


def tables():
    """Steps, and messages of all ranks together, by transport, operation, size and ranks: docs/internals/collectives.md,
    which is tested."""
    steps, head = {}, []
    with open(os.path.join(root, "docs", "internals", "collectives.md")) as f:
        for cells in ([c.strip() for c in line.split("|")[1:-1]] for line in f if line.startswith("| ")):
            if cells[0] == "operation":
                head = cells
            elif "2 ranks" in head and cells[0] in ("barrier", *operations.values()):
                for title, cell in zip(head[2:-1], cells[2:]):
                    found = re.match(r"(\d+) \((\d+)\)", cell)
                    steps["tcp", cells[0], cells[1], int(title.split()[0])] = int(found[1]), int(found[2])
            elif "2: 4 B" in head and cells[0] in ("barrier", *operations.values()):
                for title, cell in zip(head[1:], cells[1:]):
                    if ":" in title:
                        ranks, title = title.split(": ")
                    steps["shm", cells[0], title, int(ranks)] = int(cell), 0
    return steps


steps = tables()


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
places = [("free", cores, [], ""), ("pinned", 1, ["taskset", "-c", str(first)], ""), ("busy", cores, [], "--busy"),
        ("garbage", cores, [], "--garbage")]
if limit:
    places.append(("limit", 1, ["sh", "-c", f'echo $$ > {limit} && exec "$@"', "sh"], ""))


def configurations():
    for transport in ("shm", "tcp"):
        for place, available, prefix, busy in places:
            for ranks in ranks_of:
                for procs in (1, 2, 16):
                    if args.only in f"{transport} ranks={ranks} procs={procs} {place}":
                        yield (transport, place, ranks, procs), available, prefix, busy


def measure(configuration, prefix, busy, cases):
    """Returns the values of each case."""
    transport, place, ranks, procs = configuration
    names = {case: case.replace(".", f".r{ranks}.") if "." in case else f"{case}.r{ranks}" for case in cases}
    only = ",".join(names.values())
    command = [*prefix, cohort, "bench", "coll", "--ranks", str(ranks), "--transport", transport, "--only", only, "--cost",
            "--scale", str(scale(transport, place, ranks, cases))] + ([busy, "1"] if busy else [])
    done = subprocess.run(command, env={**os.environ, "GOMAXPROCS": str(procs)}, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    values = {v["case"]: v["value"] for v in map(json.loads, done.stdout.splitlines())}
    for case, name in names.items():
        mean = values[f"{name}.cpu"] / values[f"{name}.cores"]
        yield case, [mean] + [values[f"{name}.{what}"] for what in ("p50", "cores", "cpu", "switches", "futex", "epoll", "yields")]


taken, done = {}, 0
for rep in range(args.reps):
    for configuration, available, prefix, busy in configurations():
        for cases in (small, large):
            for case, values in measure(configuration, prefix, busy, cases):
                taken.setdefault((*configuration, case, available, busy), []).append(values)
        done += 1
        print(f"\rrepetition {rep + 1} of {args.reps}: {done} runs", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)

medians = {key: [statistics.median(v) for v in zip(*runs)] for key, runs in taken.items()}


def counts(key):
    """The steps of the algorithm, and what it takes in the unit in which rows are compared."""
    transport, _, ranks, _, case, available, _ = key
    op, _, size = case.partition(".")
    n, messages = steps[transport, operations.get(op, op), sizes.get(size, "4 B" if transport == "shm" else ""), ranks]
    if transport == "tcp":
        return n, max(n, messages / available)  # where ranks share cores, the messages of all are what takes time
    return n, n * (ranks if op == "allgather" and size in ("64KiB", "1MiB") else 1)  # each rank copies the blocks of all


def unit(key, values):
    return values[0] / counts(key)[1]


def alike(key):
    """What all rows have in common that are compared with each other."""
    transport, _, ranks, _, case, available, _ = key
    return transport, case, ranks / available


def kind(key):
    """The same of rows with busy goroutines or a busy collector."""
    procs, busy = key[3], key[6]
    return alike(key), busy, procs == 1


best, best_of_kind = {}, {}
for key, values in medians.items():
    _, place, ranks, _, _, _, busy = key
    # while the limit lasts each rank has a core of its own, which does not measure ranks that share one
    if not (place == "limit" and ranks <= cores):
        best[alike(key)] = min(best.get(alike(key), math.inf), unit(key, values))
    if busy:
        best_of_kind[kind(key)] = min(best_of_kind.get(kind(key), math.inf), unit(key, values))


def marks(key, values):
    _, place, _, procs, _, _, busy = key
    if place != "garbage" and values[2] > 1.05 * min(1 + (busy == "--busy"), procs):
        yield "core", values[2]
    if values[4] > counts(key)[0]:
        yield "switches", values[4]
    if (factor := unit(key, values) / best.get(alike(key), math.inf)) > 3:
        yield "slow" if busy and unit(key, values) <= 3 * best_of_kind[kind(key)] else "cliff", factor


lines = ["| transport | operation | place | ranks | GOMAXPROCS | mean us | p50 us | cores | cpu us "
         "| switches | futex | epoll | yields | |", "|" + "---|" * 14]
summary, marked = {}, []
for key, values in medians.items():
    transport, place, ranks, procs, case, _, _ = key
    found = dict(marks(key, values))
    lines.append(f"| {transport} | {case} | {place} | {ranks} | {procs} | " + " | ".join(f"{v:.3g}" for v in values)
                 + f" | {', '.join(f'{m} {v:.3g}' for m, v in found.items())} |")
    if found:
        marked.append(lines[-1])
    row = summary.setdefault((transport, place), {"rows": 0, "cores": 0, "worst": 0, "where": "", "core": 0, "switches": 0,
            "cliff": 0, "slow": 0})
    row["rows"] += 1
    row["cores"] = max(row["cores"], values[2])
    for mark in found:
        row[mark] += 1
    factor = unit(key, values) / best.get(alike(key), math.inf)
    if factor > row["worst"]:
        row["worst"], row["where"] = factor, f"{case}, {ranks} ranks, GOMAXPROCS={procs}"
if args.rows:
    with open(args.rows, "w") as f:
        f.write("\n".join(lines) + "\n")
print("| transport | place | rows | most cores | slowest, to the best at its ratio | where | core | switches | cliff | slow |")
print("|" + "---|" * 10)
for (transport, place), row in summary.items():
    print(f"| {transport} | {place} | {row['rows']} | {row['cores']:.2f} | {row['worst']:.1f} | {row['where']} "
          f"| {row['core']} | {row['switches']} | {row['cliff']} | {row['slow']} |")
print()
print("\n".join(lines[:2] + marked))
sys.exit(1 if marked else 0)
