// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// String says when the prefix is added.
func (p AttemptPrefix) String() string {
	switch p {
	case AttemptPrefixAuto:
		return "auto"
	case AttemptPrefixAlways:
		return "always"
	case AttemptPrefixNever:
		return "never"
	}
	return "attempt prefix " + strconv.Itoa(int(p))
}

// String says which rank of how many this process is.
func (m *Member) String() string { return fmt.Sprintf("member: rank %d of %d", m.rank, m.size) }

// String lists the schemes.
func (r *Registry) String() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	schemes := make([]string, 0, len(r.handlers))
	for s := range r.handlers {
		schemes = append(schemes, s)
	}
	slices.Sort(schemes)
	return "rendezvous schemes: " + strings.Join(schemes, ", ")
}
