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
	"github.com/cohort-dist/cohort/internal/rpccall"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpcworld"
)

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
	if err := a.gathers.First(names, func() (int, error) { return a.askForGathers(ctx, names, false) }); err != nil {
		return nil, err
	}
	id, s, err := a.gathers.Begin(names)
	if err != nil {
		return nil, err
	}
	defer a.gathers.Forget(id)
	set := make(Set, len(names))
	for i, name := range names {
		set[i] = name
	}
	how := rpcworld.ClosedWait
	if leader != a.name && !together {
		how = rpcworld.OpenWait
	}
	v := a.world.Watch(ctx, members{a}, a.waitedFor(ctx, names, together), how)
	err = a.report(v.Context(), id, s, object, names, set)
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
		if leader == a.name && dead != nil {
			a.tellLost(ctx, id, dead.Peer, others, set)
		}
		return nil, gatherError(err)
	}
	if leader != a.name {
		return s.Objects, nil
	}
	errs := make([]error, len(others))
	var told sync.WaitGroup
	for i, name := range others {
		told.Go(func() { errs[i] = a.callAgain(ctx, name, broadcastToFollowers, []any{id, s.Objects}) })
	}
	told.Wait()
	for i, name := range others {
		if errs[i] != nil {
			return s.Objects, rpccall.CallError("rpc: all_gather", "broadcast", name, errs[i])
		}
	}
	return s.Objects, nil
}

// waitedFor are the workers to look after in an all-gather.
func (a *Agent) waitedFor(ctx context.Context, names []string, together bool) []string {
	leader := names[0]
	all := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == a.name })
	if leader == a.name || !a.world.IsGo(ctx, leader) {
		return all
	}
	return slices.DeleteFunc(all, func(name string) bool {
		p, err := a.net.Peer(name)
		return name != leader && (!together || err != nil || !p.Met.Load())
	})
}

// report gives the own object to the leader and waits until all are there.
func (a *Agent) report(ctx context.Context, id string, s *rpcworld.Gather, object any, names []string, set Set) error {
	leader := names[0]
	select {
	case <-s.Done: // the leader has given up before we came
		return nil
	default:
	}
	var err error
	if leader == a.name {
		err = a.gathers.ToLeader(id, a.name, object, names, false)
	} else {
		err = a.callAgain(ctx, leader, gatherToLeader, []any{id, a.name, object, set})
	}
	if err != nil {
		return err
	}
	select {
	case <-s.Done:
		return nil
	case <-ctx.Done():
		e := dist.Ended("rpc: all_gather", ctx)
		if leader == a.name {
			e.Detail = "workers that did not report: " + strings.Join(a.gathers.Missing(id, names), ", ")
		} else {
			e.Detail = "no answer of the leader " + leader
		}
		return e
	case <-a.net.Context.Done():
		return rpclink.ErrClosed("all_gather")
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
func (a *Agent) tellLost(ctx context.Context, id, worker string, others []string, set Set) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var told sync.WaitGroup
	for _, name := range others {
		p, err := a.net.Peer(name)
		if err != nil || name == worker {
			continue
		}
		c := p.Current()
		if c == nil {
			continue
		}
		told.Go(func() {
			if a.world.IsGo(ctx, name) { // a PyTorch worker does not know this function
				_ = a.callAgain(ctx, name, gatherLost, []any{id, worker, set})
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

// askForGathers asks a PyTorch worker which all-gather of these names is next. entered says that the worker is about to enter
// it, if it has not, and waits for us there. Otherwise it may enter it at any time.
func (a *Agent) askForGathers(ctx context.Context, names []string, entered bool) (int, error) {
	who := ""
	for _, name := range names {
		if name != a.name && !a.world.IsGo(ctx, name) && (who == "" || name < who) {
			who = name
		}
	}
	if a.world.Round() == 0 || who == "" { // Go workers begin with 0, and so do the first worlds of PyTorch's processes
		return 0, nil
	}
	all := strings.Join(slices.Sorted(slices.Values(names)), "")
	for last := -1; ; {
		count, err := Call[int](ctx, a, who, gatherCounts, all, 0)
		inside := false
		if err == nil && count > 0 {
			inside, err = Call[bool](ctx, a, who, gatherStates, all+strconv.Itoa(count-1))
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
