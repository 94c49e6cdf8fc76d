// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// leasePlace is a store that can be started anew, and the launchers that meet there.
type leasePlace struct {
	t      *testing.T
	server *tcpstore.Server
	addr   string
	keys   []*HostLease
}

func newLeasePlace(t *testing.T) *leasePlace {
	t.Helper()
	p := &leasePlace{t: t, addr: "127.0.0.1:0"}
	p.serve()
	t.Cleanup(func() { _ = p.server.Close() })
	return p
}

func (p *leasePlace) serve() {
	p.t.Helper()
	var err error
	if p.server, err = tcpstore.Listen(p.addr); err != nil {
		p.t.Fatal(err)
	}
	p.addr = p.server.Addr().String()
}

// join is a launcher, which is declared dead when it does not run for an hour.
func (p *leasePlace) join() *HostLease {
	p.t.Helper()
	client, err := tcpstore.Dial(p.t.Context(), p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	k := NewHostLease(client, p.addr, "job", time.Hour)
	p.t.Cleanup(k.Close)
	p.keys = append(p.keys, k)
	return k
}

// restart starts the store anew, without anything in it.
func (p *leasePlace) restart() {
	p.t.Helper()
	_ = p.server.Close()
	p.serve()
	for _, k := range p.keys { // the first call of each may only notice that its connection is gone
		_, _ = k.store.Stats(p.t.Context())
	}
}

func (p *leasePlace) claim(k *HostLease, before, mine string) {
	p.t.Helper()
	if won, err := k.Claim(p.t.Context(), before, mine); err != nil || won != mine {
		p.t.Fatalf("%q claims: %q, %v", mine, won, err)
	}
}

// wants checks an error: none, or that another launcher has taken its place, with this text.
func (p *leasePlace) wants(when string, err error, words string) {
	p.t.Helper()
	if words == "" && err != nil || words != "" && (!errors.Is(err, cohort.Replaced) || !strings.Contains(err.Error(), words)) {
		p.t.Errorf("%s: %v, want %q", when, err, words)
	}
}

// TestHolds: a host that was cut off and replaced does not become the host again when the one that replaced it has finished the
// job, but a store that was started anew is told who hosts the job.
func TestHolds(t *testing.T) {
	t.Parallel()
	p := newLeasePlace(t)
	h1, h2 := p.join(), p.join()
	holds := func(when, wrong string) {
		t.Helper()
		p.wants(when, h1.Holds(t.Context(), "h1"), wrong)
	}
	p.claim(h1, "", "h1")
	holds("chosen", "")

	p.restart()
	holds("the store was started anew", "")
	if now, err := h2.Current(t.Context(), true); now != "h1" {
		t.Errorf("the new store says %q, %v", now, err)
	}

	p.claim(h2, "h1", "h2")
	holds("replaced", "the launcher at h2 hosts the rendezvous now")
	p.wants("and is reminded of it", h1.Remind(t.Context(), "h1"), "the launcher at h2 hosts the rendezvous now")
	h2.Forget(t.Context(), "h2")
	holds("the job is done", "another launcher took over the job, which has ended")
	_, err := h1.Current(t.Context(), true)
	p.wants("who took part chooses after the end", err, "has ended without this node")
	if now, err := h2.Current(t.Context(), false); now != "" || err != nil {
		t.Errorf("the store says %q after the job, %v", now, err)
	}
	p.claim(h2, "", "a later job")
	holds("a later job", "the launcher at a later job hosts")
}

// TestSlept: a launcher that did not run for as long as others wait for it may have been replaced, and a store that was started anew then
// knows nothing of it: the launcher does not claim the job. While the store knows it, nothing has happened.
func TestSlept(t *testing.T) {
	t.Parallel()
	const jump = 2 * time.Hour
	p := newLeasePlace(t)
	host, member := p.join(), p.join()
	p.claim(host, "", "h1")
	for _, k := range p.keys {
		k.sleep.now = func() time.Duration { return sinceBoot() + jump }
	}
	p.wants("still known", host.Holds(t.Context(), "h1"), "")
	if now, err := member.Current(t.Context(), true); now != "h1" || err != nil {
		t.Errorf("a member joins again: %q, %v", now, err)
	}
	p.restart()
	_, err := member.Current(t.Context(), true)
	p.wants("a member awake since", err, "")
	p.wants("awake since", host.Holds(t.Context(), "h1"), "")

	for _, k := range p.keys {
		k.sleep.now = func() time.Duration { return sinceBoot() + jump + 5*time.Hour }
	}
	p.restart()
	const words = "this launcher did not run for longer than 1h0m0s, and the store at "
	_, err = member.Current(t.Context(), true)
	p.wants("a member", err, words)
	if now, err := member.Current(t.Context(), false); now != "" || err != nil {
		t.Errorf("one that never took part: %q, %v", now, err)
	}
	p.wants("the host", host.Holds(t.Context(), "h1"), words)
	p.wants("is reminded", host.Remind(t.Context(), "h1"), words)
}

// TestClock: the time that passes is that of a clock which cannot be set, and which goes on.
func TestClock(t *testing.T) {
	t.Parallel()
	before := sinceBoot()
	for limit := time.Now().Add(time.Minute); sinceBoot() == before && time.Now().Before(limit); {
	}
	if sinceBoot() <= before {
		t.Errorf("the clock stands still at %v", before)
	}
	if runtime.GOOS == "linux" && time.Duration(time.Now().UnixNano())-before < 24*time.Hour {
		t.Errorf("%v is the time of day", before)
	}
}

// TestStartedAnew: a store that is started anew while it is asked is asked again, and does not count as a launcher that was replaced.
func TestStartedAnew(t *testing.T) {
	t.Parallel()
	k := newLeasePlace(t).join()
	asked := 0
	anew := func(times int) func(context.Context) ([]byte, error) {
		asked = 0
		return func(context.Context) ([]byte, error) {
			if asked++; asked <= times {
				return nil, cohort.New("tcpstore: get", cohort.Replaced, "the store was started anew")
			}
			return []byte("h1"), nil
		}
	}
	if v, err := k.ask(t.Context(), anew(2)); err != nil || string(v) != "h1" {
		t.Errorf("after two times: %q, %v", v, err)
	}
	if _, err := k.ask(t.Context(), anew(100)); !errors.Is(err, cohort.Unavailable) || errors.Is(err, cohort.Replaced) {
		t.Errorf("again and again: %v", err)
	}
	if asked != 1+maxAnew {
		t.Errorf("it was asked %d times", asked)
	}
}
