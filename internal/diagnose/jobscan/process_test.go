// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestHeadless: a process that has lost its main thread goes on if another thread does, not if all others are about to end.
func TestHeadless(t *testing.T) {
	t.Parallel()
	type thread struct {
		flags   uint64
		pending uint64 // signals of the thread, and of its process
		shared  uint64
	}
	const plain = 0x400040
	runs, exits := thread{flags: plain}, thread{flags: plain | 0x4}
	for name, c := range map[string]struct {
		others []thread
		want   bool
	}{
		"no other thread":                   {},
		"one that goes on":                  {[]thread{runs}, true},
		"one that frees memory":             {[]thread{exits}, false},
		"one that was killed":               {[]thread{{flags: plain, pending: 0x100}}, false},
		"one whose process was killed":      {[]thread{{flags: plain, shared: 0x100}}, false},
		"one that was sent another signal":  {[]thread{{flags: plain, pending: 0x200, shared: 0x4000}}, true},
		"one that exits and one that runs":  {[]thread{exits, runs}, true},
		"one that exits, and one is killed": {[]thread{exits, {flags: plain, pending: 0x100}}, false},
	} {
		proc := t.TempDir()
		for i, o := range append([]thread{{flags: plain}}, c.others...) {
			dir := filepath.Join(proc, "7", "task", strconv.Itoa(7+i))
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{
				"stat":   fmt.Sprintf("%d (a ) name) D 1 7 7 0 -1 %d 0 0\n", 7+i, o.flags),
				"status": fmt.Sprintf("Name:\ta\nSigPnd:\t%016x\nShdPnd:\t%016x\nSigBlk:\t0000000000000100\n", o.pending, o.shared),
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := headless(proc, 7); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if headless(t.TempDir(), 7) {
		t.Error("a process that is gone goes on")
	}
}

// TestLineOf: a call that goes over several lines is told as a whole, without its comments.
func TestLineOf(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "train.py")
	text := `x = 1  # one
dist.all_reduce(
    x,  # the sum (of all
    group=f(a, "b)"),
)
y = 2
print("a ( in a text")
z = (  # never closed
` + strings.Repeat("1 +\n", 40)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[int]string{
		1: "x = 1", 2: `dist.all_reduce( x, group=f(a, "b)"), )`, 4: `group=f(a, "b)"),`, 6: "y = 2", 7: `print("a ( in a text")`,
		8: "z = (", 99: "",
	} {
		if got := lineOf(name, line); got != want {
			t.Errorf("line %d: %q, want %q", line, got, want)
		}
	}
}
