// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcserver"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// above is the agent as its sessions see it.
type sessionHandler struct{ a *Agent }

var _ rpcsession.Handler = sessionHandler{}

func (u sessionHandler) NewPeer() any { return rpcref.NewPeer() }

func (u sessionHandler) Request(in rpcsession.Incoming) { u.a.server.Arrived(in) }

func (u sessionHandler) Connected(c *rpcsession.Conn) { u.a.refs.Connected(c) }

func (u sessionHandler) Control(c *rpcsession.Conn, payload []byte) { u.a.refs.Frame(c, payload) }

func (u sessionHandler) Discard(c *rpcsession.Conn, f *cohortwire.Frame) { u.a.refs.Discard(c, f) }

func (u sessionHandler) DiscardAnswer(p *rpcsession.Peer, m *rpcwire.Message) {
	u.a.refs.DiscardAnswer(p, m)
}

func (u sessionHandler) Undelivered(p *rpcsession.Peer, wires []rrefcore.Wire) {
	u.a.refs.Undelivered(p, wires)
}

func (u sessionHandler) HoldsReferences(p *rpcsession.Peer) bool { return u.a.refs.Tied(p) }

func (u sessionHandler) Died(p *rpcsession.Peer) {
	if u.a.refs == nil {
		return
	}
	u.a.refs.Died(p)
	if u.a.extension != nil && !u.a.refs.Former(p) {
		u.a.extension.Died(rpcserver.ExtensionWorker(p))
	}
}
