// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import "net"

// localBuffer is the send buffer between two workers of one host.
const localBuffer = 256 << 10

// keepInCache bounds the send buffer of a connection within the host: what is on its way stays in the processor's cache,
// where the kernel's own choice of several megabytes makes both copies go through memory. Between hosts the buffer must
// hold what the network has under way, so there the kernel chooses.
func keepInCache(conn net.Conn) {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	local, lok := c.LocalAddr().(*net.TCPAddr)
	remote, rok := c.RemoteAddr().(*net.TCPAddr)
	if lok && rok && (remote.IP.IsLoopback() || remote.IP.Equal(local.IP)) {
		_ = c.SetWriteBuffer(localBuffer) // only speed depends on it
	}
}
