# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""OpenBLAS by numpy: openblas.py [PEER] [SECONDS]

Prints JSON lines `matmul1024.tN` for one thread and two, as `cohort bench train` does. Needs numpy and OpenBLAS (Debian:
python3-numpy, libopenblas0-pthread); numpy with another BLAS is not comparable and is refused. An OpenBLAS that is older than
the processor does not use AVX-512 unless it is told to, so OPENBLAS_CORETYPE is SkylakeX on such a processor if it is not
set."""
import glob, json, os, subprocess, sys, time

if os.environ.get("PEERS_THREADS") is None:
    peer = sys.argv[1] if len(sys.argv) > 1 else "openblas"
    seconds = sys.argv[2] if len(sys.argv) > 2 else "2"
    env = dict(os.environ)
    env["LD_LIBRARY_PATH"] = ":".join([*glob.glob("/usr/lib/*/openblas-pthread"), env.get("LD_LIBRARY_PATH", "")])
    if "avx512f" in open("/proc/cpuinfo").read():
        env.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
    for n in "1", "2":  # before the library is loaded
        env["PEERS_THREADS"] = env["OPENBLAS_NUM_THREADS"] = n
        code = subprocess.run([sys.executable, __file__, peer, seconds], env=env).returncode
        if code:
            sys.exit(code)
    sys.exit(0)

try:
    import numpy
except ImportError:
    sys.exit("openblas.py: numpy is missing (Debian: python3-numpy)")
if "openblas" not in open("/proc/self/maps").read():
    sys.exit("openblas.py: numpy uses another BLAS (Debian: install libopenblas0-pthread)")
peer, seconds, n = sys.argv[1], float(sys.argv[2]), os.environ["PEERS_THREADS"]
a, b = numpy.random.rand(1024, 1024).astype("f"), numpy.random.rand(1024, 1024).astype("f")
c = a @ b
times, start = [], time.perf_counter()
while len(times) < 3 or time.perf_counter() - start < seconds:
    t = time.perf_counter()
    numpy.matmul(a, b, out=c)
    times.append(time.perf_counter() - t)
rate = 2 * 1024 ** 3 / sorted(times)[len(times) // 2] / 1e9
print(json.dumps({"group": "autograd", "case": f"matmul1024.t{n}", "peer": peer, "value": rate, "unit": "GFLOP/s"}), flush=True)
