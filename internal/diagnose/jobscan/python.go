// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

// This file reads the Python stacks of ranks, and the lines of the program that they are in.

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

func same(a, b *stacks.Thread) bool {
	return a != nil && b != nil && reflect.DeepEqual(a.Frames, b.Frames)
}

// loops reports whether a main thread goes round in a function of the program, where it sleeps and asks a store.
func loops(ctx context.Context, r Rank, first *stacks.Process, now *stacks.Thread) bool {
	if first == nil || first.Main() == nil {
		return false
	}
	return verdict.Loops(first.Main(), now, sourceLine(ctx, r, first.Main()))
}

type reading struct {
	process *stacks.Process
	trouble string
}

func readAll(ctx context.Context, reader *stacks.Reader, ranks []Rank) []reading {
	all := make([]reading, len(ranks))
	var wg sync.WaitGroup
	for i, r := range ranks {
		wg.Go(func() {
			p, err := readBelow(ctx, reader, r.PID)
			all[i].process = p
			switch {
			case errors.Is(err, stacks.ErrNoInterpreter):
				_, state := stat("/proc", r.PID)
				all[i].process = &stacks.Process{PID: r.PID, Threads: []stacks.Thread{{ID: r.PID, State: state}}}
			case errors.Is(err, stacks.ErrForbidden):
				all[i].trouble = forbidden("/proc", r.PID, os.Geteuid())
			case err != nil:
				all[i].trouble = strings.TrimPrefix(err.Error(), "stacks: ")
			}
		})
	}
	wg.Wait()
	return all
}

// maxSource bounds what is read of a source file, maxCall the lines of a call, and maxLine what is told of them.
const maxSource, maxCall, maxLine = 4 << 20, 16, 160

// sourceLine returns the line of the program that a thread has come to, and the rest of the call that it begins; "" if it cannot be read.
func sourceLine(ctx context.Context, r Rank, t *stacks.Thread) string {
	for _, f := range t.Frames {
		if stacks.Library(f.File) || f.Line <= 0 {
			continue
		}
		q := question{What: askLine, Path: f.File, Below: "root", Line: f.Line}
		if !filepath.IsAbs(f.File) {
			q.Below = "cwd"
		}
		return r.ask(ctx, q).Said
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
