// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gloo

// iovecs is not needed here: the connection gathers buffers itself.
type iovecs struct{}

// tryWrite leaves the batch to the writer goroutine, because a write that does not wait is not portable.
func (p *pair) tryWrite() (done bool, err error) { return false, nil }

// write writes the batch, waiting for the peer to take it.
func (p *pair) write() error { return p.writeAll() }
