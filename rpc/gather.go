// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
)

// gathers is the state of PyTorch's _all_gather: workers send an object to the leader, whose name sorts first, and the
// leader sends all of them to everybody. It starts and ends a static world.
type gathers struct {
	mu     sync.Mutex
	base   int            // rounds that earlier worlds of the same processes used
	counts map[string]int // by names
	states map[string]*gather
}

// gather is one all-gather. Messages may arrive before this worker has entered it.
type gather struct {
	objects *rpcwire.Dict
	done    chan struct{} // closed when all objects are here
	closed  bool
}

// maxGathers bounds the all-gathers that peers can begin before this worker does.
const maxGathers = 1024

func newGathers(base int) *gathers {
	return &gathers{base: base, counts: map[string]int{}, states: map[string]*gather{}}
}

func (g *gathers) state(id string) (*gather, error) {
	s := g.states[id]
	if s == nil {
		if len(g.states) >= maxGathers {
			return nil, dist.Newf("rpc: all_gather", dist.Exhausted, "%d all-gathers wait for this worker", maxGathers)
		}
		s = &gather{objects: &rpcwire.Dict{}, done: make(chan struct{})}
		g.states[id] = s
	}
	return s, nil
}

func (s *gather) finish() {
	if !s.closed {
		s.closed = true
		close(s.done)
	}
}

// begin enters the next all-gather among names.
func (g *gathers) begin(names []string) (id string, s *gather, err error) {
	all := strings.Join(names, "")
	g.mu.Lock()
	defer g.mu.Unlock()
	n, known := g.counts[all]
	if !known {
		n = g.base
	}
	g.counts[all] = n + 1
	id = all + strconv.Itoa(n)
	s, err = g.state(id)
	return id, s, err
}

// over reports whether this worker has left an all-gather: then a message of it is a copy, sent again because its answer
// was lost with the connection, or too late. Called with the lock.
func (g *gathers) over(id string, names []string) bool {
	all := strings.Join(slices.Sorted(slices.Values(names)), "")
	n, err := strconv.Atoi(strings.TrimPrefix(id, all))
	begun, known := g.counts[all]
	return err == nil && known && n < begun && g.states[id] == nil
}

// toLeader is _gather_to_leader at the leader. again says that the sender may repeat what it has said.
func (g *gathers) toLeader(id, from string, object any, names []string, again bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(names, from) {
		return Raise("AssertionError", "%q is not one of the workers of this all-gather", from)
	}
	if g.over(id, names) {
		return nil
	}
	s, err := g.state(id)
	if err != nil {
		return err
	}
	if _, twice := s.objects.Get(from); twice {
		if again {
			return nil
		}
		return Raise("AssertionError", "%s reported intent sequence id %s again. ", from, id)
	}
	s.objects.Set(from, object)
	for _, name := range names {
		if _, there := s.objects.Get(name); !there {
			return nil
		}
	}
	s.finish()
	return nil
}

// toFollower is _broadcast_to_followers at a follower.
func (g *gathers) toFollower(id string, objects *rpcwire.Dict, again bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []string
	for _, item := range objects.Pairs {
		if name, ok := item.Key.(string); ok {
			names = append(names, name)
		}
	}
	if g.over(id, names) {
		return nil
	}
	s, err := g.state(id)
	if err != nil {
		return err
	}
	if s.closed {
		if again {
			return nil
		}
		return Raise("RuntimeError", "Termination signal sequence id %s got set twice.", id)
	}
	s.objects = objects
	s.finish()
	return nil
}

// forget drops a finished all-gather.
func (g *gathers) forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.states, id)
}

// missing names who has not reported to the leader.
func (g *gathers) missing(id string, names []string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, name := range names {
		if s := g.states[id]; s != nil {
			if _, there := s.objects.Get(name); !there {
				out = append(out, name)
			}
		}
	}
	return out
}

// allGather exchanges an object with all workers of a static world.
func (a *Agent) allGather(ctx context.Context, object any) (*rpcwire.Dict, error) {
	names := []string{a.name}
	for _, w := range a.Workers() {
		if w.Name != a.name {
			names = append(names, w.Name)
		}
	}
	return a.gatherAmong(ctx, object, names)
}

// gatherAmong exchanges an object with the named workers, of which this one is one. It corresponds to
// torch.distributed.rpc.api._all_gather.
func (a *Agent) gatherAmong(ctx context.Context, object any, names []string) (*rpcwire.Dict, error) {
	slices.Sort(names)
	leader := names[0]
	id, s, err := a.gathers.begin(names)
	if err != nil {
		return nil, err
	}
	defer a.gathers.forget(id)
	set := make(Set, len(names))
	for i, name := range names {
		set[i] = name
	}
	if leader == a.name {
		if err := a.gathers.toLeader(id, a.name, object, names, false); err != nil {
			return nil, err
		}
	} else if err := a.callAgain(ctx, leader, gatherToLeader, []any{id, a.name, object, set}); err != nil {
		return nil, err
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		e := dist.FromContext("rpc: all_gather", ctx)
		if leader == a.name {
			e.Detail = "workers that did not report: " + strings.Join(a.gathers.missing(id, names), ", ")
		} else {
			e.Detail = "no answer of the leader " + leader
		}
		return nil, e
	case <-a.ctx.Done():
		return nil, errClosed("all_gather")
	}
	if leader != a.name {
		return s.objects, nil
	}
	errs := make([]error, len(names))
	var told sync.WaitGroup
	for i, name := range names[1:] {
		told.Go(func() { errs[i] = a.callAgain(ctx, name, broadcastToFollowers, []any{id, s.objects}) })
	}
	told.Wait()
	for i, name := range names[1:] {
		if errs[i] != nil {
			return s.objects, callError("rpc: all_gather", "broadcast", name, errs[i])
		}
	}
	return s.objects, nil
}
