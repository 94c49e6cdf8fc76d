// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
)

// serveRefs registers handlers that take references.
func (w *world) serveRefs() {
	for _, n := range w.nodes {
		n.reg.MustHandle("t.add_refs", func(ctx context.Context, a, b *rpc.Ref[any]) (any, error) {
			defer func() { _, _ = a.Close(), b.Close() }()
			x, err := a.Fetch(ctx)
			if err != nil {
				return nil, err
			}
			y, err := b.Fetch(ctx)
			if err != nil {
				return nil, err
			}
			return add(x, y)
		}).
			MustHandle("t.add_ref", func(ctx context.Context, a *rpc.Ref[any], b any) (any, error) {
				defer func() { _ = a.Close() }()
				x, err := a.Fetch(ctx)
				if err != nil {
					return nil, err
				}
				return add(x, b)
			}).
			MustHandle("t.nested_remote", func(ctx context.Context, to string, x any) (any, error) {
				ref, err := rpc.Remote[any](ctx, n.self(), to, "t.add", x, x)
				if err != nil {
					return nil, err
				}
				defer func() { _ = ref.Close() }()
				return ref.Fetch(ctx)
			}).
			MustHandle("t.nested_refs", func(ctx context.Context, to string, x any) ([]any, error) {
				one, err := rpc.Remote[any](ctx, n.self(), to, "t.add", x, x)
				if err != nil {
					return nil, err
				}
				sum, err := add(x, x)
				if err != nil {
					return nil, err
				}
				two, err := rpc.Remote[any](ctx, n.self(), to, "t.add", x, sum)
				return []any{one, two}, err
			}).
			MustHandle("t.return_ref", func(ctx context.Context, to string, x any) (*rpc.Ref[any], error) {
				return rpc.Remote[any](ctx, n.self(), to, "t.add", x, x)
			})
	}
}

func TestOwnRefAsArgument(t *testing.T) {
	for _, c := range []struct {
		name string
		self bool
		mode int
	}{{"peer", false, 0}, {"self", true, 0}, {"remote", false, 2}, {"self-remote", true, 2}} {
		t.Run(c.name, func(t *testing.T) {
			payloads(t, func(p payload) {
				t := p.T
				w := start(t, 2)
				w.serveRefs()
				w.every(func(n *node) error {
					to := w.next(n)
					if c.self {
						to = n.Name()
					}
					ref, err := rpc.Remote[any](w.ctx, n.Agent, n.Name(), "t.add", p.make(), p.make())
					if err != nil {
						return err
					}
					defer func() { _ = ref.Close() }()
					all := modes[c.mode : c.mode+1]
					if c.mode == 0 {
						all = modes[:2] // sync and async
					}
					for _, mode := range all {
						sum, err := mode.call(w.ctx, n.Agent, to, "t.add_ref", ref, p.make())
						if err != nil {
							return fmt.Errorf("%s: %w", mode.name, err)
						}
						if err := p.check(sum, 3); err != nil {
							return fmt.Errorf("%s: %w", mode.name, err)
						}
					}
					return nil
				})
				w.shutdown()
			})
		})
	}
}

func TestRefArguments(t *testing.T) {
	// Who gets the two references of the first worker's objects: their owner, or a third worker.
	for _, c := range []struct {
		name string
		to   int
		mode int
	}{{"remote", 1, 2}, {"third", 2, 2}, {"sync", 1, 0}} {
		t.Run(c.name, func(t *testing.T) {
			payloads(t, func(p payload) {
				t := p.T
				w := start(t, worldSize)
				w.serveRefs()
				w.every(func(n *node) error {
					owner, user := name((n.rank+1)%worldSize), name((n.rank+c.to)%worldSize)
					a, err := rpc.Remote[any](w.ctx, n.Agent, owner, "t.add", p.make(), p.make())
					if err != nil {
						return err
					}
					b, err := rpc.Remote[any](w.ctx, n.Agent, owner, "t.add", p.make(), p.scaled(5))
					if err != nil {
						return err
					}
					sum, err := modes[c.mode].call(w.ctx, n.Agent, user, "t.add_refs", a, b)
					if err != nil {
						return err
					}
					_, _ = a.Close(), b.Close()
					return p.check(sum, 2+6)
				})
				w.shutdown()
			})
		})
	}
}

func TestNestedRemote(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.serveRefs()
		w.every(func(n *node) error {
			for _, mode := range modes {
				sum, err := mode.call(w.ctx, n.Agent, w.next(n), "t.nested_remote", name((n.rank+2)%worldSize), p.make())
				if err == nil {
					err = p.check(sum, 2)
				}
				if err != nil {
					return fmt.Errorf("%s: %w", mode.name, err)
				}
			}
			return nil
		})
		w.shutdown()
	})
}

func nestedRefs(w *world, n *node, p payload) error {
	ref, err := rpc.Remote[[]*rpc.Ref[any]](w.ctx, n.Agent, w.next(n), "t.nested_refs", name((n.rank+2)%worldSize), p.make())
	if err != nil {
		return err
	}
	inner, err := ref.Fetch(w.ctx)
	if err != nil || len(inner) != 2 {
		return fmt.Errorf("%d references: %w", len(inner), err)
	}
	if err := ref.Close(); err != nil {
		return err
	}
	for i, r := range inner {
		sum, err := r.Fetch(w.ctx)
		if err != nil {
			return err
		}
		if err := p.check(sum, 2+i); err != nil {
			return err
		}
		_ = r.Close()
	}
	return nil
}

func TestNestedRefs(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.serveRefs()
		w.every(func(n *node) error { return nestedRefs(w, n, p) })
		w.shutdown()
	})
}

func TestNestedRefsStress(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.serveRefs()
		w.every(func(n *node) error {
			return parallel(20, func(int) error { return nestedRefs(w, n, p) })
		})
		w.shutdown()
	})
}

func TestReturnRefOfThird(t *testing.T) {
	p := payload{make: func() any { return ones(2) }}
	w := start(t, worldSize)
	w.serveRefs()
	w.every(func(n *node) error {
		third := name((n.rank + 2) % worldSize)
		ref, err := rpc.Call[*rpc.Ref[any]](w.ctx, n.Agent, w.next(n), "t.return_ref", third, p.make())
		if err != nil {
			return err
		}
		defer func() { _ = ref.Close() }()
		if ref.Owner().Name != third {
			return fmt.Errorf("the owner is %v, want %s", ref.Owner(), third)
		}
		sum, err := ref.Fetch(w.ctx)
		if err != nil {
			return err
		}
		return p.check(sum, 2)
	})
	w.shutdown()
}

// A reference goes around the ring; each hop leaves a reference to the next result behind.
func TestForwardChain(t *testing.T) {
	const hops = 8
	w := start(t, worldSize)
	for _, n := range w.nodes {
		n.reg.MustHandle("t.forward", func(ctx context.Context, left int, ref *rpc.Ref[int]) (*rpc.Ref[any], error) {
			defer func() { _ = ref.Close() }()
			if left > 1 {
				return rpc.Remote[any](ctx, n.self(), w.next(n), "t.forward", left-1, ref)
			}
			v, err := ref.Fetch(ctx)
			if err != nil {
				return nil, err
			}
			return rpc.NewRef[any](n.self(), v+1)
		})
	}
	w.every(func(n *node) error {
		local, err := rpc.NewRef(n.Agent, 41)
		if err != nil {
			return err
		}
		ref, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), "t.forward", hops, local)
		if err != nil {
			return err
		}
		for i := range hops {
			inner, failed := ref.Fetch(w.ctx)
			if failed != nil {
				return fmt.Errorf("hop %d: %w", i, failed)
			}
			_ = ref.Close()
			var ok bool
			if ref, ok = inner.(*rpc.Ref[any]); !ok {
				return fmt.Errorf("hop %d: a %T", i, inner)
			}
		}
		v, err := ref.Fetch(w.ctx)
		_ = ref.Close()
		_ = local.Close()
		if err != nil || fmt.Sprint(v) != "42" {
			return fmt.Errorf("got %v, %w", v, err)
		}
		return nil
	})
	w.shutdown()
}

func TestReturnLocalRefs(t *testing.T) {
	w := start(t, 2)
	for _, n := range w.nodes {
		n.reg.MustClass("t.Cell", &cell{})
		n.reg.MustHandle("t.cells", func() ([]*rpc.Ref[*cell], error) {
			one, err := rpc.NewRef(n.self(), &cell{v: 1})
			if err != nil {
				return nil, err
			}
			two, err := rpc.NewRef(n.self(), &cell{v: 2})
			return []*rpc.Ref[*cell]{one, two}, err
		})
	}
	w.every(func(n *node) error {
		refs, err := rpc.Call[[]*rpc.Ref[*cell]](w.ctx, n.Agent, w.next(n), "t.cells")
		if err != nil || len(refs) != 2 {
			return fmt.Errorf("%d references: %w", len(refs), err)
		}
		for i, ref := range refs {
			if ref.Owner().Name != w.next(n) {
				return fmt.Errorf("owner %v", ref.Owner())
			}
			for range 3 { // what one call changed the next one sees
				if _, err := rpc.CallMethod[int](w.ctx, ref, "Add", 10); err != nil {
					return err
				}
			}
			v, err := rpc.CallMethod[int](w.ctx, ref, "Add", 0)
			if err != nil || v != 30+i+1 {
				return fmt.Errorf("got %d, %w", v, err)
			}
			_ = ref.Close()
		}
		return nil
	})
	w.shutdown()
}

func TestPassLocalRefs(t *testing.T) {
	p := payload{make: func() any { return ones(2, 2) }}
	w := start(t, worldSize)
	w.serveRefs()
	w.every(func(n *node) error {
		ref, err := rpc.NewRef[any](n.Agent, p.make())
		if err != nil {
			return err
		}
		for _, mode := range modes {
			sum, err := mode.call(w.ctx, n.Agent, w.next(n), "t.add_ref", ref, p.make())
			if err != nil {
				return fmt.Errorf("%s: %w", mode.name, err)
			}
			if err := p.check(sum, 2); err != nil {
				return err
			}
		}
		return ref.Close()
	})
	w.shutdown()
}

func TestTwoRefsOfOneWorker(t *testing.T) {
	p := payload{make: func() any { return ones(2, 2) }}
	w := start(t, 2)
	w.serveRefs()
	w.every(func(n *node) error {
		a, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), "t.add", p.make(), p.make())
		if err != nil {
			return err
		}
		b, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), "t.add_ref", a, p.make())
		if err != nil {
			return err
		}
		c, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), "t.add_refs", a, b)
		if err != nil {
			return err
		}
		sum, err := c.Fetch(w.ctx)
		if err != nil {
			return err
		}
		_, _, _ = a.Close(), b.Close(), c.Close()
		return p.check(sum, 5)
	})
	w.shutdown()
}

// A method is called by sending the reference to the owner of its object.
func TestCallMethodOnRef(t *testing.T) {
	w := start(t, 2)
	for _, n := range w.nodes {
		n.reg.MustHandle("t.cell", func(v int) *cell { return &cell{v: v} })
		n.reg.MustHandle("t.add_to", func(ctx context.Context, ref *rpc.Ref[*cell], by int) (int, error) {
			defer func() { _ = ref.Close() }()
			c, err := ref.LocalValue(ctx)
			if err != nil {
				return 0, err
			}
			return c.Add(by), nil
		})
	}
	ref, err := rpc.Remote[*cell](w.ctx, w.nodes[0].Agent, name(1), "t.cell", 1)
	must(t, err)
	for i, mode := range modes {
		v, err := mode.call(w.ctx, w.nodes[0].Agent, name(1), "t.add_to", ref, 10)
		if err != nil || v != int64(1+10*(i+1)) {
			t.Errorf("%s: %v, %v", mode.name, v, err)
		}
	}
	must(t, ref.Close())
	w.shutdown()
}

// Sharing with a worker that does not exist, or a closed reference, is refused before anything is sent.
func TestShareRefused(t *testing.T) {
	w := start(t, 2)
	ref, err := rpc.NewRef(w.nodes[0].Agent, 1)
	must(t, err)
	_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, "unknown", "t.echo", ref)
	wantErr(t, err, cohort.NotFound, "unknown")
	must(t, ref.Close())
	_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", ref)
	wantErr(t, err, rpc.ErrRefClosed)
	w.shutdown()
}
