#!/usr/bin/env python3
# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Times `cohort run` beside mpirun and beside workers started by hand; each pair in turn. Usage: bench/launch.py [REPS]

Needs bin/cohort (make build), mpirun, and a Python with torch (COHORT_PYTHON, else /usr/bin/python3)."""
import atexit, os, shutil, statistics, subprocess, sys, tempfile, time

reps = int(sys.argv[1]) if len(sys.argv) > 1 else 7
cohort = os.path.join(os.path.dirname(__file__), "..", "bin", "cohort")
python = os.environ.get("COHORT_PYTHON", "/usr/bin/python3")
folder = tempfile.mkdtemp()
atexit.register(shutil.rmtree, folder)


def write(name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o755)
    return path


def timed(start):
    begin = time.perf_counter()
    for p in start():
        if p.wait() != 0:
            sys.exit(f"{p.args} failed")
    return 1e3 * (time.perf_counter() - begin)


def popen(*args, **env):
    return subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **env})


def compare(name, ours, other):
    a, b = [], []
    for _ in range(reps):
        a.append(timed(ours))
        b.append(timed(other))
    x, y = statistics.median(a), statistics.median(b)
    print(f"{name}: cohort {x:.0f} ms ({min(a):.0f} to {max(a):.0f}), "
          f"other {y:.0f} ms ({min(b):.0f} to {max(b):.0f}), ratio {x / y:.2f}", flush=True)


compare("launch_true beside mpirun", lambda: [popen(cohort, "run", "--nproc-per-node", "2", "--", "true")],
        lambda: [popen("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "true")])
gloo = write("gloo2.py", 'import torch, torch.distributed as d\nd.init_process_group("gloo")\n'
             'd.all_reduce(torch.ones(1))\nd.destroy_process_group()\n')
port = iter(range(29700, 29999))


def by_hand():
    env = dict(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(next(port)), OMP_NUM_THREADS="1")
    return [popen(python, gloo, RANK=str(r), **env) for r in range(2)]


compare("two PyTorch workers and a group beside those started by hand",
        lambda: [popen(cohort, "run", "--python", python, "--nproc-per-node", "2", gloo)], by_hand)
die = write("die.sh", '#!/bin/sh\n[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0\n[ "$RANK" = 0 ] && kill -9 $$\nsleep 30\n')
compare("a run with a death and a restart beside one without",
        lambda: [popen(cohort, "run", "--nproc-per-node", "2", "--max-restarts", "1", die)],
        lambda: [popen(cohort, "run", "--nproc-per-node", "2", "--", "true")])
noise = write("noise.py", 'import os\nb = (b"x" * 99 + b"\\n") * 655\nfor _ in range(4000): os.write(1, b)\n')
for how in (["-r", "3"], ["-t", "3"]):
    begin = time.perf_counter()
    logs = os.path.join(folder, how[0])
    popen(cohort, "run", "--nproc-per-node", "2", "--log-dir", logs, *how, noise).wait()
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, names in os.walk(logs) for f in names)
    print(f"logs {' '.join(how)}: {size / 1e6:.0f} MB, {size / 1e6 / (time.perf_counter() - begin):.0f} MB/s", flush=True)
