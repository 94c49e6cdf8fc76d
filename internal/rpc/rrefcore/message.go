// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

import (
	"strconv"
	"time"
)

// Kind is the kind of a control message.
type Kind uint8

// The control messages. The first three exist on PyTorch's wire too. The numbers are part of the wire among Go workers.
const (
	ForkRequest Kind = 1 + iota // child to owner: register Fork of ID
	ChildAccept                 // child to parent: Fork is safe, unpin
	Delete                      // user to owner: Fork of ID has ended
	ForkReply                   // owner to child: the answer to ForkRequest, with a Code
	Announce                    // creator to owner: a call that creates ID with root Fork follows
	Created                     // owner to creator: the call has arrived, the entry exists
	Cancel                      // creator to owner: forget the creation of ID
	Handoff                     // parent to child: a message carries Fork of ID to you
	Withdraw                    // parent to child: the message with Fork will not arrive
	kindCount
)

var kindNames = [kindCount]string{
	ForkRequest: "fork-request", ChildAccept: "child-accept", Delete: "delete", ForkReply: "fork-reply", Announce: "announce",
	Created: "created", Cancel: "cancel", Handoff: "handoff", Withdraw: "withdraw",
}

// String returns the kind's name.
func (k Kind) String() string {
	if k > 0 && k < kindCount {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// Code says why a reference failed or a request was refused. Codes travel among Go workers.
type Code uint8

// The codes.
const (
	OK             Code = iota
	Gone                // the object existed and was freed
	Cancelled           // its creation was cancelled
	LeaseExpired        // the owner had to assume that this worker is dead
	OwnerLost           // the owner's process is gone
	OwnerRestarted      // another process has the owner's name now
	CreateFailed        // the creating call failed
	TimedOut            // the creating call was not confirmed in time
	Closed              // the user closed the reference
	PeerDead            // the worker to share with is known to be dead
	Withdrawn           // the message that carried the reference was given up by its sender
	CreatorLost         // the creator died before its call arrived, so there never will be a value
	codeCount
)

var codeNames = [codeCount]string{
	"ok", "the object is gone", "its creation was cancelled", "the lease has expired", "the owner is lost",
	"the owner was restarted", "its creation failed", "its creation timed out", "the reference was closed",
	"the worker is dead", "the hand-off was withdrawn", "its creator was lost before the object was made",
}

// String returns the code in plain words.
func (c Code) String() string {
	if c < codeCount {
		return codeNames[c]
	}
	return "code " + strconv.Itoa(int(c))
}

// Message is one control message. Unused fields are zero.
type Message struct {
	Kind  Kind
	ID    ID // the object
	Fork  ID // the fork it is about
	Root  ID // the creator's fork of the object
	Owner Worker
	// OwnerEpoch is the life of the owner that has the object: its successor knows nothing of it.
	OwnerEpoch Epoch
	Code       Code
	// Key is set by an Announce, passed on by a Handoff and shown by a ForkRequest.
	Key Key
}

// Frame is what goes to a Cohort peer in one piece: an acknowledgement and the messages First, First+1, ... of the
// stream. A frame without messages is a heartbeat.
type Frame struct {
	From    Worker
	To      Worker
	Epoch   Epoch // of the sender
	ToEpoch Epoch // of the receiver, as the sender knows it; 0 when it does not yet
	// Session counts how often one side had to give the other up for dead. A frame of an older session is void; one of
	// a newer session says that everything between the two workers has been forgotten.
	Session uint32
	// Floor is the sender's counter at the beginning of the session: its older objects were forgotten with the old one.
	Floor uint64
	First uint64
	Ack   uint64 // every message before this one has arrived
	Stamp Time   // the sender's clock
	Echo  Time   // the newest Stamp that the sender has seen from the receiver
	Msgs  []Message
}

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
