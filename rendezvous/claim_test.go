// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// agentStore starts a store and returns the environment of a rank that uses it.
func agentStore(t *testing.T, rank string) (*tcpstore.Server, map[string]string) {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server, map[string]string{
		"RANK": rank, "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(server.Port()),
		"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
	}
}

// otherProcess claims a rank as a process on another machine would.
func otherProcess(t *testing.T, server *tcpstore.Server, name, text string) *tcpstore.Client {
	t.Helper()
	c, err := tcpstore.Dial(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if got, err := c.Claim(t.Context(), name, "", text); got != text || err != nil {
		t.Fatalf("claim: %q, %v", got, err)
	}
	return c
}

func clientOf(t *testing.T, m *rendezvous.Member) *tcpstore.Client {
	t.Helper()
	c, ok := m.Store().(*tcpstore.Client)
	if !ok {
		t.Fatalf("the store is a %T", m.Store())
	}
	return c
}

func workers(t *testing.T, m *rendezvous.Member) int64 {
	t.Helper()
	n, err := clientOf(t, m).Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestRendezvousRankJoinedTwice(t *testing.T) {
	server, variables := agentStore(t, "2")
	otherProcess(t, server, "attempt/0/rank/2", "hosta pid 1 #7.7, joined")
	_, err := rendezvous.Join(t.Context(), "env://", env(variables))
	var e *cohort.Error
	if !errors.As(err, &e) || e.Code != cohort.AlreadyExists || e.Rank != 2 {
		t.Fatalf("got %v", err)
	}
	host, _ := os.Hostname()
	if words := fmt.Sprintf("rank 2 joined twice: hosta pid 1, %s pid %d", host, os.Getpid()); !strings.Contains(err.Error(), words) {
		t.Errorf("the error lacks %q: %v", words, err)
	}
	if n := server.Stats().Keys; n != 0 {
		t.Errorf("the second rank 2 was counted: %d keys", n)
	}
	// Another attempt has ranks of its own.
	variables["TORCHELASTIC_RESTART_COUNT"] = "1"
	join(t, "env://", env(variables))
}

// A rank whose process died and was started again is one rank, not two.
func TestRendezvousRestartedRankCountsOnce(t *testing.T) {
	server, variables := agentStore(t, "2")
	first := otherProcess(t, server, "attempt/0/rank/2", "hosta pid 1 #7.7")
	if _, err := first.JoinWorker(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Claim(t.Context(), "attempt/0/rank/2", "hosta pid 1 #7.7", "hosta pid 1 #7.7, joined"); err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	waitReleased(t, server, "attempt/0/rank/2")
	m := join(t, "env://", env(variables))
	if n := workers(t, m); n != 1 {
		t.Errorf("%d workers, want 1", n)
	}

	// One that died before it was counted is counted now.
	otherCrash := otherProcess(t, server, "attempt/0/rank/3", "hostb pid 1 #7.7")
	_ = otherCrash.Close()
	waitReleased(t, server, "attempt/0/rank/3")
	variables["RANK"] = "3"
	m = join(t, "env://", env(variables))
	if n := workers(t, m); n != 2 {
		t.Errorf("%d workers, want 2", n)
	}

	// A second join of one process, as for an RPC agent beside a group, counts as in PyTorch.
	again := join(t, "env://", env(variables))
	if n := workers(t, again); n != 3 {
		t.Errorf("%d workers, want 3", n)
	}
}

func waitReleased(t *testing.T, server *tcpstore.Server, name string) {
	t.Helper()
	testkit.Until(t, "the claim of a closed connection is let go", func() bool { return !server.Claims()[name].Held })
}

func TestRendezvousClaimsAreNoKeys(t *testing.T) {
	server, variables := agentStore(t, "0")
	m := join(t, "env://", env(variables))
	if n, err := m.Store().NumKeys(t.Context()); n != 1 || err != nil {
		t.Errorf("%d keys, %v; want init/ alone, as in PyTorch", n, err)
	}
	keys, err := clientOf(t, m).ListKeys(t.Context())
	if err != nil || len(keys) != 0 {
		t.Errorf("keys %q, %v", keys, err)
	}
	claims := server.Claims()
	if c := claims["attempt/0/rank/0"]; len(claims) != 2 || !c.Held || !strings.HasSuffix(c.Text, ", joined") {
		t.Errorf("claims %v", claims)
	}
}

// TestRendezvousTellsOfAnotherWorldSize: with different sizes the ranks would wait for each other until their timeout, without a word.
func TestRendezvousTellsOfAnotherWorldSize(t *testing.T) {
	server, variables := agentStore(t, "2")
	other := otherProcess(t, server, "attempt/0/world", "3: rank 1 on hosta pid 1 #7.7")
	told := func() string {
		t.Helper()
		var log testkit.Log
		m := join(t, "env://", env(variables), rendezvous.WithLogger(log.Logger(slog.LevelWarn)))
		_ = m.Close()
		return log.String()
	}
	want := "this process is rank 2 of a world of 4, but rank 1 on hosta pid 1 has joined a world of 3 at 127.0.0.1:" +
		variables["MASTER_PORT"]
	if log := told(); !strings.Contains(log, want) {
		t.Errorf("the log lacks %q: %s", want, log)
	}
	variables["WORLD_SIZE"] = "3"
	if log := told(); log != "" {
		t.Errorf("of the same size: %s", log)
	}
	// Another attempt, and what is left of a process that is gone, say nothing about this world.
	variables["WORLD_SIZE"] = "4"
	variables["TORCHELASTIC_RESTART_COUNT"] = "1"
	if log := told(); log != "" {
		t.Errorf("in another attempt: %s", log)
	}
	variables["TORCHELASTIC_RESTART_COUNT"] = "0"
	_ = other.Close()
	waitReleased(t, server, "attempt/0/world")
	if log := told(); log != "" {
		t.Errorf("after the other has gone: %s", log)
	}
}

// TestRendezvousOfOneProcessInTwoWorlds: a process may be in a group and in a larger RPC world.
func TestRendezvousOfOneProcessInTwoWorlds(t *testing.T) {
	_, variables := agentStore(t, "1")
	var log testkit.Log
	logger := rendezvous.WithLogger(log.Logger(slog.LevelWarn))
	join(t, "env://", env(variables), logger)
	variables["WORLD_SIZE"] = "6"
	join(t, "env://", env(variables), logger)
	if log.String() != "" {
		t.Error(log.String())
	}
}
