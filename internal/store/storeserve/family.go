// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"net"
	"net/netip"
)

// familyOf returns the network for package net to listen on an address. It takes 0.0.0.0 with "tcp" for all addresses, of IPv6 too.
func familyOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
		return "tcp4"
	}
	return "tcp"
}
