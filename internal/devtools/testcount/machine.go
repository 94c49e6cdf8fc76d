// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// machine watches how well the machine runs while the tests do. Tests that fail on a machine that stands still now and then are read
// differently from tests that fail on a good one.
type machine struct {
	stolen, total uint64 // ticks, when it began
	ticks         func() (stolen, total uint64)
	longest       chan time.Duration
	stop          chan struct{}
}

func watchMachine() *machine { return watch(lateness, processorTicks) }

// watch calls late until it says that stop is closed.
func watch(late func(stop <-chan struct{}) (by time.Duration, ok bool), ticks func() (stolen, total uint64)) *machine {
	m := &machine{ticks: ticks, longest: make(chan time.Duration, 1), stop: make(chan struct{})}
	m.stolen, m.total = ticks()
	go func() {
		longest := time.Duration(0)
		for {
			by, ok := late(m.stop)
			if !ok {
				m.longest <- longest
				return
			}
			longest = max(longest, by)
		}
	}()
	return m
}

// lateness sleeps for a moment and returns by how much it was woken late, or that it was stopped.
func lateness(stop <-chan struct{}) (by time.Duration, ok bool) {
	const nap = 20 * time.Millisecond
	began := time.Now()
	select {
	case <-stop:
		return 0, false
	case <-time.After(nap):
		return time.Since(began) - nap, true
	}
}

// end says how the machine ran.
func (m *machine) end() string {
	close(m.stop)
	text := fmt.Sprintf("a thread that slept was woken at most %v late", (<-m.longest).Round(time.Millisecond))
	stolen, total := m.ticks()
	if total > m.total && stolen >= m.stolen && stolen-m.stolen <= total-m.total { // the kernel's counters go backwards at times
		text += fmt.Sprintf("; the host took %d%% of the processors' time", 100*(stolen-m.stolen)/(total-m.total))
	}
	return text
}

// processorTicks returns how much of the time of all processors the host of this virtual machine has taken, and all of it. Both are 0
// where the kernel does not tell.
func processorTicks() (stolen, total uint64) {
	stat, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(stat), "\n")
	const (
		first = 1 // after "cpu"
		steal = first + 7
	)
	for i, field := range strings.Fields(line) {
		n, _ := strconv.ParseUint(field, 10, 64)
		if i >= first && i <= steal { // what follows is part of the others
			total += n
		}
		if i == steal {
			stolen = n
		}
	}
	return stolen, total
}
