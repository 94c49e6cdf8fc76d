// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package portowner

import "net/netip"

// Find cannot tell on this platform.
func Find(int) (Owner, bool) { return Owner{}, false }

// Clients cannot tell on this platform.
func Clients(int, []netip.AddrPort) map[netip.AddrPort]Owner { return nil }

// Listeners cannot tell on this platform.
func Listeners() map[netip.AddrPort]string { return nil }

// Dialing cannot tell on this platform.
func Dialing([]int) map[int][]netip.AddrPort { return nil }

// Remote finds nothing here.
func Remote(int, string) (netip.AddrPort, bool) { return netip.AddrPort{}, false }

// Listening cannot tell on this platform.
func Listening([]int) map[int][]netip.AddrPort { return nil }
