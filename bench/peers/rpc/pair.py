#!/usr/bin/env python3
"""PyTorch calls other workers: the cases of torch_rpc.py, each caller with a callee of its own.

usage: pair.py SCALE TRANSPORTS INTERPRETER PEER[=CALLEE]...
       INTERPRETER runs the callers, and the callee too of a PEER without CALLEE:
       a command line with {port} for the port of the store, which must join as
       worker w1, rank 1 of 2, and serve __main__.udf.

All pairs are started first. Then they take turns of a few dozen milliseconds in
each case, every time in another order, and a value is the median of its turns:
what the machine does meanwhile meets all of them. The program without the turn is
stopped by a signal, since an idle PyTorch worker polls its shared memory with
a whole processor.
"""
import ctypes
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TURNS = 7
LIMIT = 100  # seconds for everything


def tie():  # in the child: it ends with this process, also when it is stopped
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass


class Pair:
    def __init__(self, peer):
        self.peer, self.values, self.procs = peer, {}, []

    def start(self, scale, transports, interpreter, callee, text):
        peer = self.peer
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = str(s.getsockname()[1])
        env = dict(os.environ, TP_SOCKET_IFNAME="lo", USE_LIBUV="0")

        def torch(rank):  # -c, not a file name: the interpreter may live in a chroot that cannot see this directory
            return [*shlex.split(interpreter), "-c", text, peer, str(scale), transports, str(rank), port]

        second = [x.replace("{port}", port) for x in shlex.split(callee)] if callee else torch(1)
        self.procs.append(subprocess.Popen(torch(0), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                           preexec_fn=tie))
        self.procs.append(subprocess.Popen(second, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=tie))
        self.cases = self.answer()
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        for p in self.procs:
            if p.poll() is None:
                p.send_signal(number)

    def answer(self):
        line = self.procs[0].stdout.readline()
        if not line:
            raise RuntimeError(f"{self.peer}: the caller has ended")
        return json.loads(line)

    def ask(self, line):
        self.procs[0].stdin.write(line + "\n")
        self.procs[0].stdin.flush()

    def turn(self, case):
        self.signal(signal.SIGCONT)
        self.ask(case)
        for name, value, unit in self.answer():
            self.values.setdefault((name, unit), []).append(value)
        self.signal(signal.SIGSTOP)

    def end(self):
        self.signal(signal.SIGCONT)
        self.procs[0].stdin.close()
        codes = [p.wait(30) for p in self.procs]
        if any(codes):
            raise RuntimeError(f"{self.peer}: the caller ended with {codes[0]}, the callee with {codes[1]}")

    def kill(self):
        for p in self.procs:
            if p.poll() is None:
                p.kill()
            p.wait()


def late(*_):
    raise RuntimeError("it takes too long")


def main():
    scale, transports, interpreter = float(sys.argv[1]) / TURNS, sys.argv[2], sys.argv[3]
    with open(os.path.join(HERE, "torch_rpc.py")) as f:
        text = f.read()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    pairs = []
    try:
        for arg in sys.argv[4:]:
            peer, _, callee = arg.partition("=")
            pairs.append(Pair(peer))
            pairs[-1].start(scale, transports, interpreter, callee, text)
        for case in pairs[0].cases:
            for i in range(TURNS):
                for k in range(len(pairs)):
                    pairs[(i + k) % len(pairs)].turn(case)
        for p in pairs:
            p.end()
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as e:
        sys.exit(f"pair.py: {e}")
    finally:
        for p in pairs:
            p.kill()
    for p in pairs:
        for (name, unit), v in p.values.items():
            print(json.dumps({"group": "rpc", "case": "from_torch." + name, "peer": p.peer, "value": statistics.median(v), "unit": unit}))


main()
