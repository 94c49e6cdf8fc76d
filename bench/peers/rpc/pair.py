#!/usr/bin/env python3
"""PyTorch calls another worker: the cases of torch_rpc.py with a caller and a callee of their own.

usage: pair.py PEER SCALE TRANSPORTS INTERPRETER [CALLEE]
       INTERPRETER runs the caller, and the callee too unless CALLEE is given: a
       command line with {port} for the port of the store, which must join as
       worker w1, rank 1 of 2, and serve __main__.udf.
"""
import os
import shlex
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def end(proc):
    if proc.poll() is None:
        proc.kill()
    proc.wait()


def main():
    peer, scale, transports, interpreter = sys.argv[1:5]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    with open(os.path.join(HERE, "torch_rpc.py")) as f:
        text = f.read()
    env = dict(os.environ, TP_SOCKET_IFNAME="lo", USE_LIBUV="0")

    def torch(rank):  # -c, not a file name: the interpreter may live in a chroot that cannot see this directory
        return [*shlex.split(interpreter), "-c", text, peer, scale, transports, str(rank), port]

    callee = [x.replace("{port}", port) for x in shlex.split(sys.argv[5])] if len(sys.argv) > 5 else torch(1)
    first = subprocess.Popen(torch(0), env=env)
    second = subprocess.Popen(callee, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        first.wait(100)
        second.wait(30)
    finally:
        end(first)
        end(second)
    if first.returncode or second.returncode:
        sys.exit(f"{peer}: the caller ended with {first.returncode}, the callee with {second.returncode}")


main()
