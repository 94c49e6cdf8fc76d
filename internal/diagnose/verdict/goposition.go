// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// module is where the functions of cohort itself are.
const module = "github.com/cohort-dist/cohort"

// programs are the packages of the module that are programs, not the library.
var programs = []string{"/cmd/", "/examples/", "/interop/", "/cmd/cohort/internal/cli"}

// goFrames reports whether a stack is that of a goroutine.
func goFrames(frames []stacks.Frame) bool {
	return len(frames) > 0 && strings.HasSuffix(frames[0].File, ".go")
}

// packageOf splits a function's name: "a.b/c.(*T).F" is F of the package a.b/c.
func packageOf(function string) (pkg, short string) {
	slash := strings.LastIndexByte(function, '/') + 1
	dot := strings.IndexByte(function[slash:], '.')
	if dot < 0 {
		return function, function
	}
	pkg = function[:slash+dot]
	for part := range strings.SplitSeq(function[slash+dot+1:], ".") {
		if short == "" || !strings.HasPrefix(part, "func") { // func1 is a function inside of another
			short = strings.Trim(part, "(*)")
		}
	}
	return pkg, short
}

// ofCohort reports whether a package belongs to the library.
func ofCohort(pkg string) bool {
	rest, found := strings.CutPrefix(pkg, module)
	return found && (rest == "" || rest[0] == '/') &&
		!slices.ContainsFunc(programs, func(p string) bool { return strings.HasPrefix(rest+"/", p) })
}

// ofGo reports whether a function belongs to the standard library or a module of others.
func ofGo(pkg string, f *stacks.Frame) bool {
	if strings.Contains(f.File, "/pkg/mod/") || strings.Contains(f.File, "@v") {
		return true
	}
	first, _, _ := strings.Cut(pkg, "/")
	if first == "main" || strings.Contains(first, ".") {
		return false
	}
	// The file of a runtime function may be in another package than its name says: time.Sleep is in runtime.
	file := f.File
	if i := strings.LastIndex(file, "/src/"); i >= 0 {
		file = file[i+len("/src/"):]
	}
	first, _, _ = strings.Cut(file, "/")
	return !strings.HasPrefix(file, "/") && !strings.Contains(first, ".")
}

// locateGo finds the innermost function of the program's own code and what it called of cohort.
func locateGo(r Rank) position {
	p := position{peer: -1}
	var call *stacks.Frame
	for i := range r.Main.Frames {
		f := &r.Main.Frames[i]
		pkg, short := packageOf(f.Func)
		if ofCohort(pkg) {
			call = f // the outermost: what the program called
			continue
		}
		if ofGo(pkg, f) {
			continue
		}
		p.own, p.line, p.class = short, line(f), inProgram
		break
	}
	if p.own == "" {
		_, p.own = packageOf(r.Main.Frames[0].Func)
		p.line, p.class = line(&r.Main.Frames[0]), inProgram
	}
	if call == nil {
		return p
	}
	pkg, short := packageOf(call.Func)
	switch p.op = short; {
	case pkg == module+"/group" && (short == "New" || short == "NewGroup" || short == "Split"), pkg == module && short == "Join":
		p.class = inInit
	case pkg == module+"/elastic":
		p.spare = short == "Next"
	case pkg == module+"/group":
		p.class = inCollective
		if e := openOf(r.Dump); e != nil {
			p.op = e.Op
			if e.P2P {
				p.class, p.peer = inMessage, e.Peer
			}
		}
	case pkg == module && short == "RPC":
		p.class, p.op = inRPC, "Join"
	case strings.HasPrefix(pkg, module+"/rpc"):
		p.class = inRPC
		if x, found := openCall(&r, 0); found && meeting(short) == "" {
			p.op = x.what()
			if slices.ContainsFunc(r.Worker.Calls, func(y Call) bool { return y.To != x.To }) {
				p.op += " or another"
			}
		}
	}
	return p
}

// servesGo reports whether a goroutine runs the program's code for another worker.
func servesGo(t *stacks.Thread) bool {
	own := false
	for i := range t.Frames {
		f := &t.Frames[i]
		pkg, _ := packageOf(f.Func)
		if pkg == module+"/internal/rpc/rpcserver" {
			return own
		}
		own = own || !ofCohort(pkg) && !ofGo(pkg, f)
	}
	return false
}

// openOf returns the oldest operation that is not finished.
func openOf(d *torchdump.Dump) *torchdump.Entry {
	if d == nil {
		return nil
	}
	for i := range d.Entries {
		if d.Entries[i].Open {
			return &d.Entries[i]
		}
	}
	return nil
}

// waited returns how long the oldest unfinished operation of these ranks has been going on, as their recorders show, else how
// long one of them has not run; 0: not known.
func (c *analysis) waited(ranks []int) time.Duration {
	var oldest time.Duration
	for _, n := range ranks {
		if r := c.rank(n); r != nil {
			taken, e := cmp.Or(r.Taken, c.job.Taken), openOf(r.Dump)
			if e != nil && e.Created > 0 && !taken.IsZero() {
				oldest = max(oldest, taken.Sub(time.Unix(0, e.Created)))
			}
		}
	}
	for _, n := range ranks {
		if r := c.rank(n); r != nil && !r.Moved && oldest == 0 {
			oldest = r.Idle
		}
	}
	return oldest
}

// ofMain returns a rank of which only the main thread is known.
func ofMain(t *stacks.Thread) Rank { return Rank{Stacks: Stacks{Main: t}} }

// MainGoroutine returns the goroutine that tells most about a process: one of the program's own that waits in cohort,
// else the first.
func MainGoroutine(all []stacks.Thread) *stacks.Thread {
	var best *stacks.Thread
	for i := range all {
		t := &all[i]
		if ownGoroutine(t) {
			continue
		}
		waits := locateGo(ofMain(t)).waits()
		if best == nil || waits && !locateGo(ofMain(best)).waits() || t.ID == 1 && !locateGo(ofMain(best)).waits() {
			best = t
		}
	}
	return best
}

// GoMoved reports whether the program of a Go process did something between two readings. Where its main goroutine waits in cohort only
// that one counts, and not what it does there: it may look for something again and again.
func GoMoved(before, now []stacks.Thread) bool {
	main := MainGoroutine(now)
	if main == nil {
		return false
	}
	if at := locateGo(ofMain(main)); at.waits() {
		i := slices.IndexFunc(before, func(b stacks.Thread) bool { return b.ID == main.ID })
		return i < 0 || locateGo(ofMain(&before[i])) != at
	}
	return slices.ContainsFunc(now, func(t stacks.Thread) bool {
		return ofProgram(&t) && (t.State == "R" || changed(before, &t))
	})
}

// GoIdle returns how long the main goroutine of a program has at least stood still outside of cohort; 0: not known.
func GoIdle(main *stacks.Thread) time.Duration {
	if main == nil || locateGo(ofMain(main)).waits() {
		return 0
	}
	return time.Duration(main.Minutes) * time.Minute
}

// ofProgram reports whether a goroutine was started by the program and runs its code.
func ofProgram(t *stacks.Thread) bool {
	return !ownGoroutine(t) && slices.ContainsFunc(t.Frames, func(f stacks.Frame) bool {
		pkg, _ := packageOf(f.Func)
		return !ofCohort(pkg) && !ofGo(pkg, &f)
	})
}

// ownGoroutine reports whether a goroutine is one of cohort's own: it begins there, or in a function of the standard library that
// cohort has started it with, such as sync.WaitGroup.Go.
func ownGoroutine(t *stacks.Thread) bool {
	for i := range slices.Backward(t.Frames) {
		f := &t.Frames[i]
		pkg, _ := packageOf(f.Func)
		if ofCohort(pkg) {
			return true
		}
		if !ofGo(pkg, f) {
			return false
		}
	}
	return false
}
