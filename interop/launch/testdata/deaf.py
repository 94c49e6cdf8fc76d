"""A rank that Ctrl-C does not reach: its main thread is in C and never comes back, while many threads run Python."""
import ctypes
import threading


def deep(n):
    if n > 0:
        deep(n - 1)
    threading.Event().wait()


for _ in range(100):
    threading.Thread(target=deep, args=(200,), daemon=True).start()
mutex = ctypes.create_string_buffer(64)
print("waits", flush=True)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)  # returns once; no signal ends the second call
