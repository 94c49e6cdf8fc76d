// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store"
)

// AllGather sends value to all workers and returns the values of all of them, by name. With names it runs among these
// workers only; this one must be among them, and each of them must call it with the same names. Calls with different
// names may run at the same time; those with the same names are matched in order.
//
// It corresponds to torch.distributed.rpc.api._all_gather. A [group.Group] is faster for tensors.
//
// [group.Group]: https://pkg.go.dev/github.com/cohort-dist/cohort/group
func AllGather[T any](ctx context.Context, a *Agent, value T, names ...string) (map[string]T, error) {
	if len(names) == 0 {
		for _, w := range a.Workers() {
			names = append(names, w.Name)
		}
	}
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		if _, err := a.Worker(name); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(names, a.name) {
		return nil, cohort.Newf("rpc: all_gather", cohort.InvalidArgument, "%q is not one of the workers that take part", a.name)
	}
	if len(names) == 1 {
		return map[string]T{a.name: value}, nil
	}
	ctx, cancel := rpcclient.Within(ctx, a.Timeout())
	defer cancel()
	got, err := a.world.AllGather(ctx, members{a}, value, names, false)
	if err != nil {
		return nil, err
	}
	out := make(map[string]T, len(names))
	for _, name := range names {
		v, _ := got.Get(name)
		if out[name], err = convert[T]("all_gather", v, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Barrier returns when all workers, or all of the named ones, have called it; see [AllGather]. It corresponds to
// torch.distributed.rpc.api._barrier.
func Barrier(ctx context.Context, a *Agent, names ...string) error {
	_, err := AllGather[any](ctx, a, nil, names...)
	return err
}

// Timeout returns what bounds calls whose context has no deadline; zero or less means nothing does. It corresponds to
// torch.distributed.rpc.get_rpc_timeout.
func (a *Agent) Timeout() time.Duration { return time.Duration(a.timeout.Load()) }

// SetTimeout changes the timeout of calls that begin from now on.
func (a *Agent) SetTimeout(d time.Duration) { a.timeout.Store(int64(d)) }

// startStatic joins a world of a given size: PyTorch's exact order, since its workers wait for each step.
func (a *Agent) startStatic(ctx context.Context) error {
	if err := a.listen(ctx, int(a.cfg.rank)); err != nil {
		return err
	}
	names, devices, err := a.rendezvous(ctx)
	for errors.Is(err, rpcworld.ErrRestart) {
		for _, p := range a.net.Members() { // of the round that was left
			a.net.RemovePeer(p.Name)
		}
		names, devices, err = a.rendezvous(ctx)
	}
	if err != nil {
		return err
	}
	if devices != nil {
		defer devices.Close()
	}
	if err := a.world.CountGathers(ctx, members{a}, names, true); err != nil {
		return fmt.Errorf("ask how many all-gathers there were in earlier rounds: %w", err)
	}
	if _, err := a.allGather(ctx, nil); err != nil {
		return err
	}
	if devices != nil {
		return devices.Barrier(ctx)
	}
	return nil
}

// rendezvous waits for the other ranks and learns their names. devices is nil in a world without PyTorch workers.
func (a *Agent) rendezvous(ctx context.Context) (names []string, devices *rpcworld.Devices, err error) {
	if err = a.world.ComeTogether(ctx); err != nil {
		return nil, nil, err
	}
	if a.world.Mixed() {
		if devices, err = a.world.ExchangeDevices(ctx, a.cfg.hook, a.storeAddr()); err != nil {
			return nil, nil, err
		}
	}
	if names, err = a.world.Names(ctx, members{a}, a.addr); err != nil && devices != nil {
		devices.Close()
	}
	return names, devices, err
}

// allGather exchanges an object with all workers of a static world.
func (a *Agent) allGather(ctx context.Context, object any) (*py.Dict, error) {
	names := []string{a.name}
	for _, w := range a.Workers() {
		if w.Name != a.name {
			names = append(names, w.Name)
		}
	}
	return a.world.AllGather(ctx, members{a}, object, names, true)
}

// members is the agent as its membership calls and watches the other workers.
type members struct{ a *Agent }

var (
	_ rpcworld.Caller = members{}
	_ rpcworld.Party  = members{}
)

func (m members) Listen(ctx context.Context, id int) (string, error) {
	err := m.a.listen(ctx, id)
	return m.a.addr, err
}

func (m members) Add(w rpcworld.Worker, addr string, e rpcworld.Entry) {
	m.a.net.AddPeer(w.Name, rrefcore.Worker(w.ID), addr, e) //nolint:gosec // checked
}

func (m members) Drop(name string) {
	if p, err := m.a.net.Peer(name); err == nil {
		m.a.left(name, p.ID)
	}
}

func (m members) AskDevices(ctx context.Context, name string) error {
	return m.a.callRetried(ctx, name, deviceInfos, nil)
}

func (m members) Announce(ctx context.Context, name string, comes bool) error {
	me := rpcwire.WorkerInfo{Name: m.a.name, ID: rpcwire.WorkerID(m.a.id)}
	return m.a.callRetried(ctx, name, updateMembership, []any{me, []any{}, &py.Dict{}, comes})
}

func (m members) Call(ctx context.Context, name, fn string, args []any) error {
	return m.a.callRetried(ctx, name, fn, args)
}

func (m members) Ask(ctx context.Context, into any, name, fn string, args ...any) error {
	v, err := m.a.call(ctx, name, fn, args)
	if err != nil {
		return err
	}
	return Assign(into, v)
}

func (m members) Closed() <-chan struct{} { return m.a.net.Context.Done() }

func (m members) State(name string) rpcworld.State {
	p, err := m.a.net.Peer(name)
	if err != nil {
		return rpcworld.State{Known: !isNotFound(err)}
	}
	s := rpcworld.State{Known: true, ID: int(p.ID), Met: p.Met.Load()}
	if c := p.Current(); c != nil {
		s.Connected = true
		if c.Pipe != nil { // a link has heartbeats of its own
			s.Silence = c.Pipe.Silence()
		}
	}
	return s
}

func (m members) Reach(ctx context.Context, name string) error {
	p, err := m.a.net.Peer(name)
	if err == nil {
		_, err = p.Connect(ctx)
	}
	return err
}

func (m members) Probe(ctx context.Context, addr string) error { return m.a.net.Probe(ctx, addr) }

func (m members) Workers() []rpcworld.Worker {
	all := m.a.Workers()
	out := make([]rpcworld.Worker, len(all))
	for i, w := range all {
		out[i] = rpcworld.Worker{Name: w.Name, ID: int(w.ID)}
	}
	return out
}

// left forgets a worker that leaves. The announcement of a former worker of its name is ignored.
func (a *Agent) left(name string, id rrefcore.Worker) {
	p, err := a.net.Peer(name)
	if err != nil || p.ID != id {
		return
	}
	a.net.Left(p)
	a.net.RemovePeer(name)
	a.world.Forget(name)
}

// storeAddr returns where the store is, if it has an address.
func (a *Agent) storeAddr() string {
	return ctxdial.Towards(store.UnderlyingNonPrefix(a.world.Store()))
}
