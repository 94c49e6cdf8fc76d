# A PyTorch client whose connections may be reset at any byte. For each port that it reads it does the same operations
# over a store of its own
# and prints a JSON list of what they gave, which ends with "end" or "error".
# With an argument, the number of a thread's operations, it counts in threads instead, whatever happens to their connections.
import datetime, json, sys, threading, torch
import torch.distributed as dist

old = torch.__version__.startswith("1.")


def client(port):
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=20),
            **({} if old else {"use_libuv": False}))


def operations(s):
    yield s.set("text", "x" * 20)
    yield s.get("text")
    yield s.add("number", 3)
    yield s.compare_set("compared", "", "first")
    yield s.add("number", 4)
    yield s.compare_set("compared", "first", "second")
    yield s.wait(["number", "compared"])
    if not old:
        yield s.append("text", "y")
        yield s.multi_set(["a", "b"], ["1", "2"])
        yield s.check(["a", "none"])
        yield s.multi_get(["b", "text", "a"])
    yield s.delete_key("text")
    yield s.num_keys()


def count(port, step, times):
    # Each thread counts in steps of its own. Answers to what it asked before may have been lost; none comes late, and
    # none is another thread's.
    last, tries, s = 0, 0, None
    while last < times * step:
        try:
            s = s or client(port)
            tries += 1
            n = s.add("in steps of %d" % step, step)
        except Exception:
            s = None
            continue
        if not last < n <= tries * step or n % step:
            print("error: after %d steps of %d the sum is %d, and it was %d" % (tries, step, n, last), flush=True)
            return
        last = n


for line in sys.stdin:
    if len(sys.argv) > 1:
        threads = [threading.Thread(target=count, args=(int(line), step, int(sys.argv[1]))) for step in (7, 11, 13, 17, 19, 23)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print("counted", flush=True)
        continue
    got = []
    try:
        for value in operations(client(int(line))):
            got.append(repr(value))
        got.append("end")
    except Exception:
        got.append("error")
    print(json.dumps(got), flush=True)
