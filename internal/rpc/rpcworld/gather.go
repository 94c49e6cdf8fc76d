// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"errors"
	"sync"

	"github.com/cohort-dist/cohort"
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

// deliver gives a message to the machine, and wakes this worker if it has waited for it.
func (g *gathers) deliver(id string, message func(*worldcore.Gathers) (done bool, err error)) error {
	failpoint.At("rpcworld.deliver")
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
	return g.deliver(id, func(c *worldcore.Gathers) (bool, error) { return c.ToLeader(id, from, object, names, again) })
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
	return g.deliver(id, func(c *worldcore.Gathers) (bool, error) { return c.ToFollower(id, items, again) })
}

// Fail ends an all-gather that cannot be completed, also one that this worker has not entered yet.
func (g *gathers) Fail(id string, names []string, cause error) error {
	return g.deliver(id, func(c *worldcore.Gathers) (bool, error) { return c.Fail(id, names, cause) })
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

// Party is the other workers as a worker that exchanges something with them sees them.
type Party interface {
	watched
	// Call calls a function of the agents themselves, which may arrive twice at a Go worker.
	Call(ctx context.Context, name, fn string, args []any) error
	// Ask calls a function and stores its result in what into points to.
	Ask(ctx context.Context, into any, name, fn string, args ...any) error
	// Closed is closed with this worker.
	Closed() <-chan struct{}
}

// The functions by which the workers of an all-gather call each other: PyTorch's, and how Go workers tell that one died.
const (
	FuncToLeader    = "torch.distributed.rpc.api._gather_to_leader"
	FuncToFollowers = "torch.distributed.rpc.api._broadcast_to_followers"
	FuncGatherLost  = "cohort.rpc.gather_lost"
)

// Where PyTorch counts its all-gathers.
const (
	gatherCounts = "torch.distributed.rpc.api:_all_gather_sequence_id.get"
	gatherStates = "torch.distributed.rpc.api:_all_gather_sequence_id_to_states.__contains__"
)

// AllGather exchanges an object with the named workers, of which this one is one. It corresponds to
// torch.distributed.rpc.api._all_gather, but does not wait for a worker that has died; see [worldcore.Gather]. together says
// that no worker can leave before this one.
func (w *World) AllGather(ctx context.Context, p Party, object any, names []string, together bool) (*py.Dict, error) {
	m := worldcore.NewGather(w.self(), w.round, names, together)
	x := w.gathering(p, names)
	x.object = object
	w.drive(ctx, m, x.do)
	return x.objects, m.Err()
}

// CountGathers finds out which all-gather of these names is next. entered says that the others are about to enter it, if they
// have not, and wait for us there. Otherwise they may enter it at any time.
func (w *World) CountGathers(ctx context.Context, p Party, names []string, entered bool) error {
	m := worldcore.NewCounting(w.self(), w.round, names, entered)
	w.drive(ctx, m, w.gathering(p, names).do)
	return m.Err()
}

// gathering is an all-gather of this worker that is under way.
type gathering struct {
	guard
	p       Party
	set     py.Set // the names
	object  any
	objects *py.Dict
}

func (w *World) gathering(p Party, names []string) *gathering {
	x := &gathering{guard: w.guard(p), p: p, set: make(py.Set, len(names))}
	for i, name := range names {
		x.set[i] = name
	}
	return x
}

// do does what the machine of an all-gather asks for.
func (x *gathering) do(ctx context.Context, op worldcore.Op) (ev worldcore.Event) {
	g := x.w.Gathers
	switch op.Kind {
	case worldcore.OpGatherCount, worldcore.OpGatherFirst, worldcore.OpGatherSeen, worldcore.OpGiveUp,
		worldcore.OpGiveUpNext:
		return g.about(op)
	case worldcore.OpGatherEnter:
		ev.Text, ev.Err = g.enter(op.Names)
	case worldcore.OpGatherLeave:
		x.objects = g.leave(op.Text)
	case worldcore.OpReport:
		ev.Err = x.report(ctx, op)
	case worldcore.OpAwait:
		return g.await(ctx, op, x.p.Closed())
	case worldcore.OpShare:
		failpoint.At("rpcworld.share")
		g.mu.Lock()
		all := g.objects(op.Text)
		g.mu.Unlock()
		ev.Err = x.p.Call(ctx, op.Worker, FuncToFollowers, []any{op.Text, all})
	case worldcore.OpNotifyLost:
		ev.Err = x.p.Call(ctx, op.Worker, FuncGatherLost, []any{op.Text, op.Names[0], x.set})
	case worldcore.OpAskCount:
		ev.Err = x.p.Ask(ctx, &ev.N, op.Worker, gatherCounts, op.Text, 0)
	case worldcore.OpAskInside:
		ev.Err = x.p.Ask(ctx, &ev.OK, op.Worker, gatherStates, op.Text)
	default:
		return x.guard.do(ctx, op)
	}
	ev.Gone = errors.Is(ev.Err, ErrRefused)
	return ev
}

// report gives the own object to the leader.
func (x *gathering) report(ctx context.Context, op worldcore.Op) error {
	me := x.w.cfg.Name
	if op.Worker != me {
		return x.p.Call(ctx, op.Worker, FuncToLeader, []any{op.Text, me, x.object, x.set})
	}
	names := make([]string, len(x.set))
	for i, name := range x.set {
		names[i] = name.(string) //nolint:errcheck,forcetypeassert // only names are in it
	}
	return x.w.Gathers.ToLeader(op.Text, me, x.object, names, false)
}

// about answers a question about the all-gathers, or notes the number of the next one.
func (g *gathers) about(op worldcore.Op) (ev worldcore.Event) {
	failpoint.At("rpcworld.about")
	g.mu.Lock()
	defer g.mu.Unlock()
	switch op.Kind {
	case worldcore.OpGatherCount:
		ev.OK = g.mu.core.Known(op.Names)
	case worldcore.OpGatherFirst:
		g.mu.core.First(op.Names, op.N)
	case worldcore.OpGiveUp:
		g.mu.core.GiveUp(op.Text, op.Names, op.Worker)
	case worldcore.OpGiveUpNext:
		ev.Reports = g.mu.core.GiveUpNext(op.Names, op.Worker)
	default: // worldcore.OpGatherSeen
		if s := g.mu.core.Of(op.Text); s != nil && s.Done {
			ev.OK, ev.Err = true, s.Err
		}
	}
	return ev
}

// await waits until an all-gather that was entered is complete.
func (g *gathers) await(ctx context.Context, op worldcore.Op, closed <-chan struct{}) (ev worldcore.Event) {
	failpoint.At("rpcworld.await")
	g.mu.Lock()
	done := g.mu.done[op.Text]
	g.mu.Unlock()
	failpoint.At("rpcworld.await.wait")
	select {
	case <-done:
	case <-ctx.Done():
		ev.Err = cohort.Ended(ctx, "rpc: all_gather")
		failpoint.At("rpcworld.await.over")
		g.mu.Lock()
		ev.Names = g.mu.core.Missing(op.Text, op.Names)
		g.mu.Unlock()
	case <-closed:
		ev.Err = cohort.New("rpc: all_gather", cohort.Closed, "the agent is closed")
	}
	return ev
}
