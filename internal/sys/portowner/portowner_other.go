// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package portowner

import "net/netip"

// Find finds nothing on this platform.
func Find(int) (Owner, bool) { return Owner{}, false }

// RefuseTorchPort refuses nothing on this platform.
func RefuseTorchPort(string) error { return nil }

// Loaded reports nothing on this platform.
func Loaded(int, string) bool { return false }

// Clients finds nothing on this platform.
func Clients(int, []netip.AddrPort) map[netip.AddrPort]Owner { return nil }

// Listeners finds nothing on this platform.
func Listeners() map[netip.AddrPort]string { return nil }

// ReadSockets finds nothing on this platform.
func ReadSockets([]int) *Sockets { return nil }
