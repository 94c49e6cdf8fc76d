// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"github.com/cohort-dist/cohort/internal/group/gloo"
)

// checks is the part of a group with PyTorch ranks that run with TORCH_DISTRIBUTED_DEBUG=DETAIL.
type checks struct {
	wrapper *gloo.Wrapper
	turn    chan struct{} // held by the operation that is being checked and posted
}
