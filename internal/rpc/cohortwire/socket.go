// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import "net"

// localBuffer is the send buffer between two workers of one host. The kernel gives no more than net.core.wmem_max, of which many
// systems have 208 KiB.
const localBuffer = 768 << 10

// tuneLocal prepares a connection within the host. Its send buffer, which the kernel doubles, takes a tensor of 1 MiB
// at once if the kernel gives it whole, so that its writer need not wait in between, and is bounded: what is on its way
// stays in the cache, where the kernel's own choice of several megabytes makes both copies go through memory. Between
// hosts the buffer must hold what the network has under way, so there the kernel chooses.
func tuneLocal(conn net.Conn) {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	local, lok := c.LocalAddr().(*net.TCPAddr)
	remote, rok := c.RemoteAddr().(*net.TCPAddr)
	if lok && rok && (remote.IP.IsLoopback() || remote.IP.Equal(local.IP)) {
		_ = c.SetWriteBuffer(localBuffer) // only speed depends on it
		disablePacing(c)
	}
}
