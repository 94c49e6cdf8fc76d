# One PyTorch client of a store with narrow limits, at sys.argv[1]. It keeps to them on one connection and not on others, which may be
# refused or cut. What it has stored on the first must stay, and that connection must go on.
import random, sys
from datetime import timedelta

import torch.distributed as dist

port, mine = int(sys.argv[1]), sys.argv[2]
random.seed(mine)


def connect(seconds=1):
    return dist.TCPStore("127.0.0.1", port, is_master=False, use_libuv=False, wait_for_workers=False, timeout=timedelta(seconds=seconds))


main = connect(60)
for i in range(20):
    main.set("%s/%d" % (mine, i), "value %d of %s" % (i, mine) * 50)
main.add(mine + "/count", 0)
print("ready", flush=True)
sys.stdin.readline()
refused = {}


def abuse(what):
    try:
        others = [connect()]
        if what == "value":
            others[0].set(mine + "/large", "x" * (2 << 20))
            others[0].get(mine + "/large")
        elif what == "key":
            others[0].set("k" * 5000, "x")
            others[0].get("k" * 5000)
        elif what == "memory":
            for i in range(40):
                others[0].set("%s/fill/%d" % (mine, i), "x" * (900 << 10))
            others[0].get(mine + "/fill/39")
        elif what == "conns":
            for _ in range(8):
                others.append(connect())
                others[-1].get(mine + "/0")
    except Exception as e:
        refused[what] = refused.get(what, 0) + 1


for turn in range(1, 9):
    abuse(["value", "key", "memory", "conns"][turn % 4])
    i = random.randrange(20)
    want = "value %d of %s" % (i, mine) * 50
    got = main.get("%s/%d" % (mine, i)).decode()
    assert got == want, got[:100]
    assert main.add(mine + "/count", 1) == turn
print("ok", refused, flush=True)
