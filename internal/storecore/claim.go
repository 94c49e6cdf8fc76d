// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"

	"github.com/cohort-dist/cohort/dist"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
)

// A claim is a name that one connection holds, with a text that says who it is: how ranks of a world make sure that each
// of them is there only once. Claims are no keys: they are neither counted nor listed. A native client makes one by
// COMPARE_SET on the reserved key wire.ClaimPrefix + name:
//
//   - of a name that nobody ever claimed, with nothing expected;
//   - of a name whose holder's connection has ended, with that holder's text expected;
//   - of a name of its own, with its present text expected, to change that.
//
// The answer is the text that the name has afterwards, as with any COMPARE_SET. A claim whose holder is gone stays, so
// that who comes next knows that the name was taken before.
type claim struct {
	holder *Conn // nil when it is gone
	text   []byte
}

const (
	maxClaims    = 1 << 17
	maxClaimName = 256
	maxClaimText = 1 << 10
	claimCost    = 128
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
		return dist.Newf(op, dist.InvalidArgument, "a name of %d bytes, want 1 to %d", len(name), maxClaimName)
	case len(r.Value) == 0 || len(r.Value) > maxClaimText:
		return dist.Newf(op, dist.InvalidArgument, "a text of %d bytes, want 1 to %d", len(r.Value), maxClaimText)
	}
	have := m.claims[string(name)]
	if have == nil {
		if len(r.Expected) != 0 {
			m.replyBytes(c, r.ID, r.Expected) // as for a key that does not exist
			return nil
		}
		if len(m.claims) >= maxClaims {
			return dist.Newf(op, dist.Exhausted, "%d names are claimed already", len(m.claims))
		}
		if err := m.room(claimCost + len(name) + len(r.Value)); err != nil {
			return err
		}
		m.extraBytes += int64(claimCost + len(name))
		have = &claim{}
		if m.claims == nil {
			m.claims = map[string]*claim{}
		}
		m.claims[string(name)] = have
	} else if have.holder != nil && have.holder != c || !bytes.Equal(have.text, r.Expected) {
		m.replyBytes(c, r.ID, have.text)
		return nil
	}
	m.extraBytes += int64(len(r.Value) - len(have.text))
	have.text = append(have.text[:0], r.Value...)
	if have.holder == nil {
		have.holder = c
		c.claims = append(c.claims, string(name))
	}
	m.replyBytes(c, r.ID, r.Value)
	return nil
}

// unclaim lets go of what a connection that ends holds.
func (m *Machine) unclaim(c *Conn) {
	for _, name := range c.claims {
		m.claims[name].holder = nil
	}
	c.claims = nil
}

// name says who a connection is, as far as its claims tell.
func (m *Machine) name(c *Conn) string {
	if len(c.claims) == 0 {
		return ""
	}
	name := c.claims[len(c.claims)-1]
	return name + ": " + string(m.claims[name].text)
}

// Claim is a claim as others see it.
type Claim struct {
	Text string
	Held bool
}

// Claims returns claims by name, at most as many as asked for.
func (m *Machine) Claims(most int) map[string]Claim {
	all := make(map[string]Claim, min(len(m.claims), most))
	for name, c := range m.claims {
		if len(all) >= most {
			break
		}
		all[name] = Claim{Text: string(c.text), Held: c.holder != nil}
	}
	return all
}
