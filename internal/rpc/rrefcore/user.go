// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

// handleState is where a reference stands.
type handleState uint8

const (
	pending   handleState = iota // the owner has not confirmed it
	confirmed                    // the owner has it in its set
	failed                       // unusable; Code says why
)

// handle is a reference that this worker holds to an object of another one.
type handle struct {
	id, fork, root ID
	key            Key // zero for an object of a PyTorch worker, and for a reference that a PyTorch worker has passed on
	owner          Worker
	ownerEpoch     Epoch
	parent         life // who handed it over; the worker itself for a creator
	state          handleState
	code           Code
	creator        bool
	held           bool // the application, or a message that is being decoded, has it
	offered        bool // handed off, but the message that carries it has not been decoded yet
	accepting      bool // the parent waits for our accept
	deletable      bool // a failed reference whose fork the owner may still have
	unanswered     bool // a PyTorch owner has not answered the creating call
	lost           bool // and never will: see pytorch.go
	children       map[ID]life
	doubtful       map[ID]Time // of them, since when: see pytorch.go
	since          Time
}

// Wire is what travels for a reference inside a message: PyTorch's fields plus the root.
type Wire struct {
	ID, Fork, Root ID
	Owner          Worker
	OwnerEpoch     Epoch
	Parent         Worker
	Key            Key // of a creation, for its call
}

// Create begins a remote creation on another worker and returns the ids that its call must carry. The call is sent
// after the effects of this step.
func (m *Machine) Create(owner Worker) (Wire, Code) {
	p := m.peer(owner)
	if p.lease.state == dead {
		return Wire{}, PeerDead
	}
	id := m.newID()
	fork := m.newID()
	var key Key
	if p.kind == Cohort {
		key = m.newKey(m.self, id)
	}
	m.handles[fork] = &handle{
		id: id, fork: fork, root: fork, key: key, owner: owner, ownerEpoch: p.epoch, parent: life{m.self, m.epoch}, creator: true,
		held: true, unanswered: p.kind == PyTorch,
		since: m.now,
	}
	m.send(owner, Message{Kind: Announce, ID: id, Fork: fork, Root: fork, Key: key})
	return Wire{ID: id, Fork: fork, Root: fork, Owner: owner, OwnerEpoch: p.epoch, Parent: m.self, Key: key}, OK
}

// CreateReplied reports the answer to the creating call: it has run, or it failed and made no object.
func (m *Machine) CreateReplied(fork ID, ok bool) {
	h := m.handles[fork]
	if h != nil {
		h.unanswered = false
	}
	switch {
	case h == nil:
	case ok && h.state == pending:
		m.confirm(fork)
	case ok: // late: it was given up, and now its fork can be deleted
		m.settle(h)
	default:
		m.fail(h, CreateFailed)
		m.settle(h)
	}
}

// CreateTimedOut reports that a creation was not confirmed in time. The reference fails for every use. Its fork is
// cancelled at the owner once its children are safe.
func (m *Machine) CreateTimedOut(fork ID) {
	h := m.handles[fork]
	if h == nil || h.state != pending {
		return
	}
	m.fail(h, TimedOut)
	m.settle(h)
}

func (m *Machine) kindOf(w Worker) PeerKind { return m.peer(w).kind }

// Share puts a reference in a message to another worker and returns what the message must carry. For a reference that
// this worker only uses, it is pinned until the other side accepted.
func (m *Machine) Share(fork ID, to Worker) (Wire, Code) {
	h := m.handles[fork]
	if h == nil {
		return Wire{}, Closed
	}
	if h.state == failed {
		return Wire{}, h.code
	}
	if !h.held {
		return Wire{}, Closed
	}
	p := m.peer(to)
	if p.lease.state == dead {
		return Wire{}, PeerDead
	}
	child := m.newID()
	if h.children == nil {
		h.children = map[ID]life{}
	}
	h.children[child] = p.life()
	m.pins[child] = h
	m.send(to, Message{Kind: Handoff, ID: h.id, Fork: child, Root: h.root, Owner: h.owner, OwnerEpoch: h.ownerEpoch, Key: h.key})
	return Wire{ID: h.id, Fork: child, Root: h.root, Owner: h.owner, OwnerEpoch: h.ownerEpoch, Parent: m.self}, OK
}

// ShareOwned puts a reference to an own object in a message. Its fork is registered before the message leaves.
func (m *Machine) ShareOwned(id ID, to Worker) (Wire, Code) {
	o := m.objects[id]
	if o == nil {
		return Wire{}, Gone
	}
	p := m.peer(to)
	if p.lease.state == dead {
		return Wire{}, PeerDead
	}
	child := m.newID()
	m.register(o, child, p.life())
	var key Key
	if p.kind == Cohort {
		key = m.ownerKey(o)
	}
	m.send(to, Message{Kind: Handoff, ID: id, Fork: child, Root: o.root, Owner: m.self, OwnerEpoch: m.epoch, Key: key})
	return Wire{ID: id, Fork: child, Root: o.root, Owner: m.self, OwnerEpoch: m.epoch, Parent: m.self}, OK
}

// Undelivered reports that a message which carried the fork will not arrive or was refused undecoded: its call failed,
// timed out or lost its connection. It may be reported although the message did arrive: then nothing changes.
func (m *Machine) Undelivered(to Worker, w Wire) {
	if m.kindOf(to) == PyTorch {
		m.doubt(w)
		return
	}
	m.send(to, Message{Kind: Withdraw, ID: w.ID, Fork: w.Fork, Owner: w.Owner})
}

// handedOff notes a reference that a message is bringing.
func (m *Machine) handedOff(p *peer, msg Message) {
	if msg.Owner == m.self {
		m.claimed(p, msg)
		return
	}
	if m.handles[msg.Fork] != nil {
		return
	}
	m.enter(p, Wire{ID: msg.ID, Fork: msg.Fork, Root: msg.Root, Owner: msg.Owner, OwnerEpoch: msg.OwnerEpoch, Parent: p.id}, msg.Key, true)
}

// returned takes a reference that a user gives back to this worker, the owner, before the parent may let go. It reports false
// when it cannot be decided yet.
func (m *Machine) returned(p *peer, msg Message) bool {
	v := m.mayReturn(p, msg.ID)
	if v == notYet {
		return false
	}
	if v == proved && msg.OwnerEpoch == m.epoch && (m.objects[msg.ID] != nil || m.absent(msg.ID) == OK) {
		o := m.contact(msg.ID, msg.Root)
		if o.offers == nil {
			o.offers = map[ID]life{}
		}
		o.offers[msg.Fork] = p.life()
		m.offered[msg.Fork] = o.id
	}
	m.send(p.id, Message{Kind: ChildAccept, Fork: msg.Fork})
	return true
}

// enter makes the handle of a reference that came from parent.
func (m *Machine) enter(parent *peer, w Wire, key Key, offered bool) {
	h := &handle{
		id: w.ID, fork: w.Fork, root: w.Root, key: key, owner: w.Owner, ownerEpoch: w.OwnerEpoch, parent: parent.life(),
		held: true, offered: offered, since: m.now,
	}
	m.handles[w.Fork] = h
	h.accepting = parent.id != w.Owner
	if m.peers[w.Owner] == nil && w.OwnerEpoch != 0 {
		m.AddPeer(w.Owner, Cohort, w.OwnerEpoch) // the first word of this worker comes from another one
	}
	owner := m.peer(w.Owner)
	switch {
	case !h.accepting:
		h.state = confirmed // registered before it was sent
	case owner.lease.state == dead, owner.endedLives[w.OwnerEpoch]:
		m.accept(h)
		m.fail(h, OwnerLost)
		h.deletable = false
	default:
		m.send(w.Owner, Message{Kind: ForkRequest, ID: w.ID, Fork: w.Fork, Root: w.Root, OwnerEpoch: w.OwnerEpoch, Key: key})
	}
}

// Receive claims a reference that was found in a decoded message. owned says that the object is this worker's own: it
// counts as one local use. A code other than OK means that the message came too late and must be refused.
func (m *Machine) Receive(from Worker, w Wire) (owned bool, code Code) {
	p := m.peer(from)
	if w.Owner == m.self {
		o := m.objects[w.ID]
		if p.kind == Cohort {
			if o == nil {
				return true, Gone
			}
			if by, offered := o.offers[w.Fork]; !offered || by.worker != from {
				return true, Withdrawn
			}
			delete(o.offers, w.Fork)
			delete(m.offered, w.Fork)
			o.local++
			return true, OK
		}
		if o == nil {
			if code := m.absent(w.ID); code != OK {
				m.send(from, Message{Kind: ChildAccept, Fork: w.Fork})
				return true, code
			}
		} else if o.former && !m.MayUse(from, w.ID) {
			m.send(from, Message{Kind: ChildAccept, Fork: w.Fork})
			return true, Gone
		}
		o = m.contact(w.ID, w.Root)
		o.local++
		m.send(from, Message{Kind: ChildAccept, Fork: w.Fork})
		return true, OK
	}
	if p.kind == Cohort {
		h := m.handles[w.Fork]
		if h == nil || !h.offered || h.parent.worker != from {
			return false, Withdrawn
		}
		h.offered = false
		if h.state == failed {
			code := h.code
			h.held = false
			m.settle(h)
			return false, code
		}
		return false, OK
	}
	if m.handles[w.Fork] != nil {
		return false, Withdrawn // a repeated message
	}
	if w.Root == (ID{}) {
		w.Root = rootOf(w.ID)
	}
	m.enter(p, w, Key{}, false)
	return false, OK
}

// withdrawn drops a hand-off whose message will not come, unless it came.
func (m *Machine) withdrawn(p *peer, msg Message) {
	if msg.Owner == m.self {
		m.dropHandoff(p.id, msg.Fork)
		if o := m.objects[msg.ID]; o != nil {
			if _, offered := o.offers[msg.Fork]; offered {
				delete(o.offers, msg.Fork)
				delete(m.offered, msg.Fork)
				m.freeIfUnused(o)
			}
		}
		return
	}
	if h := m.handles[msg.Fork]; h != nil && h.offered && h.parent.worker == p.id {
		h.offered = false
		m.Drop(msg.Fork)
	}
}

// forkReplied ends a fork request: the reference is confirmed or failed, and the parent may let go.
func (m *Machine) forkReplied(fork ID, code Code) {
	h := m.handles[fork]
	if h == nil || h.state != pending || h.creator {
		return
	}
	if code == OK {
		m.confirm(fork)
	} else {
		m.fail(h, code)
		h.deletable = false
		m.accept(h)
		m.settle(h)
	}
}

// accept notifies the parent that this child is safe, or past saving.
func (m *Machine) accept(h *handle) {
	if h.accepting {
		h.accepting = false
		m.send(h.parent.worker, Message{Kind: ChildAccept, Fork: h.fork})
	}
}

func (m *Machine) confirm(fork ID) {
	h := m.handles[fork]
	if h == nil {
		return
	}
	if h.state == pending {
		h.state = confirmed
		m.emit(Effect{Kind: Confirmed, Fork: fork, ID: h.id})
		m.accept(h)
	}
	m.settle(h)
}

func (m *Machine) fail(h *handle, code Code) {
	if h.state == failed {
		return
	}
	h.state, h.code, h.deletable = failed, code, true
	m.emit(Effect{Kind: Failed, Fork: h.fork, ID: h.id, Code: code})
}

// childAccepted unpins the parent of a child that the owner knows.
func (m *Machine) childAccepted(child ID) {
	if h := m.pins[child]; h != nil {
		m.unpin(h, child)
		m.settle(h)
	}
}

func (m *Machine) unpin(h *handle, child ID) {
	delete(h.children, child)
	delete(h.doubtful, child)
	delete(m.pins, child)
}

// Drop says that the application has no use for the reference any more. It is idempotent.
func (m *Machine) Drop(fork ID) {
	if h := m.handles[fork]; h != nil && h.held {
		h.held = false
		m.settle(h)
	}
}

// settle ends a reference that nothing keeps: G1 and G2.
func (m *Machine) settle(h *handle) {
	if m.handles[h.fork] != h || len(h.children) > 0 {
		return
	}
	if h.unanswered && h.state == failed {
		return // a delete now could overtake the creation at a PyTorch owner, and leak: wait for its late answer
	}
	switch h.state {
	case pending:
		return
	case confirmed:
		if h.held || h.offered {
			return
		}
		m.send(h.owner, Message{Kind: Delete, ID: h.id, Fork: h.fork})
	case failed:
		if h.deletable {
			h.deletable = false
			kind := Delete
			if h.creator && (h.code == TimedOut || h.code == CreateFailed) && m.kindOf(h.owner) == Cohort {
				kind = Cancel
			}
			m.send(h.owner, Message{Kind: kind, ID: h.id, Fork: h.fork})
			if h.lost {
				m.repeatDelete(h.owner, Message{Kind: kind, ID: h.id, Fork: h.fork})
			}
		}
		if h.held || h.offered {
			return
		}
	}
	delete(m.handles, h.fork)
}

// State returns whether a reference is confirmed, and the code of one that failed.
func (m *Machine) State(fork ID) (isConfirmed bool, code Code) {
	h := m.handles[fork]
	if h == nil {
		return false, Closed
	}
	return h.state == confirmed, h.code
}

// expireHandlesOf fails every reference to objects of a worker that could not be reached for a lease. If it still lives
// it will get the deletes.
func (m *Machine) expireHandlesOf(owner Worker) {
	for _, fork := range sortedKeys(m.handles) {
		if h := m.handles[fork]; h.owner == owner {
			m.accept(h) // it is of no use any more, so its parent need not protect it
			m.fail(h, LeaseExpired)
			m.settle(h)
		}
	}
}

// failHandlesOf fails every reference to objects of a worker that is gone, and forgets what only it could answer.
func (m *Machine) failHandlesOf(owner Worker, code Code) {
	for _, fork := range sortedKeys(m.handles) {
		h := m.handles[fork]
		if h == nil || h.owner != owner {
			continue
		}
		m.accept(h)
		m.fail(h, code)
		h.deletable, h.unanswered = false, false
		for child := range h.children { // an owner that is lost needs no protection of its objects
			m.unpin(h, child)
		}
		m.settle(h)
	}
}
