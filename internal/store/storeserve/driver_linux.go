// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import "net"

// newDriver chooses event loops for TCP and goroutines for everything else.
func newDriver(l net.Listener, c *Core, config Config) (driver, error) {
	if tcp, ok := l.(*net.TCPListener); ok && !config.Portable {
		return newLoops(tcp, c, config)
	}
	return newGoDriver(l, c), nil
}
