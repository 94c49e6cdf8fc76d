# Runs tests of a suite of PyTorch's own, as the parent says. It prints the names of the tests, in one line. Then it reads lines, each
# the name of a test and the port of a store of the parent's, or "file" for a store of PyTorch's, and prints what came out.
# sys.argv = suite, a regular expression for names of tests, a folder.
import functools, os, re, sys, unittest

said = os.fdopen(os.dup(1), "w", 1)
os.dup2(2, 1)  # what tests print
os.environ.update(BACKEND="gloo", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", TORCHELASTIC_RESTART_COUNT="0")
suite, wanted, os.environ["TEMP_DIR"] = sys.argv[1], re.compile(sys.argv[2]), sys.argv[3]

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

rendezvous = sys.modules["torch.distributed.rendezvous"]
# builds without libuv cannot be clients of a launcher's store otherwise
rendezvous.TCPStore = functools.partial(rendezvous.TCPStore, use_libuv=False)


class Forked:
    """Ranks are forks of this process, which has imported everything, and meet where the environment says."""

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *args, **kwargs):
        # makes the pool of threads that a fork leaves broken; threads that do so at once abort: "Invalid thread pool!"
        torch.set_num_threads(1)
        super()._run(*args, **kwargs)

    @property
    def init_method(self):
        return "env://" if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") else "file://" + self.file_name


if suite == "distributed":
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    class Suite(Forked, TestDistBackend, DistributedTest._DistTestBase):
        pass
else:
    import importlib

    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture as Fixture

    module, name = suite.rsplit(".", 1)
    if name.startswith("Faulty"):
        from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import FaultyRpcAgentTestFixture as Fixture
    Tests = getattr(importlib.import_module("torch.testing._internal.distributed." + module), name)

    class Suite(Forked, Fixture, Tests, MultiProcessTestCase):
        pass


def outcome(name):
    result = unittest.TestResult()
    Suite(name).run(result)
    for _, text in result.errors + result.failures:
        sys.stderr.write(text + "\n")
    return "failed" if result.errors or result.failures else "skipped" if result.skipped else "passed"


print(*(name for name in unittest.defaultTestLoader.getTestCaseNames(Suite) if wanted.search(name)), file=said)
for line in sys.stdin:
    name, where = line.split()
    if where == "file":
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    else:
        os.environ.update(MASTER_PORT=where, TORCHELASTIC_USE_AGENT_STORE="True")
    print(outcome(name), file=said)
os._exit(0)
