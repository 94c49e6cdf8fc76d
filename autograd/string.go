// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import "strconv"

// String names the function and reports how much it was given and has made.
func (n *Node) String() string {
	return n.Name() + " (" + strconv.Itoa(len(n.edges)) + " inputs, " + strconv.Itoa(len(n.outputs)) + " outputs)"
}

// String reports how many inputs the function has and how many tensors it has saved.
func (c *Context) String() string {
	return "autograd context (" + strconv.Itoa(len(c.needs)) + " inputs, " + strconv.Itoa(len(c.saved)) + " saved)"
}

// String reports how far the pass is.
func (p *Pass) String() string {
	return "backward pass (" + strconv.Itoa(len(p.waiting)) + " functions wait, " + strconv.Itoa(len(p.ready)) + " are ready)"
}

// String returns PyTorch's name of the reduction.
func (r Reduction) String() string {
	switch r {
	case ReduceMean:
		return "mean"
	case ReduceSum:
		return "sum"
	case ReduceNone:
		return "none"
	}
	return "reduction " + strconv.Itoa(int(r))
}
