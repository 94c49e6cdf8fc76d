// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"net"
	"time"
)

// keepAlive lets the kernel ask an idle connection every few seconds whether the other machine is there, so that
// [Pipe.Silence] can tell. It cuts a connection as late as it does by default: a worker that was cut off for a minute is
// still a worker.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 30}

// Silence returns for how long the other machine has answered nothing at all, not even to say that it got what was sent;
// up to some seconds mean nothing. A process that hangs is not silent, since its machine answers. Where the system cannot
// tell it is zero.
func (p *Pipe) Silence() time.Duration { return silence(p.main.nc) }
