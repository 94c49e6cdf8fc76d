// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"sync/atomic"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// message is what only a point-to-point operation has.
type message struct {
	transport.Op
	handed    atomic.Bool                  // the mesh has it
	withdrawn atomic.Pointer[cohort.Error] // why the group itself took it back
	source    cohort.Rank                  // who sent what was received
}

// reset makes it new, and keeps the channel that the mesh signals.
func (m *message) reset() {
	m.Op = transport.Op{State: transport.OpState{Done: m.State.Done}}
	m.handed.Store(false)
	m.withdrawn.Store(nil)
	m.source = cohort.NoRank
}

// hand gives it to the mesh.
func (m *message) hand(mesh transport.Mesh, op OpType) {
	if op == OpSend {
		mesh.Send(&m.Op)
	} else {
		mesh.Recv(&m.Op)
	}
	m.handed.Store(true)
}

// withdraw takes it back, with a reason. It cannot if the message is half way: its buffer is in use until the group fails.
func (m *message) withdraw(mesh transport.Mesh, reason *cohort.Error) bool {
	m.withdrawn.Store(reason)
	return mesh.Cancel(&m.Op) || m.Completed()
}
