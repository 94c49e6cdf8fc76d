// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// The rules of this file judge by the state of one process, whatever the other ranks do.

// stopped: a rank was stopped by a signal or a debugger.
func (c *analysis) stopped() (Verdict, bool) {
	stopped := c.ranks(func(r Rank, _ position) bool { return r.State == "T" || r.State == "t" })
	if len(stopped) == 0 {
		return Verdict{}, false
	}
	if r := c.rank(stopped[0]); r.Tracer != nil { // whom a signal does not move
		return Verdict{
			Culprits: stopped,
			Sentence: fmt.Sprintf("%s stopped by a debugger (process %d, %s) and continues when the debugger resumes it%s.",
				is(stopped), r.Tracer.PID, r.Tracer.Command, c.others(stopped...)),
		}, true
	}
	return Verdict{
		Culprits: stopped,
		Sentence: fmt.Sprintf("%s stopped (SIGSTOP or a debugger, process %d); kill -CONT resumes it%s.", is(stopped),
			c.rank(stopped[0]).PID, c.others(stopped...)),
	}, true
}

// frozen: a rank is in a cgroup that was frozen. Its threads stand wherever they were.
func (c *analysis) frozen() (Verdict, bool) {
	frozen := c.ranks(func(r Rank, _ position) bool { return r.Frozen })
	if len(frozen) == 0 {
		return Verdict{}, false
	}
	return Verdict{
		Culprits: frozen,
		Sentence: fmt.Sprintf(
			"%s frozen with the cgroup of process %d (docker pause, or a scheduler that suspends jobs)%s: thaw the cgroup (docker "+
				"unpause)%s.",
			is(frozen), c.rank(frozen[0]).PID, since(c.rank(frozen[0]).Idle), c.others(frozen...)),
	}, true
}

// atOnce is what a thread that waits for a disk needs for one read or write, and less than what one takes that never ends.
const atOnce = time.Second

// kernel: a rank is in the kernel's hands. One that ran a moment ago only reads or writes much.
func (c *analysis) kernel() (Verdict, bool) {
	for _, r := range c.job.Ranks {
		if r.Gone != "" || r.Main == nil || r.Main.State != "D" || r.Moved || r.Idle > 0 && r.Idle < atOnce {
			continue
		}
		p := c.at[r.Rank]
		what := "is stuck in the kernel"
		if r.Main.Kernel != "" {
			what += " (" + r.Main.Kernel + ")"
		}
		if how := kernelWait(r.Main, r.Object); how != "" {
			what += ", " + how + ","
		}
		if p.saves {
			what = "writes a checkpoint and is stuck in the file system"
		}
		return Verdict{
			Culprits: []int{r.Rank},
			Sentence: fmt.Sprintf("Rank %d %s at %s%s%s.", r.Rank, what, p.place(), since(r.Idle), c.others(r.Rank)),
		}, true
	}
	return Verdict{}, false
}

// lock: a rank holds its interpreter lock inside a call of C.
func (c *analysis) lock() (Verdict, bool) {
	for _, r := range c.job.Ranks {
		if r.Gone != "" || len(r.Threads) < 1 {
			continue
		}
		for _, t := range r.Threads {
			if !t.HoldsGIL || t.State == "R" || t.Moving || r.Moved || len(t.Frames) == 0 {
				continue
			}
			p := locateFrames(t.Frames)
			if p.waits() {
				continue // PyTorch 1.13 keeps the lock while its store waits for other ranks
			}
			who := fmt.Sprintf("Rank %d", r.Rank)
			if r.Main != nil && t.ID != r.Main.ID {
				who += "'s thread " + strconv.Itoa(t.ID)
			}
			doing := ""
			if how := kernelWait(&t, ""); how != "" {
				doing = ", " + how
			}
			return Verdict{
				Culprits: []int{r.Rank},
				Sentence: fmt.Sprintf(
					"%s holds the interpreter lock (GIL) in a C call at %s%s; its other Python threads cannot run%s.", who,
					p.place(), doing, c.others(r.Rank)),
			}, true
		}
	}
	return Verdict{}, false
}

// dialing: ranks that set up a group get no answer to their connections.
func (c *analysis) dialing() (Verdict, bool) {
	return c.unanswered(1, func(p position) bool { return p.class == inInit || p.class == inNewGroup })
}

// dialingLater: ranks that wait for others get no answer from an address. One alone may have a thread that reports somewhere, unless
// another rank listens there.
func (c *analysis) dialingLater() (Verdict, bool) { return c.unanswered(2, position.waits) }

func (c *analysis) unanswered(least int, where func(position) bool) (Verdict, bool) {
	by := map[string][]int{}
	for _, n := range c.ranks(func(r Rank, p position) bool { return len(r.Dials) > 0 && where(p) }) {
		for _, addr := range c.rank(n).Dials {
			by[addr] = append(by[addr], n)
		}
	}
	addr := ""
	for _, other := range slices.Sorted(maps.Keys(by)) {
		if len(by[other]) > len(by[addr]) {
			addr = other
		}
	}
	here := by[addr]
	v := Verdict{}
	what, perhaps := addr, "no host has this address, or the host is overloaded"
	if sameAddress(addr, c.job.Store) {
		what = "the store at " + addr
	}
	listens := func(r Rank) bool {
		elsewhere := func(n int) bool { return c.rank(n).Host != r.Host }
		return slices.Contains(r.Listens, addr) && !slices.Contains(here, r.Rank) &&
			(!ofHost(addr) || !slices.ContainsFunc(here, elsewhere))
	}
	i := slices.IndexFunc(c.job.Ranks, listens)
	if len(here) == 0 || len(here) < least && i < 0 {
		return Verdict{}, false
	}
	if i >= 0 {
		rank := c.job.Ranks[i].Rank
		v.Culprits = []int{rank}
		what, perhaps = fmt.Sprintf("%s, where rank %d listens", what, rank), fmt.Sprintf("rank %d does not accept connections", rank)
	}
	v.Sentence = fmt.Sprintf("%s %s no answer from %s, in %s%s: a firewall is between them, or %s%s.",
		name(here), verb(here, "get"), what, c.at[here[0]].where(), since(c.waited(here)), perhaps, c.others(here...))
	return v, true
}

// bridges are where container engines and virtual machines put the bridges of a host, with the same addresses on each.
var bridges = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16")}

// ofHost reports whether an address may be another one on each host: then it says nothing of who listens there on another host.
func ofHost(addr string) bool {
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return false
	}
	ip := a.Addr().Unmap()
	return ip.IsLoopback() || ip.IsLinkLocalUnicast() || slices.ContainsFunc(bridges, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// Holder is a process that holds a file lock.
type Holder struct {
	PID int
	// Command is the name of its program, and Rank the rank that it is or was started by, -1 if it is of no rank.
	Command string
	Rank    int
}

// WaitsForFileLock reports whether a thread waits for a file lock.
func WaitsForFileLock(t *stacks.Thread) bool { return kernelWait(t, "") == fileLock }

// held says of a rank that waits for a file lock who holds it.
func (c *analysis) held(r *Rank) {
	p, h := c.at[r.Rank], r.Holder
	if h == nil || p.how == "" {
		return
	}
	who := fmt.Sprintf("process %d (%s)", h.PID, h.Command)
	if i := slices.IndexFunc(c.job.Ranks, func(other Rank) bool { return other.Rank == h.Rank }); i >= 0 {
		switch owner := c.job.Ranks[i]; {
		case owner.PID != h.PID:
			who += fmt.Sprintf(" below rank %d", h.Rank)
		case h.Rank == r.Rank:
			who = "it itself" // by another open file
		default:
			who = fmt.Sprintf("rank %d", h.Rank)
		}
	}
	p.how += ", held by " + who + ","
	c.at[r.Rank] = p
}

// Activity is what a rank does, in a word that programs know, and where.
type Activity struct {
	Rank int
	// Doing is "compute", "collective", "p2p", "store", "rpc", "io", "sleep", "gpu_wait" or "stopped"; "" if it is not known.
	Doing string
	// Where is the call of the program: "load_batch (train.py:12)".
	Where string
}

// activities says what each rank does whose stack could be read.
func (c *analysis) activities() []Activity {
	var all []Activity
	for _, r := range c.job.Ranks {
		if r.Gone != "" {
			continue
		}
		p, a := c.at[r.Rank], Activity{Rank: r.Rank, Doing: activityOf(r, c.at[r.Rank])}
		if p.class != unknown {
			a.Where = p.where()
		}
		if a.Doing != "" || a.Where != "" {
			all = append(all, a)
		}
	}
	return all
}

// activityOf is the word for what a rank does.
func activityOf(r Rank, p position) string {
	switch {
	case r.State == "T" || r.State == "t" || r.Frozen:
		return "stopped"
	case r.polls != nil:
		return "store"
	}
	switch p.class {
	case inInit, inNewGroup:
		return "store"
	case inMessage:
		return "p2p"
	case inCollective, inWork:
		return "collective"
	case inGPU:
		return "gpu_wait"
	case inRPC:
		return "rpc"
	case inProgram:
		return programActivity(r)
	default:
		return ""
	}
}

// programActivity is the word for a rank that is in code of its own.
func programActivity(r Rank) string {
	if r.atWork() {
		return "compute"
	}
	if r.Sleeps {
		return "sleep"
	}
	if r.Main == nil {
		return ""
	}
	switch kernelWait(r.Main, r.Object) {
	case "", "waiting for a child process":
		return ""
	case inSleep:
		return "sleep"
	}
	return "io"
}
