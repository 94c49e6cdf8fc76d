// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
)

// ResolveTo answers every question of this process for a host name with the same IPv4 addresses, in this order, until the end of the test.
// Tests that use it cannot run in parallel with others that look up names.
func ResolveTo(tb testing.TB, ips ...net.IP) {
	tb.Helper()
	var config net.ListenConfig
	server, err := config.ListenPacket(context.Background(), "udp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for buf := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			question := buf[12:n]
			question = question[:bytes.IndexByte(question, 0)+5] // the name, the type and the class
			reply := append([]byte{buf[0], buf[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
			if question[len(question)-3] == 1 { // not an IPv6 address
				reply[7] = byte(len(ips)) //nolint:gosec // a few
				for _, ip := range ips {
					reply = append(append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), ip.To4()...)
				}
			}
			_, _ = server.WriteTo(reply, from)
		}
	})
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	tb.Cleanup(func() {
		net.DefaultResolver = old
		_ = server.Close()
		serving.Wait()
	})
}
