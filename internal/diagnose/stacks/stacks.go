// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package stacks reads the Python stacks of a running process from outside: every thread of every interpreter, with
// function, file and line. It reads the memory of the process without stopping it, needs no code inside it, and works
// even while the process holds its interpreter lock or waits in C++.
//
// It supports CPython 3.11 to 3.14 on 64-bit Linux. Free-threaded builds, older versions and other interpreters are
// refused with an error.
//
// The process changes while it is read. A stack is read twice and accepted if both readings agree; one that keeps
// changing is marked as moving. Every loop is bounded, so a process that exits, forks or has corrupt memory yields an
// error or a short stack.
package stacks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

var (
	// ErrNotPython is the error for a process that runs no CPython.
	ErrNotPython = errors.New("stacks: not a CPython process")
	// errUnsupported is the error for a Python whose memory layout is not known.
	errUnsupported = errors.New("stacks: this Python cannot be read")
	// ErrForbidden is the error for a process that this one may not read.
	ErrForbidden = errors.New("stacks: the process may not be read")
	// ErrNoInterpreter is the error for a Python that has not begun to run code, or has ended it.
	ErrNoInterpreter = errors.New("stacks: the process is not running Python code (starting or exiting)")
	// errCorrupt is the error for a process whose memory makes no sense.
	errCorrupt = errors.New("stacks: the memory of the process makes no sense")
)

// Process is what a Python process was doing when it was read.
type Process struct {
	PID int `json:"pid"`
	// Version is that of Python: "3.13.5".
	Version string   `json:"version"`
	Threads []Thread `json:"threads"`
}

// Thread is a thread that runs Python code.
type Thread struct {
	// ID is the kernel's number of the thread, 0 where Python does not know it.
	ID int `json:"id"`
	// Name, State and Kernel come from /proc: the name, the scheduler's state ("S") and the kernel function it sleeps in.
	Name   string `json:"name,omitempty"`
	State  string `json:"state,omitempty"`
	Kernel string `json:"kernel,omitempty"`
	// Minutes is how long a goroutine has at least waited; 0: not known.
	Minutes int `json:"-"`
	// HoldsGIL says that the thread holds its interpreter's lock.
	HoldsGIL bool `json:"holds_gil,omitempty"`
	// Moving says that the stack changed during every reading, so that Frames may be a mixture of several moments.
	Moving bool `json:"moving,omitempty"`
	// Truncated says that outer frames are missing.
	Truncated bool `json:"truncated,omitempty"`
	// Frames are the calls, innermost first.
	Frames []Frame `json:"frames"`
}

// Frame is one call.
type Frame struct {
	// Func is the qualified name.
	Func string `json:"func"`
	File string `json:"file"`
	Line int    `json:"line"`
	// Args are the plain arguments (int, bool, None, str) of a function of torch.distributed, or of [SpawnFile], and the shapes of its
	// tensors: "tensor=float32[4,2] src=1"; of the target of a multiprocessing.Process, and of what it calls in the program, only the
	// numbers rank, local_rank and world_size.
	Args string `json:"args,omitempty"`
}

// SpawnFile ends the name of the file with torch.multiprocessing.spawn. Its function _wrap begins each process that it starts; the
// argument i is the process's number.
const SpawnFile = "/torch/multiprocessing/spawn.py"

// StartsTarget reports whether a call is the one that calls the target of a multiprocessing.Process.
func StartsTarget(f Frame) bool {
	return strings.HasSuffix(f.File, "/multiprocessing/process.py") && strings.HasSuffix(f.Func, "run")
}

// String returns the frame as "recv (distributed_c10d.py:3433) src=1".
func (f Frame) String() string {
	s := f.Func + " (" + f.File + ":" + strconv.Itoa(f.Line) + ")"
	if f.Args != "" {
		s += " " + f.Args
	}
	return s
}

// Library reports whether a file belongs to Python, to an installed package or to the launcher, not to the program. What runs before
// every program belongs to none. Code that a library has made is named after the function: "__init__".
func Library(file string) bool {
	return strings.HasPrefix(file, "<frozen") || strings.HasPrefix(file, "__") && !strings.HasSuffix(file, ".py") ||
		strings.Contains(file, "/site-packages/") || strings.Contains(file, "/dist-packages/") ||
		strings.Contains(file, "/lib/python3") || strings.Contains(file, "/cohort_dist/") ||
		strings.HasSuffix(file, "/sitecustomize.py") ||
		strings.HasSuffix(file, "/usercustomize.py")
}

// Main returns the main thread: the one whose number is the process's own, else the last, which Python made first. It
// is nil without a thread.
func (p *Process) Main() *Thread {
	for i := range p.Threads {
		if p.Threads[i].ID == p.PID {
			return &p.Threads[i]
		}
	}
	if n := len(p.Threads); n > 0 {
		return &p.Threads[n-1]
	}
	return nil
}

// String returns the stacks as text, a line for each frame.
func (p *Process) String() string {
	var b strings.Builder
	b.WriteString("process " + strconv.Itoa(p.PID) + ", Python " + p.Version + "\n")
	for _, t := range p.Threads {
		b.WriteString(t.String())
	}
	return b.String()
}

// String returns the stack of a thread as text, a line for each frame.
func (t Thread) String() string {
	var b strings.Builder
	b.WriteString("  thread " + strconv.Itoa(t.ID) + " " + strconv.Quote(t.Name))
	if t.State != "" {
		b.WriteString(", state " + t.State)
	}
	if t.Kernel != "" {
		b.WriteString(" in " + t.Kernel)
	}
	if t.HoldsGIL {
		b.WriteString(", holds the GIL")
	}
	if t.Moving {
		b.WriteString(", moving")
	}
	b.WriteByte('\n')
	for _, f := range t.Frames {
		b.WriteString("    " + f.String() + "\n")
	}
	if t.Truncated {
		b.WriteString("    ...\n")
	}
	return b.String()
}

// Places is where the main threads of Python processes stand, for each process that could be read and did not move meanwhile.
type Places map[int]string

// Places reads processes at the same time.
func (r *Reader) Places(ctx context.Context, pids []int) Places {
	all := make([]string, len(pids))
	var wg sync.WaitGroup
	for i, pid := range pids {
		wg.Go(func() {
			p, err := r.Read(ctx, pid)
			if err != nil {
				return
			}
			if main := p.Main(); main != nil && !main.Moving {
				all[i] = fmt.Sprint(main.Frames)
			}
		})
	}
	wg.Wait()
	places := Places{}
	for i, pid := range pids {
		if all[i] != "" {
			places[pid] = all[i]
		}
	}
	return places
}

// Same reports whether a process is known to stand where it stood.
func (p Places) Same(later Places, pid int) bool {
	at, known := p[pid]
	return known && later[pid] == at
}

// The text in which the Go runtime prints the stacks of goroutines.

// ParseGo returns the goroutines of a text as threads: ID is the goroutine's number, Kernel what it waits for, Minutes for
// how long, and State R for one that runs or could, else S. What makes no sense is passed over.
func ParseGo(text string) []Thread {
	var all []Thread
	for block := range strings.SplitSeq(text, "\n\n") {
		if t, ok := parseGoroutine(strings.Split(strings.Trim(block, "\n"), "\n")); ok {
			all = append(all, t)
		}
	}
	return all
}

func parseGoroutine(lines []string) (Thread, bool) {
	// goroutine 1 [chan receive, 2 minutes]:
	head, found := strings.CutPrefix(lines[0], "goroutine ")
	number, rest, _ := strings.Cut(head, " ")
	id, err := strconv.Atoi(number)
	open, end := strings.IndexByte(rest, '['), strings.LastIndexByte(rest, ']')
	if !found || err != nil || open < 0 || end < open {
		return Thread{}, false
	}
	state, more, _ := strings.Cut(rest[open+1:end], ",")
	t := Thread{ID: id, Name: "goroutine", State: "S", Kernel: state}
	if state == "running" || state == "runnable" {
		t.State = "R"
	}
	for part := range strings.SplitSeq(more, ",") { // " 2 minutes", " locked to thread"
		if n, found := strings.CutSuffix(strings.TrimSpace(part), " minutes"); found {
			minutes, _ := strconv.ParseUint(n, 10, 16)
			t.Minutes = int(minutes)
		}
	}
	for i := 1; i+1 < len(lines); i += 2 {
		function, created := strings.CutPrefix(lines[i], "created by ")
		if created {
			break // the function that started it is not a call
		}
		file, line, ok := sourcePosition(lines[i+1])
		if !ok {
			i-- // "...additional frames elided..." stands alone
			continue
		}
		t.Frames = append(t.Frames, Frame{Func: functionName(function), File: file, Line: line})
	}
	return t, len(t.Frames) > 0
}

// sourcePosition reads "\t/src/train.go:88 +0x1d".
func sourcePosition(text string) (file string, line int, ok bool) {
	text, found := strings.CutPrefix(text, "\t")
	if !found {
		return "", 0, false
	}
	text, _, _ = strings.Cut(text, " +0x")
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 {
		return "", 0, false
	}
	line, err := strconv.Atoi(text[colon+1:])
	return text[:colon], line, err == nil
}

// functionName takes the arguments off a call: "main.(*T).load(0xc000, ...)" is main.(*T).load.
func functionName(call string) string {
	if open := strings.LastIndexByte(call, '('); open > 0 && strings.HasSuffix(call, ")") {
		call = call[:open]
	}
	return strings.ReplaceAll(call, "[...]", "")
}
