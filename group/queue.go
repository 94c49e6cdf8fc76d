// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/recorder"
	"github.com/cohort-dist/cohort/observe"
)

func asError(err error) *dist.Error {
	e, _ := errors.AsType[*dist.Error](err)
	return e
}

// admit waits for a place among the posted operations, and takes it. It is called with the mutex held and returns so,
// whatever it returns.
func (g *Group) admit(ctx context.Context, op OpType) error {
	for {
		if err := g.failedLocked(op); err != nil {
			return err
		}
		if g.posted < g.config.queue {
			g.posted++
			return nil
		}
		if g.reapLocked(nil) {
			continue
		}
		room := g.room
		g.mu.Unlock()
		g.wakePump() // somebody must run what is posted
		select {
		case <-room:
		case <-ctx.Done():
			g.mu.Lock()
			e := dist.Ended("group: "+op.String(), ctx)
			e.Detail = "the context ended while the operation waited for its place: as many are posted as the group's queue takes"
			return e
		}
		g.mu.Lock()
	}
}

// leaveLocked gives a place back.
func (g *Group) leaveLocked() {
	if g.posted == g.config.queue {
		close(g.room)
		g.room = make(chan struct{})
	}
	g.posted--
}

// post queues a collective, after a check where the PyTorch ranks make one. It takes tags many sequence numbers.
func (g *Group) post(ctx context.Context, w *Work, tags uint32) *Work {
	if g.checks != nil && w.steps == nil {
		return g.checked(ctx, w, tags)
	}
	return g.enqueue(ctx, w, tags)
}

func (g *Group) enqueue(ctx context.Context, w *Work, tags uint32) *Work {
	if err := ctx.Err(); err != nil {
		w.complete(dist.FromContext("group: "+w.op.String(), ctx))
		return w
	}
	g.mu.Lock()
	if err := g.admit(ctx, w.op); err != nil {
		g.mu.Unlock()
		w.complete(err)
		return w
	}
	w.group, w.seq, w.req.Tag, w.posted = g, uint64(g.tag), g.tag, time.Now()
	g.tag += tags
	g.torchSeq += g.torchSteps(w)
	if w.timeout <= 0 {
		w.timeout = g.config.timeout
	}
	w.req.Timeout = w.timeout
	w.record = g.records.Post(recorder.Entry{
		Seq: w.seq, Op: opName(w.op), Reduce: reduceName(w), DType: dtypeName(w), In: int64(len(w.req.In)), Out: int64(len(w.req.Out)),
		Peer: rootOf(w), Posted: w.posted, Timeout: w.timeout,
	})
	if g.tail == nil {
		g.head = w
	} else {
		g.tail.next = w
	}
	g.tail = w
	g.watchLocked(w.posted.Add(w.timeout))
	if g.head != w { // another one waits already, so the program does not wait for each
		g.eager, g.prompt = true, 0
	}
	wake := g.eager
	g.mu.Unlock()
	g.emit(w)
	if wake {
		g.wakePump()
	} else {
		g.family.clock.watch(g)
	}
	return w
}

// wait is Work.Wait for an operation of this group.
func (g *Group) wait(ctx context.Context, w *Work) error {
	if w.p2p {
		return g.waitMessage(ctx, w)
	}
	first := true
	for {
		g.mu.Lock()
		if w.completed.Load() {
			g.mu.Unlock()
			return w.err
		}
		if first {
			first = false
			g.learn(w)
		}
		if !g.busy && g.inlineLocked(ctx) {
			g.busy = true
			g.mu.Unlock()
			err := g.runNext(ctx)
			g.release()
			if err != nil && !w.completed.Load() {
				return err
			}
			continue
		}
		busy := g.busy
		w.waiters++
		g.mu.Unlock()
		if !busy {
			g.wakePump()
		}
		select {
		case <-w.Done():
		case <-ctx.Done():
		}
		g.mu.Lock()
		w.waiters--
		g.mu.Unlock()
		if w.completed.Load() {
			return w.err
		}
		if ctx.Err() != nil {
			return dist.FromContext("group: wait", ctx)
		}
	}
}

// inlineLocked reports whether a waiter with this context may run the next operation in its own goroutine: it must be able
// to leave when the context ends.
func (g *Group) inlineLocked(ctx context.Context) bool {
	if ctx.Done() == nil {
		return true
	}
	next := g.running
	if next == nil {
		next = g.head
	}
	return g.resumable && (next == nil || next.steps == nil)
}

// learn adapts to how the program posts: when every operation is waited for at once, waking the pump only costs.
func (g *Group) learn(w *Work) {
	if !g.eager {
		return
	}
	if time.Since(w.posted) < 50*time.Microsecond {
		g.prompt++
		if g.prompt >= 8 {
			g.eager, g.prompt = false, 0
		}
	} else {
		g.prompt = 0
	}
}

// runNext runs the collective that was interrupted, or else the next one. It returns an error when ctx ended before the
// operation was over. The caller is the only one that runs collectives.
func (g *Group) runNext(ctx context.Context) error {
	g.mu.Lock()
	w := g.running
	if w == nil {
		w = g.head
		if w == nil {
			g.mu.Unlock()
			return nil
		}
		g.head = w.next
		if g.head == nil {
			g.tail = nil
		}
		w.next = nil
		g.running = w
	}
	g.mu.Unlock()
	if w.begun.IsZero() {
		now := time.Now()
		w.mu.Lock()
		w.begun = now
		w.mu.Unlock()
		g.records.Start(w.record, now)
	}
	err := g.execute(ctx, w)
	if err != nil && g.leftEarly(ctx, err) {
		return dist.FromContext("group: wait", ctx)
	}
	if err == nil && w.finish != nil {
		err = w.finish()
	}
	g.mu.Lock()
	g.running = nil
	g.mu.Unlock()
	if err != nil {
		err = g.explain(w, err)
		g.fail(err)
	}
	g.ended(w, err)
	return nil
}

// leftEarly reports whether err only says that the context ended before the operation did. Such an operation goes on later;
// if it had really failed, it says so then.
func (g *Group) leftEarly(ctx context.Context, err error) bool {
	var interrupted *coll.Interrupted
	return errors.As(err, &interrupted) || g.resumable && ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// execute runs the operation itself.
func (g *Group) execute(ctx context.Context, w *Work) error {
	if w.steps == nil {
		if !g.resumable {
			ctx = g.working
		}
		return g.engine.Run(ctx, &w.req)
	}
	for len(w.steps) > 0 { // a step that was interrupted runs again
		if err := w.steps[0](g.working); err != nil {
			return err
		}
		w.steps = w.steps[1:]
	}
	return nil
}

// explain names the group's own reason where the engine only saw its consequence.
func (g *Group) explain(w *Work, err error) error {
	g.mu.Lock()
	failure := g.failure
	g.mu.Unlock()
	if failure != nil {
		return failure
	}
	if asError(err) == nil {
		err = dist.Wrap("group: "+w.op.String(), dist.Internal, err)
	}
	return g.verdict.judge(err)
}

// release ends the role of the one who runs collectives.
func (g *Group) release() {
	g.mu.Lock()
	g.busy = false
	next := g.running
	if next == nil {
		next = g.head
	}
	wake := next != nil && (g.eager || next.waiters > 0 || next == g.running)
	g.mu.Unlock()
	if wake {
		g.wakePump()
	}
}

// ended completes an operation of the group.
func (g *Group) ended(w *Work, err error) {
	now := time.Now()
	g.records.End(w.record, now, w.source, err) // a collective has no source
	g.mu.Lock()
	g.leaveLocked()
	g.mu.Unlock()
	// The place is free before anybody can see the completion, so that a loop that posts and waits never finds it taken.
	// From then on the Work is its owner's, who may use it for the next operation.
	collective := !w.p2p
	var event observe.Event
	if g.config.hook != nil {
		event = g.event(w, observe.End, err)
		w.mu.Lock()
		if !w.begun.IsZero() {
			event.Dur = now.Sub(w.begun)
		}
		w.mu.Unlock()
	}
	if !w.completeAt(now, err) {
		return
	}
	if err == nil && collective && g.torch != torchNone {
		g.proven.Store(true)
	}
	if g.config.hook != nil {
		g.config.hook.Emit(event)
	}
	if g.config.profile != nil {
		g.config.profile(w)
	}
}

// emit tells the hook that an operation was posted.
func (g *Group) emit(w *Work) {
	if g.config.hook != nil {
		g.config.hook.Emit(g.event(w, observe.Begin, nil))
	}
}

func (g *Group) event(w *Work, phase observe.Phase, err error) observe.Event {
	return observe.Event{
		Kind: observe.Kind("group." + opName(w.op)), Phase: phase, Rank: dist.Rank(g.rank), Group: g.name, Seq: w.seq,
		Bytes: int64(max(len(w.req.In), len(w.req.Out), len(w.message.Buf))), Err: err,
	}
}

func (g *Group) wakePump() {
	select {
	case g.pumpWake <- struct{}{}:
	default:
	}
}

// pump runs collectives that nobody waits for.
func (g *Group) pump() {
	defer g.tasks.Done()
	for {
		select {
		case <-g.pumpWake:
		case <-g.life.Done():
			return
		}
		for {
			g.mu.Lock()
			if g.busy || (g.head == nil && g.running == nil) {
				g.mu.Unlock()
				break
			}
			g.busy = true
			g.mu.Unlock()
			_ = g.runNext(g.life) // its error is in the Work
			g.mu.Lock()
			g.busy = false
			g.mu.Unlock()
		}
	}
}

// tick is called by the clock while operations are posted: it picks up what nobody waits for.
func (g *Group) tick(now time.Time) (more bool, tag, messages uint64) {
	g.mu.Lock()
	w := g.head
	stale := w != nil && !g.busy && now.Sub(w.posted) > fastTick/2
	if stale {
		g.eager, g.prompt = true, 0
	}
	g.reapLocked(nil)
	more = (g.head != nil || g.running != nil || len(g.messages) > 0) && !g.closed
	tag, messages = uint64(g.tag), g.p2pSeq
	g.mu.Unlock()
	if stale {
		g.wakePump()
	}
	return more, tag, messages
}

// watchLocked makes sure that the group looks at its deadlines no later than at.
func (g *Group) watchLocked(at time.Time) {
	if g.closed || (!g.timerAt.IsZero() && !at.Before(g.timerAt)) {
		return
	}
	g.timerAt = at
	if g.timer == nil {
		g.timer = time.AfterFunc(time.Until(at), g.expire)
		return
	}
	g.timer.Reset(time.Until(at))
}

// expire ends operations whose time is over. A collective takes the group with it.
func (g *Group) expire() {
	now := time.Now()
	var late *Work
	var lateMessages []*Work
	g.mu.Lock()
	g.timerAt = time.Time{}
	next := time.Time{}
	look := func(w *Work) {
		at := w.posted.Add(w.timeout)
		if !at.After(now) {
			if w.p2p {
				lateMessages = append(lateMessages, w)
			} else if late == nil {
				late = w
			}
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if g.running != nil {
		look(g.running)
	}
	for w := g.head; w != nil; w = w.next {
		look(w)
	}
	for _, w := range g.messages {
		look(w)
	}
	if !next.IsZero() {
		g.watchLocked(next)
	}
	g.mu.Unlock()
	if late != nil {
		e := dist.Newf("group: "+late.op.String(), dist.DeadlineExceeded, "operation %d of group %s did not complete within %v", late.seq, g.name, late.timeout)
		if m, ok := g.mesh.(interface{ Awaited() []int }); ok {
			if ranks := m.Awaited(); len(ranks) > 0 {
				e.Rank = dist.Rank(ranks[0])
				e.Detail += "; it waits for " + rankList(ranks)
			}
		}
		g.fail(e)
	}
	for _, w := range lateMessages {
		g.expireMessage(w)
	}
}
