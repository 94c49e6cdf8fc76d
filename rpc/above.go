// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"github.com/cohort-dist/cohort/internal/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcref"
	"github.com/cohort-dist/cohort/internal/rpcserve"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// above is the agent as its sessions see it.
type above struct{ a *Agent }

var _ rpclink.Above = above{}

func (u above) NewPeer() any { return rpcref.NewPeer() }

func (u above) Request(in rpclink.Incoming) { u.a.server.Arrived(in) }

func (u above) Connected(c *rpclink.Conn) { u.a.refs.Connected(c) }

func (u above) Control(c *rpclink.Conn, payload []byte) { u.a.refs.Frame(c, payload) }

func (u above) Discard(c *rpclink.Conn, f *cohortwire.Frame) { u.a.refs.Discard(c, f) }

func (u above) DiscardAnswer(p *rpclink.Peer, m *rpcwire.Message) { u.a.refs.DiscardAnswer(p, m) }

func (u above) Undelivered(p *rpclink.Peer, wires []rrefcore.Wire) { u.a.refs.Undelivered(p, wires) }

func (u above) Tied(p *rpclink.Peer) bool { return u.a.refs.Tied(p) }

func (u above) Died(p *rpclink.Peer) {
	if u.a.refs == nil {
		return
	}
	u.a.refs.Died(p)
	if u.a.extension != nil && !u.a.refs.Former(p) {
		u.a.extension.Died(rpcserve.SeamWorker(p))
	}
}
