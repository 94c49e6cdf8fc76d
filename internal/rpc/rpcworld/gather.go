// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"sync"

	"github.com/cohort-dist/cohort/internal/rpc/worldcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/rpc/py"
)

// RefusedError is the answer to a message that the state of an all-gather forbids.
type RefusedError = worldcore.RefusedError

// gathers are the all-gathers of this worker, which start and end a static world. Package worldcore decides.
type gathers struct {
	mu struct {
		sync.Mutex
		core *worldcore.Gathers
		done map[string]chan struct{} // of those that this worker is in: closed when they are complete
	}
}

// newGathers returns the state of a worker that has entered none.
func newGathers() *gathers {
	g := &gathers{}
	g.mu.core, g.mu.done = worldcore.NewGathers(), map[string]chan struct{}{}
	return g
}

// tell gives a message to the machine, and wakes this worker if it has waited for it.
func (g *gathers) tell(id string, message func(*worldcore.Gathers) (done bool, err error)) error {
	failpoint.At("rpcworld.tell")
	g.mu.Lock()
	defer g.mu.Unlock()
	done, err := message(g.mu.core)
	if ch := g.mu.done[id]; done && ch != nil {
		close(ch)
	}
	return err
}

// ToLeader is _gather_to_leader at the leader. again says that the sender may repeat what it has said.
func (g *gathers) ToLeader(id, from string, object any, names []string, again bool) error {
	return g.tell(id, func(c *worldcore.Gathers) (bool, error) { return c.ToLeader(id, from, object, names, again) })
}

// Lost is who has died, if this worker, the leader of an all-gather, has given it up for that. A worker that reports to it then has
// to be told.
func (g *gathers) Lost(id string, names []string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.core.Lost(id, names)
}

// Comes notes that there is a worker of this name again.
func (g *gathers) Comes(worker string) {
	failpoint.At("rpcworld.comes")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.core.Rejoined(worker)
}

// ToFollower is _broadcast_to_followers at a follower.
func (g *gathers) ToFollower(id string, objects *py.Dict, again bool) error {
	items := make([]worldcore.Item, 0, len(objects.Pairs))
	for _, item := range objects.Pairs {
		if name, ok := item.Key.(string); ok {
			items = append(items, worldcore.Item{Name: name, Object: item.Value})
		}
	}
	return g.tell(id, func(c *worldcore.Gathers) (bool, error) { return c.ToFollower(id, items, again) })
}

// Fail ends an all-gather that cannot be completed, also one that this worker has not entered yet.
func (g *gathers) Fail(id string, names []string, cause error) error {
	return g.tell(id, func(c *worldcore.Gathers) (bool, error) { return c.Fail(id, names, cause) })
}

// enter enters the next all-gather of some names.
func (g *gathers) enter(names []string) (string, error) {
	failpoint.At("rpcworld.enter")
	g.mu.Lock()
	defer g.mu.Unlock()
	id, s, err := g.mu.core.Enter(names)
	if err != nil {
		return "", err
	}
	ch := make(chan struct{})
	if s.Done {
		close(ch)
	}
	g.mu.done[id] = ch
	return id, nil
}

// leave leaves an all-gather and returns what has been gathered.
func (g *gathers) leave(id string) *py.Dict {
	failpoint.At("rpcworld.leave")
	g.mu.Lock()
	defer g.mu.Unlock()
	objects := g.objects(id)
	g.mu.core.Leave(id)
	delete(g.mu.done, id)
	return objects
}

// objects are those of an all-gather so far. Called with the lock.
func (g *gathers) objects(id string) *py.Dict {
	objects := &py.Dict{}
	if s := g.mu.core.Of(id); s != nil {
		for _, x := range s.Items {
			objects.Set(x.Name, x.Object)
		}
	}
	return objects
}
