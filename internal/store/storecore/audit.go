// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import "github.com/cohort-dist/cohort/internal/util/invariants"

// checkedConns bounds the machines that are checked: it takes a look at every connection and claim.
const checkedConns = 64

// audit compares the machine's sums with what they are sums of.
func (m *Machine) audit() {
	var in, out, waiting int64
	var granted int64
	waits, users, active := 0, 0, 0
	for i, c := range m.conns.all {
		invariants.Check(c.place.pos == i && !c.closed, "a connection is open and stands at its place")
		in, out, waiting = in+int64(c.in.counted), out+int64(c.out.counted), waiting+c.stakes.bytes
		waits += c.stakes.nWaits
		if granted += int64(c.allowance.granted); c.allowance.granted > 0 && !c.allowance.starved {
			active++
		}
		if c.standing.user {
			users++
		}
		invariants.Check(!c.standing.user || !c.standing.stale, "who knows another store does not use this one")
	}
	for _, claim := range m.claims.byName {
		if claim.holder == nil {
			waiting += claim.cost
		}
	}
	invariants.Check(m.admission.in == in, "the requests that are not all there are counted")
	invariants.Check(m.admission.granted == granted && m.admission.active == active, "the room that was granted is counted")
	invariants.Check(m.admission.out == out, "the replies that are not sent are counted")
	invariants.Check(m.admission.waits == waiting, "waits, watches and claims are counted")
	invariants.Check(m.waits.n == waits && m.run.users == users, "waits and users are counted")
	invariants.Check((m.waits.n == 0) == (m.waits.all.First() == nil), "the list of all waits holds them")
	invariants.Check(m.table.Len() >= 0 && m.table.Bytes() >= 0 && m.queues.bytes >= 0, "no sum is negative")
}
