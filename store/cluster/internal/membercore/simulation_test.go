// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package membercore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cohort-dist/cohort/internal/testing/mutation"
	"github.com/cohort-dist/cohort/internal/testing/seeds"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

func TestMain(m *testing.M) { mutation.Main(m) }

// TestSimulation: whatever is lost, delayed, repeated, cut off, full or dead, no acknowledged command is lost or carried out twice, all
// members apply the same commands, reads are linearizable, and when the faults end everything is answered.
//
//nolint:paralleltest // raft draws from the random source of the process
func TestSimulation(t *testing.T) {
	n := 0
	for seed := range seeds.Range(150) {
		n++
		if failed := simulate(seed, options{}); failed != "" {
			t.Fatalf("seed %d: %s", seed, failed)
		}
	}
	t.Logf("count: seeds: %d", n)
}

// TestDeterminism: a seed decides everything.
//
//nolint:paralleltest // as above
func TestDeterminism(t *testing.T) {
	for seed := range uint64(3) {
		var hashes [2]uint64
		for i := range hashes {
			w := newSimulation(seed, options{})
			w.run(6*time.Second, func() bool { return false })
			hashes[i] = w.hash
		}
		if hashes[0] != hashes[1] {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
}

// TestNoRecord: the simulation finds that a replicated state without a record of answered requests carries some of them out twice.
//
//nolint:paralleltest // as above
func TestNoRecord(t *testing.T) {
	for seed := range uint64(200) {
		if failed := simulate(seed, options{forgetful: true}); failed != "" {
			t.Logf("seed %d: %s", seed, failed)
			return
		}
	}
	t.Error("200 seeds do not find it")
}

// faultsEnd is when the faults end, patience how long the cluster then has to answer everything.
const faultsEnd, patience = 8 * time.Second, 30 * time.Second

func newSimulation(seed uint64, o options) *world {
	o.members, o.clients, o.changes = 3, 4, seed%3 == 0
	switch seed % 8 {
	case 3, 7:
		o.members = 5
	case 5:
		o.members = 1
	}
	w := newWorld(seed, o)
	w.lastAsk = faultsEnd + time.Second
	w.faults = true
	w.loss = []float64{0, 0.02, 0.2}[w.rand.IntN(3)]
	w.after(time.Second, w.fault)
	return w
}

// simulate runs one seed and says what went wrong.
func simulate(seed uint64, o options) string {
	w := newSimulation(seed, o)
	w.run(faultsEnd, func() bool { return false })
	w.heal()
	w.run(faultsEnd+patience, func() bool { return w.clock > w.lastAsk && w.idle() && w.converged() })
	switch {
	case w.failed != "":
		return w.failed
	case !w.idle():
		return fmt.Sprintf("a client has no answer %v after the end of the faults: %s", patience, w.describe())
	case !w.converged():
		return fmt.Sprintf("the members differ %v after the end of the faults: %s", patience, w.describe())
	}
	if porcupine.CheckOperationsTimeout(counters, w.history, time.Minute) != porcupine.Ok {
		return fmt.Sprintf("the history of %d operations is not linearizable", len(w.history))
	}
	return ""
}

// fault makes something fail, or work again, and plans the next fault.
func (w *world) fault() {
	if !w.faults {
		return
	}
	w.after(w.upTo(800*time.Millisecond), w.fault)
	h := w.hosts[w.rand.IntN(len(w.hosts))]
	switch w.rand.IntN(13) {
	case 0, 1, 2:
		h.crash()
		w.after(w.upTo(2*time.Second), h.restart)
	case 3:
		if l := w.leader(); l != nil {
			l.crash()
			w.after(w.upTo(time.Second), l.restart)
		}
	case 12:
		if l := w.leader(); l != nil {
			w.cut(l, true)
		}
	case 4: // cut off, in both directions or in one
		way := w.rand.IntN(3)
		for _, other := range w.hosts {
			if way != 0 {
				w.blocked[[2]uint64{h.id, other.id}] = true
			}
			if way != 1 {
				w.blocked[[2]uint64{other.id, h.id}] = true
			}
		}
	case 5: // one direction between two
		w.blocked[[2]uint64{h.id, w.hosts[w.rand.IntN(len(w.hosts))].id}] = true
	case 6, 7:
		clear(w.blocked)
	case 8:
		h.disk.full = true
		w.after(w.upTo(2*time.Second), func() { h.disk.full = false })
	case 9:
		w.broken(h.id) // it has not crashed
	case 10:
		if l := w.leader(); l != nil {
			l.machine.Transfer(0)
			l.effects()
		}
	case 11:
		if w.options.changes {
			w.change()
		}
	}
}

// restart starts a member again, unless it was removed.
func (h *host) restart() {
	if !h.up && !h.removed {
		h.start()
	}
}

// change adds a member, or removes one.
func (w *world) change() {
	l := w.leader()
	if l == nil {
		return
	}
	members := l.machine.Members()
	w.admin++
	if len(members) < w.options.members+1 {
		w.newest++
		w.addHost(w.newest).start()
		l.machine.Change(w.admin, membercore.Change{Kind: membercore.Add, Member: member(w.newest)})
	} else {
		l.machine.Change(w.admin, membercore.Change{Kind: membercore.Remove, Member: members[w.rand.IntN(len(members))]})
	}
	l.effects()
}

// heal ends all faults.
func (w *world) heal() {
	w.faults, w.loss = false, 0
	clear(w.blocked)
	for _, h := range w.hosts {
		h.disk.full = false
		h.restart()
	}
}

func (w *world) describe() string {
	var b strings.Builder
	for _, h := range w.hosts {
		fmt.Fprintf(&b, "\n%x: up %v", h.id, h.up)
		if h.up {
			s := h.machine.Status()
			fmt.Fprintf(&b, " leading %v leader %x term %d applied %d committed %d, %d writes, %d asked, members %v",
				s.Leading, s.Leader, s.Term, s.Applied, s.Committed, len(h.queue), len(h.asked), s.Members)
		}
	}
	for _, c := range w.clients {
		if c.waiting {
			fmt.Fprintf(&b, "\nclient %d waits for %c, seq %d, try %d", c.session, c.now.op, c.seq, c.tries)
		}
	}
	return b.String()
}
