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
