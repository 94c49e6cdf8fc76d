// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// clientWait is a client that waits for a key, as a store reports one. A gateway does not know which of several keys are missing: it names
// all.
type clientWait struct {
	Key     string    `json:"key"`
	Waiter  string    `json:"waiter"`
	Since   time.Time `json:"since"`
	Barrier bool      `json:"barrier,omitempty"`
}

const (
	// mostWaits bounds the waits that a gateway reports, mostLooks the requests that it looks at for them, and shownKey how much of a key
	// is shown.
	mostWaits, mostLooks = 1000, 16 * mostWaits
	shownKey             = 512
)

// waits are those of the clients who wait, those whose requests were sent first in front. wall makes a time of a moment of the machine.
func (g *gate) waits(wall func(int64) time.Time) []clientWait {
	all, looks := []clientWait{}, mostLooks
	look := func(a *ask) {
		for ; a != nil && looks > 0 && len(all) < mostWaits; a = a.next {
			looks--
			keys, barrier := a.waitsFor()
			for _, s := range a.shares {
				if looks--; looks <= 0 || len(keys) == 0 {
					break
				}
				if s.ticket.Open() {
					all = append(all, waitsOf(s.ticket, keys, barrier, wall)...)
				}
			}
		}
	}
	for p := g.link.sent.First(); p != nil; p = p.Next() {
		look(p.Of())
	}
	for _, a := range slices.Concat(g.queue, g.held) {
		look(a)
	}
	return all[:min(len(all), mostWaits)]
}

func waitsOf(t *storecore.Ticket, keys []string, barrier bool, wall func(int64) time.Time) (all []clientWait) {
	for _, key := range keys {
		all = append(all, clientWait{Key: key, Waiter: t.Conn.Peer, Since: wall(t.Since), Barrier: barrier})
	}
	return all
}

// maxWaitKeys bounds the keys of one wait that are reported.
const maxWaitKeys = 64

// waitsFor is what an ask waits for; no keys if the store answers it at once.
func (a *ask) waitsFor() (keys []string, barrier bool) {
	if a.kind == arrival {
		return []string{shown([]byte(a.key[:len(a.key)-8]))}, true
	}
	var r wire.Request
	if len(a.body) == 0 || wire.ParseLogged(a.body, &r) != nil {
		return nil, false
	}
	switch r.Op { //nolint:exhaustive // the others do not wait
	case wire.Barrier:
		return []string{shown(r.Key)}, true
	case wire.Get:
		return []string{shown(r.Key)}, false
	case wire.QueuePop:
		if a.lasting() {
			keys = append(keys, shown(r.Key))
		}
	case wire.Wait, wire.Await, wire.MultiGet:
		for list := r.List; !list.Empty() && len(keys) < maxWaitKeys; {
			keys = append(keys, shown(list.Next()))
		}
	}
	return keys, false
}

func shown(key []byte) string {
	if len(key) > shownKey {
		return string(key[:shownKey]) + "..."
	}
	return string(key)
}
