// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tcpstore

import "net"

func newDriver(l net.Listener, c *core, _ serverConfig) (driver, error) {
	return newGoDriver(l, c), nil
}
