// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package form

import (
	"context"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
)

// lonely is the mesh of a group with one rank: it has nobody to talk to.
type lonely struct{}

func (lonely) Rank() int                                 { return 0 }
func (lonely) Size() int                                 { return 1 }
func (lonely) Send(op *link.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (lonely) Recv(op *link.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (lonely) Wait(_ context.Context, op *link.Op) error { return op.State.Err }
func (lonely) Cancel(*link.Op) bool                      { return false }
func (lonely) Fail(error)                                {}
func (lonely) Close() error                              { return nil }

func errAlone() error {
	return dist.New("group", dist.InvalidArgument, "the group has no other rank")
}
