// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package storefail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

const (
	// redial, popGrace and lastWord are the client's own: a connect again, the time that a pop has to learn whether it
	// took an item, and the time that a wait listens for the word that nothing came.
	redial   = 2 * time.Second
	popGrace = time.Second
	lastWord = 200 * time.Millisecond
	// promptly is how soon a call ends after its context or its client has ended, pops apart.
	promptly = 10 * time.Millisecond
	maxCalls = 4
)

// timeout is that of the victim's client. A machine that does other things may keep a server from answering for seconds.
func timeout(r *failpointtest.Run) time.Duration {
	if r.Virtual() {
		return 2 * time.Second
	}
	return 8 * time.Second
}

// callBound is what a call takes at most when everything goes wrong.
func callBound(r *failpointtest.Run) time.Duration { return redial + timeout(r) + popGrace + lastWord }

// The events beside those of the context.
const (
	closeEvent   = "close"
	cutEvent     = "cut"
	killEvent    = "kill"
	restartEvent = "restart"
	stopEvent    = "stop"
	fullEvent    = "full" // the server stands still, and more is asked of the client than its queues take
	hookClose    = "hook-close"
	hookCall     = "hook-call"
	hookPanic    = "hook-panic"
	hookGoexit   = "hook-goexit"
	dialerPanic  = "dialer-panic"
	dialerGoexit = "dialer-goexit"
	dialerFails  = "dialer-fails"
)

func events() []failpointtest.Event {
	all := []failpointtest.Event{
		failpointtest.Cancel, failpointtest.CancelCause, failpointtest.Deadline,
		{Name: closeEvent, Where: failpointtest.Beside},
		{Name: killEvent, Where: failpointtest.Beside, Alone: true},
		{Name: restartEvent, Where: failpointtest.Beside, Alone: true},
		{Name: fullEvent, Where: failpointtest.Beside},
	}
	for _, name := range []string{cutEvent, stopEvent, hookClose, hookCall, hookPanic, hookGoexit, dialerPanic, dialerGoexit, dialerFails} {
		all = append(all, failpointtest.Event{Name: name})
	}
	return all
}

func scenario(d tcpstore.Dialect, virtual bool) failpointtest.Scenario {
	s := failpointtest.Scenario{Name: d.String() + "-memory", Virtual: virtual, Points: []string{"tcpstore."}, Events: events()}
	open := newMemoryWorld
	if !virtual {
		s.Name, s.Share, open = d.String()+"-process", 10, newProcessWorld
	}
	s.Run = func(r *failpointtest.Run) { play(r, d, open(r)) }
	return s
}

var dialects = []tcpstore.Dialect{tcpstore.DialectNative, tcpstore.DialectV, tcpstore.DialectLegacy}

func TestStoreClient(t *testing.T) {
	for _, virtual := range []bool{true, false} {
		for _, d := range dialects {
			failpointtest.Test(t, scenario(d, virtual))
		}
	}
}

// TestReplay: a seed in virtual time hits the same points in the same order each time. The kernel may take the processor
// away from a goroutine, which the scheduler then puts behind others; so a few seeds may differ.
func TestReplay(t *testing.T) {
	const all = 60
	same := 0
	for seed := range uint64(all) {
		s := scenario(tcpstore.DialectNative, true)
		if slices.Equal(failpointtest.Trace(t, s, seed+1), failpointtest.Trace(t, s, seed+1)) {
			same++
		}
	}
	if t.Logf("%d of %d seeds were replayed step by step", same, all); same < all*3/4 {
		t.Errorf("only %d of %d seeds were replayed step by step", same, all)
	}
}

// victim is a client to which things happen, and what its callbacks do next.
type victim struct {
	*tcpstore.Client
	r *failpointtest.Run

	mu     sync.Mutex
	hook   func() // what the next call of the hook does
	dialer func() // what the next call of the dialer does
	fails  bool   // the next call of the dialer does
}

func (v *victim) take(next *func()) func() {
	v.mu.Lock()
	defer v.mu.Unlock()
	f := *next
	*next = nil
	return f
}

func (v *victim) set(next *func(), f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	*next = f
}

func (v *victim) setFails() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fails = true
}

// failsNow reports whether this call of the dialer fails.
func (v *victim) failsNow() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	fails := v.fails
	v.fails = false
	return fails
}

func play(r *failpointtest.Run, d tcpstore.Dialect, w world) {
	r.Cleanup(w.close)
	ctx := context.Background()
	v := &victim{r: r}
	var err error
	v.Client, err = tcpstore.Dial(ctx, w.addr(), tcpstore.WithDialect(d), tcpstore.WithTimeout(timeout(r)),
		tcpstore.WithWaitConns(1+r.Rand.IntN(2)),
		tcpstore.WithDialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
			if f := v.take(&v.dialer); f != nil {
				f()
			}
			if v.failsNow() {
				return nil, syscall.ECONNREFUSED
			}
			return w.dial(ctx, network, addr)
		}),
		tcpstore.WithHook(func(observe.Event) {
			if f := v.take(&v.hook); f != nil {
				f()
			}
		}))
	if err != nil {
		r.Errorf("dial: %v", err)
		return
	}
	other, err := tcpstore.Dial(ctx, w.addr(), tcpstore.WithDialer(w.direct), tcpstore.WithTimeout(time.Minute))
	if err != nil {
		r.Errorf("dial: %v", err)
		return
	}
	r.Cleanup(func() { _ = other.Close() })
	r.Cleanup(func() { _ = v.Close() })

	g := newGame(r, v, other, w)
	g.prepare(ctx)
	g.arrange()
	g.act(ctx)
	r.Wait()
	r.End()
	g.resuming.Wait()
	g.check(ctx)
}

// game is what the clients do and what must have become of it.
type game struct {
	r     *failpointtest.Run
	v     *victim
	other *tcpstore.Client
	world world

	items  int // in the queue at the start
	calls  []*played
	others []*failpointtest.Call
	large  []byte
	first  []*ownConn // the victim's connections before anything happens, in memory

	started  chan struct{} // all calls are
	resuming sync.WaitGroup

	mu    sync.Mutex
	taken int // items that pops returned
}

// played is one call of the victim.
type played struct {
	*failpointtest.Call
	op  operation
	own bool // it has the victim's context
}

func newGame(r *failpointtest.Run, v *victim, other *tcpstore.Client, w world) *game {
	return &game{r: r, v: v, other: other, world: w, items: maxCalls, large: bytes.Repeat([]byte("x"), 1<<20), started: make(chan struct{})}
}

// prepare fills the store: nothing happens yet.
func (g *game) prepare(ctx context.Context) {
	err := g.other.Set(ctx, "there", []byte("value"))
	for i := range g.items {
		if err == nil {
			err = g.v.QueuePush(ctx, "queue", fmt.Appendf(nil, "item %d", i))
		}
	}
	if err != nil {
		g.r.Errorf("prepare: %v", err)
	}
}

// arrange says how the events happen.
func (g *game) arrange() {
	v, r := g.v, g.r
	if w, ok := g.world.(*memoryWorld); ok {
		g.first = w.victims()
	}
	r.On(closeEvent, func() {
		var twice sync.WaitGroup
		twice.Go(g.closeVictim)
		g.closeVictim()
		twice.Wait()
	})
	r.On(cutEvent, g.world.cut)
	r.On(killEvent, g.world.kill)
	r.On(restartEvent, g.world.restart)
	r.On(stopEvent, g.stop)
	r.On(fullEvent, g.fill)
	r.On(hookClose, func() { v.set(&v.hook, g.closeVictim) })
	r.On(hookCall, func() {
		v.set(&v.hook, func() {
			ctx, cancel := context.WithTimeout(context.Background(), timeout(r))
			defer cancel()
			_, _ = v.Check(ctx, "there")
		})
	})
	r.On(hookPanic, func() { v.set(&v.hook, failpointtest.Panic) })
	r.On(hookGoexit, func() { v.set(&v.hook, runtime.Goexit) })
	r.On(dialerPanic, func() { v.set(&v.dialer, failpointtest.Panic); g.world.cut() })
	r.On(dialerGoexit, func() { v.set(&v.dialer, runtime.Goexit); g.world.cut() })
	r.On(dialerFails, func() { v.set(&v.dialer, func() { v.setFails() }); g.world.cut() })
}

// act runs some operations of the victim at once, and what the other client does meanwhile.
func (g *game) act(ctx context.Context) {
	r := g.r
	own := r.Context()
	late := r.Rand.IntN(4) == 0 // the server does nothing at first
	if late {
		g.world.stop()
	}
	r.Begin()
	for i := range 1 + r.Rand.IntN(maxCalls) {
		p := &played{op: operations[r.Rand.IntN(len(operations))], own: i == 0 || r.Rand.IntN(2) == 0}
		with := ctx
		if p.own {
			with = own
		}
		if i > 0 && r.Rand.IntN(2) == 0 { // when another one may have been given up
			time.Sleep(time.Duration(r.Rand.IntN(60)) * time.Millisecond)
		}
		r.Does(p.op.name)
		p.Call = r.Go(fmt.Sprintf("call %d, %s", i, p.op.name), callBound(r), func() error { return p.op.do(with, g) })
		g.calls = append(g.calls, p)
	}
	g.others = append(g.others, r.Go("the other client's set", time.Minute+callBound(r), func() error {
		time.Sleep(50 * time.Millisecond)
		if _, stopped := r.Happened(stopEvent); late && !stopped {
			g.world.resume()
		}
		err := g.other.Set(ctx, "late", []byte("value"))
		for range maxCalls {
			if err == nil {
				err = g.other.QueuePush(ctx, lateQueue, []byte("item"))
			}
		}
		return err
	}))
	if late {
		g.others = append(g.others, r.Go("the other client's check", time.Minute+callBound(r), func() error {
			_, err := g.other.Check(ctx, "there")
			return err
		}))
	}
	close(g.started)
}

// closeVictim closes the victim's client. The caller, first or not, finds its connections closed afterwards.
func (g *game) closeVictim() {
	_ = g.v.Close()
	for _, c := range g.first {
		if !c.closed.Load() {
			g.r.Errorf("the client is closed, and a connection that it had from the beginning is not")
		}
	}
}

// stop stops the server until the victim's calls have ended.
func (g *game) stop() {
	g.world.stop()
	g.resuming.Go(func() {
		<-g.started
		for _, p := range g.calls {
			g.r.Await(p.Call)
		}
		g.world.resume()
	})
}

// fill asks for more than the client's queues take while the server stands still: megabytes that are not read, and more calls at once
// than there are connections. The victim's calls wait behind them.
func (g *game) fill() {
	if !g.r.Planned(stopEvent) { // that stands still for longer
		g.world.stop()
	}
	var all sync.WaitGroup
	for range 2 * maxCalls {
		all.Go(func() { g.filler(func(ctx context.Context) error { return g.v.Set(ctx, "full", g.large) }) })
		all.Go(func() { g.filler(func(ctx context.Context) error { return g.v.Wait(ctx, "there") }) })
	}
	time.Sleep(20 * time.Millisecond)
	if !g.r.Planned(stopEvent) {
		g.world.resume()
	}
	all.Wait()
}

// filler is one call of many. It ends as the victim's calls do.
func (g *game) filler(do func(ctx context.Context) error) {
	defer func() {
		if p := recover(); p != nil && !failpointtest.Meant(p) {
			panic(p)
		}
	}()
	c := &failpointtest.Call{Name: "one call of many"}
	c.Err = do(context.Background())
	g.r.Check(c, g.anyway()...)
}

// check is the oracle.
func (g *game) check(ctx context.Context) {
	r := g.r
	for _, p := range g.calls {
		allowed := g.anyway()
		if p.own {
			allowed = append(allowed, r.AllowContext(p.Call)...)
		}
		r.Check(p.Call, allowed...)
		g.prompt(p)
	}
	for _, c := range g.others {
		r.Check(c, r.Allow(cohort.PeerLost, killEvent, restartEvent), r.Allow(cohort.Unavailable, killEvent, restartEvent),
			r.Allow(cohort.Replaced, restartEvent))
	}
	if _, restarted := r.Happened(restartEvent); restarted {
		g.replaced(ctx)
		return
	}
	if _, killed := r.Happened(killEvent); killed {
		return
	}
	if _, err := g.other.Check(ctx, "there"); err != nil {
		r.Errorf("the other client cannot go on: %v", err)
	}
	g.goOn(ctx)
	g.count(ctx)
}

// anyway is what a call may end with whatever its context does.
func (g *game) anyway() []failpointtest.Allowance {
	r := g.r
	return []failpointtest.Allowance{
		r.Allow(cohort.Closed, closeEvent, hookClose),
		r.Allow(cohort.PeerLost, cutEvent, killEvent, restartEvent, dialerPanic, dialerGoexit, dialerFails),
		r.Allow(cohort.Unavailable, killEvent, restartEvent), r.Allow(cohort.Empty),
		r.Allow(cohort.Unavailable, cutEvent, dialerPanic, dialerGoexit, dialerFails), // the cut hit the one attempt to connect again
		r.Allow(cohort.DeadlineExceeded, stopEvent, restartEvent),                     // a key that was there is gone
		r.Allow(cohort.Replaced, restartEvent),
	}
}

// replaced checks that clients with an identity to compare do not go on in another store, and accept it when told to.
func (g *game) replaced(ctx context.Context) {
	for _, c := range []*tcpstore.Client{g.v.Client, g.other} {
		var err error
		for range 2 * (4 + 2) {
			if _, err = c.Add(ctx, "counter", 1); err == nil || errors.Is(err, cohort.Replaced) {
				break
			}
		}
		if c.Dialect() != tcpstore.DialectNative {
			if err != nil {
				g.r.Errorf("the client cannot go on: %v", err)
			}
			continue
		}
		if !errors.Is(err, cohort.Replaced) {
			g.r.Errorf("another store was taken for the old one: %v", err)
		}
		if _, _, err = c.Hello(ctx); err == nil {
			_, err = c.Add(ctx, "counter", 1)
		}
		if err != nil {
			g.r.Errorf("another store was not accepted: %v", err)
		}
	}
}

// prompt checks that a call ended soon after what ended it.
func (g *game) prompt(p *played) {
	grace := promptly
	if p.op.pops {
		grace += popGrace
	}
	ends := []string{closeEvent}
	if p.own {
		ends = append(ends, failpointtest.Cancel.Name, failpointtest.CancelCause.Name)
	}
	if g.r.Planned(hookCall) {
		grace += timeout(g.r) // a call ends when its hook has returned, and this one asks the server
	}
	for _, event := range ends {
		g.r.EndsSoon(p.Call, event, grace)
	}
}

// goOn checks that the client of the victim works, or says that it is closed. The connections that it has may be lost
// without its knowledge, so it may need some tries.
func (g *game) goOn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*callBound(g.r)) // a call that waits for a place waits as long as its context
	defer cancel()
	closed := false
	for _, event := range []string{closeEvent, hookClose} {
		_, happened := g.r.Happened(event)
		closed = closed || happened
	}
	for _, f := range []*func(){&g.v.hook, &g.v.dialer} { // what has not come to pass
		if g.v.take(f) != nil {
			closed = true
		}
	}
	if closed {
		return
	}
	var err error
	for range 2 * (4 + 2) { // as many as it has connections
		if err = g.v.Set(ctx, "after", []byte("value")); err == nil {
			_, err = g.v.Get(ctx, "after")
		}
		if err == nil {
			err = g.v.Wait(ctx, "after")
		}
		if err == nil {
			break
		}
	}
	if err != nil {
		g.r.Errorf("the client cannot go on: %v", err)
	} else if w, ok := g.world.(*memoryWorld); ok && g.v.Dialect() != tcpstore.DialectNative {
		g.allPlaces(ctx, w)
	}
}

// shortConns is how many connections a client of a PyTorch server has for calls that do not wait.
const shortConns = 4

// allPlaces checks that no place for a connection is lost: while the server stands still, as many calls are under way as there are
// places, each on a connection of its own.
func (g *game) allPlaces(ctx context.Context, w *memoryWorld) {
	w.cut()
	for range 2 * (4 + 2) { // the client closes the others when it finds one cut
		if _, err := g.v.Check(ctx, "after"); err == nil {
			break
		}
	}
	w.stop()
	var all sync.WaitGroup
	for range shortConns {
		all.Go(func() { _, _ = g.v.Check(ctx, "after") })
	}
	time.Sleep(100 * time.Millisecond)
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	if open < shortConns {
		g.r.Errorf("%d calls have %d connections", shortConns, open)
	}
	w.resume()
	all.Wait()
}

// count checks that no acknowledged write is lost, none has happened twice, and no item of the queue is gone but with a
// connection.
func (g *game) count(ctx context.Context) {
	sure, maybe, lost := int64(0), int64(0), 0
	for _, p := range g.calls {
		switch {
		case p.op.adds && !p.Gone() && p.Err == nil:
			sure++
		case p.op.adds:
			maybe++
		case p.op.pops && (p.Gone() || p.Err != nil):
			switch {
			case cohort.CodeOf(p.Err) == cohort.Empty:
			case g.v.Dialect() == tcpstore.DialectLegacy: // its queue is a value, changed by compare-and-set
				lost++
			case !p.Gone() && (cohort.CodeOf(p.Err) == cohort.Canceled || cohort.CodeOf(p.Err) == cohort.DeadlineExceeded) && !g.stopped():
			default:
				lost++
			}
		}
	}
	n, err := g.other.Add(ctx, "counter", 0)
	if err != nil || n < sure || n > sure+maybe {
		g.r.Errorf("the counter is %d, %v; %d additions were acknowledged, %d may have happened", n, err, sure, maybe)
	}
	var left int
	if g.v.Dialect() == tcpstore.DialectLegacy {
		return
	}
	for _, queue := range []string{"queue", lateQueue} {
		n, err := g.other.QueueLen(ctx, queue)
		if err != nil {
			g.r.Errorf("the length of a queue: %v", err)
		}
		left += n
	}
	if all := g.items + maxCalls; left+g.taken > all || left+g.taken < all-lost {
		g.r.Errorf("of %d items %d were taken and %d are left; %d may be lost", all, g.taken, left, lost)
	}
}

func (g *game) stopped() bool {
	_, ok := g.r.Happened(stopEvent)
	return ok
}
