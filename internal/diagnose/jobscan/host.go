// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/cgroup"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// tracer returns the debugger that a process has been stopped by, or nil.
func tracer(proc string, pid int) *verdict.Holder {
	status, _ := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "status")) //nolint:gosec // a file of the kernel
	for line := range strings.Lines(string(status)) {
		value, found := strings.CutPrefix(line, "TracerPid:")
		by, err := strconv.Atoi(strings.TrimSpace(value))
		if !found || err != nil || by == 0 {
			continue
		}
		comm, _ := os.ReadFile(filepath.Join(proc, strconv.Itoa(by), "comm")) //nolint:gosec // a file of the kernel
		return &verdict.Holder{PID: by, Command: strings.TrimSpace(string(comm)), Rank: -1}
	}
	return nil
}

// ticks is how many the kernel counts in a second where it tells times of processes.
const ticks = 100

// startOf returns when a process was started, since the machine was; false if it is not there.
func startOf(pid int) (time.Duration, bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")) // a file of the kernel
	if err != nil {
		return 0, false
	}
	const start = 19 // of the fields after the name
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) <= start {
		return 0, false
	}
	n, err := strconv.ParseInt(string(f[start]), 10, 64)
	return time.Duration(n) * time.Second / ticks, err == nil
}

// gpuErrors returns what the kernel's log tells of GPUs since the first rank was started.
func gpuErrors(log, host string, ranks []verdict.Rank) (all []verdict.GPUError) {
	begun, known := time.Duration(0), false
	for _, r := range ranks {
		if start, ok := startOf(r.PID); ok && (!known || start < begun) {
			begun, known = start, true
		}
	}
	now := sinceBoot()
	if !known || now == 0 {
		return nil
	}
	for _, x := range Xids(ReadKernelLog(log)) {
		if x.At < begun {
			continue
		}
		e := verdict.GPUError{Host: host, Device: x.Device, Number: x.Number, Rank: -1, Age: max(0, now-x.At)}
		e.Words, e.Fatal = x.Words()
		if !e.Fatal {
			e.Words = x.Text
		}
		for _, r := range ranks {
			if x.PID != 0 && r.PID == x.PID {
				e.Rank = r.Rank
			}
		}
		all = append(all, e)
	}
	return all
}

// limits is what cgroups tell of the ranks at a moment.
type limits struct {
	at        time.Time
	memory    map[string]cgroup.Memory // by folder
	throttled map[string]time.Duration
	ranks     map[string][]int
}

func limitsOf(root string, ranks []Rank) limits {
	l := limits{time.Now(), map[string]cgroup.Memory{}, map[string]time.Duration{}, map[string][]int{}}
	for _, r := range ranks {
		if m := cgroup.MemoryOf(root, r.PID); m.Dir != "" {
			l.memory[m.Dir] = m
			l.ranks[m.Dir] = append(l.ranks[m.Dir], r.Rank)
		}
		if t := cgroup.ThrottledOf(root, r.PID); t.Dir != "" {
			l.throttled[t.Dir] = t.Time
			if !slices.Contains(l.ranks[t.Dir], r.Rank) {
				l.ranks[t.Dir] = append(l.ranks[t.Dir], r.Rank)
			}
		}
	}
	return l
}

// since says what a cgroup keeps from its processes now: memory that is nearly used up, processes that were killed for it, processor time.
func (l limits) since(before limits) []string {
	var notes []string
	for dir, m := range l.memory {
		who := "the cgroup of " + ranklist.Named(l.ranks[dir])
		if m.Limit > 0 && m.Used > m.Limit/100*95 {
			notes = append(notes, fmt.Sprintf("%s uses %d MiB of its memory limit of %d MiB", who, m.Used>>20, m.Limit>>20))
		}
		if m.Kills > 0 {
			processes := "processes"
			if m.Kills == 1 {
				processes = "process"
			}
			notes = append(notes, fmt.Sprintf("the kernel has killed %d %s of %s because it was out of memory", m.Kills, processes, who))
		}
	}
	passed := l.at.Sub(before.at)
	for dir, now := range l.throttled {
		then, known := before.throttled[dir]
		if held := now - then; known && passed > 0 && held > passed/5 {
			notes = append(notes, fmt.Sprintf("the cgroup of %s has reached its CPU limit: its processes were throttled for %s within %s, summed over all CPUs",
				ranklist.Named(l.ranks[dir]), held.Round(time.Millisecond), passed.Round(time.Millisecond)))
		}
	}
	slices.Sort(notes)
	return notes
}

// onHost returns the addresses of this host that stand behind one that a socket listens on.
func onHost(addr netip.AddrPort) []netip.AddrPort {
	if !addr.Addr().IsUnspecified() {
		return []netip.AddrPort{addr}
	}
	const most = 16
	var all []netip.AddrPort
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs[:min(len(addrs), most)] {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && (p.Addr().Unmap().Is4() || !addr.Addr().Is4()) { // 0.0.0.0 is all of IPv4, :: most often all
			all = append(all, netip.AddrPortFrom(p.Addr().Unmap(), addr.Port()))
		}
	}
	return all
}
