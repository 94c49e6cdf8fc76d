// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore_test

import (
	"time"

	"github.com/anishathalye/porcupine"
)

// client asks one thing after the other, and repeats what is not answered, at this member or another, until it is.
type client struct {
	w       *world
	session uint64
	seq     uint64
	now     request
	waiting bool
	begun   time.Duration
	at      int // the member that is asked, as a place in the list
	tries   int
}

func (c *client) next() {
	if c.w.clock >= c.w.lastAsk {
		return
	}
	c.seq++
	ops := "aaapgggg"
	if c.session == 1 { // it reads wherever it is answered, also from a leader that was cut off
		ops = "g"
		c.at = c.w.rand.IntN(len(c.w.hosts))
	}
	c.now = request{c.session, c.seq, ops[c.w.rand.IntN(len(ops))], uint64(c.w.rand.IntN(3)), int64(c.w.rand.IntN(100)) + 1}
	c.waiting, c.begun = true, c.w.clock
	c.try()
}

// try asks once, and again later if there was no answer by then.
func (c *client) try() {
	c.tries++
	nth, hosts := c.tries, c.w.hosts
	h := hosts[c.at%len(hosts)]
	r := c.now
	c.w.clientMessage(func() {
		if h.up {
			h.ask(c, r)
		}
	})
	c.w.after(100*time.Millisecond+c.w.upTo(300*time.Millisecond), func() {
		if c.waiting && c.tries == nth {
			c.at = c.w.rand.IntN(len(hosts))
			c.try()
		}
	})
}

func (c *client) answered(seq uint64, value int64) {
	if !c.waiting || seq != c.seq {
		return // a late copy
	}
	c.waiting = false
	c.w.history = append(c.w.history, porcupine.Operation{
		ClientId: int(c.session), Input: c.now, Call: int64(c.begun), Output: value, Return: int64(c.w.clock),
	})
	c.w.after(c.w.upTo(40*time.Millisecond), c.next)
}

// told: the member asked is not the leader, but may know it.
func (c *client) told(seq, leader uint64) {
	if !c.waiting || seq != c.seq {
		return
	}
	c.at = c.w.rand.IntN(len(c.w.hosts))
	for i, h := range c.w.hosts {
		if h.id == leader {
			c.at = i
		}
	}
	nth := c.tries
	c.w.after(5*time.Millisecond+c.w.upTo(20*time.Millisecond), func() {
		if c.waiting && c.tries == nth {
			c.try()
		}
	})
}

// counters is what each key is: a number that can be put, added to and read.
var counters = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[uint64][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(request).key //nolint:errcheck // what the clients make
			parts[key] = append(parts[key], op)
		}
		var out [][]porcupine.Operation
		for key := range uint64(3) {
			out = append(out, parts[key])
		}
		return out
	},
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		value, r := state.(int64), input.(request) //nolint:errcheck // what Init and the clients make
		switch r.op {
		case 'a':
			value += r.arg
		case 'p':
			value = r.arg
		}
		return output == any(value), value
	},
}
