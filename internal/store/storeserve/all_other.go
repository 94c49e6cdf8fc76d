// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package storeserve

// This file listens on addresses. Inherited sockets are for Unix only.

import (
	"context"
	"net"
)

// Addr listens on addr, "host:port".
func Addr(addr string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), familyOf(addr), addr)
}
