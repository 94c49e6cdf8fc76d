// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// answer is a function that returns at once.
func answer(_ context.Context, _ *Call, done func(any, error)) { done("answer", nil) }

// TestEnds: however a handler ends, its caller gets one answer, its place is free again, and the server goes on.
func TestEnds(t *testing.T) {
	server, client := start(t, "server", 0, 1, 4), start(t, "client", 1, 1, 4)
	peers(server, client)
	ctx := testContext(t)
	server.prog.handle("m.answer", answer)
	for name, c := range map[string]struct {
		fn   function
		want string // in the error; empty for none
	}{
		"returns": {answer, ""},
		"fails":   {func(_ context.Context, _ *Call, done func(any, error)) { done(nil, errors.New("no luck")) }, "no luck"},
		"panics":  {func(context.Context, *Call, func(any, error)) { panic("boom") }, "panic: boom"},
		"goexit":  {func(context.Context, *Call, func(any, error)) { runtime.Goexit() }, "runtime.Goexit"},
		"twice": {func(_ context.Context, _ *Call, done func(any, error)) {
			done("answer", nil)
			done(nil, errors.New("again"))
			panic("too late")
		}, ""},
		"later": {func(_ context.Context, _ *Call, done func(any, error)) {
			time.AfterFunc(10*time.Millisecond, func() { done("answer", nil) })
		}, ""},
		"no value": {func(_ context.Context, _ *Call, done func(any, error)) { done(make(chan int), nil) }, "chan int"},
	} {
		server.prog.handle("m.test", c.fn)
		v, err := client.call(ctx, "server", "m.test")
		switch {
		case c.want == "" && (err != nil || v != "answer"):
			t.Errorf("%s: %v, %v", name, v, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v", name, err)
		case err != nil && strings.Contains(err.Error(), "server_test.go"):
			t.Errorf("%s: the caller sees the stack: %v", name, err)
		}
		server.idle(t)
		if v, err := client.call(ctx, "server", "m.answer"); err != nil || v != "answer" {
			t.Errorf("after %s: %v, %v", name, v, err)
		}
	}
	if _, err := client.call(ctx, "server", "m.unknown"); err == nil || !strings.Contains(err.Error(), "no function") {
		t.Errorf("got %v", err)
	}
	server.idle(t)
}

// TestShares: a caller that sends more than there is room for is refused, and does not keep another one out.
func TestShares(t *testing.T) {
	const places, queue = 8, 8
	server, greedy, modest := start(t, "server", 0, places, queue), start(t, "greedy", 1, 1, 1), start(t, "modest", 2, 1, 1)
	peers(server, greedy, modest)
	ctx := testContext(t)
	free := make(chan struct{})
	server.prog.handle("m.answer", answer)
	server.prog.handle("m.wait", func(_ context.Context, _ *Call, done func(any, error)) {
		<-free
		done("answer", nil)
	})
	var work sync.WaitGroup
	refused := make(chan error, 40)
	for range cap(refused) {
		work.Go(func() {
			if _, err := greedy.call(ctx, "server", "m.wait"); err != nil {
				refused <- err
			}
		})
	}
	// A quarter of the places and of the queue is for others.
	const runs, waits = places - places/4, queue * 3 / 4
	for range cap(refused) - runs - waits {
		select {
		case err := <-refused:
			if !strings.Contains(err.Error(), "requests wait for a slot") {
				t.Errorf("got %v", err)
			}
		case <-ctx.Done():
			t.Fatal("no request is refused")
		}
	}
	if _, running, waiting := server.server.Counts(); running != runs || waiting != waits {
		t.Errorf("%d run, %d wait", running, waiting)
	}
	if v, err := modest.call(ctx, "server", "m.answer"); err != nil || v != "answer" {
		t.Errorf("the other caller: %v, %v", v, err)
	}
	close(free)
	work.Wait()
	if n := len(refused); n != 0 {
		t.Errorf("%d more are refused", n)
	}
	server.idle(t)
}

// TestCancel: a caller that gives up ends its handler, also one that waits for a place, which is then not run.
func TestCancel(t *testing.T) {
	server, client := start(t, "server", 0, 1, 4), start(t, "client", 1, 1, 4)
	peers(server, client)
	begun, ended := make(chan struct{}, 4), make(chan error, 4)
	server.prog.handle("m.wait", func(ctx context.Context, _ *Call, done func(any, error)) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		done(nil, ctx.Err())
	})
	first, giveUp := context.WithCancel(testContext(t))
	second, giveUpToo := context.WithCancel(testContext(t))
	defer giveUpToo()
	var work sync.WaitGroup
	work.Go(func() {
		if _, err := client.call(first, "server", "m.wait"); cohort.CodeOf(err) != cohort.Canceled {
			t.Errorf("the first ends with %v", err)
		}
	})
	<-begun
	work.Go(func() {
		if _, err := client.call(second, "server", "m.wait"); cohort.CodeOf(err) != cohort.Canceled {
			t.Errorf("the second ends with %v", err)
		}
	})
	for _, _, waiting := server.server.Counts(); waiting == 0 && second.Err() == nil; _, _, waiting = server.server.Counts() {
		time.Sleep(time.Millisecond)
	}
	giveUpToo()
	for server.server.Abandoned() == 0 && first.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	giveUp()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the handler's context has no cause")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the handler goes on")
	}
	work.Wait()
	server.idle(t)
	if len(begun) != 0 {
		t.Error("a request whose caller has gone was run")
	}
}

// TestRefused: what is not a request of a worker is refused, and the connection goes on.
func TestRefused(t *testing.T) {
	server, client := start(t, "server", 0, 1, 4), start(t, "client", 1, 1, 4)
	peers(server, client)
	ctx := testContext(t)
	server.prog.handle("m.answer", answer)
	for _, kind := range []rpcwire.Type{
		rpcwire.PythonCall, rpcwire.ScriptCall, rpcwire.PythonRemoteCall,
		rpcwire.BackwardAutogradReq, rpcwire.ForwardAutogradReq, rpcwire.RunWithProfilingReq, rpcwire.CleanupAutogradReq,
		rpcwire.PythonRRefFetchCall,
	} {
		x, err := client.send(ctx, "server", kind, []byte("rubbish"))
		if err == nil && kind != rpcwire.PythonCall { // whose answer is an exception as a value
			t.Errorf("%v is answered with %v", kind, x.Msg.Type)
		}
		if v, err := client.call(ctx, "server", "m.answer"); err != nil || v != "answer" {
			t.Fatalf("after %v: %v, %v", kind, v, err)
		}
	}
	server.idle(t)
}

// TestClose closes the server at any moment among calls of every kind: every caller is answered or told, every handler's
// context ends, and nothing is left.
func TestClose(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		server, client := start(t, "server", 0, 2, 8), start(t, "client", 1, 1, 4)
		peers(server, client)
		server.prog.handle("m.answer", answer)
		server.prog.handle("m.panic", func(context.Context, *Call, func(any, error)) { panic("boom") })
		server.prog.handle("m.goexit", func(context.Context, *Call, func(any, error)) { runtime.Goexit() })
		server.prog.handle("m.wait", func(ctx context.Context, _ *Call, done func(any, error)) {
			<-ctx.Done()
			done(nil, ctx.Err())
		})
		server.prog.handle("m.later", func(ctx context.Context, _ *Call, done func(any, error)) {
			context.AfterFunc(ctx, func() { done(nil, ctx.Err()) })
		})
		ctx := testContext(t)
		var work sync.WaitGroup
		for _, fn := range []string{
			"answer", "panic", "goexit", "wait", "later", "wait", "answer", "goexit", "wait", "later",
			"panic", "wait",
		} {
			work.Go(func() {
				v, err := client.call(ctx, "server", "m."+fn)
				if err == nil && (fn != "answer" || v != "answer") {
					t.Errorf("seed %d: %s: %v", seed, fn, v)
				}
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("seed %d: %s waits until its time is over", seed, fn)
				}
			})
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		closed := make(chan struct{})
		go func() {
			server.close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-ctx.Done():
			buf := make([]byte, 1<<20)
			t.Fatalf("seed %d: Close does not end\n%s", seed, buf[:runtime.Stack(buf, true)])
		}
		work.Wait()
		client.close()
		if _, running, _ := server.server.Counts(); running != 0 {
			t.Errorf("seed %d: %d handlers have places after Close", seed, running)
		}
	}
}
