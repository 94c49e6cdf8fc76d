// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// crashes are the signals that a process brings upon itself.
var crashes = map[int]string{
	3: "quit with a core dump", 4: "illegal instruction", 5: "trace trap", 6: "aborted", 7: "bus error", 8: "arithmetic error",
	11: "segmentation fault", 31: "bad system call",
}

var signalNames = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}

func signalName(n int) string {
	if name := signalNames[n]; name != "" {
		return name
	}
	return "signal " + strconv.Itoa(n)
}

// Code returns an exit status in words: "exit code 7", "SIGKILL".
func Code(code int) string {
	if code < 0 {
		return signalName(-code)
	}
	return "exit code " + strconv.Itoa(code)
}

func crashAdvice(sig int, stderr string) string {
	switch {
	case sig == 7:
		return "a bus error is usually a full /dev/shm: look at df /dev/shm and give the container more (--shm-size), or use fewer " +
			"data loader workers"
	case strings.Contains(stderr, "terminate called without an active exception") && strings.Contains(stderr, "<no Python frame>"):
		return "the program had ended while a thread of PyTorch still needed the interpreter: call " +
			"torch.distributed.destroy_process_group() at its end"
	case strings.Contains(stderr, "Fatal Python error"):
		return "the Python stack above, from faulthandler, shows the call that crashed"
	default:
		return "the crash is in native code: PYTHONFAULTHANDLER=1 prints the Python line that called it"
	}
}

// mismatch is what gloo says when ranks pass tensors of different sizes, before it aborts. The bytes are those of one of the parts
// that it cuts a tensor into, which say nothing about its elements.
var mismatch = regexp.MustCompile(`op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)`)

func sizeMismatch(stderr string) string {
	m := mismatch.FindStringSubmatch(stderr)
	if m == nil {
		return ""
	}
	return "the ranks disagree about the size of the tensor: a peer sent a part of " + m[1] + " bytes where it expected " + m[2]
}

// pattern is text that tells the kind of an error.
type pattern struct {
	kind Kind
	text string
	// common says that libraries with nothing to do with other ranks use these words too.
	common bool
}

// patterns are looked for in order. The texts are those of PyTorch, gloo, NCCL and cohort.
var patterns = []pattern{
	{kind: memory, text: "CUDA out of memory"},
	{kind: memory, text: "OutOfMemoryError"},
	{kind: memory, text: "MemoryError"},
	{kind: memory, text: "DefaultCPUAllocator: can't allocate memory"},
	{kind: memory, text: "DefaultCPUAllocator: not enough memory"},
	{kind: device, text: "CUDA error"},
	{kind: device, text: "ncclUnhandledCudaError"},
	{kind: device, text: "unhandled cuda error"},
	{kind: device, text: "CUBLAS_STATUS"},
	{kind: device, text: "CUDNN_STATUS"},
	{kind: Exception, text: "NCCL Async Error: internal error"},
	{kind: Timeout, text: "Timed out waiting"},
	{kind: Timeout, text: "wait timeout after"},
	{kind: Timeout, text: "Watchdog caught collective operation timeout"},
	{kind: Timeout, text: "NCCL operation timed out"},
	{kind: Timeout, text: "due to collective timeout or exception"},
	{kind: Timeout, text: "failed to pass monitoredBarrier"},
	{kind: Timeout, text: "Timed out after", common: true},
	{kind: Timeout, text: "Socket Timeout"},
	{kind: LostPeer, text: "Observed flight recorder dump signal from another rank"},
	{kind: LostPeer, text: "Connection closed by peer"},
	{kind: LostPeer, text: "Connection reset by peer", common: true},
	{kind: LostPeer, text: "Connection was likely closed"},
	{kind: LostPeer, text: "Gloo connectFullMesh failed"},
	{kind: LostPeer, text: "remote process exited or there was a network error"},
	{kind: LostPeer, text: "ncclRemoteError"},
	{kind: LostPeer, text: "NCCL communicator was aborted"},
	{kind: LostPeer, text: "NCCL error: unhandled system error"}, // of a communicator that was there: an error at its start has "in:"
	{kind: LostPeer, text: "NCCL Async Error: unhandled system error"},
	{kind: LostPeer, text: operationFailed},
	{kind: LostPeer, text: "Broken pipe", common: true},
	{kind: LostPeer, text: "Connection refused", common: true},
	{kind: LostPeer, text: "Application timeout caused pair closure"},
	{kind: LostPeer, text: "peer lost"},
}

func kindOf(exception string) Kind {
	for _, p := range patterns {
		if strings.Contains(exception, p.text) && (!p.common || !foreign(exception)) {
			return p.kind
		}
	}
	return Exception
}

// exceptionType is the type of an exception as Python prints it: "requests.exceptions.ConnectionError".
var exceptionType = regexp.MustCompile(`^([A-Za-z_]\w*(?:\.\w+)*): `)

// foreign reports whether an exception is of a type that PyTorch does not raise for a lost rank: a pipe, a download or a database has
// failed.
func foreign(exception string) bool {
	m := exceptionType.FindStringSubmatch(exception)
	if m == nil {
		return false
	}
	switch name := m[1]; {
	case name == "RuntimeError", name == "TimeoutError", strings.HasPrefix(name, "torch."):
		return false
	case strings.HasPrefix(name, "Dist"): // DistBackendError without its module, as the error file of @record has it
		return false
	case !strings.Contains(name, ".") && !strings.HasSuffix(name, "Error") && !strings.HasSuffix(name, "Exception"):
		return false // "trainer: ...": the name of a program
	}
	return true
}

// spoken looks in the last lines of a program that is not Python, or that printed no traceback, for words that tell why.
func spoken(stderr string) (Kind, string) {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if line := goPanic(lines); line != "" {
		if kind := kindOf(line); kind != Exception {
			return kind, line
		}
		return exitCode, line
	}
	for i := len(lines) - 1; i >= max(0, len(lines)-20); i-- {
		if kind := kindOf(lines[i]); kind != Exception {
			return kind, strings.TrimSpace(lines[i])
		}
	}
	for _, text := range slices.Backward(lines) {
		if line := strings.TrimSpace(text); line != "" && !logLine.MatchString(line) && !barLine.MatchString(line) {
			return exitCode, line
		}
	}
	return exitCode, ""
}

// afterPanic is a line that a Go program prints after the words of a panic, and "go run" after the program.
var afterPanic = regexp.MustCompile(`^$|^\t|^created by |^\S+\(.*\)$|^\.\.\..*frames elided\.\.\.$|^\w+ +0x[0-9a-f]+$|^exit status \d+$`)

// goPanic returns what a Go program said when it panicked, before the stacks of its goroutines, or "". Nothing comes after those: a
// program that went on has caught the panic and told of it.
func goPanic(lines []string) string {
	stacks := false
	for _, line := range slices.Backward(lines) {
		switch {
		case strings.HasPrefix(line, "goroutine "):
			stacks = true
		case stacks && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")):
			return strings.TrimSpace(line)
		case !stacks && !afterPanic.MatchString(line):
			return ""
		}
	}
	return ""
}

// logLine is a message of PyTorch's own log, or of gloo's, that is not an error:
// "[W1115 16:32:45.655 ProcessGroupGloo.cpp:727] Warning: ...", "[./gloo/transport/tcp/context.cc:243] INFO Rank 1 is ...".
var logLine = regexp.MustCompile(`^\[?[IW]\d{4} [0-9:.]+ |^\[\S+\.cc:\d+\] (INFO|WARNING) `)

// barLine is a progress bar, with or without a title: "epoch 3:  45%|####   | 45/100 [00:04<00:05]".
var barLine = regexp.MustCompile(`^([^|]*: +)?\d{1,3}%\|`)

var advices = []struct{ text, advice string }{
	{
		"Duplicate GPU detected",
		"each rank needs its own GPU: call torch.cuda.set_device with LOCAL_RANK, and not more workers than GPUs (--nproc-per-node " +
			"gpu starts one for each)",
	},
	{
		"invalid device ordinal",
		"the GPU does not exist: --nproc-per-node gpu starts one worker for each GPU of the host, and CUDA_VISIBLE_DEVICES may hide some",
	},
	{
		"Failed to CUDA calloc",
		"the GPU has probably no memory left for NCCL: use a smaller batch, or look for another process on the GPU (nvidia-smi)",
	},
	{"CUDA out of memory", "use a smaller batch, or look for another process on the GPU (nvidia-smi)"},
	{"Address already in use", "another process has the port: leave --master-port out and a free one is taken"},
	{
		"can't allocate memory",
		"the process may not have more memory: look at ulimit -v and at the limit of the container, or use smaller batches",
	},
	{"MemoryError", "the process may not have more memory: look at ulimit -v and at the limit of the container, or use smaller batches"},
	{
		"Unable to find address for",
		"no interface of this host has that name and an address: correct GLOO_SOCKET_IFNAME or TP_SOCKET_IFNAME; \"ip addr\" lists them",
	},
	{"No route to host", unreachable},
	{"Network is unreachable", unreachable},
	{"shared memory segment", "/dev/shm is full or too small: df /dev/shm; containers have --shm-size"},
	{
		"ibv_reg_mr",
		"the process may not lock enough memory for RDMA: raise the limit (ulimit -l unlimited), in a container with --ulimit memlock=-1",
	},
	{"Too many open files", "the limit for open files is reached: raise it (ulimit -n), or use fewer data loader workers"},
	{"ModuleNotFoundError", "the module is not installed for the Python that runs the workers; --python chooses another one"},
	{"No module named", "the module is not installed for the Python that runs the workers; --python chooses another one"},
	{"can't open file", "check the path of the script"},
	{"allocate shared memory", "/dev/shm is full or too small: df /dev/shm; containers have --shm-size"},
	{"no space left on device", "the disk is full: df -h says which"},
	{"No space left on device", "the disk or /dev/shm is full: df -h says which"},
	{"inline_container.cc", "the file could not be written: the disk is probably full (df -h), or over its quota"},
	{"unable to open shared memory object", "/dev/shm is full or too small: df /dev/shm; containers have --shm-size"},
	{"out of shared memory", "/dev/shm is full or too small: df /dev/shm; containers have --shm-size"},
	{"DataLoader worker", "a data loader worker died: run with num_workers=0 to see its error"},
	{
		"use_libuv was requested",
		"this PyTorch has no libuv: leave --no-shim out, or set USE_LIBUV=0; a program in another root (chroot) must see the " +
			"launcher's temporary files (TMPDIR)",
	},
	{"illegal memory access", "run with CUDA_LAUNCH_BLOCKING=1 to see the call that failed"},
	{"device-side assert triggered", "run with CUDA_LAUNCH_BLOCKING=1 to see the call that failed"},
	{
		"Name or service not known",
		"a host name does not resolve; if it is that of a host of the job, give its address with --local-addr or --rdzv-endpoint",
	},
	{"bdb.BdbQuit", noInput},
	{"EOFError: EOF when reading a line", noInput},
	{"Permission denied", "check the permissions of the path in the message"},
}

// refusals say what to try when a worker could not be started.
var refusals = []struct{ text, advice string }{
	{"too many open files", "the launcher may not open more files, of which it needs a few for each worker: raise the limit (ulimit -n)"},
	{
		"resource temporarily unavailable",
		"this user may not start more processes: look at ulimit -u and at the limit of the container (pids.max)",
	},
	{"exec format error", "the file is not a program for this machine; a script needs a first line such as #!/bin/sh"},
	{"python3: not found in the PATH", "the PATH of the workers has no python3: --python chooses another one"},
}

func refusalAdvice(text string) string {
	for _, r := range refusals {
		if strings.Contains(text, r.text) {
			return r.advice
		}
	}
	return "check the path and its permissions"
}

const unreachable = "this host has no way to the address in the message: look for a firewall, and for an interface that the hosts do not " +
	"share; GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME choose another one"

const noInput = "workers have no standard input, which breakpoint() and input() read; a job of one worker has it: --nproc-per-node 1"

// adviceOn is adviceFor an exception whose text says less than where it was raised.
func adviceOn(t traceback) string {
	// Without TensorPipe its options are an empty class.
	if strings.Contains(t.exception, "object.__init__() takes exactly one argument") &&
		strings.Contains(t.text, "distributed/rpc/options.py") {
		return "this build of PyTorch was made without TensorPipe and has no torch.distributed.rpc: use a build that has it"
	}
	return adviceFor(t.exception)
}

func adviceFor(text string) string {
	for _, a := range advices {
		if strings.Contains(text, a.text) {
			return a.advice
		}
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(brief(s)), "\n")
	line = withPorts(line)
	if len(line) > 300 {
		line = line[:300] + "..."
	}
	return line
}
