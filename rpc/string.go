// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"strconv"
)

// String names the worker and its address.
func (a *Agent) String() string {
	return fmt.Sprintf("rpc worker %s (id %d, %s)", strconv.Quote(a.name), a.id, a.addr)
}

// String returns how many functions, classes and operators are served.
func (r *Registry) String() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return fmt.Sprintf("registry of %d functions, %d classes and %d operators", len(r.funcs), len(r.classes), len(r.kernels))
}
