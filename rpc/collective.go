// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcclient"
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
