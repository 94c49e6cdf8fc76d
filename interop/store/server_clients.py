# One PyTorch client that tries every operation of its Python API on the store at sys.argv[1].
# sys.argv[2] is a prefix of its own, so that many of these can share one store.
import sys, threading, time
from datetime import timedelta

import torch
import torch.distributed as dist

port, mine = int(sys.argv[1]), sys.argv[2]
modern = not torch.__version__.startswith("1.")
checks = 0


def check(ok, what):
    global checks
    assert ok, what
    checks += 1


def raises(what, fn, *words):
    try:
        fn()
    except Exception as e:
        for w in words:
            check(w in str(e), "%s: %r is not in %r" % (what, w, str(e)))
        return
    raise AssertionError(what + " did not raise")


def connect(**kw):
    if modern:
        kw["use_libuv"] = False
    kw.setdefault("timeout", timedelta(seconds=30))
    return dist.TCPStore("127.0.0.1", port, is_master=False, **kw)


raw = connect()
s = dist.PrefixStore(mine, raw)

# test_store.py: test_set_get, test_simple_wait, compare_set, delete, num_keys
s.set("key", "value")
check(s.get("key") == b"value", "get")
s.set("key", "")
check(s.get("key") == b"", "an empty value")
s.set("", "empty key")
check(s.get("") == b"empty key", "an empty key")
check(s.add("n", 1) == 1, "add to a missing key")
check(s.add("n", 2) == 3 and s.add("n", -10) == -7 and s.add("n", 0) == -7, "add")
check(s.get("n") == b"-7", "a counter is text")
check(s.add("n", 2**62) == 2**62 - 7, "a large add")
s.set("number", "  12abc")
check(s.add("number", 1) == 13, "what stoll accepts")
check(s.compare_set("cs", "expected", "desired") == b"expected", "compare_set of a missing key")
check(s.compare_set("cs", "", "first") == b"first", "compare_set creates")
check(s.compare_set("cs", "first", "second") == b"second", "compare_set replaces")
check(s.compare_set("cs", "first", "third") == b"second", "compare_set keeps")
check(s.compare_set("key", "", "filled") == b"filled", "an empty value equals an empty expected")
check(s.compare_set("key", "filled", "") == b"", "compare_set to an empty value")
check(s.delete_key("cs") and not s.delete_key("cs"), "delete_key")
before = raw.num_keys()
check(before >= 4, "num_keys")
s.wait(["key", "n", "key"])
s.wait([])

# large values, binary values, many keys in flight
s.set("big", "x" * (5 << 20))
check(s.get("big") == b"x" * (5 << 20), "5 MiB")
for i in range(500):
    s.set("many%d" % i, str(i))
check(all(s.get("many%d" % i) == str(i).encode() for i in range(500)), "500 keys")
nested = dist.PrefixStore("a", dist.PrefixStore("b", s))
nested.set("k", "v")
check(nested.get("k") == b"v" and s.get("b/a/k") == b"v", "nested prefixes")

# waits, across two clients of one process
other = dist.PrefixStore(mine, connect())


def later(key, how):
    def run():
        time.sleep(0.05)
        how(key)
    t = threading.Thread(target=run)
    t.start()
    return t


for i, how in enumerate([lambda k: other.set(k, "x"), lambda k: other.add(k, 1), lambda k: other.compare_set(k, "", "x")]):
    t = later("late%d" % i, how)
    check(s.get("late%d" % i) in (b"x", b"1"), "get of a key that comes later")
    t.join()
t = later("two", lambda k: (other.set("one", "1"), other.set(k, "2")))
s.wait(["one", "two"], timedelta(seconds=20))
t.join()

# time-outs, and the store works afterwards
start = time.monotonic()
if modern:
    raises("wait", lambda: s.wait(["never"], timedelta(milliseconds=300)), "wait timeout after 300ms", "/never")
    check(s.get("n") is not None, "get after a time-out")
    raw.set_timeout(timedelta(milliseconds=300))
    raises("get", lambda: s.get("never"), "wait timeout after 300ms")
    raises("multi_get", lambda: s.multi_get(["n", "never"]), "wait timeout")
    raw.set_timeout(timedelta(seconds=30))
    check(s.add("after", 7) == 7, "add after time-outs")
    other.set("never", "now")
    check(s.add("after", 7) == 14, "the key of a cancelled wait comes: nothing stray")
else:
    raises("wait", lambda: s.wait(["never"], timedelta(milliseconds=300)), "Socket Timeout")
    # PyTorch's own server would now send a stray byte once the key comes, and add would return 1792.
    check(s.add("after", 7) == 7, "add after a time-out")
    other.set("never", "now")
    other.get("never")
    check(s.add("after", 7) == 14, "the key of an abandoned wait comes: nothing stray")
check(time.monotonic() - start < 25, "time-outs take their time")

if modern:
    check(raw.check([mine + "/n"]) and not raw.check([mine + "/n", mine + "/nope"]) and raw.check([]), "check")
    s.append("app", "ab")
    s.append("app", "cd")
    check(s.get("app") == b"abcd", "append")
    t = later("appwait", lambda k: other.append(k, "x"))
    check(s.get("appwait") == b"x", "append wakes")
    t.join()
    keys = ["m%d" % i for i in range(5000)]
    s.multi_set(keys, [k * 3 for k in keys])
    check(s.multi_get(keys) == [(k * 3).encode() for k in keys], "multi_set and multi_get of 5000 keys")
    s.multi_set([], [])
    check(s.multi_get([]) == [], "multi_get of nothing")
    check(s.has_extended_api(), "has_extended_api")

print("ok", checks, flush=True)
