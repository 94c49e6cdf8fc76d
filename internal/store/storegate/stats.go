// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"encoding/json"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// State is what a gateway says of itself.
type State struct {
	// Gateway is where clients connect to, Upstreams where the store may be.
	Gateway   string   `json:"gateway"`
	Upstreams []string `json:"upstreams"`
	// Upstream is the address that was reached last. Connected tells whether it still is, Since when that changed, and Lost why it is not.
	Upstream  string    `json:"upstream,omitempty"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	Lost      string    `json:"lost,omitempty"`
	// Times is how often the store was reached.
	Times int `json:"times"`
	// Clients are the open connections. Requests are what they have asked, Asked the requests to the store that came of that, Repeated
	// those of them that were sent again, UnderWay those without an answer, and Waiting those that are not sent yet.
	Clients  int    `json:"clients"`
	Requests uint64 `json:"requests"`
	Asked    uint64 `json:"asked"`
	Repeated uint64 `json:"repeated"`
	UnderWay int    `json:"under_way"`
	Waiting  int    `json:"waiting_to_be_sent"`
	// LostSessions counts how often the store did not know the gateway's session any more.
	LostSessions uint64 `json:"lost_sessions"`
}

// State returns the state at this moment.
func (w *Gateway) State() (s State) {
	w.serving.Do(func(c *storeserve.Core) { s = w.state(c) })
	return s
}

func (w *Gateway) state(c *storeserve.Core) State {
	counts := w.gate.Counts()
	s := State{
		Gateway: w.addr.String(), Upstreams: w.options.Upstreams, Connected: w.gate.Ready(), Clients: c.Machine.Conns(),
		Requests: counts.Requests, Asked: counts.Asked, Repeated: counts.Repeated, LostSessions: counts.Lost,
	}
	s.UnderWay, s.Waiting = w.gate.UnderWay()
	u := &w.upstream
	u.mu.Lock()
	defer u.mu.Unlock()
	s.Upstream, s.Since, s.Lost, s.Times = u.mu.addr, u.mu.since, u.mu.lost, u.mu.times
	return s
}

// statsJSON answers STATS: the members of a server's statistics that a gateway has, and its own state.
func (w *Gateway) statsJSON(c *storeserve.Core) []byte {
	snapshot := c.Machine.Snapshot(0)
	conns := map[string]int{}
	for d, n := range snapshot.Conns {
		if n > 0 {
			conns[wire.Dialect(d).String()] = n
		}
	}
	waits := w.gate.waits(c.Wall())
	text, err := json.Marshal(map[string]any{
		"addr": w.addr.String(), "started": w.started, "time": time.Now(), "connections": conns, "accepted": snapshot.Opened,
		"cut": snapshot.Cuts, "memory": snapshot.Memory, "gateway": w.state(c), "waiting": len(waits), "waits": waits,
	})
	if err != nil {
		return []byte("{}")
	}
	return text
}
