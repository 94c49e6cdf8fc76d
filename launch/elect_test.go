// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestHolds: a host that was cut off and replaced does not become the host again when the one that replaced it has finished the
// job, but a store that was started anew is told who hosts the job.
func TestHolds(t *testing.T) {
	t.Parallel()
	serve := func(addr string) *tcpstore.Server {
		s, err := tcpstore.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	server := serve("127.0.0.1:0")
	addr := server.Addr().String()
	join := func() *election {
		client, err := tcpstore.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		return &election{job: &job{cfg: Config{Endpoint: addr}, asked: t.Context()}, store: client, key: "host"}
	}
	h1, h2 := join(), join()
	claim := func(e *election, before, mine string) {
		t.Helper()
		if won, err := e.claim(t.Context(), before, mine); err != nil || won != mine {
			t.Fatalf("%q claims: %q, %v", mine, won, err)
		}
	}
	holds := func(when string, wrong ...string) {
		t.Helper()
		switch err := h1.holds(t.Context(), "h1"); {
		case len(wrong) == 0 && err != nil:
			t.Errorf("%s: %v", when, err)
		case len(wrong) > 0 && (!errors.Is(err, dist.Replaced) || !strings.Contains(err.Error(), wrong[0])):
			t.Errorf("%s: %v, want %q", when, err, wrong[0])
		}
	}
	claim(h1, "", "h1")
	holds("chosen")

	_ = server.Close()
	serve(addr)
	for _, e := range []*election{h1, h2} { // the first call of each may only notice that its connection is gone
		_, _ = e.store.Stats(t.Context())
	}
	holds("the store was started anew")
	if now, _, err := h2.current(t.Context()); now != "h1" {
		t.Errorf("the new store says %q, %v", now, err)
	}

	claim(h2, "h1", "h2")
	holds("replaced", "the launcher at h2 hosts the rendezvous now")
	h2.forget("h2")
	holds("the job is done", "another launcher took over the job, which has ended")
	if now, _, err := h2.current(t.Context()); now != "" {
		t.Errorf("the store says %q after the job, %v", now, err)
	}
	h1.job.seen.attempt = 1
	if _, _, err := h1.choose("h2"); !errors.Is(err, dist.Replaced) || !strings.Contains(err.Error(), "has ended without this node") {
		t.Errorf("a node that took part chooses after the end: %v", err)
	}
	claim(h2, "", "a later job")
	holds("a later job", "the launcher at a later job hosts")
}
