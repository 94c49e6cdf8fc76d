// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/store"
)

// limit bounds every test; it is only reached when something hangs.
const limit = 2 * time.Minute

// soon is how long something may take that should happen at once.
const soon = 5 * time.Second

// worldSize is the number of workers that PyTorch's tests use.
const worldSize = 4

// node is one worker of a test's world.
type node struct {
	*rpc.Agent
	rank   int
	reg    *rpc.Registry
	log    *testkit.Log
	ready  chan struct{} // closed when Agent is set
	mu     sync.Mutex
	events []observe.Event
	kept   []io.Closer
}

// self returns the agent; a handler may be called before Join has returned to the test.
func (n *node) self() *rpc.Agent {
	<-n.ready
	return n.Agent
}

// keep holds something until the test ends.
func (n *node) keep(x io.Closer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = append(n.kept, x)
}

// closeKept lets go of all of it.
func (n *node) closeKept() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.kept {
		if err := x.Close(); err != nil {
			return err
		}
	}
	n.kept = nil
	return nil
}

func (n *node) observed() []observe.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]observe.Event{}, n.events...)
}

// world is a set of workers in this process.
type world struct {
	*testing.T
	ctx   context.Context //nolint:containedctx // of the test
	st    *store.Memory
	nodes []*node
}

func name(rank int) string { return fmt.Sprintf("worker%d", rank) }

// next is the worker that PyTorch's tests usually call.
func (w *world) next(n *node) string { return name((n.rank + 1) % len(w.nodes)) }

func newNode(rank int) *node {
	n := &node{rank: rank, reg: rpc.NewRegistry(), log: &testkit.Log{}, ready: make(chan struct{})}
	serve(n)
	return n
}

// options are what all workers of the tests have.
func (n *node) options(more []rpc.Option) []rpc.Option {
	return append([]rpc.Option{
		rpc.WithHandlers(n.reg), operators.Serve(), rpc.WithAddr("127.0.0.1:0"), rpc.WithLogger(n.log.Logger(slog.LevelInfo)),
		rpc.WithTimeout(limit),
		rpc.WithHook(func(e observe.Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.events = append(n.events, e)
		}),
	}, more...)
}

func (n *node) join(ctx context.Context, st store.Store, opts ...rpc.Option) error {
	agent, err := rpc.Join(ctx, st, name(n.rank), n.options(opts)...)
	if err != nil {
		return fmt.Errorf("worker %d: %w", n.rank, err)
	}
	n.Agent = agent
	close(n.ready)
	return nil
}

// start makes a static world of size workers.
func start(t *testing.T, size int, opts ...rpc.Option) *world {
	t.Helper()
	w := &world{T: t, ctx: bounded(t), st: store.NewMemory()}
	t.Cleanup(func() { _ = w.st.Close() })
	for rank := range size {
		w.nodes = append(w.nodes, newNode(rank))
	}
	t.Cleanup(w.close)
	must(t, parallel(size, func(i int) error {
		return w.nodes[i].join(w.ctx, w.st, append([]rpc.Option{rpc.WithRank(cohort.Rank(i)), rpc.WithWorldSize(size)}, opts...)...)
	}))
	return w
}

// dynamic makes a world without a fixed size and lets size workers join, one after the other.
func dynamic(t *testing.T, size int, opts ...rpc.Option) *world {
	t.Helper()
	w := &world{T: t, ctx: bounded(t), st: store.NewMemory()}
	t.Cleanup(func() { _ = w.st.Close() })
	t.Cleanup(w.close)
	for range size {
		w.add(opts...)
	}
	return w
}

// add lets another worker join a dynamic world.
func (w *world) add(opts ...rpc.Option) *node {
	w.Helper()
	n := newNode(len(w.nodes))
	must(w.T, n.join(w.ctx, w.st, append([]rpc.Option{rpc.WithRank(cohort.Rank(n.rank))}, opts...)...))
	w.nodes = append(w.nodes, n)
	return n
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func (w *world) close() {
	_ = parallel(len(w.nodes), func(i int) error {
		if w.nodes[i].Agent != nil {
			return w.nodes[i].Close()
		}
		return nil
	})
}

// shutdown leaves with all workers in order.
func (w *world) shutdown() {
	w.Helper()
	must(w.T, w.each(func(n *node) error { return n.Shutdown(w.ctx) }))
}

// each runs what PyTorch's test bodies do: the same on every worker at once.
func (w *world) each(fn func(n *node) error) error {
	return parallel(len(w.nodes), func(i int) error {
		if err := fn(w.nodes[i]); err != nil {
			return fmt.Errorf("worker %d: %w", i, err)
		}
		return nil
	})
}

func (w *world) every(fn func(n *node) error) {
	w.Helper()
	must(w.T, w.each(fn))
}

func parallel(n int, fn func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr checks an error's code and words.
func wantErr(t *testing.T, err error, code error, words ...string) {
	t.Helper()
	if wrong := checkErr(err, code, words...); wrong != nil {
		t.Error(wrong)
	}
}

func checkErr(err error, code error, words ...string) error {
	if !errors.Is(err, code) {
		return fmt.Errorf("got error %w, a %q, want %q", err, cohort.CodeOf(err).String(), code.Error())
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			return fmt.Errorf("got error %w, want the word %q in it", err, word)
		}
	}
	return nil
}

// within runs fn and fails when it takes longer than d.
func within(t *testing.T, d time.Duration, what string, fn func()) {
	t.Helper()
	started := time.Now()
	fn()
	if took := time.Since(started); took > d {
		t.Errorf("%s took %v, want at most %v", what, took, d)
	}
}
