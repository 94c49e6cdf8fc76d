// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"

	"github.com/cohort-dist/cohort/internal/util/ilist"
)

// Any number of waits may be for one key, so that telling all of them that it has come or gone is not one step. What happens to
// a key is noted at once, in constant time, and the waits are notified of it in turns, within the work that a turn allows.
//
// A WAIT for one key is over when the key has been there, so its list is taken off the key and is worked off, whatever
// becomes of the key. Others count how many of their keys are missing: they are on one of two lists of each key, by what they
// have been notified of it last, and are moved to the other one until the lists agree with the key. A key that comes and goes
// faster than that costs nothing more.

// node stands for one wait in a list of one key.
type node struct {
	wait         *wait
	key          *keyWaits
	in           *ilist.List[node]
	countedWaits *countedWaits // nil for those that do not count
	at           ilist.Place[node]
}

// keyWaits holds who waits for a key, in each list the oldest first.
type keyWaits struct {
	key     string
	once    *ilist.List[node] // WAIT of PyTorch's clients
	alone   *ilist.List[node] // WAIT of native clients for this key only
	pops    ilist.List[node]
	tallies [2]countedWaits
}

// A key is there for a WAIT when it has a value or is a queue, and for a GET when it has a value.
const (
	byKey = iota
	byValue
)

// countedWaits holds waits that count.
type countedWaits struct {
	present  bool
	queued   bool
	notified [2]ilist.List[node] // who counts the key as missing, and who as present
}

func (t *countedWaits) list(present bool) *ilist.List[node] {
	if present {
		return &t.notified[1]
	}
	return &t.notified[0]
}

// pendingNotification is what waits are to be notified of: all in a list that the key has been there, or those of a tally how it is.
type pendingNotification struct {
	list  *ilist.List[node]
	tally *countedWaits
}

// enlist puts w into a list of a key.
func (m *Machine) enlist(w *wait, n *node, key []byte) {
	k := m.waits.byKey[string(key)]
	if k == nil {
		k = &keyWaits{key: string(key)}
		k.tallies[byKey].present, k.tallies[byValue].present = m.exists(key), m.table.Find(key) != nil
		m.waits.byKey[k.key] = k
	}
	n.wait, n.key = w, k
	switch {
	case w.kind == waitOnce:
		n.in = made(&k.once)
	case w.kind == waitPop:
		n.in = &k.pops
	case w.kind != waitKeys:
		n.countedWaits = &k.tallies[byValue]
	case w.keys.Count == 1:
		n.in = made(&k.alone)
	default:
		n.countedWaits = &k.tallies[byKey]
	}
	if n.countedWaits != nil {
		n.in = n.countedWaits.list(n.countedWaits.present)
	}
	n.in.Add(&n.at, n)
}

func made(l **ilist.List[node]) *ilist.List[node] {
	if *l == nil {
		*l = &ilist.List[node]{}
	}
	return *l
}

// delist takes n off its list, if it is on one.
func (ws *waits) delist(n *node) {
	k := n.key
	if k == nil {
		return
	}
	n.in.Remove(&n.at)
	n.key, n.in, n.countedWaits = nil, nil, nil
	if k.empty() && ws.byKey[k.key] == k {
		delete(ws.byKey, k.key)
	}
}

func (k *keyWaits) empty() bool {
	none := func(l *ilist.List[node]) bool { return l == nil || l.First() == nil }
	for i := range k.tallies {
		if t := &k.tallies[i]; !none(&t.notified[0]) || !none(&t.notified[1]) {
			return false
		}
	}
	return none(k.once) && none(k.alone) && none(&k.pops)
}

// markPresent notes that a key has been there for all in a list.
func (ws *waits) markPresent(l **ilist.List[node]) {
	if *l != nil && (*l).First() != nil {
		ws.pending = append(ws.pending, pendingNotification{list: *l})
		*l = nil
	}
}

// setPresent notes how a key is.
func (ws *waits) setPresent(t *countedWaits, present bool) {
	t.present = present
	if !t.queued && t.list(!present).First() != nil {
		t.queued = true
		ws.pending = append(ws.pending, pendingNotification{tally: t})
	}
}

// notifyWaits notifies waits up to an amount of work. A step sends those of its changes, unless older ones are left.
func (m *Machine) notifyWaits(end uint64) {
	done := 0
	for done < len(m.waits.pending) && m.turn.work < end {
		m.turn.work++
		if !m.notifyOne(m.waits.pending[done], end) {
			break
		}
		done++
	}
	m.waits.pending = slices.Delete(m.waits.pending, 0, done)
	m.waits.stalePending = len(m.waits.pending) > 0
}

// notifyOne sends waits one notification, and returns whether all of them have it.
func (m *Machine) notifyOne(what pendingNotification, end uint64) bool {
	if t := what.tally; t != nil {
		for p := t.list(!t.present).First(); p != nil; p = t.list(!t.present).First() {
			if m.turn.work >= end {
				return false
			}
			n := p.Of()
			if m.recountKey(n); n.wait.missing == 0 {
				m.makeReady(n.wait)
			}
		}
		t.queued = false
		return true
	}
	for p := what.list.First(); p != nil; p = what.list.First() {
		if m.turn.work >= end {
			return false
		}
		m.keyArrived(p.Of())
	}
	return true
}

// keyArrived notifies a wait that a key has been there, which is all that it needs.
func (m *Machine) keyArrived(n *node) {
	w := n.wait
	m.turn.work++
	m.waits.delist(n)
	if w.missing--; w.missing == 0 {
		m.makeReady(w)
	}
}

// recountKey has a wait count a key as it is.
func (m *Machine) recountKey(n *node) {
	m.turn.work++
	if n.countedWaits == nil || n.in == n.countedWaits.list(n.countedWaits.present) {
		return
	}
	n.in.Remove(&n.at)
	n.in = n.countedWaits.list(n.countedWaits.present)
	n.in.Add(&n.at, n)
	if n.countedWaits.present {
		n.wait.missing--
	} else {
		n.wait.missing++
	}
}

// recount has a wait that counts look at all of its keys, and returns whether one is missing.
func (m *Machine) recount(w *wait) bool {
	for i := range w.nodes {
		m.recountKey(&w.nodes[i])
	}
	return w.missing > 0
}

// created notes that a key has a value now. Those who wait for it are answered by wake.
func (ws *waits) created(key []byte) {
	if len(ws.byKey) == 0 {
		return
	}
	k := ws.byKey[string(key)]
	if k == nil {
		return
	}
	ws.markExists(k)
	ws.setPresent(&k.tallies[byValue], true)
	ws.markPresent(&k.once)
}

// markExists notes that a key has a value or is a queue.
func (ws *waits) markExists(k *keyWaits) {
	ws.markPresent(&k.alone)
	ws.setPresent(&k.tallies[byKey], true)
}

// deleted notes that a key has no value any more.
func (m *Machine) deleted(key []byte) {
	if len(m.waits.byKey) == 0 {
		return
	}
	if k := m.waits.byKey[string(key)]; k != nil {
		m.waits.setPresent(&k.tallies[byValue], false)
		m.waits.setPresent(&k.tallies[byKey], m.queues.byKey[k.key] != nil)
		m.notifyOwn()
	}
}

// notifyOwn notifies waits of what happened in a step, unless older notifications are left.
func (m *Machine) notifyOwn() {
	if !m.waits.stalePending {
		m.notifyWaits(m.turn.work + sliceWork)
	}
}
