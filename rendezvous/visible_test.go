// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestTheHostWaitsInTheStore: a look at the store shows which ranks rank 0 waits for, and rank 0 asks for nothing meanwhile.
func TestTheHostWaitsInTheStore(t *testing.T) {
	port := testkit.FreePort(t)
	url := func(rank int) string { return fmt.Sprintf("tcp://127.0.0.1:%d?world_size=3&rank=%d", port, rank) }
	members := make(chan *rendezvous.Member, 3)
	start := func(rank int) {
		go func() {
			m, err := rendezvous.Join(t.Context(), url(rank), noEnv())
			if err != nil {
				t.Error(err)
			}
			members <- m
		}()
	}
	start(0)
	start(1)
	look, err := tcpstore.Dial(t.Context(), fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	stats := func() tcpstore.Stats {
		s, err := look.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	waiting := func() tcpstore.Stats {
		for deadline := time.Now().Add(20 * time.Second); ; {
			s := stats()
			for _, w := range s.Waits {
				if strings.HasPrefix(w.Name, "rank/0: ") && w.Key == "/rank 2, which has not joined" {
					return s
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("no client is seen to wait for rank 2: %+v", s.Waits)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	before := waiting()
	time.Sleep(500 * time.Millisecond)
	after := stats()
	if asked := after.Ops["get"] + after.Ops["check"] - before.Ops["get"] - before.Ops["check"]; asked > 4 {
		t.Errorf("%d questions in half a second", asked)
	}
	start(2)
	for range 3 {
		if m := <-members; m != nil {
			defer m.Close()
		}
	}
}

// TestUsedStoreIsRecognised: a second run on a store that holds the first one's keys is told so in one sentence.
func TestUsedStoreIsRecognised(t *testing.T) {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	env := func(attempt string) rendezvous.Option {
		return rendezvous.WithEnv(func(name string) (string, bool) {
			value, ok := map[string]string{
				rendezvous.EnvUseAgentStore: "True", rendezvous.EnvRestartCount: attempt,
			}[name]
			return value, ok && value != ""
		})
	}
	run := func(attempt string) string {
		var log testkit.Log
		m, err := rendezvous.Join(t.Context(), fmt.Sprintf("tcp://%s?rank=0&world_size=1", server.Addr()), env(attempt),
			rendezvous.WithLogger(log.Logger(slog.LevelWarn)))
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			if err := m.Store().Set(t.Context(), key, nil); err != nil {
				t.Error(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(20 * time.Second); server.Stats().Clients() > 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		return log.String()
	}
	if said := run(""); said != "" {
		t.Errorf("about a new store: %s", said)
	}
	if said := run(""); strings.Count(said, "\n") != 1 || !strings.Contains(said, "3 keys of an earlier run") ||
		!strings.Contains(said, "cohort store clear") {
		t.Errorf("about a used store: %s", said)
	}
	if said := run("1"); said != "" {
		t.Errorf("about a later attempt: %s", said)
	}
	server.Clear()
	if said := run("0"); said != "" {
		t.Errorf("about a cleared store: %s", said)
	}
}
