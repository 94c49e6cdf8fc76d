// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cohortwire

import (
	"errors"
	"net"
)

// rawSockets says that rawRead and rawWrite cannot be used.
const rawSockets = false

// rawWrite leaves everything to the flusher: there are no writes here that do not wait.
func rawWrite(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

// rawRead is not called.
func rawRead(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

// disablePacing leaves the connection as it is.
func disablePacing(*net.TCPConn) {}
