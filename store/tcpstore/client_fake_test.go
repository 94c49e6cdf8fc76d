// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
)

// fakeStore is a server of a test: it greets as one kind of PyTorch server does and leaves the rest to a script.
type fakeStore struct {
	network faultnet.Network
	kind    fakeKind
	// on answers one request of connection number n, counted from 1; false closes the connection.
	on func(n int, conn net.Conn, r *wire.Request) bool
	// mute makes it read on and answer nothing, not even a greeting: a frozen process whose kernel still listens.
	mute atomic.Bool

	mu     sync.Mutex
	conns  int
	open   int
	first  [][]byte // what each connection sent first
	wg     sync.WaitGroup
	accept *faultnet.Listener
}

const fakeIdentity = "sixteen bytes id"

type fakeKind int

const (
	fakeLegacy fakeKind = iota // 1.13
	fakeV0                     // 2.4: no PING
	fakeV1                     // 2.6
	fakeNative                 // ours
)

// newFake starts a fake at "fake:1". It ends with stop, which the test calls before its bubble ends.
func newFake(t *testing.T, kind fakeKind, on func(n int, conn net.Conn, r *wire.Request) bool) (f *fakeStore, stop func()) {
	t.Helper()
	f = &fakeStore{kind: kind, on: on}
	var err error
	if f.accept, err = f.network.Listen("fake:1"); err != nil {
		t.Fatal(err)
	}
	f.wg.Go(func() {
		for {
			conn, err := f.accept.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns++
			f.open++
			n := f.conns
			f.mu.Unlock()
			f.wg.Go(func() {
				f.serve(n, conn)
				_ = conn.Close()
				f.mu.Lock()
				f.open--
				f.mu.Unlock()
			})
		}
	})
	return f, func() {
		_ = f.accept.Close()
		f.network.CutAll()
		f.wg.Wait()
	}
}

func (f *fakeStore) counts() (conns, open int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conns, f.open
}

func (f *fakeStore) serve(n int, conn net.Conn) {
	var b []byte
	buf := make([]byte, 4096)
	dialect := wire.V
	if f.kind == fakeLegacy {
		dialect = wire.Legacy
	}
	greeted := f.kind == fakeLegacy
	for {
		k, err := conn.Read(buf)
		if err != nil {
			return
		}
		if b == nil {
			f.mu.Lock()
			f.first = append(f.first, append([]byte{}, buf[:k]...))
			f.mu.Unlock()
		}
		b = append(b, buf[:k]...)
		for len(b) > 0 && !f.mute.Load() {
			var r wire.Request
			var size int
			if dialect == wire.Native {
				_, whole, frameErr := wire.ParseFrame(b)
				if frameErr != nil || whole > len(b) || whole == 0 {
					break
				}
				if wire.ParseFrameRequest(b[:whole], &wire.DefaultLimits, &r) != nil {
					return
				}
				size = whole
			} else {
				var p wire.Progress
				if size, err = wire.ParseRequest(dialect, b, &wire.DefaultLimits, &p, &r); err != nil {
					return // as PyTorch: close without a word
				}
				if size == 0 {
					break
				}
			}
			switch {
			case !greeted && r.Op != wire.Validate, greeted && r.Op == wire.Validate, r.Op == wire.Ping && f.kind == fakeV0:
				return
			case r.Op == wire.Validate:
				greeted = true
			case r.Op == wire.Ping:
				_, _ = conn.Write(wire.AppendUint32(nil, r.Nonce))
			case r.Op == wire.Check && isSessionsKey(&r):
				_, _ = conn.Write([]byte{wire.NotReady}) // as a server of cohort before it had sessions
			case r.Op == wire.Check && r.List.Count == 1 && string(r.List.Next()) == wire.NativeKey:
				answer := wire.NotReady
				if f.kind == fakeNative {
					answer = wire.Ready
				}
				_, _ = conn.Write([]byte{answer})
			case r.Op == wire.Upgrade:
				dialect = wire.Native
			case r.Op == wire.Hello:
				_, _ = conn.Write(frameReply(r.ID, 0, append(bytesReply(fakeIdentity), intReply(0)...)))
			case !f.on(n, conn, reparse(dialect, b[:size], r)):
				return
			}
			b = b[size:]
		}
	}
}

func isSessionsKey(r *wire.Request) bool {
	list := r.List
	return list.Count == 1 && string(list.Next()) == wire.SessionsKey
}

// reparse returns the request with its list unread again.
func reparse(d wire.Dialect, b []byte, r wire.Request) *wire.Request {
	var again wire.Request
	if d == wire.Native {
		_ = wire.ParseFrameRequest(b, &wire.DefaultLimits, &again)
		return &again
	}
	var p wire.Progress
	_, _ = wire.ParseRequest(d, b, &wire.DefaultLimits, &p, &again)
	again.Op = r.Op
	return &again
}

func bytesReply(value string) []byte { return wire.AppendString(nil, value) }

func intReply(n int64) []byte { return wire.AppendInt(nil, n) }

// frameReply is an answer of the native dialect.
func frameReply(id uint32, status byte, body []byte) []byte {
	b := append(wire.BeginFrame(nil, id), status)
	return wire.EndFrame(append(b, body...), 0, 0)
}
