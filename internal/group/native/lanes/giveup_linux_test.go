// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package lanes

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native"
	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// TestReasonBeforeTheEnd: a rank that loses another one while its lanes are connected says why it gives up before its connections end. Rank
// 2 connects all lanes to rank 0 and only the first to rank 1, and then cuts that one.
func TestReasonBeforeTheEnd(t *testing.T) {
	t.Parallel()
	const n, lanes = 3, 2
	list, peers := listeners(t, n)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	reported, gave, release := make(chan transport.Loss, n), make(chan error, n), make(chan struct{})
	var tasks sync.WaitGroup
	defer tasks.Wait()
	config := func(r int) nativetcp.Config {
		return nativetcp.Config{Rank: r, Size: n, Group: [16]byte{9}, Listener: list[r], Peers: peers, Shared: true, Lanes: lanes}
	}
	tasks.Go(func() {
		cfg := config(0)
		cfg.OnLost = func(loss transport.Loss) { reported <- loss }
		m, err := Connect(ctx, cfg)
		if err != nil {
			t.Errorf("rank 0: %v", err)
			return
		}
		<-ctx.Done()
		_ = m.Close()
	})
	tasks.Go(func() {
		cfg := config(1)
		cfg.OnGiveUp = func(err error) {
			gave <- err
			<-release
		}
		if m, err := Connect(ctx, cfg); err == nil {
			t.Error("rank 1 is connected")
			_ = m.Close()
		}
	})
	odd, err := nativetcp.Connect(ctx, config(2))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = odd.Close() }()
	theirs, err := exchange(ctx, odd, []byte{0, 1}) // no process listens there
	if err != nil {
		t.Fatal(err)
	}
	defer join(t, theirs[0])()
	odd.Cut(1)
	if err := <-gave; cohort.CodeOf(err) != cohort.PeerLost {
		t.Errorf("rank 1 gives up because of %v", err)
	}
	select {
	case loss := <-reported:
		t.Errorf("before rank 1 has said why it gives up, rank 0 is told of %v", loss)
	case <-time.After(200 * time.Millisecond):
	}
	close(release)
	if loss := <-reported; loss.Rank != 1 {
		t.Errorf("rank 0 is told of %v", loss)
	}
	cancel()
}

// join connects rank 2 to the second lane of rank 0.
func join(t *testing.T, port []byte) (leave func()) {
	t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(binary.BigEndian.Uint16(port)))))
	if err != nil {
		t.Fatal(err)
	}
	var buf [nativewire.HelloSize]byte
	hello := nativewire.Hello{Version: nativewire.Version, Group: lane([16]byte{9}, 1), From: 2, Size: 3, Window: 256 << 10, Lanes: 1}
	hello.Put(buf[:])
	if _, err = c.Write(buf[:]); err == nil {
		_, err = io.ReadFull(c, buf[:])
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = c.Close() }
}

// BenchmarkLanes runs all-reduces and broadcasts of 32 MiB between two ranks of this process over one lane or several.
// With a rate, each connection is held to that many bytes in a second, as clouds do; without one, the cores are the
// limit. Decision 34 rests on it.
func BenchmarkLanes(b *testing.B) {
	const size = 32 << 20
	for _, rate := range []int{50 << 20, 0} {
		for _, kind := range []collective.Kind{collective.AllReduce, collective.Broadcast} {
			for _, lanes := range []int{1, 2, 4} {
				b.Run(fmt.Sprintf("rate=%d/%v/lanes=%d", rate, kind, lanes), func(b *testing.B) {
					meshes := world(b, 2, lanes, nil)
					for _, m := range meshes {
						if p, ok := m.(interface{ Pace(rate int) error }); ok && rate > 0 {
							if err := p.Pace(rate); err != nil {
								b.Fatal(err)
							}
						}
					}
					b.SetBytes(size)
					b.ResetTimer()
					var wg sync.WaitGroup
					for r, m := range meshes {
						wg.Go(func() {
							e, q := native.NewEngine(m, native.Tuning{}), request(kind, 0, r, 2, size, false)
							for i := range b.N {
								q.Tag = uint32(2 * i)
								if err := e.Run(context.Background(), &q); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					wg.Wait()
				})
			}
		}
	}
}
