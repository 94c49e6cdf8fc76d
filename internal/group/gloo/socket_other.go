// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gloo

import (
	"syscall"
	"time"
)

// order records nothing on this platform: connections count as ended when they are read.
type order struct{}

func newOrder(int) *order { return new(order) }

func (*order) add(int, syscall.RawConn) {}

func (*order) position(int) int { return 0 }

func (*order) close() {}

func sinceLastPacket(syscall.RawConn) (time.Duration, bool) { return 0, false }

// iovecs is not needed here: the connection gathers buffers itself.
type iovecs struct{}

// tryWrite leaves the batch to the writer goroutine, because a write that does not wait is not portable.
func (p *pair) tryWrite() (done bool, err error) { return false, nil }

// write writes the batch, waiting for the peer to take it.
func (p *pair) write() error { return p.writeAll() }
