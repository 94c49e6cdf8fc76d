// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcref

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// flushDirty sends what is waiting. A mere acknowledgement is left for the next time, which it reports.
func (r *Refs) flushDirty() (left bool) {
	failpoint.At("rpc.refs.dirty")
	r.mu.Lock()
	var to []rrefcore.Worker
	for w := range r.mu.dirty {
		_, waited := r.mu.lazy[w]
		if r.mu.m.Unsent(w) == 0 && !waited && !r.cfg.Net.Leaving.Load() {
			r.mu.lazy[w] = struct{}{}
			left = true
			continue
		}
		delete(r.mu.dirty, w)
		delete(r.mu.lazy, w)
		to = append(to, w)
	}
	r.mu.Unlock()
	for _, w := range to {
		p := r.cfg.Net.PeerByID(w)
		if p == nil {
			continue
		}
		if c := p.Current(); c != nil && c.Link != nil {
			r.flushSoon(p)
			continue
		}
		failpoint.At("rpc.refs.waiting")
		r.mu.Lock()
		waiting := r.mu.m.Waiting(w)
		r.mu.Unlock()
		if waiting > 0 { // the connection brings it along
			r.cfg.Net.StartReconnect(p)
		}
	}
	return left
}

// flushSoon sends the control stream's news to a peer in a goroutine of that peer: one that takes no data delays no other
// else's signs of life.
func (r *Refs) flushSoon(p *rpcsession.Peer) {
	q := of(p)
	q.flushes.wanted.Store(true)
	if !q.flushes.running.CompareAndSwap(false, true) {
		return
	}
	if !r.cfg.Net.Go(func() {
		for {
			for q.flushes.wanted.Swap(false) {
				failpoint.At("rpc.refs.flush")
				r.flushStream(p)
			}
			q.flushes.running.Store(false)
			if !q.flushes.wanted.Load() || !q.flushes.running.CompareAndSwap(false, true) {
				return
			}
		}
	}) {
		q.flushes.running.Store(false)
	}
}

// flushStream sends the news on the link where the stream goes.
func (r *Refs) flushStream(p *rpcsession.Peer) {
	q := of(p)
	failpoint.At("rpc.refs.stream")
	q.flush.Lock()
	c := q.stream
	q.flush.Unlock()
	if c != nil {
		r.FlushOn(p, c)
	}
}

// maxKept bounds the room that is kept for the bytes of the next frame.
const maxKept = 16 << 10

// FlushOn sends the control stream's news on a link, in order.
//
//nolint:contextcheck,nolintlint // the stream outlives the caller that caused its messages
func (r *Refs) FlushOn(p *rpcsession.Peer, c *rpcsession.Conn) {
	q := of(p)
	failpoint.At("rpc.refs.flush_on")
	q.flush.Lock()
	defer q.flush.Unlock()
	defer c.Link.FlushNow()
	if q.stream != c {
		return // what went out there would be missing where the stream goes on
	}
	for {
		r.mu.Lock()
		f, ok := r.mu.m.FrameIn(p.ID, q.leaving)
		r.mu.Unlock()
		if !ok {
			return
		}
		payload := appendControl(q.bytes, f)
		q.leaving, q.bytes = kept(f.Msgs), nil
		ctx, cancel := context.WithTimeout(r.cfg.Net.Context, 10*time.Second)
		send := c.Link.Request
		if awaited(f) {
			send = c.Link.Send
		}
		err := send(ctx, &cohortwire.Frame{Type: rpcsession.FrameControl, Payload: payload})
		cancel()
		if err == nil && cap(payload) <= maxKept {
			q.bytes = payload[:0] // it was copied or written
		}
		if err != nil { // the next frame brings it again, on this link or on the next
			r.mu.Lock()
			r.mu.m.Resend(p.ID)
			r.mu.Unlock()
			return
		}
	}
}

// awaited reports whether a caller may wait for what a frame brings about. Only then must a link whose reading is lent go on reading.
func awaited(f rrefcore.Frame) bool {
	return slices.ContainsFunc(f.Msgs, func(m rrefcore.Message) bool {
		return m.Kind != rrefcore.Announce && m.Kind != rrefcore.Created && m.Kind != rrefcore.Delete
	})
}

// Stall makes what is sent to a peer go nowhere until release is called, for tests. flushing reports whether something is
// being sent.
func (r *Refs) Stall(p *rpcsession.Peer) (flushing func() bool, release func()) {
	q := of(p)
	q.flush.Lock()
	return q.flushes.running.Load, q.flush.Unlock
}

// Forge sends a control message that this worker has no right to send, for tests.
func (r *Refs) Forge(to rrefcore.Worker, msg rrefcore.Message) {
	r.step(func(m *rrefcore.Machine) { m.Forge(to, msg) })
}

// SendWithNextFlush is told that something lingers on the link to a Go worker. It leaves with the next flush, also if
// the control stream has nothing to say by then but an acknowledgement.
func (r *Refs) SendWithNextFlush(p *rpcsession.Peer) {
	failpoint.At("rpc.refs.lingers")
	r.mu.Lock()
	if _, known := r.mu.dirty[p.ID]; !known {
		r.mu.dirty[p.ID] = false
	}
	r.mu.lazy[p.ID] = struct{}{}
	r.mu.Unlock()
	r.perform(effects{later: true})
}

// RequestAnswerNow makes the answer to a creation come at once, which otherwise lingers at the owner: the owner sends
// it when a control frame comes. Mostly the one that announces the creation waits here; else an empty one is sent.
func (r *Refs) RequestAnswerNow(h *Handle) {
	if r.settled(h) {
		return
	}
	if p := r.cfg.Net.PeerByID(h.Wire.Owner); p != nil && p.SpeaksCohort() {
		r.stepLazy(func(m *rrefcore.Machine) { m.Greet(p.ID) })
		r.flushSoon(p)
	}
	r.cfg.Net.ReclaimReader(h.Wire.Owner)
}

// FlushNow sends hand-offs before the message that carries the references.
func (r *Refs) FlushNow(p *rpcsession.Peer, wires []rrefcore.Wire) {
	if len(wires) == 0 || p == nil {
		return
	}
	if c := p.Current(); c != nil && c.Link != nil {
		r.FlushOn(p, c)
	}
}

// DropHeld deletes the references that this worker holds and waits until their owners know. It does not wait for those that others
// hold of this worker's objects: they do the same.
func (r *Refs) DropHeld(ctx context.Context) error {
	deaf := r.deaf(ctx)
	if err := r.await(ctx, deaf, func(c rrefcore.Counts) bool { return c.PendingUsers+c.PendingChildren == 0 }); err != nil {
		r.cfg.Logger.Warn("references are still pending", slog.String("worker", r.cfg.Name), slog.String("err", err.Error()))
	}
	r.dropAll(deaf)
	return r.await(ctx, deaf, func(c rrefcore.Counts) bool {
		return c.PendingUsers+c.ConfirmedUsers+c.PendingChildren+c.PendingFutures == 0
	})
}

// askTime bounds how long DropHeld asks which workers are Go workers. Until it knows it releases nothing.
const askTime = 2 * time.Second

// deaf returns what tells of which workers nothing can come any more: of a PyTorch worker whose pipe has ended. A Go worker on the
// same transport opens another one, and so may a worker of which the kind is not known.
func (r *Refs) deaf(ctx context.Context) func(rrefcore.Worker) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	returns := map[rrefcore.Worker]bool{}
	for _, p := range r.cfg.Net.Members() {
		if !p.SpeaksCohort() {
			isGo, err := r.cfg.IsGo(ctx, p.Name)
			returns[p.ID] = isGo || err != nil
		}
	}
	return func(w rrefcore.Worker) bool { return !returns[w] && r.cfg.Net.RequestPipesClosed(w) }
}

// dropAll closes every reference; their later use fails with a clear error.
func (r *Refs) dropAll(deaf func(rrefcore.Worker) bool) {
	failpoint.At("rpc.refs.drop_all")
	r.mu.Lock()
	for fork, h := range r.mu.handles {
		h.settle(r.unusable(h, rrefcore.Closed))
		delete(r.mu.handles, fork)
	}
	r.mu.m.UnpinStuck(deaf)
	r.mu.m.DropAll()
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
}

// await polls the machine until it has come to rest, but for what is stuck.
func (r *Refs) await(ctx context.Context, deaf func(rrefcore.Worker) bool, done func(rrefcore.Counts) bool) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		r.mu.Lock()
		c := r.mu.m.Counts()
		c.PendingChildren -= r.mu.m.Stuck(deaf)
		r.mu.Unlock()
		if done(c) {
			return nil
		}
		failpoint.At("rpc.refs.await")
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			e := cohort.Ended(ctx, "rpc: shutdown")
			e.Detail = fmt.Sprintf("%d pending users, %d confirmed users, %d pending children and %d control messages are left",
				c.PendingUsers, c.ConfirmedUsers, c.PendingChildren, c.PendingFutures)
			return e
		}
	}
}
