// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
)

// goWorker listens with the cohort transport and answers every request with its own payload.
func goWorker(t *testing.T, name string, opts ...Option) *Endpoint {
	t.Helper()
	return goWorkerOf(t, name, 42, opts...)
}

func goWorkerOf(t *testing.T, name string, incarnation uint64, opts ...Option) *Endpoint {
	t.Helper()
	return goWorkerWith(t, name, cohortwire.Config{Identity: cohortwire.Identity{Incarnation: incarnation}}, opts...)
}

// goWorkerSilent is a worker that never takes silence for a sign of death.
func goWorkerSilent(t *testing.T, name string) *Endpoint {
	t.Helper()
	return goWorkerWith(t, name, cohortwire.Config{Identity: cohortwire.Identity{Incarnation: 42}, Limit: -1})
}

func goWorkerWith(t *testing.T, name string, cfg cohortwire.Config, opts ...Option) *Endpoint {
	t.Helper()
	cfg = cohortwire.Config{
		Identity: cohortwire.Identity{Name: name, ID: 1, Incarnation: cfg.Identity.Incarnation}, Limit: cfg.Limit,
		Secret: cfg.Secret, Published: cfg.Published,
		OnFrame: func(l *cohortwire.Link, f *cohortwire.Frame) {
			if f.Type.IsResponse() {
				if ch, ok := waiting.LoadAndDelete(f.ID); ok {
					ch.(chan *cohortwire.Frame) <- f //nolint:errcheck,forcetypeassert // only such channels are stored
				}
				return
			}
			_ = l.Send(context.Background(), &cohortwire.Frame{Type: 0x203, ID: f.ID, Payload: append([]byte(name+":"), f.Payload...)})
		},
	}
	ep := listen(t, name, append(opts, WithCohort(cfg))...)
	return ep
}

var (
	waiting sync.Map // id of a request to the channel for its answer
	nextID  atomic.Uint64
)

// call sends a request on a link and waits for its answer.
func call(ctx context.Context, l *cohortwire.Link, f *cohortwire.Frame) (*cohortwire.Frame, error) {
	f.ID = nextID.Add(1)
	ch := make(chan *cohortwire.Frame, 1)
	waiting.Store(f.ID, ch)
	if err := l.Send(ctx, f); err != nil {
		return nil, err
	}
	select {
	case answer := <-ch:
		return answer, nil
	case <-l.Done():
		return nil, l.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func callLink(t *testing.T, s *Session, want string) {
	t.Helper()
	if !carries(t, s, want) {
		t.Fatalf("the link has ended: %v", s.Link.Err())
	}
}

// carries makes a call. It reports false when the link has ended.
func carries(t *testing.T, s *Session, want string) bool {
	t.Helper()
	f, err := call(within(t), s.Link, &cohortwire.Frame{Type: 0x102, Payload: []byte("hi")})
	if err != nil && s.Link.Err() != nil {
		return false
	}
	if err != nil || string(f.Payload) != want+":hi" {
		t.Fatalf("call: %v, %v", f, err)
	}
	return true
}

func TestGoWorkersShareOneLink(t *testing.T) {
	a, b := goWorker(t, "a"), goWorker(t, "b")
	s, err := a.Connect(within(t), "b", "uv://"+b.Addr().String())
	if err != nil || s.Link == nil || s.Link.Peer().Incarnation != 42 {
		t.Fatalf("%+v, %v", s, err)
	}
	callLink(t, s, "b")
	back, err := b.Connect(within(t), "a", a.Addr().String())
	if err != nil || back.Dialled {
		t.Fatalf("b opened a second connection: %+v, %v", back, err)
	}
	callLink(t, back, "a")
	if again, againErr := a.Connect(within(t), "b", b.Addr().String()); againErr != nil || again != s {
		t.Fatalf("a second session: %v", err)
	}
	got, err := b.Accept(within(t))
	if err != nil || got != back {
		t.Fatalf("accepted %+v, %v", got, err)
	}
}

// TestBothDialAtOnce lets both sides connect at the same time, many times: one link must come out, and it must work
// both ways.
func TestBothDialAtOnce(t *testing.T) {
	for i := range 50 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			a, b := goWorker(t, "a"), goWorker(t, "b")
			var sa, sb *Session
			var ea, eb error
			var wg sync.WaitGroup
			wg.Go(func() { sa, ea = a.Connect(within(t), "b", b.Addr().String()) })
			wg.Go(func() { sb, eb = b.Connect(within(t), "a", a.Addr().String()) })
			wg.Wait()
			if ea != nil || eb != nil {
				t.Fatal(ea, eb)
			}
			if sa.Dialled == sb.Dialled {
				t.Fatalf("two connections: a dialled %v, b dialled %v", sa.Dialled, sb.Dialled)
			}
			callLink(t, sa, "b")
			callLink(t, sb, "a")
		})
	}
}

func TestConnectToUVOnlyPeer(t *testing.T) {
	a, b := goWorker(t, "a"), listen(t, "b")
	s, err := a.Connect(within(t), "b", b.Addr().String())
	if err != nil || s.Pipe == nil {
		t.Fatalf("%+v, %v", s, err)
	}
	got, err := b.Accept(within(t))
	if err != nil || got.Pipe == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	_ = got.Close()
	<-waitRecv(s.Pipe)
	// The pipe is dead; a new Connect opens another one.
	again, err := a.Connect(within(t), "b", b.Addr().String())
	if err != nil || again == s {
		t.Fatalf("%v", err)
	}
	got, err = b.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
}

func waitRecv(p *Pipe) <-chan struct{} {
	_, _ = p.Recv(context.Background())
	return p.Done()
}

func TestRestartedPeerReplacesItsLink(t *testing.T) {
	a := goWorker(t, "a")
	b1 := goWorker(t, "b")
	first, err := b1.Connect(within(t), "a", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	callLink(t, first, "a")
	b2 := goWorkerOf(t, "b", 43) // the same name from another process, before a noticed the death of the first
	second, err := b2.Connect(within(t), "a", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	callLink(t, second, "a")
	select {
	case <-first.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the old link lives on")
	}
}

func TestConnectFindsTheWrongWorker(t *testing.T) {
	a, b := goWorker(t, "a"), goWorker(t, "b")
	if _, err := a.Connect(within(t), "c", b.Addr().String()); !errors.Is(err, cohort.Mismatch) {
		t.Fatalf("%v", err)
	}
	if _, err := a.Connect(within(t), "a", a.Addr().String()); err != nil {
		t.Fatalf("a worker that dials itself gets a pipe: %v", err)
	}
	if s, err := a.Accept(within(t)); err == nil {
		_ = s.Close()
	}
}
