// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

// MayUse reports whether a worker has a reference to an own object, so that it may fetch it and pass it on: it created the
// object, or it holds a fork. An object that is not here may be used by its creator, whose creating call is on its way.
func (m *Machine) MayUse(w Worker, id ID) bool {
	o := m.objects[id]
	if id.On == w || o == nil {
		return id.On == w
	}
	for _, holder := range o.forks {
		if holder.worker == w {
			return true
		}
	}
	return false
}

// maySay reports whether a message is its sender's to send: a fork is deleted by its holder, a creation announced and cancelled by
// its creator. Others are ignored, so that no member of a world can end what another one holds.
func (m *Machine) maySay(w Worker, msg Message) bool {
	switch msg.Kind {
	case Delete, Cancel:
		if msg.Kind == Cancel && msg.ID.On != w {
			return false
		}
		if o := m.objects[msg.ID]; o != nil {
			if holder, there := o.forks[msg.Fork]; there {
				return holder.worker == w
			}
		}
	case Announce:
		return msg.ID.On == w && msg.Fork.On == w
	default: // a worker speaks of itself, or to whom it gave something
	}
	return true
}
