// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package cohortwire

import (
	"net"
	"syscall"
)

// rawSockets says that rawRead and rawWrite can be used.
const rawSockets = true

// rawWrite writes to a descriptor that does not block.
func rawWrite(fd uintptr, b []byte) (int, error) { return syscall.Write(int(fd), b) }

// rawRead reads from a descriptor that does not block.
func rawRead(fd uintptr, b []byte) (int, error) { return syscall.Read(int(fd), b) }

// disablePacing leaves the connection as it is.
func disablePacing(*net.TCPConn) {}
