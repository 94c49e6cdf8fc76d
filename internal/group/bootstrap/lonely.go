// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// lonely is the mesh of a group with one rank: it has nobody to talk to.
type lonely struct{}

func (lonely) Rank() int                                      { return 0 }
func (lonely) Size() int                                      { return 1 }
func (lonely) Send(op *transport.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (lonely) Recv(op *transport.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (lonely) Wait(_ context.Context, op *transport.Op) error { return op.State.Err }
func (lonely) Cancel(*transport.Op) bool                      { return false }
func (lonely) Fail(error)                                     {}
func (lonely) Close() error                                   { return nil }

func errAlone() error {
	return cohort.New("group", cohort.InvalidArgument, "the group has no other rank")
}
