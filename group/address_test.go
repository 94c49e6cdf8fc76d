// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// outside returns an address of this host that is not one of the loopback interface, or one that is where it has no other.
func outside(t *testing.T) net.IP {
	t.Helper()
	all, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP
		}
	}
	return net.IPv4(127, 0, 0, 1)
}

// TestAddressOfTheStoreThatAnswers: the first address of the store's name is dead, so ranks reach the store by the second. They publish the
// address that they have on that way, and not the one on the way to the first.
func TestAddressOfTheStoreThatAnswers(t *testing.T) {
	t.Setenv("GLOO_SOCKET_IFNAME", "")
	own := outside(t)
	testkit.ResolveTo(t, net.IPv4(127, 0, 0, 9), own) // no listener at the first
	for _, transport := range []Transport{TCP, Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			ctx := ctxOf(t)
			server, err := tcpstore.Listen(net.JoinHostPort(own.String(), "0"))
			must(t, err)
			t.Cleanup(func() { _ = server.Close() })
			_, port, _ := net.SplitHostPort(server.Addr().String())
			var mu sync.Mutex
			var published []string
			hook := func(e observe.Event) {
				if e.Kind == "gloo.address" {
					mu.Lock()
					defer mu.Unlock()
					published = append(published, e.Peer)
				}
			}
			must(t, each(2, func(r int) error {
				client, err := tcpstore.Dial(ctx, net.JoinHostPort("store.test", port))
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = client.Close() })
				g, err := New(ctx, client, cohort.Rank(r), 2, WithTransport(transport), WithHook(hook))
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = g.Close() })
				if transport == TCP {
					host, _, _ := net.SplitHostPort(g.formed.Members[r].Addr)
					mu.Lock()
					published = append(published, host)
					mu.Unlock()
				}
				return g.Barrier(ctx).Wait(ctx)
			}))
			if got := strings.Join(published, " "); got != own.String()+" "+own.String() {
				t.Errorf("the ranks published %s, and reach the store by %v", got, own)
			}
		})
	}
}
