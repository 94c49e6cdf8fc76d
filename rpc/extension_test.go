// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/tensor/tensorlike"
	"github.com/cohort-dist/cohort/tensor"
)

// tracked is a value that stands for a tensor, as one with gradients does.
type tracked struct {
	t   *tensor.Tensor
	how string
}

var _ = tensorlike.Register((*tracked).sent, (*tracked).receive)

func (x *tracked) sent() any { return x.t }

func (x *tracked) receive(v any) error {
	t, ok := v.(*tensor.Tensor)
	if !ok {
		return fmt.Errorf("a %T", v)
	}
	x.t, x.how = t, "plain"
	return nil
}

type passKey struct{}

// tracer is an extension that does what autograd does with a forward pass: it wraps messages of a context, marks the tensors
// of those that arrive, and notes what it sees.
type tracer struct {
	agent rpcext.Agent
	next  atomic.Int64
	open  atomic.Int64 // exchanges without outcome

	mu    sync.Mutex
	notes []string
}

func (x *tracer) note(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.notes = append(x.notes, fmt.Sprintf(format, args...))
}

func (x *tracer) has(note string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Contains(x.notes, note)
}

func (x *tracer) Attach(a rpcext.Agent) error { x.agent = a; return nil }

func (x *tracer) Died(w rpcext.Worker) { x.note("%s died", w.Name) }

func (x *tracer) Wrappers() []rpcwire.Type { return []rpcwire.Type{rpcwire.ForwardAutogradReq} }

func (x *tracer) Kinds() []rpcwire.Type {
	return []rpcwire.Type{rpcwire.CleanupAutogradReq, rpcwire.BackwardAutogradReq}
}

// mark replaces the tensors of a message.
func mark(m *rpcwire.Message, how string) {
	for i, t := range m.Tensors {
		if t, ok := t.(*tensor.Tensor); ok {
			m.Tensors[i] = &tracked{t, how}
		}
	}
}

func (x *tracer) wrap(m *rpcwire.Message, pass int64, kind rpcwire.Type) error {
	w := rpcwire.Autograd{Inner: m.Type, ContextID: pass, MessageID: x.next.Add(1), From: rpcwire.WorkerID(x.agent.Self().ID)}
	payload, err := w.Wrap(m.Payload)
	m.Type, m.Payload = kind, payload
	return err
}

func unwrapInto(m *rpcwire.Message, how string) (rpcwire.Autograd, error) {
	w, inner, err := rpcwire.UnwrapAutograd(m.Payload)
	m.Type, m.Payload = w.Inner, inner
	mark(m, how)
	return w, err
}

func (x *tracer) Unwrap(from rpcext.Worker, m *rpcwire.Message) (*rpcext.Wrapped, error) {
	w, err := unwrapInto(m, "received")
	if err != nil {
		return nil, err
	}
	x.note("%v of pass %d from %s", w.Inner, w.ContextID, from.Name)
	return &rpcext.Wrapped{
		Message: m,
		Context: func(ctx context.Context) context.Context { return context.WithValue(ctx, passKey{}, w.ContextID) },
		Answer: func(m *rpcwire.Message) error {
			x.note("answer %v with %d holders", m.Type, len(m.Holders))
			return x.wrap(m, w.ContextID, rpcwire.ForwardAutogradResp)
		},
	}, nil
}

func (x *tracer) Serve(ctx context.Context, from rpcext.Worker, m *rpcwire.Message, answer func(*rpcwire.Message, error)) {
	answer(x.serve(ctx, from, m))
}

func (x *tracer) serve(ctx context.Context, from rpcext.Worker, m *rpcwire.Message) (*rpcwire.Message, error) {
	if m.Type == rpcwire.BackwardAutogradReq {
		b, err := (&rpcwire.Decoder{Tensors: m.Tensors}).Backward(m.Payload)
		switch {
		case err != nil:
			return nil, err
		case b.ContextID < 0:
			panic("a bug of the extension")
		case b.MessageID < 0:
			runtime.Goexit()
		case b.RetainGraph: // passes it on, so that places matter
			n, err := x.agent.Call(ctx, from.ID, "t.twice", 21)
			return &rpcwire.Message{Type: rpcwire.BackwardAutogradResp}, errors.Join(err, wrongUnless(n == int64(42)))
		}
		return nil, cohort.Newf("distautograd: backward", cohort.NotFound, "context %d has %d gradients", b.ContextID, len(b.Gradients))
	}
	id, err := rpcwire.DecodeCleanup(m.Payload)
	x.note("cleanup %d by %s", id, from.Name)
	return &rpcwire.Message{Type: rpcwire.CleanupAutogradResp}, err
}

func wrongUnless(ok bool) error {
	if ok {
		return nil
	}
	return errors.New("a wrong result")
}

func (x *tracer) Counts() map[string]int { return nil }

func (x *tracer) Outgoing(ctx context.Context, to rpcext.Worker, _ string, m *rpcwire.Message) (*rpcext.Exchange, error) {
	pass, ok := ctx.Value(passKey{}).(int64)
	if !ok {
		return nil, nil //nolint:nilnil // not of a pass
	}
	x.open.Add(1)
	x.note("send %v with %d holders to %s", m.Type, len(m.Holders), to.Name)
	sent := *m
	if err := x.wrap(&sent, pass, rpcwire.ForwardAutogradReq); err != nil {
		return nil, err
	}
	return &rpcext.Exchange{
		Message: &sent,
		Answered: func(m *rpcwire.Message) error {
			x.open.Add(-1)
			if m.Type != rpcwire.ForwardAutogradResp {
				return fmt.Errorf("answered by %v", m.Type)
			}
			_, err := unwrapInto(m, "returned")
			return err
		},
		Lost: func() {
			x.open.Add(-1)
			x.note("lost")
		},
	}, nil
}

// traced starts two workers with tracers.
func traced(t *testing.T, reg *Registry, opts ...Option) (agents []*Agent, tracers []*tracer) {
	t.Helper()
	tracers = []*tracer{{}, {}}
	next := atomic.Int64{}
	each := option(func(c *config) error { c.extension = tracers[c.rank]; next.Add(1); return nil })
	return world(t, 2, true, func(int) *Registry { return reg }, append(opts, each)...), tracers
}

func TestExtensionWrapsCalls(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().
			MustHandle("t.how", func(ctx context.Context, x *tracked) string {
				pass, _ := ctx.Value(passKey{}).(int64)
				return fmt.Sprintf("%s in pass %d", x.how, pass)
			}).
			MustHandle("t.plain", func(x *tensor.Tensor) int { return x.Shape()[0] }).
			MustHandle("t.echo", func(x *tracked) *tracked { return x }).
			MustHandle("t.nested", func(ctx context.Context, x *tracked) (string, error) {
				a := AgentFrom(ctx)
				return Call[string](ctx, a, fmt.Sprintf("w%d", 1-a.ID()), "t.how", x)
			}).
			MustHandle("t.fail", func(*tracked) error { return errors.New("it fails") })
		agents, tracers := traced(t, reg, opts...)
		base := testContext(t)
		pass := context.WithValue(base, passKey{}, int64(7))
		x := &tracked{t: tensor.Must(tensor.From([]float32{1, 2, 3}, 3))}
		for _, to := range []string{"w1", "w0"} {
			check := func(ctx context.Context, want, fn string, args ...any) {
				t.Helper()
				for _, async := range []bool{false, true} {
					var got string
					var err error
					if async {
						got, err = Async[string](ctx, agents[0], to, fn, args...).Await(ctx)
					} else {
						got, err = Call[string](ctx, agents[0], to, fn, args...)
					}
					if err != nil || got != want {
						t.Errorf("%s at %s: %q, %v; want %q", fn, to, got, err, want)
					}
				}
			}
			check(pass, "received in pass 7", "t.how", x)
			check(base, "plain in pass 0", "t.how", x)
			check(pass, "received in pass 7", "t.nested", x)
			if n, err := Call[int](pass, agents[0], to, "t.plain", x); err != nil || n != 3 {
				t.Errorf("a tensor for a tracked one: %v, %v", n, err)
			}
			if got, err := Call[*tracked](pass, agents[0], to, "t.echo", x); err != nil || got.how != "returned" {
				t.Errorf("the result: %+v, %v", got, err)
			}
			if _, err := Call[any](pass, agents[0], to, "t.fail", x); err == nil || !strings.Contains(err.Error(), "it fails") {
				t.Errorf("a failure: %v", err)
			}
			ref, err := Remote[*tracked](pass, agents[0], to, "t.echo", x)
			if err != nil {
				t.Fatal(err)
			}
			if to == "w1" {
				if v, failed := ref.Fetch(pass); failed != nil || v.how != "returned" {
					t.Errorf("a fetch: %+v, %v", v, failed)
				}
			} else if v, failed := ref.LocalValue(pass); failed != nil || v.how != "received" {
				t.Errorf("an own object: %+v, %v", v, failed)
			}
			id, owner, err := tracers[0].agent.Reference(ref)
			if err != nil || owner.Name != to {
				t.Errorf("the reference: %v, %v, %v", id, owner, err)
			}
			//nolint:errcheck,forcetypeassert // checked by the error
			if v, err := tracers[owner.ID].agent.Object(base, 0, id); err != nil || v.(*tracked).how != "received" {
				t.Errorf("the object: %v, %v", v, err)
			}
			_ = ref.Close()
		}
		for _, want := range []string{
			"send PYTHON_CALL with 1 holders to w1", "send PYTHON_RREF_FETCH_CALL with 0 holders to w1",
			"send PYTHON_REMOTE_CALL with 1 holders to w1",
			"send PYTHON_CALL with 1 holders to w0",
		} {
			if !tracers[0].has(want) {
				t.Errorf("w0 has no note %q among %q", want, tracers[0].notes)
			}
		}
		for _, want := range []string{
			"PYTHON_CALL of pass 7 from w0", "answer PYTHON_RET with 1 holders",
			"answer PYTHON_RREF_FETCH_RET with 1 holders",
		} {
			if !tracers[1].has(want) {
				t.Errorf("w1 has no note %q among %q", want, tracers[1].notes)
			}
		}
		quiet(t, agents)
		if n := tracers[0].open.Load() + tracers[1].open.Load(); n != 0 {
			t.Errorf("%d exchanges have no outcome", n)
		}
		shutdown(t, agents)
	})
}

// Every exchange has one outcome, also when it is given up, when it cannot be encoded, and when the other worker goes.
func TestExtensionLoses(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		begun := make(chan struct{}, 16)
		reg := NewRegistry().MustHandle("t.hang", func(ctx context.Context) { begun <- struct{}{}; <-ctx.Done() })
		agents, tracers := traced(t, reg, opts...)
		pass := context.WithValue(testContext(t), passKey{}, int64(7))
		for _, to := range []string{"w1", "w0"} {
			ctx, cancel := context.WithCancel(pass)
			f := Async[any](ctx, agents[0], to, "t.hang")
			<-begun
			cancel()
			if _, err := f.Await(pass); err == nil {
				t.Error("a call that was given up is answered")
			}
			if _, err := Call[any](pass, agents[0], to, "t.hang", make(chan int)); err == nil {
				t.Error("a channel was sent")
			}
		}
		f := Async[any](pass, agents[0], "w1", "t.hang")
		<-begun
		_ = agents[1].Close()
		if _, err := f.Await(pass); err == nil {
			t.Error("a closed worker has answered")
		}
		if _, err := Call[any](pass, agents[0], "w1", "t.hang"); err == nil {
			t.Error("a closed worker has answered")
		}
		if workers := tracers[0].agent.Workers(); len(workers) != 2 || workers[0].Name != "w0" || workers[1].Name != "w1" {
			t.Errorf("the workers are %v", workers)
		}
		if !tracers[0].has("w1 died") {
			t.Error("the extension was not told of the death")
		}
		_ = agents[0].Close()
		if n := tracers[0].open.Load(); n != 0 {
			t.Errorf("%d exchanges have no outcome", n)
		}
	})
}

func TestExtensionServes(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("t.twice", func(n int64) int64 { return 2 * n })
		agents, tracers := traced(t, reg, append([]Option{WithConcurrency(1)}, opts...)...)
		ctx := testContext(t)
		me := tracers[0].agent
		if self := me.Self(); self.Name != "w0" || self.ID != 0 || !self.Go {
			t.Errorf("self is %+v", self)
		}
		for to := range 2 {
			payload, err := rpcwire.EncodeCleanup(42)
			if err != nil {
				t.Fatal(err)
			}
			m, err := me.Send(ctx, to, &rpcwire.Message{Type: rpcwire.CleanupAutogradReq, Payload: payload})
			if err != nil || m.Type != rpcwire.CleanupAutogradResp || !tracers[to].has("cleanup 42 by w0") {
				t.Errorf("cleanup at %d: %v, %v", to, m, err)
			}
			backward := func(b rpcwire.Backward) error {
				e := &rpcwire.Encoder{}
				payload, err := e.Backward(b)
				if err != nil {
					t.Fatal(err)
				}
				_, err = me.Send(ctx, to, &rpcwire.Message{Type: rpcwire.BackwardAutogradReq, Payload: payload, Tensors: e.Tensors})
				return err
			}
			gradient := tensor.Must(tensor.From([]float32{1}, 1))
			if err := backward(rpcwire.Backward{Gradients: []any{gradient}, ContextID: 3}); err == nil ||
				!strings.Contains(err.Error(), "context 3 has 1 gradients") {
				t.Errorf("backward at %d: %v", to, err)
			}
			if err := backward(rpcwire.Backward{ContextID: 3, RetainGraph: true}); err != nil {
				t.Errorf("backward at %d that calls back: %v", to, err)
			}
			if err := backward(rpcwire.Backward{ContextID: -1}); err == nil || !strings.Contains(err.Error(), "a bug of the extension") {
				t.Errorf("a panic at %d: %v", to, err)
			}
			if err := backward(rpcwire.Backward{MessageID: -1}); err == nil || !strings.Contains(err.Error(), "Goexit") {
				t.Errorf("a Goexit at %d: %v", to, err)
			}
		}
		if _, err := me.Worker(5); !errors.Is(err, cohort.NotFound) {
			t.Errorf("no such worker: %v", err)
		}
		free(t, agents[1])
		shutdown(t, agents)
	})
}
