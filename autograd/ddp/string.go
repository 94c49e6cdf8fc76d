// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import "fmt"

// String says how many parameters the model has, and which group averages them.
func (m *Model) String() string {
	return fmt.Sprintf("ddp model (%d parameters in %d buckets, %v)", len(m.params), len(m.pools.buckets), m.g)
}
