// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

// maxChildren bounds the processes below a rank that are looked at, and maxBelow how far below.
const maxChildren, maxBelow = 32, 3

// waitsBelow reports whether a thread waits for a process below its own: it is in a library that starts some.
func waitsBelow(t *stacks.Thread) bool {
	for _, f := range t.Frames {
		if !stacks.Library(f.File) {
			break
		}
		if strings.Contains(f.File, "/multiprocessing/") || strings.Contains(f.File, "/concurrent/futures/") ||
			strings.Contains(f.File, "/torch/utils/data/") || strings.HasSuffix(f.File, "/subprocess.py") {
			return true
		}
	}
	return t.Kernel == "do_wait"
}

// below looks at the processes below a rank: it returns those that run code of the program, and other programs, and whether the
// rank has a multiprocessing.Pool and all of them wait for a task of it.
func below(ctx context.Context, reader *stacks.Reader, pid int) (all []verdict.Child, poolIdle bool) {
	workers, busy := 0, 0
	level := []int{pid}
	for depth := 0; depth < maxBelow && len(level) > 0; depth++ {
		var next []int
		for _, parent := range level {
			next = append(next, childrenOf(parent)...)
		}
		for _, child := range next {
			if len(all) >= maxChildren || ctx.Err() != nil {
				return all, false
			}
			switch c, does := childOf(ctx, reader, child); does {
			case works:
				all = append(all, c)
			case waitsForTask:
				workers++
			case unclear:
				busy++
			case helps:
			}
		}
		level = next
	}
	return all, workers > 0 && busy == 0 && len(all) == 0
}

// duty is what a process below a rank is there for.
type duty int

const (
	unclear      duty = iota // it runs the code of libraries alone
	works                    // it runs code of the program, or is another program
	waitsForTask             // of a multiprocessing.Pool
	helps                    // multiprocessing itself, or has ended
)

func childOf(ctx context.Context, reader *stacks.Reader, pid int) (verdict.Child, duty) {
	_, state := stat("/proc", pid)
	if state == "" || state == "Z" {
		return verdict.Child{}, helps
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	comm, _ := os.ReadFile(filepath.Join(dir, "comm")) //nolint:gosec // a file of the kernel
	c := verdict.Child{PID: pid, Command: strings.TrimSpace(string(comm)), Stopped: state == "T" || state == "t"}
	p, err := reader.Read(ctx, pid)
	if err != nil && c.Command != "" {
		return c, works
	}
	if err != nil || p.Main() == nil || len(p.Main().Frames) == 0 {
		return c, unclear
	}
	main := p.Main()
	c.Frames, c.Kernel = ownFrames(main.Frames), main.Kernel
	c.Imports = importsProgram(c.Frames)
	switch {
	case slices.ContainsFunc(c.Frames, func(f stacks.Frame) bool { return !stacks.Library(f.File) }):
		return c, works
	case len(c.Frames) == 0:
		return c, helps
	case main.State != "R" && getsTask(c.Frames):
		return c, waitsForTask
	}
	return c, unclear
}

// getsTask reports whether a process of a multiprocessing.Pool waits for its next task: it is in the queue that its worker reads.
func getsTask(frames []stacks.Frame) bool {
	for i, f := range frames {
		if !strings.Contains(f.File, "/multiprocessing/") {
			return false
		}
		if f.Func == "worker" && strings.HasSuffix(f.File, "/multiprocessing/pool.py") {
			return i > 0 && strings.HasSuffix(frames[i-1].Func, "Queue.get") &&
				strings.HasSuffix(frames[i-1].File, "/multiprocessing/queues.py")
		}
	}
	return false
}

// ownFrames cuts off the calls that a forked process has of its parent. None are left of a helper of multiprocessing.
func ownFrames(frames []stacks.Frame) []stacks.Frame {
	for i, f := range frames {
		if strings.HasSuffix(f.File, "/multiprocessing/process.py") && strings.HasSuffix(f.Func, "_bootstrap") {
			return frames[:i]
		}
		if strings.HasSuffix(f.File, "/multiprocessing/resource_tracker.py") ||
			strings.HasSuffix(f.File, "/multiprocessing/forkserver.py") {
			if importsProgram(frames[:i]) {
				return frames[:i]
			}
			return nil
		}
	}
	return frames
}

// importsProgram reports whether a process runs the file of the program anew to get at what is defined there: so do
// those of the start methods spawn and forkserver, and the server of the latter itself.
func importsProgram(frames []stacks.Frame) bool {
	return slices.ContainsFunc(frames, func(f stacks.Frame) bool {
		return strings.HasSuffix(f.File, "/multiprocessing/spawn.py") &&
			(f.Func == "import_main_path" || strings.HasPrefix(f.Func, "_fixup_main_from_"))
	})
}

// maxWrappers bounds the programs between a rank's first process and its Python.
const maxWrappers = 4

// readBelow reads a process, or the only child of one that is not Python: a shell, or a program such as timeout, that has
// started it.
func readBelow(ctx context.Context, reader *stacks.Reader, pid int) (*stacks.Process, error) {
	p, err := reader.Read(ctx, pid)
	for below, n := pid, 0; errors.Is(err, stacks.ErrNotPython) && n < maxWrappers; n++ {
		children := childrenOf(below)
		if len(children) != 1 {
			return nil, err
		}
		below = children[0]
		q, failed := reader.Read(ctx, below)
		if failed == nil || !errors.Is(failed, stacks.ErrNotPython) {
			return q, failed
		}
	}
	return p, err
}

// childrenOf lists the children of a process.
func childrenOf(pid int) []int {
	folder := filepath.Join("/proc", strconv.Itoa(pid), "task")
	dir, err := os.Open(folder) //nolint:gosec // a folder of the kernel
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	threads, _ := dir.Readdirnames(-1)
	var all []int
	for _, thread := range threads {
		b, err := os.ReadFile(filepath.Join(folder, thread, "children")) //nolint:gosec // a file of the kernel
		if err != nil {
			continue
		}
		for child := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}

// deadChild reports whether a child of the process has ended and was not waited for.
func deadChild(pid int) bool {
	return slices.ContainsFunc(childrenOf(pid), func(child int) bool {
		_, state := stat("/proc", child)
		return state == "Z"
	})
}
