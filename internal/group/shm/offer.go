// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import "github.com/cohort-dist/cohort/internal/group/transport"

// byID returns the op of the message with a number, or nil.
func byID(l *transport.List, id uint64) *transport.Op {
	for op := l.Head; op != nil; op = op.State.Next {
		if op.State.Aux == id {
			return op
		}
	}
	return nil
}

// offerID is the number of a message that was offered, by which its receiver asks for it.
type offerID uint64

type early = transport.Early[offerID]
