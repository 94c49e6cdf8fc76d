// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/corewait"
)

// TestAllOfAHostHearWhereARankRuns: a rank exchanges messages with a few others only, and all of them decide by where all are.
func TestAllOfAHostHearWhereARankRuns(t *testing.T) {
	meshes := connectWith(t, 3, nil, func(c *Config) {
		c.Shared, c.Local, c.Heartbeat = false, []bool{true, true, true}, -1
	})
	m := meshes[0]
	m.place(corewait.Now())
	m.mu.Lock()
	core := m.mu.cores[0]
	m.mu.Unlock()
	if core == 0 {
		t.Fatal("the rank does not know where it runs itself")
	}
	for _, other := range meshes[1:] {
		if got := heardFrom(t, other, 0); got != core {
			t.Errorf("rank %d takes rank 0 to be at %d, it is at %d", other.rank, got, core)
		}
	}
}

// heardFrom returns where a rank is, as a mesh has heard.
func heardFrom(t *testing.T, m *Mesh, rank int) uint16 {
	t.Helper()
	m.mu.Lock() // the keeper has seen what came before, and nothing that comes later
	defer m.mu.Unlock()
	for begun := time.Now(); m.mu.cores[rank] == 0; {
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("rank %d has not heard where rank %d runs", m.rank, rank)
		}
		if n, errno := epollSleep(m.ep, m.events[:], !m.cfg.Shared); errno == 0 {
			m.handle(n)
		}
	}
	return m.mu.cores[rank]
}
