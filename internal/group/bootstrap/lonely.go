// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// singleRankMesh is the mesh of a group with one rank, which has no peers.
type singleRankMesh struct{}

func (singleRankMesh) Rank() int                                      { return 0 }
func (singleRankMesh) Size() int                                      { return 1 }
func (singleRankMesh) Send(op *transport.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (singleRankMesh) Recv(op *transport.Op)                          { op.Begin(); op.Complete(errAlone()) }
func (singleRankMesh) Wait(_ context.Context, op *transport.Op) error { return op.State.Err }
func (singleRankMesh) Cancel(*transport.Op) bool                      { return false }
func (singleRankMesh) Fail(error)                                     {}
func (singleRankMesh) Close() error                                   { return nil }

func errAlone() error {
	return cohort.New("group", cohort.InvalidArgument, "the group has no other rank")
}
