"""A process with threads in calls of all kinds. For each line on its standard input it prints faulthandler's view."""
import asyncio
import faulthandler
import sys
import threading

stop = threading.Event()
waiting = threading.Semaphore(0)


def wait():
    waiting.release()
    stop.wait()


def gen(n):
    for i in range(n):
        yield (
            i,
            wait(),
        )


class Outer:
    class Inner:
        @staticmethod
        def späť():  # a name that is not ASCII
            return [x for x in (lambda: gen(3))()]

    def run(self):
        try:
            return self.Inner.späť()
        finally:
            pass


async def leaf():
    wait()


async def coro():
    await leaf()


def deep(n):
    return deep(n - 1) if n else [
        wait(
        )
    ]


def spin():
    waiting.release()
    while not stop.is_set():
        sum(i * i for i in range(1000))


jobs = [Outer().run, lambda: asyncio.run(coro()), lambda: deep(90)]
if len(sys.argv) > 1:
    jobs.append(spin)
for j in jobs:
    threading.Thread(target=j, daemon=True).start()
for j in jobs:
    waiting.acquire()
# Released just before the wait: let them get there.
stop.wait(0.3)
print("ready", flush=True)
for line in sys.stdin:
    faulthandler.dump_traceback(sys.stdout, all_threads=True)
    print("end", flush=True)
