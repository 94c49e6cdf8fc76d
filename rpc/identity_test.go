// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// forger answers every request that it gets with a result of its own.
func forger(t *testing.T, name string, id int16, secret []byte) *tensorpipe.Endpoint {
	t.Helper()
	forged := func(l *cohortwire.Link, f *cohortwire.Frame) {
		if f.Type != cohortwire.Type(rpcwire.PythonCall) {
			return
		}
		payload, err := (&rpcwire.Encoder{Native: true}).PythonRet("forged")
		if err != nil {
			t.Error(err)
			return
		}
		m := &rpcwire.Message{Type: rpcwire.PythonRet, ID: int64(f.ID), Payload: payload}
		answer, err := m.Frame()
		if err == nil {
			_ = l.Post(context.Background(), answer)
		}
	}
	ep, err := tensorpipe.New(name, tensorpipe.WithCohort(cohortwire.Config{
		Identity: cohortwire.Identity{Name: name, ID: id, Incarnation: 12345}, Secret: secret, OnFrame: forged,
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ep.Close() })
	return ep
}

// A process that claims the name of a worker does not get the calls to that worker, whether the worker lives or not.
func TestImpostorGetsNoCalls(t *testing.T) {
	reg := NewRegistry().MustHandle("t.who", func() string { return "real" })
	agents := world(t, 2, true, func(int) *Registry { return reg })
	ctx := testContext(t)
	who := func() (string, error) { return Call[string](ctx, agents[0], "w1", "t.who") }
	if got, err := who(); err != nil || got != "real" {
		t.Fatal(got, err)
	}
	ref, err := Remote[string](ctx, agents[0], "w1", "t.who")
	if err != nil {
		t.Fatal(err)
	}
	if err := ref.Confirmed(ctx); err != nil {
		t.Fatal(err)
	}
	for _, secret := range [][]byte{nil, []byte("a guess")} {
		ep := forger(t, "w1", 1, secret)
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		if _, err := ep.Connect(short, "w0", agents[0].Addr()); err == nil { // it may believe so for a moment
			for range 20 {
				if got, err := who(); err != nil || got != "real" {
					t.Fatalf("answered by %q, %v", got, err)
				}
			}
		}
		cancel()
	}
	for range 20 {
		if got, err := who(); err != nil || got != "real" {
			t.Fatalf("answered by %q, %v", got, err)
		}
	}
	if v, err := ref.Fetch(ctx); err != nil || v != "real" {
		t.Errorf("the reference: %v, %v", v, err)
	}
	_ = agents[1].Close()
	ep := forger(t, "w1", 1, nil)
	for range 5 {
		short, cancel := context.WithTimeout(ctx, time.Second)
		_, _ = ep.Connect(short, "w0", agents[0].Addr())
		cancel()
		if got, err := who(); err == nil {
			t.Fatalf("a dead worker answers %q", got)
		}
	}
}

// pipeAs opens a pipe under a name and returns how requests are sent on it.
func pipeAs(t *testing.T, name, addr string) func(m *rpcwire.Message) *rpcwire.Message {
	t.Helper()
	ep, err := tensorpipe.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ep.Close() })
	s, err := ep.Dial(testContext(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	next := int64(0)
	return func(m *rpcwire.Message) *rpcwire.Message {
		t.Helper()
		m.ID = next
		next++
		raw, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err = s.Pipe.Send(testContext(t), raw); err != nil {
			t.Fatal(err)
		}
		if raw, err = s.Pipe.Recv(testContext(t)); err != nil {
			t.Fatal(err)
		}
		answer, err := rpcwire.Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
}

// On PyTorch's wire nothing is proved. A process that claims the name of a Go worker there is a client; one that claims that of another
// worker can use the references of that one only.
func TestImpostorOnAPipe(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("t.make", func() *tensor.Tensor { return tensor.Must(tensor.New(tensor.Float32, 2)) })
		agents := world(t, 3, true, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		ref, err := Remote[*tensor.Tensor](ctx, agents[0], "w1", "t.make")
		if err != nil {
			t.Fatal(err)
		}
		if err := ref.Confirmed(ctx); err != nil {
			t.Fatal(err)
		}
		claims := []string{"w2", "unknown"} // w2 is a worker, but has no reference
		if len(opts) == 0 {
			claims = append(claims, "w0") // speaks another transport, on which it can prove who it is
		}
		pair := rpcwire.RRefPair{RRef: rpcref.Global(ref.c.Handle.Wire.ID), Fork: rpcref.Global(ref.c.Handle.Wire.Fork)}
		for _, name := range claims {
			send := pipeAs(t, name, agents[1].Addr())
			payload, err := rpcwire.Fetch{RRef: pair.RRef, From: 1}.Encode()
			if err != nil {
				t.Fatal(err)
			}
			answer := send(&rpcwire.Message{Type: rpcwire.PythonRRefFetchCall, Payload: payload})
			if len(answer.Tensors) > 0 {
				t.Errorf("%q has fetched the object", name)
			}
			if payload, err = pair.Encode(); err != nil {
				t.Fatal(err)
			}
			send(&rpcwire.Message{Type: rpcwire.RRefUserDelete, Payload: payload})
		}
		if v, err := ref.Fetch(ctx); err != nil || v.Shape()[0] != 2 {
			t.Errorf("afterwards: %v, %v", v, err)
		}
		_ = ref.Close()
		quiet(t, agents)
		shutdown(t, agents)
	})
}

// An impostor that comes on the cohort transport under the name of a worker that does not speak it, and so has published nothing to prove
// itself with, is a client: it cannot use the references of that worker.
func TestImpostorOnALink(t *testing.T) {
	reg := NewRegistry().MustHandle("t.make", func() *tensor.Tensor { return tensor.Must(tensor.New(tensor.Float32, 2)) })
	st, ctx := store.NewMemory(), testContext(t)
	agents := make([]*Agent, 2)
	for i, speaks := range [][]string{{TransportCohort, TransportUV}, {TransportUV}} {
		a, err := Join(ctx, st, fmt.Sprint("w", i), WithRank(cohort.Rank(i)), WithAddr("127.0.0.1:0"), WithTransports(speaks...),
			WithHandlers(reg))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		agents[i] = a
	}
	ref, err := Remote[*tensor.Tensor](ctx, agents[1], "w0", "t.make")
	if err != nil {
		t.Fatal(err)
	}
	if err = ref.Confirmed(ctx); err != nil {
		t.Fatal(err)
	}
	answers := make(chan *cohortwire.Frame, 1)
	ep, err := tensorpipe.New("w1", tensorpipe.WithCohort(cohortwire.Config{
		Identity: cohortwire.Identity{Name: "w1", ID: 1, Incarnation: 12345},
		OnFrame: func(_ *cohortwire.Link, f *cohortwire.Frame) {
			if f.Type.IsResponse() {
				answers <- f
			}
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ep.Close() }()
	s, err := ep.Connect(ctx, "w0", agents[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	payload, err := rpcwire.Fetch{RRef: rpcref.Global(ref.c.Handle.Wire.ID), From: 1}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	frame, err := (&rpcwire.Message{Type: rpcwire.PythonRRefFetchCall, ID: 7, Payload: payload}).Frame()
	if err != nil {
		t.Fatal(err)
	}
	if err = s.Link.Request(ctx, frame); err != nil {
		t.Fatal(err)
	}
	select {
	case f := <-answers:
		if m, err := rpcwire.DecodeFrame(f); err != nil || m.Type != rpcwire.Exception || len(m.Tensors) > 0 {
			t.Errorf("the impostor gets %+v, %v", m, err)
		}
	case <-ctx.Done():
		t.Fatal("no answer")
	}
	if v, err := ref.Fetch(ctx); err != nil || v.Shape()[0] != 2 {
		t.Errorf("the worker itself: %v, %v", v, err)
	}
}

// A process that knows the secret of a worker must also be the start of it that has published it.
func TestImpostorOfAnotherStart(t *testing.T) {
	agents := world(t, 2, true, nil)
	id := cohortwire.Identity{Name: "w1", ID: 1, Incarnation: agents[1].epoch}
	if secret, err := agents[0].publishedSecret(id); err != nil || !slices.Equal(secret, agents[1].secret) {
		t.Errorf("%d bytes, %v", len(secret), err)
	}
	id.Incarnation += 2
	if _, err := agents[0].publishedSecret(id); !errors.Is(err, cohort.Protocol) {
		t.Errorf("another start: %v", err)
	}
}
