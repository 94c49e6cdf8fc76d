// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// class is what a rank is busy with, in the order of a job's life.
type class int

const (
	unknown class = iota
	inProgram
	inInit
	inNewGroup
	inMessage
	inCollective
	inWork // it waits for an operation that was started earlier: Work.wait, or backward of a module that sums gradients over ranks
	inGPU  // it probably waits for its GPU, in a line that does not say what that computes
	inRPC
)

// position is where the main thread of a rank is.
type position struct {
	class  class
	op     string // the function of torch.distributed: "all_reduce"
	via    string // a part of torch.distributed that calls it for the program: "checkpoint.save"
	peer   int    // of a message, or the root of a collective, -1: not known
	side   string // what the program calls the peer: "src"
	tag    string // of a message
	tensor string // of a collective: "float32[4,2]"; "" if it is not known
	line   string // the line of the program that called it: "train.py:53"
	own    string // the innermost function of the program: "load_batch"
	how    string // what it does there: "in Queue.get", "waiting for a file lock"
	saves  bool   // inside torch.save
	loads  bool   // inside a data loader
	lock   bool   // in a lock, or something else that wakes threads, without a function of Python in between
	gpu    bool   // it probably waits for its GPU, in whatever call
	thread bool   // it is another thread than the main one that is there
	spare  bool   // it waits to be taken into a group whose members change
}

func (p position) waits() bool { return p.class >= inInit }

// meets reports whether it takes part in an operation of several ranks, or may.
func (p position) meets() bool {
	return p.class == inCollective || p.class == inWork || p.class == inGPU
}

// where returns "all_reduce (train.py:53)" or "load_batch (train.py:12)".
func (p position) where() string {
	switch {
	case p.via != "":
		return p.op + " in " + p.via + " (" + p.line + ")"
	case p.op != "":
		return p.op + " (" + p.line + ")"
	case p.own != "":
		return p.own + " (" + p.line + ")"
	default:
		return "no Python code"
	}
}

// doing returns where, and what it does there where that is known.
func (p position) doing() string {
	if p.how == "" {
		return p.where()
	}
	return p.where() + ", " + p.how
}

// place returns "train.py:66".
func (p position) place() string {
	if p.line == "" {
		return "an unknown place"
	}
	return p.line
}

func locate(r Rank) position {
	if r.Main == nil {
		return position{peer: -1}
	}
	if goFrames(r.Main.Frames) {
		return locateGo(r)
	}
	p := locateFrames(r.Main.Frames)
	p.gpu = onGPU(r)
	if p.class == inProgram {
		main := *r.Main
		if slices.Contains(r.Dials, r.Object) { // the kernel's function is the same for reading
			main.Kernel = "inet_wait_for_connect"
		}
		p.how, p.lock = manner(&main, r.Object)
		if p.how == "" && p.lock && lockLine.MatchString(r.Line) {
			p.how = "waiting for a lock"
		}
		if how := again(r, p.how); how != "" {
			p.how = how
		}
		if asksForLock(r.Main.Frames) {
			p.how = fileLock + ", for which it asks again and again"
		}
		if r.Moved {
			p.how = ""
		}
		if waitsForThreads(r) {
			if q, found := inThread(r, p); found {
				return q
			}
		}
		if at := ending(r); at != "" {
			p.how = at
		}
		switch {
		case r.Moved:
		case strings.HasPrefix(r.Main.Kernel, "futex_") && len(r.Main.Frames) > 0 && distributed(r.Main.Frames[0].File):
			p.class, p.op, p.how = inCollective, r.Main.Frames[0].Func, "" // PyTorch's own code waits for something of C++
		case p.lock && strings.Contains(r.Line, ".to_here("):
			p.class, p.op = inRPC, "to_here"
		case p.lock && workWait.MatchString(r.Line), strings.HasPrefix(r.Main.Kernel, "futex_") && len(r.Main.Frames) > 0 &&
			strings.HasSuffix(r.Main.Frames[0].File, "/torch/futures/__init__.py"):
			p.class = inWork
		case inBackward(r.Main):
			p.class, p.op, p.how = inWork, "backward", ""
		case p.gpu:
			p.class, p.how = inGPU, "probably waiting for the GPU"
		}
	}
	return p
}

// apart is about the time between two looks at a rank.
const apart = 500 * time.Millisecond

// again says that a rank looks for something again and again: it sleeps most of the time, and has run between two looks, which
// found it at the same place. What it does for a moment then does not matter.
func again(r Rank, how string) string {
	runs := r.Main.State == "R" || r.Idle > 0 && r.Idle < apart
	switch {
	case !r.Sleeps || !runs || r.Moved:
	case r.Object == theStore:
		return "polling the store"
	case r.Main.State == "R" || how == "" || how == inSleep:
		return "sleeping repeatedly"
	}
	return ""
}

// workWait is a line of a program that waits for an operation of torch.distributed that it has started: PyTorch's Work has no
// function of Python that a stack could show.
var workWait = regexp.MustCompile(`\.wait\(`)

// lockLine is a line of a program that takes a lock.
var lockLine = regexp.MustCompile(`^with |\.acquire\(`)

// waitsForThreads reports whether the main thread waits for other threads, or runs an event loop that calls functions in others.
func waitsForThreads(r Rank) bool {
	return !r.Moved && strings.HasPrefix(r.Main.Kernel, "futex_") || slices.ContainsFunc(r.Main.Frames, func(f stacks.Frame) bool {
		return f.Func == "BaseEventLoop.run_forever" && strings.HasSuffix(f.File, "/asyncio/base_events.py")
	})
}

// inThread returns where another thread than the main one stands still and waits for other ranks.
func inThread(r Rank, main position) (position, bool) {
	for _, t := range r.Threads {
		p := locateFrames(t.Frames)
		if t.ID == r.Main.ID || t.Moving || !p.waits() || p.class == inRPC {
			continue
		}
		if !ownCode(t.Frames) {
			p.own, p.line = main.own, main.line
		}
		p.thread = true
		return p, true
	}
	return position{}, false
}

// ownCode reports whether a call is one of the program itself.
func ownCode(frames []stacks.Frame) bool {
	return slices.ContainsFunc(frames, func(f stacks.Frame) bool { return !stacks.Library(f.File) })
}

// inBackward reports whether a thread waits in a backward pass. What it waits for is in C++.
func inBackward(t *stacks.Thread) bool {
	for _, f := range t.Frames {
		if !stacks.Library(f.File) || t.State == "R" {
			return false
		}
		if isBackward(f) {
			return true
		}
	}
	return false
}

// withinBackward reports whether a thread runs a function that a backward pass has called.
func withinBackward(t *stacks.Thread) bool {
	return t != nil && slices.ContainsFunc(t.Frames, isBackward)
}

func isBackward(f stacks.Frame) bool {
	return strings.HasSuffix(f.File, "/torch/autograd/__init__.py") && f.Func == "backward"
}

// kernelWaits say what a thread waits for that sleeps in these functions of the kernel, and with what if that is not known. A
// name may be followed by what the compiler has made of it.
var kernelWaits = []struct{ function, words, object string }{
	{"locks_lock_inode_wait", fileLock, ""},
	{"flock_lock_inode_wait", fileLock, ""},
	{"posix_lock_inode_wait", fileLock, ""},
	{"do_lock_file_wait", fileLock, ""},
	{"fcntl_setlk", fileLock, ""},
	{"fcntl_setlk64", fileLock, ""},
	{"do_wait", "waiting for a child process", ""},
	{"hrtimer_nanosleep", inSleep, ""},
	{"do_nanosleep", inSleep, ""},
	{"pipe_read", "reading from ", "a pipe"},
	{"anon_pipe_read", "reading from ", "a pipe"},
	{"pipe_write", "writing to ", "a pipe that no process reads"},
	{"anon_pipe_write", "writing to ", "a pipe that no process reads"},
	{"wait_for_partner", "opening a named pipe whose other end no process opens", ""},
	{"unix_stream_read_generic", "reading from ", "a socket"},
	{"wait_woken", "reading from ", "a socket or a terminal"},
	{"tcp_recvmsg", "reading from ", "a socket"},
	{"inet_wait_for_connect", "connecting to ", "another host"},
	{"inet_stream_connect", "connecting to ", "another host"},
	{"n_tty_read", "reading from ", "the terminal"},
	{"request_wait_answer", "waiting for the file system (FUSE) of ", "a file"},
	{"rpc_wait_bit_killable", "waiting for the network file system (NFS) of ", "a file"},
	{"folio_wait_bit_common", "waiting for the disk or network file system of ", "a file"},
	{"wait_on_page_bit_common", "waiting for the disk or network file system of ", "a file"},
}

const (
	// fileLock is what a thread waits for in flock or fcntl.
	fileLock = "waiting for a file lock"
	inSleep  = "sleeping"
)

// kernelWait says what a thread waits for, and with what if that is known; "" if the function of the kernel does not report.
func kernelWait(t *stacks.Thread, object string) string {
	for _, w := range kernelWaits {
		if t.Kernel != w.function && !strings.HasPrefix(t.Kernel, w.function+".") {
			continue
		}
		switch {
		case w.words == fileLock && object != "":
			return fileLock + " of " + object
		case w.object == "":
			return w.words
		}
		return w.words + cmp.Or(object, w.object)
	}
	return ""
}

// libraryWaits say the same of functions of Python's library.
var libraryWaits = []struct{ file, function, words string }{
	{"/socket.py", "getaddrinfo", "resolving a host name"},
	{"/socket.py", "create_connection", "connecting to another host"},
	{"/asyncio/base_events.py", "BaseEventLoop.run_forever", "waiting in its event loop"},
}

// lockLibraries take a lock on a file without waiting in the kernel: they try again and again.
var lockLibraries = []struct{ file, function string }{
	{"/filelock/_api.py", "acquire"},
	{"/fasteners/process_lock.py", "acquire"},
	{"/portalocker/utils.py", "acquire"},
	{"/torch/utils/file_baton.py", "wait"}, // while another process builds an extension
}

// asksForLock reports whether a thread is in the call of such a library.
func asksForLock(frames []stacks.Frame) bool {
	return slices.ContainsFunc(frames, func(f stacks.Frame) bool {
		for _, l := range lockLibraries {
			if strings.HasSuffix(f.File, l.file) && f.Func[strings.LastIndexByte(f.Func, '.')+1:] == l.function {
				return true
			}
		}
		return false
	})
}

// manner says what a thread does in the line of the program that it has come to, and with what if that is known. lock says that
// it is in a lock, or waits for another thread in some other way, by a call of C that the line itself makes.
func manner(t *stacks.Thread, object string) (how string, lock bool) {
	if t.State == "R" {
		return "computing", false
	}
	how = kernelWait(t, object)
	var called, program *stacks.Frame // by the line
	if !ownCode(t.Frames) {
		program = installed(t.Frames)
	}
	for i := range t.Frames {
		f := &t.Frames[i]
		if !stacks.Library(f.File) || f == program {
			break
		}
		called = f
		for _, w := range libraryWaits {
			if how == "" && f.Func == w.function && strings.HasSuffix(f.File, w.file) {
				how = w.words
			}
		}
	}
	if how == "" && object != "" && strings.HasPrefix(t.Kernel, "poll_schedule_timeout") {
		how = "waiting for " + object
	}
	if called != nil && !strings.HasPrefix(called.File, "<") {
		in := "in " + called.Func + " of " + path.Base(called.File)
		if base := path.Base(called.File); base == "pdb.py" || base == "bdb.py" {
			in = "in the debugger"
		}
		if how != "" {
			in += ", " + how
		}
		return in, false
	}
	return how, strings.HasPrefix(t.Kernel, "futex_") || t.Kernel == ""
}

// locateFrames finds the program's own innermost line and the call of torch.distributed that it made.
func locateFrames(frames []stacks.Frame) position {
	p := position{peer: -1}
	var call, via *stacks.Frame
	for i := range frames {
		f := &frames[i]
		p.saves = p.saves || strings.HasSuffix(f.File, "/torch/serialization.py") && strings.Contains(f.Func, "save")
		p.loads = p.loads || strings.Contains(f.File, "/torch/utils/data/")
		if distributed(f.File) {
			if _, known := classOf(f.Func, f.File); known {
				call, via = f, nil // the outermost: what the program called
			} else if call != nil && !strings.Contains(f.Func, "<locals>") && !strings.HasSuffix(f.File, "/distributed_c10d.py") {
				via = f
			}
			continue
		}
		if stacks.Library(f.File) {
			p.spare = p.spare || strings.HasSuffix(f.File, "/cohort_dist/elastic.py") && strings.HasSuffix("."+f.Func, ".next")
			continue
		}
		p.own, p.line = f.Func, line(f)
		break
	}
	p.spare = p.spare && call == nil // else it makes the group
	if p.own == "" && len(frames) > 0 {
		f := cmp.Or(installed(frames), &frames[0])
		p.own, p.line = f.Func, line(f)
	}
	if p.own != "" {
		p.class = inProgram
	}
	if call != nil {
		p.class, _ = classOf(call.Func, call.File)
		if p.op = call.Func; p.class == inWork {
			p.op = "" // a name that the program does not know
		}
		p.peer, p.side, p.tag = peerOf(call)
		p.tensor = tensorOf(call)
	}
	if via != nil && p.class == inCollective {
		p.via = path.Base(path.Dir(via.File)) + "." + via.Func
	}
	return p
}

// installed returns the call that stands for the program where all of it is installed as packages: the innermost that is neither
// Python's nor PyTorch's, or nil.
func installed(frames []stacks.Frame) *stacks.Frame {
	for i := range frames {
		file := frames[i].File
		if (strings.Contains(file, "/site-packages/") || strings.Contains(file, "/dist-packages/")) &&
			!strings.Contains(file, "-packages/torch/") {
			return &frames[i]
		}
	}
	return nil
}

func line(f *stacks.Frame) string { return path.Base(f.File) + ":" + strconv.Itoa(f.Line) }

func distributed(file string) bool {
	return strings.Contains(file, "/torch/distributed/") || strings.HasSuffix(file, "/torch/nn/parallel/distributed.py")
}

var collectives = map[string]bool{
	"all_reduce": true, "all_reduce_coalesced": true, "broadcast": true, "broadcast_object_list": true, "reduce": true, "all_gather": true,
	"all_gather_into_tensor": true, "all_gather_object": true, "all_gather_coalesced": true, "gather": true, "gather_object": true,
	"scatter":             true,
	"scatter_object_list": true, "reduce_scatter": true, "reduce_scatter_tensor": true, "all_to_all": true, "all_to_all_single": true,
	"barrier": true, "monitored_barrier": true, "_all_gather_base": true, "_reduce_scatter_base": true,
}

// collectiveName is what collectives of PyTorch are called where they are made. New versions add some.
var collectiveName = regexp.MustCompile(
	`^_?(all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|gather|scatter|reduce|barrier|permute_tensor)(_|$)`)

// makesCollectives reports whether a file has PyTorch's collectives.
func makesCollectives(file string) bool {
	return strings.HasSuffix(file, "/torch/distributed/distributed_c10d.py") ||
		strings.HasSuffix(file, "/torch/distributed/_functional_collectives.py")
}

// classOf says what a function of torch.distributed is about.
func classOf(function, file string) (class, bool) {
	switch {
	case function == "init_process_group":
		return inInit, true
	case strings.HasPrefix(function, "new_group") || strings.HasPrefix(function, "new_subgroups") || function == "split_group":
		return inNewGroup, true
	case function == "recv" || function == "send" || function == "recv_object_list" || function == "send_object_list":
		return inMessage, true
	case collectives[function], makesCollectives(file) && collectiveName.MatchString(function):
		return inCollective, true
	case makesCollectives(file) && (function == "wait_tensor" || strings.HasPrefix(function, "AsyncCollectiveTensor.")):
		return inWork, true
	case strings.HasSuffix(file, "/torch/nn/parallel/distributed.py"):
		return inCollective, true
	case strings.Contains(file, "/torch/distributed/rpc/") &&
		(function == "shutdown" || function == "init_rpc" || function == "rpc_sync" || function == "_wait_all_workers"):
		return inRPC, true
	}
	return unknown, false
}

// peerOf reads the other side of a message, and its tag, from the plain arguments of the call.
func peerOf(f *stacks.Frame) (peer int, side, tag string) {
	peer = -1
	for arg := range strings.FieldsSeq(f.Args) {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "src", "dst":
			if n, err := strconv.Atoi(value); err == nil {
				peer, side = n, name
			}
		case "group_src", "group_dst": // a rank in a group whose members are not known
			if _, err := strconv.Atoi(value); err == nil && side == "" {
				side = name
			}
		case "tag":
			tag = value
		}
	}
	return peer, side, tag
}

// Where returns in a few words where a stack is: "all_reduce (train.py:53)". It is empty for a process that starts or ends. worker is
// what an RPC worker of Go says of itself, or nil.
func Where(frames []stacks.Frame, worker *Worker) string {
	if len(frames) == 0 {
		return ""
	}
	return locate(Rank{Stacks: Stacks{Main: &stacks.Thread{Frames: frames}}, Records: Records{Worker: worker}}).where()
}
