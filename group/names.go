// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

// opName is the name of an operation. A sparse sum is told apart, as PyTorch's flight recorder does.
func opName(w *Work) string {
	if w.op == OpAllReduce && w.call.Sparse != nil {
		return "sparse_all_reduce"
	}
	return w.op.String()
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
