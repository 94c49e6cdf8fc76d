// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
)

// gathers is the state of PyTorch's _all_gather: workers send an object to the leader, whose name sorts first, and the
// leader sends all of them to everybody. It starts and ends a static world.
type gathers struct {
	mu     sync.Mutex
	counts map[string]int // by names: the next one
	states map[string]*gather
}

// gather is one all-gather. Messages may arrive before this worker has entered it.
type gather struct {
	objects *rpcwire.Dict
	done    chan struct{} // closed when all objects are here
	closed  bool
	err     error // why it has failed
}

// maxGathers bounds the all-gathers that peers can begin before this worker does.
const maxGathers = 1024

func newGathers() *gathers {
	return &gathers{counts: map[string]int{}, states: map[string]*gather{}}
}

// first makes sure that it is known which all-gather of these names is next.
func (g *gathers) first(names []string, ask func() (int, error)) error {
	all := strings.Join(slices.Sorted(slices.Values(names)), "")
	g.mu.Lock()
	_, known := g.counts[all]
	g.mu.Unlock()
	if known {
		return nil
	}
	n, err := ask()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known = g.counts[all]; !known {
		g.counts[all] = n
	}
	return nil
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
	n := g.counts[all]
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

// fail ends an all-gather that cannot be completed, also one that this worker has not entered yet.
func (g *gathers) fail(id string, names []string, cause error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over(id, names) {
		return nil
	}
	s, err := g.state(id)
	if err != nil || s.closed {
		return err
	}
	s.err = cause
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
	return a.gatherAmong(ctx, object, names, true)
}

// gatherAmong exchanges an object with the named workers, of which this one is one. It corresponds to
// torch.distributed.rpc.api._all_gather, but does not wait for a worker that has died: a Go leader looks after all others,
// since none of them can have left, and tells them. They look after the leader. A PyTorch leader looks after nobody, so all
// look after all, although others may be further than they are; together says that nobody can leave before this worker.
func (a *Agent) gatherAmong(ctx context.Context, object any, names []string, together bool) (*rpcwire.Dict, error) {
	slices.Sort(names)
	leader, others := names[0], names[1:]
	if err := a.gathers.first(names, func() (int, error) { return a.askForGathers(ctx, names, false) }); err != nil {
		return nil, err
	}
	id, s, err := a.gathers.begin(names)
	if err != nil {
		return nil, err
	}
	defer a.gathers.forget(id)
	set := make(Set, len(names))
	for i, name := range names {
		set[i] = name
	}
	how := closedWait
	if leader != a.name && !together {
		how = openWait
	}
	v := a.watchOver(ctx, a.waitedFor(ctx, names, together), how)
	err = a.report(v.ctx, id, s, object, names, set)
	dead := v.end()
	select {
	case <-s.done: // whatever happened meanwhile
		err = s.err
	default:
		if dead != nil {
			err = dead
		}
	}
	if err != nil {
		if leader == a.name && dead != nil {
			a.tellLost(ctx, id, dead.Peer, others, set)
		}
		return nil, gatherError(err)
	}
	if leader != a.name {
		return s.objects, nil
	}
	errs := make([]error, len(others))
	var told sync.WaitGroup
	for i, name := range others {
		told.Go(func() { errs[i] = a.callAgain(ctx, name, broadcastToFollowers, []any{id, s.objects}) })
	}
	told.Wait()
	for i, name := range others {
		if errs[i] != nil {
			return s.objects, callError("rpc: all_gather", "broadcast", name, errs[i])
		}
	}
	return s.objects, nil
}

// waitedFor are the workers to look after in an all-gather.
func (a *Agent) waitedFor(ctx context.Context, names []string, together bool) []string {
	leader := names[0]
	all := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == a.name })
	if leader == a.name || !a.goWorker(ctx, leader) {
		return all
	}
	return slices.DeleteFunc(all, func(name string) bool {
		p, err := a.peer(name)
		return name != leader && (!together || err != nil || !p.met.Load())
	})
}

// report gives the own object to the leader and waits until all are there.
func (a *Agent) report(ctx context.Context, id string, s *gather, object any, names []string, set Set) error {
	leader := names[0]
	select {
	case <-s.done: // the leader has given up before we came
		return nil
	default:
	}
	var err error
	if leader == a.name {
		err = a.gathers.toLeader(id, a.name, object, names, false)
	} else {
		err = a.callAgain(ctx, leader, gatherToLeader, []any{id, a.name, object, set})
	}
	if err != nil {
		return err
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		e := dist.Ended("rpc: all_gather", ctx)
		if leader == a.name {
			e.Detail = "workers that did not report: " + strings.Join(a.gathers.missing(id, names), ", ")
		} else {
			e.Detail = "no answer of the leader " + leader
		}
		return e
	case <-a.ctx.Done():
		return errClosed("all_gather")
	}
}

// gatherError says of a worker's death what was waited for.
func gatherError(err error) error {
	dead, ok := err.(*dist.Error) //nolint:errorlint // only what a vigil or a leader says
	if !ok || dead.Op != "rpc: worker" {
		return err
	}
	e := dist.Wrap("rpc: all_gather", dist.PeerLost, err)
	e.Peer, e.Rank, e.Detail = dead.Peer, dead.Rank, dead.Detail
	return e
}

// tellLost tells the Go workers of an all-gather why it fails. A PyTorch worker waits until its time is over, as for a leader
// of its own kind.
func (a *Agent) tellLost(ctx context.Context, id, worker string, others []string, set Set) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var told sync.WaitGroup
	for _, name := range others {
		p, err := a.peer(name)
		if err != nil || name == worker {
			continue
		}
		c := p.current()
		if c == nil {
			continue
		}
		told.Go(func() {
			if a.goWorker(ctx, name) { // a PyTorch worker does not know this function
				_ = a.callAgain(ctx, name, gatherLost, []any{id, worker, set})
			}
		})
	}
	told.Wait()
}
