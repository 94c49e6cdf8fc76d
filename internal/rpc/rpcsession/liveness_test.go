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
)

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
