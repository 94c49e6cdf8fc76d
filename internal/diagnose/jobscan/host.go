// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/cgroup"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// limits is what cgroups report of the ranks at a moment.
type limits struct {
	at        time.Time
	memory    map[string]cgroup.Memory // by folder
	throttled map[string]time.Duration
	ranks     map[string][]int
}

// throttledAt reads how long the ranks were throttled.
func throttledAt(root string, ranks []Rank) limits {
	l := limits{time.Now(), map[string]cgroup.Memory{}, map[string]time.Duration{}, map[string][]int{}}
	for _, members := range byCgroup(root, ranks) {
		if t := cgroup.ThrottledOf(root, members[0].PID); t.Dir != "" {
			l.throttled[t.Dir] = t.Time
			l.add(t.Dir, members)
		}
	}
	return l
}

// limitsOf reads their memory, too.
func limitsOf(root string, ranks []Rank) limits {
	l := throttledAt(root, ranks)
	for _, members := range byCgroup(root, ranks) {
		if m := cgroup.MemoryOf(root, members[0].PID); m.Dir != "" {
			l.memory[m.Dir] = m
			l.add(m.Dir, members)
		}
	}
	return l
}

func (l limits) add(dir string, members []Rank) {
	for _, r := range members {
		if !slices.Contains(l.ranks[dir], r.Rank) {
			l.ranks[dir] = append(l.ranks[dir], r.Rank)
		}
	}
}

// byCgroup returns the ranks by their cgroups, which are most often the same: each is read once.
func byCgroup(root string, ranks []Rank) map[string][]Rank {
	all := map[string][]Rank{}
	for _, r := range ranks {
		of := cgroup.Of(root, r.PID)
		all[of] = append(all[of], r)
	}
	return all
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
			notes = append(notes,
				fmt.Sprintf(
					"the cgroup of %s has reached its CPU limit: its processes were throttled for %s within %s, summed over all CPUs",
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
