// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import "github.com/cohort-dist/cohort/internal/link"

// byID returns the op of the message with a number, or nil.
func byID(l *link.List, id uint64) *link.Op {
	for op := l.Head; op != nil; op = op.State.Next {
		if op.State.Aux == id {
			return op
		}
	}
	return nil
}

// arrival is a message, or the offer of one, that came before its receive was posted.
type arrival struct {
	slot  uint64
	id    uint64 // of an offer
	total uint64
	offer bool
	order uint64 // among all arrivals of the mesh
	data  []byte
}
