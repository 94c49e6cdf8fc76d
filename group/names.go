// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import "github.com/cohort-dist/cohort/internal/coll"

// opName is OpType.String without the map, for the hot path. A sparse sum is told apart, as PyTorch's flight recorder does.
func opName(w *Work) string {
	switch w.op {
	case OpAllReduce:
		if w.call.Sparse != nil {
			return "sparse_all_reduce"
		}
		return "all_reduce"
	case OpBroadcast:
		return "broadcast"
	case OpSend:
		return "send"
	case OpRecv:
		return "recv"
	case OpBarrier:
		return "barrier"
	default:
		return w.op.String()
	}
}

func reduceName(w *Work) string {
	switch w.call.Request.Kind {
	case coll.AllReduce, coll.Reduce, coll.ReduceScatter:
		return w.call.Request.Op.String()
	default:
		return ""
	}
}

func dtypeName(w *Work) string {
	if w.op == OpBarrier {
		return ""
	}
	return w.call.Request.DType.String()
}

// rootOf is the root of an operation that has one.
func rootOf(w *Work) int {
	switch w.call.Request.Kind {
	case coll.Broadcast, coll.Reduce, coll.Gather, coll.Scatter:
		return w.call.Request.Root
	default:
		return -1
	}
}

// torchSteps is how far an operation moves the count that PyTorch 2.x puts into fingerprints. A monitored barrier counts the
// messages it consists of.
func (g *Group) torchSteps(w *Work) uint64 {
	switch {
	case w.call.Parts > 1:
		return uint64(w.call.Parts)
	case w.steps == nil, w.call.Parts == 1:
		return 1
	case g.rank == 0:
		return 2 * uint64(g.size-1) //nolint:gosec // at least one rank
	default:
		return 2
	}
}
