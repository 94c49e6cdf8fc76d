// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package peeruid

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// ownAge is how long the addresses of this host are believed to be the same. To read them costs more than everything else about a
// connection.
const ownAge = time.Second

// ownAddrs are the addresses of this host.
type ownAddrs struct {
	mu struct {
		sync.Mutex

		all  map[netip.Addr]bool
		read time.Time
	}
}

// has reports whether an address, without a zone, is one of this host's. If the system does not tell, only loopback addresses are.
func (o *ownAddrs) has(a netip.Addr) bool { return a.IsLoopback() || o.onInterface(a) || routedHere(a) }

func (o *ownAddrs) onInterface(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.mu.all == nil || now.Sub(o.mu.read) > ownAge {
		o.mu.all, o.mu.read = map[netip.Addr]bool{}, now
		all, _ := net.InterfaceAddrs()
		for _, x := range all {
			if prefix, err := netip.ParsePrefix(x.String()); err == nil {
				o.mu.all[prefix.Addr().Unmap().WithZone("")] = true
			}
		}
	}
	return o.mu.all[a]
}
