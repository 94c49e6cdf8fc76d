// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gloo

import (
	"net"
	"time"
)

// connectionAge knows nothing on this platform: connections count as ended when they are read.
func connectionAge(net.Conn) (age time.Duration, over bool) { return 0, false }
