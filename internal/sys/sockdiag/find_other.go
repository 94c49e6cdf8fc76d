// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sockdiag

import "net/netip"

// Find returns [ErrUnavailable].
func Find(netip.AddrPort, netip.AddrPort) (Socket, error) { return Socket{}, ErrUnavailable }
