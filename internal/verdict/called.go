// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Call is a request of a Go RPC worker that waits for its answer.
type Call struct {
	Op, Func string // "call" and the function, "fetch" and the object
	To       string // the worker that has to answer
	Rank     int    // its rank, -1 if it has none
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
func (c *court) called() (Verdict, bool) {
	for _, n := range c.ranks(func(r Rank, p position) bool { return p.class == inRPC && meeting(p.op) == "" && !r.Moved }) {
		if x, found := openCall(c.rank(n)); found {
			return c.follow(n, x), true
		}
	}
	return Verdict{}, false
}

// openCall returns the request that a worker has waited for longest. One that has just been sent says nothing: the next look would find
// another.
func openCall(r *Rank) (Call, bool) {
	if r == nil || r.Worker == nil || len(r.Worker.Calls) == 0 || r.Worker.Calls[0].Age < time.Second {
		return Call{}, false
	}
	return r.Worker.Calls[0], true
}

// follow goes from a call to who has to answer it, and on while that one waits for a call itself.
func (c *court) follow(first int, x Call) Verdict {
	path, callers, age, line := []string{}, []int{first}, x.Age, c.at[first].line
	for {
		last := callers[len(callers)-1]
		path = append(path, fmt.Sprintf("rank %d waits for the %s (%s)", last, x.what(), line))
		to := c.callee(x)
		if to == nil {
			return Verdict{Sentence: fmt.Sprintf("Worker %s has not answered%s, and was not found: %s.", x.To, since(age), strings.Join(path, ", "))}
		}
		t := handler(*to)
		if next, waits := openCall(to); waits && t != nil && calls(t) > 0 {
			if slices.Contains(callers, to.Rank) {
				return Verdict{Culprits: callers, Sentence: upper(strings.Join(path, ", ")) + since(age) + ": in a circle."}
			}
			callers, x, line = append(callers, to.Rank), next, locateThread(t).line
			continue
		}
		doing := "it runs no function for another worker, and is in " + c.at[to.Rank].where()
		if t != nil {
			doing = "its " + threadOf(t) + " is in " + doingOf(t)
		}
		return Verdict{Culprits: []int{to.Rank}, Sentence: fmt.Sprintf("Rank %d (worker %s) has not answered %s%s; %s; %s.", to.Rank, x.To, x.Func, since(age), doing, strings.Join(path, ", "))}
	}
}

// callee finds who has to answer a call: by its name, or by its rank where it does not tell its name.
func (c *court) callee(x Call) *Rank {
	for i := range c.job.Ranks {
		if r := &c.job.Ranks[i]; r.Worker != nil && r.Worker.Name == x.To {
			return r
		}
	}
	if r := c.rank(x.Rank); r != nil && r.Worker == nil {
		return r
	}
	return nil
}
