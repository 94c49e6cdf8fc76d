// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
)

// errNil is the error of every method of a nil group.
var errNil = cohort.New("group", cohort.InvalidArgument,
	"the group is nil: check the error of New, or of the function that should have made it")

// noArgs is what requests of a nil group depend on, until they are refused.
var noArgs = collective.Group{Size: 1}

// refused returns an operation that has failed.
func refused(err error) *Work { return new(Work).complete(err) }
