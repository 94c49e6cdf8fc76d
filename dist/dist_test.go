// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestErrorText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{&Error{Op: "tcpstore: wait", Code: DeadlineExceeded, Rank: NoRank, Key: "a", Peer: "10.0.0.5:29500"}, `tcpstore: wait "a": timeout (peer 10.0.0.5:29500)`},
		{&Error{Op: "group: all_reduce", Code: PeerLost, Rank: 3, Detail: "host n12 closed the connection"}, "group: all_reduce: peer lost: rank 3: host n12 closed the connection"},
		{New("store: prefix", InvalidArgument, "store argument cannot be None"), "store: prefix: invalid argument: store argument cannot be None"},
		{Wrap("tcpstore: dial", Unavailable, errors.New("connection refused")), "tcpstore: dial: unavailable: connection refused"},
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
		t.Error("an unknown code must say its number")
	}
}

func TestFromContextKeepsTheCause(t *testing.T) {
	t.Parallel()
	if FromContext("op", t.Context()) != nil {
		t.Error("a living context is no error")
	}
	lost := &Error{Op: "link", Code: PeerLost, Rank: 2}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	if err := FromContext("op", ctx); !errors.Is(err, PeerLost) || !errors.Is(err, lost) {
		t.Errorf("got %v", err)
	}
	late, stop := context.WithTimeout(t.Context(), time.Nanosecond)
	defer stop()
	<-late.Done()
	if err := FromContext("op", late); !errors.Is(err, DeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestFutureCompletesOnce(t *testing.T) {
	t.Parallel()
	f := NewFuture[int]()
	var seen []int
	f.OnDone(func(v int, _ error) { seen = append(seen, v) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Await(ctx); !errors.Is(err, context.Canceled) || f.Completed() {
		t.Errorf("a wait that ends must not complete the future: %v", err)
	}
	if !f.Complete(7, nil) || f.Complete(8, errors.New("late")) {
		t.Error("only the first completion counts")
	}
	f.OnDone(func(v int, _ error) { seen = append(seen, v) })
	if v, err := f.Await(ctx); v != 7 || err != nil {
		t.Errorf("await after completion: %d, %v", v, err)
	}
	if len(seen) != 2 || seen[0] != 7 || seen[1] != 7 {
		t.Errorf("callbacks saw %v", seen)
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
	f := NewFuture[string]()
	go f.Complete("ready", nil)
	v, err := f.Await(context.Background())
	fmt.Println(v, err)
	// Output: ready <nil>
}
