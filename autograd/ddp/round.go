// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"slices"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

// round is a forward whose gradients are to be reduced, from its announcement on, and the pass that does that.
type round struct {
	armed  bool   // it has been announced
	unused []int  // parameters that it did not use
	ready  []bool // by parameter: its gradient has come
	next   int    // the next bucket to be reduced: all ranks reduce in the same order
	began  time.Time
	// grads is where the pass has its gradients; elsewhere says that these are not the parameters' own.
	grads     autograd.Gradients
	elsewhere bool
	waitUsed  wait
}

// usage is which parameters passes use.
type usage struct {
	used        *tensor.Tensor // by how many ranks each was used in this pass, or in all of a static graph
	never       []int          // parameters that a static graph does not use
	accumulated []bool         // parameters that got gradients in passes without reduction since the last one with it
}

// set says what this rank has used.
func (u *usage) set(is func(i int) bool) error {
	used := make([]int32, len(u.accumulated))
	for i := range used {
		if is(i) {
			used[i] = 1
		}
	}
	var err error
	u.used, err = tensor.From(used)
	return err
}

// arrival is the order in which parameters become ready in the first pass, from which the buckets are rebuilt, once.
type arrival struct {
	order   []int
	rebuilt bool
}

// begin begins with parameters for which there is nothing to wait.
func (a *arrival) begin(first []int) {
	if !a.rebuilt {
		a.order = slices.Clone(first)
	}
}

// note says that a parameter is ready.
func (a *arrival) note(i int) {
	if !a.rebuilt {
		a.order = append(a.order, i)
	}
}

// known reports whether it is time to rebuild the buckets.
func (a *arrival) known() bool { return !a.rebuilt && len(a.order) > 0 }
