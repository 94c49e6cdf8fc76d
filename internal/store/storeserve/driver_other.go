// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package storeserve

import "net"

func newDriver(l net.Listener, c *Core, _ Config) (driver, error) {
	return newGoDriver(l, c), nil
}
