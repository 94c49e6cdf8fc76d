// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import "time"

// withLimits bounds what peers may send.
func withLimits(l peerLimits) Option {
	return option(func(c *config) error { c.limits = l; return nil })
}

// withHandshakeTimeout bounds how long a peer may take to establish a pipe. The default is 20 seconds.
func withHandshakeTimeout(d time.Duration) Option {
	return option(func(c *config) error { c.handshake = d; return nil })
}

// withStallTimeout is how long a peer may read nothing before its connection is closed. The default is 60 seconds.
func withStallTimeout(d time.Duration) Option {
	return option(func(c *config) error { c.stall = d; return nil })
}
