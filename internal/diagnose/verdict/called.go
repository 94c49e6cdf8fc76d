// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

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

// follow goes from the oldest call of a worker to who has to answer it, and on while that one waits for a call itself. A worker that it comes
// to again waits for its next call there.
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
			return Verdict{Still: true, Sentence: fmt.Sprintf("%sworker %s (number %d) has not answered%s, and %s: %s%s.", perhaps, x.To, x.Rank, since(age), why, strings.Join(path, ", "), c.left(followed))}
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
				return uncertain(Verdict{Culprits: slices.Sorted(maps.Keys(followed)), Sentence: upper(strings.Join(path, ", ")) + since(age) + ": a cycle."}, c.left(followed))
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
		return uncertain(Verdict{Culprits: []int{to.Rank}, Sentence: fmt.Sprintf("Rank %d (worker %s) has not answered %s%s; %s; %s.", to.Rank, x.To, x.Func, since(age), doing, strings.Join(path, ", "))}, left)
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

// doubt takes it back that a job hangs where somebody is at work whom the others may wait for, or was seen only once.
func (c *analysis) doubt(v Verdict) Verdict {
	if some := c.ranks(func(r Rank, p position) bool { return r.Once || r.atWork() && !p.waits() || working(r) != nil }); !v.Still && len(some) > 0 {
		v.Still, v.Sentence = true, perhaps+lower(v.Sentence)
	}
	return v
}

// callee finds who has to answer a call. A worker of PyTorch does not tell its name, and its number need not be its rank: it is known
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
