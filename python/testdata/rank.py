# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A rank that goes through stages: at each one it prints a line, and waits for one."""

import os
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import cohort_dist  # noqa: E402

heavy = [m for m in ("torch", "ctypes", "subprocess", "mmap") if m in sys.modules]
from cohort_dist import why  # noqa: E402
from cohort_dist.why import section, step  # noqa: E402


def stage(*words):
    print(*words, flush=True)
    sys.stdin.readline()


def fork():
    with section("parent"):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            stage("forked", os.getpid())
            with section("child"):
                step()
                stage("child", os.getpid())
            os._exit(0)
        os.waitpid(pid, 0)
        stage("parent", os.getpid())


def threads(n):
    inside, leave = threading.Barrier(n + 1), threading.Event()

    def run():
        with section("worker"):
            inside.wait()
            leave.wait()

    # They must not begin after each other has ended, or places would be enough.
    all = [threading.Thread(target=run) for _ in range(n)]
    for t in all:
        t.start()
    inside.wait()
    stage("threads", os.getpid())
    leave.set()
    for t in all:
        t.join()
    stage("joined", os.getpid())


def deep(n):
    if n == 0:
        stage("deep", os.getpid())
        return
    with section("level %d" % (10 - n)):
        deep(n - 1)


stage("imported", os.getpid(), *heavy)
with section("load"):
    with section("decode"):
        for _ in range(3):
            step()
        stage("nested", os.getpid())
try:
    with section("fails"):
        raise ValueError
except ValueError:
    pass
step(1000)
step()
stage("left", os.getpid())
deep(10)
with section("x" * 55 + "\u00e9"), section("a\0b"), section("\ud800"), section(""):
    stage("names", os.getpid())
threads(20)
threads(3)
if hasattr(os, "fork"):
    fork()
step(-1)
step(2**70)
stage("last", os.getpid())
