// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import "fmt"

// String describes the optimizer at this worker.
func (l *local) String() string { return fmt.Sprint("local part of a remote optimizer: ", l.opt) }

// String says at how many workers the parameters are.
func (o *Optimizer) String() string {
	return fmt.Sprintf("remote optimizer (%d workers)", len(o.parts))
}
