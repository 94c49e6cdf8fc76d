// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import "github.com/cohort-dist/cohort/tensor"

// Message is what a pipe moves: a few payloads and the storages of tensors. Of a received message the payloads and
// storages belong to the receiver. Of a sent one they belong to the pipe until Send returns nil; see [Pipe.Send] for
// the case that it does not.
type Message struct {
	Payloads [][]byte
	Storages []*tensor.Storage
	// BufferEmpty is set on a received message when no part of another one had been read behind it.
	BufferEmpty bool
}

// Release gives the storages back to where they came from.
func (m *Message) Release() {
	for _, s := range m.Storages {
		s.Release()
	}
}
