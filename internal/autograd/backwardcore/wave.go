// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import (
	"cmp"
	"maps"
	"slices"
)

// wave is the messages of one kind in a pass, as Dijkstra and Scholten have it.
type wave[G any] struct {
	kind    Kind
	root    bool // this worker began the wave
	engaged bool
	parent  Call          // the message that engaged it
	in      map[Call]bool // messages that came; true once they are answered
	from    map[Call]Worker
	out     map[Call]*unanswered[G]
	held    []held[G]             // messages that leave at the end of this step, on their own or with an answer
	carried map[Call][]Carried[G] // what the answer to a message has carried
}

type held[G any] struct {
	call     Call
	to       Worker
	gradient G
}

type unanswered[G any] struct {
	to       Worker
	gradient G
	at       Time
}

func newWave[G any](kind Kind) wave[G] {
	return wave[G]{
		kind: kind, in: map[Call]bool{}, from: map[Call]Worker{}, out: map[Call]*unanswered[G]{},
		carried: map[Call][]Carried[G]{},
	}
}

// stop drops what is not answered.
func (w *wave[G]) stop() {
	clear(w.out)
	clear(w.carried)
	w.held = nil
}

// send holds a message until the end of this step.
func (w *wave[G]) send(m *Machine[G], c *context[G], p *pass[G], call Call, to Worker, g G) {
	if m.dead[to] {
		p.fail(m, c, Cause{Worker: to, Died: true, Text: "the worker is dead"})
		return
	}
	w.held = append(w.held, held[G]{call, to, g})
}

// carries reports whether the answer to a message can carry a message: to the worker that waits for the answer. That worker is
// engaged until then, and would answer at once; the answer comes again if that one is lost.
func (w *wave[G]) carries(p *pass[G], call Call, h *held[G]) bool {
	return h.to == w.from[call] && p.mode != Foreign
}

// ends reports whether nothing is left to wait for: no answer, and no message that the answer to the parent cannot carry.
func (w *wave[G]) ends(p *pass[G]) bool {
	if len(w.out) > 0 || w.root && len(w.held) > 0 {
		return false
	}
	for i := range w.held {
		if !w.carries(p, w.parent, &w.held[i]) {
			return false
		}
	}
	return true
}

// reply answers a message, for the first time or again.
func (p *pass[G]) reply(m *Machine[G], c *context[G], w *wave[G], call Call) {
	if !w.in[call] {
		w.in[call] = true
		w.held = slices.DeleteFunc(w.held, func(h held[G]) bool {
			if !w.carries(p, call, &h) {
				return false
			}
			w.carried[call] = append(w.carried[call], Carried[G]{h.call, h.gradient})
			return true
		})
	}
	m.send(Message[G]{
		Kind: Done, To: w.from[call], Context: c.id, Pass: p.id, Mode: p.mode, Wave: w.kind, Call: call,
		Carried: w.carried[call],
	})
}

// release sends the messages that are held.
func (w *wave[G]) release(m *Machine[G], c *context[G], p *pass[G]) {
	if p.failed || len(w.held) == 0 {
		return
	}
	m.busy[c.id] = struct{}{}
	for _, h := range w.held {
		w.out[h.call] = &unanswered[G]{h.to, h.gradient, m.now}
		m.send(Message[G]{Kind: w.kind, To: h.to, Context: c.id, Pass: p.id, Mode: p.mode, Call: h.call, Gradient: h.gradient})
	}
	w.held = nil
}

func sortedCalls[V any](all map[Call]V) []Call {
	return slices.SortedFunc(maps.Keys(all), func(a, b Call) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.N, b.N))
	})
}
