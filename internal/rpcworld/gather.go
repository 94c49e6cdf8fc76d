// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Gathers is the state of PyTorch's _all_gather: workers send an object to the leader, whose name sorts first, and the
// leader sends all of them to everybody. It starts and ends a static world.
type Gathers struct {
	mu struct {
		sync.Mutex
		counts map[string]int // by names: the next one
		states map[string]*Gather
	}
}

// Gather is one all-gather. Messages may arrive before this worker has entered it.
type Gather struct {
	Objects *py.Dict
	Done    chan struct{} // closed when all objects are here
	closed  bool
	Err     error // why it has failed; valid when Done is closed
}

// maxGathers bounds the all-gathers that peers can begin before this worker does.
const maxGathers = 1024

// NewGathers returns the state of a worker that has entered none.
func NewGathers() *Gathers {
	g := &Gathers{}
	g.mu.counts, g.mu.states = map[string]int{}, map[string]*Gather{}
	return g
}

// First makes sure that it is known which all-gather of these names is next.
func (g *Gathers) First(names []string, ask func() (int, error)) error {
	all := strings.Join(slices.Sorted(slices.Values(names)), "")
	g.mu.Lock()
	_, known := g.mu.counts[all]
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
	if _, known = g.mu.counts[all]; !known {
		g.mu.counts[all] = n
	}
	return nil
}

func (g *Gathers) state(id string) (*Gather, error) {
	s := g.mu.states[id]
	if s == nil {
		if len(g.mu.states) >= maxGathers {
			return nil, dist.Newf("rpc: all_gather", dist.Exhausted, "%d all-gathers wait for this worker", maxGathers)
		}
		s = &Gather{Objects: &py.Dict{}, Done: make(chan struct{})}
		g.mu.states[id] = s
	}
	return s, nil
}

func (s *Gather) finish() {
	if !s.closed {
		s.closed = true
		close(s.Done)
	}
}

// Begin enters the next all-gather among names.
func (g *Gathers) Begin(names []string) (id string, s *Gather, err error) {
	all := strings.Join(names, "")
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.mu.counts[all]
	g.mu.counts[all] = n + 1
	id = all + strconv.Itoa(n)
	s, err = g.state(id)
	return id, s, err
}

// over reports whether this worker has left an all-gather: then a message of it is a copy, sent again because its answer
// was lost with the connection, or too late. Called with the lock.
func (g *Gathers) over(id string, names []string) bool {
	all := strings.Join(slices.Sorted(slices.Values(names)), "")
	n, err := strconv.Atoi(strings.TrimPrefix(id, all))
	begun, known := g.mu.counts[all]
	return err == nil && known && n < begun && g.mu.states[id] == nil
}

// ToLeader is _gather_to_leader at the leader. again says that the sender may repeat what it has said.
func (g *Gathers) ToLeader(id, from string, object any, names []string, again bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(names, from) {
		return refuse("AssertionError", "%q is not one of the workers of this all-gather", from)
	}
	if g.over(id, names) {
		return nil
	}
	s, err := g.state(id)
	if err != nil {
		return err
	}
	if _, twice := s.Objects.Get(from); twice {
		if again {
			return nil
		}
		return refuse("AssertionError", "%s reported intent sequence id %s again. ", from, id)
	}
	s.Objects.Set(from, object)
	for _, name := range names {
		if _, there := s.Objects.Get(name); !there {
			return nil
		}
	}
	s.finish()
	return nil
}

// ToFollower is _broadcast_to_followers at a follower.
func (g *Gathers) ToFollower(id string, objects *py.Dict, again bool) error {
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
		return refuse("RuntimeError", "Termination signal sequence id %s got set twice.", id)
	}
	s.Objects = objects
	s.finish()
	return nil
}

// Fail ends an all-gather that cannot be completed, also one that this worker has not entered yet.
func (g *Gathers) Fail(id string, names []string, cause error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over(id, names) {
		return nil
	}
	s, err := g.state(id)
	if err != nil || s.closed {
		return err
	}
	s.Err = cause
	s.finish()
	return nil
}

// Forget drops a finished all-gather.
func (g *Gathers) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.mu.states, id)
}

// Missing names who has not reported to the leader.
func (g *Gathers) Missing(id string, names []string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, name := range names {
		if s := g.mu.states[id]; s != nil {
			if _, there := s.Objects.Get(name); !there {
				out = append(out, name)
			}
		}
	}
	return out
}

// RefusedError is the answer to a message that the state of an all-gather forbids. A Python caller sees an exception of the class.
type RefusedError struct{ Class, Text string }

// Error returns class and text.
func (r *RefusedError) Error() string { return r.Class + ": " + r.Text }

func refuse(class, format string, args ...any) error {
	return &RefusedError{Class: class, Text: fmt.Sprintf(format, args...)}
}
