// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// String returns the reference as PyTorch prints it, with the ids that its debug output uses.
func (r *Ref[T]) String() string {
	switch {
	case r == nil || r.c == nil:
		return "RRef()"
	case r.c.Object != nil:
		return fmt.Sprintf("OwnerRRef(%s)", globalText(r.c.Object.ID))
	default:
		return fmt.Sprintf("UserRRef(RRefId = %s, ForkId = %s)", globalText(r.c.Handle.Wire.ID), globalText(r.c.Handle.Wire.Fork))
	}
}

func globalText(id rrefcore.ID) string {
	return fmt.Sprintf("GloballyUniqueId(created_on=%d, local_id=%d)", id.On, id.N)
}

// MarshalJSON refuses: a reference lives only as long as it is held, so it can be passed in calls but not stored.
func (r *Ref[T]) MarshalJSON() ([]byte, error) {
	return nil, cohort.New("rpc: reference", cohort.NotSupported, "a reference cannot be stored: pass it in a call, or store what Fetch returns")
}
