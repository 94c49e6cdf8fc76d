// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"strconv"
	"time"
)

// Worker is the id of a worker in its world. It is 16 bits wide on PyTorch's wire.
type Worker int16

// Epoch tells one life of a worker from another. Zero stands for a PyTorch process, which has none.
type Epoch uint64

// ID names an object or a fork: the worker that made it and that worker's counter. One counter makes both kinds, so an
// ID is unique in its world and, thanks to the epoch, across restarts.
type ID struct {
	On    Worker
	N     uint64
	Epoch Epoch
}

// String writes the id as PyTorch does in its leak report.
func (id ID) String() string {
	b := make([]byte, 0, 64) // not with fmt: every fetch has a name
	b = append(strconv.AppendInt(append(b, "GloballyUniqueId(created_on="...), int64(id.On), 10), ", local_id="...)
	return string(append(strconv.AppendUint(b, id.N, 10), ')'))
}

// Less orders ids, so that effects come out in the same order in every run.
func (id ID) Less(other ID) bool {
	if id.On != other.On {
		return id.On < other.On
	}
	if id.Epoch != other.Epoch {
		return id.Epoch < other.Epoch
	}
	return id.N < other.N
}

// life is one process: a worker and its epoch.
type life struct {
	worker Worker
	epoch  Epoch
}

// Time is what the driver's monotonic clock says. Only differences matter.
type Time = time.Duration

// PeerKind says which protocol a peer speaks.
type PeerKind uint8

// The kinds of peers.
const (
	PyTorch PeerKind = iota // single acknowledged requests, no epochs, no heartbeats
	Cohort                  // the extended protocol on an ordered stream
)
