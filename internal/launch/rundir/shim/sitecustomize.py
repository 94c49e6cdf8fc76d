"""Put on PYTHONPATH by "cohort run", so that PyTorch builds without libuv can use the launcher's store.

A worker's store client asks for libuv and no variable changes that. Where the build has none, the client is made again
without it. PyTorch before 2.8 gets the flight recorder's variables under their older names, and before 2.2 also the one that
its own launcher sets. 1.13 puts no number of the attempt before its keys: every attempt has its own store, and Go ranks
use the keys of later versions.
Nothing happens in processes that never import torch.distributed. The sitecustomize module that this one hides, if there
is one, runs as usual.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class _Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch.distributed.distributed_c10d":  # torch._C._distributed_c10d is loaded by now
            sys.meta_path.remove(self)
            _without_libuv()
            _for_older_versions()
        return None


def _without_libuv():
    try:
        from torch._C._distributed_c10d import TCPStore
    except ImportError:
        return
    init = TCPStore.__init__

    def make(store, *args, **kw):
        try:
            init(store, *args, **kw)
        except Exception as e:
            if kw.get("use_libuv") is not None or "without libuv" not in str(e):
                raise
            kw["use_libuv"] = False
            init(store, *args, **kw)

    TCPStore.__init__ = make


def _for_older_versions():
    try:
        version = tuple(int(n) for n in sys.modules["torch"].__version__.split(".")[:2])
    except (AttributeError, KeyError, ValueError):
        return
    if (2, 2) <= version < (2, 8):  # it has a flight recorder for NCCL; later versions warn of the older names
        for name, old in ("BUFFER_SIZE", "TRACE_BUFFER_SIZE"), ("DUMP_TEMP_FILE", "DEBUG_INFO_TEMP_FILE"):
            if "TORCH_FR_" + name in os.environ:
                os.environ.setdefault("TORCH_NCCL_" + old, os.environ["TORCH_FR_" + name])
    if version < (2, 2):  # later versions warn of the older name
        os.environ.setdefault("NCCL_ASYNC_ERROR_HANDLING", "1")
        from torch.distributed import rendezvous

        prefixed = rendezvous.PrefixStore
        rendezvous.PrefixStore = lambda prefix, store: store if prefix.startswith("/worker/attempt_") else prefixed(prefix, store)


def _chain():
    here = os.path.dirname(os.path.abspath(__file__))
    others = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _Hook())
_chain()
