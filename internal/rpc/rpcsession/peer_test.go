// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcsession

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/tensor"
)

// A worker that has sent an element type may be sent it.
func TestKnownTypes(t *testing.T) {
	var k knownTypes
	seen := tensor.Must(tensor.New(tensor.Float8E5M2, 2))
	k.learn([]any{seen, &tensor.Sparse{Values: tensor.Must(tensor.New(tensor.Uint32, 1))}})
	if err := k.check([]any{seen, tensor.Must(tensor.New(tensor.Uint32, 1)), tensor.Must(tensor.New(tensor.Float32, 1))}, 0); err != nil {
		t.Error(err)
	}
	other := tensor.Must(tensor.New(tensor.Uint64, 1))
	if err := k.check([]any{other}, 0); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("a type that was not seen: %v", err)
	}
	if err := k.check([]any{other}, LaterType(tensor.Uint64)); err != nil {
		t.Errorf("a type that all are said to know: %v", err)
	}
}

// TestCarriedIsBounded: what may have been swallowed by a link is remembered for a while, and not without bound.
func TestCarriedIsBounded(t *testing.T) {
	c := &Conn{}
	for range maxCarried + 1000 {
		c.Carry(nil)
	}
	if n := len(c.mu.carried); n > maxCarried {
		t.Errorf("%d answers are remembered", n)
	}
}

// TestRefusalsAreBounded: the answers to refused requests wait up to a limit, and one goroutine writes them; then the peer is cut, once.
func TestRefusalsAreBounded(t *testing.T) {
	var q refusals
	c, answered := &Conn{}, 0
	answer := func() { answered++ }
	started := map[int]func(){}
	for i := range maxRefusals + 1000 {
		if start := q.queued(c, answer); start != nil {
			started[i] = start
		}
	}
	if len(started) != 2 || started[0] == nil || started[maxRefusals] == nil || len(q.mu.queue) != maxRefusals {
		t.Fatalf("%d goroutines were started, %d answers wait", len(started), len(q.mu.queue))
	}
	started[0]()
	if answered != maxRefusals || q.mu.running || len(q.mu.queue) != 0 {
		t.Errorf("%d were answered, %d wait, running: %v", answered, len(q.mu.queue), q.mu.running)
	}
	if q.queued(c, answer) == nil {
		t.Error("the next one gets no answer")
	}
}

// TestFates: what was seen of a worker, what it means, and which error the caller gets that wanted to connect.
func TestFates(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("dial: %w", os.NewSyscallError("connect", syscall.ECONNREFUSED))
	for _, c := range []struct {
		evidence evidence
		want     liveness
		code     cohort.Code
		cause    error
		words    string
	}{
		{evidence{}, unknownLiveness, 0, nil, ""}, // a session ended
		{evidence{left: true}, dead, 0, nil, ""},
		{evidence{replaced: true}, dead, 0, nil, ""},
		{evidence{left: true, leased: true}, dead, 0, nil, ""},
		{evidence{unreachableFor: 21 * time.Second, limit: 20 * time.Second}, dead, 0, nil, ""},
		{evidence{unreachableFor: 20 * time.Second, limit: 20 * time.Second}, unknownLiveness, 0, nil, ""},
		{evidence{unreachableFor: time.Hour, limit: 20 * time.Second, leased: true}, unknownLiveness, 0, nil, ""},
		{evidence{unreachableFor: time.Hour}, unknownLiveness, 0, nil, ""},
		{evidence{addressReused: true}, dead, cohort.PeerLost, rpcworld.ErrRefused, "does not listen at uv://a:1 any more"},
		{evidence{connectErr: refused}, dead, cohort.PeerLost, rpcworld.ErrRefused, "connection refused at uv://a:1"},
		{evidence{connectErr: refused, leased: true}, dead, cohort.PeerLost, syscall.ECONNREFUSED, "its process has ended"},
		{
			evidence{connectErr: errors.Join(errHandshakeEnded, refused)},
			dead, cohort.PeerLost, rpcworld.ErrRefused,
			"its process has ended",
		},
		{evidence{connectErr: syscall.ETIMEDOUT}, unresponsive, cohort.Unavailable, rpcworld.ErrSilent, "does not answer at uv://a:1"},
		{evidence{connectErr: syscall.EHOSTUNREACH}, unresponsive, cohort.Unavailable, rpcworld.ErrSilent, "does not answer"},
		{evidence{connectErr: syscall.EHOSTDOWN}, unresponsive, cohort.Unavailable, syscall.EHOSTDOWN, "does not answer"},
		{evidence{connectErr: syscall.ECONNRESET}, disconnected, cohort.PeerLost, errHandshakeEnded, "ended in its handshake"},
		{evidence{connectErr: syscall.EPIPE}, disconnected, cohort.PeerLost, errHandshakeEnded, "was cut"},
		// WSAECONNRESET
		{evidence{connectErr: syscall.Errno(10054)}, disconnected, cohort.PeerLost, errHandshakeEnded, "was cut"},
		// WSAETIMEDOUT
		{evidence{connectErr: syscall.Errno(10060)}, unresponsive, cohort.Unavailable, rpcworld.ErrSilent, "does not answer"},
		{evidence{connectErr: io.EOF}, disconnected, cohort.PeerLost, errHandshakeEnded, "was cut"},
		{evidence{connectErr: io.ErrUnexpectedEOF}, disconnected, cohort.PeerLost, errHandshakeEnded, "was cut"},
		{evidence{connectErr: errHandshakeEnded}, disconnected, cohort.PeerLost, errHandshakeEnded, "was cut"},
		{evidence{connectErr: context.DeadlineExceeded}, unknownLiveness, cohort.DeadlineExceeded, context.DeadlineExceeded, ""},
		{evidence{connectErr: context.Canceled}, unknownLiveness, cohort.Canceled, context.Canceled, ""},
		{evidence{connectErr: errors.New("no route")}, unknownLiveness, cohort.Unavailable, nil, "no route"},
	} {
		if got := c.evidence.liveness(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.evidence, got, c.want)
		}
		if c.code == 0 {
			continue
		}
		e := c.evidence.connectError("b", "uv://a:1")
		if e.Code != c.code || e.Peer != "b" || c.cause != nil && !errors.Is(e, c.cause) || !strings.Contains(e.Error(), c.words) {
			t.Errorf("%+v: %v", c.evidence, e)
		}
		if errors.Is(e, rpcworld.ErrRefused) != (c.want == dead) {
			t.Errorf("%+v: whether it is dead cannot be told by %v", c.evidence, e)
		}
	}
}
