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

// offerID is the number of a message that was offered, by which its receiver asks for it.
type offerID uint64

type early = link.Early[offerID]
