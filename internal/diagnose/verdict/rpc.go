// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// rpc: some ranks are at a meeting of RPC to which others have not come.
func (c *analysis) rpc() (Verdict, bool) {
	for _, op := range []string{"init_rpc", "shutdown"} {
		here := c.ranks(func(_ Rank, p position) bool { return p.class == inRPC && meeting(p.op) == op })
		late := c.ranks(func(r Rank, p position) bool { return r.Main != nil && (p.class != inRPC || meeting(p.op) != op) })
		if len(here) > 0 && len(late) > 0 {
			v := c.doubt(c.late(late, "not called rpc."+c.at[here[0]].op+" ("+c.at[here[0]].line+")", here))
			if op == "shutdown" && !v.Still && slices.ContainsFunc(late, c.brief) {
				v.Still, v.Sentence = true, perhaps+lower(v.Sentence)
			}
			return v, true
		}
	}
	return Verdict{}, false
}

// brief reports whether a Go rank is not known to have stood still for long. Those that serve it are in their shutdown all the time.
func (c *analysis) brief(rank int) bool {
	r := c.rank(rank)
	return goFrames(r.Main.Frames) && r.Idle < soon
}

// serving: somebody waits in RPC, and a function that another rank has called is at work.
func (c *analysis) serving() (Verdict, bool) {
	if len(c.still(inRPC, inWork)) == 0 {
		return Verdict{}, false
	}
	for _, r := range c.job.Ranks {
		if t := working(r); t != nil && r.Gone == "" {
			return c.atWorkFor(r, t), true
		}
	}
	return Verdict{}, false
}

// atWorkFor says that a rank serves another one.
func (c *analysis) atWorkFor(r Rank, t *stacks.Thread) Verdict {
	waiting := slices.DeleteFunc(c.still(inRPC, inWork), func(n int) bool { return n == r.Rank })
	if len(waiting) == 0 {
		waiting = []int{r.Rank}
	}
	return Verdict{Still: true, Culprits: []int{r.Rank}, Sentence: fmt.Sprintf("%srank %d is at work for another worker: its %s is in %s; %s.", perhaps, r.Rank, threadOf(t), locateThread(t).where(), c.waitIn(waiting))}
}

// meeting returns the meeting of all workers that a function of Python or Go is, "" for another one.
func meeting(op string) string {
	switch op {
	case "init_rpc", "Join":
		return "init_rpc"
	case "shutdown", "Shutdown":
		return "shutdown"
	}
	return ""
}

// handlers: a function that another rank has called stands still, and somebody waits in RPC.
func (c *analysis) handlers() (Verdict, bool) {
	here := c.ranks(func(r Rank, p position) bool { return !r.Moved && (p.class == inRPC || p.class == inWork) })
	if len(here) == 0 {
		return Verdict{}, false
	}
	ranks := slices.Clone(c.job.Ranks)
	slices.SortStableFunc(ranks, func(a, b Rank) int { return calls(handler(a)) - calls(handler(b)) }) // one that waits for another handler explains less
	for _, r := range ranks {
		if t := handler(r); t != nil && r.Gone == "" {
			if calls(t) > 0 {
				return c.doubt(c.callers(here, locateThread(t))), true
			}
			if waiting := slices.DeleteFunc(slices.Clone(here), func(n int) bool { return n == r.Rank }); len(waiting) > 0 {
				here = waiting
			}
			return c.doubt(Verdict{
				Culprits: []int{r.Rank},
				Sentence: fmt.Sprintf("Rank %d runs a function that was called by RPC and does not return: its %s is in %s; %s%s.", r.Rank, threadOf(t), doingOf(t), c.waitIn(here), since(c.waited(here))),
			}), true
		}
	}
	return Verdict{}, false
}

// callers: all functions that were called by RPC wait for such calls themselves.
func (c *analysis) callers(here []int, p position) Verdict {
	ranks := c.ranks(func(r Rank, _ position) bool { return handler(r) != nil })
	if waiting := slices.DeleteFunc(slices.Clone(here), func(n int) bool { return slices.Contains(ranks, n) }); len(waiting) > 0 {
		here = waiting
	}
	return Verdict{Culprits: ranks, Sentence: fmt.Sprintf("%s %s functions that were called by RPC and themselves wait for RPC calls, in %s: perhaps a deadlock, with no thread left to serve a call (num_worker_threads); %s%s.",
		name(ranks), verb(ranks, "run"), p.where(), c.waitIn(here), since(c.waited(here)))}
}

// calls is 1 for a thread that itself waits for a call by RPC.
func calls(t *stacks.Thread) int {
	if t != nil && locateThread(t).class == inRPC {
		return 1
	}
	return 0
}

// handler finds a thread of a rank that runs the program's code for another rank and stands still, rather one that does not itself
// wait for a call.
func handler(r Rank) *stacks.Thread {
	var found *stacks.Thread
	for _, t := range serving(r) {
		if !runs(t) && (found == nil || calls(t) < calls(found)) {
			found = t
		}
	}
	return found
}

// working finds a thread of a rank that runs the program's code for another rank and gets on with it.
func working(r Rank) *stacks.Thread {
	if i := slices.IndexFunc(serving(r), runs); i >= 0 {
		return serving(r)[i]
	}
	return nil
}

func runs(t *stacks.Thread) bool { return t.Moving || t.State == "R" }

// serving returns the threads of a rank that run the program's code for others.
func serving(r Rank) []*stacks.Thread {
	var all []*stacks.Thread
	for i := range r.Threads {
		if t := &r.Threads[i]; r.Main != nil && t.ID != r.Main.ID && serves(t) {
			all = append(all, t)
		}
	}
	return all
}

// MarkServing marks the threads of a process that run the program's code for others and did something between two readings.
func MarkServing(before, now []stacks.Thread) {
	for i := range now {
		if t := &now[i]; serves(t) && changed(before, t) {
			t.Moving = true
		}
	}
}

// changed reports whether a thread was not there before, or was elsewhere.
func changed(before []stacks.Thread, t *stacks.Thread) bool {
	i := slices.IndexFunc(before, func(b stacks.Thread) bool { return b.ID == t.ID })
	return i < 0 || !slices.Equal(before[i].Frames, t.Frames)
}

// serves reports whether a thread runs the program's code for another worker.
func serves(t *stacks.Thread) bool {
	if goFrames(t.Frames) {
		return servesGo(t)
	}
	return ownCode(t.Frames) && strings.HasSuffix(t.Frames[len(t.Frames)-1].File, "/torch/distributed/rpc/internal.py")
}

// threadOf names a thread, or a goroutine.
func threadOf(t *stacks.Thread) string {
	if goFrames(t.Frames) {
		return "goroutine " + strconv.Itoa(t.ID)
	}
	return "thread " + strconv.Itoa(t.ID)
}

// locateThread finds where a thread is that need not be the main one.
func locateThread(t *stacks.Thread) position {
	if goFrames(t.Frames) {
		return locateGo(ofMain(t))
	}
	return locateFrames(t.Frames)
}

// doingOf says where a thread is and what it does there.
func doingOf(t *stacks.Thread) string {
	p := locateThread(t)
	if !goFrames(t.Frames) {
		p.how, _ = manner(t, "")
	} else if p.class == inProgram && t.State != "R" {
		p.how = "in " + t.Kernel // in Go's words: "chan receive"
	}
	return p.doing()
}
