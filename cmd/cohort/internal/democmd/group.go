// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package democmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/rpc"
)

// sum adds up a vector over all ranks.
func sum(ctx context.Context, s *stage) (string, error) {
	const length = 1 << 18
	rank, size := int(s.world.Rank()), s.world.Size()
	g, err := group.New(ctx, s.world.Store(), s.world.Rank(), size)
	if err != nil {
		return "", err
	}
	defer func() { _ = g.Close() }()
	vector := slices.Repeat([]float32{float32(rank + 1)}, length)
	start := time.Now()
	if err := group.AllReduceSlice(ctx, g, vector, group.Sum); err != nil {
		return "", err
	}
	took := time.Since(start)
	want := float32(size*(size+1)) / 2
	if i := slices.IndexFunc(vector, func(x float32) bool { return x != want }); i >= 0 {
		return "", fmt.Errorf("element %d of the sum is %v, want %v", i, vector[i], want)
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("all-reduced %d numbers over %s in %.1f ms: each is %v", length, g.Transport(),
		float64(took.Microseconds())/1e3, want), nil
}

// notebook is an object that lives at one rank and is signed by all through references.
type notebook struct {
	mu    sync.Mutex
	names []string
}

// Sign adds a name.
func (n *notebook) Sign(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names = append(n.names, name)
}

// Names returns who has signed.
func (n *notebook) Names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.names)
}

func workerName(rank int) string { return fmt.Sprintf("rank%d", rank) }

// pass hands a reference to an object from rank to rank, by calls.
func pass(ctx context.Context, s *stage) (string, error) {
	rank, size := int(s.world.Rank()), s.world.Size()
	next := workerName((rank + 1) % size)
	var agent *rpc.Agent
	joined, signed := make(chan struct{}), make(chan struct{}, 1)
	reg := rpc.NewRegistry().MustClass("demo.Notebook", &notebook{}).
		MustHandle("demo.open", func() *notebook { return &notebook{} }).
		MustHandle("demo.pass", func(ctx context.Context, ref *rpc.Ref[*notebook], left int) error {
			defer func() { _ = ref.Close() }()
			select {
			case <-joined:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if _, err := rpc.CallMethod[any](ctx, ref, "sign", agent.Name()); err != nil {
				return err
			}
			signed <- struct{}{}
			if left == 0 {
				return nil
			}
			_, err := rpc.Call[any](ctx, agent, next, "demo.pass", ref, left-1)
			return err
		})
	agent, err := rpc.Join(ctx, s.world.Store(), workerName(rank), rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(size),
		rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg))
	if err != nil {
		return "", err
	}
	defer func() { _ = agent.Close() }()
	close(joined)
	text := fmt.Sprintf("signed a notebook of %s through a reference and handed it on to %s", workerName(1%size), next)
	if rank == 0 {
		if text, err = passAround(ctx, agent, next, size); err != nil {
			return "", err
		}
	}
	select {
	case <-signed:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	return text, agent.Shutdown(ctx)
}

// passAround is the part of the rank that starts: it makes the object elsewhere and reads it at the end.
func passAround(ctx context.Context, agent *rpc.Agent, next string, size int) (string, error) {
	owner := workerName(1 % size)
	ref, err := rpc.Remote[*notebook](ctx, agent, owner, "demo.open")
	if err != nil {
		return "", err
	}
	defer func() { _ = ref.Close() }()
	if _, err = rpc.Call[any](ctx, agent, next, "demo.pass", ref, size-1); err != nil {
		return "", err
	}
	names, err := rpc.CallMethod[[]string](ctx, ref, "names")
	if err != nil {
		return "", err
	}
	if len(names) != size {
		return "", fmt.Errorf("the notebook was signed by %v, want %d ranks", names, size)
	}
	return fmt.Sprintf("made a notebook at %s and passed a reference to it around: signed by %s", owner, strings.Join(names, ", ")), nil
}
