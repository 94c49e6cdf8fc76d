// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"sync/atomic"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/link"
)

// message is what only a point-to-point operation has.
type message struct {
	link.Op
	handed    atomic.Bool                // the mesh has it
	withdrawn atomic.Pointer[dist.Error] // why the group itself took it back
	source    dist.Rank                  // who sent what was received
}

// reset makes it new, and keeps the channel that the mesh signals.
func (m *message) reset() {
	m.Op = link.Op{State: link.OpState{Done: m.State.Done}}
	m.handed.Store(false)
	m.withdrawn.Store(nil)
	m.source = dist.NoRank
}

// hand gives it to the mesh.
func (m *message) hand(mesh link.Mesh, op OpType) {
	if op == OpSend {
		mesh.Send(&m.Op)
	} else {
		mesh.Recv(&m.Op)
	}
	m.handed.Store(true)
}

// withdraw takes it back, with a reason. It cannot if the message is half way: its buffer is in use until the group fails.
func (m *message) withdraw(mesh link.Mesh, reason *dist.Error) bool {
	m.withdrawn.Store(reason)
	return mesh.Cancel(&m.Op) || m.Completed()
}
