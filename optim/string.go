// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim

import "fmt"

// String names the rule, the learning rate and the number of parameters.
func (o *Optimizer) String() string {
	return fmt.Sprintf("%T (lr=%v, %d parameters)", o.rule, o.lr, len(o.params))
}
