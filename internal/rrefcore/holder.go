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

// Holder returns the worker that holds a fork of an own object.
func (m *Machine) Holder(id, fork ID) (w Worker, known bool) {
	if o := m.objects[id]; o != nil {
		if holder, there := o.forks[fork]; there {
			return holder.worker, true
		}
	}
	return 0, false
}
