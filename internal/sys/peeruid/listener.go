// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package peeruid

import (
	"net"
	"net/netip"
)

// Listener returns l with an Accept that leaves out connections of users that the policy does not accept.
func (p *Policy) Listener(l net.Listener) net.Listener { return &listener{l, p} }

type listener struct {
	net.Listener

	policy *Policy
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.policy.AcceptsConn(c) {
			return c, err
		}
		_ = c.Close()
	}
}

// AcceptsConn is Accepts for a connection.
func (p *Policy) AcceptsConn(c net.Conn) bool { return p.JudgeConn(c) == Accepted }

// JudgeConn is Judge for a connection. One that is not TCP is accepted.
func (p *Policy) JudgeConn(c net.Conn) Verdict {
	local, here := addrOf(c.LocalAddr())
	remote, there := addrOf(c.RemoteAddr())
	if !here || !there {
		return Accepted
	}
	return p.Judge(local, remote)
}

func addrOf(a net.Addr) (netip.AddrPort, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	return tcp.AddrPort(), true
}
