// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cohortwire

import "syscall"

// rawSockets tells that rawWrite can be used.
const rawSockets = true

// rawWrite writes to a descriptor that does not block.
func rawWrite(fd uintptr, b []byte) (int, error) { return syscall.Write(int(fd), b) }
