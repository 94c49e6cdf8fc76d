# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Uses cohort_dist.store while its connections break and its server changes, step by step.

usage: redial.py FOLDER ADDRESS, where FOLDER has the package.
"""
import doctest
import gc
import os
import sys
import threading
import time
from datetime import timedelta

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist

os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = sys.argv[2].split(":")
from cohort_dist import store as module
from cohort_dist.store import Replaced, Unavailable, connect

Late = getattr(dist, "DistStoreError", RuntimeError)


def stage(*words):
    print(*words, flush=True)
    sys.stdin.readline()


def every_operation(s, names):
    # What C++ calls goes through a prefix, whose Python half has what the version has.
    s.set("k", "v")
    assert s.get("k") == b"v"
    assert s.compare_set("k", "v", "w") == b"w" and s.compare_set("k", "v", "x") == b"w"
    assert s.compare_set("new", "", "n") == b"n" and s.get("new") == b"n"
    assert s.add("n", 2) == 2 and s.add("n", -3) == -1
    assert s.num_keys() == names, s.num_keys()
    s.wait(["k", "n"])
    try:
        s.wait(["no"], timedelta(seconds=0.05))
        assert False, "no"
    except Late as e:
        assert "within 0.05 s" in str(e), e
    if hasattr(s, "check"):
        assert s.check(["k"]) and not s.check(["k", "no"])
    if hasattr(s, "append"):
        s.append("k", "!")
        s.multi_set(["a", "b"], ["1", ""])
        assert s.multi_get(["a", "b", "k"]) == [b"1", b"", b"w!"]
        assert s.delete_key("a") and s.delete_key("b")
    assert s.delete_key("k") and not s.delete_key("k")
    assert s.delete_key("new") and s.delete_key("n")


found = doctest.testmod(module)
assert found.attempted > 8 and not found.failed, found
s = connect(timeout=20)
for key in [b"epoch"]:
    s.delete_key(key.decode())
before = s.num_keys()
every_operation(s, before + 3)
every_operation(dist.PrefixStore("in", s), before + 3)
s.queue_push("q", b"\0\xff")
s.queue_push("q", "2")
assert s.queue_len("q") == 2 and s.queue_pop("q") == b"\0\xff" and s.queue_pop("q", False) == b"2"
try:
    s.queue_pop("q", False)
    assert False, "an empty queue"
except Late:
    pass
assert [k for k in s.list_keys() if k == "q"] == []
try:
    s.add("text", 1) and s.set("text", "x") and s.add("text", 1)
except Late:
    pass

# C++ keeps the store, and Python does not.
prefix = dist.PrefixStore("p", connect(timeout=20))
gc.collect()
prefix.set("kept", "1")
assert s.get("p/kept") == b"1"

seen = []


def follow():
    for value in s.watch("watched"):
        seen.append(value)
        if value == b"end":
            return


watcher = threading.Thread(target=follow)
watcher.start()
waited = []
waiter = threading.Thread(target=lambda: waited.append(s.get("late")))
waiter.start()
while not seen:
    time.sleep(0.01)
s.set("watched", "1")
while seen[-1] != b"1":
    time.sleep(0.01)
stage("working")  # the connections break, and break again
s.set("watched", "2")
assert s.get("watched") == b"2" and s.add("sum", 5) == 5
while seen[-1] != b"2":
    time.sleep(0.01)
assert not waited
stage("again")  # while nothing can connect, the other side sets the keys
waiter.join()
assert waited == [b"from Go"], waited
watcher.join()
assert seen[-1] == b"end", seen
pid = os.fork()
if pid == 0:  # the connections are the parent's
    ok = s.get("late") == b"from Go" and s.add("children", 1) == 1
    os._exit(0 if ok else 1)
assert os.waitpid(pid, 0)[1] == 0
assert s.get("children") == b"1"
stage("forked")  # another server stands at the address
for ask in (lambda: s.get("late"), lambda: s.set("late", "x"), lambda: s.check(["late"]), lambda: next(s.watch("late"))):
    try:
        ask()
        assert False, "another store is used"
    except Replaced as e:
        assert "another one" in str(e), e
fresh = connect(timeout=20)
assert not fresh.check(["late"]), "written into the other store"
fresh.set_timeout(timedelta(seconds=0.3))
stage("fresh")  # no server
try:
    fresh.get("late")
    assert False, "no server"
except Unavailable as e:
    assert "cannot be reached" in str(e), e
print("done", flush=True)
os._exit(0)
