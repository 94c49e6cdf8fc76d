// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tcpstore

import "github.com/cohort-dist/cohort/internal/store/storeserve"

// ListenFD starts a server on an inherited descriptor: a bound TCP socket, listening already or not. When port is not 0
// the socket must be bound to it. The server owns the descriptor from then on, unless ListenFD fails. It corresponds to
// TCPStore's master_listen_fd.
func ListenFD(fd, port int, opts ...ServerOption) (*Server, error) {
	l, err := storeserve.Listen("tcpstore: listen", fd, port)
	if err != nil {
		return nil, err
	}
	return Serve(l, opts...)
}
