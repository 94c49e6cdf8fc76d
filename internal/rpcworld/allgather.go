// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Party is the other workers as whoever exchanges something with them sees them.
type Party interface {
	Watched
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

// AllGather exchanges an object with the named workers, of which this one is one. It corresponds to
// torch.distributed.rpc.api._all_gather, but does not wait for a worker that has died: a Go leader looks after all others,
// since none of them can have left, and tells them. They look after the leader. A PyTorch leader looks after nobody, so all
// look after all, although others may be further than they are; together says that nobody can leave before this worker.
func (w *World) AllGather(ctx context.Context, p Party, object any, names []string, together bool) (*py.Dict, error) {
	slices.Sort(names)
	leader, others := names[0], names[1:]
	if err := w.Gathers.First(names, func() (int, error) { return w.AskForGathers(ctx, p, names, false) }); err != nil {
		return nil, err
	}
	id, s, err := w.Gathers.Begin(names)
	if err != nil {
		return nil, err
	}
	defer w.Gathers.Forget(id)
	set := make(py.Set, len(names))
	for i, name := range names {
		set[i] = name
	}
	how := ClosedWait
	if leader != w.cfg.Name && !together {
		how = OpenWait
	}
	v := w.Watch(ctx, p, w.waitedFor(ctx, p, names, together), how)
	err = w.report(v.Context(), p, id, s, object, names, set)
	dead := v.End()
	select {
	case <-s.Done: // whatever happened meanwhile
		err = s.Err
	default:
		if dead != nil {
			err = dead
		}
	}
	if err != nil {
		if leader == w.cfg.Name && dead != nil {
			w.tellLost(ctx, p, id, dead.Peer, others, set)
		}
		return nil, gatherError(err)
	}
	if leader != w.cfg.Name {
		return s.Objects, nil
	}
	errs := make([]error, len(others))
	var told sync.WaitGroup
	for i, name := range others {
		told.Go(func() { errs[i] = p.Call(ctx, name, FuncToFollowers, []any{id, s.Objects}) })
	}
	told.Wait()
	for i, name := range others {
		if errs[i] != nil {
			e := dist.Wrap("rpc: all_gather", dist.Unavailable, errs[i])
			e.Key, e.Peer = "broadcast", name
			return s.Objects, e
		}
	}
	return s.Objects, nil
}

// waitedFor are the workers to look after in an all-gather.
func (w *World) waitedFor(ctx context.Context, p Party, names []string, together bool) []string {
	leader := names[0]
	all := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == w.cfg.Name })
	if leader == w.cfg.Name || !w.IsGo(ctx, leader) {
		return all
	}
	return slices.DeleteFunc(all, func(name string) bool {
		return name != leader && (!together || !p.State(name).Met)
	})
}

// report gives the own object to the leader and waits until all are there.
func (w *World) report(ctx context.Context, p Party, id string, s *Gather, object any, names []string, set py.Set) error {
	leader := names[0]
	select {
	case <-s.Done: // the leader has given up before we came
		return nil
	default:
	}
	var err error
	if leader == w.cfg.Name {
		err = w.Gathers.ToLeader(id, w.cfg.Name, object, names, false)
	} else {
		err = p.Call(ctx, leader, FuncToLeader, []any{id, w.cfg.Name, object, set})
	}
	if err != nil {
		return err
	}
	select {
	case <-s.Done:
		return nil
	case <-ctx.Done():
		e := dist.Ended("rpc: all_gather", ctx)
		if leader == w.cfg.Name {
			e.Detail = "workers that did not report: " + strings.Join(w.Gathers.Missing(id, names), ", ")
		} else {
			e.Detail = "no answer of the leader " + leader
		}
		return e
	case <-p.Closed():
		return dist.New("rpc: all_gather", dist.Closed, "the agent is closed")
	}
}

// gatherError says of a worker's death what was waited for.
func gatherError(err error) error {
	dead, ok := err.(*dist.Error) //nolint:errorlint // only what a watcher or a leader says
	if !ok || dead.Op != "rpc: worker" {
		return err
	}
	e := dist.Wrap("rpc: all_gather", dist.PeerLost, err)
	e.Peer, e.Rank, e.Detail = dead.Peer, dead.Rank, dead.Detail
	return e
}

// tellLost tells the Go workers of an all-gather why it fails. A PyTorch worker waits until its time is over, as for a leader
// of its own kind.
func (w *World) tellLost(ctx context.Context, p Party, id, worker string, others []string, set py.Set) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var told sync.WaitGroup
	for _, name := range others {
		if name == worker || !p.State(name).Connected {
			continue
		}
		told.Go(func() {
			if w.IsGo(ctx, name) { // a PyTorch worker does not know this function
				_ = p.Call(ctx, name, FuncGatherLost, []any{id, worker, set})
			}
		})
	}
	told.Wait()
}

// Where PyTorch counts its all-gathers.
const (
	gatherCounts = "torch.distributed.rpc.api:_all_gather_sequence_id.get"
	gatherStates = "torch.distributed.rpc.api:_all_gather_sequence_id_to_states.__contains__"
)

// AskForGathers asks a PyTorch worker which all-gather of these names is next. entered says that the worker is about to enter
// it, if it has not, and waits for us there. Otherwise it may enter it at any time.
func (w *World) AskForGathers(ctx context.Context, p Party, names []string, entered bool) (int, error) {
	who := ""
	for _, name := range names {
		if name != w.cfg.Name && !w.IsGo(ctx, name) && (who == "" || name < who) {
			who = name
		}
	}
	if w.Round() == 0 || who == "" { // Go workers begin with 0, and so do the first worlds of PyTorch's processes
		return 0, nil
	}
	all := strings.Join(slices.Sorted(slices.Values(names)), "")
	for last := -1; ; {
		var count int
		err := p.Ask(ctx, &count, who, gatherCounts, all, 0)
		inside := false
		if err == nil && count > 0 {
			err = p.Ask(ctx, &inside, who, gatherStates, all+strconv.Itoa(count-1))
		}
		if err != nil {
			return 0, err
		}
		next := count
		if inside {
			next = count - 1
		}
		if next == last && (inside || !entered) { // twice, since a worker that enters it counts a moment before
			return next, nil
		}
		last = next
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, dist.FromContext("rpc: all_gather", ctx)
		}
	}
}
