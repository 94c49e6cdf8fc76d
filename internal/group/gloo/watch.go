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
	// Watch records that a collective starts. If it cannot end any more, its set fails, now or at any time until Unwatch.
	Watch(c *gloopresence.Collective)
	// Unwatch records that it is over.
	Unwatch(c *gloopresence.Collective, ok bool)
	// Blame returns the error of a collective or a message that failed: it names the rank that was lost first where others followed.
	Blame(err error) error
}

// watch drives the machine that tracks which ranks are present.
type watch struct {
	mesh   *Mesh
	onLost func(transport.Loss)
	start  time.Time
	moved  atomic.Uint64 // bytes that arrived for collectives
	order  *order        // of connections that ended
	polls  chan int      // holds how often Blame has polled in vain; the goroutine that polls has taken it
	stop   chan struct{}
	tasks  sync.WaitGroup

	mu struct {
		sync.Mutex
		machine   *gloopresence.Machine
		seen      uint64 // moved when last read
		resolving bool   // resolveSuspects runs
		closed    bool
	}
}

func newWatch(m *Mesh, onLost func(transport.Loss)) *watch {
	w := &watch{mesh: m, onLost: onLost, start: time.Now(), order: newOrder(m.size), polls: make(chan int, 1), stop: make(chan struct{})}
	w.polls <- 0
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

// settle carries out what the machine asks for, starts resolveSuspects if needed, and releases the lock.
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
	if _, doubt := m.SuspectDeadline(); doubt && !w.mu.resolving && !w.mu.closed {
		w.mu.resolving = true
		w.tasks.Go(w.resolveSuspects)
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

// resolveSuspects waits until it is certain whether a rank whose connection ended without a notice has died.
func (w *watch) resolveSuspects() {
	t := time.NewTicker(gloopresence.PollInterval)
	defer t.Stop()
	for {
		failpoint.At("gloo.watch.suspect.wait")
		select {
		case <-t.C:
		case <-w.stop:
			return
		}
		failpoint.At("gloo.watch.suspect")
		w.mu.Lock()
		if moved := w.moved.Load(); moved != w.mu.seen {
			w.mu.seen = moved
			w.mu.machine.Moved(w.now())
		}
		w.mu.machine.Poll(w.now())
		_, doubt := w.mu.machine.SuspectDeadline()
		w.mu.resolving = doubt
		w.settle()
		if !doubt {
			return
		}
	}
}

// ended records a connection that ended without a shutdown message.
func (w *watch) ended(e *gloopresence.End) {
	failpoint.At("gloo.watch.ended")
	w.mu.Lock()
	w.mu.machine.Ended(e)
	w.settle()
}

// received records a notice.
func (w *watch) received(p *pair, n *gloowire.Notice) {
	left := p.d.lostError(p, cohort.PeerLost, nil, goodbyeDetail)
	if n.Goodbye {
		failpoint.At("gloo.watch.left")
		w.mu.Lock()
		w.mu.machine.Left(w.now(), p.peer, n.Tags, left)
		w.settle()
		return
	}
	withoutText := n.Text == ""
	e := &cohort.Error{
		Op: "gloo: group", Code: n.Code, Rank: cohort.Rank(n.Rank),
		Detail: cmp.Or(n.Text, closeReasonDetail) + " (reported by rank " + itoa(p.peer) + ")",
	}
	dead := -1
	switch n.Code {
	case cohort.PeerLost:
		dead = n.Rank
		if withoutText && dead < 0 {
			dead = p.peer // it names no other rank
		}
	case cohort.Closed:
		e.Code, e.Detail = cohort.PeerLost, goodbyeDetail+" during an operation"
	case cohort.Unknown, cohort.Canceled: // no operation was cancelled here
		e.Code = cohort.Aborted
	default:
	}
	if n.Rank < 0 {
		e.Rank = cohort.NoRank
		if n.Code != cohort.DeadlineExceeded { // a rank that timed out has waited for another rank
			e.Rank = cohort.Rank(p.peer)
		}
	}
	if e.Rank != cohort.NoRank && p.d.pairs[e.Rank] != nil {
		e.Peer = p.d.pairs[e.Rank].address()
	}
	failpoint.At("gloo.watch.report")
	w.mu.Lock()
	if withoutText {
		w.mu.machine.ClosedBecause(w.now(), p.peer, dead, e, left)
	} else {
		w.mu.machine.Abandoned(w.now(), dead, e)
	}
	w.settle()
}

const (
	goodbyeDetail     = "it closed the group"
	closeReasonDetail = "the reason why a rank has closed the group"
)

// goodbye is the notice that this rank sends when it closes the group: a goodbye, or the reason, if there is one.
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

// maxPolls is how often Blame polls for readers that have not seen yet that their connection ended. They are late only on a
// machine with far too much to do. Polls are counted and not time: while this process does not run, its readers do not either.
const maxPolls = 200

// catchUp waits for such readers. Many may want to know whom to blame, one after the other or at once: together they poll no more often
// than one does.
func (w *watch) catchUp() {
	failpoint.At("gloo.watch.catchup")
	polls := <-w.polls
	defer func() { w.polls <- polls }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for w.mesh.unread() {
		if polls == maxPolls {
			return
		}
		polls++
		failpoint.At("gloo.watch.blame")
		<-tick.C
	}
	polls = 0
}

// Blame names the rank that was lost first.
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

// unread reports whether the connection to a rank has ended and the machine has not recorded it yet.
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
	known := conn == nil || p.left || p.d.closing || p.d.machine.Err() != nil
	p.d.mu.Unlock()
	if known {
		return false
	}
	dead = dead || p.d.watch.order.position(p.peer) > 0
	return dead && !p.d.watch.recorded(p.peer)
}

// recorded reports whether a rank is known to be lost.
func (w *watch) recorded(rank int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.machine.Gone(rank)
}
