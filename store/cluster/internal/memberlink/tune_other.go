// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package memberlink

import "net"

// tune makes a connection report a host that does not answer. Only Linux does it in less than a second; elsewhere the clock of the
// election decides.
func tune(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		keepAlive(tcp)
	}
}
