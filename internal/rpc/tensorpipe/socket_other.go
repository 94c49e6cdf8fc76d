// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tensorpipe

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// takeOver leaves the connection to the runtime.
func takeOver(nc net.Conn, _ *adaptivePoll) net.Conn { return nc }

func limitSynRetries(string, string, syscall.RawConn) error { return nil }

func silence(net.Conn) time.Duration { return 0 }

// watch watches nothing here: a connection that is cut while a pipe is set up is found by the timeout of the handshake.
type watch struct{}

func newWatch(...*stream) *watch { return nil }

func (w *watch) wait(time.Time) (*stream, error) { return nil, errors.ErrUnsupported }

func (w *watch) close() {}

func arrived(net.Conn) (n uint64, unread bool) { return 0, false }
