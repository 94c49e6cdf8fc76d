// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/store"
)

const (
	size    = 3
	victim  = 1
	peer    = 2                // that may leave, too
	timeout = 30 * time.Second // of an operation
	noticed = time.Second      // within which a rank's end is known to all
	rarely  = time.Hour        // between signs of life: they would wake a goroutine whose wake-up was lost
)

// The events beside those of the context.
const (
	closeEvent     = "close"
	peerEvent      = "peer"  // another rank closes its group
	storeEvent     = "store" // the store is closed, which a group that is made does not need
	callbackClose  = "callback-close"
	callbackCall   = "callback-call"
	callbackPanic  = "callback-panic"
	callbackGoexit = "callback-goexit"
)

// lanes is the transport tcp with several connections between two ranks.
const lanes group.Transport = "lanes"

var transports = []group.Transport{group.SharedMemory, group.TCP, lanes, group.Gloo}

// with returns the options of a group on a transport.
func with(transport group.Transport, more ...group.Option) []group.Option {
	if transport == lanes {
		return append(more, group.WithTransport(group.TCP), group.WithConnections(3))
	}
	return append(more, group.WithTransport(transport))
}

func TestGroup(t *testing.T) {
	for _, transport := range transports {
		failpointtest.Test(t, failpointtest.Scenario{
			Name: string(transport), Share: 4,
			Points: []string{"group.", "transport.", "bootstrap.", "shm.", "tcp.", "lanes.", "gloo.", "native."},
			Events: []failpointtest.Event{
				failpointtest.Cancel, failpointtest.CancelCause, failpointtest.Deadline,
				{Name: closeEvent, Where: failpointtest.Beside},
				{Name: peerEvent, Where: failpointtest.Beside},
				{Name: storeEvent},
				{Name: callbackClose},
				{Name: callbackCall},
				{Name: callbackPanic},
				{Name: callbackGoexit},
			},
			Run: func(r *failpointtest.Run) { play(r, transport) },
		})
	}
}

// game is a world of ranks in this process.
type game struct {
	r      *failpointtest.Run
	groups []*group.Group
	steps  []step
	ahead  bool // operations are posted before the first is waited for
	memory [size]buffers

	mu       sync.Mutex
	callback func(*group.Work)
	posted   []*group.Work // by the victim
}

func play(r *failpointtest.Run, transport group.Transport) {
	s := store.NewMemory()
	r.Cleanup(func() { _ = s.Close() })
	r.On(storeEvent, func() { _ = s.Close() })
	opts := with(transport, group.WithTimeout(timeout), group.WithHeartbeat(rarely))
	if r.Rand.IntN(3) == 0 {
		opts = append(opts, group.WithQueue(2)) // full at once; a ring of messages needs two places
	}
	g := &game{r: r, steps: program(r.Rand), ahead: r.Rand.IntN(2) == 0, groups: form(r, s, opts)}
	if g.groups == nil {
		return
	}
	r.Cleanup(func() { closeAll(g.groups) })
	g.arrange()
	for _, s := range g.steps {
		r.Does(s.name)
	}
	calls := g.act()
	r.Wait()
	r.End()
	g.check(calls)
	for rank := range size {
		if err := g.memory[rank].untouched(); err != nil {
			r.Errorf("rank %d: %v", rank, err)
		}
	}
	if len(g.left()) == 0 {
		g.letGo()
	}
	closeAll(g.groups)
	// A group that ended can be followed by another over the same store.
	after := s
	if _, died := r.Happened(storeEvent); died {
		after = store.NewMemory()
		r.Cleanup(func() { _ = after.Close() })
	}
	if next := form(r, after, opts); next != nil {
		defer closeAll(next)
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		for rank, err := range each(func(rank int) error { return run(ctx, next[rank], operations[0], 10) }) {
			if err != nil {
				r.Errorf("rank %d of the next group: %v", rank, err)
			}
		}
	}
}

// form connects all ranks.
func form(r *failpointtest.Run, s store.Store, opts []group.Option) []*group.Group {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	groups := make([]*group.Group, size)
	failed := false
	for rank, err := range each(func(rank int) (err error) {
		groups[rank], err = group.New(ctx, s, cohort.Rank(rank), size, opts...)
		return err
	}) {
		if err != nil {
			failed = true
			r.Errorf("rank %d cannot join: %v", rank, err)
		}
	}
	if failed {
		closeAll(groups)
		return nil
	}
	return groups
}

func closeAll(groups []*group.Group) {
	each(func(rank int) error {
		if groups[rank] != nil {
			return groups[rank].Close()
		}
		return nil
	})
}

func each(f func(rank int) error) []error {
	errs := make([]error, size)
	var ranks sync.WaitGroup
	for rank := range size {
		ranks.Go(func() { errs[rank] = f(rank) })
	}
	ranks.Wait()
	return errs
}

// run posts an operation, waits for it and checks its result.
func run(ctx context.Context, g *group.Group, op operation, n int) error {
	works, check := op.post(ctx, g, new(buffers), n)
	for _, w := range works {
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
	return check()
}

// arrange says how the events happen, all of them to one rank.
func (g *game) arrange() {
	v := g.groups[victim]
	g.r.On(closeEvent, func() {
		var twice sync.WaitGroup
		twice.Go(g.closeVictim)
		g.closeVictim()
		twice.Wait()
	})
	g.r.On(peerEvent, func() { _ = g.groups[peer].Close() })
	set := func(f func(*group.Work)) func() {
		return func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.callback = f
		}
	}
	g.r.On(callbackClose, set(func(*group.Work) { g.closeVictim() }))
	g.r.On(callbackCall, set(func(w *group.Work) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_ = w.Wait(ctx)
		_, _ = v.Trace()
		_ = v.Err()
	}))
	g.r.On(callbackPanic, set(func(*group.Work) { failpointtest.Panic() }))
	g.r.On(callbackGoexit, set(func(*group.Work) { runtime.Goexit() }))
}

// closeVictim closes the victim's group. The caller, first or not, finds every operation ended afterwards.
func (g *game) closeVictim() {
	g.mu.Lock()
	posted := slices.Clone(g.posted)
	g.mu.Unlock()
	_ = g.groups[victim].Close()
	for _, w := range posted {
		if !w.Completed() {
			g.r.Errorf("the group is closed, and this has not ended: %v", w)
		}
	}
}

// letGo checks that groups that go on keep nothing of the memory that operations had.
func (g *game) letGo() {
	var kept []func() bool
	for rank := range size {
		kept = append(kept, g.memory[rank].forget()...)
	}
	g.posted = nil
	still := func() bool { return slices.ContainsFunc(kept, func(f func() bool) bool { return f() }) }
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) { // a goroutine may be about to end
		runtime.GC()
		if !still() {
			return
		}
		if time.Now().After(end) {
			g.r.Errorf("the memory of operations that have ended is kept")
			return
		}
	}
}

// done is the callback of every operation of the victim.
func (g *game) done(w *group.Work) {
	g.mu.Lock()
	f := g.callback
	g.callback = nil
	g.mu.Unlock()
	if f != nil {
		f(w)
	}
}

// act runs the program on all ranks.
func (g *game) act() []*failpointtest.Call {
	own := g.r.Context()
	late := g.r.Rand.IntN(2 * size) // a rank that joins late, or none
	watched := g.r.Rand.IntN(len(g.steps))
	g.r.Begin()
	calls := make([]*failpointtest.Call, size)
	for rank := range size {
		calls[rank] = g.r.Go(fmt.Sprintf("rank %d", rank), timeout+5*time.Second, func() error {
			if rank == late {
				time.Sleep(30 * time.Millisecond)
			}
			err := g.rank(own, rank, watched)
			if err != nil { // as a program does: others may wait for what this rank does not send or take any more
				if rank == victim {
					g.closeVictim()
				} else {
					_ = g.groups[rank].Close()
				}
			}
			g.memory[rank].takeBack() // every operation has ended
			return err
		})
	}
	return calls
}

// rank runs the program on one rank. The victim waits for one of its operations with a context that may end, which must
// end the wait alone: the operation is waited for again.
func (g *game) rank(own context.Context, rank, watched int) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var finish []func() error
	for i, s := range g.steps {
		works, check := s.post(ctx, g.groups[rank], &g.memory[rank], s.n)
		wait := func() error {
			for _, w := range works {
				if rank == victim && i == watched {
					if err := g.impatient(own, w); err != nil {
						return err
					}
				}
				if err := w.Wait(ctx); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
			}
			return check()
		}
		if rank == victim {
			g.mu.Lock()
			g.posted = append(g.posted, works...)
			g.mu.Unlock()
			for _, w := range works {
				w.OnDone(g.done)
			}
		}
		if g.ahead {
			finish = append(finish, wait)
		} else if err := wait(); err != nil {
			return err
		}
	}
	for _, wait := range finish {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

// impatient waits until own ends. An error that is not the end of own is the operation's.
func (g *game) impatient(own context.Context, w *group.Work) error {
	err := w.Wait(own)
	switch {
	case err == nil || own.Err() != nil && errors.Is(err, own.Err()):
		return nil // the operation may end at the same time
	case own.Err() == nil || w.Completed():
		return err
	}
	return fmt.Errorf("the end of a wait gave %w, which does not match %w", err, own.Err())
}

// leavers are the events by which a rank leaves.
var leavers = map[int][]string{victim: {closeEvent, callbackClose}, peer: {peerEvent}}

// left returns the ranks that have left, or may have.
func (g *game) left() map[cohort.Rank]bool {
	left := map[cohort.Rank]bool{}
	for rank, events := range leavers {
		for _, event := range events {
			if _, happened := g.r.Happened(event); happened {
				left[cohort.Rank(rank)] = true
			}
		}
	}
	return left
}

// check is the oracle.
func (g *game) check(calls []*failpointtest.Call) {
	r := g.r
	left := g.left()
	for rank, c := range calls {
		var others []string // by which another rank leaves
		for leaver, events := range leavers {
			if leaver != rank {
				others = append(others, events...)
			}
		}
		allowed := []failpointtest.Allowance{r.Allow(cohort.PeerLost, others...)}
		if events := leavers[rank]; events != nil {
			allowed = append(allowed, r.Allow(cohort.Closed, events...))
		}
		r.Check(c, allowed...)
		if e, ok := errors.AsType[*cohort.Error](c.Err); ok && e.Code == cohort.PeerLost && (!left[e.Rank] || e.Rank == cohort.Rank(rank)) {
			r.Errorf("rank %d blames rank %d, and those that left are %v: %v", rank, e.Rank, left, c.Err)
		}
		for _, event := range []string{closeEvent, peerEvent} {
			r.EndsSoon(c, event, noticed)
		}
	}
	if len(left) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for rank, err := range each(func(rank int) error { return run(ctx, g.groups[rank], operations[0], 10) }) {
		if err != nil {
			r.Errorf("rank %d cannot go on: %v", rank, err)
		}
	}
}
