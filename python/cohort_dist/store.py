# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A torch.distributed.Store that dials again when its connection has broken, and can watch keys.

>>> from cohort_dist.store import connect
>>> store = connect()  # of MASTER_ADDR and MASTER_PORT; or connect("node0:29500")
>>> store.set("epoch", "3")
>>> for value in store.watch("epoch"):
...     print(value)  # the present value, then each newer one
...     break
b'3'
>>> import torch.distributed as dist
>>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
>>> dist.destroy_process_group()
>>> store.close()

PyTorch's TCPStore is lost with its connection. This one needs cohort's server (`cohort store serve`, `cohort run`), which
has an identity: when the server at the address is another one, or its keys were cleared, every operation raises Replaced,
and none uses the wrong keys. While the server cannot be reached, operations wait, up to the store's timeout.
"""

import os
from datetime import timedelta
from time import monotonic
from typing import Any, Callable, Iterator, List, Optional, Set, Union

import torch.distributed as dist

from . import _wire

__all__ = ["Replaced", "Store", "Unavailable", "Uncertain", "connect"]

_Text = Union[str, bytes, bytearray, List[int]]  # PyTorch 1.13 gives lists of numbers
_Duration = Union[timedelta, float]
_Timeout: Any = getattr(dist, "DistStoreError", RuntimeError)  # those of PyTorch 2, which are RuntimeErrors
_Network: Any = getattr(dist, "DistNetworkError", RuntimeError)
_Empty: Any = getattr(dist, "QueueEmptyError", _Timeout)


class Replaced(_Network):  # type: ignore[misc]
    """Another store answers at this address: the server was started anew without its keys, or they were cleared.

    Nothing was read from it, or written to it. Let all processes connect again.
    """


class Unavailable(_Network):  # type: ignore[misc]
    """The store could not be reached until the timeout."""


class Uncertain(_Network):  # type: ignore[misc]
    """The connection broke before the store had confirmed a request that would do something else if it were repeated.

    Such requests are add, append, compare_set, delete_key, queue_push and queue_pop. All others are repeated.
    """


_kinds = ((_wire.Replaced, Replaced), (_wire.Unavailable, Unavailable), (_wire.Uncertain, Uncertain), (TimeoutError, _Timeout))

# C++ keeps only its own half of a store, and calls methods of the Python half.
_open: Set["Store"] = set()


def _data(text: _Text) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _seconds(duration: _Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def connect(address: Optional[str] = None, timeout: _Duration = timedelta(seconds=300)) -> "Store":
    """Connect to the store at HOST:PORT, by default that of the launcher (MASTER_ADDR and MASTER_PORT), and wait for it.

    >>> store = connect(timeout=30)
    >>> store.close()
    """
    if address is None:
        missing = [v for v in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(v)]
        if missing:
            raise ValueError("%s is not set: give the address as HOST:PORT, or start this with `cohort run`" % missing[0])
        address = "%(MASTER_ADDR)s:%(MASTER_PORT)s" % os.environ
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError("%r is not an address: want HOST:PORT" % address)
    return Store(_wire.Client(host.strip("[]"), int(port)), timeout)


class Store(dist.Store):  # type: ignore[misc]
    """Cohort's store, as PyTorch uses it. Call close when nothing uses it any more."""

    def __init__(self, client: _wire.Client, timeout: _Duration) -> None:
        super().__init__()
        self._client = client
        self.set_timeout(timedelta(seconds=_seconds(timeout)))
        self._call(_wire.CHECK, _wire.strings([]))
        _open.add(self)

    def __repr__(self) -> str:
        return "cohort_dist.store.Store(%s:%d)" % self._client.address

    def close(self) -> None:
        """Close the connections. PyTorch must not use the store after that."""
        _open.discard(self)
        self._client.close()

    def _key(self, name: str) -> bytes:
        return b"/" + _data(name)

    def _call(self, code: int, body: bytes, timeout: Optional[_Duration] = None, **how: bool) -> bytes:
        return self._translated(lambda limit: self._client.call(code, body, limit, **how), timeout)

    def _translated(self, ask: Callable[[float], Any], timeout: Optional[_Duration] = None) -> Any:
        """Do something with a timeout, and raise the errors that users of PyTorch expect."""
        try:
            return ask(_seconds(self.timeout if timeout is None else timeout))
        except _wire.Refused as e:
            raise _Timeout(str(e)) from e
        except tuple(kind for kind, _ in _kinds) as e:
            raise next(ours for kind, ours in _kinds if isinstance(e, kind))(str(e)) from e

    def set(self, key: str, value: _Text) -> None:
        """Set a key, and wait until the server has it."""
        self._call(_wire.SET, _wire.string(self._key(key)) + _wire.string(_data(value)))

    def get(self, key: str) -> bytes:
        """Return the value of a key, and wait until it has one."""
        return _wire.read_strings(self._call(_wire.GET, _wire.string(self._key(key)), waits=True))[0]

    def compare_set(self, key: str, expected_value: _Text, desired_value: _Text) -> bytes:
        """Set a key that has the expected value, or none if that is empty. Return the value that it has then."""
        parts = [_wire.string(s) for s in (self._key(key), _data(expected_value), _data(desired_value))]
        return _wire.read_strings(self._call(_wire.COMPARE_SET, b"".join(parts), repeat=False))[0]

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return the sum."""
        body = _wire.string(self._key(key)) + _wire.number(amount)
        return _wire.read_number(self._call(_wire.ADD, body, repeat=amount == 0))

    def check(self, keys: List[str]) -> bool:
        """Whether all keys exist."""
        return self._call(_wire.CHECK, _wire.strings(map(self._key, keys))) == b"\0"

    def wait(self, keys: List[str], timeout: Optional[_Duration] = None) -> None:
        """Wait until all keys exist."""
        self._call(_wire.WAIT, _wire.strings(map(self._key, keys)), timeout, waits=True)

    def num_keys(self) -> int:
        """The number of all keys."""
        return _wire.read_number(self._call(_wire.NUM_KEYS, b""))

    def delete_key(self, key: str) -> bool:
        """Remove a key, and say whether it was there."""
        return _wire.read_number(self._call(_wire.DELETE, _wire.string(self._key(key)), repeat=False)) > 0

    def append(self, key: str, value: _Text) -> None:
        """Add to the end of a value, "" at first."""
        self._call(_wire.APPEND, _wire.string(self._key(key)) + _wire.string(_data(value)), repeat=False)

    def multi_get(self, keys: List[str]) -> List[bytes]:
        """Return the values of keys, and wait until they all have one."""
        return _wire.read_strings(self._call(_wire.MULTI_GET, _wire.strings(map(self._key, keys)), waits=True))

    def multi_set(self, keys: List[str], values: List[_Text]) -> None:
        """Set keys at once."""
        if len(keys) != len(values):
            raise ValueError("%d keys and %d values" % (len(keys), len(values)))
        pairs = [_wire.string(self._key(k)) + _wire.string(_data(v)) for k, v in zip(keys, values)]
        self._call(_wire.MULTI_SET, _wire.count(len(pairs)) + b"".join(pairs))

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set exist."""
        return True

    def queue_push(self, key: str, value: _Text) -> None:
        """Put an item at the end of a queue."""
        self._call(_wire.PUSH, _wire.string(self._key(key)) + _wire.string(_data(value)), repeat=False)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first item of a queue, and wait for one if block is true."""
        body = _wire.string(self._key(key)) + bytes([block])
        answer = self._call(_wire.POP, body, repeat=False, waits=block)
        if _wire.read_number(answer) == 0:
            raise _Empty("queue %s is empty" % key)
        return _wire.read_strings(answer, 8)[0]

    def queue_len(self, key: str) -> int:
        """The number of items in a queue."""
        return _wire.read_number(self._call(_wire.LENGTH, _wire.string(self._key(key))))

    def list_keys(self) -> List[str]:
        """All keys, also those that other prefixes have."""
        raw = _wire.read_strings(self._call(_wire.LIST, b""), 8)
        return [k[1:].decode("utf-8", "surrogateescape") for k in raw if k.startswith(b"/")]

    def clone(self) -> "Store":
        """Return this store: a request that waits holds up no other."""
        return self

    # The names under which C++ looks for two of them.
    getNumKeys = num_keys
    deleteKey = delete_key

    def watch(self, key: str, timeout: Optional[_Duration] = None) -> Iterator[Optional[bytes]]:
        """Yield the value of a key, None while it does not exist, and then each newer one, until the store is closed.

        A value that was replaced at once, or while the connection was broken, may be left out; the newest never is. With a timeout,
        the iteration ends when nothing has changed for so long.

        >>> store = connect()
        >>> for value in store.watch("stop", timeout=0.1):
        ...     print(value)
        None
        >>> store.close()
        """
        first, last = True, None
        watch: Optional[_wire.Watch] = None
        deadline = float("inf") if timeout is None else monotonic() + _seconds(timeout)
        try:
            while self in _open:
                if watch is None:
                    watch = self._translated(lambda limit: self._client.watch(self._key(key), monotonic() + limit))
                value = self._present(key)
                if first or value != last:
                    first, last = False, value
                    yield value
                    deadline = float("inf") if timeout is None else monotonic() + _seconds(timeout)
                try:
                    if not watch.changed(min(deadline, monotonic() + 1)) and monotonic() >= deadline:
                        return
                except (OSError, EOFError):
                    watch.close()
                    watch = None
        finally:
            if watch is not None:
                watch.close()

    def _present(self, key: str) -> Optional[bytes]:
        """The value of a key, or None: every request that returns one waits for it."""
        while self.check([key]):
            try:
                return _wire.read_strings(self._client.call(_wire.GET, _wire.string(self._key(key)), 0.05, waits=True))[0]
            except (TimeoutError, _wire.Unavailable):
                pass  # it was removed in between, or the store is busy
            except (_wire.Replaced, _wire.Refused) as e:
                raise Replaced(str(e)) from e
        return None
