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

// TestFates: what was seen of a worker, what it means, and which error it gives to whoever wanted to connect.
func TestFates(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("dial: %w", os.NewSyscallError("connect", syscall.ECONNREFUSED))
	for _, c := range []struct {
		sign  sign
		want  fate
		code  cohort.Code
		cause error
		words string
	}{
		{sign{}, uncertain, 0, nil, ""}, // a session ended
		{sign{left: true}, dead, 0, nil, ""},
		{sign{moved: true}, dead, 0, nil, ""},
		{sign{left: true, leased: true}, dead, 0, nil, ""},
		{sign{away: 21 * time.Second, limit: 20 * time.Second}, dead, 0, nil, ""},
		{sign{away: 20 * time.Second, limit: 20 * time.Second}, uncertain, 0, nil, ""},
		{sign{away: time.Hour, limit: 20 * time.Second, leased: true}, uncertain, 0, nil, ""},
		{sign{away: time.Hour}, uncertain, 0, nil, ""},
		{sign{taken: true}, dead, cohort.PeerLost, rpcworld.ErrRefused, "does not listen at uv://a:1 any more"},
		{sign{tried: refused}, dead, cohort.PeerLost, rpcworld.ErrRefused, "nobody listens at uv://a:1"},
		{sign{tried: refused, leased: true}, dead, cohort.PeerLost, syscall.ECONNREFUSED, "its process has ended"},
		{sign{tried: errors.Join(errHandshakeEnded, refused)}, dead, cohort.PeerLost, rpcworld.ErrRefused, "its process has ended"},
		{sign{tried: syscall.ETIMEDOUT}, silent, cohort.Unavailable, rpcworld.ErrSilent, "does not answer at uv://a:1"},
		{sign{tried: syscall.EHOSTUNREACH}, silent, cohort.Unavailable, rpcworld.ErrSilent, "does not answer"},
		{sign{tried: syscall.EHOSTDOWN}, silent, cohort.Unavailable, syscall.EHOSTDOWN, "does not answer"},
		{sign{tried: syscall.ECONNRESET}, cut, cohort.PeerLost, errHandshakeEnded, "ended in its handshake"},
		{sign{tried: syscall.EPIPE}, cut, cohort.PeerLost, errHandshakeEnded, "was cut"},
		{sign{tried: syscall.Errno(10054)}, cut, cohort.PeerLost, errHandshakeEnded, "was cut"},                // WSAECONNRESET
		{sign{tried: syscall.Errno(10060)}, silent, cohort.Unavailable, rpcworld.ErrSilent, "does not answer"}, // WSAETIMEDOUT
		{sign{tried: io.EOF}, cut, cohort.PeerLost, errHandshakeEnded, "was cut"},
		{sign{tried: io.ErrUnexpectedEOF}, cut, cohort.PeerLost, errHandshakeEnded, "was cut"},
		{sign{tried: errHandshakeEnded}, cut, cohort.PeerLost, errHandshakeEnded, "was cut"},
		{sign{tried: context.DeadlineExceeded}, uncertain, cohort.DeadlineExceeded, context.DeadlineExceeded, ""},
		{sign{tried: context.Canceled}, uncertain, cohort.Canceled, context.Canceled, ""},
		{sign{tried: errors.New("no route")}, uncertain, cohort.Unavailable, nil, "no route"},
	} {
		if got := c.sign.fate(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.sign, got, c.want)
		}
		if c.code == 0 {
			continue
		}
		e := c.sign.connectError("b", "uv://a:1")
		if e.Code != c.code || e.Peer != "b" || c.cause != nil && !errors.Is(e, c.cause) || !strings.Contains(e.Error(), c.words) {
			t.Errorf("%+v: %v", c.sign, e)
		}
		if errors.Is(e, rpcworld.ErrRefused) != (c.want == dead) {
			t.Errorf("%+v: whether it is dead cannot be told by %v", c.sign, e)
		}
	}
}
