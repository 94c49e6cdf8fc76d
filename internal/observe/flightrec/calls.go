// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Call is a request of an RPC worker that waits for its answer.
type Call struct {
	Op    string    `json:"op"`    // call, remote or fetch
	Func  string    `json:"func"`  // of a fetch the object
	To    string    `json:"to"`    // the name of the worker that has to answer
	ToID  int       `json:"to_id"` // its rank, -1 if it has none
	Since time.Time `json:"since"`
}

// Worker is an RPC worker in a dump.
type Worker struct {
	Name string `json:"name"`
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Calls are its requests that wait, oldest first, and More is how many younger ones are left out.
	Calls []Call `json:"calls"`
	More  int    `json:"more,omitempty"`
}

// workerView is one RPC worker as its dump shows it.
type workerView struct {
	Worker
	// Text describes the request that has waited longest, "" if none waits.
	Text string
	// Wait is its age when the dump was taken.
	Wait time.Duration
}

// workers lists the RPC workers of dumps.
func workers(dumps []Dump) []workerView {
	var all []workerView
	for _, d := range dumps {
		if d.Worker == nil {
			continue
		}
		v := workerView{Worker: *d.Worker}
		if len(v.Calls) > 0 {
			x := v.Calls[0]
			v.Text, v.Wait = fmt.Sprintf("%s of %s at worker %s", x.Op, x.Func, x.To), max(0, d.Time.Sub(x.Since))
		}
		all = append(all, v)
	}
	slices.SortStableFunc(all, func(a, b workerView) int { return cmp.Or(cmp.Compare(b.Wait, a.Wait), cmp.Compare(a.Name, b.Name)) })
	return all
}

// longCall is how long a request has to have waited to count: it is normal that some are under way.
const longCall = time.Second

// judgeCalls names the call that has waited longest, if the groups do not explain more.
func (v *Diagnosis) judgeCalls() {
	waits := len(v.Workers) > 0 && v.Workers[0].Wait >= longCall
	switch {
	case waits && v.Finding == InStep:
		w := v.Workers[0]
		text := fmt.Sprintf("worker %s waits for the %s for %s", w.Name, w.Text, span(w.Wait))
		if v.Sentence != "" {
			text = v.Sentence + "; " + text
		}
		v.Finding, v.Sentence = Unfinished, text
	case len(v.Groups) == 0:
		v.Sentence = "no worker has waited long for the answer to a call"
	}
}

// maxCalls bounds the calls in a dump.
const maxCalls = 64

// Calls remembers the requests of a worker that wait for their answers.
type Calls struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]Call
}

// NewCalls returns an empty memory.
func NewCalls() *Calls { return &Calls{open: map[uint64]Call{}} }

// Begin remembers a request and returns its number.
func (c *Calls) Begin(x Call) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.open[c.last] = x
	return c.last
}

// End forgets a request.
func (c *Calls) End(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, number)
}

// Oldest returns the requests that have waited longest, and how many others there are.
func (c *Calls) Oldest() (calls []Call, more int) {
	c.mu.Lock()
	calls = make([]Call, 0, len(c.open))
	for _, x := range c.open {
		calls = append(calls, x)
	}
	c.mu.Unlock()
	slices.SortFunc(calls, func(a, b Call) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Func, b.Func)) })
	shown := min(len(calls), maxCalls)
	return calls[:shown:shown], len(calls) - shown
}
