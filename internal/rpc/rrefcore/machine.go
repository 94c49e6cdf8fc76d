// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"maps"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/util/tombstone"
)

// Options are the durations and the limits of a Machine.
type Options struct {
	Heartbeat  time.Duration // how often a silent stream sends a frame (default 1 s)
	Lease      time.Duration // how long a user may be silent before it is suspected (default 10 s)
	Grace      time.Duration // how long a dead user's forks are kept for hand-offs under way (default 5 s)
	Retransmit time.Duration // after which an unacknowledged frame is sent again (default 500 ms)
	Retries    int           // how often a request to a PyTorch peer is tried (default 6)
	Tombs      int           // how many deleted forks of PyTorch peers are remembered, or half of them (default 65536)
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&o.Heartbeat, time.Second}, {&o.Lease, 10 * time.Second}, {&o.Grace, 5 * time.Second}, {&o.Retransmit, 500 * time.Millisecond}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.Retries == 0 {
		o.Retries = 6
	}
	if o.Tombs == 0 {
		o.Tombs = 1 << 16
	}
}

// effectKind is what the driver has to do.
type effectKind uint8

// The effects.
const (
	Send      effectKind = 1 + iota // send Msg to the PyTorch peer To and report RequestDone
	Flush                           // there is something for the Cohort peer To: take it with Frame
	Confirmed                       // the reference Fork is known to its owner
	Failed                          // the reference Fork is unusable: Code says why
	Free                            // the object ID has no references any more: drop its value
	CancelRun                       // the creation of ID was cancelled: cancel its running function
	Orphaned                        // the object ID will never get a value: Code says why
	Settled                         // it is decided whether Fork can be claimed
)

// Effect is one thing that the driver has to do. See the kinds for the fields that are set.
type Effect struct {
	Kind effectKind
	To   Worker
	ID   ID
	Fork ID
	Code Code
	Msg  Message
	Late bool // of a Flush: it can wait a little for something else to go along
}

// Machine is one worker's part of the reference protocol. It is not safe for concurrent use; one driver owns it.
type Machine struct {
	self  Worker
	epoch Epoch
	opt   Options
	now   Time
	next  uint64

	// newKey makes the key of an object that a worker hands out first.
	newKey func(by Worker, id ID) Key

	objects     map[ID]*object // what this worker owns
	handles     map[ID]*handle // what this worker refers to, by fork
	pins        map[ID]*handle // children that have not accepted yet, with their parent
	peers       map[Worker]*peer
	formerLives []formerLife
	tombs       tombstone.Set[tomb]   // forks of PyTorch peers that were deleted
	offered     map[ID]ID             // forks that were handed off to this worker as the owner, with their objects
	early       map[ID][]earlyMessage // messages about an object that wait for what proves them
	// unsettled are the forks of the hand-offs in early, with their objects.
	unsettled map[ID]ID
	effects   []Effect
}

// peer is everything the machine knows of one other worker.
type peer struct {
	id     Worker
	kind   PeerKind
	epoch  Epoch
	stream stream
	lease  lease
	// announced is one more than the highest counter among the objects that this peer announced. Announcements
	// come in order, so an unknown object below it existed and is gone.
	announced  uint64
	session    uint32         // see Frame.Session
	floor      uint64         // see Frame.Floor
	endedLives map[Epoch]bool // former lives
	requests   []*request     // to a PyTorch peer, not acknowledged yet
	lost       []lostCreation // at a PyTorch peer
	early      int            // how many of its messages wait in Machine.early
}

func (p *peer) life() life { return life{p.id, p.epoch} }

// request is a control message to a PyTorch peer, which is retried until it is acknowledged.
type request struct {
	msg   Message
	tries int
	at    Time // when to send it again; 0 while it is under way
}

// New returns the machine of one worker. epoch must differ from that of any earlier process with the same id.
func New(self Worker, epoch Epoch, opt Options) *Machine {
	opt.setDefaults()
	return &Machine{
		self: self, epoch: epoch, opt: opt, newKey: randomKeys(),
		objects: map[ID]*object{}, handles: map[ID]*handle{}, pins: map[ID]*handle{}, peers: map[Worker]*peer{},
		offered: map[ID]ID{}, early: map[ID][]earlyMessage{}, unsettled: map[ID]ID{},
	}
}

// Take appends the effects since the last call to buf, in order.
func (m *Machine) Take(buf []Effect) []Effect {
	buf = append(buf, m.effects...)
	m.effects = m.effects[:0]
	return buf
}

func (m *Machine) emit(e Effect) { m.effects = append(m.effects, e) }

// newID returns the next id of this worker.
func (m *Machine) newID() ID {
	id := ID{On: m.self, N: m.next, Epoch: m.epoch}
	m.next++
	return id
}

// AddPeer makes a worker known. A Cohort peer whose epoch is not known yet has epoch 0; the first frame tells it. A new
// epoch of a known peer means that the old process is dead.
func (m *Machine) AddPeer(id Worker, kind PeerKind, epoch Epoch) {
	p := m.peers[id]
	if p == nil {
		m.peers[id] = &peer{id: id, kind: kind, epoch: epoch, lease: newLease(m.now)}
		return
	}
	if p.epoch != 0 && epoch != 0 && p.epoch != epoch {
		m.endLife(p)
		m.forgetEarly(p.life())
		*p = peer{id: id, kind: kind, epoch: epoch, lease: newLease(m.now), endedLives: p.endedLives}
		m.revisitOf(id)
	} else if p.epoch == 0 {
		p.epoch = epoch
	}
}

// Replace makes known that another worker has the id of one that has gone. The ids of every PyTorch process begin with 0, so what a
// former one has left would be taken for the new one's: it is forgotten at once, without the grace period.
func (m *Machine) Replace(id Worker, kind PeerKind, epoch Epoch) {
	p := m.peers[id]
	if p == nil || p.kind == Cohort && kind == Cohort {
		m.AddPeer(id, kind, epoch)
		return
	}
	if p.kind == Cohort {
		m.endLife(p)
		m.forgetEarly(p.life())
	} else if p.lease.state != dead {
		p.lease.certain = true
		m.expire(p)
	}
	m.tombs.Forget(func(t tomb) bool { return t.by == id })
	for made, o := range m.objects {
		o.former = o.former || made.On == id && p.kind == PyTorch // others hold it still
	}
	m.peers[id] = &peer{id: id, kind: kind, epoch: epoch, lease: newLease(m.now), endedLives: p.endedLives}
	m.revisitOf(id)
}

// Peers returns the known workers in order.
func (m *Machine) Peers() []Worker { return slices.Sorted(maps.Keys(m.peers)) }

// send passes a control message to a peer on the wire that it speaks.
func (m *Machine) send(to Worker, msg Message) {
	p := m.peers[to]
	if p == nil || p.lease.state == dead {
		return // there is not a peer to receive it
	}
	if p.kind == PyTorch {
		if msg.Kind > Delete {
			return // PyTorch has no such message; its calls carry what it needs
		}
		p.requests = append(p.requests, &request{msg: msg})
		m.emit(Effect{Kind: Send, To: to, Msg: msg})
		return
	}
	p.stream.push(msg)
	m.emit(Effect{Kind: Flush, To: to})
}

// RequestDone reports the fate of a message that a Send effect asked for: acknowledged, or failed.
func (m *Machine) RequestDone(to Worker, msg Message, acknowledged bool) {
	p := m.peers[to]
	if p == nil {
		return
	}
	i := slices.IndexFunc(p.requests, func(r *request) bool { return r.msg == msg })
	if i < 0 {
		return
	}
	r := p.requests[i]
	if !acknowledged {
		r.tries++
		if r.tries < m.opt.Retries && p.lease.state != dead {
			r.at = m.now + time.Second<<min(r.tries-1, 5)
			return
		}
	}
	p.requests = slices.Delete(p.requests, i, i+1)
	if msg.Kind == ForkRequest {
		code := OK
		if !acknowledged {
			code = OwnerLost // given up: the reference fails instead of staying pending for ever
		}
		m.forkReplied(msg.Fork, code)
	}
}

// Control handles a control message of a PyTorch peer. The driver acknowledges it afterwards, whatever it did.
func (m *Machine) Control(from Worker, msg Message) { m.handle(m.peer(from), msg) }

func (m *Machine) peer(id Worker) *peer {
	p := m.peers[id]
	if p == nil {
		p = &peer{id: id, lease: newLease(m.now)}
		m.peers[id] = p
	}
	return p
}

// handle is the protocol: what each message does to this worker.
func (m *Machine) handle(p *peer, msg Message) {
	if !m.mayOriginate(p.id, msg) {
		return
	}
	switch msg.Kind {
	case ForkRequest:
		m.claimed(p, msg)
		m.revisit(msg.ID) // others may have got the reference from this peer
	case ForkReply:
		m.forkReplied(msg.Fork, msg.Code)
	case ChildAccept:
		m.childAccepted(msg.Fork)
	case Delete:
		m.deleteFork(p, msg.ID, msg.Fork)
	case Cancel:
		if o := m.objects[msg.ID]; o != nil && !o.valued {
			o.cancelled = true
			m.emit(Effect{Kind: CancelRun, ID: msg.ID})
		}
		m.deleteFork(p, msg.ID, msg.Fork)
	case Announce:
		m.announced(p, msg)
	case Created:
		m.confirm(msg.Fork)
	case Handoff:
		m.handedOff(p, msg)
	case Withdraw:
		m.withdrawn(p, msg)
	default: // of a newer version: the stream stays in step without it
	}
}
