# A PyTorch client of a gateway whose connection to the store is cut again and again. Several of them count, set, read and wait; each
# operation must succeed, and its answer must be right. sys.argv = port, the number of this client, how many there are, how many rounds.
import datetime
import sys

import torch.distributed as dist

port, me, clients, rounds = map(int, sys.argv[1:])
options = {"use_libuv": False} if int(dist.TCPStore.__init__.__doc__.count("use_libuv")) else {}
store = dist.TCPStore("127.0.0.1", port, None, False, datetime.timedelta(seconds=120), **options)
last = 0
for n in range(rounds):
    now = store.add("count", 1)
    assert now > last, (now, last)
    last = now
    mine = "%d/%d" % (me, n)
    store.set(mine, mine)
    assert store.get(mine) == mine.encode(), mine
    other = "%d/%d" % ((me + 1) % clients, n)
    store.wait([other])  # all keep step
    assert store.get(other) == other.encode(), other
    got = store.compare_set("cs/%d" % n, "", mine)
    assert got.endswith(("/%d" % n).encode()), got
print("counted", flush=True)
