// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// newElection returns a launcher's part in the choice of a host, and a job whose launchers choose.
func newElection(t *testing.T, own string) *election {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	client, err := tcpstore.Dial(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		RunID: "job", MinNodes: 9, MaxNodes: 9, JoinTimeout: time.Hour, Silence: time.Minute, NodeRank: -1,
		Ending: map[int]bool{int(syscall.SIGTERM): true},
	}
	j := &Job{cfg: cfg, screen: newScreen(Screen{Out: os.Stderr, Err: os.Stderr}), asked: t.Context()}
	e := &election{job: j, key: nodecoord.NewHostLease(client, server.Addr().String(), "job", time.Minute), own: own}
	t.Cleanup(e.key.Close)
	return e
}

// TestHostEndedBySignal: a host tells the others that it leaves before it ends its own connection to itself: whichever of the two the host
// sees first decides whether the job goes on.
func TestHostEndedBySignal(t *testing.T) {
	t.Parallel()
	e := newElection(t, "127.0.0.1")
	h, addr, err := e.choose("")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	conn, err := e.job.connect(addr, time.Minute, false, e.job.secured(""))
	if err != nil {
		t.Fatal(err)
	}
	other := newMember(e.job, conn, addr)
	defer other.close()
	other.send(nodecoord.Message{Join: &nodecoord.Join{RunID: "job", Roles: []launchcore.Role{{Name: "default", Workers: 1}}}})
	<-other.incoming // it waits for more
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	e.job.signals = signals
	if _, err := e.attend(h, addr); err != nil {
		t.Fatal(err)
	}
	h.Close()
	for range other.incoming {
		continue
	}
	if want := "was ended by SIGTERM"; other.left != want {
		t.Errorf("the other was told %q, want %q", other.left, want)
	}
}

// TestHostThatRefuses: a host is not declared lost because of one connection that is refused, and not at all by a node that would ask its
// own machine for it.
func TestHostThatRefuses(t *testing.T) {
	t.Parallel()
	addr := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
	began := time.Now()
	if _, err := newElection(t, "127.0.0.1").attend(nil, addr); !errors.Is(err, errHostLost) || time.Since(began) < time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	_, err := newElection(t, "192.0.2.1").attend(nil, addr)
	if errors.Is(err, errHostLost) || err == nil ||
		!strings.Contains(err.Error(), "known as "+addr+", which only its own machine reaches: start it with --local-addr") {
		t.Errorf("from another machine: %v", err)
	}
}

// TestRulesOfAnOlderHost: a host that tells no rules changes none.
func TestRulesOfAnOlderHost(t *testing.T) {
	t.Parallel()
	e := newElection(t, "127.0.0.1")
	m := &member{job: e.job}
	m.adopt(nodecoord.Rules{})
	if got := e.job.cfg.rules(); got != (nodecoord.Rules{MinNodes: 9, MaxNodes: 9}) {
		t.Errorf("without rules: %+v", got)
	}
	want := nodecoord.Rules{MinNodes: 1, MaxNodes: 2, MaxRestarts: 3}
	if m.adopt(want); e.job.cfg.rules() != want {
		t.Errorf("%+v, want %+v", e.job.cfg.rules(), want)
	}
}
