// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"iter"
	"maps"
	"slices"
)

// object is an entry of the owner: a value, or a placeholder for one that is still to come.
type object struct {
	id   ID
	root ID // the creator's fork; zero for an object that was made here
	// creatorKey and ownKey both prove that a worker was given a reference. The first is zero until the creator, a Go
	// worker, has announced the object; the second until this worker hands a reference out.
	creatorKey, ownKey Key
	open               map[Worker]bool // Go workers that were registered without a key
	forks              forks
	offers             map[ID]life // handed off to this worker by whom, not claimed by a decoded message yet
	local              int         // uses by code of this worker
	valued             bool        // the value or its error is there
	called             bool        // the creating call has arrived
	former             bool        // a worker made it whose id another one has now, which may make one of the same id
	cancelled          bool
	since              Time
}

func (m *Machine) newObject(id, root ID) *object {
	o := &object{id: id, root: root, since: m.now}
	m.objects[id] = o
	return o
}

func (m *Machine) register(o *object, id ID, holder life) {
	if _, known := o.forks.get(id); !known {
		o.forks.add(id, fork{holder, m.now})
	}
}

// Own enters an object that code of this worker made; it is in use until ReleaseLocal.
func (m *Machine) Own() ID {
	o := m.newObject(m.newID(), ID{})
	o.valued, o.called, o.local = true, true, 1
	return o.id
}

// OwnPending is Own for a value that a call of this worker to itself is still computing; Valued follows.
func (m *Machine) OwnPending() ID {
	id := m.Own()
	m.objects[id].valued = false
	return id
}

// Valued reports that the object has its value, or the error that stands for it.
func (m *Machine) Valued(id ID) {
	if o := m.objects[id]; o != nil {
		o.valued = true
	}
}

// HoldLocal counts one more use of the object by code of this worker.
func (m *Machine) HoldLocal(id ID) bool {
	o := m.objects[id]
	if o != nil {
		o.local++
	}
	return o != nil
}

// ReleaseLocal ends one use by code of this worker.
func (m *Machine) ReleaseLocal(id ID) {
	if o := m.objects[id]; o != nil && o.local > 0 {
		o.local--
		if o.called || o.valued { // a placeholder waits for its creating call
			m.freeIfUnused(o)
		}
	}
}

// CallArrived asks whether the call that creates id may run, and registers its object. A call that was cancelled, or
// whose creator is fenced, is refused. key is that of a Go creator.
func (m *Machine) CallArrived(from Worker, id, root ID, key Key) Code {
	if id.On != from || root.On != from {
		return Gone // a worker creates under its own ids
	}
	p := m.peer(from)
	if p.lease.state == dead {
		return LeaseExpired
	}
	o := m.objects[id]
	if o == nil {
		if m.tombs.Has(tomb{root, from}) {
			return Cancelled // its delete came first: registering now would leak
		}
		if p.kind == Cohort && id.N < p.announced {
			return Cancelled
		}
		o = m.newObject(id, root)
	} else if o.former {
		return CreateFailed
	} else if _, rooted := o.forks.get(root); p.kind == Cohort && id.N < p.announced && !rooted {
		return Cancelled // only local uses keep it: its creator has given it up
	}
	if p.kind == Cohort || !m.tombs.Has(tomb{root, from}) {
		m.register(o, root, p.life())
	}
	o.root, o.called = root, true
	m.recordCreatorKey(o, key)
	m.send(from, Message{Kind: Created, ID: id, Fork: root})
	return OK
}

// FetchArrived asks whether the value of id may be awaited for a peer: OK for an object that is here or still
// to come, else why not.
func (m *Machine) FetchArrived(id ID) Code {
	if o := m.objects[id]; o != nil {
		return OK
	}
	if code := m.absent(id); code != OK {
		return code
	}
	// A fetch may overtake the creating call: keep a placeholder, as long as its creator lives.
	m.contact(id, rootOf(id))
	return OK
}

// rootOf derives the creator's fork of an object that a PyTorch worker created: the counter behind the object's own.
func rootOf(id ID) ID { return ID{On: id.On, N: id.N + 1, Epoch: id.Epoch} }

// absent tells why an object that is not in the table can never come, or OK if it may.
func (m *Machine) absent(id ID) Code {
	if id.On == m.self {
		return Gone // made here, so it was here
	}
	creator := m.peers[id.On]
	switch {
	case creator == nil:
		return OK
	case creator.lease.state == dead:
		return Gone
	case creator.kind == Cohort && creator.epoch != 0 && id.Epoch != creator.epoch:
		return Gone // of an earlier life of its creator
	case creator.kind == Cohort && id.N < creator.announced:
		return Gone
	case creator.kind == PyTorch:
		if m.tombs.Has(tomb{rootOf(id), id.On}) {
			return Gone
		}
	}
	return OK
}

// contact returns the object that a peer speaks of, with a placeholder for one whose creating call has not arrived.
func (m *Machine) contact(id, root ID) *object {
	o := m.objects[id]
	if o == nil {
		if root == (ID{}) {
			root = rootOf(id)
		}
		o = m.newObject(id, root)
		if id.On != m.self {
			m.register(o, root, life{root.On, root.Epoch})
		}
	}
	return o
}

// announced enters a creation before its call comes.
func (m *Machine) announced(p *peer, msg Message) {
	p.announced = max(p.announced, msg.ID.N+1)
	o := m.objects[msg.ID]
	if o == nil {
		o = m.newObject(msg.ID, msg.Fork)
	}
	m.register(o, msg.Fork, p.life())
	m.recordCreatorKey(o, msg.Key)
}

// tomb is a fork that its holder, a PyTorch worker, has deleted.
type tomb struct {
	fork ID
	by   Worker
}

// addFork registers a child's fork and returns the answer to its request. early says that it has to wait.
func (m *Machine) addFork(p *peer, msg Message) (code Code, early bool) {
	if p.lease.state == dead {
		return LeaseExpired, false
	}
	if p.kind == Cohort && msg.OwnerEpoch != m.epoch {
		return OwnerRestarted, false
	}
	if m.tombs.Has(tomb{msg.Fork, p.id}) {
		return OK, false // a late copy of a request that was served and whose fork has ended since
	}
	if m.objects[msg.ID] == nil {
		if code := m.absent(msg.ID); code != OK {
			return code, false
		}
	}
	switch m.mayFork(p, msg) {
	case unproved:
		return Gone, false // it was not given it
	case notYet:
		return OK, true
	case proved:
	}
	o := m.contact(msg.ID, msg.Root)
	m.register(o, msg.Fork, p.life())
	if p.kind == Cohort && msg.Key == (Key{}) {
		if o.open == nil {
			o.open = map[Worker]bool{}
		}
		o.open[p.id] = true
	}
	return OK, false
}

// deleteFork removes a fork; the last one takes the object with it.
func (m *Machine) deleteFork(p *peer, id, fork ID) {
	if p.kind == PyTorch {
		m.tombs.Add(tomb{fork, p.id}, m.opt.Tombs)
	}
	if m.early[id] != nil { // a request that was given up before it was answered
		m.dropEarly(id, func(e earlyMessage) bool { return e.msg.Fork == fork && e.from == p.life() })
		m.revisit(id)
	}
	o := m.objects[id]
	if o == nil {
		return
	}
	if _, known := o.forks.get(fork); !known {
		return
	}
	o.forks.remove(fork)
	if fork == o.root && !o.called {
		m.orphan(o, Cancelled)
	}
	m.freeIfUnused(o)
}

// orphan reports to those that wait for the value that it will never come.
func (m *Machine) orphan(o *object, code Code) {
	if !o.valued {
		o.valued = true
		m.emit(Effect{Kind: Orphaned, ID: o.id, Code: code})
	}
}

// freeIfUnused drops an object without references.
func (m *Machine) freeIfUnused(o *object) {
	if o.forks.len() > 0 || o.local > 0 || len(o.offers) > 0 {
		return
	}
	delete(m.objects, o.id)
	m.emit(Effect{Kind: Free, ID: o.id})
	m.revisit(o.id)
}

// dropForksOf removes everything that a dead worker held or offered.
func (m *Machine) dropForksOf(gone life, code Code) {
	for _, id := range sortedKeys(m.objects) {
		o := m.objects[id]
		touched := false
		for fork, holder := range o.forks.all() {
			if holder.life == gone {
				o.forks.remove(fork)
				touched = true
			}
		}
		for child, from := range o.offers {
			if from == gone {
				delete(o.offers, child)
				delete(m.offered, child)
				touched = true
			}
		}
		if touched {
			if o.root.On == gone.worker && o.root.Epoch == gone.epoch && !o.called {
				m.orphan(o, code)
			}
			m.freeIfUnused(o)
		}
	}
}

func sortedKeys[V any](table map[ID]V) []ID { return slices.SortedFunc(maps.Keys(table), compare) }

func compare(a, b ID) int {
	if a.Less(b) {
		return -1
	} else if b.Less(a) {
		return 1
	}
	return 0
}

// fork is who holds a fork, and since when.
type fork struct {
	life
	since Time
}

// forks are the forks of an object. Most objects have one in all their life, that of their creator, so one has its place here
// and only further ones need a table.
type forks struct {
	first ID
	of    fork // of first
	one   bool // first is there
	more  map[ID]fork
}

func (f *forks) len() int {
	if f.one {
		return 1 + len(f.more)
	}
	return len(f.more)
}

func (f *forks) get(id ID) (fork, bool) {
	if f.one && f.first == id {
		return f.of, true
	}
	k, known := f.more[id]
	return k, known
}

// add enters a fork that is not there.
func (f *forks) add(id ID, k fork) {
	if !f.one {
		f.first, f.of, f.one = id, k, true
		return
	}
	if f.more == nil {
		f.more = map[ID]fork{}
	}
	f.more[id] = k
}

func (f *forks) remove(id ID) {
	if f.one && f.first == id {
		f.first, f.of, f.one = ID{}, fork{}, false
		return
	}
	delete(f.more, id)
}

// all goes through the forks in no order that counts. They may be removed meanwhile.
func (f *forks) all() iter.Seq2[ID, fork] {
	return func(yield func(ID, fork) bool) {
		if f.one && !yield(f.first, f.of) {
			return
		}
		for id, k := range f.more {
			if !yield(id, k) {
				return
			}
		}
	}
}
