// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package failpointtest

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// inBubble returns the stacks of the goroutines of a bubble, but for the one that asks.
func inBubble() string {
	var left []string
	for i, g := range strings.Split(string(stack()), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		if i > 0 && strings.Contains(head, "synctest bubble") && !strings.Contains(head, "synctest.Run") &&
			!strings.Contains(g, "testingSynctestTest(") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

// used is what a process holds at a moment.
type used struct {
	goroutines map[string]bool // by number
	files      []string        // what the descriptors refer to
	segments   []string
}

func resources() used {
	u := used{goroutines: map[string]bool{}, files: openFiles(), segments: sharedSegments()}
	for g := range strings.SplitSeq(string(stack()), "\n\n") {
		u.goroutines[number(g)] = true
	}
	return u
}

// startPoller has the runtime open the descriptors of its poller, which it does once and keeps.
func startPoller() {
	if r, w, err := os.Pipe(); err == nil {
		_ = r.Close()
		_ = w.Close()
	}
}

// number is "goroutine 17" of a stack.
func number(stack string) string {
	head, _, _ := strings.Cut(stack, " [")
	return head
}

// settleTime is how long goroutines and descriptors may take to go after everything was closed.
const settleTime = 10 * time.Second

// compare fails the run if more is held than before.
func (u used) compare(r *Run) {
	deadline := time.Now().Add(settleTime)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		goroutines := u.newGoroutines()
		files, segments := openFiles(), sharedSegments()
		if goroutines == "" && len(files) <= len(u.files) && len(segments) <= len(u.segments) {
			return
		}
		if time.Now().After(deadline) {
			if goroutines != "" {
				r.Errorf("goroutines are left:\n%s", goroutines)
			}
			if len(files) > len(u.files) {
				r.Errorf("descriptors are left: %d, before %d: %v", len(files), len(u.files), files)
			}
			if len(segments) > len(u.segments) {
				r.Errorf("shared segments are left: %v", segments)
			}
			return
		}
		time.Sleep(pause) //nolint:forbidigo // polls
	}
}

func (u used) newGoroutines() string {
	var left []string
	for i, g := range strings.Split(string(stack()), "\n\n") {
		if i > 0 && !u.goroutines[number(g)] && !strings.Contains(g, "os/signal.") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

func openFiles() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			names = append(names, name)
		}
	}
	return names
}

func sharedSegments() []string {
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if strings.Contains(e.Name(), "cohort") {
			names = append(names, e.Name())
		}
	}
	return names
}

// memoryCheck compares the heap at the end of all seeds with that after the first of them.
type memoryCheck struct{ base uint64 }

func (m *memoryCheck) look(t *testing.T, done, all uint64) {
	t.Helper()
	const warm, allowed = 20, 16 << 20
	if all < 2*warm || done != warm && done != all-1 {
		return
	}
	runtime.GC()
	runtime.GC() // pools give back what they hold in two steps
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	if done == warm {
		m.base = stats.HeapAlloc
	} else if stats.HeapAlloc > m.base+allowed {
		t.Errorf("the heap has grown from %d to %d bytes in %d seeds", m.base, stats.HeapAlloc, all)
	}
}
