// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// reduce checks that a process group works.
func reduce(ctx context.Context, g *group.Group) error {
	x := filled(float64(g.Rank()+1), 3)
	if err := g.AllReduce(ctx, x, group.Sum).Wait(ctx); err != nil {
		return err
	}
	n := g.Size()
	if want := filled(float64(n*(n+1)/2), 3); !tensor.Equal(x, want) {
		return fmt.Errorf("the sum is %v, want %v", x, want)
	}
	return nil
}

// both starts a group and an agent for one rank on one store, in either order, and uses both.
func both(ctx context.Context, st store.Store, rank, size int, groupFirst bool) (err error) {
	var g *group.Group
	n := newNode(rank)
	startGroup := func() (err error) {
		g, err = group.New(ctx, st, cohort.Rank(rank), size)
		return err
	}
	startRPC := func() error { return n.join(ctx, st, rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(size)) }
	steps := []func() error{startGroup, startRPC}
	if !groupFirst {
		steps = []func() error{startRPC, startGroup}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	defer func() { _ = g.Close() }()
	defer func() { _ = n.Close() }()
	if err := reduce(ctx, g); err != nil {
		return err
	}
	to := name((rank + 1) % size)
	if here, err := rpc.Call[string](ctx, n.Agent, to, "t.here"); err != nil || here != to {
		return fmt.Errorf("%q was reached: %w", here, err)
	}
	if err := reduce(ctx, g); err != nil {
		return err
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return err
	}
	return n.Shutdown(ctx)
}

func TestGroupThenRPC(t *testing.T) {
	ctx, st := bounded(t), store.NewMemory()
	must(t, parallel(worldSize, func(i int) error { return both(ctx, st, i, worldSize, true) }))
}

func TestRPCThenGroup(t *testing.T) {
	ctx, st := bounded(t), store.NewMemory()
	must(t, parallel(worldSize, func(i int) error { return both(ctx, st, i, worldSize, false) }))
}

// place is where RPC and a group meet, each with a rendezvous of its own.
type place struct {
	forRPC, forGroup string
	opts             []rendezvous.Option
}

// started is a rank's RPC or group: both can be used and left.
type started struct {
	use, leave func(ctx context.Context) error
}

func (p place) meet(ctx context.Context, url string, rank, size int) (*rendezvous.Member, error) {
	return rendezvous.Join(ctx, url, append(p.opts, rendezvous.WithRank(cohort.Rank(rank)), rendezvous.WithWorldSize(size))...)
}

func (p place) startRPC(ctx context.Context, rank, size int) (started, error) {
	m, err := p.meet(ctx, p.forRPC, rank, size)
	if err != nil {
		return started{}, err
	}
	n := newNode(rank)
	if err := n.join(ctx, m.Store(), rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(size)); err != nil {
		return started{}, errors.Join(err, m.Close())
	}
	return started{
		use: func(ctx context.Context) error {
			to := name((rank + 1) % size)
			if here, err := rpc.Call[string](ctx, n.Agent, to, "t.here"); err != nil || here != to {
				return fmt.Errorf("%q was reached: %w", here, err)
			}
			return nil
		},
		leave: func(ctx context.Context) error { return errors.Join(n.Shutdown(ctx), n.Close(), m.Shutdown(ctx)) },
	}, nil
}

func (p place) startGroup(ctx context.Context, rank, size int) (started, error) {
	m, err := p.meet(ctx, p.forGroup, rank, size)
	if err != nil {
		return started{}, err
	}
	g, err := group.New(ctx, m.Store(), cohort.Rank(rank), size)
	if err != nil {
		return started{}, errors.Join(err, m.Close())
	}
	return started{
		use: func(ctx context.Context) error { return reduce(ctx, g) },
		leave: func(ctx context.Context) error {
			return errors.Join(g.Barrier(ctx).Wait(ctx), g.Close(), m.Shutdown(ctx))
		},
	}, nil
}

// inTurn starts one after the other and uses both; the second leaves, and the first goes on. between looks at the place then.
func (p place) inTurn(ctx context.Context, groupFirst bool, rank, size int, between func() error) error {
	first, second := p.startRPC, p.startGroup
	if groupFirst {
		first, second = second, first
	}
	a, err := first(ctx, rank, size)
	if err != nil {
		return err
	}
	b, err := second(ctx, rank, size)
	if err != nil {
		return errors.Join(err, a.leave(ctx))
	}
	return errors.Join(a.use(ctx), b.use(ctx), b.leave(ctx), between(), a.use(ctx), a.leave(ctx))
}

// Counterpart of PyTorch's test that starts both on one file; there RPC first and with one rank, here also the group first, and
// with two. The file stays as long as one of them uses it.
func TestGroupAndRPCSameFile(t *testing.T) {
	for _, groupFirst := range []bool{false, true} {
		for _, size := range []int{1, 2} {
			ctx, path := bounded(t), filepath.Join(t.TempDir(), "store")
			p := place{forRPC: "file://" + path, forGroup: "file://" + path}
			must(t, parallel(size, func(i int) error {
				return p.inTurn(ctx, groupFirst, i, size, func() error {
					_, err := os.Stat(path)
					return err
				})
			}))
		}
	}
}

// The same over one socket: two rendezvous, env:// for the group and tcp:// for RPC, share a server; there the group is first.
// PyTorch runs it with each of its two servers.
func TestGroupAndRPCSameSocket(t *testing.T) {
	for _, groupFirst := range []bool{true, false} {
		for _, uv := range []string{"0", "1"} {
			for _, size := range []int{1, 2} {
				ctx, port := bounded(t), strconv.Itoa(testkit.FreePort(t))
				var shared tcpstore.Shared // of each process; here all ranks are one
				env := rendezvous.WithEnv(func(name string) (string, bool) {
					value, ok := map[string]string{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "USE_LIBUV": uv}[name]
					return value, ok
				})
				p := place{
					forRPC: "tcp://127.0.0.1:" + port, forGroup: "env://",
					opts: []rendezvous.Option{env, rendezvous.WithSharedServers(&shared)},
				}
				must(t, parallel(size, func(i int) error {
					return p.inTurn(ctx, groupFirst, i, size, func() error { return nil })
				}))
			}
		}
	}
}

// A slow call, and then a process group is started while it runs.
func TestSlowCallAndGroup(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		slow := rpc.Async[any](w.ctx, n.Agent, w.next(n), "t.sleep", 0.2)
		g, err := group.New(w.ctx, w.st, cohort.Rank(n.rank), worldSize)
		if err != nil {
			return err
		}
		defer func() { _ = g.Close() }()
		if err = reduce(w.ctx, g); err != nil {
			return err
		}
		_, err = slow.Await(w.ctx)
		return err
	})
	w.shutdown()
}

// batchServer averages the gradients of all trainers and answers all of them at once: PyTorch's example of a server with
// asynchronous execution.
type batchServer struct {
	mu       sync.Mutex
	trainers int
	arrived  int
	sum      any
	next     *cohort.Promise[any]
}

// UpdateAndFetch is answered when the gradients of all trainers are there.
func (s *batchServer) UpdateAndFetch(gradient any) (*cohort.Future[any], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sum == nil {
		s.sum = gradient
	} else {
		sum, err := add(s.sum, gradient)
		if err != nil {
			return nil, err
		}
		s.sum = sum
	}
	s.arrived++
	f := s.next
	if s.arrived == s.trainers {
		total := s.sum
		s.sum, s.arrived, s.next = nil, 0, cohort.NewPromise[any]()
		f.Complete(total, nil)
	}
	return f.Future(), nil
}

func TestParameterServer(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize, rpc.WithConcurrency(1)) // no trainer holds a place while it waits
		n := w.nodes[0]
		n.reg.MustClass("t.BatchServer", &batchServer{})
		ref, err := rpc.NewRef(n.Agent, &batchServer{trainers: worldSize - 1, next: cohort.NewPromise[any]()})
		must(t, err)
		for _, trainer := range w.nodes[1:] {
			trainer.reg.MustHandle("t.train", func(ctx context.Context, server *rpc.Ref[*batchServer], steps int) error {
				defer func() { _ = server.Close() }()
				for step := range steps { // other gradients of every trainer in every step
					total, failed := rpc.CallMethod[any](ctx, server, "update_and_fetch", p.scaled(trainer.rank+10*step))
					if failed != nil {
						return failed
					}
					if wrong := p.check(total, 1+2+3+3*10*step); wrong != nil {
						return wrong
					}
				}
				return nil
			})
		}
		var training []*cohort.Future[any]
		for rank := 1; rank < worldSize; rank++ {
			training = append(training, rpc.Async[any](w.ctx, n.Agent, name(rank), "t.train", ref, 10))
		}
		_, err = cohort.All(training...).Await(w.ctx)
		must(t, err)
		must(t, ref.Close())
		w.shutdown()
	})
}
