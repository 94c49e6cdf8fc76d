// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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

// serving: a rank waits in RPC, and a function that another rank has called is at work.
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
	return Verdict{
		Still: true, Culprits: []int{r.Rank},
		Sentence: fmt.Sprintf("%srank %d is at work for another worker: its %s is in %s; %s.", perhaps, r.Rank, threadOf(t),
			locateThread(t).where(), c.waitIn(waiting)),
	}
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

// handlers: a function that another rank has called stands still, and a rank waits in RPC.
func (c *analysis) handlers() (Verdict, bool) {
	here := c.ranks(func(r Rank, p position) bool { return !r.Moved && (p.class == inRPC || p.class == inWork) })
	if len(here) == 0 {
		return Verdict{}, false
	}
	ranks := slices.Clone(c.job.Ranks)
	// one that waits for another handler explains less
	slices.SortStableFunc(ranks, func(a, b Rank) int { return calls(handler(a)) - calls(handler(b)) })
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
				Sentence: fmt.Sprintf("Rank %d runs a function that was called by RPC and does not return: its %s is in %s; %s%s.",
					r.Rank, threadOf(t), doingOf(t), c.waitIn(here), since(c.waited(here))),
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
	return Verdict{
		Culprits: ranks,
		Sentence: fmt.Sprintf(
			"%s %s functions that were called by RPC and themselves wait for RPC calls, in %s: perhaps a deadlock, with no thread "+
				"left to serve a call (num_worker_threads); %s%s.",
			name(ranks), verb(ranks, "run"), p.where(), c.waitIn(here), since(c.waited(here))),
	}
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

// Call is a request of a Go RPC worker that waits for its answer.
type Call struct {
	Op, Func string // "call" and the function, "fetch" and the object
	To       string // the worker that has to answer
	Rank     int    // its number, which need not be its rank; -1 if it has none
	Age      time.Duration
}

// Worker is what a Go RPC worker says of itself.
type Worker struct {
	Name  string
	Calls []Call // those that wait, the oldest first
}

// what returns "the call of ps.load at worker ps".
func (x Call) what() string {
	return fmt.Sprintf("%s of %s at worker %s", x.Op, x.Func, x.To)
}

// called: a Go worker waits for the answer to a call, and says whom it has called.
func (c *analysis) called() (Verdict, bool) {
	for _, n := range c.ranks(func(r Rank, p position) bool { return p.class == inRPC && meeting(p.op) == "" && !r.Moved }) {
		if _, found := openCall(c.rank(n), 0); found {
			return c.doubt(c.follow(n)), true
		}
	}
	return Verdict{}, false
}

// openCall returns the request that a worker has waited for longest, but for some that are known. One that has just been sent says nothing:
// the next look would find another.
func openCall(r *Rank, known int) (Call, bool) {
	if r == nil || r.Worker == nil || len(r.Worker.Calls) <= known || r.Worker.Calls[known].Age < time.Second {
		return Call{}, false
	}
	return r.Worker.Calls[known], true
}

// follow goes from the oldest call of a worker to who has to answer it, and on while that one waits for a call itself.
// A worker that it comes to again waits for its next call there.
func (c *analysis) follow(first int) Verdict {
	var path []string
	followed := map[int]int{} // how many calls of a rank
	x, _ := openCall(c.rank(first), 0)
	last, age, line := first, x.Age, c.at[first].line
	for {
		followed[last]++
		path = append(path, fmt.Sprintf("rank %d waits for the %s (%s)", last, x.what(), line))
		to := c.callee(x)
		if to == nil {
			why := "was not found"
			if len(c.unnamed()) > 0 {
				why = "its rank is not known"
			}
			return Verdict{Still: true, Sentence: fmt.Sprintf("%sworker %s (number %d) has not answered%s, and %s: %s%s.", perhaps,
				x.To, x.Rank, since(age), why, strings.Join(path, ", "), c.left(followed))}
		}
		if t := working(*to); t != nil {
			return c.atWorkFor(*to, t)
		}
		t := handler(*to)
		if t != nil && calls(t) > 0 {
			if next, waits := openCall(to, followed[to.Rank]); waits {
				last, x, line = to.Rank, next, locateThread(t).line
				continue
			}
			if followed[to.Rank] > 0 {
				return uncertain(Verdict{
					Culprits: slices.Sorted(maps.Keys(followed)),
					Sentence: upper(strings.Join(path, ", ")) + since(age) + ": a cycle.",
				}, c.left(followed))
			}
		}
		doing := "it runs no function for another worker, and is in " + c.at[to.Rank].where()
		if t != nil {
			doing = "its " + threadOf(t) + " is in " + doingOf(t)
		}
		left := c.left(followed)
		if to.Worker != nil && left == "" && slices.ContainsFunc(serving(*to), func(t *stacks.Thread) bool { return calls(t) > 0 }) {
			left = c.left(map[int]int{to.Rank: followed[to.Rank]}) // it may wait for one that it has called
		}
		return uncertain(Verdict{
			Culprits: []int{to.Rank},
			Sentence: fmt.Sprintf("Rank %d (worker %s) has not answered %s%s; %s; %s.", to.Rank, x.To, x.Func, since(age), doing,
				strings.Join(path, ", ")),
		}, left)
	}
}

// left names the first call of these ranks to a worker that no followed call of the same rank goes to: it is not known which of them is
// waited for.
func (c *analysis) left(followed map[int]int) string {
	for _, n := range slices.Sorted(maps.Keys(followed)) {
		all := c.rank(n).Worker.Calls
		for _, x := range all[followed[n]:] {
			if !slices.ContainsFunc(all[:followed[n]], func(y Call) bool { return y.To == x.To }) {
				return fmt.Sprintf("; rank %d also waits for the %s", n, x.what())
			}
		}
	}
	return ""
}

// uncertain takes it back that a job hangs where a call is left.
func uncertain(v Verdict, left string) Verdict {
	if left != "" {
		v.Still, v.Sentence = true, perhaps+lower(strings.TrimSuffix(v.Sentence, "."))+left+"."
	}
	return v
}

// doubt takes it back that a job hangs where a rank is at work whom the others may wait for, or was seen only once.
func (c *analysis) doubt(v Verdict) Verdict {
	if some := c.ranks(func(r Rank, p position) bool {
		return r.Once || r.atWork() && !p.waits() ||
			working(r) != nil
	}); !v.Still && len(some) > 0 {
		v.Still, v.Sentence = true, perhaps+lower(v.Sentence)
	}
	return v
}

// callee finds who has to answer a call. A worker of PyTorch does not report its name, and its number need not be its rank: it is known
// only if it is the only one.
func (c *analysis) callee(x Call) *Rank {
	for i := range c.job.Ranks {
		if r := &c.job.Ranks[i]; r.Worker != nil && r.Worker.Name == x.To {
			return r
		}
	}
	if all := c.unnamed(); len(all) == 1 && c.job.World > 0 && len(c.absent()) == 0 {
		return c.rank(all[0])
	}
	return nil
}

// unnamed returns the ranks that do not tell the name of their worker.
func (c *analysis) unnamed() []int {
	return c.ranks(func(r Rank, _ position) bool { return r.Worker == nil })
}
