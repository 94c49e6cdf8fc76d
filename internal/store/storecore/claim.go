// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"math"
	"strings"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// A claim is a name that one connection holds, with a text that says who it is: how ranks of a world make sure that each
// of them is there only once. Claims are no keys: they are neither counted nor listed. A native client makes one by
// COMPARE_SET on the reserved key wire.ClaimPrefix + name:
//
//   - of a name that no client ever claimed, with nothing expected;
//   - of a name whose holder's connection has ended, with that holder's text expected;
//   - of a name of its own, with its present text expected, to change that.
//
// The answer is the text that the name has afterwards, as with any COMPARE_SET. A claim whose holder is gone is
// remembered, so that who comes next knows that the name was taken before: the last ones of each host.
type claim struct {
	name   string
	holder *Conn // nil when it is gone
	text   []byte
	cost   int64
	host   string // of the last holder
	turn   uint64 // among those of its host that are gone
}

type claims struct {
	byName    map[string]*claim
	released  map[string]*hostReleases // by host
	nReleased int
}

// hostReleases are the claims that clients of one host left behind, the oldest first. Some may have been taken again.
type hostReleases struct {
	list []releasedClaim
	live int // of them still without a holder
}

type releasedClaim struct {
	claim *claim
	turn  uint64
}

const (
	// maxClaims is the number of names that one connection may hold: a rank holds one or two.
	maxClaims = 64
	// maxHostReleases is how many claims without a holder are remembered of one host.
	maxHostReleases = 1 << 12
	// maxReleasedClaims is how many are remembered of all hosts. When there are more, the host with the most loses.
	maxReleasedClaims = 1 << 16
	maxClaimName      = 256
	maxClaimText      = 1 << 10
	claimCost         = 256
)

// isClaim reports whether key names a claim.
func isClaim(key []byte) bool {
	return len(key) != 0 && key[0] == wire.ClaimPrefix[0] && bytes.HasPrefix(key, []byte(wire.ClaimPrefix))
}

func (m *Machine) claim(c *Conn, r *wire.Request) error {
	const op = "tcpstore: claim"
	name := r.Key[len(wire.ClaimPrefix):]
	switch {
	case c.dialect != wire.Native:
		return reserved(r.Key)
	case len(name) == 0 || len(name) > maxClaimName:
		return cohort.Newf(op, cohort.InvalidArgument, "a name of %d bytes, want 1 to %d", len(name), maxClaimName)
	case len(r.Value) == 0 || len(r.Value) > maxClaimText:
		return cohort.Newf(op, cohort.InvalidArgument, "a text of %d bytes, want 1 to %d", len(r.Value), maxClaimText)
	}
	have := m.claims.byName[string(name)]
	switch {
	case have == nil && len(r.Expected) != 0:
		m.replyBytes(c, r.ID, r.Expected) // as for a key that does not exist
		return nil
	case have != nil && (have.holder != nil && have.holder != c || !bytes.Equal(have.text, r.Expected)):
		m.replyBytes(c, r.ID, have.text)
		return nil
	case (have == nil || have.holder != c) && len(c.holdings.claims) >= maxClaims:
		return cohort.Newf(op, cohort.Exhausted, "this client holds %d names, which is the most that one may", len(c.holdings.claims))
	}
	cost := int64(claimCost + 2*len(name) + len(r.Value))
	if err := m.roomToWait(c, cost); err != nil {
		return err
	}
	if have == nil {
		have = &claim{name: string(name)}
		if m.claims.byName == nil {
			m.claims.byName, m.claims.released = map[string]*claim{}, map[string]*hostReleases{}
		}
		m.claims.byName[have.name] = have
	}
	if have.holder == nil {
		m.reclaim(have)
		have.holder, have.host = c, hostOf(c.Peer)
		c.holdings.claims = append(c.holdings.claims, have.name)
		c.holdings.bytes += have.cost // which the machine has counted all the time
	}
	m.chargeHoldings(c, cost-have.cost)
	have.text, have.cost = append(have.text[:0], r.Value...), cost
	m.replyBytes(c, r.ID, r.Value)
	return nil
}

// hostOf is the host of an address "host:port".
func hostOf(peer string) string {
	if i := strings.LastIndexByte(peer, ':'); i >= 0 {
		return peer[:i]
	}
	return peer
}

// unclaim lets go of what a connection that ends holds. What one host leaves behind is bounded: its oldest are forgotten.
func (m *Machine) unclaim(c *Conn) {
	for _, name := range c.holdings.claims {
		have := m.claims.byName[name]
		have.holder = nil
		c.holdings.bytes -= have.cost
		b := m.claims.released[have.host]
		if b == nil {
			b = &hostReleases{}
			m.claims.released[have.host] = b
		}
		have.turn++
		b.list = append(b.list, releasedClaim{have, have.turn})
		b.live++
		if m.claims.nReleased++; m.claims.nReleased > maxReleasedClaims {
			for _, other := range m.claims.released {
				m.turn.work++
				if other.live > b.live {
					b = other
				}
			}
			m.dropReleased(b, b.live-1)
			continue
		}
		m.dropReleased(b, maxHostReleases)
	}
	c.holdings.claims = nil
}

// dropReleased drops the oldest of a host's claims until there are no more than most.
func (m *Machine) dropReleased(b *hostReleases, most int) {
	for len(b.list) > 0 && (b.live > most || len(b.list) > 2*maxHostReleases || b.list[0].stale()) {
		first := b.list[0]
		b.list[0] = releasedClaim{}
		b.list = b.list[1:]
		if !first.stale() {
			b.live--
			m.claims.nReleased--
			delete(m.claims.byName, first.claim.name)
			m.admission.waits -= first.claim.cost
		}
	}
}

// stale reports whether the claim was taken again since.
func (g releasedClaim) stale() bool { return g.claim.holder != nil || g.claim.turn != g.turn }

// reclaim notes that a claim without a holder has one again.
func (m *Machine) reclaim(have *claim) {
	if b := m.claims.released[have.host]; b != nil && have.turn > 0 {
		m.claims.nReleased--
		if b.live--; b.live == 0 {
			delete(m.claims.released, have.host)
		}
	}
}

// name says who a connection is, as far as its claims show.
func (m *Machine) name(c *Conn) string {
	if len(c.holdings.claims) == 0 {
		return ""
	}
	name := c.holdings.claims[len(c.holdings.claims)-1]
	return name + ": " + string(m.claims.byName[name].text)
}

// Claim is a claim as others see it.
type Claim struct {
	Text string
	Held bool
}

// Claims returns all claims by name.
func (m *Machine) Claims() map[string]Claim { return m.someClaims(math.MaxInt, math.MaxInt) }

// ShownClaims returns claims for people to look at, at most as many as asked for and as have room in a Snapshot.
func (m *Machine) ShownClaims(most int) map[string]Claim { return m.someClaims(most, shownText) }

func (m *Machine) someClaims(most, text int) map[string]Claim {
	all := make(map[string]Claim, min(len(m.claims.byName), most))
	for name, c := range m.claims.byName {
		m.turn.work++
		if text -= len(name) + len(c.text); text < 0 || len(all) >= most {
			break
		}
		all[name] = Claim{Text: string(c.text), Held: c.holder != nil}
	}
	return all
}
