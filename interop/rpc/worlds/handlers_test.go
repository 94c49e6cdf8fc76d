// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worlds_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// box is the Go counterpart of Box in world.py.
type box struct {
	n atomic.Int64

	mu   sync.Mutex
	held []*rpc.Ref[any]
}

func (b *box) Get() int64                   { return b.n.Load() }
func (b *box) Add(k int64) int64            { return b.n.Add(k) }
func (b *box) Fail(kind, text string) error { return rpc.Raise(kind, "%s", text) }
func (b *box) Echo(x any) any               { return x }
func (b *box) Held() []any                  { return b.list() }
func (b *box) HeldReferences() []rpc.AnyRef {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []rpc.AnyRef
	for _, r := range b.held {
		all = append(all, r)
	}
	return all
}

func (b *box) list() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := []any{}
	for _, r := range b.held {
		all = append(all, r)
	}
	return all
}

func (b *box) Hold(x any) (string, error) {
	w := &writer{}
	text := w.text(x)
	b.mu.Lock()
	old := b.held
	b.held = w.refs
	b.mu.Unlock()
	closeAll(old)
	return text, w.err
}

// handlers are the Go counterparts of the functions in world.py.
func (d *driver) handlers() *rpc.Registry {
	return rpc.NewRegistry().
		MustClass("world.Box", (*box)(nil)).
		MustHandle("world.echo", func(x any) any { return x }).
		MustHandle("world.make", func(x any) any { return x }).
		MustHandle("world.pack", func(_ context.Context, r *rpc.Request) (any, error) {
			kwargs := r.Kwargs
			if kwargs == nil {
				kwargs = &py.Dict{}
			}
			return py.Tuple{py.Tuple(r.Args), kwargs}, nil
		}).
		MustHandle("world.look", func(x any) (string, error) {
			w := &writer{}
			text := w.text(x)
			closeAll(w.refs)
			return text, w.err
		}).
		MustHandle("world.fail", func(kind, text string) error { return rpc.Raise(kind, "%s", text) }).
		MustHandle("world.box", func(n int64) *box {
			b := &box{}
			b.n.Store(n)
			return b
		}).
		MustHandle("world.own", func(ctx context.Context, x any) (*rpc.Ref[any], error) { return rpc.NewRef(rpc.AgentFrom(ctx), x) }).
		MustHandle("world.keep", func(slot string, x any) (string, error) {
			w := &writer{}
			text := w.text(x)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.slots[slot] = w.refs
			return text, w.err
		}).
		MustHandle("world.give", func(slot string) ([]any, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			refs, ok := d.slots[slot]
			if !ok {
				return nil, errors.New("no slot " + slot)
			}
			all := []any{}
			for _, r := range refs {
				all = append(all, r)
			}
			return all, nil
		}).
		MustHandle("world.drop", d.drop).
		MustHandle("world.fetch", func(ctx context.Context, r *rpc.Ref[any]) (any, error) {
			defer func() { _ = r.Close() }()
			return r.Fetch(ctx)
		}).
		MustHandle("world.through", func(ctx context.Context, r *rpc.Request) (any, error) {
			ref, _ := r.Args[0].(*rpc.Ref[any])
			method, _ := r.Args[1].(string)
			defer func() { _ = ref.Close() }()
			return rpc.CallMethod[any](ctx, ref, method, r.Args[2:]...)
		}).
		MustHandle("world.relay", func(ctx context.Context, path []string, x any) (any, error) {
			if len(path) == 0 {
				return x, nil
			}
			return rpc.Call[any](ctx, rpc.AgentFrom(ctx), path[0], "world.relay", path[1:], x)
		}).
		MustHandle("world.spread", func(ctx context.Context, to string, n int) ([]any, error) {
			refs := []any{}
			for i := range n {
				r, err := rpc.Remote[any](ctx, rpc.AgentFrom(ctx), to, "world.make", i)
				if err != nil {
					return nil, err
				}
				refs = append(refs, r)
			}
			return refs, nil
		}).
		MustHandle("world.block", func(ctx context.Context, token string) (string, error) {
			select {
			case <-d.gate(token):
				return token, nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}).
		MustHandle("world.release", func(token string) { close(d.gate(token)) }).
		MustHandle("scripted.double", func(x *tensor.Tensor, k int64) (*tensor.Tensor, error) {
			xs, err := tensor.Copy[int64](x)
			if err != nil {
				return nil, err
			}
			for i := range xs {
				xs[i] *= k
			}
			return tensor.From(xs, x.Shape()...)
		}).
		MustHandle("scripted.total", func(xs []int64) int64 {
			var sum int64
			for _, x := range xs {
				sum += x
			}
			return sum
		})
}

func (d *driver) gate(token string) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gates[token] == nil {
		d.gates[token] = make(chan struct{})
	}
	return d.gates[token]
}
