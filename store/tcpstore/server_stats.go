// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"encoding/json"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// Stats says what a [Server] does.
type Stats struct {
	// Addr is where it listens.
	Addr string `json:"addr"`
	// Started is when it began, Time when these numbers were taken.
	Started time.Time `json:"started"`
	Time    time.Time `json:"time"`
	// Connections are those that are open, by dialect: "legacy" (PyTorch 1.13), "v" (PyTorch 2.x), "native" (Go), and
	// "silent" for those that have sent nothing yet, such as the second connection of each 1.13 client.
	Connections map[string]int `json:"connections"`
	// Accepted counts all connections ever, Cut those that the server ended for a reason, which is in the log.
	Accepted uint64 `json:"accepted"`
	Cut      uint64 `json:"cut"`
	// Ops counts requests by operation, named as in PyTorch: "set", "get", "add", "wait" and so on.
	Ops map[string]uint64 `json:"ops"`
	// Keys is the number of keys and Queues that of queues with items. Bytes is the memory of keys and values, Memory
	// all that counts against Limits.Memory.
	Keys   int   `json:"keys"`
	Queues int   `json:"queues"`
	Bytes  int64 `json:"bytes"`
	Memory int64 `json:"memory"`
	// Workers is the number of processes that joined, as PyTorch counts them.
	Workers int64 `json:"workers"`
	// Waiting is the number of requests that wait. Waits says which client waits for which key, the longest first: a row for
	// each key that is missing, a thousand rows at most, and fewer when their texts are long.
	Waiting int    `json:"waiting"`
	Waits   []Wait `json:"waits"`
	// Polls are clients that ask for a key again and again, and have had the same answer each time; at most 256.
	Polls []Wait `json:"polls,omitempty"`
	// Identity is that of the present contents, see [Identity]. LeftBehind is the number of keys and queues that were there
	// when the last client of an earlier run left, at LeftAt; both are zero in a new or cleared store. A second run on them
	// is likely to fail: [Server.Clear] removes them.
	Identity   string    `json:"identity"`
	LeftBehind int       `json:"left_behind"`
	LeftAt     time.Time `json:"left_at,omitzero"`
	// Claims are what Go clients say they are, by name ("rank/2"), see [Client.Claim]; at most a thousand.
	Claims map[string]Claim `json:"claims,omitempty"`
	// Data describes the folder of a server with one, see [WithDataDir].
	Data *DataStats `json:"data,omitempty"`
}

// Wait is a client that waits for a key.
type Wait struct {
	// Key is the key as it is on the wire: a user's key has "/" in front. Of a very long one it is the beginning.
	Key string `json:"key"`
	// Waiter is the client's address.
	Waiter string `json:"waiter"`
	// Name says who the client is, if it has claimed one (see [Client.Claim]): "rank/2: nodea pid 7".
	Name string `json:"name,omitempty"`
	// Since is when the wait began.
	Since time.Time `json:"since"`
	// Barrier says that the client waits for others at a barrier of that key, not for the key itself.
	Barrier bool `json:"barrier,omitempty"`
	// Asks is how often a client has asked that does not wait, see [Stats.Polls], and Answer what it got, if that is a number.
	Asks   uint64 `json:"asks,omitempty"`
	Answer string `json:"answer,omitempty"`
}

// Clients returns the number of open connections.
func (s Stats) Clients() int {
	n := 0
	for _, c := range s.Connections {
		n += c
	}
	return n
}

// Requests returns the number of requests of all kinds.
func (s Stats) Requests() uint64 {
	n := uint64(0)
	for _, c := range s.Ops {
		n += c
	}
	return n
}

// Stats returns the current numbers, or the last ones after Close.
func (s *Server) Stats() Stats {
	var stats Stats
	if !s.serving.Do(func(c *storeserve.Core) { stats = s.stats(c) }) {
		<-s.closed
		return s.final.stats
	}
	return stats
}

// maxWaitRows bounds the list in Stats: with thousands of waiters the first ones say enough.
const maxWaitRows = 1000

// maxClaimRows bounds the claims in Stats; Server.Claims returns all of them.
const maxClaimRows = 1000

func (s *Server) stats(c *storeserve.Core) Stats {
	snap, wall := c.Machine.Snapshot(maxWaitRows), c.Wall()
	st := Stats{
		Addr: s.addr.String(), Started: s.started, Time: time.Now(),
		Connections: map[string]int{}, Accepted: snap.Opened, Cut: snap.Cuts, Ops: map[string]uint64{},
		Keys: snap.Keys, Queues: snap.Queues, Bytes: snap.Data, Memory: snap.Memory, Waiting: snap.NWaits, Workers: snap.Workers,
		Waits: make([]Wait, 0, len(snap.Waiters)), Identity: Identity(c.Machine.Identity()).String(), LeftBehind: snap.Left,
	}
	st.Data = dataStats(s.dataDir, s.journal)
	if snap.Left > 0 {
		st.LeftAt = wall(snap.LeftAt)
	}
	for d, n := range snap.Conns {
		st.Connections[wire.Dialect(d).String()] = n
	}
	for op, n := range snap.Ops {
		if n > 0 {
			st.Ops[wire.Op(op).String()] = n
		}
	}
	for name, claim := range c.Machine.ShownClaims(maxClaimRows) {
		if st.Claims == nil {
			st.Claims = map[string]Claim{}
		}
		st.Claims[name] = Claim(claim)
	}
	for _, w := range snap.Waiters {
		st.Waits = append(st.Waits, Wait{Key: w.Key, Waiter: w.Peer, Name: w.Name, Since: wall(w.Since), Barrier: w.Barrier})
	}
	for _, w := range snap.Pollers {
		st.Polls = append(st.Polls, Wait{Key: w.Key, Waiter: w.Peer, Name: w.Name, Since: wall(w.Since), Asks: w.Asks, Answer: w.Answer})
	}
	return st
}

// statsJSON is the answer to STATS.
func (s *Server) statsJSON(c *storeserve.Core) []byte {
	b, err := json.Marshal(s.stats(c))
	if err != nil {
		return []byte("{}") // not reached: everything in Stats can be marshalled
	}
	return b
}
