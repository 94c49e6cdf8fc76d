// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"strings"
	"testing"
)

// What ranks of PyTorch 2.11 with NCCL 2.28.9 have printed on a GPU, without most of the frames of C++.
const (
	watchdogTimeout = `[rank0]:[E1117 18:59:26.762849880 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=12000) ran for 12088 milliseconds before timing out.
[rank0]:[E1117 18:59:31.622631392 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: 
#0 all_reduce from /usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py:3068
#1 <module> from /srv/train.py:203

[rank0]:[E1117 19:00:32.150135551 ProcessGroupNCCL.cpp:764] [Rank 0] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=12000) ran for 12088 milliseconds before timing out.
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:692 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f in /usr/lib/python3/dist-packages/torch/lib/libc10.so)

Fatal Python error: Aborted

Thread 0x00007f45a67a4140 (most recent call first):
  File "/srv/train.py", line 205 in <module>

Extension modules: numpy._core._multiarray_umath (total: 1)
`
	watchdogIllegal = `terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered
Search for ` + "`cudaErrorIllegalAddress'" + ` in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
Compile with ` + "`TORCH_USE_CUDA_DSA`" + ` to enable device-side assertions.

Fatal Python error: Aborted

Thread 0x00007f617044d140 (most recent call first):
  File "/srv/train.py", line 306 in <module>
`
	duplicateGPU = `Traceback (most recent call last):
  File "/srv/train.py", line 38, in init
    dist.init_process_group("nccl", **more)
  File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 2253, in _new_process_group_helper
    eager_backend.eager_connect_single_device(device_id)
torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60
[W1117 19:01:57.086778149 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())
`
	noMemoryForNCCL = `[rank0]: Traceback (most recent call last):
[rank0]:   File "/srv/train.py", line 279, in <module>
[rank0]:     dist.all_reduce(x)
[rank0]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9
[rank0]: ncclUnhandledCudaError: Call to CUDA function failed.
[rank0]: Last error:
[rank0]: Failed to CUDA calloc async 608 bytes
`
	noSuchGPU = `Traceback (most recent call last):
  File "/srv/train.py", line 326, in <module>
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.AcceleratorError: CUDA error: invalid device ordinal
GPU device may be out of range, do you have enough GPUs?
Compile with ` + "`TORCH_USE_CUDA_DSA`" + ` to enable device-side assertions.

`
	raisedOnGPU = `[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/train.py", line 351, in step
[rank1]:     raise ValueError("bad batch 17")
[rank1]: ValueError: bad batch 17
[rank1]:[W1117 19:01:42.369490652 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())
[rank1]:[E1117 19:01:42.369975442 ProcessGroupNCCL.cpp:612] [Rank 1] Collective WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) raised the following async exception: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. 
Last error:

Exception raised from checkForNCCLErrorsInternal at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2770 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f in /usr/lib/python3/dist-packages/torch/lib/libc10.so)

[rank1]:[E1117 19:02:36.918173229 ProcessGroupNCCL.cpp:1628] [PG ID 0 PG GUID 0(default_pg) Rank 1] ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1, only active collectives: 0
`
)

// TestOnGPU: C++ ends a rank whose collective does not end, or whose GPU has failed, and NCCL says what is wrong in the fourth line.
func TestOnGPU(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		death         Death
		kind          Kind
		words, advice string
	}{
		"a collective that timed out": {
			Death{Code: -6, Stderr: watchdogTimeout},
			Timeout,
			"timed out waiting for another rank: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=12000) ran for 12088 milliseconds before timing out; it crashed: aborted (SIGABRT) while it was in <module> (/srv/train.py:205)", "",
		},
		"of an older PyTorch": {
			Death{Code: -6, Stderr: strings.ReplaceAll(watchdogTimeout, "[PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog", "[Rank 0] NCCL watchdog")},
			Timeout,
			"timed out waiting for another rank: Watchdog caught collective operation timeout", "",
		},
		"a GPU that failed": {
			Death{Code: -6, Stderr: watchdogIllegal},
			device,
			"crashed: aborted (SIGABRT) while it was in <module> (/srv/train.py:306): CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING",
		},
		"an exception of C++ of an unknown type": {
			Death{Code: -6, Stderr: "terminate called after throwing an instance of 'std::length_error'\n  what():  vector::reserve\n"},
			Crash,
			"crashed: aborted (SIGABRT): vector::reserve", "native code",
		},
		"two ranks on a GPU": {
			Death{Code: 1, Stderr: duplicateGPU},
			Exception,
			"raised torch.distributed.DistBackendError: NCCL error, invalid usage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60", "its own GPU",
		},
		"no memory for NCCL": {
			Death{Code: 1, Stderr: noMemoryForNCCL},
			device,
			"raised torch.distributed.DistBackendError: NCCL error, unhandled cuda error: Failed to CUDA calloc async 608 bytes", "no memory left",
		},
		"no such GPU": {Death{Code: 1, Stderr: noSuchGPU}, device, "raised torch.AcceleratorError: CUDA error: invalid device ordinal", "--nproc-per-node gpu"},
		"a rank whose process did not end": {
			Death{Code: -2, Stderr: raisedOnGPU, Sent: Signals{Ending: []int{2}}},
			Exception,
			"raised ValueError: bad batch 17 and did not exit before it was stopped by the launcher (SIGINT)", "",
		},
	} {
		got := Explain(c.death)
		if got.Kind != c.kind || !strings.HasPrefix(got.Words, c.words) || !strings.Contains(got.Advice, c.advice) {
			t.Errorf("%s: %v %q, try %q\nwant %v %q, try %q", name, got.Kind, got.Words, got.Advice, c.kind, c.words, c.advice)
		}
		if strings.Contains(got.Traceback, "WARNING") {
			t.Errorf("%s: PyTorch's log in the traceback: %s", name, got.Traceback)
		}
	}
}

// TestRaisedOnGPU: what PyTorch's log says after an exception does not hide it; what the program says does.
func TestRaisedOnGPU(t *testing.T) {
	t.Parallel()
	const want = "ValueError: bad batch 17 (step (/srv/train.py:351))"
	if got := Raised(raisedOnGPU); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Raised(raisedOnGPU + "step 18\n"); got != "" {
		t.Errorf("got %q of a program that goes on", got)
	}
}
