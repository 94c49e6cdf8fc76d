// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"net"
	"time"
)

// keepAlive lets the kernel probe the other machine of an idle connection every few seconds, so that
// [Pipe.Silence] can tell. It cuts a connection as late as it does by default: a worker that was cut off for a minute is
// still a worker.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 30}

// Silence returns for how long nothing has arrived from the other machine, not even an acknowledgement;
// a few seconds mean nothing. A process that hangs is not silent, since its machine acknowledges. Where the system does not
// report it, it is zero.
func (p *Pipe) Silence() time.Duration { return silence(p.main.nc) }
