// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package rpcfail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the panics of callbacks are meant
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(workerMain(spec))
	}
	os.Exit(m.Run())
}

const (
	timeout = 20 * time.Second // of a call
	soon    = time.Second      // after what ends it
	calls   = 4
	places  = 3 // for handlers
	queue   = 8 // requests that wait for one
)

// The events beside those of the context.
const (
	closeEvent     = "close"    // the victim's agent
	peerEvent      = "peer"     // the agent that it calls
	shutdownEvent  = "shutdown" // the victim leaves in order; in a static world all do
	newcomerEvent  = "newcomer" // another worker joins, calls and leaves
	fullEvent      = "full"     // another worker sends more requests to the one that the victim calls than can run and wait there
	storeEvent     = "store"    // the store is closed, which workers that know each other do not need
	callbackClose  = "callback-close"
	callbackCall   = "callback-call"
	callbackPanic  = "callback-panic"
	callbackGoexit = "callback-goexit"
)

func TestRPC(t *testing.T) {
	for _, wire := range []string{"cohort", "uv"} {
		for _, static := range []bool{true, false} {
			name := wire + "-dynamic"
			events := []failpointtest.Event{
				failpointtest.Cancel, failpointtest.CancelCause, failpointtest.Deadline,
				{Name: closeEvent, Where: failpointtest.Beside},
				{Name: peerEvent, Where: failpointtest.Beside},
				{Name: shutdownEvent, Where: failpointtest.Beside},
				{Name: fullEvent, Where: failpointtest.Beside},
				{Name: storeEvent},
				{Name: callbackClose},
				{Name: callbackCall},
				{Name: callbackPanic},
				{Name: callbackGoexit},
			}
			if static {
				name = wire + "-static"
			} else {
				events = append(events, failpointtest.Event{Name: newcomerEvent, Where: failpointtest.Beside})
			}
			failpointtest.Test(t, failpointtest.Scenario{
				Name: name, Share: 4, Points: []string{"rpc.", "cohortwire.", "tensorpipe."}, Events: events,
				Run: func(r *failpointtest.Run) { play(r, wire, static) },
			})
		}
	}
}

// game is a world of three workers: "a" is the victim, "b" the one it calls most, "c" looks on.
type game struct {
	r      *failpointtest.Run
	static bool
	store  *store.Memory
	agents map[string]*rpc.Agent
	opts   []rpc.Option

	newcomers atomic.Int32
	values    atomic.Int64
	fills     atomic.Int32

	mu       sync.Mutex
	callback func()
	held     map[int]chan struct{} // closed when the requests of a fill may go on
}

var names = []string{"a", "b", "c"}

func handlers() *rpc.Registry {
	return rpc.NewRegistry().
		MustHandle("test.double", func(n int) int { return 2 * n }).
		MustHandle("test.slow", func(ctx context.Context, n int) (int, error) {
			select {
			case <-time.After(40 * time.Millisecond):
				return n, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}).
		MustHandle("test.panic", func() int { panic("a handler panics") }).
		MustHandle("test.exit", func() int { runtime.Goexit(); return 0 }).
		MustHandle("test.make", func(n int) *int { return &n }).
		MustHandle("test.tensor", func(t *tensor.Tensor) *tensor.Tensor { return t }, rpc.Borrowed()).
		MustHandle("test.fetch", func(ctx context.Context, ref *rpc.Ref[int]) (int, error) {
			defer func() { _ = ref.Close() }()
			return ref.Fetch(ctx)
		}).
		MustHandle("test.relay", func(ctx context.Context, ref *rpc.Ref[int]) (int, error) {
			defer func() { _ = ref.Close() }()
			return rpc.Call[int](ctx, ref.Agent(), ref.Owner().Name, "test.fetch", ref)
		}).
		MustHandle("test.echo", func(b []byte) []byte { return b })
}

func play(r *failpointtest.Run, wire string, static bool) {
	g := &game{r: r, static: static, store: store.NewMemory(), agents: map[string]*rpc.Agent{}, held: map[int]chan struct{}{}}
	r.Cleanup(func() { _ = g.store.Close() })
	g.opts = []rpc.Option{
		rpc.WithHandlers(handlers().MustHandle("test.hold", g.hold)), rpc.WithTimeout(timeout),
		rpc.WithConcurrency(places), rpc.WithQueue(queue),
	}
	if wire != "cohort" {
		g.opts = append(g.opts, rpc.WithTransports(wire))
	}
	if !g.join(static) {
		return
	}
	r.Cleanup(g.closeAll)
	g.arrange()
	if r.Planned(storeEvent) {
		g.goOn() // they get to know each other
	}
	own := r.Context()
	r.Begin()
	var played []*failpointtest.Call
	var ops []operation
	for i := range calls {
		op, with := operations[r.Rand.IntN(len(operations))], own
		if i > 0 && r.Rand.IntN(2) == 0 {
			with = context.Background()
			op.patient = true
		}
		r.Does(op.name)
		ops = append(ops, op)
		played = append(played, r.Go(fmt.Sprintf("call %d, %s", i, op.name), timeout+5*time.Second, func() error { return op.do(with, g) }))
	}
	r.Wait()
	r.End()
	for i, c := range played {
		g.judge(c, ops[i])
	}
	g.goOn()
	g.holdsNothing()
}

// join starts the workers.
func (g *game) join(static bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var mu sync.Mutex
	var joins sync.WaitGroup
	ok := true
	for rank, name := range names {
		joins.Go(func() {
			opts := g.opts
			if static {
				opts = append([]rpc.Option{rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(len(names))}, opts...)
			}
			a, err := rpc.Join(ctx, g.store, name, opts...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				g.r.Errorf("%s cannot join: %v", name, err)
				ok = false
				return
			}
			g.agents[name] = a
		})
	}
	joins.Wait()
	if !ok {
		g.closeAll()
	}
	return ok
}

func (g *game) closeAll() {
	var closing sync.WaitGroup
	for _, a := range g.agents {
		closing.Go(func() { _ = a.Close() })
	}
	closing.Wait()
}

func (g *game) arrange() {
	a := g.agents["a"]
	g.r.On(closeEvent, func() {
		var twice sync.WaitGroup
		twice.Go(g.closeVictim)
		g.closeVictim()
		twice.Wait()
	})
	g.r.On(peerEvent, func() { _ = g.agents["b"].Close() })
	g.r.On(shutdownEvent, g.shutdown)
	g.r.On(newcomerEvent, g.newcomer)
	g.r.On(fullEvent, g.fill)
	g.r.On(storeEvent, func() { _ = g.store.Close() })
	set := func(f func()) func() {
		return func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.callback = f
		}
	}
	g.r.On(callbackClose, set(func() { _ = a.Close() })) // which cannot wait for this callback
	g.r.On(callbackCall, set(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_, _ = rpc.Call[int](ctx, a, "c", "test.double", 1)
	}))
	g.r.On(callbackPanic, set(failpointtest.Panic))
	g.r.On(callbackGoexit, set(runtime.Goexit))
}

// closeGrace is how long Close waits for the program's code in goroutines of the agent.
const closeGrace = time.Second

// closeVictim closes the victim's agent. A caller of that, first or not, finds its goroutines ended afterwards.
func (g *game) closeVictim() {
	a, began := g.agents["a"], time.Now()
	_ = a.Close()
	select {
	case <-a.Done():
	default:
		if took := time.Since(began); took < closeGrace {
			g.r.Errorf("Close returned after %v, and the agent has not ended", took)
		}
	}
}

// shutdown lets the victim leave in order; a static world ends as a whole. It waits for what is under way, so it succeeds
// unless a worker leaves in disorder.
func (g *game) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var leaving sync.WaitGroup
	for _, name := range names {
		if name != "a" && !g.static {
			continue
		}
		leaving.Go(func() {
			if err := g.agents[name].Shutdown(ctx); err != nil && !g.disorder() {
				g.r.Errorf("%s cannot leave in order: %v", name, err)
			}
		})
	}
	leaving.Wait()
}

// disorder reports whether a worker is planned to go without a word, or the store.
func (g *game) disorder() bool {
	// a newcomer closes its agent
	return slices.ContainsFunc([]string{peerEvent, closeEvent, callbackClose, newcomerEvent, storeEvent}, g.r.Planned)
}

// newcomer is a worker that joins, calls the one that looks on, and leaves.
func (g *game) newcomer() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	d, err := rpc.Join(ctx, g.store, fmt.Sprint("d", g.newcomers.Add(1)), g.opts...) // two may come at once
	if err != nil {
		if _, gone := g.r.Happened(storeEvent); gone {
			return
		}
		// A worker that died without leaving is in the table of the world until another worker removes it.
		died := slices.ContainsFunc([]string{peerEvent, closeEvent, callbackClose}, func(event string) bool {
			_, happened := g.r.Happened(event)
			return happened
		})
		if !died || !errors.Is(err, cohort.PeerLost) {
			g.r.Errorf("a newcomer cannot join: %v", err)
		}
		return
	}
	defer func() { _ = d.Close() }()
	got, err := rpc.Call[int](ctx, d, "c", "test.double", 4)
	if _, gone := g.r.Happened(storeEvent); (got != 8 || err != nil) && !gone {
		g.r.Errorf("a newcomer's call: %d, %v", got, err)
	}
}

// fill is a worker that sends more requests at once than can run and wait at the peer. None of them ends before one is refused. The
// victim's wait behind them, and all that are not refused are answered unless the peer goes.
func (g *game) fill() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	id, held := int(g.fills.Add(1)), make(chan struct{})
	g.mu.Lock()
	g.held[id] = held
	g.mu.Unlock()
	goOn := sync.OnceFunc(func() { close(held) })
	defer goOn()
	futures := make([]*cohort.Future[int], 2*(places+queue))
	var ended atomic.Int32
	for i := range futures {
		futures[i] = rpc.Async[int](ctx, g.agents["c"], "b", "test.hold", id, i)
		futures[i].OnDone(func(int, error) {
			if int(ended.Add(1)) == len(futures)-places-queue { // those that have no place are refused
				goOn()
			}
		})
	}
	refused, gone := 0, slices.ContainsFunc([]string{peerEvent, shutdownEvent}, g.r.Planned)
	for i, f := range futures {
		switch got, err := f.Await(ctx); {
		// PyTorch's wire has no codes
		case errors.Is(err, cohort.Exhausted), errors.Is(err, cohort.Remote) && strings.Contains(err.Error(), cohort.Exhausted.String()):
			refused++
		case (got != i || err != nil) && !gone:
			g.r.Errorf("request %d of many: %d, %v", i, got, err)
		}
	}
	if refused < len(futures)-places-queue && !gone {
		g.r.Errorf("%d of %d requests were refused", refused, len(futures))
	}
}

// hold is the handler of the requests of a fill.
func (g *game) hold(ctx context.Context, id, n int) (int, error) {
	g.mu.Lock()
	held := g.held[id]
	g.mu.Unlock()
	select {
	case <-held:
		return n, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (g *game) called() {
	g.mu.Lock()
	f := g.callback
	g.callback = nil
	g.mu.Unlock()
	if f != nil {
		f()
	}
}

// operation is something that the victim does.
type operation struct {
	name    string
	remote  bool // it ends with an error of the handler's
	patient bool // it has a context that does not end
	self    bool // it is one of the victim to itself
	third   bool // the worker that looks on takes part
	do      func(ctx context.Context, g *game) error
}

func call(fn, to string, arg, want int) func(context.Context, *game) error {
	return func(ctx context.Context, g *game) error {
		got, err := rpc.Call[int](ctx, g.agents["a"], to, fn, arg)
		if err == nil && got != want {
			return fmt.Errorf("%s: %d, want %d", fn, got, want)
		}
		return err
	}
}

func fails(fn string) func(context.Context, *game) error {
	return func(ctx context.Context, g *game) error {
		_, err := rpc.Call[int](ctx, g.agents["a"], "b", fn)
		if err == nil {
			return fmt.Errorf("%s returned", fn)
		}
		return err
	}
}

var operations = []operation{
	{name: "call", do: call("test.double", "b", 3, 6)},
	{name: "slow call", do: call("test.slow", "b", 3, 3)},
	{name: "large call", do: func(ctx context.Context, g *game) error {
		sent := bytes.Repeat([]byte{7}, 1<<20)
		got, err := rpc.Call[[]byte](ctx, g.agents["a"], "b", "test.echo", sent)
		if err == nil && !bytes.Equal(got, sent) {
			return fmt.Errorf("large call: %d bytes", len(got))
		}
		return err
	}},
	{name: "call to oneself", self: true, do: call("test.double", "a", 3, 6)},
	{name: "slow call to oneself", self: true, do: call("test.slow", "a", 3, 3)},
	{name: "handler that panics", remote: true, do: fails("test.panic")},
	{name: "handler that ends its goroutine", remote: true, do: fails("test.exit")},
	{name: "call with a callback", do: func(ctx context.Context, g *game) error {
		f := rpc.Async[int](ctx, g.agents["a"], "b", "test.double", 5)
		f.OnDone(func(int, error) { g.called() })
		got, err := f.Await(ctx)
		if err == nil && got != 10 {
			return fmt.Errorf("async: %d", got)
		}
		return err
	}},
	{name: "tensor call", do: func(ctx context.Context, g *game) error {
		value := g.values.Add(1) // another one for each call: memory that is given back too early is used by another
		sent := make([]int64, 1<<16)
		for i := range sent {
			sent[i] = value
		}
		got, err := rpc.Call[*tensor.Tensor](ctx, g.agents["a"], "b", "test.tensor", tensor.Must(tensor.From(sent)))
		if err != nil {
			return err
		}
		defer got.Storage().Release()
		if values, err := tensor.Copy[int64](got); err != nil || !slices.Equal(values, sent) {
			return fmt.Errorf("tensor call: %d values, first %d, want %d: %w", len(values), values[0], value, err)
		}
		return nil
	}},
	{name: "reference passed on", third: true, do: pass("test.fetch", "c")},
	{name: "reference given to its owner", do: pass("test.fetch", "b")},
	{name: "reference passed on to its owner", third: true, do: pass("test.relay", "c")},
	{name: "reference", do: func(ctx context.Context, g *game) error {
		ref, err := rpc.Remote[int](ctx, g.agents["a"], "b", "test.double", 7)
		if err != nil {
			return err
		}
		defer func() { _ = ref.Close() }()
		got, err := ref.Fetch(ctx)
		if err == nil && got != 14 {
			return fmt.Errorf("fetch: %d", got)
		}
		return err
	}},
}

// pass returns an operation in which the victim makes a reference to an object of the peer, passes it to a worker and closes its own.
func pass(fn, to string) func(context.Context, *game) error {
	return func(ctx context.Context, g *game) error {
		ref, err := rpc.Remote[int](ctx, g.agents["a"], "b", "test.double", 7)
		if err != nil {
			return err
		}
		defer func() { _ = ref.Close() }()
		got, err := rpc.Call[int](ctx, g.agents["a"], to, fn, ref)
		if err == nil && got != 14 {
			return fmt.Errorf("%s at %s: %d", fn, to, got)
		}
		return err
	}
}

// judge checks how a call ended.
func (g *game) judge(c *failpointtest.Call, op operation) {
	r := g.r
	allowed := []failpointtest.Allowance{
		r.Allow(cohort.Closed, closeEvent, callbackClose, peerEvent, shutdownEvent), r.Allow(cohort.PeerLost, peerEvent),
		r.Allow(cohort.Unavailable, peerEvent), r.Allow(cohort.Aborted, peerEvent), r.Allow(cohort.NotFound, peerEvent),
		r.Allow(cohort.Exhausted, fullEvent), r.Allow(cohort.Remote, fullEvent),
	}
	if g.static { // the others leave too
		allowed = append(allowed, r.Allow(cohort.PeerLost, shutdownEvent), r.Allow(cohort.Unavailable, shutdownEvent),
			r.Allow(cohort.NotFound, shutdownEvent))
	}
	if op.third { // its error is what the other worker says
		allowed = append(allowed, r.Allow(cohort.Remote, peerEvent, shutdownEvent, closeEvent, callbackClose))
	}
	if strings.HasPrefix(op.name, "reference") { // a worker that leaves in order gives its references back first
		allowed = append(allowed, r.Allow(cohort.NotFound, shutdownEvent), r.Allow(cohort.Remote, shutdownEvent))
	}
	if op.remote {
		allowed = append(allowed, r.Allow(cohort.Remote), r.Allow(cohort.Internal))
	}
	if !op.patient {
		allowed = append(allowed, r.AllowContext(c)...)
		if r.Planned(failpointtest.Deadline.Name) {
			allowed = append(allowed, r.Allow(cohort.Canceled)) // of a reference whose creation the deadline cancelled
		}
		for _, event := range []string{failpointtest.Cancel.Name, failpointtest.CancelCause.Name} {
			r.EndsSoon(c, event, soon)
		}
	}
	r.Check(c, allowed...)
	r.EndsSoon(c, closeEvent, soon)
	r.EndsSoon(c, peerEvent, soon)
	to := []string{"b"}
	switch {
	case op.self:
		to = []string{"a"}
	case op.third:
		to = []string{"b", "c"}
	}
	if e, ok := errors.AsType[*cohort.Error](c.Err); ok && e.Peer != "" && !slices.Contains(to, e.Peer) {
		r.Errorf("%s names %s: %v", c.Name, e.Peer, c.Err)
	}
}

// left returns the workers that have neither gone nor been told to.
func (g *game) left() []string {
	gone := map[string]bool{}
	for event, name := range map[string]string{closeEvent: "a", callbackClose: "a", peerEvent: "b", shutdownEvent: "a"} {
		if _, happened := g.r.Happened(event); happened {
			gone[name] = true
		}
	}
	if _, happened := g.r.Happened(shutdownEvent); happened && g.static { // all of them have
		return nil
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return gone[name] })
}

// goOn checks that those who are left can call each other.
func (g *game) goOn() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	left := g.left()
	for _, from := range left {
		for _, to := range left {
			if got, err := rpc.Call[int](ctx, g.agents[from], to, "test.double", 1); got != 2 || err != nil {
				g.r.Errorf("%s cannot call %s any more: %v", from, to, errors.Join(err, ctx.Err()))
			}
		}
	}
}

// holdsNothing checks that those who are left have no calls, requests and places in use, and no references where all are left.
func (g *game) holdsNothing() {
	left := g.left()
	held := func(name string) string {
		info := g.agents[name].DebugInfo()
		zero := []string{"agent.client_active_calls", "agent.server_active_calls", "agent.server_waiting_calls"}
		if len(left) == len(names) {
			zero = append(zero, "num_owner_rrefs", "num_pending_users", "num_confirmed_users", "num_forks", "num_pending_futures",
				"num_pending_children", "num_offers", "num_unsettled")
		}
		for _, key := range zero {
			if info[key] != 0 {
				return fmt.Sprintf("%s is %d", key, info[key])
			}
		}
		if info["agent.num_idle_threads"] != info["agent.thread_pool_size"] {
			return fmt.Sprintf("%d of %d places are free", info["agent.num_idle_threads"], info["agent.thread_pool_size"])
		}
		return ""
	}
	for _, name := range left {
		for end := time.Now().Add(timeout); held(name) != "" && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		if still := held(name); still != "" {
			g.r.Errorf("%s still holds something: %s", name, still)
		}
	}
}
