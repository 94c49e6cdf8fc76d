// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package storeserve

import "net"

// tryWrite writes nothing: the connection's own writer does.
func tryWrite(net.Conn, []byte) int { return 0 }
