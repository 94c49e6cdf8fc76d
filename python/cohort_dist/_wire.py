# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A client of cohort's store, of which connections may break: docs/wire/tcpstore.md, section Native. It needs no torch.

A request has a connection for itself, so that one that waits holds up no other. Connections are used again, and dialled
again when they have ended, also after a fork.
"""

import os
import socket
import struct
from collections import deque
from time import monotonic, sleep
from typing import Deque, Iterable, List, Optional, Tuple

__all__ = ["Client", "Refused", "Replaced", "Unavailable", "Uncertain", "string"]

SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE = 1, 2, 3, 4, 5, 6, 7, 8
APPEND, MULTI_GET, MULTI_SET, CANCEL, PUSH, POP, LENGTH, LIST, HELLO = 9, 10, 11, 12, 14, 15, 16, 17, 98
_VALIDATE, _NATIVE = b"\x00\xce\xf7\x85\x3c", b"\x60\x01\x00\x00\x00"
_LEGACY_CHECK, _LEGACY_WATCH = 5 - 1, 7
_MAGIC, _IDENTITY = b"\x00cohort/1", b"\x00cohort/identity/"
_CANCELLED, _REPLACED = 1, 19
_GREETING = 5.0  # how long a server may take to say what it is, and to confirm the end of a wait
_LONGEST = 512 << 20  # of a reply; a server sends at most half of that
_IDLE = 8  # connections that are kept

_count, _number, _frame = struct.Struct("<Q"), struct.Struct("<q"), struct.Struct("<IIB")


class Replaced(Exception):
    """Another store answers at the address: the server was started anew without its keys, or they were cleared."""


class Unavailable(Exception):
    """The store could not be reached in time."""


class Uncertain(Exception):
    """The connection broke before the answer to a request that must not be repeated."""


class Refused(Exception):
    """The server has refused the request."""


def string(data: bytes) -> bytes:
    """Encode a key or a value."""
    return _count.pack(len(data)) + data


def strings(all: Iterable[bytes]) -> bytes:
    """Encode a list of them."""
    items = [string(s) for s in all]
    return _count.pack(len(items)) + b"".join(items)


def count(n: int) -> bytes:
    """Encode how many follow."""
    return _count.pack(n)


def number(n: int) -> bytes:
    """Encode a number."""
    return _number.pack(n)


def read_number(data: bytes) -> int:
    """Decode the number with which a reply begins."""
    return int(_number.unpack_from(data)[0])


def read_strings(data: bytes, at: int = 0) -> List[bytes]:
    """Decode all strings of a reply, from a position on."""
    found = []
    while at < len(data):
        end = at + 8 + _count.unpack_from(data, at)[0]
        if end > len(data):
            raise Refused("the store has sent a string of %d bytes in a reply of %d" % (end - at - 8, len(data)))
        found.append(data[at + 8 : end])
        at = end
    return found


class _Connection:
    """One connection, over which one request at a time goes."""

    def __init__(self, address: Tuple[str, int], timeout: float) -> None:
        self.socket = socket.create_connection(address, max(min(timeout, _GREETING), 0.001))
        self.id = 0
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name):  # a host that is gone sends no end of the connection
                    self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def ended(self) -> bool:
        """Whether the server has ended it: it says nothing unless it is asked."""
        self.socket.settimeout(0)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def send(self, data: bytes, deadline: float) -> None:
        self.socket.settimeout(max(deadline - monotonic(), 0.001))
        self.socket.sendall(data)

    def receive(self, size: int, deadline: float) -> bytes:
        parts: List[bytes] = []
        while size > 0:
            if parts:  # the rest of what has begun comes, or the connection is broken
                deadline = monotonic() + _GREETING
            self.socket.settimeout(max(deadline - monotonic(), 0.001))
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except socket.timeout:
                if parts:
                    raise EOFError("the store has stopped in the middle of a reply") from None
                raise
            if not part:
                raise EOFError("the store has ended the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def request(self, code: int, body: bytes, deadline: float) -> None:
        self.id = (self.id + 1) & 0xFFFFFFFF
        self.send(_frame.pack(len(body) + 5, self.id, code) + body, deadline)

    def reply(self, deadline: float) -> Tuple[int, bytes]:
        size, number, status = _frame.unpack(self.receive(_frame.size, deadline))
        if number != self.id or not 5 <= size <= _LONGEST:
            raise EOFError("the store has sent a frame of %d bytes for request %d, and not for %d" % (size, number, self.id))
        return status, self.receive(size - 5, monotonic() + _GREETING)

    def cancel(self) -> Tuple[int, bytes]:
        """End a wait. The answer may have been on its way."""
        limit = monotonic() + _GREETING
        body = struct.pack("<I", self.id)
        self.send(_frame.pack(len(body) + 5, (self.id + 1) & 0xFFFFFFFF, CANCEL) + body, limit)
        answer = self.reply(limit)
        self.id = (self.id + 1) & 0xFFFFFFFF
        return answer


class Client:
    """Talks to the store at an address. All threads may use it."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)
        self.identity = b""  # of the store; not known before the first connection
        self.replaced: Optional[str] = None
        self._idle: Deque[_Connection] = deque(maxlen=_IDLE)
        self._pid = os.getpid()

    def __str__(self) -> str:
        return "the store at %s:%d" % self.address

    def close(self) -> None:
        """Close the connections that no request uses."""
        while True:
            try:
                self._idle.popleft().close()
            except IndexError:
                return

    def call(self, code: int, body: bytes, timeout: float, repeat: bool = True, waits: bool = False) -> bytes:
        """Ask the store, and return the answer. Of a request that may be repeated no broken connection is noticed.

        TimeoutError: what it waits for did not happen in time.
        """
        deadline = monotonic() + timeout
        while True:
            c = self._take(deadline)
            try:
                status, answer = self._ask(c, code, body, deadline, waits)
            except (OSError, EOFError) as e:
                c.close()
                if not repeat:
                    raise Uncertain("%s was lost (%s) before it has confirmed the request: it may have been done" % (self, e)) from e
                if monotonic() >= deadline:
                    raise Unavailable("%s has not answered within %.3g s: %s" % (self, timeout, e)) from e
                continue
            except BaseException:
                c.close()
                raise
            self._give(c)
            if status == _CANCELLED and waits:
                raise TimeoutError("%s: nothing came within %.3g s" % (self, timeout))
            if status == _REPLACED:
                raise self._another()
            if status != 0:
                raise Refused("%s: %s" % (self, answer.decode("utf-8", "replace")))
            return answer

    @staticmethod
    def _ask(c: _Connection, code: int, body: bytes, deadline: float, waits: bool) -> Tuple[int, bytes]:
        c.request(code, body, deadline)
        try:
            return c.reply(deadline)
        except socket.timeout:
            if not waits:
                raise
            return c.cancel()

    def _another(self) -> Replaced:
        self.replaced = (
            "%s is another one than before: it was started again without its keys, or they were cleared. "
            "Let all processes of the job connect again" % self
        )
        self.close()
        return Replaced(self.replaced)

    def _take(self, deadline: float) -> _Connection:
        if self._pid != os.getpid():  # the connections are the parent's
            self._idle, self._pid = deque(maxlen=_IDLE), os.getpid()
        while True:
            if self.replaced is not None:
                raise Replaced(self.replaced)
            try:
                c = self._idle.pop()
            except IndexError:
                return self._dial(deadline)
            if not c.ended():
                return c
            c.close()

    def _give(self, c: _Connection) -> None:
        if len(self._idle) < _IDLE and self.replaced is None:
            self._idle.append(c)
        else:
            c.close()

    def _dial(self, deadline: float) -> _Connection:
        """Connect, as often as it takes."""
        pause, begin = 0.01, monotonic()
        while True:
            try:
                c = _Connection(self.address, deadline - monotonic())
                try:
                    self._greet(c)
                    return c
                except BaseException:
                    c.close()
                    raise
            except (OSError, EOFError) as e:
                left = deadline - monotonic()
                if left <= 0:
                    raise Unavailable("%s cannot be reached for %.3g s: %s" % (self, monotonic() - begin, e)) from e
                sleep(min(pause, left))
                pause = min(2 * pause, 0.5)

    def _greet(self, c: _Connection) -> None:
        """Make sure that this is cohort's server, and the store that is known."""
        limit = monotonic() + _GREETING
        c.send(_VALIDATE + bytes([CHECK]) + strings([_MAGIC]), limit)
        if c.receive(1, limit) != b"\0":
            raise Refused(
                "%s is not cohort's: a server of PyTorch cannot say whether it was replaced. "
                "Use torch.distributed.TCPStore, or start `cohort store serve`" % self
            )
        c.send(_NATIVE, limit)
        c.request(HELLO, string(self.identity), limit)
        status, answer = c.reply(limit)
        if status == _REPLACED:
            raise self._another()
        if status != 0:
            raise Refused("%s: %s" % (self, answer.decode("utf-8", "replace")))
        # The reply goes on with a number that is not needed here.
        self.identity = read_strings(answer[:-8])[0]

    def watch(self, key: bytes, deadline: float) -> "Watch":
        """Begin to watch a key."""
        while True:
            self._give(self._take(deadline))  # the identity of the store is known now
            try:
                c = _Connection(self.address, deadline - monotonic())
                try:
                    return Watch(self, c, key)
                except BaseException:
                    c.close()
                    raise
            except (OSError, EOFError) as e:
                if monotonic() >= deadline:
                    raise Unavailable("%s cannot be reached: %s" % (self, e)) from e
                sleep(0.01)


class Watch:
    """A connection over which the server says when a key has changed. It speaks the protocol of PyTorch 1.13."""

    def __init__(self, client: Client, c: _Connection, key: bytes) -> None:
        self.connection = c
        limit = monotonic() + _GREETING
        ask = [bytes([_LEGACY_CHECK]) + strings([_IDENTITY + client.identity]), bytes([_LEGACY_WATCH]) + string(key)]
        c.send(ask[0], limit)
        if c.receive(1, limit) != b"\0":
            raise client._another()
        c.send(ask[1], limit)
        c.receive(1, limit)

    def changed(self, deadline: float) -> bool:
        """Wait for a change, and forget all that have come so far; False if none has come in time.

        EOFError, OSError: the connection has ended.
        """
        s = self.connection.socket
        s.settimeout(max(deadline - monotonic(), 0.001))
        try:
            while True:  # what has changed is read from the store: the newest value counts
                if not s.recv(1 << 16):
                    raise EOFError("the store has ended the connection")
                s.settimeout(0)
        except socket.timeout:
            return False
        except BlockingIOError:
            return True

    def close(self) -> None:
        self.connection.close()
