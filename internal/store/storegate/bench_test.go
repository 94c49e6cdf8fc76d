// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate_test

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// copier is the least that any gateway has to do: it copies bytes between a client and the store.
func copier(b *testing.B, to string) net.Addr {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var copies sync.WaitGroup
	b.Cleanup(func() {
		_ = l.Close()
		copies.Wait()
	})
	copies.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			for _, pair := range [][2]net.Conn{{c, up}, {up, c}} {
				copies.Go(func() {
					buf := make([]byte, 32<<10) // not io.Copy, which would splice
					_, _ = io.CopyBuffer(struct{ io.Writer }{pair[0]}, struct{ io.Reader }{pair[1]}, buf)
					_ = pair[0].Close()
				})
			}
		}
	})
	return l.Addr()
}

// BenchmarkGet is a get of one client: of the store itself, through a byte copier, and through a gateway, in rounds in turn.
func BenchmarkGet(b *testing.B) {
	s, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	names := []string{"direct", "copier", "gateway"}
	addrs := []net.Addr{s.Addr(), copier(b, s.Addr().String()), gateway(b, s.Addr().String()).Addr()}
	clients := make([]*tcpstore.Client, len(addrs))
	for i, addr := range addrs {
		clients[i] = dial(b, addr, tcpstore.WithDialect(tcpstore.DialectNative))
		if err := clients[i].Set(b.Context(), "k", []byte("value")); err != nil {
			b.Fatal(err)
		}
	}
	const rounds, each = 100, 100
	took := make([][]float64, len(addrs))
	for b.Loop() {
		for range rounds {
			for i, c := range clients {
				start := time.Now()
				for range each {
					if _, err := c.Get(b.Context(), "k"); err != nil {
						b.Fatal(err)
					}
				}
				took[i] = append(took[i], float64(time.Since(start).Microseconds())/each)
			}
		}
	}
	for i, name := range names {
		slices.Sort(took[i])
		b.ReportMetric(took[i][len(took[i])/2], name+"-us")
		b.ReportMetric(took[i][0], name+"-best-us")
	}
	b.ReportMetric(took[2][len(took[2])/2]/took[1][len(took[1])/2], "gateway/copier")
	b.ReportMetric(took[2][0]/took[1][0], "best-gateway/copier")
}
