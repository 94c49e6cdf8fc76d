// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

// MayUse reports whether a worker has a reference to an own object, so that it may fetch it and pass it on: it created the
// object, or it holds a fork. An object that is not here may be used by its creator, whose creating call is on its way.
func (m *Machine) MayUse(w Worker, id ID) bool {
	o := m.objects[id]
	if o == nil || id.On == w && !o.former {
		return id.On == w
	}
	for _, holder := range o.forks.all() {
		if holder.worker == w {
			return true
		}
	}
	return false
}

// mayOriginate reports whether a message is its sender's to send. Others are ignored, so that no member of a world can end, confirm
// or use what another one holds. A [ForkRequest] and a [Handoff] are not
// decided here: see key.go.
func (m *Machine) mayOriginate(w Worker, msg Message) bool {
	switch msg.Kind {
	case Delete, Cancel: // of its own fork; a creation is cancelled by its creator
		if msg.Kind == Cancel && msg.ID.On != w {
			return false
		}
		if o := m.objects[msg.ID]; o != nil {
			if holder, there := o.forks.get(msg.Fork); there {
				return holder.worker == w
			}
		}
	case Announce: // of its own creation
		return msg.ID.On == w && msg.Fork.On == w
	case ForkReply, Created: // by the owner
		h := m.handles[msg.Fork]
		return h != nil && h.owner == w
	case ChildAccept: // by whom the child was given to
		h := m.pins[msg.Fork]
		return h != nil && h.children[msg.Fork].worker == w
	case Withdraw: // by whom it was handed off
		if o := m.objects[msg.ID]; o != nil && msg.Owner == m.self {
			by, offered := o.offers[msg.Fork]
			return !offered || by.worker == w
		}
	default: // ForkRequest, Handoff
	}
	return true
}
