// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import "net"

// newDriver chooses event loops for TCP and goroutines for everything else.
func newDriver(l net.Listener, c *core, config serverConfig) (driver, error) {
	if tcp, ok := l.(*net.TCPListener); ok && !config.portable {
		return newLoops(tcp, c, config)
	}
	return newGoDriver(l, c), nil
}
