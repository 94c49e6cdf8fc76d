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
		return "a bus error is usually a full /dev/shm: look at df /dev/shm and give the container more (--shm-size), or use fewer data loader workers"
	case strings.Contains(stderr, "Fatal Python error"):
		return "the Python stack above, from faulthandler, shows the call that crashed"
	default:
		return "the crash is in native code: PYTHONFAULTHANDLER=1 prints the Python line that called it"
	}
}

// mismatch is what gloo says when ranks pass tensors of different sizes, before it aborts.
var mismatch = regexp.MustCompile(`(\d+) vs (\d+)\. Received data size doesn't match expected size`)

func sizeMismatch(stderr string) string {
	m := mismatch.FindStringSubmatch(stderr)
	if m == nil {
		return ""
	}
	return "a peer sent " + m[1] + " bytes where it expected " + m[2]
}

// pattern is text that tells the kind of an error.
type pattern struct {
	kind Kind
	text string
}

// patterns are looked for in order. The texts are those of PyTorch, gloo, NCCL and cohort.
var patterns = []pattern{
	{Memory, "CUDA out of memory"},
	{Memory, "OutOfMemoryError"},
	{Memory, "MemoryError"},
	{Memory, "DefaultCPUAllocator: can't allocate memory"},
	{Memory, "DefaultCPUAllocator: not enough memory"},
	{Device, "CUDA error"},
	{Device, "CUBLAS_STATUS"},
	{Device, "CUDNN_STATUS"},
	{Exception, "BrokenPipeError"}, // of any pipe, not of a rank
	{Timeout, "Timed out waiting"},
	{Timeout, "wait timeout after"},
	{Timeout, "Watchdog caught collective operation timeout"},
	{Timeout, "failed to pass monitoredBarrier"},
	{Timeout, "Timed out after"},
	{Timeout, "Socket Timeout"},
	{LostPeer, "Observed flight recorder dump signal from another rank"},
	{LostPeer, "Connection closed by peer"},
	{LostPeer, "Connection reset by peer"},
	{LostPeer, "Connection was likely closed"},
	{LostPeer, "Gloo connectFullMesh failed"},
	{LostPeer, "remote process exited or there was a network error"},
	{LostPeer, "ncclRemoteError"},
	{LostPeer, "NCCL communicator was aborted"},
	{LostPeer, "Broken pipe"},
	{LostPeer, "Connection refused"},
	{LostPeer, "Application timeout caused pair closure"},
	{LostPeer, "peer lost"},
}

func kindOf(exception string) Kind {
	for _, p := range patterns {
		if strings.Contains(exception, p.text) {
			return p.kind
		}
	}
	return Exception
}

// spoken looks in the last lines of a program that is not Python, or that printed no traceback, for words that tell why.
func spoken(stderr string) (Kind, string) {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for i := len(lines) - 1; i >= max(0, len(lines)-20); i-- {
		for _, p := range patterns {
			if strings.Contains(lines[i], p.text) {
				return p.kind, strings.TrimSpace(lines[i])
			}
		}
	}
	for _, text := range slices.Backward(lines) {
		if line := strings.TrimSpace(text); line != "" && !logLine.MatchString(line) && !barLine.MatchString(line) {
			return ExitCode, line
		}
	}
	return ExitCode, ""
}

// logLine is a message of PyTorch's own log, or of gloo's, that is no error:
// "[W1115 16:32:45.655 ProcessGroupGloo.cpp:727] Warning: ...", "[./gloo/transport/tcp/context.cc:243] INFO Rank 1 is ...".
var logLine = regexp.MustCompile(`^\[?[IW]\d{4} [0-9:.]+ |^\[\S+\.cc:\d+\] (INFO|WARNING) `)

// barLine is a progress bar, with or without a title: "epoch 3:  45%|####   | 45/100 [00:04<00:05]".
var barLine = regexp.MustCompile(`^([^|]*: +)?\d{1,3}%\|`)

var advices = []struct{ text, advice string }{
	{"CUDA out of memory", "use a smaller batch, or look for another process on the GPU (nvidia-smi)"},
	{"Address already in use", "another process has the port: leave --master-port out and a free one is taken"},
	{"can't allocate memory", "the process may not have more memory: look at ulimit -v and at the limit of the container, or use smaller batches"},
	{"MemoryError", "the process may not have more memory: look at ulimit -v and at the limit of the container, or use smaller batches"},
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
	{"use_libuv was requested", "this PyTorch has no libuv: leave --no-shim out, or set USE_LIBUV=0; a program in another root (chroot) must see the launcher's temporary files (TMPDIR)"},
	{"device-side assert", "run with CUDA_LAUNCH_BLOCKING=1 to see the call that failed"},
	{"Name or service not known", "a host name does not resolve; if it is that of a host of the job, give its address with --local-addr or --rdzv-endpoint"},
	{"bdb.BdbQuit", noInput},
	{"EOFError: EOF when reading a line", noInput},
	{"Permission denied", "check the permissions of the path in the message"},
}

const noInput = "workers have no standard input, which breakpoint() and input() read; a job of one worker has it: --nproc-per-node 1"

func adviceFor(text string) string {
	for _, a := range advices {
		if strings.Contains(text, a.text) {
			return a.advice
		}
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 300 {
		line = line[:300] + "..."
	}
	return line
}
