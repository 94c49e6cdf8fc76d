// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import "github.com/cohort-dist/cohort/internal/invariants"

// checkedConns bounds the machines that are checked: it takes a look at every connection and claim.
const checkedConns = 64

// audit compares the machine's sums with what they are sums of.
func (m *Machine) audit() {
	var in, out, waiting int64
	var granted int64
	waits, users, active := 0, 0, 0
	for i, c := range m.all {
		invariants.Check(c.pos == i && !c.closed, "a connection is open and stands at its place")
		in, out, waiting = in+int64(c.countedIn), out+int64(c.countedOut), waiting+c.waitBytes
		waits += c.nWaits
		if granted += int64(c.granted); c.granted > 0 && !c.starved {
			active++
		}
		if c.user {
			users++
		}
		invariants.Check(!c.user || !c.stale, "who knows another store does not use this one")
	}
	for _, claim := range m.claims.byName {
		if claim.holder == nil {
			waiting += claim.cost
		}
	}
	invariants.Check(m.inBytes == in, "the requests that are not all there are counted")
	invariants.Check(m.senders.granted == granted && m.senders.active == active, "the room that was granted is counted")
	invariants.Check(m.outBytes == out, "the replies that are not sent are counted")
	invariants.Check(m.waitBytes == waiting, "waits, watches and claims are counted")
	invariants.Check(m.waits == waits && m.users == users, "waits and users are counted")
	invariants.Check((m.waits == 0) == (m.allWaits.First() == nil), "the list of all waits holds them")
	invariants.Check(m.table.count >= 0 && m.table.bytes >= 0 && m.queueBytes >= 0, "no sum is negative")
}
