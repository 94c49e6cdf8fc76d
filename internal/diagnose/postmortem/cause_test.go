// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"fmt"
	"strings"
	"testing"
)

const victimTrace = `[rank0]: Traceback (most recent call last):
[rank0]:   File "/srv/victim.py", line 34, in <module>
[rank0]:     main()
[rank0]:   File "/srv/victim.py", line 27, in main
[rank0]:     dist.all_reduce(x)
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:27861
`

const chainTrace = `Traceback (most recent call last):
  File "/srv/victim.py", line 21, in main
    raise ValueError("the real cause")
ValueError: the real cause

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/victim.py", line 34, in <module>
    main()
  File "/srv/victim.py", line 24, in main
    dist.barrier()
RuntimeError: Connection closed by peer [127.0.0.1]:27861
`

// taskGroup returns the traceback of a group of exceptions as Python prints it.
func taskGroup(exceptions ...string) string {
	var text strings.Builder
	text.WriteString("  + Exception Group Traceback (most recent call last):\n  |   File \"/srv/t.py\", line 9, in main\n  |     async with asyncio.TaskGroup() as t:\n")
	fmt.Fprintf(&text, "  | ExceptionGroup: unhandled errors in a TaskGroup (%d sub-exceptions)\n  +-+---------------- 1 ----------------\n", len(exceptions))
	for i, exception := range exceptions {
		if i > 0 {
			fmt.Fprintf(&text, "    +---------------- %d ----------------\n", i+1)
		}
		fmt.Fprintf(&text, "    | Traceback (most recent call last):\n    |   File \"/srv/t.py\", line %d, in work\n    |     x()\n    | %s\n", i+2, exception)
	}
	return text.String() + "    +------------------------------------\n"
}

func TestExplain(t *testing.T) {
	t.Parallel()
	stops := Signals{Ending: []int{2, 15}}
	for name, c := range map[string]struct {
		death Death
		kind  Kind
		words string
		where string
	}{
		"success":                         {Death{}, Success, "succeeded", ""},
		"exit code":                       {Death{Code: 7}, exitCode, "exited with code 7", ""},
		"a Go panic":                      {Death{Code: 2, Stderr: "started\npanic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.run()\n\t/srv/main.go:31 +0x4a\nmain.main()\n\t/srv/main.go:9 +0x4a\nexit status 2\n"}, exitCode, "exited with code 2: panic: assignment to entry in nil map", ""},
		"a Go deadlock":                   {Death{Code: 2, Stderr: "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [chan receive]:\nmain.main()\n\t/srv/main.go:9 +0x4a\n"}, exitCode, "exited with code 2: fatal error: all goroutines are asleep - deadlock!", ""},
		"a Go panic over a lost peer":     {Death{Code: 2, Stderr: "panic: shm: barrier: peer lost: rank 2: its process ended\n\ngoroutine 1 [running]:\n" + strings.Repeat("main.f()\n\t/srv/main.go:9 +0x4a\n", 30)}, LostPeer, "exited with code 2: panic: shm: barrier: peer lost: rank 2: its process ended", ""},
		"a Go panic that was caught":      {Death{Code: 1, Stderr: "panic: bad record 7\n\ngoroutine 9 [running]:\nmain.parse(...)\n\t/srv/main.go:31 +0x4a\nskipped a record\nopen /data/b: no such file or directory\n"}, exitCode, "exited with code 1: open /data/b: no such file or directory", ""},
		"a Go panic with all it prints":   {Death{Code: 2, Stderr: "panic: a\n\ngoroutine 1 gp=0xc000002380 m=0 mp=0x5 [running]:\npanic({0x47, 0x4a?})\n\t/go/src/runtime/panic.go:9 +0x4a\nmain.(*T[...]).F(0x1, {0x2, ...})\n\t/srv/main.go:9 +0x4a\n...additional frames elided...\ncreated by main.main in goroutine 1\n\t/srv/main.go:4 +0x4a\n\nrax    0x0\nrflags 0x246\n"}, exitCode, "exited with code 2: panic: a", ""},
		"a log that speaks of panic":      {Death{Code: 2, Stderr: "panic: do not\nbye\n"}, exitCode, "exited with code 2: bye", ""},
		"gloo's log":                      {Death{Code: 3, Stderr: "[./gloo/transport/tcp/context.cc:243] INFO Rank 1 is connected to 2. Expected number of connected peers is: 2\n"}, exitCode, "exited with code 3", ""},
		"a crash in C":                    {Death{Code: -11, Stderr: "Fatal Python error: Segmentation fault\n\nThread 0x00007f01 [loader] (most recent call first):\n  File \"/srv/io.py\", line 3 in read\n\nCurrent thread 0x00007f02 [python3] (most recent call first):\n  File \"/usr/lib/python3.14/ctypes/__init__.py\", line 575 in string_at\n  File \"/srv/t.py\", line 17 in step\n  File \"/srv/t.py\", line 20 in <module>\n\nCurrent thread's C stack trace (most recent call first):\n  Binary file \"/usr/bin/python3\" [0x73d9a7]\n"}, Crash, "crashed: segmentation fault (SIGSEGV) in step (/srv/t.py:17)", "step (/srv/t.py:17)"},
		"last words":                      {Death{Code: 7, Stderr: "starting\nno config\n"}, exitCode, "exited with code 7: no config", ""},
		"full /dev/shm":                   {Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n    x\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File \"t.py\", line 2, in g\n    y\nRuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly\n"}, Exception, "raised RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.", "g (t.py:2)"},
		"a data loader":                   {Death{Code: 1, Stderr: "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 2, in g\n[rank1]:     y\n[rank1]: ValueError: Caught ValueError in DataLoader worker process 3.\n[rank1]: Original Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 9, in load\n[rank1]:     z\n[rank1]: ValueError: bad sample\n"}, Exception, "raised ValueError: bad sample (in a data loader worker, process 3)", "g (t.py:2)"},
		"only warnings":                   {Death{Code: 7, Stderr: "[W1115 16:32:45.655957504 ProcessGroupGloo.cpp:727] Warning: Unable to resolve hostname\n"}, exitCode, "exited with code 7", ""},
		"a bar":                           {Death{Code: 7, Stderr: "bad sample\nepoch 3:  45%|####   | 45/100 [00:04<00:05]\n"}, exitCode, "exited with code 7: bad sample", ""},
		"exception":                       {Death{Code: 1, Stderr: "noise\nTraceback (most recent call last):\n  File \"/srv/train.py\", line 17, in step\n    raise ValueError(x)\nValueError: bad batch 17\n"}, Exception, "raised ValueError: bad batch 17", "step (/srv/train.py:17)"},
		"a group":                         {Death{Code: 1, Stderr: "  + Exception Group Traceback (most recent call last):\n  |   File \"/srv/t.py\", line 3, in <module>\n  |     f()\n  |   File \"/srv/t.py\", line 2, in f\n  |     raise ExceptionGroup(\"several\",[ValueError(\"a\"),TypeError(\"b\")])\n  | ExceptionGroup: several (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | ValueError: a\n    +---------------- 2 ----------------\n    | TypeError: b\n    +------------------------------------\n"}, Exception, "raised ExceptionGroup: several (2 sub-exceptions)", "f (/srv/t.py:2)"},
		"a rank's":                        {Death{Code: 1, Stderr: "noise\n" + "[rank1]:   + Exception Group Traceback (most recent call last):\n[rank1]:   |   File \"/srv/t.py\", line 3, in <module>\n[rank1]:   |     f()\n[rank1]:   |   File \"/srv/t.py\", line 2, in f\n[rank1]:   |     raise ExceptionGroup(\"several\",[ValueError(\"a\"),TypeError(\"b\")])\n[rank1]:   | ExceptionGroup: several (2 sub-exceptions)\n[rank1]:   +-+---------------- 1 ----------------\n[rank1]:     | ValueError: a\n[rank1]:     +---------------- 2 ----------------\n[rank1]:     | TypeError: b\n[rank1]:     +------------------------------------\n"}, Exception, "raised ExceptionGroup: several (2 sub-exceptions)", "f (/srv/t.py:2)"},
		"a group of one":                  {Death{Code: 1, Stderr: taskGroup("RuntimeError: no data")}, Exception, "raised RuntimeError: no data", "work (/srv/t.py:2)"},
		"a group of a victim":             {Death{Code: 1, Stderr: taskGroup("RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.1]:5")}, LostPeer, "lost its connection to another rank: RuntimeError: [pair.cc:534] Connection closed", "work (/srv/t.py:2)"},
		"a group of victims":              {Death{Code: 1, Stderr: taskGroup("RuntimeError: Connection closed by peer", "RuntimeError: Timed out waiting 9ms")}, LostPeer, "lost its connection to another rank: RuntimeError: Connection closed by peer", "work (/srv/t.py:2)"},
		"a group of a victim and a cause": {Death{Code: 1, Stderr: taskGroup("RuntimeError: Connection closed by peer\nLast error:\nx", "ValueError: bad batch 17")}, Exception, "raised ValueError: bad batch 17", "work (/srv/t.py:3)"},
		"a group in a group":              {Death{Code: 1, Stderr: "  + Exception Group Traceback (most recent call last):\n  |   File \"/srv/t.py\", line 9, in main\n  |     x\n  | ExceptionGroup: outer (1 sub-exception)\n  +-+---------------- 1 ----------------\n    | Exception Group Traceback (most recent call last):\n    |   File \"/srv/t.py\", line 8, in inner\n    |     x\n    | ExceptionGroup: inner (1 sub-exception)\n    +-+---------------- 1 ----------------\n      | Traceback (most recent call last):\n      |   File \"/srv/t.py\", line 7, in work\n      |     x\n      | RuntimeError: Connection closed by peer\n      +------------------------------------\n"}, LostPeer, "lost its connection to another rank: RuntimeError: Connection closed by peer", "work (/srv/t.py:7)"},
		"a group that is cut off":         {Death{Code: 1, Stderr: strings.SplitAfter(taskGroup("RuntimeError: no data"), "| Traceback (most recent call last):\n")[0]}, Exception, "raised ExceptionGroup: unhandled errors in a TaskGroup", "main (/srv/t.py:9)"},
		"half a group":                    {Death{Code: 1, Stderr: "  + Exception Group Traceback (most recent call last):\n"}, exitCode, "exited with code 1", ""},
		"consequence":                     {Death{Code: 1, Stderr: victimTrace}, LostPeer, "lost its connection to another rank: RuntimeError: [../third_party", "main (/srv/victim.py:27)"},
		"chain":                           {Death{Code: 1, Stderr: chainTrace}, Exception, "raised ValueError: the real cause", "main (/srv/victim.py:21)"},
		"timeout":                         {Death{Code: 1, Stderr: strings.Replace(victimTrace, "Connection closed by peer", "Timed out waiting 4000ms for recv operation to complete", 1)}, Timeout, "timed out waiting for another rank", ""},
		"error file":                      {Death{Code: 1, ErrorFile: []byte(`{"message": {"message": "ValueError: bad batch 17", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"t.py\", line 3, in main\n    x()\nValueError: bad batch 17\n", "timestamp": "1794744210"}}}`)}, Exception, "raised ValueError: bad batch 17", "main (t.py:3)"},
		"plain message":                   {Death{Code: 1, ErrorFile: []byte(`{"message": "it broke", "timestamp": 3}`)}, Exception, "raised it broke", ""},
		"broken file":                     {Death{Code: 3, ErrorFile: []byte(`{"mess`)}, exitCode, "exited with code 3", ""},
		"killed":                          {Death{Code: -9}, Killed, "was killed by SIGKILL, neither by the launcher", ""},
		"out of memory":                   {Death{Code: -9, OutOfMemory: true, RSS: 81 << 30, Limit: 80 << 30}, memory, "was killed by the kernel: out of memory (81 GiB resident, limit 80 GiB)", ""},
		"by a shell":                      {Death{Code: 137, OutOfMemory: true}, memory, "was killed by the kernel: out of memory", ""},
		"segfault":                        {Death{Code: -11}, Crash, "crashed: segmentation fault (SIGSEGV)", ""},
		"bus":                             {Death{Code: -7}, Crash, "crashed: bus error (SIGBUS)", ""},
		"sizes":                           {Death{Code: -6, Stderr: "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"}, Crash, "crashed: aborted (SIGABRT); the ranks disagree about the size of the tensor: a peer sent a part of 8 bytes where it expected 4", ""},
		"full disk":                       {Death{Code: -6, Stderr: "Traceback (most recent call last):\n  File \"/srv/t.py\", line 22, in train\n    torch.save(x, f)\n  File \"/usr/lib/python3/dist-packages/torch/serialization.py\", line 290, in __exit__\n    self.file_like.write_end_of_file()\nRuntimeError: [enforce fail at inline_container.cc:325] . unexpected pos 320 vs 236\n\nterminate called after throwing an instance of 'c10::Error'\n"}, Exception, "raised RuntimeError: [enforce fail at inline_container.cc:325] . unexpected pos 320 vs 236, and then crashed: aborted (SIGABRT)", "train (/srv/t.py:22)"},
		"a crash in another thread": {
			Death{Code: -6, Stderr: "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at ./gloo/transport/tcp/pair.cc:510] op.preamble.length <= op.nbytes. 8 vs 4\nFatal Python error: Aborted\n\nThread 0x00007f0a (most recent call first):\n  File \"/srv/io.py\", line 3 in read\n\nThread 0x00007f01 (most recent call first):\n  File \"/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py\", line 1541 in all_reduce\n  File \"/srv/t.py\", line 3 in step\n\nCurrent thread's C stack trace (most recent call first):\n  Binary file \"python3\"\n"},
			Crash, "crashed: aborted (SIGABRT) while it was in step (/srv/t.py:3); the ranks disagree about the size of the tensor: a peer sent a part of 8 bytes where it expected 4", "step (/srv/t.py:3)",
		},
		"a data loader without memory":    {Death{Code: 1, OutOfMemory: true, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n    x\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. \n"}, memory, "lost a data loader worker, which the kernel killed: out of memory", "f (t.py:1)"},
		"stopped after its own exception": {Death{Code: -15, Sent: stops, Stderr: "Traceback (most recent call last):\n  File \"/srv/train.py\", line 17, in step\n    raise ValueError(x)\nValueError: bad batch 17\n"}, Exception, "raised ValueError: bad batch 17 and did not exit before it was stopped by the launcher (SIGTERM)", "step (/srv/train.py:17)"},
		"stopped after a consequence":     {Death{Code: -15, Sent: stops, Stderr: victimTrace}, Stopped, "was stopped by the launcher (SIGTERM) after RuntimeError: [../third_party", ""},
		"stopped by Ctrl-C":               {Death{Code: -2, Sent: stops, Stderr: "Traceback (most recent call last):\n  File \"/srv/train.py\", line 17, in step\n    x()\nKeyboardInterrupt\n"}, Stopped, "was stopped by the launcher (SIGINT)", ""},
		"stopped":                         {Death{Code: -15, Sent: stops}, Stopped, "was stopped by the launcher (SIGTERM)", ""},
		"stopped by SIGHUP":               {Death{Code: -1, Sent: Signals{Ending: []int{1}}}, Stopped, "was stopped by the launcher (SIGHUP)", ""},
		"stopped by SIGQUIT":              {Death{Code: -3, Sent: Signals{Ending: []int{3}}}, Stopped, "was stopped by the launcher (SIGQUIT)", ""},
		"a crash when it was stopped":     {Death{Code: -11, Sent: Signals{Ending: []int{15}}}, Crash, "crashed: segmentation fault (SIGSEGV)", ""},
		"a signal that was passed on":     {Death{Code: -10, Sent: Signals{Passed: []int{10}}}, Killed, "was terminated by SIGUSR1, which was sent to the launcher and passed on", ""},
		"one passed on, then stopped":     {Death{Code: -10, Sent: Signals{Ending: []int{15}, Passed: []int{10}}}, Killed, "was terminated by SIGUSR1, which was sent to the launcher and passed on", ""},
		"passed on, and stopped by it":    {Death{Code: -1, Sent: Signals{Ending: []int{1}, Passed: []int{1}}}, Stopped, "was stopped by the launcher (SIGHUP)", ""},
		"another signal":                  {Death{Code: -12, Sent: Signals{Passed: []int{10}}}, Killed, "was terminated by SIGUSR2, which the launcher did not send", ""},
		"terminated":                      {Death{Code: -15}, Killed, "was terminated by SIGTERM, which the launcher did not send", ""},
		"refused":                         {Death{Code: 127, Refused: "x: not found in the PATH"}, notStarted, "could not be started: x", ""},
		"no server":                       {Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 3, in download\n    x\nrequests.exceptions.ConnectionError: HTTPConnectionPool(host='data', port=80): [Errno 111] Connection refused\n"}, Exception, "raised requests.exceptions.ConnectionError", "download (t.py:3)"},
		"a socket":                        {Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 3, in log\n    x\nConnectionResetError: [Errno 104] Connection reset by peer\n"}, Exception, "raised ConnectionResetError", "log (t.py:3)"},
		"a pipe":                          {Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 3, in log\n    x\nBrokenPipeError: [Errno 32] Broken pipe\n"}, Exception, "raised BrokenPipeError", "log (t.py:3)"},
		"a command":                       {Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 3, in log\n    x\ndb.LockError: Timed out after 30 s\n"}, Exception, "raised db.LockError", "log (t.py:3)"},
		"no store":                        {Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 3, in main\n    x\ntorch.distributed.DistNetworkError: The client socket has failed to connect to [node0]:29500 (errno: 111 - Connection refused).\n"}, LostPeer, "lost its connection to another rank: torch.distributed.DistNetworkError", "main (t.py:3)"},
		"no script":                       {Death{Code: 2, Stderr: "python3: can't open file '/srv/nope.py': [Errno 2] No such file or directory\n"}, Exception, "could not run its program: python3: can't open file", ""},
		"syntax":                          {Death{Code: 1, Stderr: "  File \"/srv/t.py\", line 3\n    def\n       ^\nSyntaxError: invalid syntax\n"}, Exception, "raised SyntaxError: invalid syntax", "/srv/t.py:3"},
		"cuda":                            {Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n    x\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB\n"}, memory, "raised torch.OutOfMemoryError: CUDA out of memory", ""},
		"cut traceback":                   {Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 1"}, exitCode, "exited with code 1", ""},
		"a program":                       {Death{Code: 1, Stderr: "trainer: Connection reset by peer\n"}, LostPeer, "exited with code 1: trainer", ""},
		"a Go rank":                       {Death{Code: 1, Stderr: "2026/11/15 group: all-reduce: rank 2 on nodeb: peer lost: connection reset\n"}, LostPeer, "exited with code 1: 2026/11/15 group", ""},
	} {
		got := Explain(c.death)
		if strings.Contains(got.Words, "INFO") {
			t.Errorf("%s: a message of a log: %s", name, got.Words)
		}
		if got.Kind != c.kind || !strings.HasPrefix(got.Words, c.words) || c.where != "" && got.Where != c.where {
			t.Errorf("%s: %v %q at %q, want %v %q at %q", name, got.Kind, got.Words, got.Where, c.kind, c.words, c.where)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for refused, want := range map[string]string{
		"joblog: pipe2: too many open files":            "ulimit -n",
		"resource temporarily unavailable":              "ulimit -u",
		"exec format error":                             "#!/bin/sh",
		"python3: not found in the PATH": "--python",
		"x: not found in the PATH":       "check the path",
		"permission denied":                             "check the path",
	} {
		if got := Explain(Death{Code: 127, Refused: refused}).Advice; !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", refused, got, want)
		}
	}
}

func TestFirst(t *testing.T) {
	t.Parallel()
	of := func(kinds ...Kind) []Failure {
		var all []Failure
		for i, k := range kinds {
			all = append(all, Failure{Rank: i, Cause: Cause{Kind: k}})
		}
		return all
	}
	for _, c := range []struct {
		failures []Failure
		want     int
	}{
		{nil, -1},
		{of(Success), -1},
		{of(LostPeer, LostPeer, Exception), 2},
		{of(Timeout, LostPeer), 0},
		{of(LostPeer, Timeout), 1},
		{of(Killed, Exception), 0}, // the first: a rank that raised afterwards may have missed it
		{of(Stopped, Killed), 1},
		{of(LostPeer, Stopped), 0},
	} {
		if got := First(c.failures); got != c.want {
			t.Errorf("First(%v) is %d, want %d", c.failures, got, c.want)
		}
	}
}

func FuzzExplain(f *testing.F) {
	f.Add(1, victimTrace, []byte(nil))
	f.Add(1, chainTrace, []byte(`{"message": {"message": "x"}}`))
	f.Fuzz(func(t *testing.T, code int, stderr string, file []byte) {
		if c := Explain(Death{Code: code, Stderr: stderr, ErrorFile: file}); c.Words == "" {
			t.Errorf("no words for code %d", code)
		}
	})
}

// TestAdvice: what to try is about the cause, not about the launcher.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for exception, want := range map[string]string{
		"bdb.BdbQuit":                       "--nproc-per-node 1",
		"EOFError: EOF when reading a line": "--nproc-per-node 1",
		"socket.gaierror: [Errno -2] Name or service not known": "a host name does not resolve; if it is that of a host of the job",
		"ValueError: bad batch":                                 "",
	} {
		d := Death{Code: 1, Stderr: "Traceback (most recent call last):\n  File \"t.py\", line 2, in g\n    y\n" + exception + "\n"}
		if got := Explain(d).Advice; !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: the advice is %q, want %q", exception, got, want)
		}
	}
}

// TestOutput: a worker whose output cannot be written has not lost another rank.
func TestOutput(t *testing.T) {
	t.Parallel()
	const broken = "Traceback (most recent call last):\n  File \"t.py\", line 2, in g\n    print(1)\nBrokenPipeError: [Errno 32] Broken pipe\n"
	const full = "the launcher's standard output cannot be written: no space left on device"
	for name, c := range map[string]struct {
		death Death
		kind  Kind
		words string
	}{
		"a full disk":         {Death{Code: 1, Stderr: broken, Output: full}, exitCode, "could not write its output and ended with exit code 1: " + full},
		"a signal":            {Death{Code: -13, Output: full}, exitCode, "could not write its output and ended with SIGPIPE: " + full},
		"no words":            {Death{Code: 120, Output: "no space left on device for its log files in /x"}, exitCode, "could not write its output and ended with exit code 120: no space left on device for its log files in /x"},
		"another pipe":        {Death{Code: 1, Stderr: broken}, Exception, "raised BrokenPipeError: [Errno 32] Broken pipe"},
		"something else":      {Death{Code: 1, Stderr: strings.ReplaceAll(broken, "BrokenPipeError: [Errno 32] Broken pipe", "ValueError: x"), Output: full}, Exception, "raised ValueError: x"},
		"a pipe of a library": {Death{Code: 1, Stderr: strings.ReplaceAll(broken, "BrokenPipeError: [Errno 32]", "RuntimeError: writev:")}, LostPeer, "lost its connection to another rank: RuntimeError: writev: Broken pipe"},
	} {
		if got := Explain(c.death); got.Kind != c.kind || got.Words != c.words {
			t.Errorf("%s: %v, %s", name, got.Kind, got.Words)
		}
	}
}

// TestRaised: the exception that a process has printed last, whether or not PyTorch has marked its lines.
func TestRaised(t *testing.T) {
	t.Parallel()
	const own = "Traceback (most recent call last):\n  File \"/srv/a.py\", line 3, in load\n    raise ValueError\nValueError: bad record\n"
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"step 1\n", ""},
		{own, "ValueError: bad record (load (/srv/a.py:3))"},
		{own + "\nstep 2\n", ""},
		{own + "step 2\n", ""},
		{own + "WARNING: the record is left out\nstep 2\n", ""},
		{victimTrace, "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:27861 (main (/srv/victim.py:27))"},
		{victimTrace + "[rank0]: and a second line\n[rank0]: and a third\n", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:27861 (main (/srv/victim.py:27))"},
	} {
		if got := Raised(c.text); got != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

// TestSignals: a signal is noted once, however often it is sent.
func TestSignals(t *testing.T) {
	t.Parallel()
	var s Signals
	for range 100 {
		s.Note(10, false)
		s.Note(12, false)
	}
	if s.stopped() {
		t.Error("signals that were passed on have stopped it")
	}
	s.Note(15, true)
	s.Note(15, true)
	if got := fmt.Sprint(s); got != "{[15] [10 12]}" || !s.stopped() {
		t.Errorf("noted %s", got)
	}
}
