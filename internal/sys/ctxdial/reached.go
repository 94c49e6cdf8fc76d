// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ctxdial

import (
	"net"
	"net/netip"
)

// Towards returns the address ("host:port") that routes towards a server are looked up with, or "" if it has none. A client of the
// server has Addr, what the user gave, and Reached, what it has connected to. A name may have several addresses, of which some may be
// dead, so that of the connection counts.
//
// Two kinds of connections do not. PyTorch prefers IPv4 where a name has both, and all ranks must agree: the address of a connection by
// IPv6 is left to the name. A connection to another port goes through a tunnel, which shows nothing about the route to the server.
func Towards(client any) string {
	server, ok := client.(interface{ Addr() string })
	if !ok {
		return ""
	}
	addr := server.Addr()
	connected, ok := client.(interface{ Reached() net.Addr })
	if !ok {
		return addr
	}
	reached, ok := connected.Reached().(*net.TCPAddr)
	if !ok {
		return addr
	}
	host, port, err := net.SplitHostPort(addr)
	at := netip.AddrPortFrom(reached.AddrPort().Addr().Unmap(), reached.AddrPort().Port())
	if _, literal := netip.ParseAddr(host); err != nil || literal == nil || !at.Addr().Is4() {
		return addr
	}
	if _, reachedPort, _ := net.SplitHostPort(at.String()); reachedPort != port {
		return addr
	}
	return at.String()
}
