# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""Say what this rank is doing, in your own words, to ``cohort why``, ``cohort ps`` and the launcher's live view.

>>> from cohort_dist.why import section, step
>>> for batch in range(3):
...     with section("load"):
...         data = batch * 2
...     with section("train"):
...         result = data + 1
...     step()

If rank 3 then hangs while it loads, ``cohort why`` says that it is in section "load", since when, and its step. Nothing
is sent: the rank writes into a page of its memory that ``cohort`` reads from outside, which takes about a microsecond.
The functions never raise because of the page, and do nothing where there can be none (other systems than Linux).
"""

import mmap
import os
import sys
import threading
from struct import Struct
from struct import error as StructError
from time import monotonic_ns
from types import TracebackType
from typing import Any, Dict, List, Optional, Type, Union

__all__ = ["section", "step"]

# The layout of the page: docs/wire/progress.md.
_NAME, _SIZE, _VERSION = "cohort-progress", 7864, 1
_HEADER, _THREADS, _THREAD, _ROWS, _ROW, _LONGEST = 64, 15, 520, 8, 64, 56

_put_header = Struct("<8sII").pack_into
_put_steps = Struct("<QQ").pack_into
_put_row = Struct("<Q56s").pack_into
_put_thread = Struct("<II").pack_into
_put_depth = Struct("<I").pack_into

_Page = Union[mmap.mmap, bytearray]


def _descriptor() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(_NAME)
    import ctypes  # a Python that was built for older systems than the one that it runs on

    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.memfd_create(_NAME.encode(), 1))  # 1: closed when another program is executed
    if fd < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    return fd


def _create() -> _Page:
    if not sys.platform.startswith("linux"):
        return bytearray(_SIZE)
    try:
        fd = _descriptor()
        try:
            os.ftruncate(fd, _SIZE)
            page = mmap.mmap(fd, _SIZE)  # keeps a descriptor of its own
        finally:
            os.close(fd)
    except (OSError, ValueError, AttributeError, ImportError):
        return bytearray(_SIZE)  # what is written into it stays here
    _put_header(page, 0, b"cohortpr", _VERSION, os.getpid())
    return page


class _Place:
    """What one thread is in, and its part of the page."""

    __slots__ = ("at", "depth", "page", "free")

    def __init__(self, page: _Page, free: List[int]) -> None:
        self.page, self.free, self.depth = page, free, 0
        try:
            self.at = free.pop()
        except IndexError:  # more threads than places: this one is counted, not shown
            self.page, self.at = bytearray(_SIZE), _HEADER
        _put_thread(self.page, self.at, threading.get_native_id(), 0)

    def __del__(self, put: Any = _put_thread) -> None:  # the thread has ended, or the interpreter does
        if _state is not None and self.page is _state.page:
            put(self.page, self.at, 0, 0)
            self.free.append(self.at)


class _State:
    """The page of this process; another one after a fork."""

    __slots__ = ("page", "free", "local", "steps")

    def __init__(self) -> None:
        self.page: Optional[_Page] = None
        self.free = [_HEADER + n * _THREAD for n in reversed(range(_THREADS))]
        self.local = threading.local()
        self.steps = 0

    def open(self) -> _Page:
        with _lock:
            if self.page is None:
                self.page = _create()
            return self.page

    def place(self) -> _Place:
        page = self.page
        place = _Place(self.open() if page is None else page, self.free)
        self.local.place = place
        return place


_lock = threading.Lock()
_state = _State()
_names: Dict[str, bytes] = {}


def _after_fork() -> None:
    # The parent's page is the parent's. Closing it here removes the child's link to it.
    global _lock, _state
    parents = _state.page
    _lock, _state = threading.Lock(), _State()
    if isinstance(parents, mmap.mmap):
        try:
            parents.close()
        except (BufferError, ValueError):
            pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _encode(name: str) -> bytes:
    """Return the name as the page has it: UTF-8, cut at the end of a character."""
    text = str(name).encode("utf-8", "replace").split(b"\0", 1)[0]
    if len(text) > _LONGEST:
        text = text[:_LONGEST].decode("utf-8", "ignore").encode()
    if len(_names) < 1024:
        _names[name] = text
    return text


class section:
    """A part of the program: ``with section("load"): ...``.

    Sections nest, and each thread has its own. The first 8 of a thread, and the first 15 threads, are shown. A name is cut
    after 56 bytes. An object can be used again.

    >>> loading = section("load")
    >>> with loading:
    ...     with section("decode"):
    ...         pass
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = _names.get(name) or _encode(name)

    def __enter__(self) -> "section":
        state = _state
        try:
            place = state.local.place
        except AttributeError:
            place = state.place()
        depth = place.depth
        at = place.at
        if depth < 8:
            _put_row(place.page, at + 8 + 64 * depth, monotonic_ns(), self._name)
        place.depth = depth = depth + 1
        _put_depth(place.page, at + 4, depth)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            place = _state.local.place
        except AttributeError:  # it was begun before a fork, or in another thread
            return
        depth = place.depth - 1
        if depth >= 0:
            place.depth = depth
            _put_depth(place.page, place.at + 4, depth)


def step(number: Optional[int] = None) -> None:
    """Say that this rank has done one more step, or this many in all.

    >>> step(1000)  # the checkpoint's
    >>> step()
    """
    state = _state
    state.steps = steps = state.steps + 1 if number is None else number
    try:
        _put_steps(state.page, 16, steps, monotonic_ns())  # type: ignore[arg-type]
    except (TypeError, StructError):  # the first one, or a number that does not fit
        state.steps = steps = min(max(int(steps), 0), 2**64 - 1)
        _put_steps(state.open(), 16, steps, monotonic_ns())
