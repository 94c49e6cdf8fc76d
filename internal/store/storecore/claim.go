// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"math"
	"slices"
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
	holder holderID // none when it is gone
	conn   *Conn    // the holder's, while it is open here
	text   []byte
	cost   int64
	host   string   // of the last holder
	sub    uint32   // which client of the holder's session
	left   *session // which has lost it with its connection and gets it again, if it has not been taken meanwhile
	turn   uint64   // among those of its host that are gone
}

// holderID names a connection for as long as there is a store: the process that serves it, and its number there. The zero one is none.
type holderID struct{ Server, Conn uint64 }

type claims struct {
	byName    map[string]*claim
	byHolder  map[holderID][]*claim    // in the order in which they were claimed
	released  map[string]*hostReleases // by host
	nReleased int
	holders   uint64 // connections of this process that have ever claimed a name
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
	if err := checkClaim(c, r); err != nil {
		return err
	}
	holder := m.holderOf(c)
	have, answer, err := m.contest(holder, r)
	if answer == nil && err == nil {
		err = m.roomToWait(c, claimSize(r))
	}
	switch {
	case err != nil:
		return err
	case answer != nil:
		m.replyBytes(c, r.ID, answer)
		return nil
	}
	m.seize(have, holder, c, hostOf(c.Peer), r)
	m.replyBytes(c, r.ID, r.Value)
	return nil
}

// checkClaim returns what is wrong with a claim, whatever is claimed already.
func checkClaim(c *Conn, r *wire.Request) error {
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
	return nil
}

// holderOf returns the name that c has as a holder of claims.
func (m *Machine) holderOf(c *Conn) holderID {
	if c.holdings.holder == (holderID{}) {
		m.claims.holders++
		c.holdings.holder = holderID{m.config.Server, m.claims.holders}
	}
	return c.holdings.holder
}

func claimSize(r *wire.Request) int64 {
	return int64(claimCost + 2*(len(r.Key)-len(wire.ClaimPrefix)) + len(r.Value))
}

// contest returns the claim of a name, nil if there is none, and the answer if the holder cannot have it.
func (m *Machine) contest(holder holderID, r *wire.Request) (have *claim, answer []byte, err error) {
	have = m.claims.byName[string(r.Key[len(wire.ClaimPrefix):])]
	mine := have != nil && have.holder == holder && have.sub == r.Sub
	switch {
	case have == nil && len(r.Expected) != 0:
		answer = r.Expected // as for a key that does not exist
	case have != nil && (have.holder != (holderID{}) && !mine || !bytes.Equal(have.text, r.Expected)):
		answer = have.text
	case !mine && m.claimsOf(holder, r.Sub) >= maxClaims:
		err = cohort.Newf("tcpstore: claim", cohort.Exhausted, "this client holds %d names, which is the most that one may", maxClaims)
	}
	return have, answer, err
}

// seize gives a name to a holder, whose connection is nil if it is not open here.
func (m *Machine) seize(have *claim, holder holderID, c *Conn, host string, r *wire.Request) {
	if have == nil {
		have = &claim{name: string(r.Key[len(wire.ClaimPrefix):])}
		if m.claims.byName == nil {
			m.claims.byName, m.claims.released = map[string]*claim{}, map[string]*hostReleases{}
			m.claims.byHolder = map[holderID][]*claim{}
		}
		m.claims.byName[have.name] = have
	}
	if have.holder == (holderID{}) {
		m.holdClaim(have, holder, c, host, r.Sub)
	}
	cost := claimSize(r)
	m.admission.waits += cost - have.cost
	if have.conn != nil {
		have.conn.holdings.bytes += cost - have.cost
	}
	have.text, have.cost = append(have.text[:0], r.Value...), cost
}

// holdClaim gives a holder a claim that is free.
func (m *Machine) holdClaim(have *claim, holder holderID, c *Conn, host string, sub uint32) {
	m.reclaim(have)
	have.forgo()
	have.holder, have.host, have.sub = holder, host, sub
	m.claims.byHolder[holder] = append(m.claims.byHolder[holder], have)
	if have.conn = c; c != nil {
		c.holdings.bytes += have.cost // which the machine has counted all the time
	}
}

// claimsOf is how many names one client of a holder has, as far as they could be too many.
func (m *Machine) claimsOf(holder holderID, sub uint32) (n int) {
	all := m.claims.byHolder[holder]
	if len(all) < maxClaims {
		return len(all)
	}
	m.turn.work += uint64(len(all))
	for _, have := range all {
		if have.sub == sub {
			n++
		}
	}
	return n
}

// hostOf is the host of an address "host:port".
func hostOf(peer string) string {
	if i := strings.LastIndexByte(peer, ':'); i >= 0 {
		return peer[:i]
	}
	return peer
}

// unclaim lets go of what a connection that ends holds.
func (m *Machine) unclaim(c *Conn) {
	if c.holdings.holder == (holderID{}) {
		return
	}
	m.leaveClaims(c)
	if m.log != nil {
		m.proposeRelease(c.holdings.holder)
		return
	}
	m.release(c.holdings.holder)
}

// leaveClaims notes that a holder's connection is not open any more. It holds its claims until they are released.
func (m *Machine) leaveClaims(c *Conn) {
	for _, have := range m.claims.byHolder[c.holdings.holder] {
		have.conn = nil
		c.holdings.bytes -= have.cost
	}
}

// release lets go of what a holder has.
func (m *Machine) release(holder holderID) {
	all := m.claims.byHolder[holder]
	delete(m.claims.byHolder, holder)
	s := m.sessions.byHolder[holder]
	for _, have := range all {
		if have.left = s; s != nil {
			s.left = append(s.left, have)
		}
		m.letGo(have)
	}
}

// releaseSub lets go of what one client of a holder has.
func (m *Machine) releaseSub(holder holderID, sub uint32) {
	all := m.claims.byHolder[holder]
	if len(all) == 0 {
		return
	}
	m.turn.work += uint64(len(all))
	left := slices.DeleteFunc(slices.Clone(all), func(have *claim) bool { return have.sub != sub })
	m.claims.byHolder[holder] = slices.DeleteFunc(all, func(have *claim) bool { return have.sub == sub })
	for _, have := range left {
		m.letGo(have)
	}
}

// letGo takes a claim from its holder. What one host leaves behind is bounded: its oldest are forgotten.
func (m *Machine) letGo(have *claim) {
	if have.holder = (holderID{}); have.conn != nil {
		have.conn.holdings.bytes -= have.cost
		have.conn = nil
	}
	m.addReleased(have)
	if m.claims.nReleased <= maxReleasedClaims {
		m.dropReleased(m.claims.released[have.host], maxHostReleases)
		return
	}
	most := m.mostReleased()
	m.dropReleased(most, most.live-1)
}

// addReleased puts a claim that has lost its holder behind those of its host.
func (m *Machine) addReleased(have *claim) {
	b := m.claims.released[have.host]
	if b == nil {
		b = &hostReleases{}
		m.claims.released[have.host] = b
	}
	have.turn++
	b.list = append(b.list, releasedClaim{have, have.turn})
	b.live++
	m.claims.nReleased++
}

// mostReleased returns the releases of the host that has the most, of several the first by name: all machines that have seen the same
// choose the same.
func (m *Machine) mostReleased() (most *hostReleases) {
	name := ""
	for host, b := range m.claims.released {
		m.turn.work++
		if most == nil || b.live > most.live || b.live == most.live && host < name {
			name, most = host, b
		}
	}
	return most
}

// dropReleased drops the oldest of a host's claims until there are no more than most.
func (m *Machine) dropReleased(b *hostReleases, most int) {
	if len(b.list) > 2*maxHostReleases {
		m.turn.work += uint64(len(b.list))
		b.list = slices.DeleteFunc(b.list, releasedClaim.stale)
	}
	for len(b.list) > 0 && (b.live > most || b.list[0].stale()) {
		first := b.list[0]
		b.list[0] = releasedClaim{}
		b.list = b.list[1:]
		if !first.stale() {
			b.live--
			m.claims.nReleased--
			delete(m.claims.byName, first.claim.name)
			first.claim.forgo()
			m.admission.waits -= first.claim.cost
		}
	}
}

// forgo notes that no session gets the claim again.
func (c *claim) forgo() {
	if s := c.left; s != nil {
		c.left = nil
		s.left = slices.DeleteFunc(s.left, func(o *claim) bool { return o == c })
	}
}

// stale reports whether the claim was taken again since.
func (g releasedClaim) stale() bool { return g.claim.holder != (holderID{}) || g.claim.turn != g.turn }

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
	all := m.claims.byHolder[c.holdings.holder]
	if len(all) == 0 {
		return ""
	}
	last := all[len(all)-1]
	return last.name + ": " + string(last.text)
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
		all[name] = Claim{Text: string(c.text), Held: c.holder != (holderID{})}
	}
	return all
}
