// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn

import "fmt"

// String returns the module as PyTorch prints it.
func (m *BatchNorm) String() string {
	if m.mean == nil {
		return "BatchNorm()"
	}
	return fmt.Sprintf("BatchNorm(%d, eps=%v, momentum=%v)", m.mean.Numel(), m.Eps, m.Momentum)
}
