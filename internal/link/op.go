// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"sync/atomic"

	"github.com/cohort-dist/cohort/dist"
)

// The values of OpState.Flag.
const (
	opIdle uint32 = iota
	opPending
	opDone
)

// Begin marks op as posted. A mesh calls it first in Send and Recv.
func (op *Op) Begin() {
	if op.State.Done == nil {
		op.State.Done = make(chan struct{}, 1)
	}
	select {
	case <-op.State.Done: // nobody waited for the last use
	default:
	}
	op.N, op.Source = 0, op.Peer
	op.State.Err, op.State.Next, op.State.Aux = nil, nil, 0
	atomic.StoreUint32(&op.State.Flag, opPending)
}

// Complete ends op. A mesh calls it exactly once per Begin, after the last access to op.Buf.
func (op *Op) Complete(err error) {
	done := op.State.Done
	op.State.Err = err
	atomic.StoreUint32(&op.State.Flag, opDone)
	select {
	case done <- struct{}{}:
	default:
	}
}

// Completed reports whether op is complete, without waiting.
func (op *Op) Completed() bool { return atomic.LoadUint32(&op.State.Flag) == opDone }

// Await returns when op is complete, with its error, or when ctx ends, with the context's.
func (op *Op) Await(ctx context.Context) error {
	for !op.Completed() {
		select {
		case <-op.State.Done: // a late signal of an earlier use wakes too: look again
		case <-ctx.Done():
			if op.Completed() {
				return op.State.Err
			}
			return dist.FromContext("link: wait", ctx)
		}
	}
	return op.State.Err
}

// Posted reports whether op was posted since the last Reset.
func (op *Op) Posted() bool { return atomic.LoadUint32(&op.State.Flag) != opIdle }

// Reset makes a complete op look like one that was never posted.
func (op *Op) Reset() { atomic.StoreUint32(&op.State.Flag, opIdle) }
