# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Uses the client of the store, and makes sure that this Python can read the modules that need torch."""

import os
import socket
import struct
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from cohort_dist import _wire as wire  # noqa: E402

for module in ("store", "elastic"):
    path = os.path.join(sys.argv[1], "cohort_dist", module + ".py")
    with open(path, encoding="utf-8") as f:
        compile(f.read(), path, "exec")
assert "torch" not in sys.modules

client = wire.Client("127.0.0.1", int(sys.argv[2]))
own = b"/%d/" % os.getpid() + sys.version.split()[0].encode()


def key(name):
    return wire.string(own + name)


def fails(kind, code, body, timeout=5.0, **how):
    try:
        client.call(code, body, timeout, **how)
    except kind as e:
        return str(e)
    raise AssertionError("%d does not fail with %s" % (code, kind))


client.call(wire.SET, key(b"k") + wire.string(b"\0v"), 5)
assert wire.read_strings(client.call(wire.GET, key(b"k"), 5, waits=True)) == [b"\0v"]
assert wire.read_number(client.call(wire.ADD, key(b"n") + wire.number(-7), 5)) == -7
assert len(client.identity) == 16
idle = len(client._idle)
begin = time.monotonic()
assert "within 0.1 s" in fails(TimeoutError, wire.GET, key(b"none"), 0.1, waits=True)
assert 0.1 <= time.monotonic() - begin
assert len(client._idle) == idle, "a wait that has ended leaves its connection"
assert wire.read_strings(client.call(wire.GET, key(b"k"), 5, waits=True)) == [b"\0v"]
assert "number" in fails(wire.Refused, wire.ADD, key(b"k") + wire.number(1))
fails(wire.Refused, wire.SET, wire.string(b"/" + b"x" * 10000) + wire.string(b""))

# A wait holds up no other request, and large values arrive.
big, got = os.urandom(3 << 20), []
waiter = threading.Thread(target=lambda: got.extend(wire.read_strings(client.call(wire.GET, key(b"big"), 20, waits=True))))
waiter.start()
time.sleep(0.05)
client.call(wire.SET, key(b"big") + wire.string(big), 20)
waiter.join()
assert got == [big]

# A connection that ends between two requests is not noticed; in a request that must not be repeated it is.
for c in client._idle:
    c.socket.shutdown(socket.SHUT_RDWR)
assert wire.read_number(client.call(wire.ADD, key(b"n") + wire.number(1), 5, repeat=False)) == -6
ask = client._ask
client._ask = lambda c, *rest: (c.socket.shutdown(socket.SHUT_RDWR), ask(c, *rest))[1]
assert "may have been done" in fails(wire.Uncertain, wire.ADD, key(b"n") + wire.number(1), repeat=False)
del client._ask

# What is not cohort's server, and what sends nonsense.
for answer, kind in ((b"\1", wire.Refused), (b"", wire.Unavailable), (b"\0" + struct.pack("<IIB", 1 << 31, 1, 0), wire.Unavailable)):
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(listener=listener, answer=answer):
        try:
            while True:
                c, _ = listener.accept()
                c.sendall(answer)
                c.shutdown(socket.SHUT_WR)
                while c.recv(1 << 16):
                    pass
                c.close()
        except OSError:
            pass

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    other = wire.Client("127.0.0.1", listener.getsockname()[1])
    try:
        other.call(wire.NUM_KEYS, b"", 0.3)
        raise AssertionError("%r is taken for cohort's server" % answer)
    except kind:
        pass
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    server.join()
client.close()
print("done")
