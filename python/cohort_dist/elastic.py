# Copyright The cohort Authors
# SPDX-License-Identifier: Apache-2.0
"""A member of a group whose members change while their processes go on: dead ones leave, spares take their place.

>>> from cohort_dist import elastic
>>> import torch, torch.distributed as dist
>>> done = 0
>>> with elastic.join() as member:
...     while member.next():  # the default group is now that of this round
...         try:
...             progress = torch.tensor([done])
...             dist.all_reduce(progress, dist.ReduceOp.MAX)  # take over the state of the member that is furthest
...             done = int(progress)
...             while done < 3 and not member.over():
...                 dist.all_reduce(torch.ones(1))
...                 done += 1
...         except RuntimeError:  # an operation has failed: a member has died
...             continue
...         if done == 3:
...             member.done()
...             break

Start it with `cohort run --nproc-per-node 5 --members 4 train.py`, or beside `cohort coordinate`. With PyTorch 2.14 the
group is reconfigured; before, it is destroyed and made again, so that what holds the group (DistributedDataParallel) has to be
made again too. Sub-groups have to be made again with every version. Members in Go, and of PyTorch 2.3 and later, can be in one group.
"""

import json
import os
import re
import threading
from datetime import timedelta
from time import monotonic
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type

import torch
import torch.distributed as dist

from . import _wire
from .store import Replaced, Store, Uncertain, Unavailable, connect

__all__ = ["Ended", "Member", "join"]

_PREFIX = "cohort/elastic/"
_GROUP = "default_pg/"  # where Go, and PyTorch by default, have the keys of the group
_Late: Any = getattr(dist, "DistStoreError", RuntimeError)


class Ended(RuntimeError):
    """The coordinator has ended the job, and says why: too few members are left."""


def _version() -> Tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def join(
    store: Optional[Store] = None, timeout: timedelta = timedelta(seconds=30), silence: float = 10.0, backend: str = "gloo"
) -> "Member":
    """Take part, as a member or as a spare. The store is that of the coordinator, by default that of the launcher.

    timeout is that of the group's operations. With PyTorch 2.14 so long may pass before a member notices that another one, with which it
    exchanges nothing itself, has died. silence is that of the coordinator.
    """
    if _reconfigures() and os.environ.get("TORCH_GLOO_LAZY_INIT", "0") not in ("", "0"):
        raise ValueError("PyTorch cannot reconfigure a group twice with TORCH_GLOO_LAZY_INIT=1: unset it")
    if backend != "gloo" and not _reconfigures():
        raise ValueError("backend %r: before PyTorch 2.14 only gloo groups can be made again in a process" % backend)
    return Member(connect() if store is None else store, timeout, silence, backend)


def _reconfigures() -> bool:
    return hasattr(dist, "_reconfigure")


class Member:
    """This process as a member. Its methods are for one thread."""

    def __init__(self, store: Store, timeout: timedelta, silence: float, backend: str) -> None:
        self._store, self._timeout, self._silence, self._backend = store, timeout, silence, backend
        given = os.environ.get("COHORT_MEMBER")  # by the launcher, which notices when this process ends
        self.id = int(given) if given else self._add("members") - 1
        self._uuid, self._rank, self._group = -1, self.id, _GroupStore(store, self)
        self._end = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="cohort member", daemon=True)
        self._beats.start()

    def __repr__(self) -> str:
        return "cohort_dist.elastic.Member(%d)" % self.id

    def __enter__(self) -> "Member":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the signs of life, and the group. A member that has not called done is then taken for dead."""
        self._end.set()
        self._beats.join(5)
        if dist.is_initialized():
            dist.destroy_process_group()
        self._group.close()

    def next(self) -> bool:
        """Wait for the round that this process takes part in, and make its group: the default one. A spare waits here.

        Call it at the start, after an operation has failed, and when over() is true. False: the others have finished.
        """
        while True:
            if not _reconfigures() and dist.is_initialized():
                dist.destroy_process_group()  # those that still wait for this one see its connections end
            answer = self._ask(handle=self._handle())
            if "uuid" not in answer:
                return False
            try:
                self._enter(int(answer["uuid"]), [str(h) for h in answer["handles"]])
                return True
            except (Replaced, Unavailable):
                raise
            except RuntimeError as e:
                if self._backend != "gloo" or "handle" in str(e):
                    raise
                # Another member has died meanwhile: ask for the next round.

    def over(self) -> bool:
        """Whether the round is over: a member has failed, or a new one is to be taken in.

        All members have to leave after the same step: put this into something that they reduce anyway.
        """
        return self._uuid >= 0 and self._store.check([_PREFIX + "over/%d" % self._uuid])

    def done(self) -> None:
        """Say that this process has finished, and wait until the others of the round have, or go on without it."""
        self._ask(done=True)

    def _beat(self) -> None:
        while not self._end.wait(min(1.0, self._silence / 4)):
            try:
                self._add("alive/%d" % self.id, 5.0)
            except Replaced:
                return  # next and over raise it
            except RuntimeError:
                pass  # a store that is back hears the next one

    def _add(self, key: str, timeout: Optional[float] = None) -> int:
        # One more than was meant does no harm here.
        body = _wire.string(self._store._key(_PREFIX + key)) + _wire.number(1)
        return _wire.read_number(self._store._call(_wire.ADD, body, timeout))

    def _ask(self, **question: Any) -> Dict[str, Any]:
        question["member"] = self.id
        while True:
            n = self._add("asks")
            self._store.set(_PREFIX + "ask/%d" % n, json.dumps(question))
            key = _PREFIX + "answer/%d" % n
            try:
                self._store.wait([key], timedelta(seconds=self._silence))
            except (Replaced, Unavailable):
                raise
            except _Late:
                # The coordinator may have been started again, and has forgotten the question; or the job has ended.
                if not self._store.check([_PREFIX + "end"]):
                    continue
                key = _PREFIX + "end"
            answer: Dict[str, Any] = json.loads(self._store.get(key))
            if not key.endswith("end"):
                try:
                    self._store.delete_key(key)
                except Uncertain:
                    pass  # then the coordinator takes the next question for a repetition of this one, and answers it
            if answer.get("error"):
                raise Ended(str(answer["error"]))
            return answer

    def _handle(self) -> str:
        if not _reconfigures():
            kind = "gloo" if _version() >= (2, 3) else "torch%d.%d" % _version()  # gloo's connections differ
            return "%s:%d:%d:%d:%s:%d" % ((kind, self._rank, self._uuid, self.id) + self._store._client.address)
        if not dist.is_initialized():
            dist.init_process_group(
                self._backend, store=self._group, rank=self.id, world_size=self.id + 1, timeout=self._timeout, enable_reconfigure=True
            )
        return str(dist._get_reconfigure_handle())

    def _enter(self, uuid: int, handles: List[str]) -> None:
        """Make the group of a round."""
        own = self._handle()
        kind = own.split(":")[0]
        other = [h for h in handles if not h.startswith(kind + ":")]
        if other:
            raise ValueError("a member with %s cannot be in one group with this one, which has %s" % (other[0].split(":")[0], kind))
        self._group.uuid, self._uuid = uuid, uuid
        if _reconfigures():
            dist._reconfigure(uuid, handles, timeout=self._timeout).wait()
            return
        rank = handles.index(own)
        self._group.moved = None
        if rank == 0:
            claim = self._group.compare_set("%s0//cpu//reconfigure/%d/claimed" % (_GROUP, uuid), "", own)
            if claim.decode() != own:
                raise RuntimeError("round %d is used already" % uuid)
        dist.init_process_group(self._backend, store=self._group, rank=rank, world_size=len(handles), timeout=self._timeout)
        self._rank = rank


class _GroupStore(Store):
    """The store as the group of a member sees it: waits end with the round, and an ordinary group has the keys of the round."""

    def __init__(self, store: Store, member: Member) -> None:
        super().__init__(store._client, store.timeout)
        self.member, self.uuid = member, -1
        self.moved: Optional[str] = None  # the name of the round's group: it is another one after a failure

    def _key(self, name: str) -> bytes:
        if name.startswith(_PREFIX) or name.startswith(_GROUP):
            return super()._key(name)
        if _reconfigures():
            return super()._key(_GROUP + name)
        parts = re.match(r"(\w+)//cpu//(.*)$", name, re.S)
        if parts and self.moved in (None, parts.group(1)):
            self.moved = parts.group(1)
            return super()._key("%s0//cpu//reconfigure/%d/%s" % (_GROUP, self.uuid, parts.group(2)))
        return super()._key("%sreconfigure/%d/%s" % (_GROUP, self.uuid, name))

    def wait(self, keys: List[str], timeout: Any = None) -> None:
        """Wait until all keys exist, or the round is over."""
        limit = monotonic() + (self.timeout if timeout is None else timeout).total_seconds()
        while True:
            left = limit - monotonic()
            try:
                return super().wait(keys, timedelta(seconds=max(min(left, 0.25), 0.001)))
            except (Replaced, Unavailable):
                raise
            except _Late:
                if left <= 0.25 or self.member.over():
                    raise

    def get(self, key: str) -> bytes:
        """Return the value of a key, and wait until it has one, or the round is over."""
        self.wait([key])
        return super().get(key)
