// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestErrorText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{
			&Error{Op: "tcpstore: wait", Code: DeadlineExceeded, Rank: NoRank, Key: "a", Peer: "10.0.0.5:29500"},
			`tcpstore: wait "a": timeout (peer 10.0.0.5:29500)`,
		},
		{
			&Error{Op: "group: all_reduce", Code: PeerLost, Rank: 3, Detail: "host n12 closed the connection"},
			"group: all_reduce: peer lost: rank 3: host n12 closed the connection",
		},
		{
			New("store: prefix", InvalidArgument, "store argument cannot be None"),
			"store: prefix: invalid argument: store argument cannot be None",
		},
		{Wrap("tcpstore: dial", Unavailable, errors.New("connection refused")), "tcpstore: dial: unavailable: connection refused"},
		{
			Wrap("rpc: request", Canceled, New("rpc: request", Canceled, "the caller has given up")),
			"rpc: request: cancelled: the caller has given up",
		},
		{
			Wrap("rpc: call", Canceled, New("rpc: request", Canceled, "the caller has given up")),
			"rpc: call: cancelled: rpc: request: the caller has given up",
		},
		{
			Wrap("a", Aborted, Wrap("b", Aborted, &Error{
				Op: "c", Code: Aborted, Rank: NoRank, Key: "k", Detail: "aborted: it says so itself",
			})),
			`a: aborted: b: c "k": aborted: it says so itself`,
		},
		{
			Newf("a", Aborted, "group 0 has failed before: %w; make a new one", New("b", Aborted, "rank 1 left")),
			"a: aborted: group 0 has failed before: b: rank 1 left; make a new one",
		},
		{
			Newf("a", Aborted, "lost: %w", fmt.Errorf("outer: %w", New("b", PeerLost, "rank 1 left"))),
			"a: aborted: lost: outer: b: peer lost: rank 1 left",
		},
		{Wrap("a", Aborted, errors.Join(errors.New("x"), New("b", Aborted, "y"))), "a: aborted: x\nb: y"},
		{
			&Error{Op: "group: rendezvous", Code: DeadlineExceeded, Rank: 2, Detail: "rank 2 of group 0 did not appear"},
			"group: rendezvous: timeout: rank 2 of group 0 did not appear",
		},
		{
			&Error{Op: "group: send", Code: PeerLost, Rank: 2, Detail: "rank 21 reported it"},
			"group: send: peer lost: rank 2: rank 21 reported it",
		},
		{Newf("x", Protocol, "frame of %d bytes: %w", 7, errors.New("too short")), "x: protocol error: frame of 7 bytes: too short"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestErrorMatchesItsCode(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	err := fmt.Errorf("outer: %w", &Error{Op: "op", Code: DeadlineExceeded, Rank: NoRank, Err: cause})
	for _, target := range []error{DeadlineExceeded, context.DeadlineExceeded, cause} {
		if !errors.Is(err, target) {
			t.Errorf("does not match %v", target)
		}
	}
	for _, target := range []error{Canceled, context.Canceled, PeerLost} {
		if errors.Is(err, target) {
			t.Errorf("matches %v", target)
		}
	}
	if CodeOf(err) != DeadlineExceeded || CodeOf(nil) != Unknown || CodeOf(context.Canceled) != Canceled || CodeOf(cause) != Unknown {
		t.Error("CodeOf")
	}
}

func TestEveryCodeHasItsOwnName(t *testing.T) {
	t.Parallel()
	seen := map[string]Code{}
	for c := range codeCount {
		if other, taken := seen[c.String()]; c.String() == "" || taken {
			t.Errorf("code %d is called %q, as %d", c, c.String(), other)
		}
		seen[c.String()] = c
	}
	if text, err := json.Marshal(PeerLost); err != nil || string(text) != `"peer lost"` {
		t.Errorf("JSON %s, %v", text, err)
	}
	if Code(200).String() != "code 200" {
		t.Error("an unknown code must contain its number")
	}
}

// TestFromContext: the error of an ended context matches ctx.Err(), whatever the cause is, and has the cause in its chain.
func TestFromContext(t *testing.T) {
	t.Parallel()
	if err := FromContext(t.Context(), "op"); err != nil {
		t.Errorf("a context that has not ended must give nil, got %v", err)
	}
	causes := []error{nil, errors.New("other"), context.Canceled, context.DeadlineExceeded}
	for code := range codeCount {
		causes = append(causes, code, &Error{Op: "link", Code: code, Rank: 2})
	}
	for _, cause := range causes {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		late, stop := context.WithDeadlineCause(t.Context(), time.Unix(1, 0), cause)
		for _, ended := range []context.Context{ctx, late} {
			err := FromContext(ended, "op")
			if !errors.Is(err, ended.Err()) || CodeOf(err) != CodeOf(ended.Err()) {
				t.Errorf("%v with cause %v: got %v (%v)", ended.Err(), cause, err, CodeOf(err))
			}
			if cause != nil && !errors.Is(err, cause) {
				t.Errorf("the cause %v is not in %v", cause, err)
			}
		}
		if e, ok := cause.(*Error); ok && Ended(ctx, "op").Rank != e.Rank { //nolint:errorlint // as it is
			t.Errorf("the rank of %v is lost", cause)
		}
		stop()
	}
}

func TestZeroErrorNamesNoRank(t *testing.T) {
	t.Parallel()
	if text := (&Error{}).Error(); text != "unknown error" {
		t.Errorf("a zero error is %q", text)
	}
	if text := (&Error{Op: "op", Code: PeerLost}).Error(); text != "op: peer lost: rank 0" {
		t.Errorf("an error about rank 0 is %q", text)
	}
}

func TestFutureCompletesOnce(t *testing.T) {
	t.Parallel()
	p := NewPromise[int]()
	f := p.Future()
	seen := make(chan int, 2)
	f.OnDone(func(v int, _ error) { seen <- v })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Await(ctx); !errors.Is(err, context.Canceled) || f.Completed() {
		t.Errorf("a wait that ends must not complete the future: %v", err)
	}
	if !p.Complete(7, nil) || p.Complete(8, errors.New("late")) {
		t.Error("only the first completion counts")
	}
	f.OnDone(func(v int, _ error) { seen <- v })
	if v, err := f.Await(ctx); v != 7 || err != nil {
		t.Errorf("await after completion: %d, %v", v, err)
	}
	if a, b := <-seen, <-seen; a != 7 || b != 7 {
		t.Errorf("callbacks saw %d and %d", a, b)
	}
}

// TestCallbacksMayWait: a callback that waits for the very goroutine that completes the future.
func TestCallbacksMayWait(t *testing.T) {
	t.Parallel()
	p, completed, called := NewPromise[int](), make(chan struct{}), make(chan struct{})
	p.Future().OnDone(func(int, error) {
		<-completed
		close(called)
	})
	p.Complete(1, nil)
	close(completed)
	select {
	case <-called:
	case <-time.After(30 * time.Second):
		t.Fatal("the callback was not called")
	}
}

// TestBadCallbacks: a panic or the end of the goroutine in a callback concerns that callback only.
func TestBadCallbacks(t *testing.T) {
	old := slog.Default()
	defer slog.SetDefault(old)
	var log strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	p := NewPromise[int]()
	f := p.Future()
	f.OnDone(func(int, error) { panic("ouch") })
	f.OnDone(func(int, error) { runtime.Goexit() })
	panicked := Then(f, func(int, error) (int, error) { panic("ouch") })
	gone := Then(f, func(int, error) (int, error) { runtime.Goexit(); return 0, nil })
	last := Then(f, func(v int, err error) (int, error) { return v + 1, err })
	p.Complete(1, nil)
	if v, err := last.Await(t.Context()); v != 2 || err != nil {
		t.Errorf("the last callback: %d, %v", v, err)
	}
	for name, f := range map[string]*Future[int]{"panic": panicked, "goexit": gone} {
		if _, err := f.Await(t.Context()); !errors.Is(err, Internal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := panicked.Await(t.Context()); !strings.Contains(err.Error(), "ouch") || !strings.Contains(err.Error(), "cohort_test.go") {
		t.Errorf("the panic's text and stack are missing: %v", err)
	}
	if !strings.Contains(log.String(), "ouch") {
		t.Errorf("the log has %q", log.String())
	}
}

func TestFuturesPrint(t *testing.T) {
	t.Parallel()
	done, failed, open := NewPromise[int](), NewPromise[int](), NewPromise[int]()
	done.Complete(7, nil)
	failed.Complete(0, PeerLost)
	if got := fmt.Sprint(done.Future(), "; ", failed.Future(), "; ",
		open); got != "future of int: 7; future, failed: peer lost; promise of a future of int, not complete" {
		t.Errorf("printed %s", got)
	}
}

func ExampleCode() {
	err := error(&Error{Op: "group: barrier", Code: PeerLost, Rank: 1, Peer: "10.0.0.7"})
	if errors.Is(err, PeerLost) {
		fmt.Println(err)
	}
	// Output: group: barrier: peer lost: rank 1 (peer 10.0.0.7)
}

func ExampleFuture() {
	p := NewPromise[string]()
	go p.Complete("ready", nil)
	v, err := p.Future().Await(context.Background())
	fmt.Println(v, err)
	// Output: ready <nil>
}

// TestCodeText: a code is read back from its text, also one that this version does not know.
func TestCodeText(t *testing.T) {
	t.Parallel()
	for c := range Code(30) {
		text, err := json.Marshal(struct{ Code Code }{c})
		if err != nil {
			t.Fatal(err)
		}
		var back struct{ Code Code }
		if err := json.Unmarshal(text, &back); err != nil || back.Code != c {
			t.Errorf("%s is read as %v: %v", text, back.Code, err)
		}
	}
	for _, text := range []string{"", "code", "code 256", "code -1", "Timeout"} {
		c := PeerLost
		if err := c.UnmarshalText([]byte(text)); !errors.Is(err, InvalidArgument) || c != PeerLost {
			t.Errorf("%q is read as %v: %v", text, c, err)
		}
	}
}
