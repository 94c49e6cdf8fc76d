#!/usr/bin/env python3
"""PyTorch calls Go, beside PyTorch calls PyTorch: the same caller, the same calls, in turns.

usage: run.py [--reps 7] [--calls 1000] [--transports uv] [--cohort bin/cohort] [--out FILE.jsonl]

Prints every value as {"group","case","peer","value","unit"} and at the end, to
standard error, the medians and their ratio. README.md says what the peers are.
"""
import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = [x.split("=", 1) for x in os.environ.get("PEERS_TORCH", "torch-1.13.1=/usr/bin/python3").split(";") if x]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def end(proc):
    if proc.poll() is None:
        proc.kill()
    proc.wait()


def world(args, interp, peer, go):
    """One world of two workers; returns the caller's rows."""
    port = free_port()
    with open(os.path.join(HERE, "caller.py")) as f:
        text = f.read()
    # -c, not a file name: the interpreter may live in a chroot that cannot see this directory

    def torch(rank):
        return [*shlex.split(interp), "-c", text, str(rank), str(port), str(args.calls), peer, args.transports]

    callee = torch(1)
    if go:
        callee = [args.cohort, "bench", "rpc-worker", "--store", f"127.0.0.1:{port}", "--name", "w1", "--rank", "1", "--world-size", "2"]
    first = subprocess.Popen(torch(0), stdout=subprocess.PIPE, text=True)
    second = subprocess.Popen(callee, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=dict(os.environ, TP_SOCKET_IFNAME="lo"))
    try:
        out, _ = first.communicate(timeout=args.timeout)
        second.wait(30)
    finally:
        end(first)
        end(second)
    if first.returncode or second.returncode:
        raise SystemExit(f"{peer}: the caller ended with {first.returncode}, the callee with {second.returncode}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--reps", type=int, default=7)
    p.add_argument("--calls", type=int, default=1000)
    p.add_argument("--transports", default="", help="empty: PyTorch's own choice among PyTorch workers; uv: TCP everywhere")
    p.add_argument("--cohort", default=os.path.join(HERE, "..", "..", "bin", "cohort"))
    p.add_argument("--out", default="")
    p.add_argument("--timeout", type=float, default=120)
    args = p.parse_args()
    rows = []
    for _ in range(args.reps):
        for label, interp in TORCH:
            for go in (False, True):
                rows += world(args, interp, label + ("-to-cohort" if go else "-to-torch"), go)
    for row in rows:
        print(json.dumps(row))
    if args.out:
        with open(args.out, "a") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)

    def median(case, peer):
        return statistics.median(r["value"] for r in rows if r["case"] == case and r["peer"] == peer)

    units = {r["case"]: r["unit"] for r in rows}
    for label, _ in TORCH:
        for case, unit in units.items():
            theirs, ours = median(case, label + "-to-torch"), median(case, label + "-to-cohort")
            print(f"{label:14} {case:34} to torch {theirs:10.1f}  to cohort {ours:10.1f} {unit:5} ratio {ours / theirs:5.2f}", file=sys.stderr)


main()
