// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

func TestChooseAddress(t *testing.T) {
	ctx := within(t, soon)
	for _, c := range []struct{ device, store, ip, reason string }{
		{"127.0.0.5", "", "127.0.0.5", "bind address"},
		{"::1", "", "::1", "bind address"},
		{"lo", "", "127.0.0.1", "interface lo"},
		{"", "127.0.0.1:29500", "127.0.0.1", "route towards the store"},
		{"", "[::1]:29500", "::1", "route towards the store"},
	} {
		got, err := ChooseAddress(ctx, c.device, c.store)
		if err != nil || got.IP.String() != c.ip || !strings.Contains(got.Reason, c.reason) {
			t.Errorf("device %q, store %q: %+v, %v", c.device, c.store, got, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := ChooseAddress(ended, "", "127.0.0.1:29500"); cohort.CodeOf(err) != cohort.Canceled {
		t.Errorf("after the end of the context: %v", err)
	}
	if got := DevicesFromEnv(func(string) string { return "lo, eth0,,lo" }); !slices.Equal(got, []string{"lo", "eth0", "lo"}) {
		t.Errorf("devices %v", got)
	}
	if got := DevicesFromEnv(func(string) string { return "" }); got != nil {
		t.Errorf("devices %v", got)
	}
}

// late is a context whose deadline has passed a moment before it ends, as that of any context may.
type late struct{ context.Context } //nolint:containedctx // it is that context

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

// TestChooseAddressLate: a deadline that has passed is not reported as a missing route.
func TestChooseAddressLate(t *testing.T) {
	if got, err := ChooseAddress(late{t.Context()}, "", "127.0.0.1:29500"); err != nil || !got.IP.IsLoopback() {
		t.Errorf("%v, %v", got, err)
	}
}

// TestAddressWithoutStoreAddress: ranks that meet in a file publish an address that other hosts can reach, where there is one.
func TestAddressWithoutStoreAddress(t *testing.T) {
	lookup := func(answers map[string][]string) func(context.Context, string, string) ([]netip.Addr, error) {
		return func(_ context.Context, network, host string) ([]netip.Addr, error) {
			var all []netip.Addr
			for _, a := range answers[network] {
				all = append(all, netip.MustParseAddr(a))
			}
			if len(all) == 0 || host != "node7" {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			return all, nil
		}
	}
	for want, answers := range map[string]map[string][]string{
		"127.0.0.9": {"ip4": {"192.0.2.1", "127.0.0.9"}}, // the first is another host's: it cannot be bound
		"127.0.0.3": {"ip4": {"127.0.0.3"}, "ip6": {"::1"}},
		"127.0.0.1": {},
	} {
		if got := hostAddress(t.Context(), "node7", lookup(answers)); got.IP.String() != want || !strings.Contains(got.Reason, "node7") {
			t.Errorf("%v: %v, want %s", answers, got, want)
		}
	}
	// And for real: what the name of this host resolves to.
	got, err := ChooseAddress(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip4", hostName())
	if err == nil && !slices.Contains(ips, got.IP) && !got.IP.IsLoopback() || !strings.Contains(got.Reason, hostName()) {
		t.Errorf("%v, the name resolves to %v", got, ips)
	}
}

// starved is a listener of a process that has no descriptors left.
type starved struct{ net.Listener }

func (starved) Accept() (net.Conn, error) {
	return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
}
func (starved) Close() error { return nil }

// TestAcceptProblemOfAListener: a rank that cannot take connections reports that, instead of only naming those that it waits for.
func TestAcceptProblemOfAListener(t *testing.T) {
	d := newDevice(&Config{Rank: 0, Size: 2, Logger: slog.New(slog.DiscardHandler)}, 0, "")
	d.startListener(starved{})
	testkit.Until(t, "an attempt to accept", func() bool { return d.listener.acceptProblem() != "" })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := d.missing(ctx, d.pairs[1:])
	if !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), "cannot take connections: accept: too many open files") {
		t.Errorf("the error is %v", err)
	}
	d.end()
	d.wg.Wait()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	d.listener.admit(ours)
	if text := d.listener.acceptProblem(); text != "" {
		t.Errorf("it has taken one, and reports %q", text)
	}
	_ = ours.Close()
	if text := (*listener)(nil).acceptProblem(); text != "" {
		t.Errorf("without a listener: %q", text)
	}
}
