// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package transport

import "sync/atomic"

// partAlign keeps the ends of parts off the middle of a cache line.
const partAlign = 64

// Divide marks op as posted, in n parts of equal length that a mesh posts in its place. It is complete when all of them are; then N is the sum of
// theirs, and its error the first one of a part, in their order. The memory of the parts is that of the last time, so that an op that is used
// again and again needs none.
func (op *Op) Divide(n int) []Op {
	op.Begin()
	if cap(op.State.Parts) < n {
		op.State.Parts = make([]Op, n)
	}
	op.State.Parts = op.State.Parts[:n]
	size := (len(op.Buf)/n + partAlign - 1) &^ (partAlign - 1)
	for i := range op.State.Parts {
		p := &op.State.Parts[i]
		from, to := min(i*size, len(op.Buf)), min((i+1)*size, len(op.Buf))
		if i == n-1 {
			to = len(op.Buf)
		}
		p.Peer, p.Slot, p.Buf = op.Peer, op.Slot, op.Buf[from:to:to]
		p.State.whole = op
	}
	atomic.StoreUint64(&op.State.Aux, uint64(n)) //nolint:gosec // a few
	return op.State.Parts
}

// Length is the length of the message that op posts, or of which it posts a part.
func (op *Op) Length() int {
	if whole := op.State.whole; whole != nil {
		return len(whole.Buf)
	}
	return len(op.Buf)
}

// Divided reports whether op was posted in parts.
func (op *Op) Divided() bool { return len(op.State.Parts) > 0 }

// Release forgets the memory that the parts of a complete op had.
func (op *Op) Release() {
	for i := range op.State.Parts {
		op.State.Parts[i].Buf = nil
	}
}
