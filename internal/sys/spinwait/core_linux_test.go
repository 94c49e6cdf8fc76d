// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package spinwait

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMembers(t *testing.T) {
	t.Parallel()
	for _, want := range [][]int{nil, {0}, {0, 1, 31, 32, 63, 64, 127, 700, 1023}} {
		var set unix.CPUSet
		for _, core := range want {
			set.Set(core)
		}
		if got := members(&set, nil); !slices.Equal(got, want) {
			t.Errorf("the cores of a set are %v, want %v", got, want)
		}
	}
}

// A thread that may use one core only gets that core, and may use what it could before once it has moved.
func TestAllowedAfterMove(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := allowedCores(nil)
	if len(before) == 0 {
		t.Fatal("no core is allowed")
	}
	for _, core := range before {
		moveTo(core)
		if after := allowedCores(nil); !slices.Equal(after, before) {
			t.Errorf("after a move to core %d it may use %v, before %v", core, after, before)
		}
	}
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	last := before[len(before)-1]
	one.Set(last)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	if got := allowedCores(nil); !slices.Equal(got, []int{last}) || currentCore() != last {
		t.Errorf("pinned to core %d it may use %v and is on %d", last, got, currentCore())
	}
}
