// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire_test proves the wires under RPC against real PyTorch: a bare worker, made of nothing but the codecs and
// pipes, joins a dynamic RPC world, answers PyTorch and calls it.
package wire_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store"
)

// handler answers one Python call.
type handler func(u rpcwire.UDF) (any, error)

// worker is the least that takes part in an RPC world.
type worker struct {
	t    *testing.T
	name string
	ep   *tensorpipe.Endpoint
	wg   sync.WaitGroup

	mu       sync.Mutex
	handlers map[string]handler
	script   func(s rpcwire.ScriptUDF) (any, error)
	pipes    map[string]*client
	sessions []*tensorpipe.Session
	seen     []rpcwire.Type
}

func newWorker(t *testing.T, name string, opts ...tensorpipe.Option) *worker {
	t.Helper()
	// The cohort transport is offered, as production does: PyTorch must not mind.
	opts = append(opts, tensorpipe.WithCohort(cohortwire.Config{
		Identity: cohortwire.Identity{Name: name, ID: 1, Incarnation: 7},
		OnFrame:  func(*cohortwire.Link, *cohortwire.Frame) { t.Error("a frame of the cohort transport") },
	}))
	ep, err := tensorpipe.Listen(name, "127.0.0.1:0", opts...)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{t: t, name: name, ep: ep, handlers: map[string]handler{}, pipes: map[string]*client{}}
	w.handlers["torch.distributed.rpc.backend_registry._get_device_infos"] = func(rpcwire.UDF) (any, error) {
		return py.Tuple{0, &py.Dict{}, []any{}}, nil
	}
	w.handlers["torch.distributed.rpc._utils._update_group_membership"] = func(rpcwire.UDF) (any, error) { return nil, nil }
	ctx, cancel := context.WithCancel(context.Background())
	w.wg.Go(func() {
		for {
			s, err := ep.Accept(ctx)
			if err != nil {
				return
			}
			w.mu.Lock()
			w.sessions = append(w.sessions, s)
			w.mu.Unlock()
			w.wg.Go(func() { w.serve(ctx, s.Pipe) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = ep.Close()
		w.mu.Lock()
		for _, s := range w.sessions {
			_ = s.Close()
		}
		for _, c := range w.pipes {
			_ = c.pipe.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

func (w *worker) serve(ctx context.Context, p *tensorpipe.Pipe) {
	for {
		raw, err := p.Recv(ctx)
		if err != nil {
			return
		}
		answer := w.answer(raw)
		out, err := answer.Encode()
		if err != nil {
			w.t.Errorf("encode: %v", err)
			return
		}
		if err := p.Send(ctx, out); err != nil {
			return
		}
	}
}

// answer always returns a message: a request that cannot be read is answered by an EXCEPTION.
func (w *worker) answer(raw *tensorpipe.Message) *rpcwire.Message {
	kind, id, err := rpcwire.DecodeHead(raw)
	w.mu.Lock()
	w.seen = append(w.seen, kind)
	w.mu.Unlock()
	fail := func(err error) *rpcwire.Message {
		return &rpcwire.Message{Type: rpcwire.Exception, ID: id, Payload: rpcwire.EncodeException(rpcwire.ErrorUnknown, err.Error())}
	}
	if err != nil {
		return fail(err)
	}
	m, err := rpcwire.Decode(raw)
	if err != nil {
		return fail(err)
	}
	out, err := w.dispatch(m.Type, m)
	if err != nil {
		return fail(err)
	}
	out.ID = id
	return out
}

func (w *worker) dispatch(kind rpcwire.Type, m *rpcwire.Message) (*rpcwire.Message, error) {
	dec := &rpcwire.Decoder{Tensors: m.Tensors}
	enc := &rpcwire.Encoder{}
	switch kind {
	case rpcwire.PythonCall:
		u, _, err := dec.PythonCall(m.Payload)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		h := w.handlers[u.Func.String()]
		w.mu.Unlock()
		var result any
		if h == nil {
			result = &rpcwire.RemoteException{Msg: "no such function: " + u.Func.String(), Class: py.Func("builtins.AttributeError")}
		} else if result, err = h(u); err != nil {
			result = &rpcwire.RemoteException{Msg: err.Error(), Class: py.Func("builtins.ValueError")}
		}
		payload, err := enc.PythonRet(result)
		return &rpcwire.Message{Type: rpcwire.PythonRet, Payload: payload, Tensors: enc.Tensors}, err
	case rpcwire.ScriptCall:
		s, err := dec.ScriptCall(m.Payload)
		if err != nil {
			return nil, err
		}
		if w.script == nil {
			return nil, fmt.Errorf("no kernel for %s", s.Operator())
		}
		result, err := w.script(s)
		if err != nil {
			return nil, err
		}
		payload, err := enc.ScriptRet(result)
		return &rpcwire.Message{Type: rpcwire.ScriptRet, Payload: payload, Tensors: enc.Tensors}, err
	case rpcwire.ForwardAutogradReq:
		a, inner, err := rpcwire.UnwrapAutograd(m.Payload)
		if err != nil {
			return nil, err
		}
		return w.dispatch(a.Inner, &rpcwire.Message{Type: a.Inner, Payload: inner, Tensors: m.Tensors})
	case rpcwire.RunWithProfilingReq:
		p, inner, err := rpcwire.UnwrapProfiling(m.Payload)
		if err != nil {
			return nil, err
		}
		out, err := w.dispatch(p.Inner, &rpcwire.Message{Type: p.Inner, Payload: inner, Tensors: m.Tensors})
		if err != nil {
			return nil, err
		}
		p.Inner = out.Type
		out.Type = rpcwire.RunWithProfilingResp
		out.Payload, err = p.WrapResponse(out.Payload)
		return out, err
	case rpcwire.CleanupAutogradReq:
		if _, err := rpcwire.DecodeCleanup(m.Payload); err != nil {
			return nil, err
		}
		return &rpcwire.Message{Type: rpcwire.CleanupAutogradResp}, nil
	}
	return nil, fmt.Errorf("%v is not served", kind)
}

// client is a pipe for our own calls.
type client struct {
	pipe *tensorpipe.Pipe
	next int64
}

func (w *worker) dial(ctx context.Context, name, addr string) *client {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.pipes[addr]; c != nil {
		return c
	}
	s, err := w.ep.Connect(ctx, name, addr)
	if err != nil || s.Pipe == nil {
		w.t.Fatalf("connect: %+v, %v", s, err)
	}
	c := &client{pipe: s.Pipe}
	w.pipes[addr] = c
	return c
}

// call runs a Python function at the other side.
func (c *client) call(ctx context.Context, function string, args ...any) (any, error) {
	return c.callKw(ctx, rpcwire.UDF{Func: py.Func(function), Args: args})
}

func (c *client) callKw(ctx context.Context, u rpcwire.UDF) (any, error) {
	enc := &rpcwire.Encoder{}
	payload, err := enc.PythonCall(u, false)
	if err != nil {
		return nil, err
	}
	m, err := c.exchange(ctx, &rpcwire.Message{Type: rpcwire.PythonCall, Payload: payload, Tensors: enc.Tensors})
	if err != nil {
		return nil, err
	}
	if m.Type == rpcwire.Exception {
		return nil, rpcwire.ExceptionError("call", "", m.Payload)
	}
	dec := &rpcwire.Decoder{Tensors: m.Tensors}
	return dec.PythonRet(m.Payload)
}

func (c *client) exchange(ctx context.Context, m *rpcwire.Message) (*rpcwire.Message, error) {
	m.ID = c.next
	c.next++
	out, err := m.Encode()
	if err != nil {
		return nil, err
	}
	if err = c.pipe.Send(ctx, out); err != nil {
		return nil, err
	}
	raw, err := c.pipe.Recv(ctx)
	if err != nil {
		return nil, err
	}
	return rpcwire.Decode(raw)
}

// join enters a dynamic world: section 3 of the protocol, with nothing but the store and two calls per member.
func (w *worker) join(ctx context.Context, st store.Store, rank int) {
	w.t.Helper()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatalf("join: %v", err)
		}
	}
	token := "Token_for_" + w.name + "_join"
	for {
		got, err := st.CompareAndSet(ctx, "RpcGroupManagementToken", nil, []byte(token))
		must(err)
		if string(got) == token {
			break
		}
		must(st.Wait(ctx, string(got)))
	}
	static, err := st.CompareAndSet(ctx, "rpcIsStaticGroup", nil, []byte("false"))
	must(err)
	if string(static) != "false" {
		w.t.Fatalf("rpcIsStaticGroup is %q", static)
	}
	key := fmt.Sprintf("names/%d", rank)
	got, err := st.CompareAndSet(ctx, key, nil, []byte(w.name))
	must(err)
	if string(got) != w.name {
		w.t.Fatalf("rank %d is taken by %q", rank, got)
	}
	must(st.Set(ctx, key, []byte(w.name)))
	var members []string
	if there, err := st.Check(ctx, "names/_ALL_WORKER_INFOS"); err == nil && there {
		infos, err := st.Get(ctx, "names/_ALL_WORKER_INFOS")
		must(err)
		for m := range strings.SplitSeq(strings.TrimSuffix(string(infos), ","), ",") {
			if m != "" {
				members = append(members, m)
			}
		}
	}
	all := strings.Join(append(members, fmt.Sprintf("%s-%d", w.name, rank)), ",") + ","
	must(st.Set(ctx, "names/_ALL_WORKER_INFOS", []byte(all)))
	must(st.Set(ctx, "addrs/"+w.name, []byte("uv://"+w.ep.Addr().String())))
	for _, m := range members {
		name, _, _ := strings.Cut(m, "-")
		c := w.member(ctx, st, name)
		_, err := c.call(ctx, "torch.distributed.rpc.backend_registry._get_device_infos")
		must(err)
		_, err = c.call(ctx, "torch.distributed.rpc._utils._update_group_membership",
			rpcwire.WorkerInfo{Name: w.name, ID: rpcwire.WorkerID(rank)}, []any{}, &py.Dict{}, true)
		must(err)
	}
	must(st.Set(ctx, "RpcGroupManagementToken", nil))
	must(st.Set(ctx, token, []byte("Done")))
}

func (w *worker) member(ctx context.Context, st store.Store, name string) *client {
	w.t.Helper()
	addr, err := st.Get(ctx, "addrs/"+name)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.dial(ctx, name, string(addr))
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func contextThatEnded() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx, cancel
}
