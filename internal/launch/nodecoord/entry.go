// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/security/jobcert"
	"github.com/cohort-dist/cohort/internal/security/joblisten"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
)

// This file is what a client passes before it is a node: with credentials, TLS and the proof of the secret; always the id of the job.

// Refusal is why a client was refused.
type Refusal int

// The reasons.
const (
	none Refusal = iota // it was not
	gone                // it has ended the connection, which is not worth a word
	// Unidentified: it does not speak as a launcher does.
	Unidentified
	// OtherID: it asks for another job.
	OtherID
	// OtherToken: it has another token or certificate, or none.
	OtherToken
	// WithoutTLS: it is a launcher that does not use TLS, at a host that does; WithTLS is the opposite.
	WithoutTLS
	WithTLS
	// OtherClock: its clock differs too much.
	OtherClock
	refusals
)

// plainRefusal is all that a launcher without TLS is told, be it of an older version or one that was started without a token.
var plainRefusal = Dismiss{
	Code: uint8(cohort.NotSupported),
	Sentence: "the rendezvous accepts only launchers that use TLS: start all nodes with the same version of cohort and the same " +
		"--token-file",
}

// entered is a client that may join.
type entered struct {
	link net.Conn
	join *Join
	rest []byte // what it has sent after the request
	leaf []byte
}

// admit lets a client in, or refuses it and says why.
func (h *Host) admit(id launchcore.Node, one *joblisten.Stranger) (*entered, Refusal) {
	until := time.Now().Add(joinTime)
	_ = one.SetDeadline(until)
	raw := joblisten.Meter(one.Conn)
	link, why := h.opened(raw)
	if why != none {
		return nil, why
	}
	m, rest, foreign, err := request(link, until)
	if err != nil {
		return nil, map[bool]Refusal{true: Unidentified, false: gone}[foreign]
	}
	in := &entered{link: link, join: m, rest: rest}
	if why = h.check(in, id); why != none {
		return nil, why
	}
	_ = one.SetDeadline(time.Time{})
	raw.Open()
	return in, none
}

// opened greets a client: over TLS, if the host has credentials. A plain client that is not a launcher speaks first, or never.
func (h *Host) opened(raw *joblisten.Metered) (net.Conn, Refusal) {
	var link net.Conn = raw
	if h.cfg.Credentials != nil {
		secure, why := h.secured(raw)
		if why != none {
			return nil, why
		}
		link = secure
	}
	_, _ = link.Write(greeting)
	if h.cfg.Credentials == nil {
		if first, err := raw.Peek(); err == nil && first == jobtls.Handshake {
			return nil, WithTLS
		}
	}
	return link, none
}

// check looks at a request to join.
func (h *Host) check(in *entered, id launchcore.Node) Refusal {
	secure, _ := in.link.(*tls.Conn)
	if secure != nil && !h.cfg.Credentials.Proven(secure.ConnectionState(), in.join.Proof) {
		return h.refuse(in.link, OtherToken, refusal)
	}
	if subtle.ConstantTimeCompare([]byte(in.join.RunID), []byte(h.cfg.RunID)) == 0 {
		return h.refuse(in.link, OtherID, refusal)
	}
	if secure == nil {
		return none
	}
	if off := time.Since(time.Unix(in.join.Clock, 0)); off.Abs() > jobcert.Early {
		return h.refuse(in.link, OtherClock, otherClock(in.join, off))
	}
	var err error
	if in.leaf, err = h.cfg.Credentials.Admit(in.join.Request, int(id)); err != nil {
		return h.refuse(in.link, Unidentified, Dismiss{Code: uint8(cohort.Protocol), Sentence: err.Error()})
	}
	return none
}

// refuse reports a client before it tells the client why: what it waits for then is the client's end.
func (h *Host) refuse(c net.Conn, why Refusal, d Dismiss) Refusal {
	h.report(why, c)
	refuse(c, d)
	return why
}

// report says, once for each reason, who was refused.
func (h *Host) report(why Refusal, c net.Conn) {
	addr := c.RemoteAddr().String()
	h.refused[why].Do(func() { h.cfg.OnRefused(why, addr) })
}

// otherClock tells a launcher of the job that certificates cannot be checked with its clock.
func otherClock(m *Join, off time.Duration) Dismiss {
	than := "behind"
	if off < 0 {
		than = "ahead of"
	}
	return Dismiss{Code: uint8(cohort.Mismatch), Sentence: fmt.Sprintf(
		"the clock of %s is %v %s that of the launcher that hosts the rendezvous, and certificates allow %v: set the clocks of all "+
			"nodes, for instance with NTP", m.Host, off.Abs().Round(time.Second), than, jobcert.Early)}
}

// secured makes TLS of a connection. A launcher that does not begin with TLS is told so.
func (h *Host) secured(raw *joblisten.Metered) (*tls.Conn, Refusal) {
	first, err := raw.Peek()
	switch {
	case err != nil && !silent(err):
		return nil, gone
	case err == nil && first == jobtls.Handshake:
		secure := tls.Server(raw, h.cfg.Credentials.Server(jobtls.Launch))
		if err = secure.HandshakeContext(context.Background()); err == nil { // the connection has a deadline
			return secure, none
		}
		return nil, refusedIn(err)
	case err == nil && first == greeting[0]:
		return nil, h.refuse(raw, WithoutTLS, plainRefusal)
	}
	return nil, Unidentified
}

// refusedIn says why a handshake has failed.
func refusedIn(err error) Refusal {
	if joblisten.Foreign(err) {
		return OtherToken
	}
	return Unidentified
}
