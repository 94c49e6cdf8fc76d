// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

//go:embed cut.py
var cutScript string

// between puts a proxy before a store and returns its port.
func between(t *testing.T, s *tcpstore.Server) (*faultnet.Proxy, string) {
	t.Helper()
	p, err := faultnet.ListenTCP(net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())))
	if err != nil {
		t.Fatal(err)
	}
	return p, strconv.Itoa(int(netip.MustParseAddrPort(p.Addr()).Port()))
}

// TestServerResetAtEveryByte resets the connection of a PyTorch client at every byte that it sends, and at every byte
// of the answers. It has the right answers up to there, then an error, or it has connected again; the store keeps
// nothing of the connection and serves on.
func TestServerResetAtEveryByte(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Parallel()
		p := torch.Start(t, torchtest.Script{Source: cutScript})
		trial := func(up, down int) (got []string, whole bool) {
			t.Helper()
			s := serve(t)
			defer func() { _ = s.Close() }()
			proxy, port := between(t, s)
			defer func() { _ = proxy.Close() }()
			proxy.SetUp(faultnet.Fault{CutAfter: up})
			proxy.SetDown(faultnet.Fault{CutAfter: down})
			p.Send(t, port)
			if err := json.Unmarshal([]byte(p.Line(t)), &got); err != nil {
				t.Fatal(err)
			}
			proxy.Cut()
			testkit.Until(t, "the store forgets its client", func() bool { return s.Stats().Clients() == 0 })
			return got[:len(got)-1], got[len(got)-1] == "end"
		}
		want, whole := trial(0, 0)
		if !whole {
			t.Fatalf("without a cut: %q", want)
		}
		for _, direction := range []string{"up", "down"} {
			cuts := 0
			for n := 1; ; n++ {
				up, down := n, 0
				if direction == "down" {
					up, down = 0, n
				}
				got, whole := trial(up, down)
				if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) || whole && len(got) != len(want) {
					t.Fatalf("cut %s after %d bytes: %q, want the beginning of %q", direction, n, got, want)
				}
				if !whole {
					cuts = n
				} else if n > cuts+30 { // behind the last byte
					break
				}
			}
			t.Logf("%s: the last of the bytes at which a cut is an error is number %d", direction, cuts)
		}
	})
}

// TestServerResetAtRandom resets all connections of counting PyTorch clients again and again. No answer is that to another question.
func TestServerResetAtRandom(t *testing.T) {
	const times = 150
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 0) {
			torch.NotApplicable(t, "aborts when the connection for its callbacks is reset")
		}
		t.Parallel()
		s := serve(t)
		proxy, port := between(t, s)
		defer func() { _ = proxy.Close() }()
		p := torch.Start(t, torchtest.Script{Source: cutScript, Args: []string{strconv.Itoa(times)}})
		p.Send(t, port)
		var cutting sync.WaitGroup
		done, cuts := make(chan struct{}), 0
		cutting.Go(func() {
			for pause := time.Millisecond; ; pause += time.Millisecond { // longer and longer, so that they get on
				select {
				case <-done:
					return
				case <-time.After(pause):
					cuts += proxy.Cut()
				}
			}
		})
		line := p.Line(t)
		close(done)
		cutting.Wait()
		if line != "counted" || cuts == 0 {
			t.Errorf("%s; %d connections were cut", line, cuts)
		}
		proxy.Cut()
		testkit.Until(t, "the store forgets its clients", func() bool { return s.Stats().Clients() == 0 })
	})
}
