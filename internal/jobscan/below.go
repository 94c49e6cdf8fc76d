// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/pystack"
	"github.com/cohort-dist/cohort/internal/verdict"
)

const (
	// maxChildren bounds the processes below a rank that are looked at, and maxBelow how far below.
	maxChildren, maxBelow = 32, 3
	// maxSource bounds what is read of a source file, maxCall the lines of a call, and maxLine what is told of them.
	maxSource, maxCall, maxLine = 4 << 20, 16, 160
)

// sourceLine returns the line of the program that a thread has come to, and the rest of the call that it begins; "" if it cannot be read.
func sourceLine(pid int, t *pystack.Thread) string {
	for _, f := range t.Frames {
		if pystack.Library(f.File) || f.Line <= 0 {
			continue
		}
		dir := "root"
		if !filepath.IsAbs(f.File) {
			dir = "cwd"
		}
		own := filepath.Join("/proc", strconv.Itoa(pid), dir, f.File)
		return lineOf(own, f.Line)
	}
	return ""
}

func lineOf(name string, number int) string {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(name) //nolint:gosec // a file that the process runs
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(io.LimitReader(f, maxSource))
	for n := 1; sc.Scan(); n++ {
		if n == number {
			return call(sc)
		}
	}
	return ""
}

// call returns the line that was read, and those after it that belong to the same call.
func call(sc *bufio.Scanner) string {
	line, open := code(sc.Text())
	text := line
	for n := 1; open > 0 && n < maxCall && sc.Scan(); n++ {
		more, opens := code(sc.Text())
		text, open = strings.TrimSpace(text+" "+more), open+opens
	}
	if open > 0 {
		text = line // no end in sight
	}
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + "..."
	}
	return text
}

// code returns a line of Python without its comment, and how many brackets it opens and does not close.
func code(line string) (text string, open int) {
	quote := rune(0)
	for i, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '"' || r == '\'':
			quote = r
		case r == '#':
			return strings.TrimSpace(line[:i]), open
		case strings.ContainsRune("([{", r):
			open++
		case strings.ContainsRune(")]}", r):
			open--
		}
	}
	return strings.TrimSpace(line), open
}

// waitsBelow reports whether a thread waits for a process below its own: it is in a library that starts some.
func waitsBelow(t *pystack.Thread) bool {
	for _, f := range t.Frames {
		if !pystack.Library(f.File) {
			break
		}
		if strings.Contains(f.File, "/multiprocessing/") || strings.Contains(f.File, "/concurrent/futures/") ||
			strings.Contains(f.File, "/torch/utils/data/") || strings.HasSuffix(f.File, "/subprocess.py") {
			return true
		}
	}
	return t.Kernel == "do_wait"
}

// below looks at the processes below a rank: those that run code of the program, and other programs.
func below(ctx context.Context, reader *pystack.Reader, pid int) []verdict.Child {
	var all []verdict.Child
	level := []int{pid}
	for depth := 0; depth < maxBelow && len(level) > 0; depth++ {
		var next []int
		for _, parent := range level {
			next = append(next, childrenOf(parent)...)
		}
		for _, child := range next {
			if len(all) >= maxChildren || ctx.Err() != nil {
				return all
			}
			if c, ok := childOf(ctx, reader, child); ok {
				all = append(all, c)
			}
		}
		level = next
	}
	return all
}

func childOf(ctx context.Context, reader *pystack.Reader, pid int) (verdict.Child, bool) {
	_, state := stat("/proc", pid)
	if state == "" || state == "Z" {
		return verdict.Child{}, false
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	comm, _ := os.ReadFile(filepath.Join(dir, "comm")) //nolint:gosec // a file of the kernel
	c := verdict.Child{PID: pid, Command: strings.TrimSpace(string(comm)), Stopped: state == "T" || state == "t"}
	p, err := reader.Read(ctx, pid)
	if err != nil {
		return c, c.Command != ""
	}
	main := p.Main()
	if main == nil {
		return c, false
	}
	c.Frames, c.Kernel = ownFrames(main.Frames), main.Kernel
	for _, f := range c.Frames {
		if !pystack.Library(f.File) {
			return c, true
		}
	}
	return c, false // a worker that waits for work, or a helper of multiprocessing
}

// ownFrames cuts off the calls that a forked process has of its parent. None are left of a helper of multiprocessing.
func ownFrames(frames []pystack.Frame) []pystack.Frame {
	for i, f := range frames {
		if strings.HasSuffix(f.File, "/multiprocessing/process.py") && strings.HasSuffix(f.Func, "_bootstrap") {
			return frames[:i]
		}
		if strings.HasSuffix(f.File, "/multiprocessing/resource_tracker.py") || strings.HasSuffix(f.File, "/multiprocessing/forkserver.py") {
			return nil
		}
	}
	return frames
}
