// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloopresence"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Watcher is a mesh that ends collectives which a lost rank has made impossible, also where they do not talk to that rank.
type Watcher interface {
	// Watch takes note that a collective starts. If it cannot end any more, its set fails, now or at any time until Unwatch.
	Watch(c *gloopresence.Collective)
	// Unwatch takes note that it is over.
	Unwatch(c *gloopresence.Collective, ok bool)
	// Blame returns the error of a collective or a message that failed: it names the rank that went first where others followed.
	Blame(err error) error
}

// watch drives the machine that knows which ranks are there.
type watch struct {
	mesh   *Mesh
	onLost func(transport.Loss)
	start  time.Time
	moved  atomic.Uint64 // bytes that arrived for collectives
	order  *order        // of connections that ended
	looks  chan int      // holds how often Blame has looked in vain; whoever looks has taken it
	stop   chan struct{}
	tasks  sync.WaitGroup

	mu struct {
		sync.Mutex
		machine  *gloopresence.Machine
		seen     uint64 // moved when last looked at
		doubting bool   // a goroutine waits for the end of a doubt
		closed   bool
	}
}

func newWatch(m *Mesh, onLost func(transport.Loss)) *watch {
	w := &watch{mesh: m, onLost: onLost, start: time.Now(), order: newOrder(m.size), looks: make(chan int, 1), stop: make(chan struct{})}
	w.looks <- 0
	w.mu.machine = gloopresence.New(m.rank, m.size)
	return w
}

func (w *watch) now() time.Duration { return time.Since(w.start) }

// Watch starts to watch a collective.
func (m *Mesh) Watch(c *gloopresence.Collective) {
	w := m.watch
	failpoint.At("gloo.watch.begin")
	w.mu.Lock()
	w.mu.machine.Begin(c)
	w.settle()
}

// Unwatch ends it.
func (m *Mesh) Unwatch(c *gloopresence.Collective, ok bool) {
	w := m.watch
	failpoint.At("gloo.watch.end")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.machine.End(c, ok)
}

// settle carries out what the machine asks for, sees to doubts, and releases the lock.
func (w *watch) settle() {
	m := w.mu.machine
	var losses []transport.Loss
	for i := range m.Effects {
		if e := &m.Effects[i]; e.Loss != nil {
			losses = append(losses, *e.Loss)
		} else {
			e.Collective.Set.Fail(e.Err) // under the lock: the collective cannot be over
		}
	}
	m.Effects = m.Effects[:0]
	if _, doubt := m.SuspectDeadline(); doubt && !w.mu.doubting && !w.mu.closed {
		w.mu.doubting = true
		w.tasks.Go(w.doubt)
	}
	closed := w.mu.closed
	w.mu.Unlock()
	for _, loss := range losses {
		if w.onLost != nil && !closed {
			failpoint.At("gloo.lost.report")
			w.onLost(loss)
		}
	}
}

// doubt waits until it is certain whether a rank that went without a word has died.
func (w *watch) doubt() {
	t := time.NewTicker(gloopresence.LookEvery)
	defer t.Stop()
	for {
		failpoint.At("gloo.watch.doubt.wait")
		select {
		case <-t.C:
		case <-w.stop:
			return
		}
		failpoint.At("gloo.watch.doubt")
		w.mu.Lock()
		if moved := w.moved.Load(); moved != w.mu.seen {
			w.mu.seen = moved
			w.mu.machine.Moved(w.now())
		}
		w.mu.machine.Look(w.now())
		_, doubt := w.mu.machine.SuspectDeadline()
		w.mu.doubting = doubt
		w.settle()
		if !doubt {
			return
		}
	}
}

// ended is told of a connection that ended without a goodbye.
func (w *watch) ended(e *gloopresence.End) {
	failpoint.At("gloo.watch.ended")
	w.mu.Lock()
	w.mu.machine.Ended(e)
	w.settle()
}

// received is told of a notice.
func (w *watch) received(p *pair, n *gloowire.Notice) {
	left := p.d.lostError(p, cohort.PeerLost, nil, goodbyeDetail)
	if n.Goodbye {
		failpoint.At("gloo.watch.left")
		w.mu.Lock()
		w.mu.machine.Left(w.now(), p.peer, n.Tags, left)
		w.settle()
		return
	}
	farewell := n.Text == ""
	e := &cohort.Error{Op: "gloo: group", Code: n.Code, Rank: cohort.Rank(n.Rank), Detail: cmp.Or(n.Text, farewellDetail) + " (told by rank " + itoa(p.peer) + ")"}
	dead := -1
	switch n.Code {
	case cohort.PeerLost:
		dead = n.Rank
		if farewell && dead < 0 {
			dead = p.peer // it names nobody else
		}
	case cohort.Closed:
		e.Code, e.Detail = cohort.PeerLost, goodbyeDetail+" during an operation"
	case cohort.Unknown, cohort.Canceled: // nobody here was cancelled
		e.Code = cohort.Aborted
	default:
	}
	if n.Rank < 0 {
		e.Rank = cohort.NoRank
		if n.Code != cohort.DeadlineExceeded { // whose time is over has waited for another rank
			e.Rank = cohort.Rank(p.peer)
		}
	}
	if e.Rank != cohort.NoRank && p.d.pairs[e.Rank] != nil {
		e.Peer = p.d.pairs[e.Rank].where()
	}
	failpoint.At("gloo.watch.told")
	w.mu.Lock()
	if farewell {
		w.mu.machine.Farewell(w.now(), p.peer, dead, e, left)
	} else {
		w.mu.machine.Told(w.now(), dead, e)
	}
	w.settle()
}

const (
	goodbyeDetail  = "it closed the group"
	farewellDetail = "the reason why a rank has closed the group"
)

// goodbye is what this rank says when it closes the group: goodbye, or why it has closed it, if there is a reason.
func (w *watch) goodbye() gloowire.Notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	if reason := w.mu.machine.Reason(); reason != nil {
		n := noticeOf(reason)
		n.Text = "" // it may be long, and the frame is sent without one
		return n
	}
	return gloowire.Notice{Goodbye: true, Tags: w.mu.machine.Done()}
}

func (w *watch) close() {
	failpoint.At("gloo.watch.close")
	w.mu.Lock()
	was := w.mu.closed
	w.mu.closed = true
	w.mu.Unlock()
	if !was {
		close(w.stop)
	}
}

// sweeps is how often Blame looks for readers that have not seen yet that their connection ended. They are late only on a
// machine with far too much to do. Looks are counted and not time: while this process does not run, its readers do not either.
const sweeps = 200

// catchUp waits for such readers. Many may want to know whom to blame, one after the other or at once: together they look no more often
// than one does.
func (w *watch) catchUp() {
	failpoint.At("gloo.watch.catchup")
	looks := <-w.looks
	defer func() { w.looks <- looks }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for w.mesh.unread() {
		if looks == sweeps {
			return
		}
		looks++
		failpoint.At("gloo.watch.blame")
		<-tick.C
	}
	looks = 0
}

// Blame names the rank that went first.
func (m *Mesh) Blame(err error) error {
	e, ok := errors.AsType[*cohort.Error](err)
	if !ok || e.Code != cohort.PeerLost || e.Rank < 0 {
		return err
	}
	w := m.watch
	w.catchUp()
	failpoint.At("gloo.watch.blamed")
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.machine.Blame(int(e.Rank), err)
}

// unread reports whether the connection to a rank has ended and the machine does not know of it yet.
func (m *Mesh) unread() bool {
	for _, d := range m.devices {
		for _, p := range d.pairs {
			if p != nil && p.unread() {
				return true
			}
		}
	}
	return false
}

func (p *pair) unread() bool {
	p.d.mu.Lock()
	conn, dead := p.conn, p.dead
	told := conn == nil || p.left || p.d.closing || p.d.machine.Err() != nil
	p.d.mu.Unlock()
	if told {
		return false
	}
	dead = dead || p.d.watch.order.turn(p.peer) > 0
	return dead && !p.d.watch.knows(p.peer)
}

// knows reports whether a rank is known to be gone.
func (w *watch) knows(rank int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.machine.Gone(rank)
}
