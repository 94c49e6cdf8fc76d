// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

func TestRemoteToSelf(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, 2)
		w.every(func(n *node) error {
			ref, err := rpc.Remote[any](w.ctx, n.Agent, n.Name(), "t.add", p.make(), p.make())
			if err != nil {
				return err
			}
			defer func() { _ = ref.Close() }()
			sum, err := ref.Fetch(w.ctx)
			if err != nil {
				return err
			}
			return p.check(sum, 2)
		})
	})
}

func TestRemoteFetch(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.every(func(n *node) error {
			for _, fn := range adders {
				ref, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), fn, addArgs(fn, p.make(), p.make())...)
				if err != nil {
					return err
				}
				sum, err := ref.Fetch(w.ctx)
				if err = errors.Join(err, ref.Close()); err != nil {
					return fmt.Errorf("%s: %w", fn, err)
				}
				if err = p.check(sum, 2); err != nil {
					return fmt.Errorf("%s: %w", fn, err)
				}
			}
			return nil
		})
		w.shutdown()
	})
}

func TestRemoteSelfLocalValue(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, 1)
		n := w.nodes[0]
		for _, fn := range adders {
			ref, err := rpc.Remote[any](w.ctx, n.Agent, n.Name(), fn, addArgs(fn, p.make(), p.make())...)
			must(t, err)
			if !ref.IsOwner() || ref.Owner() != n.Self() {
				t.Errorf("%s: owner %v", fn, ref.Owner())
			}
			sum, err := ref.LocalValue(w.ctx)
			must(t, err)
			must(t, p.check(sum, 2))
			must(t, ref.Close())
		}
	})
}

// fetched fetches the sums of one payload and 0, 1, 2... times it, and gives the references back.
func (p payload) fetched(ctx context.Context, refs []*rpc.Ref[any]) error {
	for i, ref := range refs {
		sum, err := ref.Fetch(ctx)
		if err != nil {
			return err
		}
		if err := p.check(sum, 1+i); err != nil {
			return err
		}
		_ = ref.Close()
	}
	return nil
}

func TestManyRemote(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.every(func(n *node) error {
			var refs []*rpc.Ref[any]
			for i := range 10 * len(adders) {
				fn := adders[i%len(adders)]
				ref, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), fn, addArgs(fn, p.make(), p.scaled(i))...)
				if err != nil {
					return err
				}
				refs = append(refs, ref)
			}
			return p.fetched(w.ctx, refs)
		})
		w.shutdown()
	})
}

func TestRemoteKeywords(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		ref, err := rpc.Remote[int](w.ctx, n.Agent, w.next(n), "t.kwargs", 1, rpc.Kw{"b": 2, "c": 3})
		if err != nil {
			return err
		}
		defer func() { _ = ref.Close() }()
		sum, err := ref.Fetch(w.ctx)
		if err != nil || sum != 6 {
			return fmt.Errorf("got %d, %w", sum, err)
		}
		return nil
	})
}

func TestManyRemoteKeywords(t *testing.T) {
	payloads(t, func(p payload) {
		t := p.T
		w := start(t, worldSize)
		w.every(func(n *node) error {
			refs := make([]*rpc.Ref[any], 10)
			for i := range refs {
				var err error
				if refs[i], err = rpc.Remote[any](w.ctx, n.Agent, w.next(n), "t.add", rpc.Kw{"a": p.make(), "b": p.scaled(i)}); err != nil {
					return err
				}
			}
			return p.fetched(w.ctx, refs)
		})
		w.shutdown()
	})
}

func TestLocalRef(t *testing.T) {
	w := start(t, 2)
	n := w.nodes[0]
	ref, err := rpc.NewRef(n.Agent, 35)
	must(t, err)
	v, err := ref.LocalValue(w.ctx)
	if err != nil || v != 35 {
		t.Errorf("got %v, %v", v, err)
	}
	if got := n.DebugInfo()["num_owner_rrefs"]; got != 0 {
		t.Errorf("a local reference made %d entries", got)
	}
	must(t, ref.Close())
	w.shutdown()
}

func TestLocalValueNotOnOwner(t *testing.T) {
	w := start(t, 2)
	ref, err := rpc.Remote[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 1)
	must(t, err)
	_, err = ref.LocalValue(w.ctx)
	wantErr(t, err, cohort.InvalidArgument, name(1), "Fetch", ref.ID(), name(0))
	must(t, ref.Close())
}

func TestRemoteError(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		for _, to := range []string{w.next(n), n.Name()} {
			ref, err := rpc.Remote[any](w.ctx, n.Agent, to, "t.raise")
			if err != nil {
				return err
			}
			for range 2 { // every fetch says it
				_, err = ref.Fetch(w.ctx)
				var remote *rpc.RemoteError
				if !errors.As(err, &remote) || remote.Kind != "ValueError" || remote.Message != "Expected error" || remote.Worker != to {
					return fmt.Errorf("%s: %w", to, err)
				}
			}
			if to == n.Name() {
				if _, err = ref.LocalValue(w.ctx); checkErr(err, cohort.Remote, "Expected error") != nil {
					return fmt.Errorf("local value: %w", err)
				}
			}
			_ = ref.Close()
			// The same of arguments that the function does not take.
			if ref, err = rpc.Remote[any](w.ctx, n.Agent, to, "t.nothing", 10); err != nil {
				return err
			}
			_, err = ref.Fetch(w.ctx)
			if remote, ok := errors.AsType[*rpc.RemoteError](err); !ok || remote.Kind != "TypeError" {
				return fmt.Errorf("%s, with wrong arguments: %w", to, err)
			}
			_ = ref.Close()
		}
		return nil
	})
}

func TestRemoteErrorTensor(t *testing.T) {
	w := start(t, 2)
	ref, err := rpc.Remote[*tensor.Tensor](w.ctx, w.nodes[0].Agent, name(1), "t.add", ones(2), "no tensor")
	must(t, err)
	_, err = ref.Fetch(w.ctx)
	wantErr(t, err, cohort.Remote, "ValueError")
	must(t, ref.Close())
}

func TestRefString(t *testing.T) {
	w := start(t, 2)
	w.every(func(n *node) error {
		local, err := rpc.NewRef(n.Agent, 1)
		if err != nil {
			return err
		}
		user, err := rpc.Remote[int](w.ctx, n.Agent, w.next(n), "t.echo", 1)
		if err != nil {
			return err
		}
		id := func(number int) string {
			return fmt.Sprintf("GloballyUniqueId(created_on=%d, local_id=%d)", n.rank, number)
		}
		if got, want := local.String(), "OwnerRRef("+id(0)+")"; got != want {
			return fmt.Errorf("got %s, want %s", got, want)
		}
		if got, want := user.String(), "UserRRef(RRefId = "+id(1)+", ForkId = "+id(2)+")"; got != want {
			return fmt.Errorf("got %s, want %s", got, want)
		}
		return errors.Join(local.Close(), user.Close())
	})
}

// PyTorch's _get_future: one can wait for the creation alone.
func TestCreated(t *testing.T) {
	w := start(t, worldSize)
	w.every(func(n *node) error {
		for _, fn := range adders {
			ref, err := rpc.Remote[any](w.ctx, n.Agent, w.next(n), fn, addArgs(fn, ones(2), ones(2))...)
			if err != nil {
				return err
			}
			if err = ref.Confirmed(w.ctx); err != nil {
				return err
			}
			if !ref.ConfirmedByOwner() {
				return errors.New("confirmed, but not by the owner")
			}
			sum, err := ref.Fetch(w.ctx)
			if x, ok := sum.(*tensor.Tensor); err != nil || !ok || !tensor.Equal(x, filled(2, 2)) {
				return fmt.Errorf("%s: %v, %w", fn, sum, err)
			}
			_ = ref.Close()
		}
		return nil
	})
}

func TestRefOnlyTravelsInCalls(t *testing.T) {
	w := start(t, 1)
	ref, err := rpc.NewRef(w.nodes[0].Agent, 1)
	must(t, err)
	if text, err := json.Marshal(ref); err == nil {
		t.Errorf("a reference was written as %s", text)
	}
	must(t, ref.Close())
}

// A reference among the arguments is known to its owner before the handler starts.
func TestArgumentConfirmed(t *testing.T) {
	w := start(t, 3)
	w.nodes[1].reg.MustHandle("t.confirmed", func(ref *rpc.Ref[int]) (bool, error) {
		defer func() { _ = ref.Close() }()
		return ref.ConfirmedByOwner(), nil
	})
	a := w.nodes[0].Agent
	for range 20 {
		ref, err := rpc.Remote[int](w.ctx, a, name(2), "t.echo", 7)
		must(t, err)
		t.Run("sync", func(t *testing.T) {
			ok, err := rpc.Call[bool](w.ctx, a, name(1), "t.confirmed", ref)
			if err != nil || !ok {
				t.Errorf("got %v, %v", ok, err)
			}
		})
		t.Run("remote", func(t *testing.T) {
			made, err := rpc.Remote[bool](w.ctx, a, name(1), "t.confirmed", ref)
			must(t, err)
			ok, err := made.Fetch(w.ctx)
			if err != nil || !ok {
				t.Errorf("got %v, %v", ok, err)
			}
			must(t, made.Close())
		})
		must(t, ref.Close())
	}
	w.shutdown()
}

func info(n *node, key string) int { return n.DebugInfo()["num_"+key] }

func TestRefDebugInfo(t *testing.T) {
	w := start(t, 3)
	owner, user := w.nodes[0], w.nodes[1]
	user.reg.MustHandle("t.keep", func(ref *rpc.Ref[int]) { user.keep(ref) })
	local, err := rpc.NewRef(owner.Agent, 7)
	must(t, err)
	if got := info(owner, "owner_rrefs"); got != 0 {
		t.Fatalf("a local reference made %d entries", got)
	}
	_, err = rpc.Call[any](w.ctx, owner.Agent, name(1), "t.keep", local)
	must(t, err)
	if got := info(owner, "owner_rrefs"); got != 1 {
		t.Errorf("after sharing: %d objects", got)
	}
	testkit.Until(t, "the fork is there", func() bool { return info(owner, "forks") == 1 })
	must(t, user.closeKept())
	testkit.Until(t, "the entry goes", func() bool { return info(owner, "owner_rrefs") == 0 })

	one, err := rpc.Remote[int](w.ctx, owner.Agent, name(2), "t.echo", 1)
	must(t, err)
	two, err := rpc.Remote[int](w.ctx, owner.Agent, name(2), "t.echo", 2)
	must(t, err)
	must(t, one.Confirmed(w.ctx))
	must(t, two.Confirmed(w.ctx))
	if objects, pending := info(w.nodes[2], "owner_rrefs"), info(owner, "pending_users"); objects != 2 || pending != 0 {
		t.Errorf("%d objects, %d pending users", objects, pending)
	}
	must(t, one.Close())
	must(t, two.Close())
	testkit.Until(t, "both go", func() bool { return info(w.nodes[2], "owner_rrefs") == 0 })
	must(t, local.Close())
	w.shutdown()
}

func TestRefAfterShutdown(t *testing.T) {
	w := start(t, 2)
	ref, err := rpc.Remote[int](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	if v, failed := ref.Fetch(w.ctx); failed != nil || v != 7 {
		t.Fatalf("got %v, %v", v, failed)
	}
	w.shutdown()
	_, err = ref.Fetch(w.ctx)
	wantErr(t, err, cohort.Closed)
	_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.echo", ref)
	wantErr(t, err, cohort.Closed)
	_, err = rpc.NewRef(w.nodes[0].Agent, 1)
	wantErr(t, err, cohort.Closed)
	must(t, ref.Close())
}

// A handle that only a cycle of local variables holds does not keep the workers from leaving.
func TestRefInCycle(t *testing.T) {
	type cycle struct {
		ref  *rpc.Ref[int]
		self *cycle
	}
	w := start(t, 2)
	c := &cycle{}
	c.self = c
	var err error
	c.ref, err = rpc.Remote[int](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	must(t, c.ref.Confirmed(w.ctx))
	within(t, soon, "shutdown", w.shutdown)
	runtime.KeepAlive(c)
}

// A forgotten reference is released when the garbage collector finds it.
func TestForgottenRef(t *testing.T) {
	w := start(t, 2)
	func() {
		ref, err := rpc.Remote[int](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
		must(t, err)
		must(t, ref.Confirmed(w.ctx))
	}()
	testkit.Until(t, "the object is freed", func() bool {
		runtime.GC()
		return info(w.nodes[1], "owner_rrefs") == 0
	})
	w.shutdown()
}

// A reference used with another type is an error at both ends.
func TestRefOfAnotherType(t *testing.T) {
	w := start(t, 2)
	w.nodes[1].reg.MustHandle("t.text", func(ref *rpc.Ref[string]) { _ = ref.Close() })
	ref, err := rpc.NewRef(w.nodes[0].Agent, 7)
	must(t, err)
	_, err = rpc.Call[any](w.ctx, w.nodes[0].Agent, name(1), "t.text", ref)
	wantErr(t, err, cohort.Mismatch, "int", "string")
	back, err := rpc.Remote[string](w.ctx, w.nodes[0].Agent, name(1), "t.echo", 7)
	must(t, err)
	_, err = back.Fetch(w.ctx)
	wantErr(t, err, cohort.Mismatch)
	must(t, back.Close())
	must(t, ref.Close())
	w.shutdown()
}

// An object that cannot be sent may live behind a reference and be used where it is.
func TestUnsendableObjectBehindRef(t *testing.T) {
	w := start(t, 2)
	for _, n := range w.nodes {
		n.reg.MustClass("t.Mailbox", &mailbox{})
		n.reg.MustHandle("t.mailbox", func() *mailbox { return &mailbox{box: make(chan string, 4)} })
	}
	ref, err := rpc.Remote[*mailbox](w.ctx, w.nodes[0].Agent, name(1), "t.mailbox")
	must(t, err)
	_, err = rpc.CallMethod[any](w.ctx, ref, "Put", "hello")
	must(t, err)
	got, err := rpc.CallMethod[string](w.ctx, ref, "take")
	if err != nil || got != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	if v, err := ref.Fetch(w.ctx); err == nil {
		t.Errorf("an object with a channel was copied: %v", v)
	}
	must(t, ref.Close())
	w.shutdown()
}

type mailbox struct{ box chan string }

func (m *mailbox) Put(text string) { m.box <- text }

func (m *mailbox) Take(ctx context.Context) (string, error) {
	select {
	case text := <-m.box:
		return text, nil
	case <-time.After(time.Second):
		return "", cohort.New("mailbox: take", cohort.Empty, "")
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
