// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// await sends a request one way and waits for its outcome.
func await(ctx context.Context, t *testing.T, p *pair, w way, o *Outgoing) (rpcsession.Reply, error) {
	t.Helper()
	type outcome struct {
		x   rpcsession.Reply
		err error
	}
	ch := make(chan outcome, 2)
	w.send(p, ctx, o, func(x rpcsession.Reply, err error) { ch <- outcome{x, err} })
	select {
	case got := <-ch:
		return got.x, got.err
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: no outcome", w.name)
		return rpcsession.Reply{}, nil
	}
}

// everyWay runs a test over both wires, in every way to send.
func everyWay(t *testing.T, timeout time.Duration, test func(t *testing.T, p *pair, w way, goPeer bool)) {
	t.Helper()
	for _, goPeer := range []bool{true, false} {
		for _, w := range ways {
			t.Run(fmt.Sprintf("cohort=%v/%s", goPeer, w.name), func(t *testing.T) {
				t.Parallel()
				test(t, newPair(t, goPeer, timeout), w, goPeer)
			})
		}
	}
}

// TestDeadlines: a request that is not answered ends with its context's deadline or with the worker's timeout, says which
// function of which worker it was, and a Go callee is told.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		timeout := 50 * time.Millisecond
		if own {
			timeout = time.Minute
		}
		t.Run(fmt.Sprintf("of its context=%v", own), func(t *testing.T) {
			t.Parallel()
			everyWay(t, timeout, func(t *testing.T, p *pair, w way, goPeer bool) {
				t.Helper()
				told := make(chan error, 1)
				p.callee.answerWith(func(in rpcsession.Incoming) {
					in.Conn.Track(in.ID, func(cause error) { told <- cause })
				})
				ctx := t.Context()
				if _, err := p.peer.Connect(ctx); err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				if own {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
					defer cancel()
				}
				_, err := await(ctx, t, p, w, p.request("call", "t.slow"))
				if took := time.Since(begun); took < 50*time.Millisecond {
					t.Errorf("it ended after %v", took)
				}
				e, ok := errors.AsType[*cohort.Error](err)
				if !ok || !errors.Is(err, context.DeadlineExceeded) && e.Code != cohort.DeadlineExceeded || e.Key != "t.slow" ||
					e.Peer != "callee" || e.Rank != 1 {
					t.Errorf("the error is %+v", err)
				}
				settled(t.Context(), t, p.caller)
				if !goPeer {
					return
				}
				select {
				case cause := <-told:
					if !errors.Is(cause, cohort.Canceled) {
						t.Errorf("the callee is told %v", cause)
					}
				case <-time.After(20 * time.Second):
					// A request whose deadline passed before it could be sent never came.
					if p.peer.Stats.Snapshot().Calls > 0 {
						t.Error("the callee was not told")
					}
				}
			})
		})
	}
}

// TestPassedDeadline: what is over is not sent.
func TestPassedDeadline(t *testing.T) {
	t.Parallel()
	everyWay(t, time.Minute, func(t *testing.T, p *pair, w way, _ bool) {
		t.Helper()
		arrived := atomic.Int64{}
		p.callee.answerWith(func(in rpcsession.Incoming) { arrived.Add(1); echo(in) })
		if _, err := p.peer.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		if _, err := await(ctx, t, p, w, p.request("call", "t.late")); cohort.CodeOf(err) != cohort.DeadlineExceeded {
			t.Errorf("the error is %v", err)
		}
		if _, err := await(t.Context(), t, p, w, p.request("call", "t.next")); err != nil { // it comes after the late one
			t.Error(err)
		}
		if n := arrived.Load(); n != 1 {
			t.Errorf("%d requests arrived", n)
		}
	})
}

// TestLateAnswers: an answer to a request that was given up is dropped: it reaches neither its caller nor that of the next
// request, which may wait on the same channel.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	everyWay(t, time.Minute, func(t *testing.T, p *pair, w way, _ bool) {
		t.Helper()
		held := make(chan rpcsession.Incoming, 1)
		p.callee.answerWith(func(in rpcsession.Incoming) {
			if strings.HasPrefix(string(in.Payload), "late") {
				held <- in
				return
			}
			echo(in)
		})
		for i := range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error, 2)
			w.send(p, ctx, p.request("call", fmt.Sprintf("late %d", i)), func(_ rpcsession.Reply, err error) { gone <- err })
			in := <-held
			cancel()
			if err := <-gone; cohort.CodeOf(err) != cohort.Canceled {
				t.Fatalf("the one given up: %v", err)
			}
			next := fmt.Sprintf("next %d", i)
			answered := make(chan struct{})
			go func() { defer close(answered); echo(in) }()
			x, err := await(t.Context(), t, p, w, p.request("call", next))
			if err != nil || string(x.Msg.Payload) != next {
				t.Fatalf("%q is answered by %+v, %v", next, x.Msg, err)
			}
			<-answered
		}
		settled(t.Context(), t, p.caller)
	})
}

// TestGivenUpAsItIsAnswered: a request ends once, answered or given up, when both happen at one moment, and every answer
// reaches its own request.
func TestGivenUpAsItIsAnswered(t *testing.T) {
	t.Parallel()
	everyWay(t, time.Minute, func(t *testing.T, p *pair, w way, goPeer bool) {
		t.Helper()
		var cancels sync.Map
		p.callee.answerWith(func(in rpcsession.Incoming) {
			if cancel, ok := cancels.Load(string(in.Payload)); ok {
				go cancel.(context.CancelFunc)() //nolint:errcheck,forcetypeassert // only these are stored
			}
			echo(in)
		})
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() {
				for i := range 40 {
					text := fmt.Sprintf("%d of %d", i, worker)
					ctx, cancel := context.WithCancel(t.Context())
					cancels.Store(text, cancel)
					ends := atomic.Int64{}
					over := make(chan struct{}, 2)
					w.send(p, ctx, p.request("call", text), func(x rpcsession.Reply, err error) {
						late := ends.Add(1) > 1
						switch {
						case late && (goPeer || w.name != "lasting"):
							t.Errorf("%s ended again: %v", text, err)
						case err == nil && string(x.Msg.Payload) != text:
							t.Errorf("%s is answered by %q", text, x.Msg.Payload)
						// a late answer may not come before the agent closes
						case err != nil && !late && cohort.CodeOf(err) != cohort.Canceled:
							t.Errorf("%s: %v", text, err)
						}
						over <- struct{}{}
					})
					<-over
					cancel()
				}
			})
		}
		all.Wait()
		settled(t.Context(), t, p.caller)
	})
}

// TestLostLink: a request that may arrive twice is sent again when its link is cut and both workers live; another one fails.
func TestLostLink(t *testing.T) {
	t.Parallel()
	for _, w := range []way{ways[0], ways[2]} {
		for _, repeat := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/repeat=%v", w.name, repeat), func(t *testing.T) {
				t.Parallel()
				p := newPair(t, true, time.Minute)
				arrived := atomic.Int64{}
				p.callee.answerWith(func(in rpcsession.Incoming) {
					if arrived.Add(1) <= 2 { // the first two links swallow the answer
						go in.Conn.Link.Close() // which waits for this goroutine, that reads
						return
					}
					echo(in)
				})
				o := p.request("fetch", "it")
				if repeat {
					o.Repeat = func() bool { return true }
				}
				x, err := await(t.Context(), t, p, w, o)
				switch {
				case repeat && (err != nil || string(x.Msg.Payload) != "it" || arrived.Load() != 3):
					t.Errorf("%+v, %v after %d times", x.Msg, err, arrived.Load())
				case !repeat && (err == nil || arrived.Load() != 1):
					t.Errorf("it arrived %d times, %v", arrived.Load(), err)
				}
				settled(t.Context(), t, p.caller)
				if p.caller.offered.Load() != p.caller.answered.Load()+p.caller.lost.Load() {
					t.Errorf("the extension took part in %d requests: %d were answered, %d lost", p.caller.offered.Load(),
						p.caller.answered.Load(), p.caller.lost.Load())
				}
			})
		}
	}
}

// TestLinkThatIsAlwaysCut: what breaks every link does not do so for ever, and who wants the answer no longer stops it.
func TestLinkThatIsAlwaysCut(t *testing.T) {
	t.Parallel()
	for _, w := range []way{ways[0], ways[2]} {
		for _, wanted := range []int{3, 1000} { // how often the answer is still wanted
			t.Run(fmt.Sprintf("%s/wanted=%d", w.name, wanted), func(t *testing.T) {
				t.Parallel()
				p := newPair(t, true, time.Minute)
				arrived := atomic.Int64{}
				// which waits for this goroutine
				p.callee.answerWith(func(in rpcsession.Incoming) { arrived.Add(1); go in.Conn.Link.Close() })
				asked := 0
				o := p.request("fetch", "it")
				o.Repeat = func() bool { asked++; return asked < wanted }
				if _, err := await(t.Context(), t, p, w, o); err == nil {
					t.Error("it is answered")
				}
				if n := arrived.Load(); n > int64(min(wanted, maxRetries+1)) || n < 1 {
					t.Errorf("it was sent %d times", n)
				}
				settled(t.Context(), t, p.caller)
			})
		}
	}
}

// TestCalleeIsGone: a request to a worker that does not exist any more fails, and names it.
func TestCalleeIsGone(t *testing.T) {
	t.Parallel()
	everyWay(t, time.Minute, func(t *testing.T, p *pair, w way, _ bool) {
		t.Helper()
		p.callee.close()
		_, err := await(t.Context(), t, p, w, p.request("call", "it"))
		if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Peer != "callee" || e.Rank != 1 ||
			e.Code == cohort.DeadlineExceeded || e.Code == cohort.Canceled {
			t.Errorf("the error is %v", err)
		}
		settled(t.Context(), t, p.caller)
		if n := p.peer.Stats.Snapshot().Errors; n != 1 {
			t.Errorf("%d errors are counted", n)
		}
	})
}

// TestBuilding: a request that cannot be built fails by itself; one that was built early is built once, with what its
// arguments were then; one that is not sent at all is lost.
func TestBuilding(t *testing.T) {
	t.Parallel()
	everyWay(t, time.Minute, func(t *testing.T, p *pair, w way, _ bool) {
		t.Helper()
		p.callee.answerWith(echo)
		o := p.request("call", "it")
		plain, built := o.Build, atomic.Int64{}
		failure := cohort.New("test", cohort.InvalidArgument, "it has no form")
		fails := true
		o.Build = func(toGo bool) (m *rpcwire.Message, wires []rrefcore.Wire, flags uint8, err error) {
			if built.Add(1); fails {
				return nil, nil, 0, failure
			}
			return plain(toGo)
		}
		if _, err := await(t.Context(), t, p, w, o); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("the error is %v", err)
		}
		fails = false
		o.Early(t.Context())
		if x, err := p.caller.k.exchangeCounted(t.Context(), o); err != nil || string(x.Msg.Payload) != "it" || built.Load() != 2 {
			t.Errorf("%+v, %v, built %d times", x.Msg, err, built.Load())
		}
		o.Early(t.Context())()
		if p.caller.offered.Load() != 2 || p.caller.answered.Load() != 1 || p.caller.lost.Load() != 1 {
			t.Errorf("the extension took part in %d requests: %d were answered, %d lost", p.caller.offered.Load(),
				p.caller.answered.Load(), p.caller.lost.Load())
		}
		settled(t.Context(), t, p.caller)
	})
}
