// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/datatest"
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
		{
			victimTrace,
			"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:27861 (port 54636) " +
				"(main (/srv/victim.py:27))",
		},
		{
			victimTrace + "[rank0]: and a second line\n[rank0]: and a third\n",
			"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:27861 (port 54636) " +
				"(main (/srv/victim.py:27))",
		},
	} {
		if got := Raised(c.text); got != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

// raisedOnGPU is what a rank of PyTorch 2.11 with NCCL 2.28.9 has printed on a GPU, without most of the frames of C++.
const raisedOnGPU = `[rank1]: Traceback (most recent call last):
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

// TestCauses: the end of a worker, and why it ended, where in the program, and what to try.
func TestCauses(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"causes", "output", "gpu", "advice", "refusals"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			datatest.Run(t, file+".txt", func(t *testing.T, input string) string {
				t.Helper()
				return causeOf(t, readDeath(t, input))
			})
		})
	}
}

func causeOf(t *testing.T, d Death) string {
	t.Helper()
	c := Explain(d)
	if strings.Contains(c.Words, "INFO") || strings.Contains(c.Traceback, "WARNING") {
		t.Errorf("a message of a log: %s, in %s", c.Words, c.Traceback)
	}
	text := c.Kind.String() + ": " + c.Words
	if c.Where != "" {
		text += "\nat " + c.Where
	}
	if c.Advice != "" {
		text += "\ntry: " + c.Advice
	}
	return text
}

// readDeath reads the end of a worker in the form of [datatest.Read]. Lines that begin with "|" are what it has printed; the last one ends
// without a newline if it begins with "|-". A line "errorfile" is the file that @record has written.
func readDeath(t *testing.T, input string) Death {
	t.Helper()
	var d Death
	datatest.Read(t, input, &d, map[string]datatest.Line{
		"|":         func(_ any, rest string) error { d.Stderr += rest + "\n"; return nil },
		"|-":        func(_ any, rest string) error { d.Stderr += rest; return nil },
		"errorfile": func(_ any, rest string) error { d.ErrorFile = fmt.Append(nil, rest); return nil },
	})
	return d
}
