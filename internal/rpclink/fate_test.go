// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpclink

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

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcworld"
)

// TestFates: what was seen of a worker, what it means, and which error it gives to whoever wanted to connect.
func TestFates(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("dial: %w", os.NewSyscallError("connect", syscall.ECONNREFUSED))
	for _, c := range []struct {
		sign  sign
		want  fate
		code  dist.Code
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
		{sign{taken: true}, dead, dist.PeerLost, rpcworld.ErrRefused, "does not listen at uv://a:1 any more"},
		{sign{tried: refused}, dead, dist.PeerLost, rpcworld.ErrRefused, "nobody listens at uv://a:1"},
		{sign{tried: refused, leased: true}, dead, dist.PeerLost, syscall.ECONNREFUSED, "its process has ended"},
		{sign{tried: errors.Join(errHandshakeEnded, refused)}, dead, dist.PeerLost, rpcworld.ErrRefused, "its process has ended"},
		{sign{tried: syscall.ETIMEDOUT}, silent, dist.Unavailable, rpcworld.ErrSilent, "does not answer at uv://a:1"},
		{sign{tried: syscall.EHOSTUNREACH}, silent, dist.Unavailable, rpcworld.ErrSilent, "does not answer"},
		{sign{tried: syscall.EHOSTDOWN}, silent, dist.Unavailable, syscall.EHOSTDOWN, "does not answer"},
		{sign{tried: syscall.ECONNRESET}, cut, dist.PeerLost, errHandshakeEnded, "ended in its handshake"},
		{sign{tried: syscall.EPIPE}, cut, dist.PeerLost, errHandshakeEnded, "was cut"},
		{sign{tried: syscall.Errno(10054)}, cut, dist.PeerLost, errHandshakeEnded, "was cut"},                // WSAECONNRESET
		{sign{tried: syscall.Errno(10060)}, silent, dist.Unavailable, rpcworld.ErrSilent, "does not answer"}, // WSAETIMEDOUT
		{sign{tried: io.EOF}, cut, dist.PeerLost, errHandshakeEnded, "was cut"},
		{sign{tried: io.ErrUnexpectedEOF}, cut, dist.PeerLost, errHandshakeEnded, "was cut"},
		{sign{tried: errHandshakeEnded}, cut, dist.PeerLost, errHandshakeEnded, "was cut"},
		{sign{tried: context.DeadlineExceeded}, uncertain, dist.DeadlineExceeded, context.DeadlineExceeded, ""},
		{sign{tried: context.Canceled}, uncertain, dist.Canceled, context.Canceled, ""},
		{sign{tried: errors.New("no route")}, uncertain, dist.Unavailable, nil, "no route"},
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
